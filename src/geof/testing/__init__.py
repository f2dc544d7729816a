"""Checks for this package's tests and for yours: assertions about graph layers, and a test case.

:class:`MethodTestCase` holds what every method must do; derive from it, name your method, and
pytest runs the checks. It is imported when asked for, since it needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geof.nn.inputs import without_csr_warnings
from geof.testing.assertions import (
    assert_batch_equals_alone,
    assert_compiles,
    assert_edge_order_irrelevant,
    assert_no_less_accurate,
    assert_permutation_equivariant,
    assert_positive_definite,
    assert_same,
    values_and_gradients,
)
from geof.testing.graphs import (
    Sample,
    draw_parameters,
    random_graph,
    side_by_side,
    tiny_graph,
    tiny_set,
    tiny_task,
)

if TYPE_CHECKING:
    from geof.testing.method_case import MethodTestCase

__all__ = [
    "MethodTestCase",
    "Sample",
    "assert_batch_equals_alone",
    "assert_compiles",
    "assert_edge_order_irrelevant",
    "assert_no_less_accurate",
    "assert_permutation_equivariant",
    "assert_positive_definite",
    "assert_same",
    "draw_parameters",
    "random_graph",
    "side_by_side",
    "tiny_graph",
    "tiny_set",
    "tiny_task",
    "values_and_gradients",
    "without_csr_warnings",
]


def __getattr__(name: str) -> Any:
    if name == "MethodTestCase":
        from geof.testing.method_case import MethodTestCase

        return MethodTestCase
    raise AttributeError(f"module 'geof.testing' has no attribute {name!r}")

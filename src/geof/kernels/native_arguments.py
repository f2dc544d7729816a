"""Arguments of the native operators: scalars in two lists, edges as a plan, tensors contiguous.

An operator of ``torch.library`` takes tensors, numbers and lists of them. Here are the typed
values that become such lists, and the calls of the C interface (:mod:`geof.kernels.library`) that
they fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from geof.errors import DtypeError
from geof.geometry import JitterSchedule
from geof.geometry.cholesky import report_attempts
from geof.kernels.interface import Evolution, Statistic, StepSpec
from geof.kernels.library import (
    Feedback,
    Frames,
    Library,
    Moments,
    Shape,
    fill,
    find_library,
    shape_of,
)
from geof.kernels.memory import empty
from geof.kernels.neighbourhood import Neighbourhoods

# --- Scalars ------------------------------------------------------------------------------------


class StatisticCode(IntEnum):
    """The residual statistics by their numbers in ``native/geof.h``."""

    NONE = 0
    FULL = 1
    DIAGONAL = 2
    MEAN = 3


STATISTIC_CODES: dict[Statistic | None, StatisticCode] = {
    None: StatisticCode.NONE,
    "full": StatisticCode.FULL,
    "diagonal": StatisticCode.DIAGONAL,
    "mean": StatisticCode.MEAN,
}


class StepOptions(NamedTuple):
    r"""The scalars of a step; integers first, so that they pack into two lists.

    Attributes:
        statistic: Which second moment to form.
        framed: Whether messages are carried between frames.
        retries: :math:`T_{max}` of Eq. (51).
        temperature: :math:`\tau`.
        floor: :math:`\epsilon_s`.
        jitter: :math:`\epsilon_0`.
        growth: :math:`\beta`.
        mix: :math:`\lambda`; this and the rest are read by whole steps only.
        strength: :math:`\gamma`.
        offdiagonal: :math:`a_{max}`.
        low: :math:`\ell_{min}`.
        high: :math:`\ell_{max}`.
    """

    statistic: StatisticCode
    framed: bool
    retries: int
    temperature: float
    floor: float
    jitter: float
    growth: float
    mix: float = 0.0
    strength: float = 0.0
    offdiagonal: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def second(self) -> bool:
        """Whether the statistic is made of the second moment."""
        return self.statistic in (StatisticCode.FULL, StatisticCode.DIAGONAL)

    def pack(self) -> tuple[list[int], list[float]]:
        """Return the integers and the numbers, as an operator takes them."""
        return [int(value) for value in self[:3]], [float(value) for value in self[3:]]

    @classmethod
    def unpack(cls, integers: Sequence[int], numbers: Sequence[float]) -> StepOptions:
        """Return what was packed."""
        statistic, framed, retries = integers
        return cls(StatisticCode(statistic), bool(framed), retries, *numbers)


def step_options(spec: StepSpec, evolution: Evolution | None = None) -> StepOptions:
    """Return the scalars of a step, with or without those of its update."""
    schedule = spec.schedule
    options = StepOptions(
        STATISTIC_CODES[spec.statistic],
        spec.frame_transport,
        schedule.retries,
        spec.temperature,
        spec.spectral_floor,
        schedule.initial,
        schedule.growth,
    )
    if evolution is None:
        return options
    low, high = evolution.box.log_scale_bounds
    return options._replace(
        mix=evolution.target_mix,
        strength=evolution.correction_strength,
        offdiagonal=evolution.box.offdiagonal_bound,
        low=low,
        high=high,
    )


# --- Tensors ------------------------------------------------------------------------------------


def dense(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Return contiguous tensors of one dtype: the kernels know no strides.

    Raises:
        DtypeError: If floating-point tensors differ in dtype.
    """
    dtypes = {
        tensor.dtype for tensor in tensors if tensor is not None and tensor.is_floating_point()
    }
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise DtypeError(
            f"Expected tensors of one dtype for the native backend (got {names}). "
            "Use .to(dtype), and no autocast around the model."
        )
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def is_plain(*tensors: Tensor) -> bool:
    """Return whether nothing but autograd looks on: no compiler, no tensors of another kind.

    An operator of ``torch.library`` costs a tenth of a millisecond of Python each way, which small
    graphs feel; a plain autograd function, which only eager code can use, a quarter of that.
    """
    if torch.compiler.is_compiling():
        return False
    return all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)


def dense_like(x: Tensor) -> Tensor:
    """Return an uninitialised contiguous tensor of the same shape."""
    return empty(x, x.shape)


def lanes_like(x: Tensor) -> Tensor:
    """Return uninitialised lanes ``(n, m, B)`` for features ``(n, B, m)``."""
    n, B, m = x.shape
    return empty(x, (n, m, B))


# --- The neighbourhoods as compressed rows ------------------------------------------------------


class EdgePlan(NamedTuple):
    """The edges as rows of targets, and by source for the backward pass.

    Attributes:
        pointer: ``(n + 1,)`` int64, where each target's edges begin.
        source: ``(E,)`` int32.
        target: ``(E,)`` int32.
        by_source: ``(E,)`` int32, the edges sorted by source within each span of targets.
    """

    pointer: Tensor
    source: Tensor
    target: Tensor
    by_source: Tensor


def edge_plan(edges: Neighbourhoods) -> EdgePlan:
    """Return the rows of these neighbourhoods, made at the first call."""

    def build() -> EdgePlan:
        return EdgePlan(*_plan(edges.source, edges.target, edges.num_nodes))

    return build() if torch.compiler.is_compiling() else edges.cached(EdgePlan, build)


@torch.library.custom_op("geof::edge_plan", mutates_args=())
def _plan(source: Tensor, target: Tensor, num_nodes: int) -> list[Tensor]:
    if max(num_nodes, len(source)) >= 2**31:
        raise OverflowError(
            f"Expected fewer than 2^31 nodes and edges for the native backend (got {num_nodes} "
            f"and {len(source)}). Use backend='torch' or sampled neighbourhoods."
        )
    made = _empty_plan(source, num_nodes)
    code = native_library().plan(source.contiguous(), target.contiguous(), num_nodes, (*made,))
    if code:
        raise ValueError("Expected neighbourhoods sorted by target, with indices below n.")
    return made


_plan.register_fake(lambda source, target, num_nodes: _empty_plan(source, num_nodes))


def _empty_plan(source: Tensor, num_nodes: int) -> list[Tensor]:
    narrow = [torch.empty_like(source, dtype=torch.int32) for _ in range(3)]
    return [source.new_empty(num_nodes + 1), *narrow]


def lane_terms(edges: Neighbourhoods) -> list[Tensor]:
    """Return what edges carry, as far as there is any: bias, row and table ``(rows, m, B)``."""
    if edges.terms is None:
        return []
    bias, row, table = edges.terms
    if row is None or table is None:
        return [bias]
    return [bias, row, table.transpose(1, 2).contiguous()]


def term_gradients(terms: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return room for the gradients of a bias and a table, by their names in the structure."""
    names = ("grad_bias", "grad_table")
    return {name: dense_like(term) for name, term in zip(names, terms[::2], strict=False)}


def between_rows(gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients of the terms with a place for ``row``, which has none."""
    return [*gradients[:1], None, *gradients[1:]] if len(gradients) > 1 else list(gradients)


def operator(name: str, function: Callable[..., Any]) -> Any:
    """Register a function that changes none of its arguments with ``torch.library``."""
    return torch.library.custom_op(name, function, mutates_args=())


def first_order(function: Callable[..., Any], registered: Any) -> Callable[..., Any]:
    """Return which of two backward passes to run: the function, or its operator.

    The operator is for gradients that are to be differentiated again (``create_graph=True``): it
    has no formula and says so, where a plain function would leave its share out in silence.
    """
    chosen: Callable[..., Any] = registered if torch.is_grad_enabled() else function
    return chosen


# --- Calls --------------------------------------------------------------------------------------


def native_library() -> Library:
    """Return the opened kernels."""
    library = find_library().library
    assert library is not None, "the native backend is registered only with its library"
    return library


def call(name: str, like: Tensor, arguments: Any) -> None:
    """Run a kernel on tensors of the dtype of ``like``."""
    if like.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            f"Expected float32 or float64 for the native backend (got {like.dtype}). "
            "Use model.float() or backend='torch'."
        )
    native_library().call(name, arguments)


def features_shape(features: Tensor) -> Shape:
    """Return the sizes of ``(n, B, m)`` features."""
    n, B, m = features.shape
    return shape_of(features, n, m, B)


def call_frames(
    name: str, z: Tensor, x: Tensor, message: Tensor, framed: bool, **fields: Any
) -> None:
    """Run ``apply_frames`` or its backward on lanes, features and features."""
    arguments = fill(
        Frames,
        shape=features_shape(x),
        framed=framed,
        lanes_out=True,
        z=z,
        x=x,
        message=message,
        **fields,
    )
    call(name, z, arguments)


def moment_arguments(
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    plan: Sequence[Tensor],
    temperature: float,
    terms: Sequence[Tensor] = (),
    **fields: Any,
) -> Any:
    """Return the structure of ``edge_moments``, its backward, and that part of ``evolve``."""
    names = "bias", "row", "table"
    return fill(
        Moments,
        shape=shape_of(y, *y.shape),
        E=len(weight),
        temperature=temperature,
        h=h,
        y=y,
        weight=weight,
        rows=len(terms[2]) if len(terms) > 2 else 0,
        **EdgePlan(*plan)._asdict(),
        **dict(zip(names, terms, strict=False)),
        **fields,
    )


def feedback_arguments(inputs: Sequence[Tensor], options: StepOptions, **fields: Any) -> Any:
    """Return the structure of ``feedback``, its backward, and that part of ``evolve``.

    Args:
        inputs: ``z``, ``message`` and, outside ``evolve``, ``first`` and ``second``, contiguous;
            the caller keeps them.
        options: The scalars.
        **fields: Further fields by name.
    """
    names = "z", "message", "first", "second"
    return fill(
        Feedback,
        shape=features_shape(inputs[1]),
        statistic=options.statistic,
        framed=options.framed,
        floor=options.floor,
        jitter=options.jitter,
        growth=options.growth,
        retries=options.retries,
        **dict(zip(names, inputs, strict=False)),
        **fields,
    )


def report(done: Any, features: Tensor) -> None:
    """Raise, count or warn about blocks that were not positive definite at the first attempt."""
    non_finite, kept, retried, most, rescued = done.status
    if non_finite or retried:
        report_attempts(
            features.size(0) * features.size(1),
            JitterSchedule(done.jitter, done.growth, done.retries),
            non_finite=non_finite,
            retried=retried,
            most_retries=most,
            rescued=rescued,
            kept=kept,
        )

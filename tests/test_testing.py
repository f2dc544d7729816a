"""Every assertion helper is shown a wrong implementation and fails on it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from geof import GeoF
from geof.testing import (
    assert_batch_equals_alone,
    assert_compiles,
    assert_edge_order_irrelevant,
    assert_no_less_accurate,
    assert_permutation_equivariant,
    assert_positive_definite,
    assert_same,
    values_and_gradients,
)
from tests.graphs import random_sample

SAMPLE = random_sample(0)


def mean_of_neighbours(x, edge_index, signature):
    total = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
    return total + signature.sum(-1, keepdim=True)


def test_same_sees_values_shapes_and_names():
    good = {"a": torch.ones(3)}
    assert_same(good, good, 0.0)
    for bad in ({"a": torch.ones(3) + 1e-3}, {"a": torch.ones(2)}, {"b": torch.ones(3)}):
        with pytest.raises(AssertionError):
            assert_same(bad, good, 1e-4)
    with pytest.raises(AssertionError, match="nan"):
        assert_same({"a": torch.full((3,), torch.nan)}, good, 1e-4)


def test_gradients_are_seen():
    """A model with the right values and a wrong gradient is caught."""

    class Detached(nn.Linear):
        def forward(self, x, edge_index, signature):
            return super().forward(x) + 0 * signature.sum()

    class Wrong(Detached):
        def forward(self, x, edge_index, signature):
            return super().forward(x.detach(), edge_index, signature)

    torch.manual_seed(0)
    good, bad = Detached(5, 2).double(), Wrong(5, 2).double()
    bad.load_state_dict(good.state_dict())
    results = [values_and_gradients(model, *SAMPLE) for model in (good, bad)]
    assert torch.equal(results[0]["output"], results[1]["output"])
    with pytest.raises(AssertionError, match="gradient of x"):
        assert_same(results[1], results[0], 1e-10)


def test_accuracy_rule_refuses_a_worse_kernel():
    exact = [
        {"a": torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}
    ]
    working = [{"a": exact[0]["a"].float()}]
    assert_no_less_accurate(working, working, exact)
    worse = [{"a": (exact[0]["a"] * (1 + 1e-5)).float()}]
    with pytest.raises(AssertionError, match="times the reference's own"):
        assert_no_less_accurate(worse, working, exact)


def test_permutation_sees_positions():
    assert_permutation_equivariant(mean_of_neighbours, *SAMPLE)
    with pytest.raises(AssertionError):
        assert_permutation_equivariant(
            lambda x, e, u: mean_of_neighbours(x, e, u) + torch.arange(len(x))[:, None], *SAMPLE
        )


def test_edge_order_sees_the_first_edge():
    def first_edge_matters(x, edge_index, signature):
        return x + x[edge_index[0, 0]]

    with pytest.raises(AssertionError, match="edge order"):
        assert_edge_order_irrelevant(first_edge_matters, *SAMPLE)


def test_batching_sees_statistics_over_the_batch():
    graphs = [random_sample(seed, nodes=4 + seed) for seed in range(3)]
    assert_batch_equals_alone(mean_of_neighbours, graphs)
    with pytest.raises(AssertionError):
        assert_batch_equals_alone(lambda x, e, u: x - x.mean(0), graphs)


@pytest.mark.parametrize(
    "metric", [torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.tensor([[1.0, 2.0], [2.0, 1.0]])]
)
def test_positive_definite_sees_asymmetry_and_sign(metric):
    assert_positive_definite(torch.eye(2).expand(3, 2, 2))
    with pytest.raises(AssertionError):
        assert_positive_definite(metric)


def test_compilation_sees_breaks_and_recompilation():
    class Breaks(nn.Module):
        def forward(self, x, edge_index, signature):
            return x * 2 if float(x.sum()) > 0 else x

    class Specialises(nn.Module):
        def forward(self, x, edge_index, signature):
            return x * (2 if x.size(0) > 10 else 3)

    samples = [random_sample(0, nodes=n) for n in (9, 14)]
    samples = [(x.requires_grad_(), e, u) for x, e, u in samples]
    with pytest.raises(Exception, match=r"(?i)data-dependent|graph break|Tensor.item"):
        assert_compiles(Breaks(), samples)
    with pytest.raises(AssertionError, match="compiled again"):
        assert_compiles(Specialises(), samples)


def test_a_broken_step_is_caught():
    """The parity check on a model whose weights forget to normalise."""
    torch.manual_seed(0)
    model = GeoF(5, 8, signature_channels=3, blocks=2).double()
    other = GeoF(5, 8, signature_channels=3, blocks=2, temperature=1.001).double()
    other.load_state_dict(model.state_dict())
    with pytest.raises(AssertionError):
        assert_same(
            values_and_gradients(other, *SAMPLE), values_and_gradients(model, *SAMPLE), 1e-10
        )

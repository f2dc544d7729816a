"""Sums of exponentials over all pairs: the dense ones, in blocks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from geof.testing import assert_same
from geof_paper.baselines import contrast
from geof_paper.baselines.contrast import (
    exp_row_sums,
    exp_self_sums,
    root_width_rows,
    sample_rows,
    unit_rows,
)


def rows(count: int, seed: int, width: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator, dtype=torch.float64)
    return F.normalize(x, dim=-1)


def graded(function, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the value and the gradients against a cotangent with entries of both signs."""
    tensors = tuple(tensor.clone().requires_grad_() for tensor in tensors)
    value = function(*tensors)
    value.backward(torch.linspace(-1, 2, len(value)).double())
    return {"value": value} | {f"gradient {i}": tensor.grad for i, tensor in enumerate(tensors)}


@pytest.mark.parametrize("block", [1, 7, 64, None])
@pytest.mark.parametrize("count", [1, 200])
def test_blocks_of_rows_give_the_dense_sums_and_gradients(block, count):
    a, b, tau = rows(count, 0), rows(130, 1), 0.3
    blocked = graded(lambda a, b: exp_row_sums(a, b, tau, rows=block), a, b)
    assert_same(blocked, graded(lambda a, b: (a @ b.t() / tau).exp().sum(1), a, b), 1e-10)
    for with_self in (True, False):
        kept = torch.ones(count, count).double() - (not with_self) * torch.eye(count)

        def blocked_sums(a, with_self=with_self):
            return exp_self_sums(a, tau, with_self=with_self, rows=block)

        def dense_sums(a, kept=kept):
            return ((a @ a.t() / tau).exp() * kept).sum(1)

        assert_same(graded(blocked_sums, a), graded(dense_sums, a), 1e-10)


def test_gradients_by_finite_differences():
    a, b = rows(5, 0, 3).requires_grad_(), rows(4, 1, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: exp_row_sums(a, b, 0.5, rows=2), (a, b))
    for with_self in (True, False):
        assert torch.autograd.gradcheck(
            lambda a, s=with_self: exp_self_sums(a, 0.5, with_self=s, rows=2), (a,)
        )


def test_no_more_exponentials_at_a_time_than_allowed(monkeypatch):
    sizes, plain = [], contrast._exponentials

    def watched(a, b, temperature):
        sizes.append(len(a) * len(b))
        return plain(a, b, temperature)

    monkeypatch.setattr(contrast, "ENTRIES", 1000)
    monkeypatch.setattr(contrast, "_exponentials", watched)
    a = rows(200, 0).requires_grad_()
    exp_self_sums(a, 0.5, with_self=True).sum().backward()
    exp_row_sums(a, rows(150, 1), 0.5).sum().backward()
    assert max(sizes) == 1000  # five rows of 200
    assert sum(sizes) == 2 * (200 * 200 + 200 * 150)  # forward, and once more backward


def test_the_same_bits_again_where_sums_run_in_a_fixed_order():
    a = rows(150, 0).float()
    torch.use_deterministic_algorithms(True)
    try:
        results = []
        for _ in range(2):
            leaf = a.clone().requires_grad_()
            exp_self_sums(leaf, 0.5, with_self=False, rows=16).log().sum().backward()
            results.append(leaf.grad)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*results)


def test_the_least_temperature_stays_within_single_precision():
    a = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    for with_self in (True, False):
        sums = exp_self_sums(a, contrast.LEAST_TEMPERATURE, with_self=with_self)
        assert sums.log().isfinite().all()
        (grad,) = torch.autograd.grad(sums.log().sum(), a)
        assert grad.isfinite().all()


def test_rows_that_are_zero_stay_zero_and_have_finite_gradients():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    assert unit_rows(x).tolist() == [[0.0, 0.0], [0.6, 0.8]]
    torch.testing.assert_close(root_width_rows(x), unit_rows(x) * 2**0.5)
    exp_self_sums(unit_rows(x), 0.5, with_self=False).log().sum().backward()
    assert x.grad.isfinite().all()


def test_rows_are_drawn_from_the_global_generator():
    assert sample_rows(5, None) is None
    assert sample_rows(5, 5) is None
    torch.manual_seed(3)
    first = sample_rows(50, 20)
    assert len(first.unique()) == 20
    assert torch.equal(first, first.sort().values)
    assert first.min() >= 0
    assert first.max() < 50
    assert not torch.equal(sample_rows(50, 20), first)
    torch.manual_seed(3)
    assert torch.equal(sample_rows(50, 20), first)

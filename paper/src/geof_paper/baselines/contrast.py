r"""Contrastive sums over all pairs in linear memory.

With rows :math:`a_i` and :math:`b_j` of length one,

.. math::
    s_i = \sum_j e^{\langle a_i, b_j \rangle / \tau}

is what contrastive losses divide by. The :math:`n \times n` exponentials are made in blocks of
rows, summed and dropped; the backward pass makes each block again:

.. math::
    P_{ij} = \frac{g_i}{\tau} e^{\langle a_i, b_j \rangle / \tau}, \qquad
    \frac{\partial L}{\partial a} = P b, \qquad \frac{\partial L}{\partial b} = P^T a,
    \qquad g_i = \frac{\partial L}{\partial s_i}.

For :math:`a = b` both terms are one product with :math:`P + P^T`, whose entries are
:math:`(g_i + g_j) e^{\langle a_i, a_j \rangle / \tau} / \tau`: a third of the work is saved.
Memory is a block of :data:`ENTRIES` numbers, time :math:`O(n^2 d)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geof.nn.refinement import NodeNorm

ENTRIES = 2**22
"""Exponentials that are in memory at a time, unless one row has more."""

LEAST_TEMPERATURE = 0.05
"""Exponentials of cosines over less could leave the range of single precision when summed."""

SHORTEST = 1e-8
"""Rows shorter than that keep their direction but do not reach length one; zero stays zero."""


def unit_rows(x: Tensor) -> Tensor:
    """Return the rows scaled to length one, with finite gradients where a row is zero."""
    unit: Tensor = F.normalize(x, dim=-1, eps=SHORTEST)
    return unit


def root_width_rows(x: Tensor) -> Tensor:
    r"""Return the rows scaled to length :math:`\sqrt d`, so that entries are of order one."""
    return unit_rows(x) * math.sqrt(x.size(-1))


class ProbeScale(nn.Module):
    r"""Puts states on a scale on which a linear probe trains in few epochs.

    Contrastive losses see directions alone, so rows are scaled to length :math:`\sqrt d`. What all
    rows have in common tells nothing apart but slows gradient descent down, so columns are
    standardised; a probe that is trained to the end is no other for that, up to its weight decay.
    Statistics are followed while the method trains and fixed buffers afterwards.

    Args:
        channels: :math:`d`.
        enabled: ``False`` hands states on as they are.
    """

    def __init__(self, channels: int, *, enabled: bool) -> None:
        super().__init__()
        self.enabled = enabled
        # Few steps may be all the statistics have to forget where they started.
        self.columns = NodeNorm(channels, momentum=0.3, affine=False) if enabled else nn.Identity()

    def forward(self, states: Tensor) -> Tensor:
        """Return the scaled states."""
        scaled: Tensor = self.columns(root_width_rows(states)) if self.enabled else states
        return scaled

    @torch.no_grad()
    def follow(self, states: Tensor) -> None:
        """Take note of the statistics of states that do not go through :meth:`forward`."""
        if self.enabled and self.training:
            self.columns(root_width_rows(states))


def exp_row_sums(a: Tensor, b: Tensor, temperature: float, *, rows: int | None = None) -> Tensor:
    r"""Return :math:`s_i = \sum_j e^{\langle a_i, b_j \rangle / \tau}`, ``(m,)``.

    Args:
        a: ``(m, d)``.
        b: ``(n, d)``.
        temperature: :math:`\tau`.
        rows: Rows per block (default: as many as :data:`ENTRIES` allow).
    """
    sums: Tensor = _ExpRowSums.apply(a, b, temperature, rows)  # type: ignore[no-untyped-call]
    return sums


def exp_self_sums(
    a: Tensor, temperature: float, *, with_self: bool, rows: int | None = None
) -> Tensor:
    r"""Return :math:`s_i = \sum_j e^{\langle a_i, a_j \rangle / \tau}`, ``(n,)``.

    Args:
        a: ``(n, d)``.
        temperature: :math:`\tau`.
        with_self: Whether :math:`j = i` is among the terms.
        rows: Rows per block (default: as many as :data:`ENTRIES` allow).
    """
    sums: Tensor = _ExpSelfSums.apply(a, temperature, with_self, rows)  # type: ignore[no-untyped-call]
    return sums


def sample_rows(count: int, most: int | None) -> Tensor | None:
    """Return ``most`` different numbers below ``count``, ascending; ``None`` stands for all.

    They are drawn from torch's global generator, whose state is saved with a run.
    """
    if most is None or most >= count:
        return None
    return torch.randperm(count)[:most].sort().values


class _ExpRowSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, temperature: float, rows: int | None) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.temperature, ctx.rows = temperature, rows
        sums = a.new_empty(a.size(0))
        for block in _blocks(a.size(0), b.size(0), rows):
            sums[block] = _exponentials(a[block], b, temperature).sum(1)
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        weight = grads[0] / ctx.temperature
        to_a, to_b = torch.empty_like(a), torch.zeros_like(b)
        for block in _blocks(a.size(0), b.size(0), ctx.rows):
            pairs = _exponentials(a[block], b, ctx.temperature).mul_(weight[block, None])
            torch.mm(pairs, b, out=to_a[block])
            to_b.addmm_(pairs.t(), a[block])
        return to_a, to_b, None, None


class _ExpSelfSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: Tensor, temperature: float, with_self: bool, rows: int | None
    ) -> Tensor:
        ctx.save_for_backward(a)
        ctx.temperature, ctx.with_self, ctx.rows = temperature, with_self, rows
        sums = a.new_empty(a.size(0))
        for block in _blocks(a.size(0), a.size(0), rows):
            sums[block] = _self_exponentials(a, block, temperature, with_self).sum(1)
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (a,) = ctx.saved_tensors
        weight = grads[0] / ctx.temperature
        to_a = torch.empty_like(a)
        for block in _blocks(a.size(0), a.size(0), ctx.rows):
            pairs = _self_exponentials(a, block, ctx.temperature, ctx.with_self)
            pairs.mul_(weight[block, None] + weight)  # P + P^T
            torch.mm(pairs, a, out=to_a[block])
        return to_a, None, None, None


def _exponentials(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    return (a @ b.t()).div_(temperature).exp_()


def _self_exponentials(a: Tensor, block: slice, temperature: float, with_self: bool) -> Tensor:
    pairs = _exponentials(a[block], a, temperature)
    if not with_self:
        pairs.diagonal(block.start).zero_()
    return pairs


def _blocks(count: int, columns: int, rows: int | None) -> Iterator[slice]:
    size = rows or max(ENTRIES // max(columns, 1), 1)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))

r"""The same step with every per-edge solve moved out of the sum.

All messages into a node are pulled back by that node's own frame, so with
:math:`y_j = L_j \phi(\xi_j)` (Proposition 1 in environment coordinates)

.. math::
    \bar\xi_i &= L_i^{-1} \sum_j \omega_{ij} y_j, \\
    S_i &= \sum_j \omega_{ij} (y_j - y_i)(y_j - y_i)^\top, \\
    C_i &= L_i^{-1} S_i L_i^{-\top} + \epsilon_s I.

Edges that carry terms (:class:`~geof.kernels.neighbourhood.EdgeTerms`) put
:math:`y_j + e_{ij}` in the place of :math:`y_j`.

This is an identity, not an approximation. An edge contributes two differences and one outer
product; the sums run over cache-sized pieces of the edge list, so memory is
:math:`O(E + n d m)`. Differences are formed directly: expanding the square cancels
catastrophically in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from geof.geometry import (
    FeedbackTarget,
    JitterSchedule,
    apply_frame,
    feedback_target,
    frame_from_coordinates,
    triangular_solve,
)
from geof.kernels.interface import Evolution, Statistic, StepSpec, StepStatistics, evolved
from geof.kernels.neighbourhood import EdgeTerms, Neighbourhoods, TargetEdges
from geof.kernels.operators import stand_in


def factored_statistics(
    xi: Tensor, message: Tensor, coords: Tensor, edges: Neighbourhoods, spec: StepSpec
) -> StepStatistics:
    """Return Eqs. (4) to (10) in factored form; shapes as in :mod:`geof.kernels.interface`."""
    return statistics_by(edge_moments, feedback_target, xi, message, coords, edges, spec)


class _Moments(Protocol):
    """What :func:`edge_moments` computes."""

    def __call__(
        self, h: Tensor, y: Tensor, edges: Neighbourhoods, temperature: float, /, *, second: bool
    ) -> EdgeMoments: ...


_Targets: TypeAlias = Callable[[Tensor, Tensor, JitterSchedule], FeedbackTarget]
"""What :func:`geof.geometry.feedback_target` computes."""


def statistics_by(
    moments_of: _Moments,
    target_of: _Targets,
    xi: Tensor,
    message: Tensor,
    coords: Tensor,
    edges: Neighbourhoods,
    spec: StepSpec,
) -> StepStatistics:
    """Return the same by other implementations of the sums over edges and of the target.

    Half precision is computed in single precision: torch has no triangular solve for it.
    """
    given = xi.dtype
    xi, message, coords = _working(xi, message, coords)
    frame = frame_from_coordinates(coords)  # (n, B, m, m)
    h, y = _images(frame, xi, message, spec)
    moments = moments_of(h, y, edges, spec.temperature, second=_needs_second(spec))
    return _pulled_back(frame, message, coords, moments, spec, given, target_of)


def factored_images(
    xi: Tensor, message: Tensor, coords: Tensor, spec: StepSpec
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`L \xi` and :math:`L \phi(\xi)`, ``(n, B, m)``; see ``Backend.images``."""
    xi, message, coords = _working(xi, message, coords)
    return _images(frame_from_coordinates(coords), xi, message, spec)


def factored_targets(
    images: tuple[Tensor, Tensor],
    edges: TargetEdges,
    xi: Tensor,
    message: Tensor,
    coords: Tensor,
    spec: StepSpec,
    evolution: Evolution | None,
) -> tuple[Tensor, Tensor]:
    """Return aggregate and next coordinates of consecutive targets; see ``Backend.targets``."""
    given = xi.dtype
    _, own, z = _working(xi, message, coords)
    frame = frame_from_coordinates(z)
    moments = EdgeMoments(
        *_sums(
            *images,
            edges.source,
            edges.target,
            edges.active,
            spec.temperature,
            _needs_second(spec),
            *_terms_as(edges.terms, images[1].dtype),
            targets=edges.nodes,
        )
    )
    statistics = _pulled_back(frame, own, z, moments, spec, given)
    if evolution is None:
        return statistics.aggregate, coords
    return statistics.aggregate, evolved(xi, coords, statistics, evolution)[0]


def _working(*values: Tensor) -> list[Tensor]:
    """Return values in the precision they are computed in."""
    return [value.to(torch.promote_types(value.dtype, torch.float32)) for value in values]


def _images(frame: Tensor, xi: Tensor, message: Tensor, spec: StepSpec) -> tuple[Tensor, Tensor]:
    return apply_frame(frame, xi), apply_frame(frame, message) if spec.frame_transport else message


def _needs_second(spec: StepSpec) -> bool:
    return spec.statistic in ("full", "diagonal")


def _pulled_back(
    frame: Tensor,
    message: Tensor,
    coords: Tensor,
    moments: EdgeMoments,
    spec: StepSpec,
    given: torch.dtype,
    target_of: _Targets = feedback_target,
) -> StepStatistics:
    """Return the statistics that moments in environment coordinates amount to."""
    pull = frame if spec.frame_transport else None
    aggregate = moments.first if pull is None else triangular_solve(pull, moments.first)
    if spec.statistic is None:
        return StepStatistics(moments.weight, aggregate.to(given), None, None, None)
    moment = local_moment(pull, aggregate - message, moments.second, spec.statistic)
    moment = moment + spec.spectral_floor * torch.eye(
        moment.size(-1), dtype=moment.dtype, device=moment.device
    )
    target, attempt = target_of(moment, coords, spec.schedule)
    return StepStatistics(moments.weight, aggregate.to(given), moment, target.to(given), attempt)


class EdgeMoments(NamedTuple):
    r"""Sums over neighbourhoods, in environment coordinates.

    Attributes:
        weight: ``(E,)``, :math:`\omega_{ij}`.
        first: ``(n, B, m)``, :math:`\sum_j \omega_{ij} y_j`.
        second: ``(n, B, m, m)``, :math:`S_i`; empty unless asked for.
    """

    weight: Tensor
    first: Tensor
    second: Tensor


def edge_moments(
    h: Tensor, y: Tensor, edges: Neighbourhoods, temperature: float, *, second: bool
) -> EdgeMoments:
    """Weight the neighbours by environment distance and sum first and second moments.

    Args:
        h: ``(n, B, m)``, the environment states that set the weights, Eq. (4).
        y: ``(n, B, m)``, the messages in environment coordinates.
        edges: The closed neighbourhoods.
        temperature: The weights' temperature.
        second: Whether to form the second moment as well.
    """
    ends = edges.source, edges.target, edges.active
    return EdgeMoments(
        *_edge_moments(h, y, *ends, temperature, second, *_terms_as(edges.terms, y.dtype))
    )


def _terms_as(
    terms: EdgeTerms | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    bias, row, table = terms or (None, None, None)
    bias, table = (None if part is None else part.to(dtype) for part in (bias, table))
    return bias, row, table


def local_moment(
    frame: Tensor | None, mean_residual: Tensor, second: Tensor, statistic: Statistic
) -> Tensor:
    r"""Express the statistic in the target's own coordinates, without its floor.

    Args:
        frame: ``(n, B, m, m)``, or ``None`` for identity frames.
        mean_residual: ``(n, B, m)``, :math:`\bar\delta_i = \bar\xi_i - \phi(\xi_i)`.
        second: ``(n, B, m, m)``, :math:`S_i`; not read for the mean statistic.
        statistic: Which restriction of Eq. (8).
    """
    if statistic == "mean":
        return mean_residual.unsqueeze(-1) * mean_residual.unsqueeze(-2)
    moment = second
    if frame is not None:  # L^{-1} S L^{-T}, the second solve acting on the symmetric transpose
        half = torch.linalg.solve_triangular(frame, second, upper=False)
        moment = torch.linalg.solve_triangular(frame, half.mT, upper=False)
    if statistic == "diagonal":
        return torch.diag_embed(moment.diagonal(dim1=-2, dim2=-1))
    return moment


# Edges per piece: about this many outer-product entries, so that a piece's temporaries stay in
# the processor's cache. On Amazon Computers' size it is some five times faster than all at once.
_PIECE_ENTRIES = 2**20


def _pieces(y: Tensor, num_edges: int) -> Iterator[slice]:
    size = max(64, _PIECE_ENTRIES // max(1, y[0].numel() * y.size(-1) if len(y) else 1))
    return (slice(start, start + size) for start in range(0, num_edges, size))


def _with_carried(y: Tensor, piece: slice, row: Tensor | None, table: Tensor | None) -> Tensor:
    """Return the messages of a piece's edges with what the edges carry added."""
    if row is None or table is None or not len(table):
        return y
    chosen = row[piece].long()
    return y + table[chosen.clamp_min(0)] * (chosen >= 0)[:, None, None]


@torch.library.custom_op("geof::edge_moments", mutates_args=())
def _edge_moments(
    h: Tensor,
    y: Tensor,
    source: Tensor,
    target: Tensor,
    active: Tensor | None,
    temperature: float,
    second: bool,
    bias: Tensor | None = None,
    row: Tensor | None = None,
    table: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _sums(h, y, source, target, active, temperature, second, bias, row, table)


def _sums(
    h: Tensor,
    y: Tensor,
    source: Tensor,
    target: Tensor,
    active: Tensor | None,
    temperature: float,
    second: bool,
    bias: Tensor | None,
    row: Tensor | None,
    table: Tensor | None,
    targets: slice = slice(0, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights and moments of the nodes ``targets``, to which all the edges lead."""
    own = y[targets]
    (n, _, m), place = own.shape, target - targets.start if targets.start else target
    weight = h.new_empty(len(source))
    for piece in _pieces(y, len(source)):
        energy = (h[target[piece]] - h[source[piece]]).square_().sum((-2, -1))
        exponent = -energy / temperature
        weight[piece] = torch.exp(exponent) if bias is None else exponent + bias[piece]
    if bias is not None:  # which may be large; without one the self-loop's zero is the largest
        weight -= h.new_zeros(n).scatter_reduce_(0, place, weight, "amax")[place]
        for piece in _pieces(y, len(source)):
            weight[piece] = torch.exp(weight[piece])
    if active is not None:
        weight *= active
    # The largest exponent is the self-loop's zero or was subtracted: every sum is at least one.
    normaliser = h.new_zeros(n).index_add_(0, place, weight)
    weight /= normaliser[place]

    first = torch.zeros_like(own, memory_format=torch.contiguous_format)
    outer = y.new_zeros(*own.shape, m) if second else y.new_empty(0)
    for piece in _pieces(y, len(source)):
        i, w = place[piece], weight[piece, None, None]
        neighbour = _with_carried(y[source[piece]], piece, row, table)
        first.index_add_(0, i, w * neighbour)
        if second:
            residual = neighbour - own[i]
            outer.index_add_(0, i, (w * residual).unsqueeze(-1) * residual.unsqueeze(-2))
    return weight, first, outer


@_edge_moments.register_fake
@stand_in
def _(
    h: Tensor,
    y: Tensor,
    source: Tensor,
    target: Tensor,
    active: Tensor | None,
    temperature: float,
    second: bool,
    bias: Tensor | None = None,
    row: Tensor | None = None,
    table: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    outer = y.new_empty(*y.shape, y.size(-1)) if second else y.new_empty(0)
    return h.new_empty(source.shape), y.new_empty(y.shape), outer


@torch.library.custom_op("geof::edge_moments_backward", mutates_args=())
def _edge_moments_backward(
    grad_weight: Tensor,
    grad_first: Tensor,
    grad_second: Tensor,
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    temperature: float,
    second: bool,
    row: Tensor | None = None,
    table: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_h, grad_y = torch.zeros_like(h), torch.zeros_like(y)
    grad_table = y.new_zeros(0) if table is None else torch.zeros_like(table)
    # Both factors of the outer product carry the same residual.
    curvature = grad_second + grad_second.mT if second else None
    score = grad_weight.clone()  # d loss / d weight
    for piece in _pieces(y, len(source)):
        i, j, w = target[piece], source[piece], weight[piece, None, None]
        neighbour, pull = _with_carried(y[j], piece, row, table), grad_first[i]
        score[piece] += (pull * neighbour).sum((-2, -1))
        reaching = w * pull  # d loss / d y_ij
        if curvature is not None:
            residual = neighbour - y[i]
            bent = (curvature[i] @ residual.unsqueeze(-1)).squeeze(-1)
            score[piece] += 0.5 * (bent * residual).sum((-2, -1))
            bent *= w
            grad_y.index_add_(0, i, bent, alpha=-1)
            grad_y.index_add_(0, j, bent)
            grad_y.index_add_(0, j, reaching)
            reaching += bent
        else:
            grad_y.index_add_(0, j, reaching)
        if row is not None and table is not None:
            carries = row[piece] >= 0
            grad_table.index_add_(0, row[piece][carries].long(), reaching[carries])

    # Softmax of -energy / temperature + bias over each neighbourhood.
    mean_score = h.new_zeros(len(h)).index_add_(0, target, weight * score)
    grad_bias = weight * (score - mean_score[target])
    rate = -1 / temperature
    # So small a temperature has no reciprocal, but what is nothing stays nothing.
    grad_energy = grad_bias * rate if math.isfinite(rate) else -grad_bias / temperature
    for piece in _pieces(y, len(source)):
        i, j = target[piece], source[piece]
        force = (h[i] - h[j]) * (2 * grad_energy[piece, None, None])
        grad_h.index_add_(0, i, force)
        grad_h.index_add_(0, j, force, alpha=-1)
    return grad_h, grad_y, grad_bias, grad_table


@_edge_moments_backward.register_fake
@stand_in
def _(
    grad_weight: Tensor,
    grad_first: Tensor,
    grad_second: Tensor,
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    temperature: float,
    second: bool,
    row: Tensor | None = None,
    table: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_table = y.new_empty(0) if table is None else torch.empty_like(table)
    return torch.empty_like(h), torch.empty_like(y), torch.empty_like(weight), grad_table


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    h, y, source, target, _, ctx.temperature, ctx.second, bias, row, table = inputs
    ctx.biased, ctx.carrying = bias is not None, table is not None
    ctx.save_for_backward(h, y, output[0], source, target, row, table)


def _backward(
    ctx: Any, grad_weight: Tensor, grad_first: Tensor, grad_second: Tensor
) -> tuple[Tensor | None, ...]:
    h, y, weight, source, target, row, table = ctx.saved_tensors
    grad_h, grad_y, grad_bias, grad_table = _edge_moments_backward(
        grad_weight,
        grad_first,
        grad_second,
        h,
        y,
        weight,
        source,
        target,
        ctx.temperature,
        ctx.second,
        row,
        table,
    )
    of_edges = grad_bias if ctx.biased else None, None, grad_table if ctx.carrying else None
    return grad_h, grad_y, None, None, None, None, None, *of_edges


_edge_moments.register_autograd(_backward, setup_context=_save_for_backward)

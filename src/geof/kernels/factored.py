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
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from geof.geometry import (
    FeedbackTarget,
    JitterSchedule,
    feedback_target,
    frame_from_coordinates,
    triangular_solve,
)
from geof.kernels import lanes
from geof.kernels.interface import (
    Controller,
    Evolution,
    Statistic,
    StepSpec,
    StepStatistics,
    controller_hidden,
)
from geof.kernels.memory import empty
from geof.kernels.neighbourhood import EdgeTerms, Neighbourhoods, TargetEdges
from geof.kernels.operators import stand_in
from geof.kernels.segments import Rectangle, rectangles


def factored_statistics(
    xi: Tensor, message: Tensor, coords: Tensor, edges: Neighbourhoods, spec: StepSpec
) -> StepStatistics:
    """Return Eqs. (4) to (10) in factored form; shapes as in :mod:`geof.kernels.interface`."""
    return statistics_by(_operators(), xi, message, coords, edges, spec)


class _Moments(Protocol):
    """What :func:`edge_moments` computes."""

    def __call__(
        self, h: Tensor, y: Tensor, edges: Neighbourhoods, temperature: float, /, *, second: bool
    ) -> EdgeMoments: ...


class Operators(NamedTuple):
    """Who does the work of a step's statistics.

    Attributes:
        moments: What :func:`edge_moments` computes.
        pulled_back: What :func:`geof.kernels.lanes.pulled_back` computes, for the full statistic
            in frames.
        target: What :func:`geof.geometry.feedback_target` computes, for the others.
    """

    moments: _Moments
    pulled_back: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    target: Callable[[Tensor, Tensor, JitterSchedule], FeedbackTarget]


def _operators() -> Operators:
    return Operators(edge_moments, lanes.pulled_back, feedback_target)


def statistics_by(
    operators: Operators,
    xi: Tensor,
    message: Tensor,
    coords: Tensor,
    edges: Neighbourhoods,
    spec: StepSpec,
) -> StepStatistics:
    """Return the same by other implementations of its parts.

    Half precision is computed in single precision: torch has no triangular solve for it.
    """
    given = xi.dtype
    xi, message, coords = _working(xi, message, coords)
    h, y = _images(coords, xi, message, spec)
    moments = operators.moments(h, y, edges, spec.temperature, second=_needs_second(spec))
    return _pulled_back(message, coords, moments, spec, given, operators)


def factored_images(
    xi: Tensor, message: Tensor, coords: Tensor, spec: StepSpec
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`L \xi` and :math:`L \phi(\xi)`, ``(n, B, m)``; see ``Backend.images``."""
    xi, message, coords = _working(xi, message, coords)
    return _images(coords, xi, message, spec)


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
    statistics = _pulled_back(own, z, moments, spec, given, _operators())
    if evolution is None:
        return statistics.aggregate, coords
    return statistics.aggregate, factored_update(xi, coords, statistics, evolution)


def factored_update(
    xi: Tensor, coords: Tensor, statistics: StepStatistics, evolution: Evolution
) -> Tensor:
    """Return the next coordinates, Eqs. (11) and (12)."""
    return update_by(lanes.updated, _controller_output, xi, coords, statistics, evolution)


def update_by(
    updated: Callable[..., tuple[Tensor, Tensor]],
    output_of: Callable[[Tensor, Tensor, Controller], Tensor],
    xi: Tensor,
    coords: Tensor,
    statistics: StepStatistics,
    evolution: Evolution,
) -> Tensor:
    """Return the same by another :func:`geof.kernels.lanes.updated` and controller."""
    output = None
    if evolution.controller is not None:
        output = output_of(xi, statistics.aggregate, evolution.controller)
    strengths = evolution.target_mix, evolution.correction_strength
    bounds = evolution.box.offdiagonal_bound, *evolution.box.log_scale_bounds
    return updated(coords, statistics.target, output, *strengths, *bounds)[0]


def _controller_output(xi: Tensor, aggregate: Tensor, controller: Controller) -> Tensor:
    """Return :func:`geof.kernels.interface.controller_output` with the blocks last in memory."""
    hidden = controller_hidden(xi, aggregate, controller)
    by_block = hidden.flatten(0, -2).t()
    output = torch.addmm(controller.bias.unsqueeze(1), controller.output, by_block)
    return output.view(len(output), *hidden.shape[:-1]).movedim(0, -1)


def factored_environment(xi: Tensor, coords: Tensor) -> Tensor:
    r"""Return :math:`h = L \xi`, ``(n, B, m)``."""
    state, z = _working(xi, coords)
    h: Tensor = lanes.images(z, state, None)[0]
    return h.to(xi.dtype)


def _working(*values: Tensor) -> list[Tensor]:
    """Return values in the precision they are computed in."""
    return [value.to(torch.promote_types(value.dtype, torch.float32)) for value in values]


def _images(coords: Tensor, xi: Tensor, message: Tensor, spec: StepSpec) -> tuple[Tensor, Tensor]:
    h, y = lanes.images(coords, xi, message if spec.frame_transport else None)
    return h, y if spec.frame_transport else message


def _needs_second(spec: StepSpec) -> bool:
    return spec.statistic in ("full", "diagonal")


def _pulled_back(
    message: Tensor,
    coords: Tensor,
    moments: EdgeMoments,
    spec: StepSpec,
    given: torch.dtype,
    operators: Operators,
) -> StepStatistics:
    """Return the statistics that moments in environment coordinates amount to."""
    if spec.frame_transport and spec.statistic == "full":
        schedule = spec.schedule
        scalars = spec.spectral_floor, schedule.initial, schedule.growth, schedule.retries
        made = operators.pulled_back(coords, moments.first, moments.second, *scalars)
        aggregate, moment, target, attempt = made
        aggregate, target = aggregate.to(given), target.to(given)
        return StepStatistics(moments.weight, aggregate, moment, target, attempt)
    pull = frame_from_coordinates(coords) if spec.frame_transport else None
    aggregate = moments.first if pull is None else triangular_solve(pull, moments.first)
    if spec.statistic is None:
        return StepStatistics(moments.weight, aggregate.to(given), None, None, None)
    moment = local_moment(pull, aggregate - message, moments.second, spec.statistic)
    moment = moment + spec.spectral_floor * torch.eye(
        moment.size(-1), dtype=moment.dtype, device=moment.device
    )
    target, attempt = operators.target(moment, coords, spec.schedule)
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


def _weighted_sums(weight: Tensor, rows: Tensor) -> Tensor:
    """Return the sums of ``(n, k, c)`` over k, weighted by ``(n, k)``; the same for any threads.

    A product of two matrices alone is shared out inside: where MKL cuts it decides the last bit.
    """
    if len(weight) == 1:
        return (weight.unsqueeze(-1) * rows).sum(1)
    return torch.bmm(weight.unsqueeze(1), rows).squeeze(1)


def _carried(group: Rectangle, row: Tensor | None, table: Tensor) -> Tensor:
    """Return what edges carry, ``(N, K, d)``."""
    if row is None or not len(table):
        return table.new_zeros(())
    chosen = group.of_edges(row.long(), -1)
    return table.flatten(1)[chosen.clamp_min(0)] * (chosen >= 0).unsqueeze(-1)


def _edges_last(values: Tensor, m: int) -> Tensor:
    """Return ``(N, K, d)`` as ``(N B, m, K)``, for products over the edges of a block."""
    return values.mT.contiguous().view(-1, m, values.size(1))


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
    m = y.size(-1)
    both = torch.cat([h.flatten(1), y.flatten(1)], dim=1)  # gathered at once
    d = both.size(1) // 2
    given = both[targets]
    count = len(given)
    weight = h.new_empty(len(source))
    first = empty(y, (count, d)).zero_()
    outer = empty(y, (count, y.size(1), m, m)).zero_() if second else y.new_empty(0)
    for group in rectangles(source, target, range(targets.start, targets.start + count), 2 * d):
        i, shape = group.nodes, group.place.shape
        apart, message = both.index_select(0, group.neighbours).unflatten(0, shape).split(d, -1)
        own_h, own_y = given.index_select(0, i).unsqueeze(1).split(d, -1)
        apart -= own_h
        exponent = apart.square_().sum(-1).neg_().div_(temperature)
        if bias is not None:  # which may be large; without one the self-loop's zero is the largest
            exponent += group.of_edges(bias)
        if group.there is not None:
            exponent.masked_fill_(~group.there, -torch.inf)
        if bias is not None:
            exponent -= exponent.amax(1, keepdim=True).clamp_min_(0)
        w = exponent.exp_()
        if active is not None:
            w *= group.of_edges(active)
        # The largest exponent is the self-loop's zero or was subtracted: a sum is at least one.
        w /= w.sum(1, keepdim=True)
        group.write(w, weight)
        if table is not None:
            message += _carried(group, row, table)
        first.index_copy_(0, i, _weighted_sums(w, message))
        if second:
            residual = message.sub_(own_y)
            turned = residual.new_empty(len(i), d, shape[1])
            torch.mul(residual.mT, w.sqrt().unsqueeze(1), out=turned)  # both factors have it
            turned = turned.view(-1, m, shape[1])
            outer.index_copy_(0, i, torch.bmm(turned, turned.mT).view(len(i), -1, m, m))
    return weight, first.view(count, y.size(1), m), outer


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
    grad_weight: Tensor | None,
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
    n, _, m = y.shape
    pulls = grad_first.flatten(1)
    d = pulls.size(1)
    both = torch.cat([h.flatten(1), y.flatten(1)], dim=1)  # gathered, and summed, at once
    grad_both, grad_bias = empty(both, both.shape).zero_(), torch.zeros_like(weight)
    grad_table = y.new_zeros(0) if table is None else torch.zeros_like(table)
    rate = -1 / temperature
    for group in rectangles(source, target, range(n), 2 * d):
        i, j, shape = group.nodes, group.neighbours, group.place.shape
        w, pull = group.of_edges(weight), pulls.index_select(0, i)
        differences = both.index_select(0, j).unflatten(0, shape)
        differences -= both.index_select(0, i).unsqueeze(1)
        apart, residual = differences[..., :d], differences[..., d:]
        if table is not None:
            residual += _carried(group, row, table)
        # d loss / d weight, up to what all edges of a node share, which the softmax takes away
        if not second:
            score = (residual * pull.unsqueeze(1)).sum(-1)
            torch.mul(w.unsqueeze(-1), pull.unsqueeze(1), out=residual)
        else:
            turned, across = _edges_last(residual, m), pull.unsqueeze(-1)
            curvature = grad_second.index_select(0, i).flatten(0, 1)
            # Both factors of the outer product carry the same residual.
            bent = torch.bmm(curvature + curvature.mT, turned).view(len(i), d, -1)
            turned = turned.view_as(bent)
            score = _weighted_sums(pull, turned)
            score.add_((bent * turned).sum(1), alpha=0.5)
            bent += across
            torch.mul(bent.mT, w.unsqueeze(-1), out=residual)  # d loss / d y_ij from here on
        if grad_weight is not None:
            score += group.of_edges(grad_weight)
        if row is not None and table is not None:
            chosen = group.of_edges(row.long(), -1)
            carries = chosen >= 0
            moved = residual[carries].unflatten(1, table.shape[1:])
            grad_table.index_add_(0, chosen[carries], moved)
        # Softmax of -energy / temperature + bias over each neighbourhood.
        pressed = w * (score - (w * score).sum(1, keepdim=True))
        group.write(pressed, grad_bias)
        # So small a temperature has no reciprocal, but what is nothing stays nothing.
        apart *= 2 * (pressed * rate if math.isfinite(rate) else -pressed / temperature)[..., None]
        own = differences.sum(1).neg_()
        if not second:
            own[:, d:] = 0
        else:
            own[:, d:].addcmul_(pull, w.sum(1, keepdim=True))
        grad_both.index_add_(0, i, own)
        grad_both.index_add_(0, j, differences.flatten(0, 1))
    parts = (part.clone(memory_format=torch.contiguous_format) for part in grad_both.split(d, 1))
    grad_h, grad_y = (part.view(y.shape) for part in parts)
    return grad_h, grad_y, grad_bias, grad_table


@_edge_moments_backward.register_fake
@stand_in
def _(
    grad_weight: Tensor | None,
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
    ctx.set_materialize_grads(False)  # the weights are looked at and seldom have one
    ctx.save_for_backward(h, y, output[0], source, target, row, table)


def _backward(
    ctx: Any, grad_weight: Tensor | None, grad_first: Tensor | None, grad_second: Tensor | None
) -> tuple[Tensor | None, ...]:
    h, y, weight, source, target, row, table = ctx.saved_tensors
    outer = y.shape + y.shape[-1:] if ctx.second else (0,)
    grad_h, grad_y, grad_bias, grad_table = _edge_moments_backward(
        grad_weight,
        torch.zeros_like(y) if grad_first is None else grad_first,
        y.new_zeros(outer) if grad_second is None else grad_second,
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

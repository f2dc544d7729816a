r"""Small matrices written out, a block per lane: entries first, blocks last in memory.

A library call per block of 8 x 8 costs more than its arithmetic. Here ``(m, m, lanes)`` holds entry
:math:`(r, s)` of many blocks side by side, and every operation runs over whole rows of lanes; on
the CPU for as many blocks at a time as its cache holds. Two operators are made of it:

- :func:`images`, :math:`h = L \xi` and :math:`y = L \phi(\xi)`;
- :func:`pulled_back`, :math:`\bar\xi = L^{-1} \sum_j \omega_{ij} y_j`,
  :math:`C = L^{-1} S L^{-\top} + \epsilon_s I` and the coordinates of
  :math:`\operatorname{SChol}(C)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from geof.geometry import JitterSchedule
from geof.geometry.cholesky import is_kept, refuse_non_finite, served
from geof.kernels.operators import stand_in

CACHED = 2**12
"""Blocks at a time on the CPU."""

BOUNDED = 2**22
"""Blocks at a time elsewhere: a bound on memory, not on the time of a piece."""


def _pieces(like: Tensor) -> Iterator[slice]:
    size = CACHED if like.device.type == "cpu" else BOUNDED
    return (slice(start, start + size) for start in range(0, len(like), size))


def _lanes(values: Tensor) -> Tensor:
    """Return ``(blocks, ...)`` with the blocks last; not to be written to, it may be the same."""
    return values.movedim(0, -1).contiguous()


def _lower(coords: Tensor, m: int) -> Tensor:
    """Return the frames ``(m, m, lanes)`` of coordinates ``(t, lanes)``, Eq. (1)."""
    frame = coords.new_zeros(m, m, coords.size(1))
    start = 0
    for r in range(1, m):
        frame[r, :r] = coords[start : start + r]
        start += r
    frame.view(m * m, -1)[:: m + 1] = coords[start:].exp()
    return frame


def _below(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """Return strictly lower entries row by row, ``(t, lanes)``, and a diagonal of one's own."""
    rows = [matrix[r, :r] for r in range(1, len(matrix))]
    return torch.cat([*rows, diagonal])


def _diagonal(matrix: Tensor) -> Tensor:
    """Return a view of the diagonal, ``(m, lanes)``."""
    return matrix.view(len(matrix) ** 2, -1)[:: len(matrix) + 1]


def _inverse(lower: Tensor) -> Tensor:
    """Return the inverse of lower triangular matrices by forward substitution."""
    inverse = torch.zeros_like(lower)
    scale = _diagonal(lower).reciprocal()
    for i in range(len(lower)):
        inverse[i, i] = scale[i]
        for k in range(i):
            inverse[i, : k + 1].addcmul_(lower[i, k], inverse[k, : k + 1], value=-1)
        inverse[i, :i].mul_(scale[i])
    return inverse


def _product(left: Tensor, right: Tensor, *, of_lower: bool = False) -> Tensor:
    """Return ``left @ right``; ``of_lower`` where the right factor is lower triangular."""
    total = right.new_zeros(right.shape)
    for k in range(len(right)):
        stop = k + 1 if of_lower else len(right)
        total[:, :stop].addcmul_(left[:, k].unsqueeze(1), right[k, :stop].unsqueeze(0))
    return total


def _lower_product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` for a lower triangular left factor."""
    total = right.new_zeros(right.shape)
    for k in range(len(right)):
        total[k:].addcmul_(left[k:, k].unsqueeze(1), right[k].unsqueeze(0))
    return total


def _adjoint_product(left: Tensor, right: Tensor, *, of_lower: bool = False) -> Tensor:
    """Return ``left.T @ right`` for a lower triangular left factor."""
    total = right.new_zeros(right.shape)
    for k in range(len(right)):
        stop = k + 1 if of_lower else len(right)
        total[: k + 1, :stop].addcmul_(left[k, : k + 1].unsqueeze(1), right[k, :stop].unsqueeze(0))
    return total


def _applied(lower: Tensor, vector: Tensor) -> Tensor:
    """Return ``lower @ vector``, ``(m, lanes)``."""
    total = torch.zeros_like(vector)
    for k in range(len(vector)):
        total[k:].addcmul_(lower[k:, k], vector[k])
    return total


def _adjoint_applied(lower: Tensor, vector: Tensor) -> Tensor:
    """Return ``lower.T @ vector``, ``(m, lanes)``."""
    total = torch.zeros_like(vector)
    for k in range(len(vector)):
        total[: k + 1].addcmul_(lower[k, : k + 1], vector[k])
    return total


def _factor(matrix: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factors at one jitter, upper entries left, and where there is none."""
    factor = matrix.clone()
    _diagonal(factor).add_(jitter)
    failed = torch.zeros_like(factor[0, 0], dtype=torch.bool)
    for k in range(len(factor)):
        failed |= ~(factor[k, k] > 0)  # NaN is not
        factor[k, k].sqrt_()
        factor[k + 1 :, k].div_(factor[k, k])
        for j in range(k + 1, len(factor)):
            factor[j:, j].addcmul_(factor[j:, k], factor[j, k], value=-1)
    return factor, failed


def _flat(*values: Tensor, entries: int = 1) -> list[Tensor]:
    """Return values with all leading dimensions, nodes and blocks, as one."""
    return [value.flatten(0, -1 - entries) for value in values]


# Images -----------------------------------------------------------------------------------------


@torch.library.custom_op("geof::images", mutates_args=())
def images(coords: Tensor, xi: Tensor, message: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`L \xi` and :math:`L \phi(\xi)`, ``(n, B, m)``."""
    z, vectors = _flat(coords)[0], _flat(xi, message)
    made = [torch.empty_like(vector) for vector in vectors]
    for piece in _pieces(z):
        frame = _lower(_lanes(z[piece]), xi.size(-1))
        for vector, out in zip(vectors, made, strict=True):
            out[piece] = _applied(frame, _lanes(vector[piece])).t()
    return made[0].view(xi.shape), made[1].view(xi.shape)


@images.register_fake
@stand_in
def _(coords: Tensor, xi: Tensor, message: Tensor) -> tuple[Tensor, Tensor]:
    return xi.new_empty(xi.shape), xi.new_empty(xi.shape)


@torch.library.custom_op("geof::images_backward", mutates_args=())
def _images_backward(
    grad_h: Tensor, grad_y: Tensor, coords: Tensor, xi: Tensor, message: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    m, z = xi.size(-1), _flat(coords)[0]
    vectors, grads = _flat(xi, message), _flat(grad_h, grad_y)
    made = [torch.empty_like(vector) for vector in vectors]
    grad_z = torch.empty_like(z)
    for piece in _pieces(z):
        frame = _lower(_lanes(z[piece]), m)
        pull = torch.zeros_like(frame)
        for vector, grad, out in zip(vectors, grads, made, strict=True):
            reaching = _lanes(grad[piece])
            out[piece] = _adjoint_applied(frame, reaching).t()
            pull.addcmul_(reaching.unsqueeze(1), _lanes(vector[piece]).unsqueeze(0))
        grad_z[piece] = _below(pull, _diagonal(pull) * _diagonal(frame)).t()
    return grad_z.view(coords.shape), made[0].view(xi.shape), made[1].view(xi.shape)


@_images_backward.register_fake
@stand_in
def _(
    grad_h: Tensor, grad_y: Tensor, coords: Tensor, xi: Tensor, message: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return coords.new_empty(coords.shape), xi.new_empty(xi.shape), xi.new_empty(xi.shape)


def _images_gradient(ctx: Any, grad_h: Tensor, grad_y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _images_backward(grad_h, grad_y, *ctx.saved_tensors)
    return gradients


def _save_images(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


images.register_autograd(_images_gradient, setup_context=_save_images)


# Feedback ---------------------------------------------------------------------------------------


@torch.library.custom_op("geof::pulled_back", mutates_args=())
def pulled_back(
    coords: Tensor,
    first: Tensor,
    second: Tensor,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Return :math:`\bar\xi`, :math:`C`, :math:`\hat z` and the attempt each block needed.

    Args:
        coords: ``(n, B, t)``.
        first: ``(n, B, m)``, in environment coordinates.
        second: ``(n, B, m, m)``, likewise, symmetric.
        floor: :math:`\epsilon_s`.
        jitter: Of the schedule.
        growth: Likewise.
        retries: Likewise.
    """
    m = first.size(-1)
    (z, f), (s,) = _flat(coords, first), _flat(second, entries=2)
    aggregate, moment, target = torch.empty_like(f), torch.empty_like(s), torch.empty_like(z)
    failed = torch.empty(len(z), dtype=torch.bool, device=z.device)
    for piece in _pieces(z):
        inverse = _inverse(_lower(_lanes(z[piece]), m))
        aggregate[piece] = _applied(inverse, _lanes(f[piece])).t()
        half = _lower_product(inverse, _lanes(s[piece]))  # L^{-1} S
        matrix = _lower_product(inverse, half.transpose(0, 1))
        _diagonal(matrix).add_(floor)
        moment[piece] = matrix.movedim(-1, 0)
        factor, failed[piece] = _factor(matrix, jitter)
        target[piece] = _below(factor, _diagonal(factor).log()).t()
    attempt = failed.long()
    if bool(failed.any()):
        _serve(moment, z, target, attempt, JitterSchedule(jitter, growth, retries))
    refuse_non_finite(target[:, -m:].unsqueeze(-1))
    shapes = first.shape, second.shape, coords.shape, coords.shape[:-1]
    made = (aggregate, moment, target, attempt)
    return tuple(v.view(shape) for v, shape in zip(made, shapes, strict=True))  # type: ignore[return-value]


def _serve(
    moment: Tensor, z: Tensor, target: Tensor, attempt: Tensor, schedule: JitterSchedule
) -> None:
    """Put the coordinates of blocks whose first attempt failed into their places."""
    places = attempt.nonzero().flatten()
    factor, tries = served(moment[places], len(moment), schedule, rescue=True)
    attempt[places] = tries
    lanes = _lanes(factor)
    found = _below(lanes, _diagonal(lanes).log()).t()
    target[places] = torch.where(is_kept(tries, schedule).unsqueeze(-1), z[places], found)


@pulled_back.register_fake
@stand_in
def _(
    coords: Tensor,
    first: Tensor,
    second: Tensor,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        first.new_empty(first.shape),
        second.new_empty(second.shape),
        coords.new_empty(coords.shape),
        coords.new_empty(coords.shape[:-1], dtype=torch.long),
    )


@torch.library.custom_op("geof::pulled_back_backward", mutates_args=())
def _pulled_back_backward(
    grad_aggregate: Tensor,
    grad_moment: Tensor | None,
    grad_target: Tensor,
    coords: Tensor,
    aggregate: Tensor,
    moment: Tensor,
    target: Tensor,
    kept: Tensor,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    m = aggregate.size(-1)
    z, agg, reached, grad_a, grad_t = _flat(coords, aggregate, target, grad_aggregate, grad_target)
    (c,) = _flat(moment, entries=2)
    grad_c = None if grad_moment is None else _flat(grad_moment, entries=2)[0]
    keeps = kept.reshape(-1)
    grad_z, grad_f, grad_s = torch.empty_like(z), torch.empty_like(agg), torch.empty_like(c)
    for piece in _pieces(z):
        frame = _lower(_lanes(z[piece]), m)
        inverse = _inverse(frame)
        pull, own = _lanes(grad_t[piece]), keeps[piece]
        bent = _factor_adjoint(_lower(_lanes(reached[piece]), m), pull)
        bent.masked_fill_(own, 0)
        if grad_c is not None:
            bent += _lanes(grad_c[piece])
        bent = 0.5 * (bent + bent.transpose(0, 1))  # only that part acts on a symmetric moment
        left = _adjoint_product(inverse, bent)
        grad_s[piece] = _product(left, inverse, of_lower=True).movedim(-1, 0)
        turned = _product(left, _lanes(c[piece])).sub_(left, alpha=floor).mul_(-2)
        reaching = _adjoint_applied(inverse, _lanes(grad_a[piece]))
        grad_f[piece] = reaching.t()
        turned.addcmul_(reaching.unsqueeze(1), _lanes(agg[piece]).unsqueeze(0), value=-1)
        slope = _below(turned, _diagonal(turned) * _diagonal(frame))
        grad_z[piece] = slope.add_(pull.masked_fill(~own, 0)).t()
    return grad_z.view(coords.shape), grad_f.view(aggregate.shape), grad_s.view(moment.shape)


def _factor_adjoint(factor: Tensor, pull: Tensor) -> Tensor:
    r"""Return :math:`R^{-\top} \Phi(R^\top \bar R) R^{-1}` for gradients ``(t, lanes)``.

    :math:`\Phi` keeps the strictly lower part and halves the diagonal; Eq. (38) transposed.
    """
    m = len(factor)
    grad = torch.zeros_like(factor)
    start = 0
    for r in range(1, m):
        grad[r, :r] = pull[start : start + r]
        start += r
    inverse = _inverse(factor)
    _diagonal(grad).copy_(pull[start:] * _diagonal(inverse))
    inner = _adjoint_product(factor, grad, of_lower=True)
    for r in range(m):
        inner[r, r + 1 :] = 0
    _diagonal(inner).mul_(0.5)
    return _adjoint_product(inverse, _lower_product(inner, inverse), of_lower=True)


@_pulled_back_backward.register_fake
@stand_in
def _(
    grad_aggregate: Tensor,
    grad_moment: Tensor | None,
    grad_target: Tensor,
    coords: Tensor,
    aggregate: Tensor,
    moment: Tensor,
    target: Tensor,
    kept: Tensor,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    made = coords, aggregate, moment
    return tuple(value.new_empty(value.shape) for value in made)  # type: ignore[return-value]


def _save_pulled_back(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    coords, _, _, ctx.floor, jitter, growth, retries = inputs
    aggregate, moment, target, attempt = output
    ctx.mark_non_differentiable(attempt)
    ctx.set_materialize_grads(False)  # the moment, the largest, is looked at and has none
    kept = is_kept(attempt, JitterSchedule(jitter, growth, retries))
    ctx.save_for_backward(coords, aggregate, moment, target, kept)


def _pulled_back_gradient(
    ctx: Any,
    grad_aggregate: Tensor | None,
    grad_moment: Tensor | None,
    grad_target: Tensor | None,
    _: Tensor | None,
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    _, aggregate, _, target, _ = saved
    pull = torch.zeros_like(aggregate) if grad_aggregate is None else grad_aggregate
    bend = torch.zeros_like(target) if grad_target is None else grad_target
    made = _pulled_back_backward(pull, grad_moment, bend, *saved, ctx.floor)
    return *made, None, None, None, None


pulled_back.register_autograd(_pulled_back_gradient, setup_context=_save_pulled_back)


# The correction's low-rank part -----------------------------------------------------------------


@torch.library.custom_op("geof::low_rank", mutates_args=())
def low_rank(left: Tensor, right: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{Svec}_{sl}(U V^\top)`, Eq. (49), of ``(..., m, r)`` factors."""
    u, v = _flat(left, right, entries=2)
    made = u.new_empty(len(u), u.size(1) * (u.size(1) - 1) // 2)
    for piece in _pieces(u):
        rows, columns = _lanes(u[piece]), _lanes(v[piece])
        product = rows[:, :1] * columns[:, 0]
        for k in range(1, u.size(2)):
            # Not fused: infinities of both signs make a NaN, which the clip does not hide.
            product += rows[:, k : k + 1] * columns[:, k]
        made[piece] = _below(product, product[0, :0]).t()
    return made.view(*left.shape[:-2], made.size(1))


@low_rank.register_fake
@stand_in
def _(left: Tensor, right: Tensor) -> Tensor:
    m = left.size(-2)
    return left.new_empty(*left.shape[:-2], m * (m - 1) // 2)


@torch.library.custom_op("geof::low_rank_backward", mutates_args=())
def _low_rank_backward(grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    (u, v), (g,) = _flat(left, right, entries=2), _flat(grad)
    grad_u, grad_v = torch.empty_like(u), torch.empty_like(v)
    for piece in _pieces(u):
        rows, columns, pull = _lanes(u[piece]), _lanes(v[piece]), _lanes(g[piece])
        on_rows, on_columns = torch.zeros_like(rows), torch.zeros_like(columns)
        start = 0
        for row in range(1, len(rows)):
            own = pull[start : start + row].unsqueeze(1)  # (row, 1, lanes)
            torch.sum(own * columns[:row], 0, out=on_rows[row])
            on_columns[:row].addcmul_(own, rows[row])
            start += row
        grad_u[piece], grad_v[piece] = on_rows.movedim(-1, 0), on_columns.movedim(-1, 0)
    return grad_u.view(left.shape), grad_v.view(right.shape)


@_low_rank_backward.register_fake
@stand_in
def _(grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return left.new_empty(left.shape), right.new_empty(right.shape)


def _low_rank_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = _low_rank_backward(grad, *ctx.saved_tensors)
    return gradients


def _save_low_rank(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


low_rank.register_autograd(_low_rank_gradient, setup_context=_save_low_rank)

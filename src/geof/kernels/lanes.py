r"""Small matrices written out, a block per lane: entries first, blocks last in memory.

A library call per block of 8 x 8 costs more than its arithmetic. Here ``(m, m, lanes)`` holds entry
:math:`(r, s)` of many blocks side by side, and every operation runs over whole rows of lanes; on
the CPU for as many blocks at a time as its cache holds. Coordinates and moments, and their
gradients, are stored like that from one operator to the next: turning them over costs as much as
the algebra. Three operators are made of it:

- :func:`images`, :math:`h = L \xi` and :math:`y = L \phi(\xi)`;
- :func:`pulled_back`, :math:`\bar\xi = L^{-1} \sum_j \omega_{ij} y_j`,
  :math:`C = L^{-1} S L^{-\top} + \epsilon_s I` and the coordinates of
  :math:`\operatorname{SChol}(C)`;
- :func:`updated`, the next coordinates from those, Eqs. (11) and (12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from geof.geometry import JitterSchedule, block_size_of
from geof.geometry.cholesky import is_kept, refuse_non_finite, served
from geof.kernels.memory import empty
from geof.kernels.operators import stand_in

CACHED = 4000
"""Blocks at a time on the CPU; rows of a power of two would meet in the same sets of its cache."""

SHARED = 28000
"""Likewise for several threads: torch shares the work of an operator out from 32,768 entries on."""

BOUNDED = 2**22
"""Blocks at a time elsewhere: a bound on memory, not on the time of a piece."""


def _pieces(like: Tensor) -> Iterator[slice]:
    on_cpu = CACHED if torch.get_num_threads() == 1 else SHARED
    size = on_cpu if like.device.type == "cpu" else BOUNDED
    return (slice(start, start + size) for start in range(0, len(like), size))


def _lanes(values: Tensor) -> Tensor:
    """Return ``(blocks, ...)`` with the blocks last; not to be written to, it may be the same."""
    rows = values.flatten(1).t()
    if rows.stride(1) != 1:
        rows = _turned_over(rows, empty(rows, rows.shape))
    return rows.view(*values.shape[1:], len(values))


def _turned_over(rows: Tensor, out: Tensor) -> Tensor:
    """Copy a transposed matrix to ``out``.

    As a matrix torch would do so by tiles, in one thread and for a few columns slower than plainly;
    with a dimension more it is a copy like any other, which threads share.
    """
    out.unsqueeze(0).copy_(rows.unsqueeze(0))
    return out


def _rows(stored: Tensor) -> Tensor:
    """Return a view of what :func:`_stored` made, ``(entries, blocks)``, to write to."""
    return stored.flatten(1).t()


def _stored(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised ``(blocks, ...)`` with the blocks last in memory."""
    shape = *like.shape[1:], len(like)
    made = empty(like, shape) if dtype is None else like.new_empty(shape, dtype=dtype)
    return made.movedim(-1, 0)


def _stands_for(like: Tensor, entries: int = 1, dtype: torch.dtype | None = None) -> Tensor:
    """Return the same for ``(n, B, ...)``, of whose sizes a compiler learns nothing by it."""
    lead, rest = like.shape[:-entries], like.shape[-entries:]
    made = like.new_empty(*rest, *lead, dtype=dtype or like.dtype)
    return made.movedim(tuple(range(entries)), tuple(range(-entries, 0)))


def _write(out: Tensor, lanes: Tensor) -> None:
    """Write ``(..., lanes)`` to ``out``, blocks first."""
    _turned_over(lanes.reshape(-1, len(out)).t(), out.flatten(1))


# A lower triangular matrix has anything in its upper part, and nobody reads it.


def _lower(coords: Tensor, m: int) -> Tensor:
    """Return the frames ``(m, m, lanes)`` of coordinates ``(t, lanes)``, Eq. (1)."""
    frame = empty(coords, (m, m, coords.size(1)))
    start = 0
    for r in range(1, m):
        frame[r, :r] = coords[start : start + r]
        start += r
    frame.view(m * m, -1)[:: m + 1] = coords[start:].exp()
    return frame


def _below(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """Return strictly lower entries row by row, ``(t, lanes)``, and a diagonal of one's own."""
    rows = [matrix[r, :r] for r in range(1, len(matrix))]
    entries = len(diagonal) * (len(diagonal) + 1) // 2
    return torch.cat([*rows, diagonal], out=empty(diagonal, (entries, diagonal.size(-1))))


def _diagonal(matrix: Tensor) -> Tensor:
    """Return a view of the diagonal, ``(m, lanes)``."""
    return matrix.view(len(matrix) ** 2, -1)[:: len(matrix) + 1]


def _inverse(lower: Tensor) -> Tensor:
    """Return the inverse of lower triangular matrices by forward substitution."""
    inverse = empty(lower, lower.shape)
    scale = _diagonal(lower).reciprocal()
    _diagonal(inverse).copy_(scale)
    for i in range(1, len(lower)):
        inverse[i, :i].zero_()
        for k in range(i):
            inverse[i, : k + 1].addcmul_(lower[i, k], inverse[k, : k + 1], value=-1)
        inverse[i, :i].mul_(scale[i])
    return inverse


def _product(left: Tensor, right: Tensor, *, of_lower: bool = False) -> Tensor:
    """Return ``left @ right``; ``of_lower`` where the right factor is lower triangular."""
    last = len(right) - 1
    total = empty(left, (len(left), *right.shape[1:]))
    torch.mul(left[:, last].unsqueeze(1), right[last], out=total)
    for k in range(last):
        stop = k + 1 if of_lower else len(right)
        total[:, :stop].addcmul_(left[:, k].unsqueeze(1), right[k, :stop])
    return total


def _lower_by_lower(left: Tensor, right: Tensor) -> Tensor:
    """Return the lower part of ``left @ right`` for two lower triangular factors."""
    total = empty(left, left.shape)
    for k in range(len(left)):
        torch.mul(left[k, k], right[k, : k + 1], out=total[k, : k + 1])
        for r in range(k):
            total[k, : r + 1].addcmul_(left[k, r], right[r, : r + 1])
    return total


def _lower_part(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right``, of whose upper part nobody is going to read anything."""
    m, half = len(left), (len(left) + 1) // 2
    total = empty(left, left.shape)
    for rows, columns in ((slice(0, half), slice(0, half)), (slice(half, m), slice(0, m))):
        part = total[rows, columns]
        torch.mul(left[rows, 0].unsqueeze(1), right[0, columns], out=part)
        for k in range(1, m):
            part.addcmul_(left[rows, k].unsqueeze(1), right[k, columns])
    return total


def _lower_product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``left @ right`` for a lower triangular left factor."""
    total = empty(left, (len(left), *right.shape[1:])) if out is None else out
    torch.mul(left[:, 0].unsqueeze(1), right[0], out=total)
    for k in range(1, len(right)):
        total[k:].addcmul_(left[k:, k].unsqueeze(1), right[k])
    return total


def _adjoint_product(left: Tensor, right: Tensor, *, of_lower: bool = False) -> Tensor:
    """Return ``left.T @ right`` for a lower triangular left factor."""
    last = len(right) - 1
    total = empty(left, (left.size(1), *right.shape[1:]))
    torch.mul(left[last].unsqueeze(1), right[last], out=total)
    for k in range(last):
        stop = k + 1 if of_lower else len(right)
        total[: k + 1, :stop].addcmul_(left[k, : k + 1].unsqueeze(1), right[k, :stop])
    return total


def _applied(lower: Tensor, vector: Tensor) -> Tensor:
    """Return ``lower @ vector``, ``(m, lanes)``."""
    total = lower[:, 0] * vector[0]
    for k in range(1, len(vector)):
        total[k:].addcmul_(lower[k:, k], vector[k])
    return total


def _adjoint_applied(lower: Tensor, vector: Tensor) -> Tensor:
    """Return ``lower.T @ vector``, ``(m, lanes)``."""
    last = len(vector) - 1
    total = lower[last] * vector[last]
    for k in range(last):
        total[: k + 1].addcmul_(lower[k, : k + 1], vector[k])
    return total


def _factor(matrix: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factors at one jitter, upper entries left, and where there is none."""
    factor = empty(matrix, matrix.shape).copy_(matrix)
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
def images(coords: Tensor, xi: Tensor, message: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""Return :math:`L \xi` and :math:`L \phi(\xi)`, ``(n, B, m)``; empty without a message."""
    z, vectors = _flat(coords)[0], _flat(*_given(xi, message))
    made = [empty(vector, vector.shape) for vector in vectors]
    for piece in _pieces(z):
        frame = _lower(_lanes(z[piece]), xi.size(-1))
        for vector, out in zip(vectors, made, strict=True):
            _write(out[piece], _applied(frame, _lanes(vector[piece])))
    return made[0].view(xi.shape), xi.new_empty(0) if message is None else made[1].view(xi.shape)


def _given(*values: Tensor | None) -> list[Tensor]:
    return [value for value in values if value is not None]


@images.register_fake
@stand_in
def _(coords: Tensor, xi: Tensor, message: Tensor | None) -> tuple[Tensor, Tensor]:
    return xi.new_empty(xi.shape), xi.new_empty(0 if message is None else xi.shape)


@torch.library.custom_op("geof::images_backward", mutates_args=())
def _images_backward(
    grad_h: Tensor, grad_y: Tensor, coords: Tensor, xi: Tensor, message: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    m, z = xi.size(-1), _flat(coords)[0]
    vectors = _flat(*_given(xi, message))
    grads = _flat(grad_h, *(() if message is None else (grad_y,)))
    made = [empty(vector, vector.shape) for vector in vectors]
    grad_z = _stored(z)
    for piece in _pieces(z):
        frame = _lower(_lanes(z[piece]), m)
        pulls = []
        for vector, grad, out in zip(vectors, grads, made, strict=True):
            reaching = _lanes(grad[piece])
            _write(out[piece], _adjoint_applied(frame, reaching))
            pulls.append((reaching.unsqueeze(1), _lanes(vector[piece])))
        pull = torch.mul(*pulls[0], out=empty(z, frame.shape))
        for reaching, reached in pulls[1:]:
            pull.addcmul_(reaching, reached)
        _write(grad_z[piece], _below(pull, _diagonal(pull) * _diagonal(frame)))
    on_message = xi.new_empty(0) if message is None else made[1].view(xi.shape)
    return grad_z.view(coords.shape), made[0].view(xi.shape), on_message


@_images_backward.register_fake
@stand_in
def _(
    grad_h: Tensor, grad_y: Tensor, coords: Tensor, xi: Tensor, message: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    on_message = xi.new_empty(0 if message is None else xi.shape)
    return _stands_for(coords), xi.new_empty(xi.shape), on_message


def _images_gradient(
    ctx: Any, grad_h: Tensor, grad_y: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    saved = ctx.saved_tensors
    on_coords, on_xi, on_message = _images_backward(grad_h, grad_y, *saved)
    return on_coords, on_xi, None if saved[-1] is None else on_message


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
    aggregate, moment, target = empty(f, f.shape), _stored(s), _stored(z)
    failed = torch.empty(len(z), dtype=torch.bool, device=z.device)
    for piece in _pieces(z):
        inverse = _inverse(_lower(_lanes(z[piece]), m))
        _write(aggregate[piece], _applied(inverse, _lanes(f[piece])))
        half = _lower_product(inverse, _lanes(s[piece]))  # L^{-1} S
        matrix = _rows(moment[piece]).unflatten(0, (m, m))
        _lower_product(inverse, half.transpose(0, 1), out=matrix)
        _diagonal(matrix).add_(floor)
        factor, failed[piece] = _factor(matrix, jitter)
        _write(target[piece], _below(factor, _diagonal(factor).log()))
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
        _stands_for(second, entries=2),
        _stands_for(coords),
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
    grad_z, grad_f = _stored(z), empty(agg, agg.shape)
    grad_s = empty(c, c.shape)  # for sums over edges, which want a block's entries together
    for piece in _pieces(z):
        frame = _lower(_lanes(z[piece]), m)
        inverse = _inverse(frame)
        pull, own = _lanes(grad_t[piece]), keeps[piece]
        # Blocks that kept their coordinates do not depend on the moment; most often there are none.
        keeping = own.device.type != "cpu" or bool(own.any())
        free = pull.masked_fill(own, 0) if keeping else pull
        bent = _factor_adjoint(_lower(_lanes(reached[piece]), m), 0.5 * free)
        if grad_c is not None:
            bent.add_(_lanes(grad_c[piece]), alpha=0.5)
        bent = bent + bent.transpose(0, 1)  # only that part acts on a symmetric moment
        left = _adjoint_product(inverse, bent)
        _write(grad_s[piece], _product(left, inverse, of_lower=True))
        turned = _lower_part(left, _lanes(c[piece])).sub_(left, alpha=floor).mul_(-2)
        reaching = _adjoint_applied(inverse, _lanes(grad_a[piece]))
        _write(grad_f[piece], reaching)
        turned.addcmul_(reaching.unsqueeze(1), _lanes(agg[piece]).unsqueeze(0), value=-1)
        slope = _below(turned, _diagonal(turned) * _diagonal(frame))
        if keeping:
            slope += pull.masked_fill(~own, 0)
        _write(grad_z[piece], slope)
    return grad_z.view(coords.shape), grad_f.view(aggregate.shape), grad_s.view(moment.shape)


def _factor_adjoint(factor: Tensor, pull: Tensor) -> Tensor:
    r"""Return :math:`R^{-\top} \Phi(R^\top \bar R) R^{-1}` for gradients ``(t, lanes)``.

    :math:`\Phi` keeps the strictly lower part and halves the diagonal; Eq. (38) transposed.
    """
    m = len(factor)
    grad = empty(factor, factor.shape)
    start = 0
    for r in range(1, m):
        grad[r, :r] = pull[start : start + r]
        start += r
    inverse = _inverse(factor)
    _diagonal(grad).copy_(pull[start:] * _diagonal(inverse))
    inner = _adjoint_product(factor, grad, of_lower=True)
    _diagonal(inner).mul_(0.5)
    return _adjoint_product(inverse, _lower_by_lower(inner, inverse), of_lower=True)


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
    return (
        _stands_for(coords),
        aggregate.new_empty(aggregate.shape),
        moment.new_empty(moment.shape),
    )


def _save_pulled_back(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what the backward pass takes."""
    _save_feedback(ctx, inputs, output, output[1])
    ctx.scalars = (inputs[3],)


def save_with_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep the sums' second moment in the place of C, from which the floor cancels digits."""
    _save_feedback(ctx, inputs, output, inputs[2])
    ctx.scalars = ()


def _save_feedback(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...], moment: Tensor
) -> None:
    coords, _, _, _, jitter, growth, retries = inputs
    aggregate, _, target, attempt = output
    ctx.mark_non_differentiable(attempt)
    ctx.set_materialize_grads(False)  # the moment, the largest, is looked at and has none
    kept = is_kept(attempt, JitterSchedule(jitter, growth, retries))
    ctx.save_for_backward(coords, aggregate, moment, target, kept)


def pulled_back_gradient(backward: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return what autograd calls, with the operator that does the work."""

    def gradient(
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
        made = backward(pull, grad_moment, bend, *saved, *ctx.scalars)
        return *made, None, None, None, None

    return gradient


pulled_back.register_autograd(
    pulled_back_gradient(_pulled_back_backward), setup_context=_save_pulled_back
)


# Update -----------------------------------------------------------------------------------------


@torch.library.custom_op("geof::updated", mutates_args=())
def updated(
    coords: Tensor,
    target: Tensor | None,
    output: Tensor | None,
    target_mix: float,
    correction_strength: float,
    offdiagonal_bound: float,
    lowest: float,
    highest: float,
) -> tuple[Tensor, Tensor]:
    r"""Return the next coordinates, Eq. (12), and which of them the box left as they were.

    Args:
        coords: ``(n, B, t)``, :math:`z`.
        target: ``(n, B, t)``, :math:`\hat z`, or ``None`` for :math:`z`.
        output: ``(n, B, (2r + 1) m)``, what the controller says, :math:`[U, V, \Delta \ell]`, or
            ``None`` for no correction.
        target_mix: :math:`\lambda`.
        correction_strength: :math:`\gamma`.
        offdiagonal_bound: :math:`a_{max}`.
        lowest: :math:`\ell_{min}`.
        highest: :math:`\ell_{max}`.
    """
    (z,) = _flat(coords)
    reached, said = (None if value is None else _flat(value)[0] for value in (target, output))
    m = block_size_of(z.size(1))
    following, inside = _stored(z), _stored(z, torch.bool)
    for piece in _pieces(z):
        own, new = _lanes(z[piece]), _rows(following[piece])
        if reached is None:
            mixed = own.clone()
        else:
            mixed = torch.lerp(own, _lanes(reached[piece]), target_mix)
        if said is not None:
            mixed.add_(_correction(_lanes(said[piece]), m), alpha=correction_strength)
        # Clamping keeps a NaN, so an overflow shows.
        torch.clamp(mixed[:-m], -offdiagonal_bound, offdiagonal_bound, out=new[:-m])
        torch.clamp(mixed[-m:], lowest, highest, out=new[-m:])
        torch.eq(new, mixed, out=_rows(inside[piece]))
    return following.view(coords.shape), inside.view(coords.shape)


def _factors(output: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return U and V, ``(m, r, lanes)``, and :math:`\Delta \ell`, ``(m, lanes)``."""
    size = (len(output) - m) // 2
    left, right, log_scale = output.split([size, size, m])
    return left.unflatten(0, (m, -1)), right.unflatten(0, (m, -1)), log_scale


def _correction(output: Tensor, m: int) -> Tensor:
    r"""Return :math:`\Delta z = [\operatorname{Svec}_{sl}(U V^\top), \Delta \ell]`, Eq. (11)."""
    rows, columns, log_scale = _factors(output, m)
    product = rows[:, :1] * columns[:, 0]
    for k in range(1, rows.size(1)):
        # Not fused: infinities of both signs make a NaN, which the clip does not hide.
        product += rows[:, k : k + 1] * columns[:, k]
    return _below(product, log_scale)


@updated.register_fake
@stand_in
def _(
    coords: Tensor,
    target: Tensor | None,
    output: Tensor | None,
    target_mix: float,
    correction_strength: float,
    offdiagonal_bound: float,
    lowest: float,
    highest: float,
) -> tuple[Tensor, Tensor]:
    return _stands_for(coords), _stands_for(coords, dtype=torch.bool)


@torch.library.custom_op("geof::updated_backward", mutates_args=())
def _updated_backward(
    grad: Tensor,
    inside: Tensor,
    output: Tensor | None,
    mixes: bool,
    target_mix: float,
    correction_strength: float,
) -> tuple[Tensor, Tensor, Tensor]:
    g, free = _flat(grad, inside)
    m = block_size_of(g.size(1))
    said = None if output is None else _flat(output)[0]
    grad_z = _stored(g)
    grad_target = _stored(g) if mixes else g.new_empty(0)
    grad_said = g.new_empty(0) if said is None else _stored(said)
    for piece in _pieces(g):
        reaching = _lanes(g[piece]) * _lanes(free[piece])
        if said is not None:
            pull = reaching.mul(correction_strength)
            _correction_adjoint(_lanes(said[piece]), pull, m, _rows(grad_said[piece]))
        if mixes:
            torch.mul(reaching, target_mix, out=_rows(grad_target[piece]))
        torch.mul(reaching, 1 - target_mix if mixes else 1.0, out=_rows(grad_z[piece]))
    on_target = grad_target.view(grad.shape) if mixes else grad_target
    on_said = grad_said if output is None else grad_said.view(output.shape)
    return grad_z.view(grad.shape), on_target, on_said


def _correction_adjoint(output: Tensor, pull: Tensor, m: int, made: Tensor) -> None:
    """Write the gradient with respect to the output, ``((2r + 1) m, lanes)``."""
    rows, columns, _ = _factors(output, m)
    on_rows, on_columns, on_scale = _factors(made.zero_(), m)
    start = 0
    for row in range(1, m):
        own = pull[start : start + row].unsqueeze(1)  # (row, 1, lanes)
        torch.sum(own * columns[:row], 0, out=on_rows[row])
        on_columns[:row].addcmul_(own, rows[row])
        start += row
    on_scale.copy_(pull[start:])


@_updated_backward.register_fake
@stand_in
def _(
    grad: Tensor,
    inside: Tensor,
    output: Tensor | None,
    mixes: bool,
    target_mix: float,
    correction_strength: float,
) -> tuple[Tensor, Tensor, Tensor]:
    on_target = _stands_for(grad) if mixes else grad.new_empty(0)
    on_said = grad.new_empty(0) if output is None else _stands_for(output)
    return _stands_for(grad), on_target, on_said


def save_updated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep what the backward pass of :func:`updated`, or of another one, takes."""
    _, target, said, target_mix, correction_strength, *_ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.scalars = target is not None, target_mix, correction_strength
    ctx.save_for_backward(output[1], said)


def updated_gradient(backward: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return what autograd calls, with the operator that does the work."""

    def gradient(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        inside, output = ctx.saved_tensors
        on_coords, on_target, on_output = backward(grad, inside, output, *ctx.scalars)
        on_target = on_target if ctx.scalars[0] else None
        return on_coords, on_target, None if output is None else on_output, *(None,) * 5

    return gradient


updated.register_autograd(updated_gradient(_updated_backward), setup_context=save_updated)

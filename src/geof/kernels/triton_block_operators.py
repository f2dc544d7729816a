r"""The step's small matrices by the Triton kernels, with their backward passes.

:func:`pulled_back` and :func:`updated` are the operators of the same names in
:mod:`geof.kernels.lanes`; :func:`feedback_target` serves the statistics those do not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from geof.geometry import JitterSchedule, block_size_of, coordinates_from_frame
from geof.geometry.cholesky import (
    RELATIVE_JITTERS,
    FeedbackTarget,
    is_kept,
    is_rescued,
    report_attempts,
)
from geof.kernels import lanes
from geof.kernels import triton_blocks as kernels
from geof.kernels.operators import stand_in
from geof.kernels.triton_operators import (
    LARGEST_TILE,
    LAUNCH,
    checked,
    launching_at,
    on_device,
    power_of_two,
)


def block_tiling(m: int) -> tuple[int, int]:
    """Return the padded size of a block and how many a program takes."""
    size = power_of_two(m)
    return size, max(1, min(LARGEST_TILE // 2 // (size * size), 64))


def _tiles(m: int, count: int) -> tuple[tuple[int], dict[str, Any]]:
    """Return the grid for so many blocks, and what a kernel is launched with."""
    size, per_program = block_tiling(m)
    return (-(-count // per_program),), {"SIZE": size, "BLOCKS": per_program, **LAUNCH}


# Factors ----------------------------------------------------------------------------------------


def feedback_target(moment: Tensor, present: Tensor, schedule: JitterSchedule) -> FeedbackTarget:
    """Do what :func:`geof.geometry.feedback_target` does.

    Raises:
        NonFiniteError: If a block has a NaN or an infinity.
    """
    factor, attempt = _cholesky(moment, schedule.initial, schedule.growth, schedule.retries)
    kept = is_kept(attempt, schedule).unsqueeze(-1)
    return FeedbackTarget(torch.where(kept, present, coordinates_from_frame(factor)), attempt)


@torch.library.custom_op("geof::triton_cholesky", mutates_args=())
def _cholesky(matrix: Tensor, jitter: float, growth: float, retries: int) -> tuple[Tensor, Tensor]:
    m = matrix.size(-1) if matrix.dim() > 1 else 0
    (matrix,) = checked(matrix, ("matrix", matrix, (*matrix.shape[:-2], m, m)))
    factor, attempt = _empty_factor(matrix)
    if not attempt.numel():
        return factor, attempt
    schedule = JitterSchedule(jitter, growth, retries)
    count = attempt.numel()
    grid, tile = _tiles(m, count)
    with launching_at(matrix):
        kernels.block_cholesky[grid](
            matrix, *_jitters(schedule, matrix), factor, attempt, count, m, tries(schedule), **tile
        )
    _report(matrix, attempt, schedule)
    return factor, attempt


def tries(schedule: JitterSchedule) -> int:
    """Return how many jitters there are."""
    return schedule.retries + 1 + len(RELATIVE_JITTERS)


def _jitters(schedule: JitterSchedule, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return all jitters, and which parts of a block's size are added to them."""
    fixed = [schedule.initial * schedule.growth**t for t in range(schedule.retries + 1)]
    jitters = (*fixed, *(schedule.largest for _ in RELATIVE_JITTERS))
    relative = (*(0.0 for _ in fixed), *RELATIVE_JITTERS)
    return on_device(jitters, like.dtype, like.device), on_device(relative, like.dtype, like.device)


def _report(matrix: Tensor, attempt: Tensor, schedule: JitterSchedule) -> None:
    """Raise for blocks that are not finite, count and warn about those that needed more jitter."""
    most = int(attempt.max())
    if most == 0:
        return
    failed = attempt > 0
    finite = matrix.tril().isfinite().all(-1).all(-1)
    report_attempts(
        attempt.numel(),
        schedule,
        non_finite=int((failed & ~finite).sum()),
        retried=int(failed.sum()),
        most_retries=most,
        rescued=int(is_rescued(attempt, schedule).sum()),
        kept=int(is_kept(attempt, schedule).sum()),
    )


def _empty_factor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return matrix.new_empty(matrix.shape), matrix.new_empty(matrix.shape[:-2], dtype=torch.long)


@_cholesky.register_fake
@stand_in
def _(matrix: Tensor, jitter: float, growth: float, retries: int) -> tuple[Tensor, Tensor]:
    return _empty_factor(matrix)


@torch.library.custom_op("geof::triton_cholesky_adjoint", mutates_args=())
def _cholesky_adjoint(factor: Tensor, grad: Tensor) -> Tensor:
    m = factor.size(-1) if factor.dim() > 1 else 0
    shape = *factor.shape[:-2], m, m
    factor, grad = checked(factor, ("factor", factor, shape), ("grad", grad, shape))
    made = torch.empty_like(factor)
    if not made.numel():
        return made
    count = factor.numel() // (m * m)
    grid, tile = _tiles(m, count)
    with launching_at(factor):
        kernels.block_cholesky_adjoint[grid](factor, grad, made, count, m, **tile)
    return made


@_cholesky_adjoint.register_fake
@stand_in
def _(factor: Tensor, grad: Tensor) -> Tensor:
    return factor.new_empty(factor.shape)


def _save_factor(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    factor, attempt = output
    ctx.mark_non_differentiable(attempt)
    ctx.save_for_backward(factor)


def _factor_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    (factor,) = ctx.saved_tensors
    return _cholesky_adjoint(factor, grad), None, None, None


_cholesky.register_autograd(_factor_gradient, setup_context=_save_factor)


# Feedback ---------------------------------------------------------------------------------------


@torch.library.custom_op("geof::triton_pulled_back", mutates_args=())
def pulled_back(
    coords: Tensor,
    first: Tensor,
    second: Tensor,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Do what :func:`geof.kernels.lanes.pulled_back` does."""
    coords, first, second = _checked_blocks(coords, first, second)
    made = aggregate, moment, target, attempt = _empty_feedback(coords, first, second)
    if not attempt.numel():
        return made
    schedule = JitterSchedule(jitter, growth, retries)
    m, count = first.size(-1), attempt.numel()
    grid, tile = _tiles(m, count)
    with launching_at(coords):
        kernels.block_feedback[grid](
            coords,
            first,
            second,
            on_device((floor,), coords.dtype, coords.device),
            *_jitters(schedule, coords),
            aggregate,
            moment,
            target,
            attempt,
            count,
            m,
            tries(schedule),
            **tile,
        )
    _report(moment, attempt, schedule)
    return made


def _checked_blocks(coords: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """Return coordinates, vectors and matrices of the same blocks."""
    lead, m = first.shape[:-1], first.size(-1) if first.dim() else 0
    return checked(
        first,
        ("coords", coords, (*lead, m * (m + 1) // 2)),
        ("first", first, (*lead, m)),
        ("second", second, (*lead, m, m)),
    )


def _empty_feedback(
    coords: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = (value.new_empty(value.shape) for value in (first, second, coords))
    return *made, coords.new_empty(coords.shape[:-1], dtype=torch.long)  # type: ignore[return-value]


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
    return _empty_feedback(coords, first, second)


@torch.library.custom_op("geof::triton_pulled_back_backward", mutates_args=())
def _pulled_back_backward(
    grad_aggregate: Tensor,
    grad_moment: Tensor | None,
    grad_target: Tensor,
    coords: Tensor,
    aggregate: Tensor,
    second: Tensor,
    target: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    coords, aggregate, second = _checked_blocks(coords, aggregate, second)
    target, grad_target, grad_aggregate, seen = checked(
        coords,
        ("target", target, coords.shape),
        ("grad_target", grad_target, coords.shape),
        ("grad_aggregate", grad_aggregate, aggregate.shape),
        ("grad_moment", second if grad_moment is None else grad_moment, second.shape),
    )
    (kept,) = checked(coords, ("kept", kept, coords.shape[:-1]), dtype=torch.bool)
    made = [torch.empty_like(value) for value in (coords, aggregate, second)]
    m, count = aggregate.size(-1), kept.numel()
    if count:
        grid, tile = _tiles(m, count)
        with launching_at(coords):
            kernels.block_feedback_adjoint[grid](
                coords,
                aggregate,
                second,
                target,
                kept.view(torch.uint8),
                grad_aggregate,
                seen,
                grad_target,
                *made,
                count,
                m,
                WATCHED=grad_moment is not None,
                **tile,
            )
    return made[0], made[1], made[2]


@_pulled_back_backward.register_fake
@stand_in
def _(
    grad_aggregate: Tensor,
    grad_moment: Tensor | None,
    grad_target: Tensor,
    coords: Tensor,
    aggregate: Tensor,
    second: Tensor,
    target: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    made = [value.new_empty(value.shape) for value in (coords, aggregate, second)]
    return made[0], made[1], made[2]


pulled_back.register_autograd(
    lanes.pulled_back_gradient(_pulled_back_backward), setup_context=lanes.save_with_second
)


# Update -----------------------------------------------------------------------------------------

UNFUSED = {"enable_fp_fusion": False}
"""For the update: infinities of both signs make a NaN, which the clip does not hide."""


@torch.library.custom_op("geof::triton_updated", mutates_args=())
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
    """Do what :func:`geof.kernels.lanes.updated` does."""
    (coords,) = checked(coords, ("coords", coords, coords.shape))
    m, count = block_size_of(coords.size(-1)), coords.shape[:-1].numel()
    reached = None if target is None else checked(coords, ("target", target, coords.shape))[0]
    said = _checked_output(output, coords, m)
    following, inside = torch.empty_like(coords), torch.empty_like(coords, dtype=torch.bool)
    if count:
        grid, tile = _tiles(m, count)
        numbers = target_mix, correction_strength, offdiagonal_bound, lowest, highest
        with launching_at(coords):
            kernels.block_update[grid](
                coords,
                coords if reached is None else reached,
                coords if said is None else said,
                on_device(numbers, coords.dtype, coords.device),
                following,
                inside.view(torch.uint8),
                count,
                m,
                _rank(said, m),
                MIXED=reached is not None,
                CORRECTED=said is not None,
                **tile | UNFUSED,
            )
    return following, inside


def _checked_output(output: Tensor | None, coords: Tensor, m: int) -> Tensor | None:
    """Return what the controller says of the same blocks."""
    if output is None:
        return None
    size = (2 * _rank(output, m) + 1) * m
    return checked(coords, ("output", output, (*coords.shape[:-1], size)))[0]


def _rank(output: Tensor | None, m: int) -> int:
    return 0 if output is None or not output.dim() else (output.size(-1) // m - 1) // 2


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
    return coords.new_empty(coords.shape), coords.new_empty(coords.shape, dtype=torch.bool)


@torch.library.custom_op("geof::triton_updated_backward", mutates_args=())
def _updated_backward(
    grad: Tensor,
    inside: Tensor,
    output: Tensor | None,
    mixes: bool,
    target_mix: float,
    correction_strength: float,
) -> tuple[Tensor, Tensor, Tensor]:
    (grad,) = checked(grad, ("grad", grad, grad.shape))
    (inside,) = checked(grad, ("inside", inside, grad.shape), dtype=torch.bool)
    m, count = block_size_of(grad.size(-1)), grad.shape[:-1].numel()
    said = _checked_output(output, grad, m)
    made = on_coords, on_target, on_said = _empty_pulls(grad, said, mixes)
    if count:
        grid, tile = _tiles(m, count)
        with launching_at(grad):
            kernels.block_update_adjoint[grid](
                grad,
                inside.view(torch.uint8),
                grad if said is None else said,
                on_device((target_mix, correction_strength), grad.dtype, grad.device),
                on_coords,
                on_target,
                on_said,
                count,
                m,
                _rank(said, m),
                MIXED=mixes,
                CORRECTED=said is not None,
                **tile,
            )
    return made


def _empty_pulls(grad: Tensor, output: Tensor | None, mixes: bool) -> tuple[Tensor, Tensor, Tensor]:
    on_target = grad.new_empty(grad.shape if mixes else 0)
    return (
        grad.new_empty(grad.shape),
        on_target,
        grad.new_empty(0 if output is None else output.shape),
    )


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
    return _empty_pulls(grad, output, mixes)


updated.register_autograd(
    lanes.updated_gradient(_updated_backward), setup_context=lanes.save_updated
)

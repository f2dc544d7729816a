r"""The stabilised Cholesky factorisation SChol (paper, appendix "Numerical Operators").

.. math::
    C_t = C + \epsilon_0 \beta^t I, \qquad t^* = \min\{t \le T_{max} : C_t \in SPD\}, \qquad
    \operatorname{SChol}(C) = \operatorname{chol}(C_{t^*})
    \qquad \text{(Eqs. 51 to 53)}

The first attempt already carries :math:`\epsilon_0`; only blocks that fail are tried again. The
retry depends on values, so the factorisation is one ``torch.library`` operator: ``torch.compile``
and ``torch.export`` see a single node instead of a branch.

:math:`C = L^{-1} S L^{-\top} + \epsilon_s I` is at least :math:`\epsilon_s I`, but in working
precision :math:`u` only up to :math:`u \|L^{-1}\|^2 \|S\|`, and frames at a corner of the box have
:math:`\|L^{-1}\|` of :math:`10^4` and more. So a step goes on where the schedule ends, on the
blocks that failed, with jitters relative to the block's largest row sum,

.. math::
    \eta_k = \epsilon_{T_{max}} + \rho_k \|C\|_\infty, \qquad
    \rho_k = 10^{-6}, 10^{-4}, 10^{-2}, 1,

taking the first whose pivots all reach :math:`\eta_k / 2`; a block that none serves keeps its
coordinates, :math:`\hat z = z`. :func:`stabilised_cholesky` by itself is the printed operator.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from geof.errors import DtypeError, NonFiniteError, NotPositiveDefiniteError, NumericalWarning
from geof.geometry.log_triangular import coordinates_from_frame, require_square
from geof.options import require_number, require_positive


@dataclass(frozen=True)
class JitterSchedule:
    r"""The diagonal jitters :math:`\epsilon_t = \beta^t \epsilon_0`, Eq. (51).

    Args:
        initial: :math:`\epsilon_0 > 0`.
        growth: :math:`\beta > 1`.
        retries: :math:`T_{max} \ge 0`; there are ``retries + 1`` attempts.
    """

    initial: float = 1e-6
    growth: float = 10.0
    retries: int = 5

    def __post_init__(self) -> None:
        require_number("jitter", self.initial, above=0)
        require_number("jitter_growth", self.growth, above=1)
        require_positive("jitter_retries", self.retries, least=0)

    @property
    def largest(self) -> float:
        r""":math:`\epsilon_{T_{max}}`, the last jitter."""
        return self.initial * self.growth**self.retries


# Jitters beyond the schedule, as parts of a block's largest row sum.
RELATIVE_JITTERS = (1e-6, 1e-4, 1e-2, 1.0)


class StabilisedFactor(NamedTuple):
    """What :func:`stabilised_cholesky` returns.

    Attributes:
        factor: ``(..., m, m)``, lower triangular with positive diagonal.
        attempt: ``(...)`` int64, the index :math:`t^*` of the jitter each block needed.
    """

    factor: Tensor
    attempt: Tensor


def stabilised_cholesky(matrix: Tensor, schedule: JitterSchedule | None = None) -> StabilisedFactor:
    r"""Return :math:`R` with :math:`R R^\top = C + \epsilon_{t^*} I`, Eq. (53).

    Only the lower triangle of ``matrix`` is read, and its gradient is the symmetric one. A
    :class:`~geof.errors.NumericalWarning` tells, once per process, when a retry was needed;
    ``attempt`` always tells which blocks.

    Args:
        matrix: Symmetric ``(..., m, m)``.
        schedule: The jitters to try (default: the paper's, ``JitterSchedule()``).

    Raises:
        ShapeError: If ``matrix`` is not a stack of square matrices.
        DtypeError: If ``matrix`` is not floating point.
        NonFiniteError: If a block has a NaN or an infinity.
        NotPositiveDefiniteError: If a block is indefinite even at the last jitter.
    """
    schedule = schedule or JitterSchedule()
    require_square(matrix, "matrix")
    if not matrix.is_floating_point():
        raise DtypeError(
            f"Expected 'matrix' to be floating point (got {matrix.dtype}). Use matrix.double()."
        )
    factor, attempt = _stabilised_cholesky(
        matrix, schedule.initial, schedule.growth, schedule.retries, False
    )
    return StabilisedFactor(factor, attempt)


def target_coordinates(moment: Tensor, schedule: JitterSchedule | None = None) -> Tensor:
    r"""Return :math:`\hat z`, the coordinates of :math:`\operatorname{SChol}(C)`, Eq. (10).

    Args:
        moment: Symmetric positive definite ``(..., m, m)``.
        schedule: The jitters to try.

    Returns:
        ``(..., m (m + 1) / 2)``.
    """
    return coordinates_from_frame(stabilised_cholesky(moment, schedule).factor)


class FeedbackTarget(NamedTuple):
    r"""What :func:`feedback_target` returns.

    Attributes:
        coordinates: ``(..., m (m + 1) / 2)``, :math:`\hat z`.
        attempt: ``(...)`` int64: up to :math:`T_{max}` the index :math:`t^*`, above it the number
            of the relative jitter, and one more for a block that keeps its coordinates.
    """

    coordinates: Tensor
    attempt: Tensor


def feedback_target(moment: Tensor, present: Tensor, schedule: JitterSchedule) -> FeedbackTarget:
    r"""Return :math:`\hat z`, Eq. (10), for blocks that rounding may have made indefinite.

    Where the schedule succeeds this is :func:`target_coordinates`; the jitters beyond it are
    constants to the gradient, as those of the schedule are. A kept block passes its gradient to
    ``present``.

    Args:
        moment: Symmetric ``(..., m, m)``.
        present: ``(..., m (m + 1) / 2)``, the coordinates :math:`z` the blocks have now.
        schedule: The jitters to try first.

    Raises:
        NonFiniteError: If a block has a NaN or an infinity.
    """
    factor, attempt = _stabilised_cholesky(
        moment, schedule.initial, schedule.growth, schedule.retries, True
    )
    kept = is_kept(attempt, schedule).unsqueeze(-1)
    return FeedbackTarget(torch.where(kept, present, coordinates_from_frame(factor)), attempt)


def is_rescued(attempt: Tensor, schedule: JitterSchedule) -> Tensor:
    """Return which blocks needed a jitter relative to their size, and got a factor by it."""
    return (attempt > schedule.retries) & ~is_kept(attempt, schedule)


def is_kept(attempt: Tensor, schedule: JitterSchedule) -> Tensor:
    """Return which blocks keep their coordinates."""
    return attempt > schedule.retries + len(RELATIVE_JITTERS)


@torch.library.custom_op("geof::stabilised_cholesky", mutates_args=())
def _stabilised_cholesky(
    matrix: Tensor, jitter: float, growth: float, retries: int, rescue: bool
) -> tuple[Tensor, Tensor]:
    factor, attempt = _factorise(matrix, jitter)
    failed = attempt > 0
    if bool(failed.any()):
        schedule = JitterSchedule(jitter, growth, retries)
        again = served(matrix[failed], attempt.numel(), schedule, rescue=rescue)
        factor[failed], attempt[failed] = again
    refuse_non_finite(factor.diagonal(dim1=-2, dim2=-1).unsqueeze(-1))
    return factor, attempt


def served(
    blocks: Tensor, total: int, schedule: JitterSchedule, *, rescue: bool
) -> tuple[Tensor, Tensor]:
    """Return factors and attempts of ``(k, m, m)`` blocks that the first jitter does not serve.

    Args:
        blocks: Symmetric; the lower triangle is read.
        total: How many blocks there are with those that were served, for what is reported.
        schedule: The jitters to try.
        rescue: Whether to go on with jitters relative to a block's size, and with the identity.

    Raises:
        NonFiniteError: If a block has a NaN or an infinity.
        NotPositiveDefiniteError: If one stays indefinite and is not to be rescued.
    """
    refuse_non_finite(blocks.tril(), total)
    factor, attempt = _factorise(blocks, schedule.initial)
    failed = torch.ones_like(attempt, dtype=torch.bool)
    attempt.fill_(1)
    for t in range(1, schedule.retries + 1):
        again, info = _factorise(blocks[failed], schedule.initial * schedule.growth**t)
        factor[failed] = again
        attempt[failed] = torch.where(info > 0, t + 1, t)
        failed = attempt > t
        if not failed.any():
            break
    if rescue and failed.any():
        factor[failed], attempt[failed] = _rescue(blocks[failed], schedule)
    report_attempts(
        total,
        schedule,
        indefinite=0 if rescue else int(failed.sum()),
        retried=len(blocks),
        most_retries=int(attempt.max()),
        rescued=int(is_rescued(attempt, schedule).sum()) if rescue else 0,
        kept=int(is_kept(attempt, schedule).sum()) if rescue else 0,
    )
    return factor, attempt


def _rescue(blocks: Tensor, schedule: JitterSchedule) -> tuple[Tensor, Tensor]:
    """Return factors of ``(k, m, m)`` blocks at relative jitters, else the identity; attempts."""
    lower = blocks.tril().abs()
    size = (lower.sum(-1) + lower.tril(-1).sum(-2)).amax(-1)  # the largest row sum, (k,)
    attempt = torch.full_like(size, schedule.retries + len(RELATIVE_JITTERS) + 1, dtype=torch.long)
    factor = torch.eye(blocks.size(-1)).to(blocks).expand_as(blocks).clone()
    for number, relative in enumerate(RELATIVE_JITTERS, schedule.retries + 1):
        jitter = schedule.largest + relative * size
        made, failed = _factorise(blocks, jitter[:, None, None])
        pivots = made.diagonal(dim1=-2, dim2=-1).square()
        # Every pivot is at least the jitter before rounding: what is far below is rounding alone.
        sound = ((pivots >= 0.5 * jitter[:, None]) & made.isfinite().all(-1)).all(-1)
        taken = (failed == 0) & sound & (attempt > schedule.retries + len(RELATIVE_JITTERS))
        factor[taken], attempt[taken] = made[taken], number
    return factor, attempt


def _factorise(matrix: Tensor, jitter: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor at one jitter and 1 where it failed, else 0."""
    jittered = matrix + jitter * torch.eye(
        matrix.size(-1), dtype=matrix.dtype, device=matrix.device
    )
    factor, info = torch.linalg.cholesky_ex(jittered)
    return factor.contiguous(), (info > 0).long()


def refuse_non_finite(blocks: Tensor, total: int | None = None) -> None:
    """Raise when one of ``(..., r, c)`` blocks is not finite: no jitter can mend that.

    Args:
        blocks: What to look at.
        total: How many blocks there are in all (default: these).
    """
    bad = ~blocks.isfinite().all(-1).all(-1)
    report_attempts(total or bad.numel(), JitterSchedule(), non_finite=int(bad.sum()))


@dataclass(eq=False)
class BlockCounts:
    """Blocks that the schedule did not serve, summed over factorisations.

    Attributes:
        rescued: Those that needed a jitter relative to their own size.
        kept: Those that kept their coordinates.
    """

    rescued: int = 0
    kept: int = 0

    def take(self) -> BlockCounts:
        """Return the counts so far and begin anew."""
        taken = BlockCounts(self.rescued, self.kept)
        self.rescued = self.kept = 0
        return taken


_open_counts: list[BlockCounts] = []


@contextmanager
def counting_blocks() -> Iterator[BlockCounts]:
    """Yield counts that grow with every step taken inside the ``with`` block."""
    counts = BlockCounts()
    _open_counts.append(counts)
    try:
        yield counts
    finally:
        _open_counts.remove(counts)


_already_warned = False
_already_warned_of_rescue = False


def report_attempts(
    blocks: int,
    schedule: JitterSchedule,
    *,
    non_finite: int = 0,
    indefinite: int = 0,
    retried: int = 0,
    most_retries: int = 0,
    rescued: int = 0,
    kept: int = 0,
) -> None:
    """Raise, count or, once per process, warn about blocks whose first attempt failed.

    Args:
        blocks: How many blocks there were.
        schedule: The jitters that were tried.
        non_finite: Blocks with a NaN or an infinity.
        indefinite: Blocks that stayed indefinite where there is nothing beyond the schedule.
        retried: Blocks that needed a larger jitter.
        most_retries: The most retries a block needed.
        rescued: Blocks that needed a jitter relative to their own size.
        kept: Blocks that keep their coordinates.

    Raises:
        NonFiniteError: If a block was not finite.
        NotPositiveDefiniteError: If a block stayed indefinite.
    """
    global _already_warned, _already_warned_of_rescue
    if non_finite:
        raise NonFiniteError(
            f"Expected finite second moments, but {non_finite} of {blocks} blocks hold a NaN or "
            "an infinity. The states grew too large: lower the learning rate, clip gradients, "
            "narrow 'log_scale_bounds' and 'offdiagonal_bound', or work in float64."
        )
    if indefinite:
        raise NotPositiveDefiniteError(
            f"Expected positive-definite blocks, but {indefinite} of {blocks} stayed indefinite up "
            f"to a jitter of {schedule.largest:g} after {schedule.retries} retries. Raise "
            "'spectral_floor', 'jitter' or 'jitter_retries', or work in float64."
        )
    for counts in _open_counts:
        counts.rescued += rescued
        counts.kept += kept
    if (rescued or kept) and not _already_warned_of_rescue:
        _already_warned = _already_warned_of_rescue = True
        warnings.warn(
            f"{rescued + kept} of {blocks} blocks stayed indefinite up to a jitter of "
            f"{schedule.largest:g}: {rescued} needed one relative to their own size, {kept} kept "
            "their coordinates. Said once per process; trajectories and the epochs of a run count "
            "them.",
            NumericalWarning,
            stacklevel=2,
        )
    if retried and not _already_warned:
        _already_warned = True
        warnings.warn(
            f"{retried} of {blocks} blocks needed a larger Cholesky jitter (up to retry "
            f"{most_retries}). Said once per process; trajectories count them.",
            NumericalWarning,
            stacklevel=2,
        )


@_stabilised_cholesky.register_fake
def _(
    matrix: Tensor, jitter: float, growth: float, retries: int, rescue: bool
) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(matrix, memory_format=torch.contiguous_format),
        matrix.new_empty(matrix.shape[:-2], dtype=torch.long),
    )


def _save_factor(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    factor, attempt = output
    ctx.mark_non_differentiable(attempt)
    ctx.save_for_backward(factor)


def _factor_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    r"""Transpose Eq. (38), :math:`dR = R\,\Phi(R^{-1} dC R^{-\top})`.

    :math:`\bar C = \operatorname{sym}(R^{-\top} \Phi(R^\top \bar R) R^{-1})`, where
    :math:`\Phi` keeps the strictly lower part and halves the diagonal.
    """
    (factor,) = ctx.saved_tensors
    inner = (factor.mT @ grad).tril()
    inner = inner - 0.5 * torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
    left = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
    gradient = torch.linalg.solve_triangular(factor, left, upper=False, left=False)
    return 0.5 * (gradient + gradient.mT), None, None, None, None


_stabilised_cholesky.register_autograd(_factor_gradient, setup_context=_save_factor)

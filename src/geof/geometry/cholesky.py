r"""The stabilised Cholesky factorisation SChol (paper, appendix "Numerical Operators").

.. math::
    C_t = C + \epsilon_0 \beta^t I, \qquad t^* = \min\{t \le T_{max} : C_t \in SPD\}, \qquad
    \operatorname{SChol}(C) = \operatorname{chol}(C_{t^*})
    \qquad \text{(Eqs. 51 to 53)}

The first attempt already carries :math:`\epsilon_0`; only blocks that fail are tried again. The
retry depends on values, so the factorisation is one ``torch.library`` operator: ``torch.compile``
and ``torch.export`` see a single node instead of a branch.
"""

from __future__ import annotations

import warnings
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
        matrix, schedule.initial, schedule.growth, schedule.retries
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


@torch.library.custom_op("geof::stabilised_cholesky", mutates_args=())
def _stabilised_cholesky(
    matrix: Tensor, jitter: float, growth: float, retries: int
) -> tuple[Tensor, Tensor]:
    factor, attempt = _factorise(matrix, jitter)
    failed = attempt > 0
    retried = int(failed.sum())
    if retried:
        _refuse_non_finite(matrix.tril(), failed)
        for t in range(1, retries + 1):
            again, info = _factorise(matrix[failed], jitter * growth**t)
            factor[failed] = again
            attempt[failed] = torch.where(info > 0, t + 1, t)
            failed = attempt > t
            if not failed.any():
                break
        report_attempts(
            attempt.numel(),
            JitterSchedule(jitter, growth, retries),
            indefinite=int(failed.sum()),
            retried=retried,
            most_retries=int(attempt.max()),
        )
    _refuse_non_finite(factor.diagonal(dim1=-2, dim2=-1).unsqueeze(-1), None)
    return factor, attempt


def _factorise(matrix: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """Return the factor at one jitter and 1 where it failed, else 0."""
    jittered = matrix + jitter * torch.eye(
        matrix.size(-1), dtype=matrix.dtype, device=matrix.device
    )
    factor, info = torch.linalg.cholesky_ex(jittered)
    return factor.contiguous(), (info > 0).long()


def _refuse_non_finite(blocks: Tensor, chosen: Tensor | None) -> None:
    """Raise when a block, among the chosen, is not finite: no jitter can mend that."""
    bad = ~blocks.isfinite().all(-1).all(-1)
    count = int((bad if chosen is None else bad & chosen).sum())
    report_attempts(bad.numel(), JitterSchedule(), non_finite=count)


_already_warned = False


def report_attempts(
    blocks: int,
    schedule: JitterSchedule,
    *,
    non_finite: int = 0,
    indefinite: int = 0,
    retried: int = 0,
    most_retries: int = 0,
) -> None:
    """Raise or, once per process, warn about blocks whose first attempt failed.

    Args:
        blocks: How many blocks there were.
        schedule: The jitters that were tried.
        non_finite: Blocks with a NaN or an infinity.
        indefinite: Blocks that stayed indefinite.
        retried: Blocks that needed a larger jitter.
        most_retries: The most retries a block needed.

    Raises:
        NonFiniteError: If a block was not finite.
        NotPositiveDefiniteError: If a block stayed indefinite.
    """
    global _already_warned
    if non_finite:
        raise NonFiniteError(
            f"Expected finite second moments, but {non_finite} of {blocks} blocks hold a NaN or "
            "an infinity. The states grew too large: lower the learning rate, clip gradients, "
            "narrow 'log_scale_bounds' and 'offdiagonal_bound', or work in float64."
        )
    if indefinite:
        largest = schedule.initial * schedule.growth**schedule.retries
        raise NotPositiveDefiniteError(
            f"Expected positive-definite blocks, but {indefinite} of {blocks} stayed indefinite up "
            f"to a jitter of {largest:g} after {schedule.retries} retries. Raise "
            "'spectral_floor', 'jitter' or 'jitter_retries', or work in float64."
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
def _(matrix: Tensor, jitter: float, growth: float, retries: int) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(matrix, memory_format=torch.contiguous_format),
        matrix.new_empty(matrix.shape[:-2], dtype=torch.long),
    )


def _save_factor(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    factor, attempt = output
    ctx.mark_non_differentiable(attempt)
    ctx.save_for_backward(factor)


def _factor_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    r"""Transpose Eq. (38), :math:`dR = R\,\Phi(R^{-1} dC R^{-\top})`.

    :math:`\bar C = \operatorname{sym}(R^{-\top} \Phi(R^\top \bar R) R^{-1})`, where
    :math:`\Phi` keeps the strictly lower part and halves the diagonal.
    """
    (factor,) = ctx.saved_tensors
    inner = (factor.mT @ grad).tril()
    inner = inner - 0.5 * torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
    left = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
    gradient = torch.linalg.solve_triangular(factor, left, upper=False, left=False)
    return 0.5 * (gradient + gradient.mT), None, None, None


_stabilised_cholesky.register_autograd(_factor_gradient, setup_context=_save_factor)

r"""Second-order residual feedback (paper, section 3.3): when and from what a target is formed.

The statistic :math:`C_{i,b}` of Eq. (8) and its target :math:`\hat z_{i,b}` of Eq. (10) have no
parameters; backends of :mod:`geof.kernels` compute them. This module says which statistic a step
wants and takes one apart for inspection.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from geof.geometry import JitterSchedule
from geof.kernels import Statistic, StepSpec
from geof.nn.settings import StepSettings


def updates_geometry(settings: StepSettings, step: int) -> bool:
    """Return whether the coordinates change after step ``step`` (from 0)."""
    return settings.evolution == "recurrent" or (settings.evolution == "one-shot" and step == 0)


def step_spec(settings: StepSettings, schedule: JitterSchedule, step: int) -> StepSpec:
    """Translate the settings into what the kernels need for step ``step`` (from 0).

    A step that does not update the geometry, or has no feedback, forms no statistic at all.
    """
    statistic: Statistic | None = None
    if settings.feedback != "none" and updates_geometry(settings, step):
        statistic = settings.feedback
    return StepSpec(
        temperature=settings.temperature,
        statistic=statistic,
        frame_transport=settings.frame_transport,
        spectral_floor=settings.spectral_floor,
        schedule=schedule,
    )


class MomentDecomposition(NamedTuple):
    r"""The three terms of Eq. (9), as matrices that add up to :math:`C_{i,b}`.

    Attributes:
        floor: :math:`\epsilon_s`.
        mean: ``(n, B, m, m)``, :math:`\bar\delta \bar\delta^\top`.
        covariance: ``(n, B, m, m)``, the weighted covariance of the residuals: what an estimator
            that sees only the mean cannot see.
    """

    floor: float
    mean: Tensor
    covariance: Tensor


def decompose_moment(
    moment: Tensor, mean_residual: Tensor, spectral_floor: float
) -> MomentDecomposition:
    r"""Split the full statistic into floor, mean part and covariance, Eq. (9).

    Args:
        moment: ``(n, B, m, m)``, :math:`C_{i,b}` of Eq. (8).
        mean_residual: ``(n, B, m)``, :math:`\bar\delta_{i,b} = \bar\xi_{i,b} - \phi(\xi_i)_b`.
        spectral_floor: :math:`\epsilon_s`.
    """
    mean = mean_residual.unsqueeze(-1) * mean_residual.unsqueeze(-2)
    covariance = moment - mean
    covariance.diagonal(dim1=-2, dim2=-1).sub_(spectral_floor)
    return MomentDecomposition(spectral_floor, mean, covariance)

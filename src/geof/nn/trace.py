"""The coupled state, and what happened inside: after the last step and, if asked for, each one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from geof.geometry import JitterSchedule, is_kept, is_rescued
from geof.kernels import Neighbourhoods, StepResult


class CoupledState(NamedTuple):
    r"""The pair :math:`S^l = (\xi^l, Z^l)`: features ``(n, d)`` and coordinates ``(n, B, t)``."""

    features: Tensor
    coordinates: Tensor


@dataclass(frozen=True)
class StepTrace:
    r"""One recurrent step, for explanation.

    Attributes:
        weight: ``(E,)``, :math:`\omega_{ij}`, in the order of :attr:`GeoFState.edges`.
        aggregate: ``(n, d)``, :math:`\bar\xi_i`.
        mean_residual: ``(n, B, m)``, :math:`\bar\delta_{i,b}`.
        moment: ``(n, B, m, m)``, :math:`C_{i,b}`; ``None`` when the step formed no statistic.
        target: ``(n, B, t)``, :math:`\hat z_{i,b}`; ``None`` likewise.
        correction: ``(n, B, t)``, :math:`\Delta z_{i,b}`; ``None`` when there was none.
        features: ``(n, d)``, :math:`\xi_i^{l+1}`.
        coordinates: ``(n, B, t)``, :math:`z_{i,b}^{l+1}`.
        geometry_change: :math:`D_Z`, the mean over nodes and blocks of
            :math:`\|z_{i,b}^{l+1} - z_{i,b}^l\|_2` (paper, section 4.4).
        retried_blocks: Blocks whose Cholesky factor needed more than the first jitter.
        rescued_blocks: Those of them that needed one relative to their own size.
        kept_blocks: Those of them that no jitter served: their target is :math:`z_{i,b}^l`.
    """

    weight: Tensor
    aggregate: Tensor
    mean_residual: Tensor
    moment: Tensor | None
    target: Tensor | None
    correction: Tensor | None
    features: Tensor
    coordinates: Tensor
    geometry_change: Tensor
    retried_blocks: Tensor
    rescued_blocks: Tensor
    kept_blocks: Tensor


@dataclass(frozen=True)
class GeoFState:
    r"""The coupled state after the last step.

    Attributes:
        features: ``(n, d)``, :math:`\xi_i^L`.
        coordinates: ``(n, B, t)``, :math:`z_{i,b}^L`.
        environment: ``(n, d)``, :math:`h_i^L = L_i^L \xi_i^L`.
        output: What the model returns for a readout: ``environment``, or the environment states
            of all steps side by side.
        edges: The closed neighbourhoods, in the order of the traces' weights.
        initial_features: ``(n, d)``, :math:`\xi_i^0`.
        initial_coordinates: ``(n, B, t)``, :math:`z_{i,b}^0`.
        trajectory: One :class:`StepTrace` per step, or ``None`` unless asked for.
    """

    features: Tensor
    coordinates: Tensor
    environment: Tensor
    output: Tensor
    edges: Neighbourhoods
    initial_features: Tensor
    initial_coordinates: Tensor
    trajectory: tuple[StepTrace, ...] | None = None


def geometry_change(coords: Tensor, previous: Tensor) -> Tensor:
    r"""Return :math:`D_Z = \frac{1}{nB} \sum_{i,b} \|z_{i,b} - z_{i,b}'\|_2` (section 4.4)."""
    change: Tensor = torch.linalg.vector_norm(coords - previous, dim=-1)
    return change.sum() / max(change.numel(), 1)


def step_trace(
    state: CoupledState,
    following: CoupledState,
    message: Tensor,
    result: StepResult,
    schedule: JitterSchedule,
) -> StepTrace:
    r"""Return the trace of a step.

    Args:
        state: Before it.
        following: After it.
        message: ``(n, B, m)``, :math:`\phi(\xi_i)`.
        result: What the backend returned, statistics included.
        schedule: The step's jitters.
    """
    statistics = result.statistics
    assert statistics is not None, "a backend returns the statistics of a step it traces"
    attempt = statistics.attempt
    if attempt is None:
        attempt = torch.zeros(0, dtype=torch.long, device=message.device)
    return StepTrace(
        weight=statistics.weight,
        aggregate=result.aggregate.flatten(1),
        mean_residual=result.aggregate - message,
        moment=statistics.moment,
        target=statistics.target,
        correction=result.correction,
        features=following.features,
        coordinates=following.coordinates,
        geometry_change=geometry_change(following.coordinates, state.coordinates),
        retried_blocks=(attempt > 0).sum(),
        rescued_blocks=is_rescued(attempt, schedule).sum(),
        kept_blocks=is_kept(attempt, schedule).sum(),
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

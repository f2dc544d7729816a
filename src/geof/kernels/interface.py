r"""What a backend computes: the transport and feedback of one step (paper, sections 3.2 and 3.3).

A backend is a function ``(xi, message, coords, edges, spec) -> StepStatistics`` with

* ``xi`` ``(n, B, m)``: the feature states :math:`\xi_i`, split into blocks;
* ``message`` ``(n, B, m)``: the transformed states :math:`\phi(\xi_i) = W_\phi \xi_i`;
* ``coords`` ``(n, B, t)``: the geometric coordinates :math:`z_{i,b}`;
* ``edges``: the closed neighbourhoods;
* ``spec``: the scalars and switches below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from geof.geometry import JitterSchedule
from geof.kernels.neighbourhood import Neighbourhoods

Statistic: TypeAlias = Literal["full", "mean", "diagonal"]
"""The residual statistic behind the target: Eq. (8) or a restriction of it (Proposition 2)."""


@dataclass(frozen=True)
class StepSpec:
    r"""Scalars and switches of one step.

    Attributes:
        temperature: :math:`\tau` of Eq. (4).
        statistic: Which second moment to form; ``None`` when no target is wanted.
        frame_transport: Carry messages between frames (Eq. 5) or take them as they are (w/o GT).
        spectral_floor: :math:`\epsilon_s` of Eq. (8).
        schedule: Jitters of the stabilised Cholesky factor.
    """

    temperature: float
    statistic: Statistic | None
    frame_transport: bool
    spectral_floor: float
    schedule: JitterSchedule


class StepStatistics(NamedTuple):
    r"""What one step's messages amount to.

    Attributes:
        weight: ``(E,)``, :math:`\omega_{ij}` in the order of the neighbourhoods, Eq. (4).
        aggregate: ``(n, B, m)``, :math:`\bar\xi_i`, Eq. (6).
        moment: ``(n, B, m, m)``, :math:`C_{i,b}`, Eq. (8), or ``None``.
        target: ``(n, B, t)``, :math:`\hat z_{i,b}`, Eq. (10), or ``None``.
        attempt: ``(n, B)``, the jitter index :math:`t^*` of Eq. (52), or ``None``.
    """

    weight: Tensor
    aggregate: Tensor
    moment: Tensor | None
    target: Tensor | None
    attempt: Tensor | None


Backend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Neighbourhoods, StepSpec], StepStatistics]

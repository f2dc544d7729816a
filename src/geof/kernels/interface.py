r"""What a backend computes: the transport and feedback of one step (paper, sections 3.2 and 3.3).

A backend's step is a function ``(xi, message, coords, edges, spec) -> StepStatistics`` with

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


class Controller(NamedTuple):
    r"""The correction network's maps, Eq. (11), with the signatures already taken in.

    Attributes:
        shared: ``(n, H)``, the hidden layer's bias and its share of the signature :math:`u_i`.
        hidden: ``(H, 2m)``, the hidden layer's map of :math:`[\xi_b \| \bar\xi_b]`.
        output: ``((2r + 1) m, H)``.
        bias: ``((2r + 1) m,)``.
    """

    shared: Tensor
    hidden: Tensor
    output: Tensor
    bias: Tensor


class Evolution(NamedTuple):
    r"""What turns a step's statistics into the next coordinates, Eq. (12).

    Attributes:
        target_mix: :math:`\lambda`.
        correction_strength: :math:`\gamma`.
        offdiagonal_bound: :math:`a_{max}`.
        log_scale_bounds: :math:`(\ell_{min}, \ell_{max})`.
        controller: The correction network, or ``None`` for no correction.
    """

    target_mix: float
    correction_strength: float
    offdiagonal_bound: float
    log_scale_bounds: tuple[float, float]
    controller: Controller | None


Step: TypeAlias = Callable[[Tensor, Tensor, Tensor, Neighbourhoods, StepSpec], StepStatistics]
Evolve: TypeAlias = Callable[
    [Tensor, Tensor, Tensor, Neighbourhoods, StepSpec, Evolution], tuple[Tensor, Tensor]
]


@dataclass(frozen=True)
class Backend:
    r"""One implementation of the step.

    Attributes:
        name: Its key in :data:`geof.kernels.BACKENDS`.
        step: The step with everything it computes on the way.
        environment: ``(xi, coords)`` to :math:`h = L \xi`, ``(n, B, m)``.
        evolve: The step up to the next coordinates in one go: aggregate ``(n, B, m)`` and
            coordinates ``(n, B, t)``; ``None`` where the model's own arithmetic does it.
    """

    name: str
    step: Step
    environment: Callable[[Tensor, Tensor], Tensor]
    evolve: Evolve | None = None

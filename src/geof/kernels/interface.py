r"""What a backend computes: one whole step (paper, sections 3.2 to 3.4).

Shapes, here and in every backend:

* ``xi`` ``(n, B, m)``: the feature states :math:`\xi_i`, split into blocks;
* ``message`` ``(n, B, m)``: the transformed states :math:`\phi(\xi_i) = W_\phi \xi_i`;
* ``coords`` ``(n, B, t)``: the geometric coordinates :math:`z_{i,b}`;
* ``edges``: the closed neighbourhoods;
* ``spec``: the scalars and switches of Eqs. (4) to (10);
* ``evolution``: those of Eqs. (11) and (12), or ``None`` when the geometry stays as it is.

The update of the geometry (section 3.4), for backends that do not fuse it, is

.. math::
    q_{i,b} &= [(\xi_i)_b \| (\bar\xi_i)_b \| u_i], \quad
    [U, V, d] = W_{\Gamma,2} \operatorname{SiLU}(W_{\Gamma,1} q_{i,b} + b_{\Gamma,1})
    + b_{\Gamma,2}, \quad
    \Delta z_{i,b} = [\operatorname{Svec}_{sl}(U V^\top), d]
    \qquad \text{(Eq. 11)} \\
    z_{i,b}' &= \Pi_{\mathcal Z}\big((1 - \lambda) z_{i,b} + \lambda \hat z_{i,b}
               + \gamma \Delta z_{i,b}\big)
    \qquad \text{(Eq. 12)}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.errors import GeofError
from geof.geometry import AdmissibleBox, JitterSchedule, strictly_lower_vector
from geof.kernels.neighbourhood import Neighbourhoods, TargetEdges


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

    def rank(self, block_size: int) -> int:
        """Return :math:`r`, the columns of U and V."""
        return (len(self.bias) // block_size - 1) // 2


class Evolution(NamedTuple):
    r"""What turns a step's statistics into the next coordinates, Eq. (12).

    Attributes:
        target_mix: :math:`\lambda`.
        correction_strength: :math:`\gamma`.
        box: :math:`\mathcal Z`.
        controller: The correction network, or ``None`` for no correction.
    """

    target_mix: float
    correction_strength: float
    box: AdmissibleBox
    controller: Controller | None


class Transport(NamedTuple):
    r"""The dense maps of a step, Eqs. (5) and (7).

    Attributes:
        message: ``(d, d)``, :math:`W_\phi`.
        gate: ``(d, 2d)``, :math:`W_r`.
        bias: ``(d,)``, :math:`b_r`.
    """

    message: Tensor
    gate: Tensor
    bias: Tensor


def controller_output(xi: Tensor, aggregate: Tensor, controller: Controller) -> Tensor:
    r"""Return :math:`[U, V, \Delta \ell]`, ``(n, B, (2r + 1) m)``, Eq. (11)."""
    hidden = controller_hidden(xi, aggregate, controller)
    return F.linear(hidden, controller.output, controller.bias)


def controller_hidden(xi: Tensor, aggregate: Tensor, controller: Controller) -> Tensor:
    """Return the controller's hidden layer, ``(n, B, H)``."""
    hidden = F.linear(torch.cat([xi, aggregate], dim=-1), controller.hidden)
    return F.silu(hidden + controller.shared.unsqueeze(1))


def predict_correction(xi: Tensor, aggregate: Tensor, controller: Controller) -> Tensor:
    r"""Return :math:`\Delta z`, ``(n, B, t)``, Eq. (11).

    Args:
        xi: ``(n, B, m)``, the feature states.
        aggregate: ``(n, B, m)``, :math:`\bar\xi`.
        controller: The correction network.
    """
    m = xi.size(-1)
    r = controller.rank(m)
    output = controller_output(xi, aggregate, controller)
    left, right, log_scale = output.split([m * r, m * r, m], dim=-1)
    entries = strictly_lower_vector(left.unflatten(-1, (m, r)) @ right.unflatten(-1, (m, r)).mT)
    return torch.cat([entries, log_scale], dim=-1)


def evolve_coordinates(
    coords: Tensor,
    target: Tensor | None,
    correction: Tensor | None,
    *,
    target_mix: float,
    correction_strength: float,
    box: AdmissibleBox,
) -> Tensor:
    r"""Return the next coordinates, Eq. (12), the projected proximal step of Proposition 3 (i).

    Args:
        coords: ``(n, B, t)``, :math:`z`.
        target: ``(n, B, t)``, :math:`\hat z`, or ``None`` for :math:`\hat z = z` (w/o SF).
        correction: ``(n, B, t)``, :math:`\Delta z`, or ``None`` for zero.
        target_mix: :math:`\lambda`.
        correction_strength: :math:`\gamma`.
        box: :math:`\mathcal Z`.
    """
    mixed = coords if target is None else torch.lerp(coords, target, target_mix)
    if correction is not None:
        mixed = torch.add(mixed, correction, alpha=correction_strength)
    return box.project(mixed)


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
    r"""What one step's messages amount to, Eqs. (4) to (10).

    Attributes:
        weight: ``(E,)``, :math:`\omega_{ij}` in the order of the neighbourhoods, Eq. (4).
        aggregate: ``(n, B, m)``, :math:`\bar\xi_i`, Eq. (6).
        moment: ``(n, B, m, m)``, :math:`C_{i,b}`, Eq. (8), or ``None``.
        target: ``(n, B, t)``, :math:`\hat z_{i,b}`, Eq. (10), or ``None``.
        attempt: ``(n, B)``, the jitter index :math:`t^*` of Eq. (52), above :math:`T_{max}` where
            the schedule did not serve (:func:`geof.geometry.feedback_target`), or ``None``.
    """

    weight: Tensor
    aggregate: Tensor
    moment: Tensor | None
    target: Tensor | None
    attempt: Tensor | None


class StepResult(NamedTuple):
    r"""What one step makes of a state.

    Attributes:
        aggregate: ``(n, B, m)``, :math:`\bar\xi_i`, Eq. (6).
        coordinates: ``(n, B, t)``, :math:`z_{i,b}'`, Eq. (12); those given where there was no
            evolution.
        statistics: What happened on the way, or ``None`` unless asked for.
        correction: ``(n, B, t)``, :math:`\Delta z_{i,b}`, Eq. (11), likewise; ``None`` as well
            where there was none.
    """

    aggregate: Tensor
    coordinates: Tensor
    statistics: StepStatistics | None = None
    correction: Tensor | None = None


class Request(NamedTuple):
    """What a step asks of a backend; ``None`` where it is not known yet.

    Attributes:
        block_size: :math:`m`.
        device: Where the tensors are.
        dtype: What they hold.
        statistic: Which second moment is wanted, if any.
    """

    block_size: int
    device: torch.device | None = None
    dtype: torch.dtype | None = None
    statistic: Statistic | None = None


class Support(NamedTuple):
    """Whether a backend can serve a request.

    Attributes:
        reason: Why not, to follow "the ... backend is"; empty if it can.
        error: What asking for it all the same should raise; ``None`` if it can.
    """

    reason: str = ""
    error: type[GeofError] | None = None


def following_coordinates(
    xi: Tensor, coords: Tensor, statistics: StepStatistics, evolution: Evolution
) -> Tensor:
    """Return the next coordinates, Eq. (12), with the correction of Eq. (11)."""
    correction = None
    if evolution.controller is not None:
        correction = predict_correction(xi, statistics.aggregate, evolution.controller)
    return evolve_coordinates(
        coords,
        statistics.target,
        correction,
        target_mix=evolution.target_mix,
        correction_strength=evolution.correction_strength,
        box=evolution.box,
    )


Statistics: TypeAlias = Callable[[Tensor, Tensor, Tensor, Neighbourhoods, StepSpec], StepStatistics]
Update: TypeAlias = Callable[[Tensor, Tensor, StepStatistics, Evolution], Tensor]
FusedStep: TypeAlias = Callable[
    [Tensor, Tensor, Tensor, Neighbourhoods, StepSpec, Evolution], tuple[Tensor, Tensor]
]
WholeStep: TypeAlias = Callable[
    [Tensor, Tensor, Neighbourhoods, StepSpec, Evolution, Transport], tuple[Tensor, Tensor]
]


Images: TypeAlias = Callable[[Tensor, Tensor, Tensor, StepSpec], tuple[Tensor, Tensor]]
TargetStep: TypeAlias = Callable[
    [tuple[Tensor, Tensor], TargetEdges, Tensor, Tensor, Tensor, StepSpec, Evolution | None],
    tuple[Tensor, Tensor],
]


def gate(pre: Tensor, xi: Tensor, aggregate: Tensor) -> Tensor:
    r"""Return :math:`(1 - r) \odot \xi + r \odot \bar\xi`, :math:`r = \sigma(pre)`, Eq. (7)."""
    return torch.lerp(xi, aggregate, torch.sigmoid(pre))


@dataclass(frozen=True)
class Backend:
    r"""One implementation of the step.

    Attributes:
        name: Its key in :data:`geof.kernels.BACKENDS`.
        statistics: ``(xi, message, coords, edges, spec)`` to all of Eqs. (4) to (10).
        environment: ``(xi, coords)`` to :math:`h = L \xi`, ``(n, B, m)``.
        supports: Whether it can serve a request.
        fused: ``(xi, message, coords, edges, spec, evolution)`` to aggregate and next coordinates
            in one operation that shows nothing of what happened on the way; ``None`` where
            :meth:`step` is all there is.
        gate: ``(pre, xi, aggregate)``, all ``(n, d)``, to the next state, Eq. (7).
        whole: ``(features, coords, edges, spec, evolution, transport)`` to the next features
            ``(n, d)`` and coordinates, the dense maps included; ``None`` where they are not fused.
        images: ``(xi, message, coords, spec)`` to :math:`L \xi` and :math:`L \phi(\xi)`, all that
            neighbours see of a node, nodes first, in a layout of the backend's own; ``None`` where
            a step is not made of them.
        targets: ``(images, edges, xi, message, coords, spec, evolution)`` to the aggregate and the
            next coordinates of some consecutive nodes, from the images of all nodes and the edges,
            states and messages of these alone. Records no gradients.
        update: ``(xi, coords, statistics, evolution)`` to the next coordinates.
    """

    name: str
    statistics: Statistics
    environment: Callable[[Tensor, Tensor], Tensor]
    supports: Callable[[Request], Support]
    fused: FusedStep | None = None
    gate: Callable[[Tensor, Tensor, Tensor], Tensor] = gate
    whole: WholeStep | None = None
    images: Images | None = None
    targets: TargetStep | None = None
    update: Update = following_coordinates

    def step(
        self,
        xi: Tensor,
        message: Tensor,
        coords: Tensor,
        edges: Neighbourhoods,
        spec: StepSpec,
        evolution: Evolution | None = None,
        *,
        trace: bool = False,
    ) -> StepResult:
        """Return aggregate and next coordinates and, for ``trace``, what led to them.

        Arguments are those of the module's list.
        """
        if self.fused is not None and evolution is not None and not trace:
            return StepResult(*self.fused(xi, message, coords, edges, spec, evolution))
        statistics = self.statistics(xi, message, coords, edges, spec)
        correction = None
        if evolution is not None:
            if trace and evolution.controller is not None:
                correction = predict_correction(xi, statistics.aggregate, evolution.controller)
            coords = self.update(xi, coords, statistics, evolution)
        if not trace:
            return StepResult(statistics.aggregate, coords)
        return StepResult(statistics.aggregate, coords, statistics, correction)

r"""GNRF: a flow of node states along learned edge weights that play the part of Ricci curvature.

.. math::
    H(0) &= \operatorname{BN}(\operatorname{ReLU}(W_{in} \operatorname{Drop}(X) + b_{in})), \qquad
    \frac{dH}{dt} = F(H), \qquad Z = \operatorname{Drop}(\operatorname{ReLU}(H(T))) \\
    \hat h_i &= H_i / (\|H_i\| + \epsilon) \\
    s_i &= \sum_{j \in N(i)} \operatorname{ReLU}(\operatorname{MLP}_1[\hat h_i \| \hat h_j]) \\
    k_{ij} &= \operatorname{MLP}_2[s_i \| s_j] \qquad \text{(EdgeNet, one weight per channel)} \\
    v_i &= \frac{1}{|N(i)|} \sum_{j \in N(i)} k_{ij} \odot
    \big(\hat h_j - \langle \hat h_i, \hat h_j \rangle \hat h_i\big) \\
    F_i &= v_i / (\|v_i\| + \epsilon)

Both networks have two layers. The ODE is solved by one Runge-Kutta step (3/8 rule) of length
:math:`T`, four evaluations of :math:`F`:

.. math::
    k_1 = F(H), \quad k_2 = F(H + \tfrac{\Delta}{3} k_1), \quad
    k_3 = F(H + \Delta (k_2 - \tfrac13 k_1)), \quad k_4 = F(H + \Delta (k_1 - k_2 + k_3)), \\
    H \leftarrow H + \tfrac{\Delta}{8} (k_1 + 3 k_2 + 3 k_3 + k_4).

Reference: Chen et al., "Graph Neural Ricci Flow: Evolving Feature from a Curvature Perspective",
ICLR 2025.

**Evidence, part by part** (the authors' code has no licence: it was read and compared line by line,
and no numbers of it are stored).

- From source: the equations of :math:`H(0)`, :math:`F` and :math:`Z`, the ablations, the
  hyperparameters, node classification.
- From source and from its solver: the one Runge-Kutta step. The released settings ask torchdiffeq
  0.2.4 for an implicit Adams method on a grid of two points without a step size, whose first steps
  are the step above. That version of torchdiffeq (MIT licence) was run with the released end times
  and tolerances: four evaluations each, the tolerances do nothing, and its numbers are stored in
  ``test_gnrf.py``.
- Reconstructed: links and graphs, for which the shared readouts read :math:`Z`.

**Where it differs from the public code.** (1) Dropout inside the edge networks is drawn per node,
role and evaluation instead of per edge: a hidden channel is dropped for all edges into a node. The
first layer of each network is then two products at the nodes and a sum on the edges, and no random
numbers are drawn per edge, which would cost more than all the rest on a CPU. (2) The
:math:`\epsilon` of :math:`F` is :math:`10^{-6}` instead of :math:`10^{-8}`: where all neighbours
agree, :math:`v_i` is rounding noise, which must not be scaled to length one. (3) Nodes without
neighbours keep their state; there they change a shape. (4) Edges given twice count once. (5) The
gradient of :math:`F` with respect to :math:`v_i`, of the order :math:`1 / \|v_i\|`, is held at 100
for :math:`\|v_i\| < 0.01`; values are not touched. Without that, graphs whose neighbours have equal
features overflow within a few epochs.

**What to know.** Curvature is a name: nothing ties :math:`k_{ij}` to a curvature of the graph, and
the sign of the flow is the network's to learn. :math:`F` has rows of length one but is tangent to
the sphere only for one weight per edge. Without EdgeNet and with damping the one learned weight
does nothing, since :math:`F` is normalised after it.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from geof.methods.interface import GraphInputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import NodeNorm
from geof.options import (
    Count,
    Probability,
    checked,
)
from geof_paper.baselines.edge_pieces import EdgePiece, OpenNeighbourhoods
from geof_paper.baselines.sparse import input_features
from geof_paper.presets import PRESETS

Curvature: TypeAlias = Literal["channel", "scalar"]

START_TIME = 1e-5
"""Where the published integration starts."""

STATE_EPS = 1e-8
r"""The :math:`\epsilon` of :math:`\hat h`; a larger one leaves a rest between equal states."""

VELOCITY_EPS = 1e-6
r"""The :math:`\epsilon` of :math:`F`: about the rounding noise of a float32 sum."""

STEEP = 1e-2
r"""Length of :math:`v_i` below which the gradient of :math:`F` grows no further."""

LEAST_WEIGHT = 1e-8
"""Of the one weight that stands in for EdgeNet."""


class GNRF(nn.Module):
    r"""One Runge-Kutta step of a normalised flow with learned edge weights.

    Args:
        in_channels: Width of the features.
        hidden_channels: Width of the states and of the edge networks.
        end_time: :math:`T`, how long the flow runs.
        substeps: Runge-Kutta steps on the way; the published model takes one.
        dropout: Before every linear map but the first: in the edge networks and of the states.
        feature_dropout: Of the input features (default: as ``dropout``).
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        batch_norm: Whether :math:`H(0)` is normalised over the nodes.
        curvature: One weight per edge and ``"channel"``, or a ``"scalar"`` per edge.
        damping: ``False`` makes it :math:`F_i = \frac{1}{|N(i)|} \sum_j k_{ij} (H_j - H_i)`
            throughout, without any normalisation, an ablation.
        edge_net: ``False`` puts one learned number in :math:`(0, 1]` in the place of all
            :math:`k_{ij}`, an ablation.
        shared_masks: Whether all evaluations of a pass drop the same entries, an ablation.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: Count = 64,
        end_time: Annotated[float, Field(gt=START_TIME)] = 1.5,
        substeps: Count = 1,
        dropout: Probability = 0.3,
        feature_dropout: Probability | None = None,
        scale_features: bool = False,
        batch_norm: bool = True,
        curvature: Curvature = "channel",
        damping: bool = True,
        edge_net: bool = True,
        shared_masks: bool = False,
    ) -> None:
        super().__init__()
        feature_dropout = dropout if feature_dropout is None else feature_dropout
        self.out_channels = hidden_channels
        self.substeps, self.step = substeps, (end_time - START_TIME) / substeps
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.scale_features, self.shared_masks = scale_features, shared_masks
        self.lift = SparseLinear(in_channels, hidden_channels)
        self.norm = NodeNorm(hidden_channels) if batch_norm else nn.Identity()
        self.field = RicciField(
            hidden_channels,
            dropout=dropout,
            curvature=curvature,
            damping=damping,
            edge_net=edge_net,
        )

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the rectified states at the end of the flow."""
        x = input_features(self, inputs)
        states = self.norm(F.relu(self.lift(x)))
        edges = OpenNeighbourhoods.of(inputs, self.out_channels)
        masks = self.field.draw_masks(states) if self.shared_masks else None
        for _ in range(self.substeps):
            states = self._runge_kutta(states, edges, masks)
        return F.dropout(F.relu(states), self.dropout, self.training)

    def _runge_kutta(
        self, states: Tensor, edges: OpenNeighbourhoods, masks: FieldMasks | None
    ) -> Tensor:
        """Return the states one step later, by the 3/8 rule."""
        step = self.step
        k1 = self.field(states, edges, masks)
        k2 = self.field(states + step / 3 * k1, edges, masks)
        k3 = self.field(states + step * (k2 - k1 / 3), edges, masks)
        k4 = self.field(states + step * (k1 - k2 + k3), edges, masks)
        moved: Tensor = states + step / 8 * (k1 + 3 * (k2 + k3) + k4)
        return moved


class RicciField(nn.Module):
    """The right-hand side :math:`F` of the flow; arguments as in :class:`GNRF`."""

    def __init__(
        self,
        channels: int,
        *,
        dropout: float,
        curvature: Curvature = "channel",
        damping: bool = True,
        edge_net: bool = True,
    ) -> None:
        super().__init__()
        self.damping, self.edge_net = damping, edge_net
        if edge_net:
            self.summary = EdgeNetwork(channels, channels, dropout)
            weights = channels if curvature == "channel" else 1
            self.curvature = EdgeNetwork(channels, weights, dropout)
        else:
            self.weight = nn.Parameter(torch.tensor(0.5))

    def draw_masks(self, states: Tensor) -> FieldMasks | None:
        """Return what to drop in one evaluation, or in several."""
        if not self.edge_net:
            return None
        return FieldMasks(self.summary.draw_masks(states), self.curvature.draw_masks(states))

    def forward(
        self, states: Tensor, edges: OpenNeighbourhoods, masks: FieldMasks | None = None
    ) -> Tensor:
        """Return the velocity ``(n, d)`` of every state; zero for a node without neighbours."""
        h = states / (_length(states) + STATE_EPS) if self.damping else states
        width = h.size(1)
        if self.edge_net:
            masks = masks or self.draw_masks(states)
            assert masks is not None
            summary = edges.sum(_summary_of, width, *self.summary.terms(h, masks.summary))
            terms = self.curvature.terms(summary, masks.curvature)
            sums = edges.sum(_damped if self.damping else _plain, width, h, *terms)
        else:
            sums = edges.sum(_damped_alike if self.damping else _plain_alike, width, h)
            sums = sums * self.weight.clamp(LEAST_WEIGHT, 1.0)
        velocity = sums / edges.degree.clamp_min(1.0)
        return _normalised(velocity) if self.damping else velocity


def _normalised(velocity: Tensor) -> Tensor:
    """Return rows of length one, with a gradient that is bounded where there is no direction.

    Where neighbours agree, as those with the same discrete features do, the Jacobian is as large as
    1 / epsilon, and four evaluations in a row are more than float32 holds.
    """
    gentle = (_length(velocity.detach()) / STEEP).clamp_max(1.0)
    velocity = velocity.detach() + gentle * (velocity - velocity.detach())
    return velocity / (_length(velocity) + VELOCITY_EPS)


def _length(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)  # gradient 0 at 0
    return length


class EdgeMasks(NamedTuple):
    """What an edge network drops, of its inputs at both ends and of its hidden layer."""

    target: Tensor | None
    source: Tensor | None
    hidden: Tensor | None


class FieldMasks(NamedTuple):
    """What one evaluation drops."""

    summary: EdgeMasks
    curvature: EdgeMasks


class EdgeTerms(NamedTuple):
    """What is left to do on an edge: ``weight relu(target_i + source_j) + bias``."""

    target: Tensor
    source: Tensor
    weight: Tensor
    bias: Tensor


class EdgeNetwork(nn.Module):
    r"""Two layers on :math:`[u_i \| u_j]` with dropout before each, the first one at the nodes.

    Args:
        channels: Width of :math:`u` and of the hidden layer.
        out_channels: Width of the result.
        dropout: Before each layer.
    """

    def __init__(self, channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(2 * channels, channels)
        self.second = nn.Linear(channels, out_channels)
        self.dropout = dropout

    def draw_masks(self, values: Tensor) -> EdgeMasks:
        """Return new masks for ``values`` ``(n, d)``; none when there is nothing to drop."""
        if not self.training or self.dropout == 0:
            return EdgeMasks(None, None, None)
        return EdgeMasks(*(torch.rand_like(values) < self.dropout for _ in range(3)))

    def terms(self, values: Tensor, masks: EdgeMasks) -> EdgeTerms:
        """Return the first layer's part at either end of an edge, and the second layer."""
        first, second = self.first.weight, self.second.weight
        if masks.hidden is not None:  # what is not dropped counts for more
            first, second = first / (1 - self.dropout), second / (1 - self.dropout)
        own, other = first.chunk(2, dim=1)
        target = F.linear(_without(values, masks.target), own, self.first.bias)
        source = F.linear(_without(values, masks.source), other)
        # ReLU of minus infinity is zero on all edges into the node, at no cost on the edges.
        target = _without(target, masks.hidden, value=-torch.inf)
        return EdgeTerms(target, source, second, self.second.bias)


def _without(values: Tensor, dropped: Tensor | None, value: float = 0.0) -> Tensor:
    return values if dropped is None else values.masked_fill(dropped, value)


def _on_edges(piece: EdgePiece, terms: EdgeTerms) -> Tensor:
    """Return the value of an edge network on every edge."""
    hidden = F.relu(piece.at_targets(terms.target) + piece.at_sources(terms.source))
    return F.linear(hidden, terms.weight, terms.bias)


def _summary_of(piece: EdgePiece, *terms: Tensor) -> Tensor:
    r"""Sum :math:`\operatorname{ReLU}(\operatorname{MLP}_1)`, the equation of :math:`s_i`."""
    return piece.sum(F.relu(_on_edges(piece, EdgeTerms(*terms))))


def _damped(piece: EdgePiece, h: Tensor, *terms: Tensor) -> Tensor:
    """Sum the weighted tangential parts of the neighbours, the equation of :math:`v_i`."""
    return piece.sum(_on_edges(piece, EdgeTerms(*terms)) * _tangential(piece, h))


def _plain(piece: EdgePiece, h: Tensor, *terms: Tensor) -> Tensor:
    difference = piece.at_sources(h) - piece.at_targets(h)
    return piece.sum(_on_edges(piece, EdgeTerms(*terms)) * difference)


def _damped_alike(piece: EdgePiece, h: Tensor) -> Tensor:
    return piece.sum(_tangential(piece, h))


def _plain_alike(piece: EdgePiece, h: Tensor) -> Tensor:
    return piece.sum(piece.at_sources(h) - piece.at_targets(h))


def _tangential(piece: EdgePiece, h: Tensor) -> Tensor:
    r"""Return :math:`\hat h_j - \langle \hat h_i, \hat h_j \rangle \hat h_i` of every edge."""
    own, other = piece.at_targets(h), piece.at_sources(h)
    return other - (own * other).sum(-1, keepdim=True) * own


register(Method("gnrf", GNRF, presets=PRESETS / "gnrf", revision=2))

r"""ARGNN: an adaptive Riemannian network with a diagonal metric at every node.

Start :math:`h = \operatorname{Drop}(\operatorname{ReLU}(\operatorname{LN}(W x)))`. A layer, over
closed neighbourhoods:

.. math::
    a_i &= \operatorname{mean}_{j \in \mathcal N(i) \cup i} h_j \\
    g_i &= \operatorname{clamp}(\operatorname{softplus}_{\beta=2}(W_2 \operatorname{ReLU}(
           \operatorname{LN}(W_1 [h_i \| a_i]))),\ 10^{-3},\ 10) \in \mathbb R^d \\
    u_{ij} &= (h_j - h_i) / \|h_j - h_i\|, \qquad
    \tau_{ij} = \sum_k u_{ijk}^2 \tanh(-\log g_{ik}) \\
    \alpha_{ij} &= \sigma\big(\langle h_i, h_j\rangle_{g_i} /
           \sqrt{\langle h_i, h_i\rangle_{g_i} \langle h_j, h_j\rangle_{g_i}}\big) \\
    h_i' &= \operatorname{LN}\big(\textstyle\sum_j \tau_{ij} \alpha_{ij} W_m h_j + W_s h_i
           + b\big)

followed by ReLU and dropout except after the last layer. The metric is estimated anew in every
layer. Loss: the task's, and for every layer

.. math::
    \lambda_m \operatorname{mean}(g^2) + \lambda_s \operatorname{mean}_{ij} (g_i - g_j)^2
    + \lambda_R \operatorname{mean}_i \big(\tfrac12 \operatorname{mean}_j (g_i - g_j)\big)^2

with means over the graph's own edges: the self-loops that a layer adds do not count, and a node
without neighbours has no Ricci term.

Heads: for nodes the last layer maps to the classes, its LayerNorm included; for links there is no
last layer, :math:`z = \operatorname{normalise}(\operatorname{Drop}(\operatorname{ReLU}(\cdot)))`
and the score is :math:`\langle z_u, z_v \rangle`.

Reference: Wang et al., "Adaptive Riemannian Graph Neural Networks", AAAI 2026 (arXiv 2508.02600).

Evidence, part by part:

- From source (the authors' public code, MIT): encoder, metric network, layer and its start
  (Glorot for :math:`W_m` and :math:`W_s`, zero for :math:`b`), penalties and the edges they run
  over, node head, link states and decoder, published weights. Values, penalties and first gradients
  of that code on a small graph are stored numbers in ``test_argnn.py``.
- From the paper, by a public summary of it: the weights of ``penalties="paper"``.
- Reconstructed: the graph head (all layers at full width, mean pool, MLP); the authors have none.

Where this knowingly differs from the public code:

- The epoch is chosen on validation; the public loop reports the highest test score.
- Link logits have a learnable scale and bias: cosines of non-negative vectors lie in [0, 1], where
  the logistic loss hardly moves. The ranking, hence ROC-AUC, is that of the cosine.
- Negatives are sampled anew by the common harness, not once from a dense matrix.
- Edge scalars are dot products of node vectors (:mod:`geof_paper.baselines.edge_products`), because
  :math:`\tanh(-\log g) = (1 - g^2) / (1 + g^2) =: t` and
  :math:`\sum_k t_{ik} (h_{jk} - h_{ik})^2 = t_i \cdot h_j^2 - 2 (t_i h_i) \cdot h_j +
  t_i \cdot h_i^2`; the public code keeps about eight vectors per edge. The expansion cancels
  where neighbours are close, so such edges are computed from their differences.
- Neighbours whose states are equal up to rounding have :math:`\tau = 0`, as equal ones have; the
  direction of a rounding error is noise, and its derivative is of the order of its inverse.
- The square root's argument is kept above :math:`10^{-12}` instead of adding :math:`10^{-8}` to the
  root: states may be all zero after ReLU, where the root has no derivative.
- Edges given twice count once. Without any edge there is no smoothness term; there it is not a
  number.
- With two classes the last LayerNorm is left out (see :class:`ARGNNNodeReadout`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from geof.kernels import Neighbourhoods
from geof.methods.interface import Encoding, GraphInputs, Outputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.options import (
    Count,
    NonNegative,
    Positive,
    Probability,
    Share,
    checked,
    require_positive,
)
from geof_paper.baselines.edge_products import edge_dots, weighted_sum
from geof_paper.baselines.sparse import input_features
from geof_paper.presets import PRESETS

Penalties: TypeAlias = Literal["code", "paper"]

METRIC_BOUNDS = (1e-3, 10.0)
"""The published bounds of the metric's entries."""

_CLOSE = 1e-2
"""Squared distance, in parts of both squared lengths, below which differences are formed: there
the expansion would lose more than two of float32's seven digits."""

_PIECE = 2**16
"""Close edges treated at a time."""


@dataclass(frozen=True)
class PenaltyWeights:
    r"""Weights of a layer's penalties.

    Attributes:
        metric: :math:`\lambda_m`.
        smoothness: :math:`\lambda_s`.
        ricci: :math:`\lambda_R`.
    """

    metric: float = 0.01
    smoothness: float = 0.001
    ricci: float = 0.0

    @classmethod
    def of_paper(
        cls, homophily: float, num_layers: int, channels: int, nodes: int
    ) -> PenaltyWeights:
        r"""Return the paper's weights, guided by its theory.

        With the homophily :math:`H`, :math:`\lambda_R = ((1 - H) + 0.1) H / L` and
        :math:`\lambda_s = 0.1 (1 + H) d / n`; there is no penalty on the metric's size.
        """
        ricci = (1 - homophily + 0.1) * homophily / num_layers
        smoothness = 0.1 * (1 + homophily) * channels / max(nodes, 1)
        return cls(0.0, smoothness, ricci)


def metric_penalty(g: Tensor, edges: Neighbourhoods, weights: PenaltyWeights) -> Tensor:
    """Return a layer's penalty, a scalar.

    Means over neighbours and edges leave the added self-loops out. Differences do not change when
    all metrics are shifted, so they are taken about their mean: the expanded square then cancels
    less.
    """
    total = weights.metric * g.square().mean()
    others = len(edges.source) - edges.num_nodes  # closed neighbourhoods have one loop per node
    if not (weights.smoothness or weights.ricci) or others == 0:
        return total
    centred = g - g.mean(0).detach()
    around = neighbourhood_mean(edges, centred)
    if weights.ricci:
        # The mean of g_i - g_j over k neighbours is (k + 1) / k times that over the closed ones.
        apart = _without_loop(edges, g.dtype) * (centred - around)
        total = total + weights.ricci * (0.5 * apart).square().mean()
    if weights.smoothness:
        # sum over edges of |g_i|^2 + |g_j|^2 - 2 <g_i, g_j>; neighbours' sum = mean x size
        square = centred.square().sum(-1)
        cross = (centred * around).sum(-1)
        own = (square - 2 * cross).index_select(0, edges.target)
        sums = (own + square.index_select(0, edges.source)).sum()
        total = total + weights.smoothness * sums / (others * g.size(1))
    return total


def _without_loop(edges: Neighbourhoods, dtype: torch.dtype) -> Tensor:
    """Return (k + 1) / k for nodes with k neighbours, zero for those without, ``(n, 1)``."""

    def factors() -> Tensor:
        size = torch.bincount(edges.target, minlength=edges.num_nodes).to(dtype)
        return torch.where(size > 1, size / (size - 1).clamp_min(1), 0.0).unsqueeze(-1)

    return edges.cached((_without_loop, dtype), factors)


def neighbourhood_mean(edges: Neighbourhoods, h: Tensor) -> Tensor:
    """Return the mean over each closed neighbourhood, ``(n, d)``."""

    def weights() -> Tensor:
        size = torch.bincount(edges.target, minlength=edges.num_nodes).to(h.dtype)
        return size.reciprocal()[edges.target]

    return weighted_sum(edges, edges.cached((neighbourhood_mean, h.dtype), weights), h)


def edge_scalars(h: Tensor, g: Tensor, edges: Neighbourhoods) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\tau_{ij}` and :math:`\alpha_{ij}` of every edge, ``(E,)`` each.

    Args:
        h: ``(n, d)`` states.
        g: ``(n, d)`` diagonal metrics.
        edges: The closed neighbourhoods.
    """
    i, j = edges.target, edges.source
    is_loop = i == j
    squares = h.square()
    stretch = (1 - g.square()) / (1 + g.square())  # tanh(-log g)

    length = squares.sum(-1)
    scale = length.index_select(0, i) + length.index_select(0, j)
    distance = scale - 2 * edge_dots(edges, h, h)  # |h_j - h_i|^2
    bent = (
        edge_dots(edges, stretch, squares)
        - 2 * edge_dots(edges, stretch * h, h)
        + (stretch * squares).sum(-1).index_select(0, i)
    )
    close = ((distance < _CLOSE * scale) & ~is_loop).nonzero().flatten()
    if len(close):
        near, near_bent = _from_differences(h, stretch, i[close], j[close])
        distance = distance.index_copy(0, close, near)
        bent = bent.index_copy(0, close, near_bent)
    resolution = (64 * torch.finfo(h.dtype).eps) ** 2
    same = is_loop | (distance <= resolution * scale + 1e-16)
    tau = bent.masked_fill(same, 0.0) / distance.masked_fill(same, 1.0)

    inner = edge_dots(edges, g * h, h)
    own, other = (g * squares).sum(-1).index_select(0, i), edge_dots(edges, g, squares)
    alpha = torch.sigmoid(inner * (own * other + 1e-12).rsqrt())
    return tau, alpha


def _from_differences(h: Tensor, stretch: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared distance and stretched squared distance of some edges, in pieces."""
    if len(i) <= _PIECE:
        return _differences(h, stretch, i, j)
    pieces = [
        # Each piece again in the backward pass: no vector per edge is kept.
        checkpoint(_differences, h, stretch, *ends, use_reentrant=False, preserve_rng_state=False)
        for ends in zip(i.split(_PIECE), j.split(_PIECE), strict=True)
    ]
    distances, bents = zip(*pieces, strict=True)
    return torch.cat(distances), torch.cat(bents)


def _differences(h: Tensor, stretch: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    square = (h.index_select(0, j) - h.index_select(0, i)).square()
    return square.sum(-1), (stretch.index_select(0, i) * square).sum(-1)


class MetricConv(nn.Module):
    """One layer of ARGNN.

    Args:
        in_channels: Width of the states.
        out_channels: Width of the result.
        metric_channels: Width inside the metric network.
    """

    def __init__(self, in_channels: int, out_channels: int, metric_channels: int) -> None:
        super().__init__()
        self.metric_hidden = nn.Linear(2 * in_channels, metric_channels)
        self.metric_norm = nn.LayerNorm(metric_channels)
        self.metric_output = nn.Linear(metric_channels, in_channels)
        self.message = nn.Linear(in_channels, out_channels, bias=False)
        self.own = nn.Linear(in_channels, out_channels)
        self.norm: nn.Module = nn.LayerNorm(out_channels)
        nn.init.xavier_uniform_(self.message.weight)  # as published, for these two maps only
        nn.init.xavier_uniform_(self.own.weight)
        nn.init.zeros_(self.own.bias)

    def metric(self, h: Tensor, edges: Neighbourhoods) -> Tensor:
        """Return the diagonal metrics, ``(n, d)``."""
        around = torch.cat([h, neighbourhood_mean(edges, h)], dim=-1)
        hidden = F.relu(self.metric_norm(self.metric_hidden(around)))
        return F.softplus(self.metric_output(hidden), beta=2).clamp(*METRIC_BOUNDS)

    def forward(
        self, h: Tensor, edges: Neighbourhoods, metric_states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the new states and the metrics.

        Args:
            h: ``(n, d)``.
            edges: The closed neighbourhoods.
            metric_states: What the metric network sees instead of ``h``.
        """
        g = self.metric(h if metric_states is None else metric_states, edges)
        tau, alpha = edge_scalars(h, g, edges)
        received = weighted_sum(edges, tau * alpha, self.message(h))
        return self.norm(received + self.own(h)), g


class ARGNN(nn.Module):
    r"""ARGNN behind the common contract.

    Args:
        in_channels: Width of the features.
        task: Decides which layers stand here: all for graphs; all but the last for nodes (whose
            last layer is the readout :class:`ARGNNNodeReadout`) and links (which have none).
        hidden_channels: Width :math:`d`.
        metric_channels: Width inside the metric networks.
        num_layers: Depth :math:`L` as the authors count it, the last layer included.
        dropout: After the start and after every layer; of nodes, the readout's layer has none, of
            graphs, the last has none.
        metric_penalty: :math:`\lambda_m` of the published runs.
        smoothness_penalty: :math:`\lambda_s` of the published runs.
        ricci_penalty: :math:`\lambda_R` of the published runs: the term is off there.
        penalties: ``"code"`` takes the three weights above, ``"paper"`` those of
            :meth:`PenaltyWeights.of_paper`.
        homophily: :math:`H` for ``penalties="paper"``: the share of edges between training nodes
            that join equal labels. It must come from training labels only, so it is given, not
            computed here.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        task: TaskKind,
        *,
        hidden_channels: Count = 128,
        metric_channels: Count = 128,
        num_layers: int = 3,
        dropout: Probability = 0.2,
        metric_penalty: NonNegative = 0.01,
        smoothness_penalty: NonNegative = 0.001,
        ricci_penalty: NonNegative = 0.0,
        penalties: Penalties = "code",
        homophily: Share = 0.5,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        require_positive("num_layers", num_layers, least=2 if task == "link" else 1)
        self.task, self.num_layers, self.dropout = task, num_layers, dropout
        self.weights = PenaltyWeights(metric_penalty, smoothness_penalty, ricci_penalty)
        self.penalties, self.homophily = penalties, homophily
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.lift = SparseLinear(in_channels, hidden_channels)
        self.norm = nn.LayerNorm(hidden_channels)
        self.convs = nn.ModuleList(
            MetricConv(hidden_channels, hidden_channels, metric_channels)
            for _ in range(num_layers if task == "graph" else num_layers - 1)
        )
        self.out_channels = hidden_channels

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the states, the layers' penalties and, as context, the penalties' weights."""
        x = input_features(self, inputs)
        h = self._drop(F.relu(self.norm(self.lift(x))))
        weights = self._weights(h.size(0))
        penalty = h.new_zeros(())
        for number, conv in enumerate(self.convs, start=1):
            h, g = conv(h, inputs.edges)
            penalty = penalty + metric_penalty(g, inputs.edges, weights)
            h = self._activated(h, last=number == len(self.convs))
        return Encoding(h, penalty, weights)

    def _activated(self, h: Tensor, *, last: bool) -> Tensor:
        if last and self.task == "graph":
            return h
        return self._drop(F.relu(h))  # of links too: dropped before they are normalised

    def _drop(self, h: Tensor) -> Tensor:
        return F.dropout(h, self.dropout, self.training)

    def _weights(self, nodes: int) -> PenaltyWeights:
        if self.penalties == "code":
            return self.weights
        return PenaltyWeights.of_paper(self.homophily, self.num_layers, self.out_channels, nodes)


class ARGNNNodeReadout(nn.Module):
    """The published last layer: to one channel per class, its LayerNorm included.

    With two classes it is left out: of two entries a LayerNorm leaves the sign of their difference
    alone, whose gradient is zero.

    Args:
        in_channels: Width of the states.
        num_classes: Number of classes.
        metric_channels: Width inside the metric network.
    """

    @checked
    def __init__(self, in_channels: int, num_classes: int, *, metric_channels: Count = 128) -> None:
        super().__init__()
        self.conv = MetricConv(in_channels, num_classes, metric_channels)
        if num_classes <= 2:
            self.conv.norm = nn.Identity()

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
        """Return the logits and the layer's penalty."""
        logits, g = self.conv(encoding.states, inputs.edges)
        weights = encoding.context or PenaltyWeights()
        return Outputs(logits, penalty=metric_penalty(g, inputs.edges, weights))


class CosineReadout(nn.Module):
    r"""One logit per pair, :math:`s \langle z_u, z_v\rangle + b` with :math:`z = h / \|h\|`.

    Args:
        in_channels: Width of the states.
        scale: :math:`s` at the start.
        bias: :math:`b` at the start.
        learnable: Whether both are trained. ``False`` with scale 1 and bias 0 is the published
            decoder.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        scale: Positive = 10.0,
        bias: float = -5.0,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)), requires_grad=learnable)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learnable)

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor) -> Tensor:
        """Return the logits of ``pairs``."""
        h = encoding.states
        z = h * (h.square().sum(-1, keepdim=True) + 1e-12).rsqrt()  # smooth at zero states
        cosine = (z.index_select(0, pairs[0]) * z.index_select(0, pairs[1])).sum(-1)
        return self.scale * cosine + self.bias


register(
    Method(
        "argnn",
        ARGNN,
        readouts={"node": ARGNNNodeReadout, "link": CosineReadout},
        presets=PRESETS / "argnn",
        revision=2,
    )
)

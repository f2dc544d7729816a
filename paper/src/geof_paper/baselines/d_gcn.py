r"""D-GCN: features of the graph and of points in a product of curved spaces (MotifRGC).

Every node has a point :math:`x_i^{(m)}` in each of :math:`M` stereographic spaces of learnable
curvature :math:`\kappa_m`, of either sign. Fixed random directions :math:`w_k` on the unit sphere
and phases :math:`b_k` turn points into features (:math:`k = 1..q`, :math:`q = d`):

.. math::
    s_k(x) &= \log\left(\frac{1 + \kappa \|x\|^2}{\|x - w_k\|^2 + \epsilon} + \epsilon\right), \\
    z_k(x) &= e^{(d - 1) s_k / 2} \cos(s_k + b_k), \\
    h^0 &= \operatorname{GCN}_1(X), \qquad h^m = \operatorname{GCN}_2(z(x^{(m)})), \\
    \text{states} &= \operatorname{LayerNorm}([h^0 \| h^1 \| \dots \| h^M])

where :math:`\operatorname{GCN}_2` is the same for all spaces. Two losses without labels: contrast
between :math:`h^0` and each :math:`h^m` (:func:`contrast_loss`) and recognition of motifs from
:math:`[z^{(1)} \| \dots \| z^{(M)}]` (:mod:`geof_paper.baselines.motifs`), weight 1 each.

Nodes are classified in two stages. First the states are trained without labels: on both losses,
then (after ``links_after`` passes) on links, whose logits are :math:`2 - \|h_i - h_j\|^2`, graded
as if their probabilities were within [0.01, 0.99]. Then, with the states frozen, a fresh GCN of two
layers reads :math:`[X \| \text{states}]` (:class:`GCNClassifier`).

Reference: Sun et al., "Motif-aware Riemannian Graph Neural Network with Generative-Contrastive
Learning", AAAI 2024; public code ``RiemannGraph/MotifRGC`` (MIT licence), revisions of August 2023
to April 2024. Evidence:

- *from source, and compared with numbers that the public code gives*: the random features, both
  networks, the layer normalisation, both losses, the loss of links and its clip;
- *from source*: curvatures and points at the start, the Fermi-Dirac decoder whose probabilities are
  clipped in the loss only, the two stages for nodes and the classifier, all default values;
- *from paper*: that the product has an upper hypersphere; the public code has none;
- *reconstructed*: that hypersphere (``hypersphere``), points from features (``points="features"``,
  for graph tasks and for nodes not seen in training), end-to-end training for nodes (preset
  ``end-to-end``: no loss without labels, the readout that all methods share).

**Which form gave the printed numbers is open.** The public program had the pre-training on by
default until December 2023; the change that added its scripts switched it off, so with the last
revision states for nodes are trained on links alone (``links_after=0``). The method is named after
the losses, so the preset for nodes has them.

Where it knowingly differs from the public code:

- Points are :math:`x = \exp_0(v)` of free vectors :math:`v`, so Adam does what Riemannian Adam does
  there, and smaller steps for points and curvatures come from a factor (``point_step``), one for
  both losses and links.
- A curvature may pass through zero while learning. Nothing is divided by it, and at zero the
  features are their limit from both sides; the public code has a different formula at exactly zero,
  :math:`s_k = \langle x, w_k \rangle`, a jump that no gradient sees.
- :math:`s_k`, which has a pole at :math:`x = w_k`, is held within :math:`\pm 8`, above
  :math:`d = 8` within :math:`\pm 56 / (d - 1)`.
- Random features are buffers: saved with the network, not drawn anew when it is loaded.
- Links of the first stage: all edges of the graph are seen and predicted; there, 85 % of them.
  Pairs without an edge, wedges and corrupted wedges are drawn in every pass; there, from one list.
- Frozen states are those of evaluation mode; there, the classifier is trained and tested on states
  with dropout.
- For links and graphs the losses are a stage of ``pretraining.epochs``, off in the presets, or a
  penalty (``auxiliary_weight``). The contrast there compares all pairs of nodes, an
  :math:`n \times n` matrix; here, sampled anchors.
- The dropout of entries there silently takes the value of the dropout of edges. Here they are two.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal, Protocol, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from geof.errors import ConfigError, DataError
from geof.methods.interface import Encoding, GraphInputs, Outputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.options import (
    Count,
    NonNegative,
    Positive,
    Probability,
    checked,
)
from geof_paper.baselines.fermi_dirac import FermiDiracReadout
from geof_paper.baselines.motifs import Wedges, motif_loss, pair_loss
from geof_paper.baselines.sparse import csr_matrix, input_features, normalised_adjacency
from geof_paper.presets import PRESETS

Points: TypeAlias = Literal["auto", "free", "features"]

EPSILON = 1e-5
"""The published guard of the random features."""
LARGEST_LOG_RATIO, LARGEST_EXPONENT = 8.0, 28.0
"""Bounds of :math:`|s_k|` and :math:`(d - 1) |s_k| / 2`, which are one for :math:`d = 8`; without
them the features are :math:`10^{17}` at :math:`x = w_k`, and overflow in more dimensions."""
MARGIN = 4e-3
"""How far, relative to the radius of the ball, points keep from its boundary."""
LARGEST_ANGLE = 1.5
"""Of a point on a sphere from the origin; at :math:`\\pi / 2` it is infinitely far in the chart."""
FILLED = 0.9
"""Share of the radius that points fill at the start, or at most if they come from features."""
CLIP = 0.01
"""Probabilities of links are graded as if within this of neither end."""
LARGEST_RADIUS = 10.0
"""In place of :math:`1 / \\sqrt{|\\kappa|}` for an almost flat space."""


class DGCN(nn.Module):
    r"""GCN of the features beside GCNs of random features of points in curved spaces.

    Args:
        in_channels: Width of the features.
        task: What for; decides what ``points="auto"`` is.
        num_nodes: Of the one graph, for free points.
        hidden_channels: Width inside both GCNs.
        embedding_channels: Width of each :math:`h^m`; the states are as many times as wide as there
            are spaces and one.
        num_layers: Of both GCNs.
        num_factors: :math:`M`, how many spaces.
        dimensions: :math:`d`, of each space; also the number :math:`q` of random features.
        curvature: :math:`\kappa` at the start is this times :math:`1 + N(0, 1)`, each space its
            own.
        hypersphere: Whether an upper hypersphere is one more factor.
        points: ``"free"``: a point per node is learned, so the network knows this one graph only;
            ``"features"``: :math:`x = 0.9 R \tanh(\|U f\|) U f / \|U f\|` of the features
            :math:`f`, :math:`R = 1 / \sqrt{|\kappa|}`; ``"auto"``: free for node and link tasks,
            features for graph tasks.
        point_step: Step of free points and of curvatures relative to all other parameters':
            the parameter is the value divided by this factor, and the steps of Adam do not depend
            on the scale of a gradient. The published rates are 0.001 and 0.01. (Weight decay,
            which is not published for them, would pull points to the origin and spaces flat.)
        dropout: Of entries inside both GCNs.
        edge_dropout: Of edges, drawn for every GCN of a training pass; degrees are counted after.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
        auxiliary_weight: Of the losses without labels as a penalty in training.
        temperature: Of the contrast.
        anchors: Most nodes that are contrasted in a pass.
        wedges: Most wedges, and most edges of the link loss, that are drawn in a pass; never more
            than there are edges.
        links_after: Passes of the pretext on contrast and motifs, after which it is the prediction
            of links; ``None`` for never.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        task: TaskKind,
        num_nodes: int | None = None,
        hidden_channels: Count = 32,
        embedding_channels: Count = 16,
        num_layers: Count = 2,
        num_factors: Count = 1,
        dimensions: Count = 8,
        curvature: float = -1.0,
        hypersphere: bool = False,
        points: Points = "auto",
        point_step: Positive = 0.1,
        dropout: Probability = 0.0,
        edge_dropout: Probability = 0.0,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        auxiliary_weight: NonNegative = 0.0,
        temperature: Positive = 0.2,
        anchors: Annotated[int, Field(ge=2)] = 4096,
        wedges: Count = 50_000,
        links_after: Annotated[int, Field(ge=0)] | None = None,
    ) -> None:
        super().__init__()
        self.edge_dropout = edge_dropout
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.auxiliary_weight, self.temperature = auxiliary_weight, temperature
        self.anchors, self.wedges, self.links_after = anchors, wedges, links_after
        self.register_buffer("pretext_passes", torch.zeros((), dtype=torch.long))
        self.spaces = ProductSpace(
            in_channels,
            num_nodes if _free(points, task, num_nodes) else None,
            num_factors=num_factors,
            dimensions=dimensions,
            curvature=curvature,
            hypersphere=hypersphere,
            point_step=point_step,
        )
        inside = [hidden_channels] * (num_layers - 1)
        self.feature_gcn = GCN([in_channels, *inside, embedding_channels], dropout)
        self.point_gcn = GCN([dimensions, *inside, embedding_channels], dropout)
        self.out_channels = (self.spaces.num_factors + 1) * embedding_channels
        self.norm = nn.LayerNorm(self.out_channels)

    pretext_passes: Tensor

    def forward(self, inputs: GraphInputs) -> Tensor | Encoding:
        """Return the states, in training with the penalty if it has a weight."""
        from_features, kernel, from_points = self._embed(inputs)
        states = self._states(from_features, from_points)
        if not self.training or self.auxiliary_weight == 0:
            return states
        loss = self._self_supervised(inputs, from_features, kernel, from_points)
        return Encoding(states, penalty=self.auxiliary_weight * loss)

    def pretext_loss(self, inputs: GraphInputs) -> Tensor:
        """Return the sum of contrast and motif loss, of sampled anchors and wedges, or links'."""
        from_features, kernel, from_points = self._embed(inputs)
        predicts_links = self.links_after is not None and self.pretext_passes >= self.links_after
        if self.training:
            self.pretext_passes += 1
        if not predicts_links:
            return self._self_supervised(inputs, from_features, kernel, from_points)
        states = self._states(from_features, from_points)
        return pair_loss(states, Wedges.of(inputs), most=self.wedges, largest=_largest_logit(CLIP))

    def _states(self, from_features: Tensor, from_points: list[Tensor]) -> Tensor:
        states: Tensor = self.norm(torch.cat([from_features, *from_points], dim=-1))
        return states

    def _embed(self, inputs: GraphInputs) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return :math:`h^0`, all :math:`z^{(m)}` and all :math:`h^m`."""
        x = input_features(self, inputs)
        from_features = self.feature_gcn(x, message_adjacency(self, inputs))
        kernel = self.spaces(x)
        from_points = [self.point_gcn(z, message_adjacency(self, inputs)) for z in kernel]
        return from_features, kernel, from_points

    def _self_supervised(
        self,
        inputs: GraphInputs,
        from_features: Tensor,
        kernel: list[Tensor],
        from_points: list[Tensor],
    ) -> Tensor:
        nodes = len(from_features)
        chosen = torch.randperm(nodes)[: self.anchors] if nodes > self.anchors else None
        anchor, *others = [
            h if chosen is None else h.index_select(0, chosen.to(h.device))
            for h in (from_features, *from_points)
        ]
        contrast = torch.stack(
            [contrast_loss(anchor, other, temperature=self.temperature) for other in others]
        ).mean()
        wedges = Wedges.of(inputs)
        return contrast + motif_loss(torch.cat(kernel, dim=-1), wedges, most=self.wedges)


def _free(points: Points, task: TaskKind, num_nodes: int | None) -> bool:
    """Return whether every node has a point of its own."""
    if points == "free" and (task == "graph" or num_nodes is None):
        raise ConfigError(
            "Expected points='features' for sets of graphs (got 'free'). Free points belong to the "
            "nodes of one graph."
        )
    return points == "free" or (points == "auto" and task != "graph" and num_nodes is not None)


class ProductSpace(nn.Module):
    r"""Points in stereographic spaces, and in an upper hypersphere, as random features.

    Args:
        in_channels: Width of the features.
        num_nodes: How many free points; ``None`` for points from features.
        num_factors: Stereographic spaces.
        dimensions: Of each, and number of random features.
        curvature: Scale of the curvatures at the start.
        hypersphere: Whether there is one, as last factor.
        point_step: What curvatures and free points are divided by to give the parameters.
    """

    def __init__(
        self,
        in_channels: int,
        num_nodes: int | None,
        *,
        num_factors: int,
        dimensions: int,
        curvature: float,
        hypersphere: bool,
        point_step: float,
    ) -> None:
        super().__init__()
        self.hypersphere, self.point_step, self.num_nodes = hypersphere, point_step, num_nodes
        self.num_factors = num_factors + hypersphere
        kappa = curvature * (1 + torch.randn(num_factors))
        self.scaled_curvatures = nn.Parameter(kappa / point_step)
        if num_nodes is None:
            self.lift = SparseLinear(in_channels, self.num_factors * dimensions, bias=False)
        else:
            vectors = _first_vectors(kappa, num_nodes, dimensions)
            if hypersphere:
                vectors = torch.cat([vectors, torch.randn(1, num_nodes, dimensions)])
            self.scaled_points = nn.Parameter(vectors / point_step)
        directions = F.normalize(torch.randn(num_factors, dimensions, dimensions), dim=-1)
        self.register_buffer("directions", directions)
        self.register_buffer("phases", 2 * math.pi * torch.rand(self.num_factors, dimensions))
        if hypersphere:
            self.register_buffer("frequencies", torch.randn(dimensions, dimensions))

    directions: Tensor
    phases: Tensor
    frequencies: Tensor

    @property
    def curvatures(self) -> Tensor:
        r""":math:`\kappa`, ``(M,)``."""
        return self.point_step * self.scaled_curvatures

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the random features of every factor, each ``(n, q)``."""
        vectors, kappa = self._vectors(x), self.curvatures
        factors = len(kappa)
        points = self._points(vectors[:factors], kappa)
        features = kernel_features(points, kappa, self.directions, self.phases[:factors])
        if not self.hypersphere:
            return list(features)
        sphere = upper_hypersphere(vectors[-1])
        scale = (2 / sphere.size(-1)) ** 0.5
        last = scale * torch.cos(sphere @ self.frequencies.t() + self.phases[-1])
        return [*features, last]

    def _vectors(self, x: Tensor) -> Tensor:
        """Return ``(factors, n, d)``: tangent vectors, and whatever the hypersphere is made of."""
        if self.num_nodes is None:
            lifted: Tensor = self.lift(x)
            return lifted.view(x.size(0), self.num_factors, -1).transpose(0, 1)
        if x.size(0) != self.num_nodes:
            raise DataError(
                f"Expected the graph of {self.num_nodes} nodes that the free points were made for "
                f"(got {x.size(0)} nodes). Free points do not transfer to another graph or to "
                "sampled neighbourhoods; use points='features'."
            )
        return self.point_step * self.scaled_points

    def _points(self, vectors: Tensor, kappa: Tensor) -> Tensor:
        if self.num_nodes is not None:
            return project(exp_at_origin(vectors, kappa), kappa)
        ratio = tangent_ratio(-vectors.square().sum(-1, keepdim=True))
        return FILLED * _radius(kappa)[:, None, None] * ratio * vectors


def _first_vectors(kappa: Tensor, nodes: int, dimensions: int) -> Tensor:
    """Return the logarithms of points in random directions, one random norm per space."""
    direction = F.normalize(torch.randn(len(kappa), nodes, dimensions), dim=-1)
    norm = FILLED * torch.rand_like(kappa)
    length = torch.where(kappa < 0, torch.atanh(norm), torch.atan(norm)) * _radius(kappa)
    return length[:, None, None] * direction


def _radius(kappa: Tensor) -> Tensor:
    return kappa.abs().clamp_min(LARGEST_RADIUS**-2).rsqrt()


def tangent_ratio(y: Tensor) -> Tensor:
    r"""Return :math:`\tan(\sqrt y) / \sqrt y`, for negative :math:`y` the same with tanh.

    Its series around zero is :math:`1 + y/3 + 2 y^2 / 15 + 17 y^3 / 315`, so values and gradients
    are smooth across the sign. Both sides are given harmless arguments where they are not used.
    """
    small, near = y.abs() < 1e-3, y.clamp(-1e-3, 1e-3)
    series = 1 + near * (1 / 3 + near * (2 / 15 + near * (17 / 315)))
    root = torch.where(small, 1.0, y.abs()).sqrt()
    ratio = torch.where(y > 0, torch.tan(root.clamp_max(LARGEST_ANGLE)), torch.tanh(root)) / root
    return torch.where(small, series, ratio)


def exp_at_origin(vectors: Tensor, kappa: Tensor) -> Tensor:
    r"""Return :math:`\tan_\kappa(\|v\|) v / \|v\|` of ``(M, n, d)`` vectors, smooth in κ."""
    square = vectors.square().sum(-1, keepdim=True)
    return tangent_ratio(kappa[:, None, None] * square) * vectors


def project(points: Tensor, kappa: Tensor) -> Tensor:
    r"""Return points with :math:`\kappa \|x\|^2 \ge -(1 - \text{margin})^2`, others shortened."""
    square = -kappa[:, None, None] * points.square().sum(-1, keepdim=True)
    return points * (1 - MARGIN) * square.clamp_min((1 - MARGIN) ** 2).rsqrt()


def kernel_features(points: Tensor, kappa: Tensor, directions: Tensor, phases: Tensor) -> Tensor:
    r"""Return :math:`z_k(x)`, ``(M, n, q)``, of points ``(M, n, d)``.

    ``directions`` are ``(M, q, d)`` and ``phases`` ``(M, q)``.
    """
    # The direct difference: the expanded square would cancel just where it matters, near w.
    distance = (points[:, :, None] - directions[:, None]).square().sum(-1)
    conformal = 1 + kappa[:, None, None] * points.square().sum(-1, keepdim=True)
    log_ratio = torch.log(conformal / (distance + EPSILON) + EPSILON)
    growth = (points.size(-1) - 1) / 2
    bound = min(LARGEST_LOG_RATIO, LARGEST_EXPONENT / max(growth, 1))
    log_ratio = log_ratio.clamp(-bound, bound)
    return torch.exp(growth * log_ratio) * torch.cos(log_ratio + phases[:, None])


def upper_hypersphere(vectors: Tensor) -> Tensor:
    """Return unit vectors whose last coordinate is positive."""
    raised = torch.cat([vectors[..., :-1], F.softplus(vectors[..., -1:])], dim=-1)
    unit: Tensor = F.normalize(raised, dim=-1)
    return unit


class GCN(nn.Module):
    r"""Layers :math:`\hat A x W + b`, between them ReLU and dropout.

    Args:
        widths: From the input's to the output's.
        dropout: Between layers.
    """

    def __init__(self, widths: list[int], dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.maps = nn.ModuleList(
            SparseLinear(before, after, bias=False) for before, after in pairwise(widths)
        )
        self.biases = nn.ParameterList(torch.zeros(width) for width in widths[1:])
        for weight in self.maps.parameters():
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return the output of the last layer."""
        for number, (layer, bias) in enumerate(zip(self.maps, self.biases, strict=True)):
            if number:
                x = F.dropout(F.relu(x), self.dropout, self.training)
            # Messages run at the smaller of both widths; the product is the same.
            if x.layout == torch.strided and x.size(1) < len(bias):
                x = layer(torch.sparse.mm(adjacency, x))
            else:
                x = torch.sparse.mm(adjacency, layer(x))
            x = x + bias
        return x


def thinned_adjacency(inputs: GraphInputs, dropout: float) -> Tensor:
    r"""Return :math:`\hat D^{-1/2} (A + I) \hat D^{-1/2}` of a random part of the edges, in CSR."""
    edges, dtype = inputs.edges, inputs.x.dtype
    kept = torch.rand(len(edges.source), device=edges.source.device) >= dropout
    kept |= edges.source == edges.target
    source, target = edges.source[kept], edges.target[kept]
    degree = torch.bincount(target, minlength=edges.num_nodes)
    scale = degree.to(dtype).rsqrt()
    rows = F.pad(degree.cumsum(0), (1, 0))  # the edges are sorted by target
    size = (edges.num_nodes, edges.num_nodes)
    return csr_matrix(rows, source, scale[source] * scale[target], size)


class DropsEdges(Protocol):
    """What is told how many edges to drop.

    Attributes:
        edge_dropout: Probability of dropping an edge.
        training: Whether it is in training mode.
    """

    edge_dropout: float
    training: bool


def message_adjacency(method: DropsEdges, inputs: GraphInputs) -> Tensor:
    """Return the normalised adjacency, in training of a random part of the edges."""
    if method.training and method.edge_dropout:
        return thinned_adjacency(inputs, method.edge_dropout)
    return normalised_adjacency(inputs)


def contrast_loss(first: Tensor, second: Tensor, *, temperature: float) -> Tensor:
    r"""Return how badly rows of two embeddings of the same nodes find each other.

    .. math::
        \frac{1}{2n} \sum_i \left[
        \log \sum_{j \ne i} e^{(c_{ij} - c_{ii}) / \tau}
        + \log \sum_{j \ne i} e^{(c_{ji} - c_{ii}) / \tau} \right]

    with cosines :math:`c`; the positive is not in the denominator. Zero for a node alone. As in the
    public code, :math:`10^{-5}` is added to the product of two lengths and to each sum.
    """
    if len(first) < 2:
        return first.new_zeros(())
    lengths = torch.outer(first.norm(dim=-1), second.norm(dim=-1))
    logits = first @ second.t() / (lengths + EPSILON) / temperature
    alone = torch.eye(len(first), dtype=torch.bool, device=first.device)
    others, guard = logits.masked_fill(alone, -math.inf), logits.new_tensor(EPSILON).log()
    spread = sum(torch.logaddexp(others.logsumexp(side), guard) for side in (0, 1))
    return (spread / 2 - logits.diagonal()).mean()


class ClippedFermiDirac(nn.Module):
    r"""Fermi-Dirac on Euclidean distances, its probabilities clipped where the loss grades them.

    Pairs outside the clip have no gradient. Ranks are taken of what is not clipped, as published.

    Args:
        in_channels: Width of the states.
        radius: :math:`r`.
        temperature: :math:`t`.
        clip: Probabilities are graded as if within ``[clip, 1 - clip]``; 0 for no clip.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        radius: float = 2.0,
        temperature: float = 1.0,
        clip: Annotated[float, Field(ge=0, lt=0.5)] = CLIP,
    ) -> None:
        super().__init__()
        self.decoder = FermiDiracReadout(in_channels, radius=radius, temperature=temperature)
        self.largest = _largest_logit(clip)

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor) -> Outputs:
        """Return the logits of ``pairs``, graded when clipped."""
        logits = self.decoder(encoding, inputs, pairs)
        return Outputs(logits, graded=[(1.0, logits.clamp(-self.largest, self.largest))])


def _largest_logit(clip: float) -> float:
    """Return the logit of the probability ``1 - clip``."""
    return math.log((1 - clip) / clip) if clip else math.inf


class GCNClassifier(nn.Module):
    r"""Two GCN layers on the features beside the states, :math:`[X \| h]`, as published for nodes.

    Args:
        in_channels: Width of the states.
        feature_channels: Width of the features.
        num_classes: Width of the output.
        hidden_channels: Width between the layers.
        dropout: Of entries between the layers.
        edge_dropout: Of edges, in every training pass; degrees are counted after.
        scale_features: Scale every row of the features to length :math:`\sqrt F`.
        feature_dropout: Of the features.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        feature_channels: int,
        num_classes: int,
        *,
        hidden_channels: Count = 32,
        dropout: Probability = 0.0,
        edge_dropout: Probability = 0.0,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        self.dropout, self.edge_dropout = dropout, edge_dropout
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.feature_map = SparseLinear(feature_channels, hidden_channels, bias=False)
        self.state_map = nn.Linear(in_channels, hidden_channels)
        self.last = GCN([hidden_channels, num_classes], dropout)
        bound = math.sqrt(6 / (feature_channels + in_channels + hidden_channels))  # of both as one
        for layer in (self.feature_map, self.state_map):
            nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.zeros_(self.state_map.bias)

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Tensor:
        """Return the logits of all nodes."""
        adjacency = message_adjacency(self, inputs)
        x = F.linear(encoding.states, self.state_map.weight)
        x = x + self.feature_map(input_features(self, inputs))
        x = torch.sparse.mm(adjacency, x) + self.state_map.bias
        logits: Tensor = self.last(F.dropout(F.relu(x), self.dropout, self.training), adjacency)
        return logits


register(
    Method(
        "d-gcn",
        DGCN,
        readouts={"node": GCNClassifier, "link": ClippedFermiDirac},
        presets=PRESETS / "d-gcn",
    )
)

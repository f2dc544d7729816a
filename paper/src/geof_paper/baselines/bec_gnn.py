r"""BEC-GNN: nodes of high Bakry-Emery curvature stop exchanging messages early.

With positive symmetric edge weights :math:`w_{ij}`, sums over neighbours :math:`j` of :math:`i`:

.. math::
    \Delta f(i) &= \sum_j w_{ij} (f_j - f_i), \qquad
    \Gamma(f, h)(i) = \tfrac12 \sum_j w_{ij} (f_j - f_i)(h_j - h_i), \qquad
    \Gamma(f) = \Gamma(f, f) \tag{a} \\
    \Gamma_2(f)(i) &= \tfrac12 \Delta[\Gamma(f)](i) - \Gamma(f, \Delta f)(i). \tag{b}

The curvature at :math:`i` is the largest :math:`\kappa` with
:math:`\Gamma_2(f)(i) \ge \kappa\,\Gamma(f)(i)` for all :math:`f`. It is replaced by a learned
:math:`\kappa_i = \sigma(\operatorname{MLP}(x_i)) \in (0, 1)` and by :math:`K` test functions
:math:`f_k = \sigma(\operatorname{MLP}_k(x))` with frozen random weights:

.. math::
    L_{curv} = \frac1n \Big( \sum_k \sum_i \operatorname{ReLU}\big(\kappa_i \Gamma(f_k)(i)
    - \Gamma_2(f_k)(i)\big) - K \sum_i \kappa_i \Big). \tag{c}

Layer :math:`t = 0, 1, \dots` of the backbone runs without the edges that touch the
:math:`\lfloor p\,t\,n_g / 100 \rfloor` nodes of highest curvature of each graph of :math:`n_g`
nodes: with :math:`m_i = 0` for these nodes and 1 for all others, and
:math:`A_t = \operatorname{diag}(m)\, A \operatorname{diag}(m)`,

.. math::
    \text{GCN:}\; D_t^{-1/2} (A_t + I) D_t^{-1/2} H W + b, \qquad
    \text{GIN:}\; \operatorname{MLP}\big((1 + \epsilon) H + A_t H\big). \tag{d}

For graphs the MLP of GIN is linear, ReLU, batch normalisation, twice, and :math:`\epsilon` begins
at 0.1.

Reference: Hevapathige et al., "Depth-Adaptive Graph Neural Networks via Learnable Bakry-Emery
Curvature", KDD 2025.

Evidence, part by part (the public code has no licence, so it was read and compared line by line;
no numbers of it are stored):

- From source: the operators (a) and (b), the curvature's and the test functions' networks (one
  hidden layer as wide as the backbone's), their number (1 around GCN, 3 around GIN), the depth
  rule, the networks for nodes (GCN) and graphs (GIN), and that edge weights of nodes are free and
  begin normally distributed.
- From most of its files: the last term of (c). The node code alone leaves it out; without it
  :math:`\kappa = 0` is optimal, so it is kept here.
- Reconstructed: links; weights from node features, with a hidden width of their own (published from
  bonds for molecules; for other graphs from the entry 1 of the adjacency matrix, so one number for
  all edges); the division by :math:`n`; what happens among equal curvatures.

What the mechanism does and does not do, by its own equations:

- Which edges are dropped is a hard choice: **no gradient of the task reaches the curvature**. It
  and the edge weights, which no layer uses, are trained by (c) alone.
- Test functions trained jointly would become constant and (c) empty; so they stay random.
- The slope of (c) in :math:`\kappa_i` is at most :math:`\sum_k \Gamma(f_k)(i) - K`, negative unless
  test functions differ much between neighbours. The :math:`\kappa_i` then all rise towards 1, and
  it is their order on the way, not the bound, that decides where messages stop.
- In a sampled neighbourhood only the seeds have neighbours of neighbours; (c) of the other nodes
  sees the edges that were sampled.

Differences from the public code: no :math:`n \times n` matrices and no broadcast of
:math:`\kappa\,\Gamma` to one; the sign of :math:`\Gamma_2` is that of (b) for sets of graphs too;
one weight per undirected edge; highest curvature is sought within each graph of a batch, counting
its own nodes and not a padding, and edges are removed, not scaled; batch normalisation is per
channel, not per place in a padded graph; no ReLU on logits; no dropout inside GIN's MLP (published
0.2), and none at evaluation; a normalisation of GCN's layers, off unless asked for; pooled graphs
have no raw features beside the layers' states; no scoring by the best test epoch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from geof.errors import ConfigError, DataError
from geof.methods.interface import Encoding, GraphInputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import NodeNorm, norm_layer
from geof.nn.settings import Norm, StepOutputs
from geof.options import Count, NonNegative, Probability, checked
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import adjacency, input_features, scaled_features
from geof_paper.presets import PRESETS

EdgeWeights: TypeAlias = Literal["features", "free"]
Backbone: TypeAlias = Literal["auto", "gcn", "gin"]

PUBLISHED_FUNCTIONS = {"gcn": 1, "gin": 3}
"""How many test functions the public code has around each backbone."""


class BECGNN(nn.Module):
    r"""A GCN or GIN whose layers drop the edges of high-curvature nodes.

    Args:
        in_channels: Width of the features.
        task: Chooses the backbone ``"auto"`` stands for.
        num_edges: Columns of the ``edge_index`` that ``edge_weights="free"`` is built for.
        hidden_channels: Width of the backbone.
        num_layers: Depth of the backbone.
        dropout: Between layers, and after GIN's last.
        norm: Of GCN's layers before their activation, ``"none"`` as published, ``"layer"`` or
            ``"batch"``; GIN's have their own.
        stop_percent: :math:`p`, percent of a graph's nodes that stop exchanging messages with each
            further layer: published 40 for nodes with GCN, 10 for graphs.
        backbone: ``"gcn"``, ``"gin"`` or ``"auto"``: GIN for graphs, GCN otherwise.
        edge_weights: ``"features"``, :math:`w_{ij} = \sigma(v^T \operatorname{ReLU}(U x_i + U x_j
            + b) + c)`, or ``"free"``, :math:`w_{ij} = \sigma(\theta_{ij})` with a parameter per
            edge, for the one graph the network is built for (published for nodes).
        curvature_channels: Hidden width of the MLPs of curvature and test functions; ``None`` for
            that of the backbone, as published.
        weight_channels: Hidden width of the MLP of ``edge_weights="features"``.
        test_functions: :math:`K`; ``None`` as published, 1 around GCN and 3 around GIN.
        curvature_weight: Factor of :math:`L_{curv}`.
        outputs: ``"last"`` layer's states or those of ``"all"`` layers side by side (published for
            graphs).
        scale_features: Scale every row of the input features to length :math:`\sqrt F`. Test
            functions of rows of words that sum to one are otherwise all but constant.
        feature_dropout: Of the input features of the backbone.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        task: TaskKind = "node",
        num_edges: int | None = None,
        *,
        hidden_channels: Count = 128,
        num_layers: Count = 2,
        dropout: Probability = 0.6,
        norm: Norm = "none",
        stop_percent: Annotated[float, Field(ge=0, le=100)] = 40.0,
        backbone: Backbone = "auto",
        edge_weights: EdgeWeights = "features",
        curvature_channels: Count | None = None,
        weight_channels: Count = 16,
        test_functions: Count | None = None,
        curvature_weight: NonNegative = 1.0,
        outputs: StepOutputs = "last",
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        if backbone == "auto":
            backbone = "gin" if task == "graph" else "gcn"
        if backbone == "gin" and norm != "none":
            raise ConfigError(
                f"Expected 'norm' to be 'none' around GIN, which has its own (got {norm!r}). Leave "
                "it out, or take 'backbone: gcn'."
            )
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.scale_features, self.outputs = scale_features, outputs
        self.stop_percent, self.curvature_weight = stop_percent, curvature_weight
        self.out_channels = hidden_channels * (num_layers if outputs == "all" else 1)
        weights: FreeWeights | FeatureWeights
        if edge_weights == "free":
            weights = FreeWeights(num_edges)
        else:
            weights = FeatureWeights(in_channels, weight_channels)
        self.curvature = LearnedCurvature(
            in_channels,
            curvature_channels or hidden_channels,
            test_functions or PUBLISHED_FUNCTIONS[backbone],
            weights,
        )
        widths = [in_channels, *[hidden_channels] * (num_layers - 1)]
        layer = GINLayer if backbone == "gin" else GCNLayer
        self.layers = nn.ModuleList(layer(width, hidden_channels) for width in widths)
        self.norms = nn.ModuleList(norm_layer(norm, hidden_channels) for _ in widths)
        # GCN ends linearly, as where its last layer makes the logits; GIN's have their own ReLU.
        self.ends_linearly = backbone == "gcn"

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the states, and (c) as penalty."""
        found = self.curvature(scaled_features(self, inputs), inputs)
        place, size = curvature_order(found, inputs.batch)
        x = input_features(self, inputs)
        states: list[Tensor] = []
        for t, layer in enumerate(self.layers):
            x = self.norms[t](layer(x, inputs, still_open(place, size, self.stop_percent * t)))
            if not self.ends_linearly:
                x = F.dropout(x, self.dropout, self.training)
            elif t + 1 < len(self.layers):
                x = F.dropout(F.relu(x), self.dropout, self.training)
            states.append(x)
        joined = torch.cat(states, dim=-1) if self.outputs == "all" else x
        return Encoding(joined, penalty=self.curvature_weight * found.loss)


# The curvature.


@dataclass(frozen=True)
class Curvature:
    r"""What is known of the nodes' curvature.

    Attributes:
        value: ``(n,)``, :math:`\kappa_i`.
        slack: ``(n,)``, :math:`\sum_k \Gamma_2(f_k)(i) - \kappa_i \Gamma(f_k)(i)`: how much larger
            :math:`\kappa_i` could be.
        loss: (c).
    """

    value: Tensor
    slack: Tensor
    loss: Tensor


class LearnedCurvature(nn.Module):
    r"""The surrogate :math:`\kappa_i` and the loss (c) that trains it.

    Args:
        in_channels: Width of the features.
        channels: Hidden width of the MLPs of curvature and test functions.
        functions: :math:`K`.
        weights: Returns :math:`w`.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        functions: int,
        weights: FreeWeights | FeatureWeights,
    ) -> None:
        super().__init__()
        self.value = nn.Sequential(
            SparseLinear(in_channels, channels), nn.ReLU(), nn.Linear(channels, 1), nn.Sigmoid()
        )
        self.functions = RandomFunctions(in_channels, channels, functions)
        self.weights = weights

    def forward(self, x: Tensor, inputs: GraphInputs) -> Curvature:
        """Return curvature, slack and loss from features without dropout."""
        value: Tensor = self.value(x).squeeze(-1)  # (n,): (n, 1) times (n, K) would still broadcast
        f, w = self.functions(x), self.weights(x, inputs)
        gamma, gamma2 = curvature_operators(f, w, inputs.edge_index)
        excess = value.unsqueeze(-1) * gamma - gamma2
        loss = (excess.relu().sum() - f.size(1) * value.sum()) / max(len(value), 1)
        return Curvature(value, -excess.sum(-1), loss)


def curvature_operators(f: Tensor, w: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\Gamma(f)` and :math:`\Gamma_2(f)`, (a) and (b), of each column of ``(n, K)``.

    Args:
        f: The functions.
        w: ``(E,)``, a weight for each column of ``edge_index``.
        edge_index: ``(2, E)``; sums run over the sources of each target.
    """
    target, w = edge_index[1], w.unsqueeze(-1)
    rise = _rise(f, edge_index)
    terms = torch.cat([0.5 * w * rise.square(), w * rise], dim=-1)
    both = f.new_zeros(f.size(0), terms.size(1)).index_add(0, target, terms)  # Gamma(f), Delta f
    of_gamma, of_diffusion = _rise(both, edge_index).chunk(2, dim=-1)
    terms = 0.5 * w * (of_gamma - rise * of_diffusion)
    return both[:, : f.size(1)], torch.zeros_like(f).index_add(0, target, terms)


def _rise(f: Tensor, edge_index: Tensor) -> Tensor:
    """Return how much higher each edge's source is than its target."""
    return f.index_select(0, edge_index[0]) - f.index_select(0, edge_index[1])


class RandomFunctions(nn.Module):
    r"""Test functions :math:`f_k = \sigma(\operatorname{MLP}_k(x))` that are never trained.

    Args:
        in_channels: Width of the features.
        channels: Hidden width.
        count: :math:`K`.
    """

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor

    def __init__(self, in_channels: int, channels: int, count: int) -> None:
        super().__init__()
        outer, inner = in_channels**-0.5, channels**-0.5  # as linear layers begin
        self.register_buffer("first", _uniform(outer, in_channels, count * channels))
        self.register_buffer("first_bias", _uniform(outer, count * channels))
        self.register_buffer("second", _uniform(inner, count, channels))
        self.register_buffer("second_bias", _uniform(inner, count))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return the functions at every node, ``(n, K)``."""
        product = x @ self.first if x.layout == torch.strided else torch.sparse.mm(x, self.first)
        hidden = (product + self.first_bias).relu().view(x.size(0), *self.second.shape)
        return ((hidden * self.second).sum(-1) + self.second_bias).sigmoid()


def _uniform(bound: float, *shape: int) -> Tensor:
    return torch.empty(shape).uniform_(-bound, bound)


class FeatureWeights(nn.Module):
    r"""Weights :math:`w_{ij} = \sigma(v^T \operatorname{ReLU}(U x_i + U x_j + b) + c)`.

    Args:
        in_channels: Width of the features.
        channels: Hidden width.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.inner = SparseLinear(in_channels, channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.outer = nn.Linear(channels, 1)

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return a weight for every column of ``edge_index``, equal in both directions."""
        own, (source, target) = self.inner(x), inputs.edge_index
        both = own.index_select(0, source) + own.index_select(0, target) + self.bias
        weight: Tensor = self.outer(both.relu()).squeeze(-1).sigmoid()
        return weight


class FreeWeights(nn.Module):
    r"""Weights :math:`w_{ij} = \sigma(\theta_{ij}) = w_{ji}` of the edges of one graph.

    The first graph seen is the one; its fingerprint is saved with the parameters.

    Args:
        num_edges: Columns of its ``edge_index``.

    Raises:
        ConfigError: Without ``num_edges``, as for sets of graphs.
    """

    graph: Tensor

    def __init__(self, num_edges: int | None) -> None:
        super().__init__()
        if num_edges is None:
            raise ConfigError(
                "Expected edge_weights='features' where there is not one graph only (got 'free', "
                "one parameter per edge). Use 'features'."
            )
        self.num_edges = num_edges
        self.theta = nn.Parameter(torch.randn(num_edges // 2))
        self.register_buffer("graph", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return a weight for every column of ``edge_index``.

        Raises:
            DataError: For edges other than those of the first call.
        """
        number, fingerprint, symmetric = inputs.cached(
            undirected_edges, lambda: undirected_edges(inputs)
        )
        known = int(self.graph)
        same = inputs.edge_index.size(1) == self.num_edges and known in (0, fingerprint)
        if not (same and symmetric):
            raise DataError(
                "Expected the very graph that edge_weights='free' was built for, with both "
                f"directions of its {self.num_edges // 2} edges (got other ones, or "
                f"{inputs.edge_index.size(1)} columns of 'edge_index'). Use "
                "edge_weights='features' for other graphs, hidden edges and sampled neighbourhoods."
            )
        if known == 0:
            self.graph.fill_(fingerprint)
        return self.theta.sigmoid().index_select(0, number)


def undirected_edges(inputs: GraphInputs) -> tuple[Tensor, int, bool]:
    """Return each column's undirected edge, a hash of them all, and whether each is there twice."""
    nodes = inputs.x.size(0)
    low, high = inputs.edge_index.amin(0), inputs.edge_index.amax(0)
    key, number, counts = (low * nodes + high).unique(return_inverse=True, return_counts=True)
    digest = hashlib.sha256(key.cpu().numpy().tobytes() + str(nodes).encode()).digest()
    symmetric = bool((counts == 2).all()) and inputs.edges.source.size(0) == nodes + 2 * len(key)
    return number, int.from_bytes(digest[:7], "big") + 1, symmetric


# The depth rule.


def curvature_order(found: Curvature, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each node's place within its graph, highest curvature first, and the graph's size.

    Features of few kinds give many nodes the same curvature. Among them the slack decides, which
    sees the neighbourhood. Nodes that are equal in both share the mean of their places: the
    numbering of the nodes decides nothing.
    """
    # Equal rows may differ in the last bits, by their place in a matrix product.
    value, slack = ((part.detach() * 1e5).round() for part in (found.value, found.slack))
    if batch is None:
        batch = torch.zeros(len(value), dtype=torch.long, device=value.device)
    order = slack.argsort(descending=True, stable=True)
    order = order[value[order].argsort(descending=True, stable=True)]
    order = order[batch[order].argsort(stable=True)]
    key = torch.stack([batch.to(value.dtype), value, slack])[:, order]
    tie = F.pad((key[:, 1:] != key[:, :-1]).any(0).long().cumsum(0), (1, 0))[: len(order)]
    sizes, members = torch.bincount(batch), torch.bincount(tie)
    middle = members.cumsum(0) - 0.5 * (members + 1).double()
    first = sizes.cumsum(0) - sizes
    place = middle[tie] - first[batch[order]]
    return place[order.argsort()], sizes[batch]


def still_open(place: Tensor, size: Tensor, percent: float) -> Tensor:
    """Return which nodes exchange messages, all but ``percent`` of each graph, rounded down."""
    return place >= (size.double() * percent / 100 + 1e-9).floor()


# The backbones.


def open_sum(inputs: GraphInputs, h: Tensor, opened: Tensor) -> Tensor:
    """Return the sum over neighbours along edges between open nodes: ``diag(m) A diag(m) h``.

    The mask goes before and after the sum, so the matrix of all edges serves every layer.
    """
    return opened * graph_product(inputs, adjacency, opened * h)


class GCNLayer(nn.Module):
    """A graph convolution, normalised for the edges that are left, (d).

    Args:
        in_channels: Width before.
        out_channels: Width after.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = SparseLinear(in_channels, out_channels, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, h: Tensor, inputs: GraphInputs, opened: Tensor) -> Tensor:
        """Return the layer before its activation."""
        z = self.linear(h)
        mask = opened.to(z.dtype).unsqueeze(-1)
        scale = (1 + open_sum(inputs, torch.ones_like(mask), mask)).rsqrt()
        z = scale * z
        output: Tensor = scale * (open_sum(inputs, z, mask) + z) + self.bias
        return output


class GINLayer(nn.Module):
    r"""A layer of the graph isomorphism network along the edges that are left, (d).

    Args:
        in_channels: Width before.
        out_channels: Width after.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.tensor(0.1))
        self.first = SparseLinear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-1, 1) * in_channels**-0.5)
        self.rest = nn.Sequential(
            nn.ReLU(),
            NodeNorm(out_channels),
            nn.Linear(out_channels, out_channels),
            nn.ReLU(),
            NodeNorm(out_channels),
        )

    def forward(self, h: Tensor, inputs: GraphInputs, opened: Tensor) -> Tensor:
        """Return the layer, activation and normalisation included."""
        z = self.first(h)  # linear, so it may come before the sum, where features can be sparse
        mask = opened.to(z.dtype).unsqueeze(-1)
        summed = (1 + self.epsilon) * z + open_sum(inputs, z, mask)
        output: Tensor = self.rest(summed + self.bias)
        return output


register(Method("bec-gnn", BECGNN, presets=PRESETS / "bec-gnn", revision=2))

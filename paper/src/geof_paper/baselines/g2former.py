r"""G²Former: features fused with a globally filtered guide, in front of a classic network.

**Global filter bank.** With :math:`q_i = \sigma(f_1(x_i)) / \|\sigma(f_1(x_i))\|_2`,
:math:`S = Q Q^\top - I`, :math:`D = \operatorname{diag}(S 1)` and
:math:`L_S = I - D^{-1/2} S D^{-1/2}`:

.. math::
    F_{\alpha,\beta} = \tfrac{\alpha+\beta+1}{2} \tbinom{\alpha+\beta}{\alpha}
    (L_S/2)^\alpha (I - L_S/2)^\beta, \qquad N = \sum_i F_i\, f_2(x),

over the full-spectrum bank :math:`\{F_{i,T-i}\}_{i=0}^T` or the low-spectrum bank
:math:`\{F_{i,T}\}_{i=0}^T`.

**Guided fusion and network.**

.. math::
    a_i = \max \operatorname{softmax}(W_g N_i + b_g), \qquad x'_i = (1 - a_i) x_i + a_i N_i,

then layers :math:`x \leftarrow \operatorname{Drop}(\operatorname{ReLU}(\operatorname{Norm}(
\operatorname{Conv}(x) + x W_{res})))` with GCN, SAGE or GAT, and a linear head. The loss is that of
the head plus :math:`\gamma` times that of the guide :math:`W_g N + b_g`.

**In the published mode attention does nothing.** The sum over the full bank telescopes by the
binomial theorem,

.. math::
    \sum_{i=0}^T \tfrac{T+1}{2} \tbinom{T}{i} (L_S/2)^i (I - L_S/2)^{T-i} = \tfrac{T+1}{2} I,

so :math:`N = \tfrac{T+1}{2} f_2(x)` whatever :math:`Q` is, and :math:`f_1` receives no gradient.
All published commands use this mode: the published model is a feature gate with an auxiliary
loss in front of a tuned classic network. Three modes here:

- ``"full"``, the published one, by its closed form. It computes no attention and has no
  :math:`f_1`: parameters that never get a gradient would only pad the count.
- ``"low"``, the published low-spectrum bank: filters that do something.
- ``"weighted"``, our extension and not published: the full bank with a learned weight per filter
  and channel, which start at one and so at ``"full"``.

Banks are polynomials in :math:`M = D^{-1/2} S D^{-1/2}`, with :math:`L_S / 2 = (I - M)/2`; they are
evaluated as sums of :math:`M^j f_2(x)`, each product through :math:`Q (Q^\top \cdot)`. In a batch
the bank runs inside each graph.

Reference: Zhang et al., "G²Former", NeurIPS 2025; public code ``Thankstaro/G-2Former``, read and
compared line by line (it has no licence, so no numbers of it are kept). Evidence:

- *from paper and source*: bank, fusion, loss and the settings of node classification;
- *from source*: :math:`f_1` (linear, norm, ReLU, dropout, linear, dropout, norm, sigmoid) and
  :math:`f_2` (the same up to the second dropout), both and :math:`q` of the hidden width; dropout
  of the features and, with the same rate, of what the input map makes of them; with ``product`` the
  gate reads :math:`N \odot x` and the auxiliary loss :math:`N`; the GAT layer, which adds a linear
  map of the node's own input, with a bias and beside the layer's residual, and scores edges by
  linear maps of its inputs, :math:`\operatorname{LeakyReLU}(w_t^\top x_i + w_s^\top x_j)`;
- *reconstructed*: links, with :math:`a_i = \sigma(w^\top N_i)` and a guide that scores pairs from
  :math:`N` with a readout of its own; graphs, with the guide's logits averaged over nodes; the mode
  ``"weighted"``.

Known differences:

- ``input_linear`` is on by default. Published networks (but for Photo) let :math:`f_2` map
  :math:`F \to d \to F`, which needs dense features of full width: 1.2 GB per tensor on Physics.
  With the input map sparse features stay sparse and everything after is ``hidden_channels`` wide.
- Training is on the whole graph; the released loader evaluates the bank on what a batch happens to
  reach. On sampled neighbourhoods ``"low"`` and ``"weighted"`` see the sample alone.
- A graph of one node has :math:`S = 0`; its :math:`M` is zero here, not a rounding error divided
  by the bound on :math:`D`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import global_mean_pool

from geof.errors import ConfigError
from geof.methods.interface import Encoding, GraphInputs, Outputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn import GraphReadout, LinkReadout, NodeReadout
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import norm_layer
from geof.nn.settings import Norm, Pooling
from geof.options import (
    Count,
    Probability,
    checked,
    require_number,
)
from geof_paper.baselines.blocks import Blocks
from geof_paper.baselines.edge_products import neighbourhood_softmax, weighted_sum
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import input_features, mean_adjacency, normalised_adjacency
from geof_paper.presets import PRESETS

Mode: TypeAlias = Literal["full", "low", "weighted"]
GNN: TypeAlias = Literal["gcn", "sage", "gat"]

_LEAST_DEGREE = 1e-6


class G2Former(nn.Module):
    r"""Guided fusion of features with a filter bank's output, then a classic network.

    Args:
        in_channels: Width of the features.
        num_classes: Of the guide's logits; not read for links.
        task: What the guide predicts.
        hidden_channels: Width.
        num_layers: Depth of the network.
        gnn: Its layers, ``"gcn"``, ``"sage"`` or ``"gat"``.
        heads: Of ``"gat"``, side by side.
        mode: ``"full"``, ``"low"`` or ``"weighted"``, see the module.
        order: :math:`T` of the bank.
        filter_channels: Hidden width of :math:`f_1` and :math:`f_2`; ``None`` for
            ``hidden_channels``, as published.
        attention_channels: Width of :math:`q`, likewise; not read with ``"full"``.
        input_linear: Whether a linear map to ``hidden_channels`` comes first. Without it sparse
            features are made dense.
        product: Whether :math:`N \odot x` takes the place of :math:`N` in the fusion and its gate.
        dropout: After every layer, and inside and after :math:`f_1` and :math:`f_2`.
        norm: ``"none"``, ``"layer"`` or ``"batch"``.
        residual: Whether every layer adds a linear map of its input.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features, and of the input map's output.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        task: TaskKind = "node",
        hidden_channels: Count = 256,
        num_layers: Count = 2,
        gnn: GNN = "gcn",
        heads: Count = 2,
        mode: Mode = "full",
        order: Count = 3,
        filter_channels: Count | None = None,
        attention_channels: Count | None = None,
        input_linear: bool = True,
        product: bool = False,
        dropout: Probability = 0.5,
        norm: Norm = "layer",
        residual: bool = True,
        scale_features: bool = False,
        feature_dropout: Probability = 0.5,
    ) -> None:
        super().__init__()
        self.task, self.product = task, product
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.scale_features = scale_features
        self.out_channels = hidden_channels
        width = hidden_channels if input_linear else in_channels
        self.input = SparseLinear(in_channels, width) if input_linear else None
        self.bank = FilterBank(
            width,
            mode=mode,
            order=order,
            filter_channels=filter_channels or hidden_channels,
            attention_channels=attention_channels or hidden_channels,
            dropout=dropout,
            norm=norm,
        )
        self.guide = nn.Linear(width, 1 if task == "link" else num_classes)
        # Pairs are scored by a readout that expects the width of the states.
        self.pair_guide: nn.Module = nn.Identity()
        if task == "link" and width != hidden_channels:
            self.pair_guide = nn.Linear(width, hidden_channels, bias=False)
        widths = [width, *[hidden_channels] * num_layers]
        self.convs = nn.ModuleList(
            _conv(gnn, before, after, heads) for before, after in pairwise(widths)
        )
        self.residuals = nn.ModuleList(
            nn.Linear(before, after) for before, after in pairwise(widths) if residual
        )
        self.norms = nn.ModuleList(norm_layer(norm, hidden_channels) for _ in range(num_layers))

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the last layer's states, with the guide for the readout."""
        x = self._features(inputs)
        filtered = self.bank(x, inputs)
        logits = self.guide(filtered)
        x = self._fused(x, filtered, logits)
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            z = conv(x, inputs)
            if self.residuals:
                z = z + self.residuals[number](x)
            x = F.dropout(F.relu(norm(z)), self.dropout, self.training)
        return Encoding(x, context=self.pair_guide(filtered) if self.task == "link" else logits)

    def _features(self, inputs: GraphInputs) -> Tensor:
        x = input_features(self, inputs)
        if self.input is not None:
            return F.dropout(self.input(x), self.feature_dropout, self.training)
        return x if x.layout == torch.strided else x.to_dense()

    def _fused(self, x: Tensor, filtered: Tensor, logits: Tensor) -> Tensor:
        """Return the features, moved towards the bank's output where the guide is sure."""
        towards = filtered
        if self.product:
            towards = filtered * x
            logits = self.guide(towards)
        if self.task == "link":
            gate = logits.sigmoid()
        else:
            gate = logits.softmax(dim=-1).amax(dim=-1, keepdim=True)
        return x + gate * (towards - x)


class FilterBank(nn.Module):
    r""":math:`N = \sum_i F_i f_2(x)`, inside each graph.

    Args:
        channels: Width of the features.
        mode: ``"full"``, ``"low"`` or ``"weighted"``.
        order: :math:`T`.
        filter_channels: Hidden width of :math:`f_1` and :math:`f_2`.
        attention_channels: Width of :math:`q`.
        dropout: Inside and after :math:`f_1` and :math:`f_2`.
        norm: Of their hidden layers.
    """

    def __init__(
        self,
        channels: int,
        *,
        mode: Mode,
        order: int,
        filter_channels: int,
        attention_channels: int,
        dropout: float,
        norm: Norm,
    ) -> None:
        super().__init__()
        self.mode, self.order = mode, order
        self.f2 = nn.Sequential(
            nn.Linear(channels, filter_channels),
            norm_layer(norm, filter_channels),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(filter_channels, channels),
            nn.Dropout(dropout),
        )
        if mode == "full":
            return
        self.polynomials = bank_polynomials(order, mode)
        self.f1 = nn.Sequential(
            nn.Linear(channels, filter_channels),
            norm_layer(norm, filter_channels),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(filter_channels, attention_channels),
            nn.Dropout(dropout),
            norm_layer(norm, attention_channels),
            nn.Sigmoid(),
        )
        if mode == "weighted":
            self.weights = nn.Parameter(torch.ones(order + 1, channels))

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the bank's output ``(n, channels)``."""
        values: Tensor = self.f2(x)
        if self.mode == "full":
            return (self.order + 1) / 2 * values
        blocks = Blocks.of(inputs)
        directions = F.normalize(self.f1(x), dim=-1)
        coefficients = self._coefficients(values)
        pieces = [
            _filtered(q * bucket.real.unsqueeze(-1), y, bucket.real, coefficients)
            for bucket, q, y in zip(
                blocks.buckets, blocks.split(directions), blocks.split(values), strict=True
            )
        ]
        return blocks.join(pieces) if pieces else values

    def _coefficients(self, like: Tensor) -> Tensor:
        """Return the weight of each power of M, ``(powers, 1)`` or ``(powers, channels)``."""
        polynomials = like.new_tensor(self.polynomials)  # (filters, powers)
        if self.mode == "weighted":
            return polynomials.t() @ self.weights
        return polynomials.sum(dim=0).unsqueeze(-1)


def bank_polynomials(order: int, mode: Mode) -> list[list[float]]:
    r"""Return each filter's coefficients of :math:`M^0, M^1, \ldots`.

    >>> bank_polynomials(1, "full")  # (I + M) / 2 and (I - M) / 2
    [[0.5, 0.5], [0.5, -0.5]]
    """
    rows = []
    for alpha in range(order + 1):
        beta = order if mode == "low" else order - alpha
        row = np.ones(1)
        for sign in [-1.0] * alpha + [1.0] * beta:  # (I - M)/2 is L_S/2, (I + M)/2 is I - L_S/2
            row = np.convolve(row, [0.5, 0.5 * sign])
        row *= (alpha + beta + 1) / 2 * math.comb(alpha + beta, alpha)
        rows.append(row)
    longest = max(len(row) for row in rows)
    return [np.pad(row, (0, longest - len(row))).tolist() for row in rows]


def _filtered(q: Tensor, y: Tensor, real: Tensor, coefficients: Tensor) -> Tensor:
    """Return the sum of weighted powers of M times ``y`` ``(g, p, c)``; ``q`` is 0 at padding."""
    degree = (q * q.sum(dim=1, keepdim=True)).sum(dim=-1, keepdim=True) - 1
    alone = real.sum(dim=1) == 1
    heard = (real & ~alone[:, None]).unsqueeze(-1)
    scale = torch.where(heard, degree.clamp_min(_LEAST_DEGREE).rsqrt(), 0.0)
    total = coefficients[0] * y
    for coefficient in coefficients[1:]:
        y = scale * y
        y = scale * (q @ (q.transpose(1, 2) @ y) - y)
        total = total + coefficient * y
    return total


class _GCN(nn.Module):
    """Normalised sums over closed neighbourhoods, no bias."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.map = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the sums."""
        return graph_product(inputs, normalised_adjacency, self.map(x))


class _SAGE(nn.Module):
    """The mean over closed neighbourhoods and the node's own part."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.mean = nn.Linear(in_channels, out_channels, bias=False)
        self.own = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the sum of both."""
        own: Tensor = self.own(x)
        return graph_product(inputs, mean_adjacency, self.mean(x)) + own


class _GAT(nn.Module):
    """Attention over closed neighbourhoods, heads side by side, and the node's own part."""

    def __init__(self, in_channels: int, out_channels: int, heads: int) -> None:
        super().__init__()
        if out_channels % heads:
            raise ConfigError(
                f"Expected 'heads' to divide 'hidden_channels' (got {heads} and {out_channels}). "
                f"Use hidden_channels={heads * max(round(out_channels / heads), 1)}."
            )
        self.map = nn.Linear(in_channels, out_channels, bias=False)
        self.own = nn.Linear(in_channels, out_channels)
        self.target = nn.Linear(in_channels, heads, bias=False)
        self.source = nn.Linear(in_channels, heads, bias=False)
        for layer in (self.map, self.own, self.target, self.source):
            nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the attention-weighted sums and the own part; no row per edge."""
        edges, heads = inputs.edges, []
        own: Tensor = self.own(x)
        values, targets, sources = self.map(x), self.target(x), self.source(x)
        for h, target, source in zip(
            values.chunk(targets.size(1), dim=1), targets.t(), sources.t(), strict=True
        ):
            score = target.index_select(0, edges.target) + source.index_select(0, edges.source)
            weight = neighbourhood_softmax(edges, F.leaky_relu(score, 0.2))
            heads.append(weighted_sum(edges, weight, h))
        heard = torch.cat(heads, dim=1)
        return heard + own


def _conv(gnn: GNN, in_channels: int, out_channels: int, heads: int) -> nn.Module:
    if gnn == "gat":
        return _GAT(in_channels, out_channels, heads)
    return (_GCN if gnn == "gcn" else _SAGE)(in_channels, out_channels)


class _GuidedReadout(nn.Module, ABC):
    """A shared readout that also has the guide graded in training."""

    def __init__(self, readout: nn.Module, gamma: float) -> None:
        super().__init__()
        require_number("gamma", gamma, least=0)
        self.readout, self.gamma = readout, gamma

    def graded(
        self, prediction: Tensor, encoding: Encoding, *where: Tensor | int | None
    ) -> Outputs:
        """Return the prediction, and the guide's if there is training to be done."""
        if not self.training or self.gamma == 0:
            return Outputs(prediction)
        guide = self.guided(encoding.context, *where)
        return Outputs(prediction, [(1.0, prediction), (self.gamma, guide)])

    @abstractmethod
    def guided(self, context: Tensor, *where: Tensor | int | None) -> Tensor:
        """Return the guide's prediction."""


class GuidedNodeReadout(_GuidedReadout):
    r"""The shared :class:`~geof.nn.NodeReadout`; the guide's logits are graded too.

    Args:
        in_channels: Width of the states.
        num_classes: Number of classes.
        dropout: Of the shared readout.
        gamma: :math:`\gamma`, weight of the guide's loss.
    """

    def __init__(
        self, in_channels: int, num_classes: int, *, dropout: float = 0.0, gamma: float = 1.0
    ) -> None:
        super().__init__(NodeReadout(in_channels, num_classes, dropout=dropout), gamma)

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
        """Return the logits of nodes."""
        return self.graded(self.readout(encoding.states), encoding)

    def guided(self, context: Tensor, *where: Tensor | int | None) -> Tensor:
        """Return the guide's logits."""
        return context


class GuidedLinkReadout(_GuidedReadout):
    r"""The shared :class:`~geof.nn.LinkReadout`, and another one on what the guide says.

    Args:
        in_channels: Width of the states.
        hidden_channels: Of both readouts.
        normalise: Likewise.
        dropout: Likewise.
        gamma: :math:`\gamma`, weight of the guide's loss.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | None = None,
        *,
        normalise: bool = False,
        dropout: float = 0.0,
        gamma: float = 1.0,
    ) -> None:
        make = partial(
            LinkReadout, in_channels, hidden_channels, normalise=normalise, dropout=dropout
        )
        super().__init__(make(), gamma)
        if gamma:
            self.guide = make()

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
        """Return the logits of pairs."""
        return self.graded(self.readout(encoding.states, pairs), encoding, pairs)

    def guided(self, context: Tensor, *where: Tensor | int | None) -> Tensor:
        """Return the other readout's logits."""
        logits: Tensor = self.guide(context, *where)
        return logits


class GuidedGraphReadout(_GuidedReadout):
    r"""The shared :class:`~geof.nn.GraphReadout`; the guide's mean logits are graded too.

    Args:
        in_channels: Width of the states.
        num_classes: Number of classes.
        hidden_channels: Of the shared readout.
        pool: Likewise.
        batch_norm: Likewise.
        dropout: Likewise.
        gamma: :math:`\gamma`, weight of the guide's loss.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        hidden_channels: int | None = None,
        *,
        pool: Pooling = "mean",
        batch_norm: bool = False,
        dropout: float = 0.0,
        gamma: float = 1.0,
    ) -> None:
        readout = GraphReadout(
            in_channels,
            num_classes,
            hidden_channels,
            pool=pool,
            batch_norm=batch_norm,
            dropout=dropout,
        )
        super().__init__(readout, gamma)

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
        """Return the logits of graphs."""
        where = inputs.batch, inputs.num_graphs
        return self.graded(self.readout(encoding.states, *where), encoding, *where)

    def guided(self, context: Tensor, *where: Tensor | int | None) -> Tensor:
        """Return the mean of the guide's logits over each graph."""
        logits: Tensor = global_mean_pool(context, *where)
        return logits


register(
    Method(
        "g2former",
        G2Former,
        readouts={
            "node": GuidedNodeReadout,
            "link": GuidedLinkReadout,
            "graph": GuidedGraphReadout,
        },
        presets=PRESETS / "g2former",
        revision=2,
    )
)

r"""HGCN: graph convolution in the Poincare ball.

With the ball's maps (:mod:`geof_paper.baselines.poincare`), curvature :math:`-c_\ell` of layer
:math:`\ell`, and :math:`\tilde A = \hat D^{-1}(A + I)`,

.. math::
    x^0 &= \operatorname{proj}(\exp_0^{c_1}(x)) \\
    h &= \exp_0(W \log_0(x^{\ell-1})) \oplus \exp_0(b) \\
    y_i &= \exp_0\Big(\sum_j \tilde A_{ij} \log_0(h_j)\Big) \quad\text{or}\quad
    y_i = \exp_{h_i}\Big(\sum_j \tilde A_{ij} \log_{h_i}(h_j)\Big) \\
    x^\ell &= \exp_0^{c_{\ell+1}}\big(\sigma(\log_0^{c_\ell}(y))\big)

with ``proj`` after every step, dropout on :math:`W`, and, as an option, attention: :math:`\tilde
A_{ij}` times :math:`\operatorname{sigmoid}(a^T[\log_0 h_i \| \log_0 h_j] + a_0)`. Links are decoded
by Fermi-Dirac, :math:`p_{uv} = 1/(e^{(d(z_u, z_v)^2 - r)/t} + 1)`; nodes by dropout and a linear
map of :math:`\log_0(z)`. For node classification that linear map is one of the layers: there are
``num_layers - 1`` hyperbolic ones.

Reference: Chami, Ying, Re, Leskovec, "Hyperbolic Graph Convolutional Neural Networks", NeurIPS
2019.

**Evidence.** From source: layer, depth rule, curvatures, Fermi-Dirac decoder. The authors' code has
no licence, so no numbers of it are stored; those of the same layers in the code of ACE-HGNN (MIT)
are, in ``test_ace_hgnn.py``. From paper: aggregation in the tangent space of the centre node.
Reconstructed: mean pool and MLP on :math:`\log_0(z)` for graphs, training node classification
directly (the authors train links first where labels are few; that is ``pretraining``, see
:meth:`HGCN.pretext_loss`).

**In the chart.** States are kept as :math:`u = \log_0(x)`. All maps at the origin are radial, so
:math:`\log_0 \circ \operatorname{proj} \circ \exp_0` cuts :math:`u` to a longest length and does
nothing else, and a change of curvature between layers is that cut alone. What is left of the
hyperbolic layer with aggregation at the origin is GCN with row-normalised :math:`A`, a bias added
along a geodesic, a cut, and the hyperbolic distance in the decoder: computed as such.

**Differences from the public code.** A trainable curvature is :math:`c = \operatorname{softplus}
(\rho) + 10^{-4}` and cannot cross zero. Gradients pass through the conformal factor, which is
detached there. Aggregation at the centre is :math:`\exp` at :math:`h_i` of the sum; the arguments
are swapped there. Attention and negatives are made from edge lists, not :math:`n \times n`
matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geof.errors import ConfigError
from geof.kernels import Neighbourhoods
from geof.methods.interface import Encoding, GraphInputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn.inputs import check_pairs
from geof.options import (
    Count,
    Probability,
    checked,
    require_number,
)
from geof_paper.baselines.edge_products import edge_dots, weighted_sum
from geof_paper.baselines.fermi_dirac import FermiDiracReadout
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.poincare import (
    Curvature,
    distance_ratio,
    exp,
    exp0,
    log0,
    mobius_add,
    reach_factor,
    square,
    squared_distance,
    within_reach,
)
from geof_paper.baselines.sparse import input_features, mean_adjacency
from geof_paper.presets import PRESETS

Activation: TypeAlias = Literal["relu", "leaky_relu", "tanh"]
Aggregation: TypeAlias = Literal["origin", "centre"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
}
"""None of them makes a vector longer, so a state within reach stays there."""

LEAST_CURVATURE = 1e-4
"""What a trainable curvature stays above."""


class HGCN(nn.Module):
    r"""Hyperbolic graph convolutions; the states are :math:`\log_0(z)`, the context is the last c.

    Args:
        in_channels: Width of the features.
        task: For ``"node"`` the readout's linear map counts as a layer.
        hidden_channels: Width.
        num_layers: Depth; at least two for nodes.
        dropout: Of the entries of every :math:`W`.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`; rows longer
            than the ball's reach (3.1 at curvature one) are cut to it.
        feature_dropout: Of the input features.
        curvature: :math:`c`, at the start or for good; zero, if not trainable, is the Euclidean
            network.
        trainable_curvature: Whether each layer and the output learn a curvature of their own.
        activation: ``"relu"``, ``"leaky_relu"`` or ``"tanh"``.
        attention: Whether learned weights in (0, 1) multiply :math:`\tilde A`.
        aggregation: In the tangent space at the ``"origin"`` or at the ``"centre"`` node.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        task: TaskKind,
        *,
        hidden_channels: Count = 16,
        num_layers: Count = 2,
        dropout: Probability = 0.0,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        curvature: float = 1.0,
        trainable_curvature: bool = True,
        activation: Activation = "relu",
        attention: bool = False,
        aggregation: Aggregation = "origin",
    ) -> None:
        super().__init__()
        if task == "node" and num_layers < 2:
            raise ConfigError(
                "Expected 'num_layers' to be at least 2 for node classification, where the linear "
                f"readout is one of them (got {num_layers})."
            )
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        depth = num_layers - 1 if task == "node" else num_layers
        self.layers = hyperbolic_layers(
            in_channels,
            hidden_channels,
            depth,
            dropout=dropout,
            activation=activation,
            attention=attention,
            aggregation=aggregation,
        )
        self._start_curvatures(curvature, depth + 1, trainable_curvature)
        self.out_channels = hidden_channels

    def _start_curvatures(self, curvature: float, count: int, trainable: bool) -> None:
        self.trainable_curvature = trainable
        if not trainable:
            require_number("curvature", curvature, least=0)
            self.fixed_curvature: Tensor
            self.register_buffer("fixed_curvature", torch.full((count,), float(curvature)))
            return
        require_number("curvature", curvature, above=LEAST_CURVATURE)
        start = curvature - LEAST_CURVATURE
        rho = start + math.log(-math.expm1(-start))  # where softplus is `start`
        self.rho = nn.Parameter(torch.full((count,), rho))

    def curvatures(self) -> Tensor:
        """Return ``c`` of each layer and of the output."""
        if self.trainable_curvature:
            return F.softplus(self.rho) + LEAST_CURVATURE
        return self.fixed_curvature

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the states in the chart at the origin, and the curvature they have."""
        x = input_features(self, inputs)
        curvatures = self.curvatures().unbind()
        states = run_layers(self.layers, x, inputs, curvatures)
        return Encoding(states, context=curvatures[-1])

    def pretext_loss(self, inputs: GraphInputs) -> Tensor:
        """Return the link loss on all edges and as many random pairs of the same graphs.

        It is the authors' first stage where labels are few. A random pair may be an edge.
        """
        encoding = self(inputs)
        source, target = inputs.edge_index
        if not len(source):
            zero: Tensor = encoding.states.sum() * 0.0
            return zero
        pairs = torch.stack(
            [torch.cat([source, source]), torch.cat([target, _random_partners(source, inputs)])]
        )
        logits = HyperbolicLinkReadout(self.out_channels)(encoding, inputs, pairs)
        labels = torch.zeros_like(logits)
        labels[: len(source)] = 1.0
        return F.binary_cross_entropy_with_logits(logits, labels)


class HyperbolicLayer(nn.Module):
    """One layer of HGCN, from chart to chart.

    Args:
        in_channels: Width of the input.
        out_channels: Width of the output.
        dropout: Of the entries of the weight.
        activation: See :class:`HGCN`.
        attention: See :class:`HGCN`.
        aggregation: See :class:`HGCN`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dropout: float = 0.0,
        activation: Activation = "relu",
        attention: bool = False,
        aggregation: Aggregation = "origin",
    ) -> None:
        super().__init__()
        self.dropout, self.activation, self.aggregation = dropout, activation, aggregation
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.weight, gain=math.sqrt(2))
        self.attention = nn.Linear(2 * out_channels, 1) if attention else None

    def forward(self, u: Tensor, inputs: GraphInputs, c: Curvature) -> Tensor:
        """Return the activations, in the chart that layers of all curvatures share.

        Args:
            u: ``(n, in_channels)``, dense or sparse CSR; cut to the reach of ``c`` first.
            inputs: Whose edges messages run along.
            c: The layer's curvature.
        """
        h = self._linear(u, c)
        if self.attention is None and self.aggregation == "origin":
            a = graph_product(inputs, mean_adjacency, h)
        else:
            edges = inputs.edges
            weight = _mean_weights(edges, h.dtype)
            if self.attention is not None:
                weight = weight * self._attention(self.attention, edges, h)
            if self.aggregation == "origin":
                a = weighted_sum(edges, weight, h)
            else:
                a = centre_mean(edges, weight, h, c)
        return ACTIVATIONS[self.activation](a)

    def _linear(self, u: Tensor, c: Curvature) -> Tensor:
        r"""Return :math:`\log_0(\exp_0(W u) \oplus \exp_0(b))`."""
        weight = F.dropout(self.weight, self.dropout, self.training)
        if u.layout == torch.strided:
            product, squares = F.linear(u, weight), square(u)
        else:
            product, squares = torch.sparse.mm(u, weight.t()), _sparse_square(u)
        product = product * reach_factor(squares, c)  # rows of u are wider, so scale afterwards
        point = exp0(within_reach(product, c), c)
        bias = exp0(within_reach(self.bias, c), c)
        return within_reach(log0(mobius_add(point, bias, c), c), c)

    def _attention(self, attention: nn.Linear, edges: Neighbourhoods, h: Tensor) -> Tensor:
        """Return a weight in (0, 1) per edge; the linear map of a pair is a sum of two."""
        left, right = attention.weight.view(2, -1)
        heard = (h @ left + attention.bias).index_select(0, edges.target)
        return torch.sigmoid(heard + (h @ right).index_select(0, edges.source))


class HyperbolicLinkReadout(FermiDiracReadout):
    r"""One logit per pair, :math:`(r - d(z_u, z_v)^2)/t`, from the hyperbolic distance.

    The curvature is the encoding's context.

    Args:
        in_channels: Width of the states; there is nothing to learn, so it is not read.
        radius: :math:`r`, the squared distance at which an edge is as likely as none.
        temperature: :math:`t > 0`.
    """

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor) -> Tensor:
        """Return the logits of ``pairs`` ``(2, P)``."""
        check_pairs(pairs)
        c = encoding.context
        z = exp0(encoding.states, c)
        # index_select sums its gradient in a fixed order.
        apart = squared_distance(z.index_select(0, pairs[0]), z.index_select(0, pairs[1]), c)
        return (self.radius - apart) / self.temperature


def hyperbolic_layers(
    in_channels: int,
    hidden_channels: int,
    depth: int,
    *,
    dropout: float,
    activation: Activation,
    attention: bool = False,
    aggregation: Aggregation = "origin",
) -> nn.ModuleList:
    """Return layers from the features on."""
    return nn.ModuleList(
        HyperbolicLayer(
            hidden_channels if number else in_channels,
            hidden_channels,
            dropout=dropout,
            activation=activation,
            attention=attention,
            aggregation=aggregation,
        )
        for number in range(depth)
    )


def run_layers(
    layers: Iterable[nn.Module], x: Tensor, inputs: GraphInputs, curvatures: Iterable[Curvature]
) -> Tensor:
    """Return the states after all layers; there is one curvature more than layers, the output's."""
    *inner, last = curvatures
    for layer, c in zip(layers, inner, strict=True):
        x = layer(x, inputs, c)
    return within_reach(x, last)


def centre_mean(edges: Neighbourhoods, weight: Tensor, h: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`\log_0 \exp_{x_i}(\sum_j w_{ij} \log_{x_i} x_j)`, :math:`x = \exp_0(h)`.

    Every :math:`\log_{x_i} x_j` is a combination of :math:`x_i` and :math:`x_j` whose coefficients
    need their inner product only, so nothing has a row per edge.
    """
    x = exp0(h, c)
    squares = square(x)
    room = 1.0 - c * squares  # h is within reach: this is positive
    target, source = edges.target, edges.source
    square_i, room_i = (v.squeeze(-1).index_select(0, target) for v in (squares, room))
    square_j, room_j = (v.squeeze(-1).index_select(0, source) for v in (squares, room))
    bend = c * (square_i + square_j - 2.0 * edge_dots(edges, x, x)).clamp_min(0.0)
    both = room_i * room_j
    # w_ij log_{x_i} x_j = pull_ij (room_i (x_j - x_i) - bend_ij x_i)
    pull = weight * room_i * distance_ratio(bend / both) / (both + bend)
    own = edges.sum(pull * (room_i + bend)).unsqueeze(-1)
    tangent = room * weighted_sum(edges, pull, x) - own * x
    return within_reach(log0(exp(x, tangent, c), c), c)


def _mean_weights(edges: Neighbourhoods, dtype: torch.dtype) -> Tensor:
    """Return the entries of the row-normalised adjacency, in the order of the edges."""
    degree = torch.bincount(edges.target, minlength=edges.num_nodes).to(dtype)
    return degree.reciprocal().index_select(0, edges.target)


def _sparse_square(x: Tensor) -> Tensor:
    """Return the squared length of the rows of a sparse CSR matrix, ``(n, 1)``."""
    values = x.values()
    squares = torch.sparse_csr_tensor(
        x.crow_indices(), x.col_indices(), values.square(), x.shape, check_invariants=False
    )
    total: Tensor = torch.sparse.mm(squares, values.new_ones(x.size(1), 1))
    return total


def _random_partners(nodes: Tensor, inputs: GraphInputs) -> Tensor:
    """Return a random node of the same graph for each of the nodes."""
    if inputs.batch is None:
        return torch.randint(inputs.x.size(0), nodes.shape, device=nodes.device)
    sizes = torch.bincount(inputs.batch, minlength=inputs.num_graphs)
    first = sizes.cumsum(0) - sizes
    graph = inputs.batch[nodes]
    share = torch.rand(nodes.shape, dtype=torch.float64, device=nodes.device)
    return first[graph] + (share * sizes[graph]).long()


register(
    Method(
        "hgcn",
        HGCN,
        readouts={"link": HyperbolicLinkReadout},
        presets=PRESETS / "hgcn",
        revision=2,  # what was cut is cut again, whatever rounding says
    )
)

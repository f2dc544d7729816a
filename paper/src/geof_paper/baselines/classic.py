r"""GCN, GraphSAGE and GAT in the recipe that makes classic networks strong.

.. math::
    z = \operatorname{Conv}(x) + x W_{res}, \qquad
    x' = \operatorname{Drop}_p(\operatorname{ReLU}(\operatorname{Norm}(z)))

with one of

.. math::
    \operatorname{GCN}(x)_i &= \sum_j \hat A_{ij} W x_j + b,
    \qquad \hat A = \hat D^{-1/2} (A + I) \hat D^{-1/2}, \\
    \operatorname{SAGE}(x)_i &= W_1 x_i
    + W_2 \tfrac{1}{|N(i)|} \textstyle\sum_{j \in N(i)} x_j + b, \\
    \operatorname{GAT}(x)_i &= \sum_{j \in N(i) \cup i} \alpha_{ij} W x_j, \qquad
    \alpha_{ij} = \operatorname{softmax}_j \operatorname{LeakyReLU}_{0.2}(a_t^\top W x_i
    + a_s^\top W x_j).

References: Kipf and Welling, ICLR 2017; Hamilton, Ying, Leskovec, NeurIPS 2017; Velickovic et al.,
ICLR 2018; the recipe: Luo, Shi, Wu, "Classic GNNs Are Strong Baselines", NeurIPS 2024. Evidence:
written from the equations of the published recipe; one attention head and no bias in GAT, as there.
The layers are PyG's in what they compute (tests compare them). Differences from the recipe's code:
sparse features stay sparse, propagation is a product with a CSR matrix (for GAT one whose values
are the attention weights), and the states of all layers can be handed to the readout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from geof.methods.interface import GraphInputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import norm_layer
from geof.nn.settings import Norm, StepOutputs
from geof.options import (
    Count,
    Probability,
    checked,
)
from geof_paper.baselines.edge_products import neighbourhood_softmax, weighted_sum
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import input_features, neighbour_mean, normalised_adjacency
from geof_paper.presets import PRESETS


class ClassicGNN(nn.Module, ABC):
    r"""A classic network with normalisation, linear residuals and dropout after every layer.

    Args:
        in_channels: Width of the features.
        signature_channels: Width of the signatures, read when ``use_signature``.
        hidden_channels: Width.
        num_layers: Depth.
        dropout: After every layer.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
        norm: ``"none"``, ``"layer"`` or ``"batch"``.
        residual: Whether every layer adds a linear map of its input.
        outputs: ``"last"`` layer's states or those of ``"all"`` layers side by side.
        use_signature: Whether the structural signatures join the input features, for a comparison
            with equal information.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        signature_channels: int,
        *,
        hidden_channels: Count = 256,
        num_layers: Count = 2,
        dropout: Probability = 0.5,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        norm: Norm = "layer",
        residual: bool = True,
        outputs: StepOutputs = "last",
        use_signature: bool = False,
    ) -> None:
        super().__init__()
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.scale_features = scale_features
        self.outputs, self.use_signature = outputs, use_signature
        self.out_channels = hidden_channels * (num_layers if outputs == "all" else 1)
        widths = [in_channels, *[hidden_channels] * num_layers]
        self.convs = nn.ModuleList(self.conv(before, after) for before, after in pairwise(widths))
        self.prepare_first(self.convs[0])
        if use_signature:
            self.signature = nn.Linear(signature_channels, hidden_channels, bias=False)
        self.residuals = nn.ModuleList(
            SparseLinear(before, after) if residual else NoResidual()
            for before, after in pairwise(widths)
        )
        self.norms = nn.ModuleList(norm_layer(norm, hidden_channels) for _ in range(num_layers))

    @abstractmethod
    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return a layer, which is called with features and :class:`GraphInputs`."""

    def prepare_first(self, conv: nn.Module) -> None:
        """Let the first layer take sparse features, if it does not."""

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the last layer's states, or all layers'."""
        x = input_features(self, inputs)
        states: list[Tensor] = []
        for conv, residual, norm in zip(self.convs, self.residuals, self.norms, strict=True):
            z = conv(x, inputs) + residual(x)
            if self.use_signature and not states:
                z = z + self.signature(inputs.signature)
            x = F.dropout(F.relu(norm(z)), self.dropout, self.training)
            states.append(x)
        return torch.cat(states, dim=-1) if self.outputs == "all" else states[-1]


class ClassicGCN(ClassicGNN):
    """GCN; see :class:`ClassicGNN` for the options."""

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return PyG's layer on the normalised adjacency."""
        return CachedGCNConv(in_channels, out_channels, normalize=False)

    def prepare_first(self, conv: nn.Module) -> None:
        """Put a linear map in place that also takes sparse features."""
        conv.lin = SparseLinear(conv.in_channels, conv.out_channels, bias=False)  # type: ignore[arg-type]


class ClassicSAGE(ClassicGNN):
    """GraphSAGE; see :class:`ClassicGNN` for the options."""

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return a layer with the mean of the neighbours."""
        return MeanConv(in_channels, out_channels)


class ClassicGAT(ClassicGNN):
    """GAT; see :class:`ClassicGNN` for the options."""

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return a layer with one attention head."""
        return AttentionConv(in_channels, out_channels)


class CachedGCNConv(GCNConv):  # type: ignore[misc]
    """PyG's layer on the adjacency that is cached with the graph."""

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the normalised sums."""
        sums: Tensor = graph_product(inputs, normalised_adjacency, self.lin(x)) + self.bias
        return sums


class MeanConv(nn.Module):
    """PyG's ``SAGEConv`` with the map before the mean, so that wide features stay sparse."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.neighbours = SparseLinear(in_channels, out_channels, bias=False)
        self.own = SparseLinear(in_channels, out_channels)

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the mean over neighbours, zero where there are none, and the node's own part."""
        mean = graph_product(inputs, neighbour_mean, self.neighbours(x))
        own: Tensor = self.own(x)
        return mean + own


class AttentionConv(nn.Module):
    """PyG's ``GATConv`` with one head and no bias, without a row per edge."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.map = SparseLinear(in_channels, out_channels, bias=False)
        self.target = nn.Parameter(torch.empty(out_channels))
        self.source = nn.Parameter(torch.empty(out_channels))
        bound = (6 / (1 + out_channels)) ** 0.5  # Glorot's, as GATConv draws them
        nn.init.uniform_(self.target, -bound, bound)
        nn.init.uniform_(self.source, -bound, bound)

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the attention-weighted sums over closed neighbourhoods."""
        edges, h = inputs.edges, self.map(x)
        target, source = h @ self.target, h @ self.source
        score = F.leaky_relu(
            target.index_select(0, edges.target) + source.index_select(0, edges.source), 0.2
        )
        return weighted_sum(edges, neighbourhood_softmax(edges, score), h)


class NoResidual(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor) -> float:
        """Return zero."""
        return 0.0


register(Method("gcn-classic", ClassicGCN, presets=PRESETS / "gcn-classic"))
register(Method("sage-classic", ClassicSAGE, presets=PRESETS / "sage-classic"))
register(Method("gat-classic", ClassicGAT, presets=PRESETS / "gat-classic"))

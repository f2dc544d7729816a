r"""GIN: sums of neighbours through an MLP, as expressive as one-dimensional colour refinement.

.. math::
    h_i^l = \operatorname{ReLU}(\operatorname{BN}(\operatorname{MLP}_l((1 + \epsilon_l) h_i^{l-1}
    + \textstyle\sum_{j \in N(i)} h_j^{l-1}))), \qquad
    \text{logits} = \sum_{l=0}^{L} \operatorname{Drop}(W_l \operatorname{Pool}(h^l) + b_l)

with two-layer MLPs, batch normalisation inside them, and the features themselves as :math:`h^0`.
Reference: Xu, Hu, Leskovec, Jegelka, "How Powerful are Graph Neural Networks?", ICLR 2019.
Evidence:
layers from the published code (MIT), whose numbers on a small graph are stored in
``test_classic.py``; node and link heads are ours (the paper has graphs only). The layer is what
PyG's ``GINConv`` computes (a test compares them). Differences from the published code: the epoch is
chosen on validation, not as the best of the averaged test curve, which alone is worth two to three
points on NCI1; the layers' states go side by side, sum-pooled, into the MLP all methods share
instead of one linear map each, and the raw features are not pooled with them; the first linear map
is taken before the sum, which is the same number and keeps wide features sparse; an epoch is a pass
over the training graphs, not fifty random batches.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geof.methods.interface import GraphInputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import NodeNorm
from geof.nn.settings import StepOutputs
from geof.options import (
    Count,
    Probability,
    checked,
)
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import adjacency, input_features
from geof_paper.presets import PRESETS


class GIN(nn.Module):
    r"""Graph isomorphism network.

    Args:
        in_channels: Width of the features.
        hidden_channels: Width.
        num_layers: Number of sums over neighbours.
        train_epsilon: Whether :math:`\epsilon_l` is learned; 0 otherwise.
        dropout: After every layer; the published network has none there.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
        outputs: ``"last"`` layer's states or those of ``"all"`` layers side by side.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: Count = 64,
        num_layers: Count = 4,
        train_epsilon: bool = False,
        dropout: Probability = 0.0,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        outputs: StepOutputs = "all",
    ) -> None:
        super().__init__()
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.scale_features, self.outputs = scale_features, outputs
        self.out_channels = hidden_channels * (num_layers if outputs == "all" else 1)
        widths = [in_channels, *[hidden_channels] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            GINLayer(width, hidden_channels, train_epsilon=train_epsilon) for width in widths
        )

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the last layer's states, or all layers'."""
        x = input_features(self, inputs)
        states: list[Tensor] = []
        for layer in self.layers:
            x = F.dropout(layer(x, inputs), self.dropout, self.training)
            states.append(x)
        return torch.cat(states, dim=-1) if self.outputs == "all" else states[-1]


class GINLayer(nn.Module):
    """One layer: the sum, a two-layer MLP with batch normalisation inside and after it, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, *, train_epsilon: bool) -> None:
        super().__init__()
        self.first = SparseLinear(in_channels, out_channels)
        self.inner = NodeNorm(out_channels)
        self.second = nn.Linear(out_channels, out_channels)
        self.outer = NodeNorm(out_channels)
        self.epsilon = nn.Parameter(torch.zeros(()), requires_grad=train_epsilon)

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the new states."""
        # W_1 is linear, so it may come before the sum; its bias may not.
        h = self.first(x) - self.first.bias
        z = (1 + self.epsilon) * h + graph_product(inputs, adjacency, h) + self.first.bias
        return F.relu(self.outer(self.second(F.relu(self.inner(z)))))


register(Method("gin", GIN, presets=PRESETS / "gin"))

r"""GCN in the recipe that makes classic networks strong.

.. math::
    z = \hat A x W + b + x W_{res}, \qquad
    x' = \operatorname{Drop}_p(\operatorname{ReLU}(\operatorname{Norm}(z)))

with :math:`\hat A = \hat D^{-1/2} (A + I) \hat D^{-1/2}`. Reference: Luo, Shi, Wu, "Classic GNNs
Are Strong Baselines", NeurIPS 2024. Evidence: written from the equations of the published recipe.
Differences from its code: sparse features stay sparse, propagation is one product with a CSR
matrix, and the states of all layers can be handed to the readout.
"""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from geof.baselines.sparse import SparseLinear, normalised_adjacency
from geof.config import Norm, StepOutputs, require_number, require_option, require_positive
from geof.model.graph_inputs import GraphInputs
from geof.model.refinement import NodeNorm, drop_features, scale_rows


class ClassicGCN(nn.Module):
    r"""GCN with normalisation, linear residuals and dropout after every layer.

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

    def __init__(
        self,
        in_channels: int,
        signature_channels: int,
        *,
        hidden_channels: int = 256,
        num_layers: int = 2,
        dropout: float = 0.5,
        scale_features: bool = False,
        feature_dropout: float = 0.0,
        norm: Norm = "layer",
        residual: bool = True,
        outputs: StepOutputs = "last",
        use_signature: bool = False,
    ) -> None:
        super().__init__()
        require_positive("hidden_channels", hidden_channels)
        require_positive("num_layers", num_layers)
        require_number("dropout", dropout, least=0, below=1)
        require_number("feature_dropout", feature_dropout, least=0, below=1)
        require_option("norm", norm, get_args(Norm))
        require_option("outputs", outputs, get_args(StepOutputs))
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.scale_features = scale_features
        self.outputs, self.use_signature = outputs, use_signature
        self.out_channels = hidden_channels * (num_layers if outputs == "all" else 1)
        widths = [in_channels, *[hidden_channels] * num_layers]
        self.convs = nn.ModuleList(
            GCNConv(before, after, normalize=False) for before, after in pairwise(widths)
        )
        self.convs[0].lin = SparseLinear(in_channels, hidden_channels, bias=False)
        if use_signature:
            self.signature = nn.Linear(signature_channels, hidden_channels, bias=False)
        self.residuals = nn.ModuleList(
            SparseLinear(before, after) if residual else NoResidual()
            for before, after in pairwise(widths)
        )
        self.norms = nn.ModuleList(_norm(norm, hidden_channels) for _ in range(num_layers))

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the last layer's states, or all layers'."""
        adjacency = normalised_adjacency(inputs)
        x = scale_rows(inputs.x) if self.scale_features else inputs.x
        x = drop_features(x, self.feature_dropout, training=self.training)
        states: list[Tensor] = []
        for conv, residual, norm in zip(self.convs, self.residuals, self.norms, strict=True):
            z = conv(x, adjacency) + residual(x)
            if self.use_signature and not states:
                z = z + self.signature(inputs.signature)
            x = F.dropout(F.relu(norm(z)), self.dropout, self.training)
            states.append(x)
        return torch.cat(states, dim=-1) if self.outputs == "all" else states[-1]


class NoResidual(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor) -> float:
        """Return zero."""
        return 0.0


def _norm(name: Norm, channels: int) -> nn.Module:
    if name == "layer":
        return nn.LayerNorm(channels)
    return NodeNorm(channels) if name == "batch" else nn.Identity()

r"""What is under the contrastive methods: a stack of GCN or of GIN layers.

.. math::
    \text{GCN:}\quad x' = \sigma(\hat D^{-1/2} (A + I) \hat D^{-1/2} x W + b), \qquad
    \text{GIN:}\quad x' = \operatorname{ReLU}(\operatorname{BN}(\operatorname{MLP}(x_i +
    \textstyle\sum_j x_j)))

with dropout between layers, :math:`\sigma` a ReLU or one PReLU whose slope all layers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geof.methods.interface import GraphInputs, TaskKind
from geof.nn.inputs import SparseLinear
from geof.nn.settings import StepOutputs
from geof_paper.baselines.contrast import ProbeScale
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.gin import GINLayer
from geof_paper.baselines.sparse import input_features, normalised_adjacency

Convolution: TypeAlias = Literal["gcn", "gin"]
Activation: TypeAlias = Literal["relu", "prelu"]


class Trunk(nn.Module):
    """Layers of given widths.

    Args:
        widths: Of the input and of every layer.
        conv: ``"gcn"`` or ``"gin"``.
        activation: Of GCN layers, ``"relu"`` or ``"prelu"``.
        dropout: Between layers.
        outputs: ``"last"`` layer's states or those of ``"all"`` layers side by side.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        conv: Convolution,
        activation: Activation,
        dropout: float,
        outputs: StepOutputs,
    ) -> None:
        super().__init__()
        self.dropout, self.outputs = dropout, outputs
        self.out_channels = sum(widths[1:]) if outputs == "all" else widths[-1]
        slope = nn.PReLU() if conv == "gcn" and activation == "prelu" else nn.ReLU()
        self.activation = slope if conv == "gcn" else nn.Identity()  # GIN layers have their own
        self.layers = nn.ModuleList(
            GCNLayer(before, after)
            if conv == "gcn"
            else GINLayer(before, after, train_epsilon=False)
            for before, after in pairwise(widths)
        )

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the states of the last layer or of all."""
        states: list[Tensor] = []
        for layer in self.layers:
            if states:
                x = F.dropout(x, self.dropout, self.training)
            x = self.activation(layer(x, inputs))
            states.append(x)
        return torch.cat(states, dim=-1) if self.outputs == "all" else states[-1]


class GCNLayer(nn.Module):
    """A graph convolution, without activation."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = SparseLinear(in_channels, out_channels, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the new states."""
        return graph_product(inputs, normalised_adjacency, self.linear(x)) + self.bias


class ContrastiveMethod(nn.Module):
    """What the contrastive methods share: a trunk, and states at a scale for probes.

    Args:
        widths: Of the features and of every layer.
        task: Decides about ``outputs`` and ``scale_states`` where they are ``None``.
        conv: ``"gcn"`` or ``"gin"``.
        activation: Of GCN layers.
        dropout: Between layers.
        outputs: ``"last"`` or ``"all"``; ``None`` for all where the task is about graphs.
        scale_states: Whether states are handed on at a scale for probes; ``None`` does so for nodes
            and links.
        scale_features: Whether rows of the features are scaled.
        feature_dropout: Of the features.
    """

    def __init__(
        self,
        widths: Sequence[int],
        task: TaskKind,
        *,
        conv: Convolution,
        activation: Activation,
        dropout: float,
        outputs: StepOutputs | None,
        scale_states: bool | None,
        scale_features: bool,
        feature_dropout: float,
    ) -> None:
        super().__init__()
        of_graphs = task == "graph"
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.trunk = Trunk(
            widths,
            conv=conv,
            activation=activation,
            dropout=dropout,
            outputs=outputs or ("all" if of_graphs else "last"),
        )
        self.out_channels = self.trunk.out_channels
        scale = not of_graphs if scale_states is None else scale_states
        self.probe_scale = ProbeScale(self.out_channels, enabled=scale)

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the states."""
        states: Tensor = self.probe_scale(self.encode(inputs))
        return states

    def encode(self, inputs: GraphInputs) -> Tensor:
        """Return the trunk's states, as the pretext sees them."""
        states: Tensor = self.trunk(self.features(inputs), inputs)
        return states

    def features(self, inputs: GraphInputs) -> Tensor:
        """Return what the trunk is given."""
        return input_features(self, inputs)

r"""A method of one's own: features beside the mean of the neighbours', then an MLP.

.. math::
    h_i = \operatorname{MLP}\Bigl[x_i \,\Big\|\, \tfrac{1}{|N(i)|} \sum_{j \in N(i)} x_j\Bigr]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from geof.methods import Encoding, GraphInputs, Method, register


class NeighbourMean(nn.Module):
    """An MLP on a node's features and the mean of its neighbours'.

    Args:
        in_channels: Width of the features; the engine gives it.
        hidden_channels: Width of the states.
        dropout: Probability of dropping an entry of the hidden layer.
        shrinkage: Weight of a penalty on the states.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: Annotated[int, Field(ge=1, description="Width of the states.")] = 64,
        dropout: Annotated[float, Field(ge=0, lt=1, description="Of the hidden layer.")] = 0.5,
        shrinkage: Annotated[float, Field(ge=0, description="Weight of the penalty.")] = 0.0,
    ) -> None:
        super().__init__()
        self.out_channels, self.shrinkage = hidden_channels, shrinkage
        self.mlp = nn.Sequential(
            nn.Linear(2 * in_channels, hidden_channels),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_channels, hidden_channels),
        )

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the states and the method's own loss."""
        pair = inputs.cached(NeighbourMean, lambda: with_neighbour_mean(inputs))
        states = self.mlp(pair)
        return Encoding(states, penalty=self.shrinkage * states.square().mean())


def with_neighbour_mean(inputs: GraphInputs) -> Tensor:
    """Return the features beside the mean of the neighbours', which is zero for a node alone."""
    x = inputs.x if inputs.x.layout == torch.strided else inputs.x.to_dense()  # words are sparse
    source, target = inputs.edge_index
    total = torch.zeros_like(x).index_add(0, target, x[source])
    degree = torch.bincount(target, minlength=x.size(0))
    return torch.cat([x, total / degree.clamp(min=1).unsqueeze(-1)], dim=-1)


register(Method("neighbour-mean", NeighbourMean, presets=Path(__file__).parent / "presets"))

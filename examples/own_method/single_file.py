"""The smallest method there is: ``geof train --plugin single_file.py --method mine``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from geof.methods import GraphInputs, Method, register
from geof.nn.inputs import SparseLinear


class Mine(nn.Module):
    """One linear map and a ReLU: whatever takes inputs to states with ``out_channels`` will do."""

    def __init__(self, in_channels: int, *, width: int = 32) -> None:
        super().__init__()
        self.out_channels = width
        self.map = SparseLinear(in_channels, width)  # features of words come sparse

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the states of all nodes."""
        return torch.relu(self.map(inputs.x))


register(Method("mine", Mine))

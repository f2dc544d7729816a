"""Layers for sparse input features: bag-of-words rows are one to ten per cent dense."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SparseLinear(nn.Linear):
    """A linear layer that also takes sparse rows, without making them dense."""

    def forward(self, x: Tensor) -> Tensor:
        """Return :math:`x W^T + b`."""
        if x.layout == torch.strided:
            return super().forward(x)
        product: Tensor = torch.sparse.mm(x, self.weight.t())
        return product if self.bias is None else product + self.bias

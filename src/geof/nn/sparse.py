"""Layers for sparse input features: bag-of-words rows are one to ten per cent dense."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def without_csr_warnings() -> Iterator[None]:
    """Keep torch from saying, once per process, that its support of CSR matrices is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
        yield

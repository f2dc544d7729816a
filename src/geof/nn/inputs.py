"""What comes in: checks at the public boundary, and a layer that takes sparse features.

A check says what was expected, what came, what to do. Rows of bags of words are one to ten per cent
dense.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from geof.errors import DataError, DtypeError, ShapeError
from geof.kernels import Neighbourhoods


def check_matrix(name: str, value: Tensor, channels: int, dtype: torch.dtype) -> None:
    """Require a floating-point ``(n, channels)`` tensor of the model's dtype."""
    if not isinstance(value, Tensor):
        raise DtypeError(
            f"Expected '{name}' to be a torch.Tensor (got {type(value).__name__}). "
            + ("Pass its .values." if hasattr(value, "values") else "Use torch.as_tensor.")
        )
    if value.dim() != 2 or value.size(1) != channels:
        raise ShapeError(
            f"Expected '{name}' to have shape (num_nodes, {channels}) (got {tuple(value.shape)})."
        )
    if value.dtype != dtype:
        raise DtypeError(
            f"Expected '{name}' to have the model's dtype {dtype} (got {value.dtype}). "
            f"Use {name}.to({dtype})"
            + (f", or model.to({value.dtype})." if value.is_floating_point() else ".")
        )


def check_same_nodes(name: str, value: Tensor, num_nodes: int) -> None:
    """Require one row per node."""
    if value.size(0) != num_nodes:
        raise ShapeError(
            f"Expected '{name}' to have one row per node, {num_nodes} as in 'x' "
            f"(got {value.size(0)})."
        )


def check_batch(batch: Tensor, num_nodes: int) -> None:
    """Require a batch vector with one entry per node."""
    if batch.is_floating_point() or batch.dim() != 1 or batch.size(0) != num_nodes:
        raise ShapeError(
            f"Expected 'batch' to have shape ({num_nodes},), one graph index per node "
            f"(got {tuple(batch.shape)}, {batch.dtype})."
        )


def check_pairs(pairs: Tensor) -> None:
    """Require pairs of nodes, one per column."""
    if pairs.dim() != 2 or pairs.size(0) != 2:
        raise ShapeError(
            f"Expected 'pairs' to have shape (2, P) (got {tuple(pairs.shape)}). "
            "Sources stand in the first row, as in edge_index."
        )


def check_finite(name: str, value: Tensor) -> None:
    """Require finite entries, naming the first bad row. Skipped while ``torch.compile`` traces."""
    if torch.compiler.is_compiling() or all_finite(value):
        return
    bad = (~value.isfinite()).any(-1).nonzero().flatten()
    raise DataError(
        f"Expected '{name}' to be finite, but {len(bad)} of {len(value)} rows hold a NaN or an "
        f"infinity (first: row {int(bad[0])}). Clean or impute these rows."
    )


def all_finite(value: Tensor) -> bool:
    """Return whether no entry is NaN or infinite, in one pass over a sound tensor."""
    # A bad entry always reaches the sum; only a sum that overflowed needs a second look.
    return bool(value.detach().sum().isfinite()) or bool(value.isfinite().all())


def as_neighbourhoods(edge_index: Tensor | Neighbourhoods, num_nodes: int) -> Neighbourhoods:
    """Return the closed neighbourhoods of an ``edge_index`` or check prepared ones."""
    if isinstance(edge_index, Neighbourhoods):
        if edge_index.num_nodes != num_nodes:
            raise ShapeError(
                f"Expected neighbourhoods over {num_nodes} nodes, as in 'x' "
                f"(got {edge_index.num_nodes})."
            )
        return edge_index
    return Neighbourhoods.from_edge_index(edge_index, num_nodes)


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

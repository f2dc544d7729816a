r"""Closed neighbourhoods :math:`\widetilde{\mathcal N}(i) = \mathcal N(i) \cup \{i\}`, sorted.

The paper's neighbourhoods are sets: an edge given twice counts once, and every node has exactly
one self-loop whether or not the input lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from geof.caching import Cache, T
from geof.errors import DataError, DtypeError, ShapeError


def _empty_cache() -> Cache:
    """Return a new cache: as a default factory, torch.compile traces a function but no class."""
    return Cache()


@dataclass(frozen=True)
class Neighbourhoods:
    """Directed edges ``source -> target``, one self-loop per node, sorted by target, then source.

    Build it once with :meth:`from_edge_index` and pass it in place of ``edge_index`` to save the
    sort in every forward pass. The order is canonical, so results do not depend, not even in
    the last bit, on the order in which edges were given.

    Attributes:
        source: ``(E,)`` int64.
        target: ``(E,)`` int64, ascending.
        num_nodes: ``n``.
        active: ``(E,)`` bool or ``None`` for all. Repeated edges are inactive instead of absent
            while ``torch.compile`` traces, because shapes must not depend on values there.
        cache: What was derived from the edges, for the steps to come.
    """

    source: Tensor
    target: Tensor
    num_nodes: int
    active: Tensor | None = None
    cache: Cache = field(default_factory=_empty_cache, repr=False, compare=False)

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, num_nodes: int, *, static_shapes: bool | None = None
    ) -> Neighbourhoods:
        """Sort, de-duplicate and add self-loops.

        Args:
            edge_index: ``(2, E)`` int64, sources in the first row.
            num_nodes: ``n``, above every index.
            static_shapes: Mark repeats as inactive instead of removing them (default: only while
                ``torch.compile`` traces).

        Raises:
            DtypeError: If ``edge_index`` is not an int64 tensor.
            ShapeError: If it is not ``(2, E)``.
            DataError: If it holds an index out of range (not looked at while compiling).
        """
        check_edge_index(edge_index, num_nodes)
        loops = torch.arange(num_nodes, device=edge_index.device)
        key = torch.cat([edge_index[1] * num_nodes + edge_index[0], loops * (num_nodes + 1)])
        if torch.compiler.is_compiling() if static_shapes is None else static_shapes:
            key = key.sort().values
            active = torch.ones_like(key, dtype=torch.bool)
            active[1:] = key[1:] != key[:-1]
        else:
            key, active = key.unique(), None
        divisor = max(num_nodes, 1)
        return cls(key % divisor, key // divisor, num_nodes, active)

    @property
    def edge_index(self) -> Tensor:
        """``(2, E)``, self-loops included, in the canonical order."""
        return torch.stack([self.source, self.target])

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return what ``build`` made of these edges the first time it was asked for."""
        return self.cache.cached(key, build)

    def sum(self, values: Tensor) -> Tensor:
        """Sum per-edge ``values`` ``(E, ...)`` over each target's neighbourhood: ``(n, ...)``."""
        total = values.new_zeros(self.num_nodes, *values.shape[1:])
        return total.index_add(0, self.target, values)

    def to(self, device: torch.device | str) -> Neighbourhoods:
        """Return a copy on ``device``."""
        active = None if self.active is None else self.active.to(device)
        return Neighbourhoods(
            self.source.to(device), self.target.to(device), self.num_nodes, active
        )


def check_edge_index(edge_index: Tensor, num_nodes: int) -> None:
    """Require an int64 ``(2, E)`` tensor of node indices.

    Args:
        edge_index: Edges, sources in the first row.
        num_nodes: ``n``, above every index.

    Raises:
        DtypeError: If it is not an int64 tensor.
        ShapeError: If it is not ``(2, E)``.
        DataError: If it holds an index out of range (not looked at while compiling).
    """
    if not isinstance(edge_index, Tensor) or edge_index.dtype != torch.long:
        got = edge_index.dtype if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise DtypeError(
            f"Expected 'edge_index' to be an int64 tensor (got {got}). Use edge_index.long(); "
            "for a sparse adjacency use torch_geometric.utils.to_edge_index."
        )
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ShapeError(
            f"Expected 'edge_index' to have shape (2, num_edges) (got {tuple(edge_index.shape)})."
        )
    # Reading the values would break the graph under torch.compile.
    if torch.compiler.is_compiling() or edge_index.numel() == 0:
        return
    low, high = (int(value) for value in edge_index.aminmax())
    if low < 0 or high >= num_nodes:
        raise DataError(
            f"Expected 'edge_index' to hold node indices from 0 to {num_nodes - 1} "
            f"(got indices from {low} to {high}). Check that 'x' has a row for every node."
        )

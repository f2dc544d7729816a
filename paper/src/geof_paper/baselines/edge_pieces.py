r"""Sums over neighbourhoods of functions of both ends of an edge, piece by piece.

:math:`y_i = \sum_{j \in N(i)} f(u_i, w_j)` with a network :math:`f` needs every edge's value, but
not all at once. Edges are cut between targets into pieces that fit a cache; where even keeping
their values for the gradient is too much, a piece is computed again in the backward pass. Gathers
and sums are each other's gradients, and both sums are products with a sparse 0/1 matrix, which on a
CPU is several times faster than adding rows one by one, and has a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from geof.methods.interface import GraphInputs
from geof_paper.baselines.sparse import csr_matrix

PIECE_ENTRIES = 2**18
"""Edges times channels of a piece: a megabyte per tensor in float32."""

KEPT_ENTRIES = 8_000_000
"""Edges times channels up to which values are kept for the gradient: some 30 MB per tensor."""


@dataclass(frozen=True, eq=False)
class EdgePiece:
    """The edges into a range of nodes.

    Attributes:
        first: The range's first node.
        rows: How many nodes it has.
        source: ``(e,)``, where each edge comes from.
        target: ``(e,)``, where it leads, counted from ``first``.
        to_source: ``(n, e)`` CSR, sums edges by where they come from.
        to_target: ``(rows, e)`` CSR, sums them by where they lead.
    """

    first: int
    rows: int
    source: Tensor
    target: Tensor
    to_source: Tensor
    to_target: Tensor

    def at_sources(self, values: Tensor) -> Tensor:
        """Return each edge's row of ``values`` ``(n, d)`` at its source."""
        gathered: Tensor = _Gather.apply(values, self.source, self.to_source)  # type: ignore[no-untyped-call]
        return gathered

    def at_targets(self, values: Tensor) -> Tensor:
        """Return each edge's row of ``values`` ``(n, d)`` at its target."""
        own = values.narrow(0, self.first, self.rows)
        gathered: Tensor = _Gather.apply(own, self.target, self.to_target)  # type: ignore[no-untyped-call]
        return gathered

    def sum(self, values: Tensor) -> Tensor:
        """Return ``(rows, d)``, the sum of ``values`` ``(e, d)`` over the edges into each node."""
        total: Tensor = _Sum.apply(values, self.target, self.to_target)  # type: ignore[no-untyped-call]
        return total


@dataclass(frozen=True, eq=False)
class OpenNeighbourhoods:
    """The edges of a graph without self-loops, each once, in pieces.

    Attributes:
        pieces: They cover all nodes, in order.
        degree: ``(n, 1)``, how many edges lead to each node.
        num_edges: How many there are.
    """

    pieces: tuple[EdgePiece, ...]
    degree: Tensor
    num_edges: int

    @classmethod
    def of(cls, inputs: GraphInputs, channels: int) -> OpenNeighbourhoods:
        """Return the pieces for values of a width, made once per graph, width and dtype."""
        key = (cls, channels, inputs.x.dtype)
        return inputs.cached(key, lambda: cls._cut(inputs, channels))

    @classmethod
    def _cut(cls, inputs: GraphInputs, channels: int) -> OpenNeighbourhoods:
        edges, nodes, dtype = inputs.edges, inputs.edges.num_nodes, inputs.x.dtype
        others = edges.source != edges.target
        source, target = edges.source[others], edges.target[others]
        degree = torch.bincount(target, minlength=nodes)
        # A piece's gradient touches all nodes, so it should not have fewer edges than there are.
        size = max(PIECE_ENTRIES // channels, nodes)
        pieces, first, begin = [], 0, 0
        ends = degree.cumsum(0)
        while first < nodes:
            last = max(int(torch.searchsorted(ends, begin + size, right=True)), first + 1)
            end = int(ends[last - 1])
            piece = source[begin:end], target[begin:end] - first
            pieces.append(
                EdgePiece(
                    first,
                    last - first,
                    *piece,
                    to_source=_sums_by(piece[0], nodes, dtype),
                    to_target=_sums_by(piece[1], last - first, dtype),
                )
            )
            first, begin = last, end
        return cls(tuple(pieces), degree.unsqueeze(1).to(dtype), len(source))

    def sum(self, function: Callable[..., Tensor], channels: int, *tensors: Tensor) -> Tensor:
        """Return ``(n, channels)``: ``function(piece, *tensors)`` of all pieces, one below another.

        Args:
            function: Sums something over the edges of a piece. It must draw no random numbers.
            channels: Width of what it returns.
            tensors: Everything the gradient goes to.
        """
        again = torch.is_grad_enabled() and self.num_edges * channels > KEPT_ENTRIES
        rows = []
        for piece in self.pieces:
            if not len(piece.source):
                rows.append(tensors[0].new_zeros(piece.rows, channels))
            elif again:
                rows.append(
                    checkpoint(
                        function, piece, *tensors, use_reentrant=False, preserve_rng_state=False
                    )
                )
            else:
                rows.append(function(piece, *tensors))
        return torch.cat(rows)


def _sums_by(index: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Return the 0/1 matrix ``(rows, e)`` that sums edges by an index, in CSR form."""
    order = torch.argsort(index, stable=True)
    starts = torch.zeros(rows + 1, dtype=torch.long)
    torch.cumsum(torch.bincount(index, minlength=rows), 0, out=starts[1:])
    return csr_matrix(starts, order, torch.ones(len(index), dtype=dtype), (rows, len(index)))


class _Gather(torch.autograd.Function):
    """Rows at the ends of edges; the gradient is a product with a sparse matrix."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, sums: Tensor) -> Tensor:
        ctx.sums = sums
        return values.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return torch.sparse.mm(ctx.sums, grad.contiguous()), None, None


class _Sum(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, sums: Tensor) -> Tensor:
        ctx.index = index
        total: Tensor = torch.sparse.mm(sums, values.contiguous())
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.index), None, None

r"""How each node's features are put together from its neighbours': locally linear embedding.

For a node with features :math:`x_i \in R^F` and :math:`k` neighbours with
:math:`X_N \in R^{k \times F}`

.. math::
    w = (X_N X_N^T + \epsilon I_k)^{-1} X_N x_i
      = X_N (X_N^T X_N + \epsilon I_F)^{-1} x_i, \qquad
    w \leftarrow \operatorname{ReLU}(w), \qquad w \leftarrow w / \textstyle\sum_j w_j,

:math:`w_j = 1 / k` if nothing is positive. The second form is used where :math:`k > F`. Nodes of
equal degree are solved together, in pieces of bounded size; sparse features are made dense piece
by piece. All in double precision, and the weights of a graph are cached with it.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from geof.kernels import Neighbourhoods
from geof.kernels.neighbourhood import Cache
from geof.methods.interface import GraphInputs

ENTRIES = 2**24
"""Dense numbers that are in memory at a time, unless one node needs more."""

ROUNDING = 1e-8
"""Weights up to that are zero but for rounding: whether one is positive decides about pairs."""


def lle_weights(inputs: GraphInputs, *, ridge: float, binarise: bool) -> Tensor:
    r"""Return a weight per edge of ``inputs.edges``, zero for self-loops: ``(E,)`` float64.

    They sum to one over the neighbours of each node that has any.

    Args:
        inputs: One graph or many; the weights of each are computed once, whatever batches it
            appears in.
        ridge: :math:`\epsilon`.
        binarise: Whether features count as one where they are positive and as zero elsewhere.
    """
    key = (lle_weights, ridge, binarise)
    return inputs.cached(key, lambda: _of_all_graphs(inputs, key, ridge, binarise))


def _of_all_graphs(inputs: GraphInputs, key: Hashable, ridge: float, binarise: bool) -> Tensor:
    edges = inputs.edges
    owners = inputs.caches or tuple(Cache() for _ in range(inputs.num_graphs))
    graph = torch.zeros_like(edges.target) if inputs.batch is None else inputs.batch[edges.target]
    # Within a graph, edges have the same order in every batch.
    order = graph.argsort(stable=True)
    if any(key not in owner for owner in owners):
        fresh = _solve(inputs.x, edges, ridge, binarise)[order]
    else:
        fresh = torch.empty(len(order), dtype=torch.float64, device=order.device)
    sizes = torch.bincount(graph, minlength=len(owners)).tolist()
    own = [
        owner.cached(key, piece.clone)
        for owner, piece in zip(owners, fresh.split(sizes), strict=True)
    ]
    weights = torch.empty_like(fresh)
    weights[order] = torch.cat(own)
    return weights


def _solve(x: Tensor, edges: Neighbourhoods, ridge: float, binarise: bool) -> Tensor:
    features = _Features(x, binarise)
    place = (edges.source != edges.target).nonzero().view(-1)
    degree = torch.bincount(edges.target[place], minlength=edges.num_nodes)
    first = degree.cumsum(0) - degree
    weights = torch.zeros(len(edges.source), dtype=torch.float64, device=x.device)
    for k in degree.unique().tolist():
        if k == 0:
            continue
        cost = k * (x.size(1) + min(k, x.size(1)))
        for nodes in (degree == k).nonzero().view(-1).split(max(ENTRIES // cost, 1)):
            places = place[first[nodes, None] + torch.arange(k, device=x.device)]
            around = features.rows(edges.source[places].view(-1)).view(len(nodes), k, -1)
            solved = ridge_weights(features.rows(nodes), around, ridge)
            weights[places] = as_convex(solved)
    return weights


def ridge_weights(own: Tensor, around: Tensor, ridge: float) -> Tensor:
    r"""Return the unclipped weights of nodes with equally many neighbours, ``(c, k)`` float64.

    Args:
        own: ``(c, F)``, the nodes' features.
        around: ``(c, k, F)``, their neighbours'.
        ridge: :math:`\epsilon`.
    """
    own = own.unsqueeze(-1)
    if around.size(1) <= around.size(2):
        right = (around @ own).double()
        return _ridge_solve(around @ around.mT, right, ridge).squeeze(-1)
    inner = _ridge_solve(around.mT @ around, own.double(), ridge)
    return (around.double() @ inner).squeeze(-1)


def as_convex(weights: Tensor) -> Tensor:
    """Return the positive part of rows ``(c, k)`` scaled to sum to one, equal if there is none."""
    positive = torch.where(weights > ROUNDING, weights, 0.0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, positive / total.clamp_min(ROUNDING), 1.0 / weights.size(-1))


def _ridge_solve(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    gram = gram.double()
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge)
    return torch.cholesky_solve(right, torch.linalg.cholesky(gram))


class _Features:
    """Rows of the features, dense, whenever asked for."""

    def __init__(self, x: Tensor, binarise: bool) -> None:
        self.binarise = binarise
        # Counts of common words are exact in single precision; other products are not.
        self.dtype = torch.float32 if binarise else torch.float64
        small = x.size(0) * x.size(1) <= ENTRIES
        self.x = x.to_dense() if small and x.layout != torch.strided else x

    def rows(self, nodes: Tensor) -> Tensor:
        """Return ``(len(nodes), F)``."""
        x = self.x
        rows = x.index_select(0, nodes) if x.layout == torch.strided else _dense_rows(x, nodes)
        return (rows > 0).to(self.dtype) if self.binarise else rows.to(self.dtype)


def _dense_rows(x: Tensor, nodes: Tensor) -> Tensor:
    """Return rows of a CSR matrix as a dense one."""
    begin = x.crow_indices()[nodes]
    counts = x.crow_indices()[nodes + 1] - begin
    shift = torch.repeat_interleave(begin - (counts.cumsum(0) - counts), counts)
    entries = torch.arange(int(counts.sum()), device=x.device) + shift
    dense = x.values().new_zeros(len(nodes), x.size(1))
    row = torch.repeat_interleave(torch.arange(len(nodes), device=x.device), counts)
    dense[row, x.col_indices()[entries]] = x.values()[entries]
    return dense

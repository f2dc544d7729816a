"""What several methods need of a graph or of sparse features, derived once and cached with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_csr_tensor

from geof.methods.interface import GraphInputs
from geof.nn.inputs import without_csr_warnings
from geof.nn.refinement import drop_features, scale_rows


def csr_matrix(pointer: Tensor, column: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a CSR matrix of parts that are known to fit."""
    with without_csr_warnings():
        return torch.sparse_csr_tensor(pointer, column, values, size, check_invariants=False)


def csr_transpose(matrix: Tensor) -> Tensor:
    """Return the transpose of a CSR matrix, in CSR form."""
    with without_csr_warnings():
        return matrix.t().to_sparse_csr()


class TakesFeatures(Protocol):
    """A method with the options that say how features enter.

    Attributes:
        scale_features: Whether rows are scaled to length root F.
        feature_dropout: Probability of dropping an entry.
        training: Whether it is in training mode.
    """

    scale_features: bool
    feature_dropout: float
    training: bool


def scaled_features(method: TakesFeatures, inputs: GraphInputs) -> Tensor:
    """Return the features, rows scaled if the method wants it, once for all passes."""
    if not method.scale_features:
        return inputs.x
    return inputs.cached(scale_rows, lambda: scale_rows(inputs.x))


def input_features(method: TakesFeatures, inputs: GraphInputs) -> Tensor:
    """Return the features as a method's first layer gets them: scaled, entries dropped."""
    x = scaled_features(method, inputs)
    return drop_features(x, method.feature_dropout, training=method.training)


def normalised_adjacency(inputs: GraphInputs) -> Tensor:
    r"""Return :math:`\hat D^{-1/2} (A + I) \hat D^{-1/2}` in CSR form, ``(n, n)``.

    Rows are targets and degrees count in-neighbours, which matters for sampled neighbourhoods:
    their edges lead towards the seeds only.
    """
    return _cached_matrix(inputs, _symmetric)


def mean_adjacency(inputs: GraphInputs) -> Tensor:
    r"""Return :math:`\hat D^{-1} (A + I)` in CSR form, ``(n, n)``: rows sum to one."""
    return _cached_matrix(inputs, _row_stochastic)


def neighbour_mean(inputs: GraphInputs) -> Tensor:
    r"""Return :math:`D^{-1} A`, without self-loops; the row of a node alone is empty."""
    return _cached_matrix(inputs, _mean_of_others)


def adjacency(inputs: GraphInputs) -> Tensor:
    """Return :math:`A`, without self-loops, in CSR form: row ``i`` sums over its neighbours."""
    return _cached_matrix(inputs, _plain)


Weighted: TypeAlias = tuple[Tensor, Tensor]


def _symmetric(inputs: GraphInputs) -> Weighted:
    nodes, dtype = inputs.x.size(0), inputs.x.dtype
    edge_index, weight = gcn_norm(inputs.edge_index, num_nodes=nodes, dtype=dtype)
    return edge_index, weight


def _row_stochastic(inputs: GraphInputs) -> Weighted:
    edges = inputs.edges
    degree = torch.bincount(edges.target, minlength=edges.num_nodes).to(inputs.x.dtype)
    return edges.edge_index, degree.reciprocal()[edges.target]


def _mean_of_others(inputs: GraphInputs) -> Weighted:
    target = inputs.edge_index[1]
    degree = torch.bincount(target, minlength=inputs.x.size(0)).to(inputs.x.dtype)
    return inputs.edge_index, degree[target].reciprocal()


def _plain(inputs: GraphInputs) -> Weighted:
    return inputs.edge_index, torch.ones(inputs.edge_index.size(1), dtype=inputs.x.dtype)


def _cached_matrix(inputs: GraphInputs, weighted: Callable[[GraphInputs], Weighted]) -> Tensor:
    """Return a sparse matrix made once per graph and dtype."""

    def build() -> Tensor:
        nodes = inputs.x.size(0)
        edge_index, weight = weighted(inputs)
        with without_csr_warnings():
            matrix: Tensor = to_torch_csr_tensor(edge_index.flip(0), weight, size=(nodes, nodes))
        return matrix

    return inputs.cached((weighted, inputs.x.dtype), build)

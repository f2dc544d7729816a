r"""The structural signature :math:`u_i` (paper, section 3 "Problem Setup").

Column 0 is the normalised degree, column :math:`k` the probability that a random walk on the
simple undirected graph is back at its start after :math:`k` steps (RWSE):

.. math::
    u_i = \big[\bar d_i, (P^1)_{ii}, \dots, (P^K)_{ii}\big], \qquad P = D^{-1} A .

The symmetric :math:`N = D^{-1/2} A D^{-1/2}` has the same diagonal powers as :math:`P`, so half
of the steps suffice:

.. math::
    (P^{a+b})_{ii} = (N^a N^b)_{ii} = \sum_j (N^a)_{ij} (N^b)_{ij} .

Without self-loops :math:`(P^1)_{ii} = 0`, and :math:`(P^2)_{ii} = \sum_j N_{ij}^2` needs no
product. For the others the *exact* method runs over blocks of columns :math:`j`, the *estimate*
over Gaussian probes :math:`v`, of which
:math:`\mathbb E\big[(N^a v)_i (N^b v)_i\big] = (N^{a+b})_{ii}`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from geof.errors import ConfigError, DataError, DtypeError, ShapeError, nearest

DegreeScale = Literal["max", "log"]
Method = Literal["exact", "estimate"]

# On Photo and Physics wider blocks fall out of the cache (half the speed at 128 columns) and
# narrower ones leave the vector units idle.
_MAX_COLUMNS = 32
# Float64 numbers held per node and column: two powers, their product, the probes.
_BUFFERS = 4


@dataclass(frozen=True, eq=False)
class StructuralSignature:
    """The signature of every node and the record of how it was made.

    Attributes:
        values: ``(n, 1 + walk_length)``: normalised degree, then return probabilities.
        walk_length: The longest walk ``K``.
        degree: How column 0 was normalised.
        method: ``"exact"`` or ``"estimate"``.
        probes: Number of probes, ``None`` when exact.
        seed: Seed of the probes, ``None`` when exact.
        standard_error: Per column, the root mean square over the nodes of the standard error
            seen in the probes' sample variance; ``None`` when exact.
    """

    values: Tensor
    walk_length: int
    degree: DegreeScale
    method: Method
    probes: int | None = None
    seed: int | None = None
    standard_error: tuple[float, ...] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the record as JSON-able metadata, without the values."""
        error = self.standard_error
        return {
            "columns": ["degree", *(f"return_{k}" for k in range(1, self.walk_length + 1))],
            "walk_length": self.walk_length,
            "degree": self.degree,
            "method": self.method,
            "probes": self.probes,
            "seed": self.seed,
            "standard_error": None if error is None else list(error),
            "dtype": str(self.values.dtype).removeprefix("torch."),
        }


def structural_signature(
    edge_index: Tensor,
    num_nodes: int,
    *,
    walk_length: int = 16,
    degree: DegreeScale = "max",
    batch: Tensor | None = None,
    method: Method = "exact",
    probes: int = 256,
    seed: int = 0,
    max_work: float | None = 2e13,
    memory_bytes: int = 2**29,
    dtype: torch.dtype = torch.float32,
) -> StructuralSignature:
    r"""Compute normalised degree and random-walk return probabilities of every node.

    Self-loops are dropped and duplicate edges count once. An isolated node has return
    probability 0. Everything is computed on the CPU in float64. A batch of graphs costs little
    more than its graphs: components share columns, so the work is that of each component alone.

    The estimate is unbiased. Columns 0, 1 and 2 stay exact; for even :math:`k \ge 4` the
    relative standard error is :math:`\sqrt{2 / \text{probes}}` at every node, and for odd
    :math:`k = 2h + 1` the variance is
    :math:`\big((P^{2h})_{ii} (P^{2h+2})_{ii} + (P^k)_{ii}^2\big) / \text{probes}`.

    Args:
        edge_index: ``(2, E)``, int64, both directions of every edge.
        num_nodes: Number of nodes ``n``.
        walk_length: The longest walk ``K >= 0``; 0 gives the degree only.
        degree: ``"max"``: degree over the largest in the node's own graph; ``"log"``:
            :math:`\log(1 + d_i) / \log(1 + d_{max})`.
        batch: ``(n,)``, the graph of each node; without it all nodes are one graph.
        method: ``"exact"`` or ``"estimate"``; one is never exchanged for the other silently.
        probes: Gaussian probes of the estimate, at least 2.
        seed: Seed of the probes. Same arguments, same bits.
        max_work: The most multiply-adds ``"exact"`` may take before it refuses:
            :math:`\lfloor (K - 1) / 2 \rfloor \sum_c \mathrm{nnz}_c n_c` over the connected
            components. The default is one to two hours on two cores; ``None`` lifts the limit.
        memory_bytes: Approximate budget of the dense blocks; it sets how many columns or
            probes are propagated at a time, and the result only up to rounding.
        dtype: Floating dtype of the result.

    Returns:
        The values ``(n, 1 + walk_length)`` on the device of ``edge_index``, and their record.

    Raises:
        ShapeError: If ``edge_index`` or ``batch`` has the wrong shape.
        DtypeError: If ``edge_index`` or ``batch`` has the wrong dtype.
        DataError: If an index is out of range, an edge lacks its reverse or joins two graphs
            of the batch, or the exact work exceeds ``max_work``.
        ConfigError: If a setting is unknown or out of range.

    >>> triangle = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    >>> structural_signature(triangle, num_nodes=3, walk_length=4).values[0]
    tensor([1.0000, 0.0000, 0.5000, 0.2500, 0.3750])
    """
    _check_settings(walk_length, degree, method, probes, memory_bytes, dtype)
    _require_integer("num_nodes", num_nodes, at_least=0)
    adjacency = _simple_adjacency(edge_index, num_nodes)
    graph = _graph_of_node(batch, adjacency)

    values = np.zeros((1 + walk_length, num_nodes))  # a row per column: blocks add to whole rows
    values[0] = _normalised_degree(adjacency, graph, degree)
    error = np.zeros(1 + walk_length)
    if walk_length >= 2:
        walk = _symmetric_walk(adjacency)
        values[2] = walk.power(2).sum(axis=1)
    if walk_length >= 3 and adjacency.nnz:
        columns = max(1, min(_MAX_COLUMNS, memory_bytes // (8 * _BUFFERS * num_nodes)))
        if method == "exact":
            values[3:] = _exact_returns(walk, walk_length, columns, max_work)
        else:
            values[3:], error[3:] = _estimated_returns(walk, walk_length, columns, probes, seed)

    estimated = method == "estimate"
    return StructuralSignature(
        values=torch.from_numpy(values.T).to(dtype).contiguous().to(edge_index.device),
        walk_length=walk_length,
        degree=degree,
        method=method,
        probes=probes if estimated else None,
        seed=seed if estimated else None,
        standard_error=tuple(error.tolist()) if estimated else None,
    )


class AddStructuralSignature(BaseTransform):  # type: ignore[misc]  # PyG ships no types
    """PyG transform that stores :func:`structural_signature` as ``data.signature``.

    It reads ``data.edge_index``, ``data.num_nodes`` and, when there, ``data.batch``. The
    arguments are those of :func:`structural_signature`.

    >>> from torch_geometric.data import Data
    >>> edge_index = torch.tensor([[0, 1], [1, 0]])
    >>> transform = AddStructuralSignature(walk_length=2)
    >>> transform(Data(edge_index=edge_index, num_nodes=2)).signature
    tensor([[1., 0., 1.],
            [1., 0., 1.]])
    """

    def __init__(
        self,
        *,
        walk_length: int = 16,
        degree: DegreeScale = "max",
        method: Method = "exact",
        probes: int = 256,
        seed: int = 0,
        max_work: float | None = 2e13,
        memory_bytes: int = 2**29,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        _check_settings(walk_length, degree, method, probes, memory_bytes, dtype)
        self.walk_length = walk_length
        self.degree = degree
        self.method = method
        self.probes = probes
        self.seed = seed
        self.max_work = max_work
        self.memory_bytes = memory_bytes
        self.dtype = dtype

    def forward(self, data: Data) -> Data:
        """Return ``data`` with ``signature`` of shape ``(n, 1 + walk_length)``."""
        if getattr(data, "edge_index", None) is None:
            raise DataError(
                f"Expected 'data' to have an 'edge_index' (got {type(data).__name__} without "
                "one). Heterogeneous graphs need data.to_homogeneous() first."
            )
        data.signature = structural_signature(
            data.edge_index, data.num_nodes, batch=data.get("batch"), **vars(self)
        ).values
        return data

    def __repr__(self) -> str:
        estimate = f", probes={self.probes}, seed={self.seed}" if self.method == "estimate" else ""
        return (
            f"{type(self).__name__}(walk_length={self.walk_length}, degree={self.degree!r}, "
            f"method={self.method!r}{estimate})"
        )


def _exact_returns(
    walk: csr_array, walk_length: int, columns: int, max_work: float | None
) -> NDArray[np.float64]:
    """Return ``(K - 2, n)``: the return probabilities of 3 and more steps."""
    component, sizes = _components_by_size(walk)
    _check_work(walk, sizes[component], walk_length, max_work)
    order = _component_order(walk, component)
    total = torch.zeros(walk_length - 2, walk.shape[0], dtype=torch.float64)
    for matrix, first in _column_blocks(_reordered(walk, order), sizes, columns):
        for k, left, right in _powers(matrix, first, walk_length):
            total[k - 3, : first.size(0)] += torch.einsum("ij,ij->i", left, right)
    values = np.empty(total.shape)
    values[:, order] = total.numpy()
    return values


def _estimated_returns(
    walk: csr_array, walk_length: int, columns: int, probes: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ``(K - 2, n)`` estimates and the root mean square standard error of each row."""
    size = walk.shape[0]
    matrix = _torch_csr(walk, size)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(walk_length - 2, size, dtype=torch.float64)
    squares = torch.zeros_like(total)
    for start in range(0, probes, columns):
        # Drawn one by one, the probes do not depend on the block size.
        block = [
            torch.randn(size, generator=generator, dtype=torch.float64)
            for _ in range(min(columns, probes - start))
        ]
        for k, left, right in _powers(matrix, matrix @ torch.stack(block, dim=1), walk_length):
            product = left * right
            total[k - 3] += product.sum(1)
            squares[k - 3] += torch.einsum("ij,ij->i", product, product)
    mean = total / probes
    variance = (squares / probes - mean.square()).clamp(min=0) / (probes - 1)  # of the mean
    return mean.numpy(), variance.mean(1).sqrt().numpy()


def _powers(matrix: Tensor, first: Tensor, walk_length: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``k, X_a, X_b`` with ``a + b = k`` for ``k = 3 .. K``, where ``X_a = N^a X_0``.

    ``first`` is ``X_1``. Two buffers are written in turn, so use a pair before asking for the
    next one.
    """
    left, right = first, torch.empty_like(first)
    for k in range(3, walk_length + 1, 2):
        torch.mm(matrix, left, out=right)
        yield k, left, right
        if k < walk_length:
            yield k + 1, right, right
        left, right = right, left


def _column_blocks(
    walk: csr_array, sizes: NDArray[np.int64], columns: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, block by block, the part of ``N`` still at work and its columns ``X_1 = N E``.

    Walks never leave a component, so every component may number its nodes from 0 and share
    column ``j`` with all others. The nodes of ``walk`` come component by component, largest
    first: those with a ``j``-th node are the leading rows, and column ``j`` involves no others.
    """
    first_node = np.cumsum(sizes) - sizes
    node_column = np.arange(walk.shape[0]) - np.repeat(first_node, sizes)
    entry_column = np.repeat(node_column, np.diff(walk.indptr))
    by_column = np.argsort(entry_column, kind="stable")
    column, row = entry_column[by_column], walk.indices[by_column].astype(np.int64)
    value = walk.data[by_column]
    for start in range(0, int(sizes[0]), columns):
        stop = min(start + columns, int(sizes[0]))
        rows = int(sizes[sizes > start].sum())
        entries = slice(*np.searchsorted(column, [start, stop]))
        first = np.zeros((rows, stop - start))
        first[row[entries], column[entries] - start] = value[entries]
        yield _torch_csr(walk, rows), torch.from_numpy(first)


def _components_by_size(walk: csr_array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the component of each node and the components' sizes, numbered largest first."""
    _, label = connected_components(walk, directed=False)
    sizes = np.bincount(label)
    largest_first = np.argsort(-sizes, kind="stable")
    rank = np.empty_like(largest_first)
    rank[largest_first] = np.arange(len(sizes))
    return rank[label], sizes[largest_first]


def _component_order(walk: csr_array, component: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order the nodes by component and, for the cache, neighbours close to each other."""
    nodes = reverse_cuthill_mckee(walk, symmetric_mode=True)
    return nodes[np.argsort(component[nodes], kind="stable")].astype(np.int64)


def _reordered(walk: csr_array, order: NDArray[np.int64]) -> csr_array:
    walk = walk[order][:, order]
    walk.sort_indices()
    return walk


def _torch_csr(walk: csr_array, rows: int) -> Tensor:
    """Share the leading ``rows`` x ``rows`` part with torch, whose product is multi-threaded."""
    entries = int(walk.indptr[rows])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(walk.indptr[: rows + 1]),
            torch.from_numpy(walk.indices[:entries]),
            torch.from_numpy(walk.data[:entries]),
            size=(rows, rows),
            check_invariants=False,
        )


def _symmetric_walk(adjacency: csr_array) -> csr_array:
    r"""Return :math:`N = D^{-1/2} A D^{-1/2}`; rows of isolated nodes are empty."""
    degree = np.diff(adjacency.indptr)
    scale = 1.0 / np.sqrt(np.maximum(degree, 1))
    walk = adjacency.copy()
    walk.data = np.repeat(scale, degree) * scale[walk.indices]
    return walk


def _simple_adjacency(edge_index: Tensor, num_nodes: int) -> csr_array:
    """Return the 0/1 adjacency without self-loops and duplicates, after checking the edges."""
    _check_edge_index(edge_index, num_nodes)
    source, target = edge_index.detach().cpu().numpy()
    keep = source != target
    source, target = source[keep], target[keep]
    adjacency = csr_array((np.ones(len(source)), (source, target)), shape=(num_nodes, num_nodes))
    adjacency.data[:] = 1.0  # duplicates were summed
    reverse = adjacency.T.tocsr()
    if not np.array_equal(adjacency.indptr, reverse.indptr) or not np.array_equal(
        adjacency.indices, reverse.indices
    ):
        i, j = (int(index[0]) for index in (adjacency - reverse).maximum(0).nonzero())
        raise DataError(
            "Expected 'edge_index' to hold both directions of every edge "
            f"(got {i} -> {j} without {j} -> {i}). Use torch_geometric.utils.to_undirected."
        )
    return adjacency


def _graph_of_node(batch: Tensor | None, adjacency: csr_array) -> NDArray[np.int64]:
    num_nodes = adjacency.shape[0]
    if batch is None:
        return np.zeros(num_nodes, dtype=np.int64)
    _require_tensor("batch", batch)
    if batch.shape != (num_nodes,):
        raise ShapeError(
            f"Expected 'batch' to have shape ({num_nodes},), one graph index per node "
            f"(got {tuple(batch.shape)})."
        )
    graph = np.unique(batch.detach().cpu().numpy(), return_inverse=True)[1]
    source = np.repeat(graph, np.diff(adjacency.indptr))
    if (source != graph[adjacency.indices]).any():
        raise DataError(
            "Expected every edge of 'edge_index' to stay inside one graph of 'batch' (got an "
            "edge between two graphs). Build both with torch_geometric.data.Batch."
        )
    return graph


def _normalised_degree(
    adjacency: csr_array, graph: NDArray[np.int64], scale: DegreeScale
) -> NDArray[np.float64]:
    degree = np.diff(adjacency.indptr).astype(np.float64)
    largest = np.zeros(graph.max(initial=0) + 1)
    np.maximum.at(largest, graph, degree)
    largest = largest[graph]
    if scale == "log":
        degree, largest = np.log1p(degree), np.log1p(largest)
    return np.divide(degree, largest, out=np.zeros_like(degree), where=largest > 0)


def _check_settings(
    walk_length: int,
    degree: str,
    method: str,
    probes: int,
    memory_bytes: int,
    dtype: torch.dtype,
) -> None:
    _require_integer("walk_length", walk_length, at_least=0)
    _require_integer("probes", probes, at_least=2)
    _require_integer("memory_bytes", memory_bytes, at_least=1)
    for name, got, valid in (
        ("degree", degree, get_args(DegreeScale)),
        ("method", method, get_args(Method)),
    ):
        if got not in valid:
            raise ConfigError(
                f"Expected '{name}' to be one of the known ones (got {got!r}). "
                f"{nearest(str(got), valid)}"
            )
    if not dtype.is_floating_point:
        raise ConfigError(
            f"Expected 'dtype' to be a floating dtype (got {dtype}). Use torch.float32."
        )


def _check_edge_index(edge_index: Tensor, num_nodes: int) -> None:
    _require_tensor("edge_index", edge_index)
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ShapeError(
            "Expected 'edge_index' to have shape (2, E), sources above targets "
            f"(got {tuple(edge_index.shape)})."
        )
    if edge_index.numel() == 0:
        return
    low, high = (int(bound) for bound in edge_index.aminmax())
    if low < 0 or high >= num_nodes:
        raise DataError(
            f"Expected 'edge_index' to hold node indices from 0 to {num_nodes - 1} "
            f"(got {low} to {high}). Renumber the nodes or correct 'num_nodes'."
        )


def _check_work(
    walk: csr_array, component_size: NDArray[np.int64], walk_length: int, max_work: float | None
) -> None:
    products = (walk_length - 1) // 2
    work = products * float(np.diff(walk.indptr).astype(np.float64) @ component_size)
    if max_work is not None and work > max_work:
        raise DataError(
            f"Expected the exact return probabilities to take at most max_work={max_work:.1e} "
            f"multiply-adds (got {work:.1e}). Pass method='estimate', or max_work=None to "
            "compute them all the same."
        )


def _require_tensor(name: str, value: object) -> None:
    got = value.dtype if isinstance(value, Tensor) else type(value).__name__
    if got != torch.int64:
        raise DtypeError(f"Expected '{name}' to be an int64 tensor (got {got}). Use .long().")


def _require_integer(name: str, value: object, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(
            f"Expected '{name}' to be an integer of at least {at_least} (got {value!r})."
        )

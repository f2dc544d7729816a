r"""The structural signature :math:`u_i` (paper, section 3 "Problem Setup").

Column 0 is the normalised degree, column :math:`k` the probability that a random walk on the
simple undirected graph is back at its start after :math:`k` steps (RWSE):

.. math::
    u_i = \big[\bar d_i, (P^1)_{ii}, \dots, (P^K)_{ii}\big], \qquad P = D^{-1} A .

The powers of the symmetric :math:`N = D^{-1/2} A D^{-1/2}` have the same diagonal as those of
:math:`P`, so half of the steps suffice:

.. math::
    (P^{a+b})_{ii} = (N^a N^b)_{ii} = \sum_j (N^a)_{ij} (N^b)_{ij} .

Without self-loops :math:`(P^1)_{ii} = 0`, and :math:`(P^2)_{ii} = \sum_j N_{ij}^2` takes no
product. Beyond that the *exact* method runs over blocks of columns :math:`j`, the *estimate*
over Gaussian probes :math:`v`, for which
:math:`\mathbb E\big[(N^a v)_i (N^b v)_i\big] = (N^{a+b})_{ii}`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from numbers import Integral
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
from geof.kernels.neighbourhood import check_edge_index
from geof.progress import announce, clock, tracked

Degree = Literal["max", "log"]
Method = Literal["exact", "estimate"]
Floats = NDArray[np.float64]
Integers = NDArray[np.integer]


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
        standard_error: For each of the ``1 + K`` columns, the root mean square over the nodes
            of the standard error seen in the probes' sample variance; ``None`` when exact.
    """

    values: Tensor
    walk_length: int
    degree: Degree
    method: Method
    probes: int | None = None
    seed: int | None = None
    standard_error: tuple[float, ...] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the record as JSON-able metadata, without the values."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        del record["values"]
        return record | {"dtype": str(self.values.dtype).removeprefix("torch.")}


def structural_signature(
    edge_index: Tensor,
    num_nodes: int,
    *,
    walk_length: int = 16,
    degree: Degree = "max",
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
    probability 0. A batch of graphs gives each graph the values it has alone, at the cost of
    its components, not of its size. All is computed in float64 on the CPU, in as many threads
    as ``torch.get_num_threads()`` says.

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
        seed: Seed of the probes, at least 0.
        max_work: The most multiply-adds ``"exact"`` may take before it refuses:
            :math:`\lfloor (K - 1) / 2 \rfloor \sum_c \mathrm{nnz}_c n_c` over the connected
            components. The default is one to two hours on two cores; ``None`` lifts the limit.
        memory_bytes: Approximate budget of the dense blocks of all threads together. It sets
            how many columns or probes go at a time; the result changes only by rounding.
        dtype: Floating dtype of the result.

    Returns:
        The values ``(n, 1 + walk_length)`` on the device of ``edge_index``, and their record.

    Raises:
        ShapeError: If ``edge_index`` or ``batch`` has the wrong shape.
        DtypeError: If ``edge_index`` or ``batch`` has the wrong dtype.
        DataError: If an index is out of range, an edge lacks its reverse or joins two graphs
            of the batch, or the exact work exceeds ``max_work``.
        ConfigError: If an option is unknown or out of range.

    >>> triangle = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    >>> structural_signature(triangle, num_nodes=3, walk_length=4).values[0]
    tensor([1.0000, 0.0000, 0.5000, 0.2500, 0.3750])
    """
    _check_options(walk_length, degree, method, probes, seed, memory_bytes, dtype)
    adjacency = _simple_adjacency(edge_index, num_nodes)
    graph = _graph_of_node(batch, adjacency)

    values = np.zeros((1 + walk_length, num_nodes))  # transposed: blocks add to contiguous rows
    error = np.zeros(1 + walk_length)
    values[0] = _normalised_degree(adjacency, graph, degree)
    if walk_length >= 2:
        walk = symmetric_walk(adjacency)
        values[2] = walk.power(2).sum(axis=1)
    if walk_length >= 3 and adjacency.nnz:
        columns = columns_at_a_time(num_nodes, memory_bytes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            if method == "exact":
                values[3:] = exact_returns(walk, walk_length, columns, max_work)
            else:
                values[3:], error[3:] = estimated_returns(walk, walk_length, columns, probes, seed)

    result = torch.from_numpy(values.T).to(dtype).contiguous().to(edge_index.device)
    record = StructuralSignature(result, int(walk_length), degree, method)
    if method == "exact":
        return record
    error_of_column = tuple(error.tolist())
    return replace(record, probes=int(probes), seed=int(seed), standard_error=error_of_column)


class AddStructuralSignature(BaseTransform):  # type: ignore[misc]  # PyG ships no types
    """PyG transform that stores :func:`structural_signature` as ``data.signature``.

    It reads ``data.edge_index``, ``data.num_nodes`` and, when there, ``data.batch``. The
    arguments are those of :func:`structural_signature`.

    >>> transform = AddStructuralSignature(walk_length=2)
    >>> transform(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)).signature
    tensor([[1., 0., 1.],
            [1., 0., 1.]])
    """

    def __init__(
        self,
        *,
        walk_length: int = 16,
        degree: Degree = "max",
        method: Method = "exact",
        probes: int = 256,
        seed: int = 0,
        max_work: float | None = 2e13,
        memory_bytes: int = 2**29,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        _check_options(walk_length, degree, method, probes, seed, memory_bytes, dtype)
        self.walk_length, self.degree, self.method = walk_length, degree, method
        self.probes, self.seed = probes, seed
        self.max_work, self.memory_bytes, self.dtype = max_work, memory_bytes, dtype

    def forward(self, data: Data) -> Data:
        """Return ``data`` with ``signature`` of shape ``(n, 1 + walk_length)``."""
        if getattr(data, "edge_index", None) is None:
            raise DataError(
                f"Expected 'data' to have an 'edge_index' (got a {type(data).__name__} without "
                "one). A heterogeneous graph needs data.to_homogeneous() first."
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


def _simple_adjacency(edge_index: Tensor, num_nodes: int) -> csr_array:
    """Return the symmetric adjacency without self-loops and duplicates, or say what is wrong."""
    _require_integer("num_nodes", num_nodes, at_least=0)
    check_edge_index(edge_index, num_nodes)
    source, target = edge_index.detach().cpu().numpy()
    keep = source != target
    edges = (source[keep], target[keep])
    adjacency = csr_array((np.ones(keep.sum()), edges), shape=(num_nodes, num_nodes))
    adjacency.data[:] = 1.0  # duplicates were added up
    if (one_way := (adjacency - adjacency.T).maximum(0)).nnz:
        i, j = (int(index[0]) for index in one_way.nonzero())
        raise DataError(
            "Expected 'edge_index' to hold both directions of every edge "
            f"(got {i} -> {j} without {j} -> {i}). Use torch_geometric.utils.to_undirected."
        )
    return adjacency


def _graph_of_node(batch: Tensor | None, adjacency: csr_array) -> Integers:
    """Return the graph of each node, numbered from 0."""
    num_nodes = adjacency.shape[0]
    if batch is None:
        return np.zeros(num_nodes, dtype=np.int64)
    _require_int64("batch", batch)
    if batch.shape != (num_nodes,):
        raise ShapeError(
            f"Expected 'batch' to have shape ({num_nodes},), one graph index per node "
            f"(got {tuple(batch.shape)})."
        )
    graph = np.unique(batch.detach().cpu().numpy(), return_inverse=True)[1]
    if (np.repeat(graph, np.diff(adjacency.indptr)) != graph[adjacency.indices]).any():
        raise DataError(
            "Expected every edge of 'edge_index' to stay inside one graph of 'batch' (got an "
            "edge between two graphs). Build both with torch_geometric.data.Batch."
        )
    return graph


def _normalised_degree(adjacency: csr_array, graph: Integers, scale: Degree) -> Floats:
    """Return the degree over the largest one in the node's graph, 0 where that is 0."""
    degree = np.diff(adjacency.indptr).astype(np.float64)
    largest = np.zeros(graph.max(initial=0) + 1)
    np.maximum.at(largest, graph, degree)
    if scale == "log":
        degree, largest = np.log1p(degree), np.log1p(largest)
    return np.divide(degree, largest[graph], out=np.zeros_like(degree), where=degree > 0)


def _check_options(
    walk_length: int,
    degree: str,
    method: str,
    probes: int,
    seed: int,
    memory_bytes: int,
    dtype: torch.dtype,
) -> None:
    _require_integer("walk_length", walk_length, at_least=0)
    _require_integer("probes", probes, at_least=2)
    _require_integer("seed", seed, at_least=0)
    _require_integer("memory_bytes", memory_bytes, at_least=1)
    _require_choice("degree", degree, get_args(Degree))
    _require_choice("method", method, get_args(Method))
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"Expected 'dtype' to be a floating dtype (got {dtype}).")


def _require_int64(name: str, value: object) -> None:
    got = value.dtype if isinstance(value, Tensor) else type(value).__name__
    if got != torch.int64:
        raise DtypeError(f"Expected '{name}' to be an int64 tensor (got {got}). Use .long().")


def _require_integer(name: str, value: object, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise ConfigError(
            f"Expected '{name}' to be an integer of at least {at_least} (got {value!r})."
        )


def _require_choice(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        hint = nearest(str(value), valid)
        raise ConfigError(f"Expected '{name}' to be a known one (got {value!r}). {hint}")


# On Photo and Physics wider blocks fall out of the cache and narrower ones idle the vector units.
_MAX_COLUMNS = 32
# Float64 numbers held per node and column: two powers, their product, the probes.
_BUFFERS = 4
# Multiply-adds per second and thread where everything is in the cache, and the nodes from which
# that is no longer so: Photo 2.6e9, Physics 0.8e9, 200,000 nodes at random some 0.2e9.
_RATE = 2.4e9
_CACHED = 20_000
_ESTIMATE = "an estimate, signature.method=estimate (method='estimate' in Python)"


def columns_at_a_time(num_nodes: int, memory_bytes: int) -> int:
    """Return how many columns or probes fit the budget of all threads together, at least one."""
    budget = memory_bytes // (8 * _BUFFERS * num_nodes * torch.get_num_threads())
    return min(max(1, budget), _MAX_COLUMNS)


def exact_returns(
    walk: csr_array, walk_length: int, columns: int, max_work: float | None
) -> Floats:
    """Return ``(K - 2, n)``: the return probabilities of 3 and more steps.

    Walks never leave a component, so every component numbers its nodes from 0 and shares
    column ``j`` with all others. With the components in order of size, those that have a
    ``j``-th node are the leading rows of the matrix, and the others sit out.
    """
    component, sizes = _components_by_size(walk)
    products = (walk_length - 1) // 2
    work = products * float(np.diff(walk.indptr) @ sizes[component])
    alone = work / _RATE * (1 + walk.shape[0] / _CACHED)  # seconds on one core
    _check_work(work, max_work, alone)
    announce("Exact signatures", alone / torch.get_num_threads(), _ESTIMATE)
    order = _component_order(walk, component)
    walk = walk[order][:, order]
    walk.sort_indices()
    column, row, value = _entries_by_column(walk, sizes)

    def block_returns(start: int) -> Floats:
        stop = min(start + columns, int(sizes[0]))
        rows = int(sizes[sizes > start].sum())
        entries = slice(*np.searchsorted(column, [start, stop]))
        first = np.zeros((rows, stop - start))
        first[row[entries], column[entries] - start] = value[entries]
        returns = np.empty((walk_length - 2, rows))
        for k, left, right in _powers(_torch_csr(walk, rows), torch.from_numpy(first), walk_length):
            returns[k - 3] = torch.einsum("ij,ij->i", left, right)
        return returns

    total = np.zeros((walk_length - 2, walk.shape[0]))
    starts = range(0, int(sizes[0]), columns)
    for block in tracked("signatures", _in_threads(block_returns, starts), len(starts)):
        total[:, : block.shape[1]] += block
    values = np.empty_like(total)
    values[:, order] = total
    return values


def estimated_returns(
    walk: csr_array, walk_length: int, columns: int, probes: int, seed: int
) -> tuple[Floats, Floats]:
    """Return ``(K - 2, n)`` estimates and the root mean square standard error of each row."""
    size = walk.shape[0]
    matrix = _torch_csr(walk, size)

    def block_moments(start: int) -> Floats:
        # A stream per probe: the probes depend neither on the blocks nor on the threads.
        block = [
            np.random.default_rng([seed, probe]).standard_normal(size)
            for probe in range(start, min(start + columns, probes))
        ]
        first = matrix @ torch.from_numpy(np.stack(block, axis=1))
        moments = np.empty((2, walk_length - 2, size))
        for k, left, right in _powers(matrix, first, walk_length):
            product = left * right
            moments[0, k - 3] = product.sum(1)
            moments[1, k - 3] = torch.einsum("ij,ij->i", product, product)
        return moments

    moments = np.zeros((2, walk_length - 2, size))
    starts = range(0, probes, columns)
    for block in tracked("signatures", _in_threads(block_moments, starts), len(starts)):
        moments += block
    mean, square = moments / probes
    variance = np.maximum(square - mean**2, 0) / (probes - 1)  # of the mean
    return mean, np.sqrt(variance.mean(axis=1))


def _powers(
    matrix: Tensor, first: Tensor, walk_length: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
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


def _in_threads(task: Callable[[int], Floats], starts: range) -> Iterator[Floats]:
    """Map ``task`` over the blocks in order, a whole block per thread.

    Left to itself torch would split every product among its threads; they wait for each other
    after each of thousands of short products, many times slower when a core is busy elsewhere.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(task, starts)
    finally:
        torch.set_num_threads(threads)


def _components_by_size(walk: csr_array) -> tuple[Integers, Integers]:
    """Return the component of each node and the components' sizes, numbered largest first."""
    _, label = connected_components(walk, directed=False)
    sizes = np.bincount(label)
    largest_first = np.argsort(-sizes, kind="stable")
    return np.argsort(largest_first)[label], sizes[largest_first]


def _component_order(walk: csr_array, component: Integers) -> Integers:
    """Order the nodes by component and, for the cache, neighbours close to each other."""
    nodes = reverse_cuthill_mckee(walk, symmetric_mode=True)
    return nodes[np.argsort(component[nodes], kind="stable")]


def _entries_by_column(walk: csr_array, sizes: Integers) -> tuple[Integers, Integers, Floats]:
    """Return column, row and value of each entry, the columns counted inside each component."""
    node_column = np.arange(walk.shape[0]) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    column = np.repeat(node_column, np.diff(walk.indptr))
    by_column = np.argsort(column, kind="stable")
    return column[by_column], walk.indices[by_column], walk.data[by_column]


def _torch_csr(walk: csr_array, rows: int) -> Tensor:
    """Share the leading ``rows`` x ``rows`` part with torch, whose product is the faster one."""
    entries = int(walk.indptr[rows])
    pointer = torch.from_numpy(walk.indptr[: rows + 1])
    index = torch.from_numpy(walk.indices[:entries])
    value = torch.from_numpy(walk.data[:entries])
    return torch.sparse_csr_tensor(pointer, index, value, (rows, rows), check_invariants=False)


def symmetric_walk(adjacency: csr_array) -> csr_array:
    r"""Return :math:`N = D^{-1/2} A D^{-1/2}`; the rows of isolated nodes are empty."""
    degree = np.diff(adjacency.indptr)
    scale = 1.0 / np.sqrt(np.maximum(degree, 1))
    values = np.repeat(scale, degree) * scale[adjacency.indices]
    return csr_array((values, adjacency.indices, adjacency.indptr), shape=adjacency.shape)


def _check_work(work: float, max_work: float | None, seconds: float) -> None:
    if max_work is not None and work > max_work:
        raise DataError(
            f"Expected the exact return probabilities to take at most max_work={max_work:.1e} "
            f"multiply-adds (got {work:.1e}, about {clock(seconds)} on one core). Take an "
            "estimate with method='estimate' (signature.method=estimate on the command line), or, "
            "in Python, max_work=None to compute them all the same."
        )

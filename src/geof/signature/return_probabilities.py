r"""Return probabilities of a symmetric walk, by blocks of columns or by random probes.

See :mod:`geof.signature.structural` for the identities behind both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from torch import Tensor

from geof.errors import DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]

# On Photo and Physics wider blocks fall out of the cache and narrower ones idle the vector units.
_MAX_COLUMNS = 32
# Float64 numbers held per node and column: two powers, their product, the probes.
_BUFFERS = 4


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
    _check_work(products * float(np.diff(walk.indptr) @ sizes[component]), max_work)
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
    for block in _in_threads(block_returns, range(0, int(sizes[0]), columns)):
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
    for block in _in_threads(block_moments, range(0, probes, columns)):
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


def _check_work(work: float, max_work: float | None) -> None:
    if max_work is not None and work > max_work:
        raise DataError(
            f"Expected the exact return probabilities to take at most max_work={max_work:.1e} "
            f"multiply-adds (got {work:.1e}). Pass method='estimate', or max_work=None to "
            "compute them all the same."
        )

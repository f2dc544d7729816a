r"""Eigenpairs of normalised Laplacians, for methods that filter in the spectral domain.

With :math:`A` the symmetrised 0/1 adjacency and its degrees :math:`D`,

.. math::
    L = I - D^{-1/2} A D^{-1/2} \quad\text{or, with self-loops,}\quad
    L = I - \hat D^{-1/2} (A + I) \hat D^{-1/2}.

**The null space needs no solver.** The eigenvalue 0 has one eigenvector per connected component,
:math:`v_i = \sqrt{d_i / \sum_{j} d_j}` over its nodes. CiteSeer has 438 components, so a dense
matrix of its smallest eigenvectors would be mostly these. They are kept as one number per node and
cost :math:`O(n)`; only eigenvectors of positive eigenvalues are stored densely. A node without
edges is a component of its own with :math:`\lambda = 0` (Chung's convention; :math:`I - 0` would
say 1), as in the Laplacian with self-loops.

**Which pairs.** The smallest ``share * n`` of all eigenvalues, zeros counted, and of the positive
ones at most ``eigenpairs``. If this cut would go through an eigenspace (eigenvalues within
:data:`TIE`), the whole eigenspace is left out: half of it is not a function of the graph, since any
basis of it is as good as another. A star keeps its null space alone.

**How.** Components of up to :data:`DENSE_NODES` nodes are solved densely, larger ones by Lanczos
iteration (ARPACK) on :math:`I - L` from a fixed start vector, in float64. CPU seconds of the
largest component on a slow core with other work beside it, 256 pairs: CiteSeer 2.4, Photo 8 to
12, Computers 21 to 25, CS 57, PubMed 72; 128 pairs of Physics 37. Eigenpairs are cached with the
graph, and those of a whole large graph also in the cache on disk. ``eigenpairs=None`` sets no limit
and solves densely, as published: :math:`O(n^2)` memory and :math:`O(n^3)` time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.data.cache import Entry, cache_key, content_hash, load_or_build
from geof.errors import DataError
from geof.kernels.neighbourhood import Cache
from geof.methods.interface import GraphInputs
from geof_paper.baselines.blocks import Blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Floats: TypeAlias = NDArray[np.float64]

DENSE_NODES = 1024
"""Largest component whose Laplacian is made dense: 8 MB."""

TIE = 1e-8
"""Eigenvalues nearer than this are one; the solver's own errors are some orders smaller."""

VERSION = 1
"""Raised whenever the computed values change."""

_TOLERANCE = 1e-10  # of the Lanczos iteration, relative


@dataclass(frozen=True)
class SpectrumOptions:
    """Which eigenpairs.

    Attributes:
        loops: Whether the Laplacian has self-loops.
        share: Share of all eigenpairs, the smallest, at most 1.
        eigenpairs: Most pairs with a positive eigenvalue; ``None`` for any number.
        rescale: Whether eigenvalues are multiplied so that the graph's largest is 2.
    """

    loops: bool
    share: float
    eigenpairs: int | None
    rescale: bool


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenpairs of one graph.

    Attributes:
        values: ``(k,)``, positive eigenvalues, ascending.
        vectors: ``(n, k)``, their eigenvectors.
        null: ``(n,)``, the entries of the null space's eigenvectors, each node's in its component.
        component: ``(n,)``, the component of each node.
        components: How many, the multiplicity of the eigenvalue 0.
    """

    values: Tensor
    vectors: Tensor
    null: Tensor
    component: Tensor
    components: int

    def to(self, dtype: torch.dtype) -> Spectrum:
        """Return a copy in another precision."""
        values, vectors, null = (t.to(dtype) for t in (self.values, self.vectors, self.null))
        return Spectrum(values, vectors, null, self.component, self.components)


def graph_spectrum(edge_index: Tensor, num_nodes: int, options: SpectrumOptions) -> Spectrum:
    """Return eigenpairs of one graph in float64.

    Args:
        edge_index: ``(2, E)``; an edge given in one direction counts in both.
        num_nodes: ``n``.
        options: Which eigenpairs.

    Raises:
        DataError: If the Lanczos iteration does not converge.
    """
    from scipy.sparse.csgraph import connected_components

    adjacency = _adjacency(edge_index, num_nodes, options.loops)
    components, component = connected_components(adjacency, directed=False)
    degree = np.asarray(adjacency.sum(axis=1), dtype=np.float64).ravel()
    degree[degree == 0] = 1.0  # alone: any weight, it is normalised below
    volume = np.bincount(component, weights=degree, minlength=components)
    null = np.sqrt(degree / volume[component])
    count = _wanted(num_nodes, components, options)
    values, vectors, largest = _positive_pairs(
        adjacency, degree, component, components, count, options
    )
    if options.rescale and largest > 0:
        values = 2 * values / largest  # in this order the largest becomes 2 to the last bit
    return Spectrum(
        torch.from_numpy(values),
        torch.from_numpy(vectors),
        torch.from_numpy(null),
        torch.from_numpy(component.astype(np.int64)),
        int(components),
    )


def cached_spectra(
    inputs: GraphInputs, options: SpectrumOptions, *, on_disk: bool = False
) -> list[Spectrum]:
    """Return the eigenpairs of every graph of a batch, computed once per graph.

    Args:
        inputs: One graph or a batch.
        options: Which eigenpairs.
        on_disk: Whether those of a single large graph go to the cache. Not for graphs that are
            drawn anew in every epoch.
    """
    dtype = inputs.x.dtype
    key = (Spectrum, options, dtype)
    caches = inputs.caches or tuple(Cache() for _ in range(inputs.num_graphs))
    blocks = Blocks.of(inputs)
    sizes = blocks.sizes.tolist()
    edges: list[Tensor] = []
    if any(key not in cache for cache in caches):
        edges = _edges_by_graph(inputs, blocks)

    def solve(g: int) -> Spectrum:
        solver = _cached if on_disk and sizes[g] > DENSE_NODES else graph_spectrum
        return solver(edges[g], sizes[g], options).to(dtype)

    return [cache.cached(key, partial(solve, g)) for g, cache in enumerate(caches)]


def _edges_by_graph(inputs: GraphInputs, blocks: Blocks) -> list[Tensor]:
    """Return each graph's edges, nodes numbered within it."""
    if inputs.batch is None:
        return [inputs.edge_index]
    graph = inputs.batch[inputs.edge_index[1]]
    order = torch.argsort(graph, stable=True)
    counts = torch.bincount(graph, minlength=inputs.num_graphs)
    local = blocks.local[inputs.edge_index[:, order]]
    return list(local.split(counts.tolist(), dim=1))


def _cached(edge_index: Tensor, num_nodes: int, options: SpectrumOptions) -> Spectrum:
    """Return the eigenpairs from the cache on disk, or put them there."""
    source = content_hash({"edge_index": edge_index, "nodes": torch.tensor([num_nodes])})
    key = cache_key({"edges": source}, VERSION, vars(options))

    def build() -> Entry:
        made = graph_spectrum(edge_index, num_nodes, options)
        tensors = {name: value for name, value in vars(made).items() if isinstance(value, Tensor)}
        return Entry(tensors, {"components": made.components})

    entry = load_or_build("spectra", key, build)
    return Spectrum(**entry.tensors, components=int(entry.metadata["components"]))


def _adjacency(edge_index: Tensor, nodes: int, loops: bool) -> csr_matrix:
    """Return the symmetrised 0/1 adjacency, with or without self-loops."""
    from scipy.sparse import coo_matrix

    source, target = edge_index.detach().cpu().numpy()
    other = source != target
    source, target = source[other], target[other]
    own = np.arange(nodes if loops else 0)
    rows = np.concatenate([source, target, own])
    columns = np.concatenate([target, source, own])
    matrix = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(nodes, nodes)).tocsr()
    matrix.data[:] = 1.0  # an edge given twice counts once
    return matrix


def _wanted(nodes: int, components: int, options: SpectrumOptions) -> int:
    """Return how many positive eigenvalues to keep."""
    count = max(round(options.share * nodes), 1) - components
    count = max(min(count, nodes - components), 0)
    return count if options.eigenpairs is None else min(count, options.eigenpairs)


def _positive_pairs(
    adjacency: csr_matrix,
    degree: Floats,
    component: NDArray[np.int32],
    components: int,
    count: int,
    options: SpectrumOptions,
) -> tuple[Floats, Floats, float]:
    """Return the smallest positive eigenvalues, their vectors and the largest eigenvalue."""
    from scipy.sparse import diags

    nodes = adjacency.shape[0]
    scale = diags(degree**-0.5)
    matrix = (scale @ adjacency @ scale).tocsr()
    order = np.argsort(component, kind="stable")
    ends = np.cumsum(np.bincount(component, minlength=components))
    found: list[tuple[NDArray[np.int64], Floats, Floats]] = []
    largest = 0.0
    for members in np.split(order, ends[:-1]) if count or options.rescale else []:
        if len(members) > 1:
            block = matrix if len(members) == nodes else matrix[members][:, members]
            values, vectors, top = _solve_component(block, count, options)
            found.append((members, values, vectors))
            largest = max(largest, top)
    every = np.concatenate([np.empty(0), *[values for _, values, _ in found]])
    ranked = np.argsort(every, kind="stable")
    kept = _whole_eigenspaces(every[ranked], count)
    column = np.full(len(every), -1)
    column[ranked[:kept]] = np.arange(kept)
    dense = np.zeros((nodes, kept))
    begin = 0
    for members, values, vectors in found:
        columns = column[begin : begin + len(values)]
        chosen = columns >= 0
        dense[np.ix_(members, columns[chosen])] = vectors[:, chosen]
        begin += len(values)
    return every[ranked[:kept]], dense, largest


def _whole_eigenspaces(values: Floats, count: int) -> int:
    """Return how many of the ascending values to keep, at most ``count``, without a split tie."""
    while 0 < count < len(values) and values[count] - values[count - 1] <= TIE:
        count -= 1
    return min(count, len(values))


def _solve_component(
    matrix: csr_matrix, count: int, options: SpectrumOptions
) -> tuple[Floats, Floats, float]:
    """Return the positive eigenpairs of a component, all or ``count`` and one, and the largest."""
    nodes = matrix.shape[0]
    if nodes <= DENSE_NODES or options.eigenpairs is None:
        values, vectors = np.linalg.eigh(np.eye(nodes) - matrix.toarray())
        # A component's first eigenvalue is its only zero.
        return values[1:], vectors[:, 1:], float(values[-1])
    # The zero, the wanted ones, and the next one for a look at ties.
    values, vectors = _lanczos(matrix, min(count + 2, nodes - 1), "LA")
    top = 1 - float(_lanczos(matrix, 1, "SA")[0][0]) if options.rescale else 0.0
    order = np.argsort(-values, kind="stable")[1:]
    return 1 - values[order], vectors[:, order], top


def _lanczos(matrix: csr_matrix, count: int, which: Literal["LA", "SA"]) -> tuple[Floats, Floats]:
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    nodes = matrix.shape[0]
    # A vector that respects a symmetry of the graph would never find what breaks it.
    start = np.random.default_rng(0).standard_normal(nodes)
    room = min(nodes, max(2 * count + 20, 40))
    try:
        values, vectors = eigsh(
            matrix, count, which=which, v0=start, ncv=room, tol=_TOLERANCE, maxiter=1000
        )
    except ArpackNoConvergence as error:
        raise DataError(
            f"Expected the Lanczos iteration to find {count} eigenpairs of a component with "
            f"{nodes} nodes (got {len(error.eigenvalues)}). Use fewer 'eigenpairs'."
        ) from error
    return values, vectors

"""Generated graphs with the sizes and the skew of real ones; equal seeds give equal graphs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.data.graph_sets import PackedGraphs
from geof.data.records import undirected
from geof.draws import Integers, sorted_unique
from geof.errors import ConfigError


def skewed_edges(nodes: int, edges: int, variation: float, seed: int = 0) -> Tensor:
    """Return a simple undirected graph with log-normal expected degrees.

    Args:
        nodes: ``n``.
        edges: Directed edges, an even number: every undirected edge counts twice.
        variation: Standard deviation over mean of the expected degrees.
        seed: Of all draws.

    Returns:
        ``(2, edges)`` int64, both directions, sorted by source and target, no self-loops.

    Raises:
        ConfigError: If a simple graph has no room for so many edges.
    """
    wanted = edges // 2
    if edges % 2 or wanted > nodes * (nodes - 1) // 4:
        raise ConfigError(
            f"Expected an even number of edges, at most half of the possible (got {edges} for "
            f"{nodes} nodes)."
        )
    draw = np.random.default_rng(seed)
    reach = np.cumsum(_log_normal(nodes, variation, draw))
    pairs = np.empty(0, dtype=np.int64)
    while pairs.size < wanted:
        # Repeats grow more likely the fuller the graph is; a tenth more draws than are missing.
        size = wanted - pairs.size + wanted // 10 + 8
        ends = np.searchsorted(reach, draw.random((2, size)) * reach[-1], side="right")
        low, high = np.sort(np.minimum(ends, nodes - 1), axis=0)
        pairs = sorted_unique(np.append(pairs, (low * nodes + high)[low != high]))
    # Which of the surplus is dropped must not depend on the numbering of the nodes.
    kept = np.sort(draw.permutation(pairs.size)[:wanted])
    both, _ = undirected(pairs[kept] // nodes, pairs[kept] % nodes, nodes)
    return torch.from_numpy(both)


def molecules(
    graphs: int,
    nodes: int,
    edges: int,
    features: int,
    classes: int,
    variation: float,
    seed: int = 0,
) -> PackedGraphs:
    """Return molecule-like graphs with one-hot labels: chains with branches and rings of six.

    Args:
        graphs: How many.
        nodes: Of all graphs together, at least six each.
        edges: Directed edges of all graphs together; even, at least those of the trees.
        features: Kinds of atoms.
        classes: Classes of graphs.
        variation: Standard deviation over mean of the expected numbers of nodes.
        seed: Of all draws.

    Raises:
        ConfigError: If the nodes are too few, or the edges too few for connected graphs or too
            many for rings.
    """
    draw = np.random.default_rng(seed)
    sizes = _molecule_sizes(graphs, nodes, variation, draw)
    start = np.repeat(np.cumsum(sizes) - sizes, sizes)  # of each node's own graph
    both = _molecule_edges(start, edges, draw)
    graph = np.repeat(np.arange(graphs), sizes)
    edges_of = np.bincount(graph[both[0]], minlength=graphs)
    return PackedGraphs(
        {
            "node_pointer": _pointer(sizes),
            "edge_pointer": _pointer(edges_of),
            "edge_index": torch.from_numpy(both - start[both[0]]),
            "y": torch.from_numpy(draw.integers(classes, size=graphs)),
            "codes": torch.from_numpy(draw.integers(features, size=(nodes, 1))),
        },
        sizes=(features,),
    )


def _molecule_sizes(
    graphs: int, nodes: int, variation: float, draw: np.random.Generator
) -> Integers:
    if nodes < 6 * graphs:
        raise ConfigError(f"Expected six nodes per graph (got {nodes} for {graphs} graphs).")
    weight = _log_normal(graphs, variation, draw)
    spare = draw.multinomial(nodes - 6 * graphs, weight / weight.sum())
    return 6 + spare.astype(np.int64)


def _molecule_edges(start: Integers, edges: int, draw: np.random.Generator) -> Integers:
    node = np.arange(start.size)
    place = node - start
    child = node[place > 0]
    # Mostly the previous atom, sometimes one or two before it: degrees of one to about four.
    step = np.minimum(draw.choice((1, 1, 1, 2, 3), child.size), place[child])
    may_close = node[place >= 5]
    rings = edges // 2 - child.size
    if edges % 2 or not 0 <= rings <= may_close.size:
        raise ConfigError(
            f"Expected an even number of edges from {2 * child.size} to "
            f"{2 * (child.size + may_close.size)} (got {edges})."
        )
    closing = draw.permutation(may_close)[:rings]
    source, target = np.append(child, closing), np.append(child - step, closing - 5)
    return undirected(source, target, start.size)[0]


def _log_normal(size: int, variation: float, draw: np.random.Generator) -> NDArray[np.float64]:
    return draw.lognormal(0.0, np.sqrt(np.log1p(variation**2)), size)


def _pointer(counts: Integers) -> Tensor:
    return torch.from_numpy(np.append(0, np.cumsum(counts)))


def sparse_rows(nodes: int, features: int, density: float, seed: int = 0) -> Tensor:
    """Return a CSR matrix whose rows hold equally many equal entries that sum to one."""
    filled = min(features, max(1, round(density * features)))
    generator = torch.Generator().manual_seed(seed)
    # One draw from each of 'filled' equal ranges: distinct and ascending without a sort.
    bounds = torch.linspace(0, features, filled + 1).long()
    width = (bounds[1:] - bounds[:-1]).clamp(min=1)
    column = bounds[:-1] + (torch.rand(nodes, filled, generator=generator) * width).long()
    column = torch.minimum(column, bounds[1:] - 1)
    return torch.sparse_csr_tensor(
        torch.arange(nodes + 1) * filled,
        column.flatten(),
        torch.full((nodes * filled,), 1.0 / filled),
        (nodes, features),
        check_invariants=True,
    )

"""Where the nodes of a small graph are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

CLOSE_LOOK = 100
"""Nodes up to which path lengths decide the places; beyond that, springs along edges."""


def positions(num_nodes: int, edges: Sequence[tuple[int, int]]) -> tuple[list[list[float]], str]:
    """Return places in the unit square and how they were found.

    Args:
        num_nodes: How many nodes.
        edges: Pairs of them.
    """
    try:
        import networkx as nx
    except ImportError:
        return _circle(num_nodes), "on a circle (networkx, which would place them, is not here)"
    graph = nx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edges)
    if num_nodes > 2 and num_nodes <= CLOSE_LOOK and nx.is_connected(graph):
        places, how = nx.kamada_kawai_layout(graph), "by springs as long as paths (Kamada-Kawai)"
    else:
        places, how = nx.spring_layout(graph, seed=0), "by springs along edges"
    return [[(float(v) + 1) / 2 for v in places[node]] for node in range(num_nodes)], how


def _circle(num_nodes: int) -> list[list[float]]:
    angles = [2 * math.pi * i / max(num_nodes, 1) for i in range(num_nodes)]
    return [[(1 + math.cos(angle)) / 2, (1 + math.sin(angle)) / 2] for angle in angles]

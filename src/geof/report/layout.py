"""Where points are drawn: the nodes of a small graph, and vectors on a map of the plane.

A map is made by t-SNE where it is affordable, of principal components otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from geof.report.html import short

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


Method: TypeAlias = Literal["auto", "tsne", "pca"]

TSNE_POINTS = 3000
"""Points above which the map is made of principal components unless t-SNE is asked for."""

SEED = 0


def plane(vectors: Tensor, method: Method = "auto") -> dict[str, Any]:
    """Return positions of the rows in the unit square and a sentence on how they came about.

    Args:
        vectors: ``(n, d)``.
        method: ``"auto"`` takes t-SNE up to :data:`TSNE_POINTS` rows.
    """
    values = vectors.detach().cpu().double().numpy()
    count = len(values)
    few = count < 5
    if few or method == "pca" or (method == "auto" and count > TSNE_POINTS):
        positions, told = _principal(values)
        why = {True: "too few points for t-SNE", False: f"more than {TSNE_POINTS:,} points"}[few]
        how = f"The first two principal components of the states ({told:.0%} of their variance)"
        how += "." if method == "pca" and not few else f"; {why}."
        return {"positions": short(_square(positions)), "how": how}
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (count - 1) / 3)
    positions = TSNE(init="pca", perplexity=perplexity, random_state=SEED).fit_transform(
        values.astype(np.float32)
    )
    how = (
        f"t-SNE of the states (perplexity {perplexity:g}, started from principal components, seed "
        f"{SEED}). Neighbours on the map are neighbours; distances between groups mean little."
    )
    return {"positions": short(_square(positions)), "how": how}


def _principal(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the first two principal components and their share of the variance."""
    centred = values - values.mean(0)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    # The sign of a component is nobody's: fix it, so that the map is the same every time.
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
    found = np.zeros((len(values), 2))
    kept = min(2, len(axes))
    found[:, :kept] = centred @ (axes * signs[:, None])[:kept].T
    total = float((lengths**2).sum())
    return found, float((lengths[:2] ** 2).sum()) / total if total else 1.0


def _square(positions: NDArray[Any]) -> NDArray[np.float64]:
    """Move and scale into the unit square, both axes alike."""
    values = np.asarray(positions, dtype=np.float64)
    if not len(values):
        return values
    low, high = values.min(0), values.max(0)
    size = float((high - low).max()) or 1.0
    moved: NDArray[np.float64] = (values - (low + high) / 2) / size + 0.5
    return moved

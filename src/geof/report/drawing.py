r"""What a page draws: a node's geometry, the nodes of a small graph, vectors on a map.

The view of one node says whom it listened to and what became of its metric. A block has the metric
:math:`g = L^\top L`, Eq. (1). Its unit ball
:math:`\{v : v^\top g v \le 1\}` is an ellipsoid, narrow along the directions the frame stretches:
there a small difference counts as a large one. It is shown by its shadow (orthogonal projection)
on the plane of the two directions :math:`P` that the frame of the *last* step stretches most, so
that the ellipses of all steps can be compared:

.. math::
    \{u : u^\top S^{-1} u \le 1\}, \qquad S = P^\top g^{-1} P = (L^{-\top} P)^\top (L^{-\top} P).

A map is made by t-SNE where it is affordable, of principal components otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.geometry import ellipsoids, frame_from_coordinates, log_determinant
from geof.nn.trace import GeoFState
from geof.report.html import short

NEIGHBOURS = 12
"""Neighbours listed by name; the weight of all others is added up."""

FEATURES = 3
"""Input features named per direction."""


@dataclass(frozen=True)
class BlockGeometry:
    r"""The blocks of some nodes at every step, step 0 being the start; all in double precision.

    Attributes:
        plane: ``(n, B, m, p)``, :math:`P`, with ``p = 2`` columns, 1 for blocks of size 1.
        shadow: ``(steps + 1, n, B, p, p)``, :math:`S`.
        log_determinant: ``(steps + 1, n, B)``, :math:`\log\det L`.
        stretch: ``(steps + 1, n, B, p)``, :math:`\|L p_k\|`: at the last step the largest singular
            values.
        change: ``(steps, n)``, the mean over blocks of :math:`\|z^{l+1}_{i,b} - z^l_{i,b}\|_2`.
    """

    plane: Tensor
    shadow: Tensor
    log_determinant: Tensor
    stretch: Tensor
    change: Tensor

    @classmethod
    def of(cls, coordinates: Tensor) -> BlockGeometry:
        """Compute everything from the coordinates ``(steps + 1, n, B, t)``."""
        coords = coordinates.detach().double()
        frames = frame_from_coordinates(coords)
        axes = ellipsoids(coords[-1]).local_axes[..., :2]
        largest = axes.gather(-2, axes.abs().argmax(-2, keepdim=True))
        plane = axes * torch.where(largest < 0, -1.0, 1.0)  # else the sign would be anybody's
        sides = plane.expand(*frames.shape[:-1], plane.size(-1))
        half = torch.linalg.solve_triangular(frames.mT, sides, upper=True)
        return cls(
            plane=plane,
            shadow=half.mT @ half,
            log_determinant=log_determinant(coords),
            stretch=torch.linalg.vector_norm(frames @ sides, dim=-2),
            change=torch.linalg.vector_norm(coords.diff(dim=0), dim=-1).mean(-1),
        )


def trajectory_of(state: GeoFState, nodes: Tensor) -> Tensor:
    """Return the coordinates of some nodes at every step, ``(steps + 1, n, B, t)``."""
    assert state.trajectory is not None
    steps = [state.initial_coordinates, *(trace.coordinates for trace in state.trajectory)]
    return torch.stack([coordinates[nodes] for coordinates in steps])


def feature_loadings(lift: Tensor, plane: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the input features that load most on each direction of the planes.

    A feature's loading is its entry of :math:`W_{in,b}^\top p`: how far a unit of it moves the
    initial state along the direction.

    Args:
        lift: :math:`W_{in}`, ``(d, F)``.
        plane: ``(n, B, m, p)``.

    Returns:
        Indices and loadings, ``(n, B, p, k)`` each, ``k`` at most :data:`FEATURES`.
    """
    n, blocks, size, p = plane.shape
    weight = lift.detach().double().view(blocks, size, -1)
    count = min(FEATURES, weight.size(-1))
    found, values = [], []
    for block in range(blocks):  # all at once would be nodes x blocks x features
        for directions in plane[:, block].mT.reshape(n * p, size).split(1024):
            loading = directions @ weight[block]
            top = loading.abs().topk(count, dim=-1).indices
            found.append(top)
            values.append(loading.gather(-1, top))
    shape = (blocks, n, p, count)
    index, loading = torch.cat(found).view(shape), torch.cat(values).view(shape)
    return index.transpose(0, 1), loading.transpose(0, 1)


def neighbours_of(state: GeoFState, node: int) -> tuple[Tensor, Tensor]:
    r"""Return a node's closed neighbourhood and its weights :math:`\omega_{ij}`.

    Returns:
        The nodes ``(k,)``, those of the largest mean weight first, and weights ``(k, steps)``.
    """
    assert state.trajectory is not None
    ends = torch.tensor([node, node + 1])
    first, last = torch.searchsorted(state.edges.target, ends).tolist()
    weight = torch.stack([trace.weight[first:last].double() for trace in state.trajectory], -1)
    order = weight.mean(-1).argsort(descending=True, stable=True)
    return state.edges.source[first:last][order], weight[order]


def node_views(state: GeoFState, nodes: Sequence[int], lift: Tensor) -> list[dict[str, Any]]:
    """Return what the page shows of each of the nodes.

    Args:
        state: With its trajectory.
        nodes: Which nodes.
        lift: :math:`W_{in}`.
    """
    chosen = torch.tensor(list(nodes), dtype=torch.long)
    geometry = BlockGeometry.of(trajectory_of(state, chosen))
    features, loadings = feature_loadings(lift, geometry.plane)
    return [
        {
            "node": int(node),
            "shadow": short(_packed(geometry.shadow[:, place])),
            "logdet": short(geometry.log_determinant[:, place]),
            "stretch": short(geometry.stretch[:, place]),
            "features": features[place].tolist(),
            "loadings": short(loadings[place]),
            "change": short(geometry.change[:, place]),
            **_neighbourhood(state, int(node)),
        }
        for place, node in enumerate(chosen.tolist())
    ]


def _packed(shadow: Tensor) -> Tensor:
    """Return the entries xx, xy, yy of symmetric matrices; an interval has the first alone."""
    if shadow.size(-1) == 1:
        return torch.nn.functional.pad(shadow[..., 0], (0, 2))
    return torch.stack([shadow[..., 0, 0], shadow[..., 0, 1], shadow[..., 1, 1]], -1)


def _neighbourhood(state: GeoFState, node: int) -> dict[str, Any]:
    others, weight = neighbours_of(state, node)
    rest = weight[NEIGHBOURS:]
    return {
        "degree": len(others) - 1,
        "neighbours": others[:NEIGHBOURS].tolist(),
        "weights": short(weight[:NEIGHBOURS]),
        "rest": {"count": len(rest), "weights": short(rest.sum(0))},
    }


def numbers_per_node(blocks: int, steps: int) -> int:
    """Return about how many numbers a node's view holds, to keep the page small."""
    return 6 * blocks * (steps + 1) + 4 * FEATURES * blocks + (NEIGHBOURS + 2) * (steps + 1)


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

r"""What the view of one node needs: whom it listened to and what became of its metric.

A block of a node has the metric :math:`g = L^\top L`, Eq. (1). Its unit ball
:math:`\{v : v^\top g v \le 1\}` is an ellipsoid, narrow along the directions the frame stretches:
there a small difference counts as a large one. It is shown by its shadow (orthogonal projection)
on the plane of the two directions :math:`P` that the frame of the *last* step stretches most, so
that the ellipses of all steps can be compared:

.. math::
    \{u : u^\top S^{-1} u \le 1\}, \qquad S = P^\top g^{-1} P = (L^{-\top} P)^\top (L^{-\top} P).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
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

"""Generated graphs whose edges agree with the classes more or less, the features being the same.

Five classes of 400 nodes with Gaussian features, from which alone a network tells about two nodes
in three. Two families: the other end of an edge that leaves a class is in any other class alike
(``even``), or three times in four in the next class (``next``). Draws below :data:`CHOOSING` are
reported; those from it on may choose a default and are reported nowhere.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import torch

from geof.data.records import NodeGraph, node_graph
from geof.data.sources import standardised
from geof.draws import Integers
from geof.options import require_number, require_option

Family: TypeAlias = Literal["even", "next"]
FAMILIES: tuple[Family, ...] = get_args(Family)
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of edges whose ends have one class; with five classes 0.2 is what chance gives."""

CHOOSING = 1000
"""The first draw that may choose a default."""

CLASSES, NODES, EDGES, CHANNELS = 5, 2000, 8000, 16
SEPARATION = 0.45
"""Deviation of a class's mean against that of a node about it, in every channel."""


def homophily_graph(family: Family, homophily: float, draw: int) -> NodeGraph:
    """Return a graph; features and classes depend on the draw alone.

    Args:
        family: Where edges lead that leave a class.
        homophily: Share of edges that stay in one.
        draw: Number of the draw.
    """
    require_option("family", family, FAMILIES)
    require_number("homophily", homophily, least=0, most=1)
    y = np.arange(NODES) % CLASSES
    rng = np.random.default_rng([draw, 0])
    means = rng.normal(size=(CLASSES, CHANNELS))
    x = SEPARATION * means[y] + rng.normal(size=(NODES, CHANNELS))
    ends = _ends(np.random.default_rng([draw, 1]), family, homophily, y)
    record = node_graph(
        graph_name(family, homophily),
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(ends),
        torch.from_numpy(y),
        tuple(map(str, range(CLASSES))),
        None,
        (),
        directed=False,
    )
    made = standardised(record).data
    assert isinstance(made, NodeGraph)
    return made


def graph_name(family: Family, homophily: float) -> str:
    """Return what rows and tables call the graphs of a family and level."""
    return f"{family}-{homophily}"


def _ends(rng: np.random.Generator, family: Family, homophily: float, y: Integers) -> Integers:
    """Return pairs of nodes, some of which may be equal or come twice."""
    source = rng.integers(NODES, size=EDGES)
    away = rng.integers(1, CLASSES, size=EDGES)
    if family == "next":
        away = np.where(rng.random(EDGES) < 0.75, 1, rng.integers(2, CLASSES, size=EDGES))
    step = np.where(rng.random(EDGES) < homophily, 0, away)
    of_class = rng.integers(NODES // CLASSES, size=EDGES)
    target = CLASSES * of_class + (y[source] + step) % CLASSES  # class k: k, k + 5, k + 10, ...
    return np.stack([source, target])

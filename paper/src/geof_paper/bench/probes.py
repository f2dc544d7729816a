"""Small copies of a workload, from which its memory is predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from geof_paper.bench import memory
from geof_paper.bench.catalogue import BATCH_SIZE, Sizes, Workload
from geof_paper.bench.problems import Facts

_EDGES = (16_000, 48_000)
"""Directed edges of the two graphs."""

_GRAPHS = (32, 96)
"""Graphs of the two sets, each a single batch."""


def small_copies(workload: Workload, facts: Facts) -> list[Workload]:
    """Return two generated workloads of the same shape, features and neighbours per node.

    They keep the benchmark's name: a method has its preset for it.
    """
    sizes = _sets(facts) if workload.shape == "set" else _graphs(facts)
    return [replace(workload, sizes=each, batches=None) for each in sizes]


def _graphs(facts: Facts) -> Iterator[Sizes]:
    for edges in _EDGES:
        least = math.isqrt(2 * edges) + 2  # a generated graph is half full at most
        nodes = max(round(edges * facts.largest_nodes / facts.largest_edges), least)
        yield Sizes(1, nodes, edges, facts.features, facts.classes)


def _sets(facts: Facts) -> Iterator[Sizes]:
    batch = min(BATCH_SIZE, facts.graphs)
    for graphs in _GRAPHS:
        nodes = max(6 * graphs, round(facts.largest_nodes * graphs / batch))
        trees, closing = nodes - graphs, nodes - 5 * graphs  # what a generated molecule can have
        undirected = round(facts.largest_edges * graphs / batch / 2)
        edges = 2 * min(max(undirected, trees), trees + closing)
        yield Sizes(graphs, nodes, edges, facts.features, facts.classes)


def predict(copies: list[Sizes], peaks: list[int], facts: Facts) -> int:
    """Return the peak to expect on the whole workload.

    Args:
        copies: Sizes of the two small copies.
        peaks: Largest resident size on each.
        facts: Of the workload. A piece is what the line is drawn to; the other ones are held, too.
    """
    axes = (
        ([each.nodes for each in copies], facts.largest_nodes),
        ([each.edges for each in copies], facts.largest_edges),
    )
    lines = [
        memory.extrapolate((places[0], peaks[0]), (places[1], peaks[1]), size)
        for places, size in axes
    ]
    held = facts.data_bytes if facts.batches_per_epoch > 1 else 0
    return max(*lines, facts.data_bytes) + held

"""CPU time of a GeoF training pass with nodes renumbered so that neighbours are near each other.

    python benchmarks/renumbering.py --data-root DIR [NAME ...]

The order is scipy's reverse Cuthill-McKee. The passes of three networks take turns in one process
and one thread: the given order, the other one, the given order once more, which shows how far to
trust the difference. ``edges-1e6`` has edges that stay within communities of 100 nodes nine times
in ten, its nodes shuffled.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from geof_paper.bench.catalogue import WORKLOADS, Entry
from geof_paper.bench.networks import Training
from geof_paper.bench.problems import Piece, Problem, build_problem

COMMUNITIES = "edges-1e6"
ROUNDS = 5


def in_order(piece: Piece, order: NDArray[np.integer]) -> Piece:
    """Return a graph with its nodes in another order."""
    nodes = torch.from_numpy(order.astype(np.int64))
    rows = {name: getattr(piece, name)[nodes] for name in ("x", "y", "signature")}
    return replace(piece, edge_index=nodes.argsort()[piece.edge_index], **rows)


def communities(piece: Piece, size: int = 100, share: float = 0.9) -> Piece:
    """Return the same nodes, shuffled, with edges that mostly stay within communities."""
    draw, n, edges = np.random.default_rng(0), len(piece.x), piece.edge_index.size(1) // 2
    first = draw.integers(0, n, edges)
    near = first // size * size + draw.integers(0, size, edges)
    second = np.where(draw.random(edges) < share, near, draw.integers(0, n, edges))
    both = np.stack([np.r_[first, second], np.r_[second, first]])
    return replace(piece, edge_index=torch.from_numpy(draw.permutation(n)[both]))


def problem_of(name: str, data_root: str | None) -> Problem:
    """Return a workload, the generated one with communities."""
    problem = build_problem(WORKLOADS[name], data_root)
    if name != COMMUNITIES:
        return problem
    return replace(problem, pieces=(communities(problem.pieces[0]),))


def measure(problem: Problem) -> list[float]:
    """Return the medians in seconds: given, renumbered, given again."""
    piece = problem.pieces[0]
    source, target = piece.edge_index.numpy()
    given = np.arange(len(piece.x))
    size = (len(given), len(given))
    graph = csr_array((np.ones(len(source), np.int8), (target, source)), shape=size)
    pieces = [in_order(piece, order) for order in (given, reverse_cuthill_mckee(graph), given)]
    geof = Entry("geof", "auto")
    runs = [Training(geof, replace(problem, pieces=(each,))) for each in pieces]
    times: list[list[float]] = [[], [], []]
    for number in range(ROUNDS + 1):
        for k in (number % 3, (number + 1) % 3, (number + 2) % 3):
            began = time.process_time()
            runs[k].descend(runs[k].loss(pieces[k], runs[k].prepared(pieces[k])))
            times[k].append(time.process_time() - began)
    return [statistics.median(each[1:]) for each in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["PubMed", "Computers", "CS", COMMUNITIES])
    parser.add_argument("--data-root")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        given, renumbered, again = measure(problem_of(name, options.data_root))
        print(
            f"{name}: given {1e3 * given:.0f} ms, renumbered {renumbered / given:.2f}, "
            f"given again {again / given:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

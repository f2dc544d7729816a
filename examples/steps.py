"""How accuracy, gradients and frames fare with the number of steps, where depth is needed.

A board of squares, some of them marked; a node's class is its distance to the nearest mark, which
only as many steps can bring. Validation alone is read.

    python examples/steps.py            # the preset auto; three minutes on one core
    python examples/steps.py 1.0        # with the wide box and without clipping, as before
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch
from scipy.sparse.csgraph import dijkstra
from torch_geometric.utils import grid, to_scipy_sparse_matrix

from geof.data.records import NodeGraph, node_graph
from geof.geometry import frame_from_coordinates
from geof.training import RunConfig, Trainer, Watch, adapted, build_task

SIDE, MARKED, FARTHEST = 36, 0.012, 9


def board(seed: int = 0) -> NodeGraph:
    """Return the board: marks and three columns of noise, distances as classes."""
    random = np.random.default_rng(seed)
    edge_index = grid(SIDE, SIDE)[0]
    # PyG's board has diagonals and loops; distances go along sides.
    row, column = edge_index.div(SIDE, rounding_mode="floor"), edge_index % SIDE
    beside = ((row[0] - row[1]).abs() + (column[0] - column[1]).abs()) == 1
    edge_index = edge_index[:, beside]
    marked = random.random(SIDE**2) < MARKED
    marked[random.integers(SIDE**2)] = True
    graph = to_scipy_sparse_matrix(edge_index, num_nodes=SIDE**2)
    distance = dijkstra(graph, indices=np.flatnonzero(marked), min_only=True)
    x = np.concatenate([marked[:, None], random.normal(size=(SIDE**2, 3))], axis=1)
    y = torch.from_numpy(np.minimum(distance, FARTHEST)).long()
    names = tuple(map(str, range(FARTHEST + 1)))
    return node_graph("board", torch.from_numpy(x).float(), edge_index, y, names, None, [])


def measured(data: NodeGraph, steps: int, box: float | None) -> str:
    """Train with a number of steps and return a line of the table."""
    options = {"steps": steps, "dropout": 0.0}
    given = {"preset": "auto", "epochs": 120, "patience": None, "options": options}
    if box is not None:
        options |= {"offdiagonal_bound": box, "log_scale_bounds": [-box, box]}
        given["clip"] = None
    config = replace(adapted(RunConfig.parse(given), data), read_test=False)
    norms: list[float] = []
    watch = Watch(on_epoch=lambda report: norms.append(report.gradient_norm))
    trainer = Trainer(config, build_task(config, data), watch=watch)
    result = trainer.fit()
    network = trainer.network.eval()
    with torch.no_grad():
        inputs = trainer.task.inputs
        state = network.encoder.geof.evolve(inputs.x, inputs.edges, inputs.signature)
    conditions = torch.linalg.cond(frame_from_coordinates(state.coordinates.double()))
    return (
        f"| {steps} | {result.validation:.1f} | {np.median(norms):.2f} | {max(norms):.1f} "
        f"| {float(conditions.max()):.0f} |"
    )


def main() -> None:
    """Print the table."""
    box = float(sys.argv[1]) if len(sys.argv) > 1 else None
    data = board()
    print("| steps | validation | gradient norm, median | largest | worst condition number |")
    print("|---:|---:|---:|---:|---:|")
    for steps in (1, 2, 4, 8, 16):
        print(measured(data, steps, box), flush=True)


if __name__ == "__main__":
    main()

"""One epoch of sampled training and exact inference in pieces on a generated graph of any size.

    python benchmarks/large.py FOLDER [--nodes N] [--edges E] [--labelled L] [--json FILE]

The graph has communities: three quarters of the edges join nodes of one class, and features are a
class's centre with noise. It is written to FOLDER piece by piece as mapped arrays, unless it is
there already. An epoch goes over the labelled nodes: in graphs of that size few are (of
ogbn-papers100M one in ninety). Seconds, processor seconds and peak memory so far are recorded after
every stage.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geof import GeoF, NodeReadout
from geof.data.batching import NeighbourSampler
from geof.data.formats import from_arrays
from geof.machine import peak_resident_bytes
from geof.nn import evolve_in_pieces

CLASSES, FEATURES, PIECE = 16, 16, 1_000_000


def write_graph(folder: Path, nodes: int, edges: int) -> None:
    """Write features, labels and edges, a million rows at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    opened = np.lib.format.open_memmap
    x = opened(folder / "x.npy", "w+", np.float32, (nodes, FEATURES))
    ends = opened(folder / "edge_index.npy", "w+", np.int64, (2, edges))
    centres = rng.standard_normal((CLASSES, FEATURES), np.float32)
    np.save(folder / "y.npy", np.arange(nodes) % CLASSES)
    for start in range(0, nodes, PIECE):
        rows = np.arange(start, min(start + PIECE, nodes))
        noise = rng.standard_normal((len(rows), FEATURES), np.float32)
        x[rows[0] : rows[-1] + 1] = centres[rows % CLASSES] + 2 * noise
    for start in range(0, edges, PIECE):
        count = min(PIECE, edges - start)
        source, target = rng.integers(0, nodes, (2, count))
        alike = rng.random(count) < 0.75
        near = np.minimum(target - target % CLASSES + source % CLASSES, nodes - 1)
        ends[:, start : start + count] = source, np.where(alike, near, target)
    x.flush()
    ends.flush()


def train(
    network: GeoF, readout: NodeReadout, x: Tensor, y: Tensor, edges: Tensor, labelled: int
) -> float:
    """Train one epoch on sampled neighbourhoods of labelled nodes; return the mean loss."""
    parameters = [*network.parameters(), *readout.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-2)
    drawn = np.random.default_rng(1).choice(len(x), labelled, replace=False)
    nodes = torch.from_numpy(np.sort(drawn))
    sampler = NeighbourSampler(edges, len(x), [10, 10], batch_size=1024, nodes=nodes)
    losses = []
    for batch in sampler.batches(epoch=0):
        h = network(x[batch.n_id], batch.edge_index)
        seeds = batch.n_id[: batch.batch_size]
        loss = torch.nn.functional.cross_entropy(readout(h[: batch.batch_size]), y[seeds])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return float(np.mean(losses))


class Stages:
    """Records what each stage cost."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def done(self, name: str, **more: Any) -> None:
        """Record the stage that ends here."""
        self.made[name] = {
            "seconds": round(time.perf_counter() - self.wall, 2),
            "processor_seconds": round(time.process_time() - self.cpu, 2),
            "peak_rss_bytes": peak_resident_bytes(),
            **more,
        }
        print(name, json.dumps(self.made[name]), flush=True)
        self._start()


def main() -> None:
    """Run all stages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000, help="undirected")
    parser.add_argument("--labelled", type=int, default=100_000, help="nodes of an epoch")
    parser.add_argument("--piece-size", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    stages = Stages()
    if not (options.folder / "edge_index.npy").exists():
        write_graph(options.folder, options.nodes, options.edges)
    stages.done("write")
    graph = from_arrays(options.folder).graph
    stages.done("open", directed_edges=graph.edge_index.size(1))
    network, readout = GeoF(FEATURES, 32, blocks=8), NodeReadout(32, CLASSES)
    labelled = min(options.labelled, options.nodes)
    loss = train(network, readout, graph.x, graph.y, graph.edge_index, labelled)
    stages.done("train one epoch", loss=loss, labelled=labelled)
    network.eval()
    readout.eval()
    size = options.piece_size
    with torch.no_grad():
        states = evolve_in_pieces(network, graph.x, graph.edge_index, None, piece_size=size)
        correct = float((readout(states).argmax(1) == graph.y).float().mean())
    stages.done("predict in pieces", accuracy=correct)
    record = {"nodes": options.nodes, "edges": options.edges, "stages": stages.made}
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""A graph too large for the usual way: estimated signatures, sampled batches, answers in pieces.

python examples/large_graph.py      # 20,000 nodes
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from geof import GeoF, NodeReadout, structural_signature
from geof.data.batching import NeighbourSampler
from geof.nn import evolve_in_pieces
from geof.progress import Listener, listening

CLASSES = 5


class Lines(Listener):
    """Says how far work is; a program of yours would draw a bar."""

    def __init__(self) -> None:
        self.told = 0.0

    def advance(self, what: str, done: int, total: int) -> None:
        """Print at most a line a second, and the last one."""
        if done == total or time.monotonic() - self.told > 1:
            self.told = time.monotonic()
            print(f"{what}: {done} of {total}")


def communities(nodes: int, seed: int = 0) -> Data:
    """Return a graph whose nodes are linked mostly within their class, with noisy features."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (nodes,), generator=draw)
    order = y.argsort()
    first = torch.arange(nodes).repeat_interleave(5)
    # A partner among the next hundred of the same class, every fifth anywhere.
    place = torch.empty_like(order).scatter_(0, order, torch.arange(nodes))
    steps = torch.randint(1, 100, (len(first),), generator=draw)
    near = order[(place[first] + steps) % nodes]
    far = torch.randint(nodes, (len(first),), generator=draw)
    second = torch.where(torch.rand(len(first), generator=draw) < 0.2, far, near)
    edge_index = torch.stack([torch.cat([first, second]), torch.cat([second, first])])
    x = F.one_hot(y, CLASSES) + 2.0 * torch.randn(nodes, CLASSES, generator=draw)
    return Data(x=x, edge_index=edge_index, y=y)


def accuracy(
    model: GeoF, readout: NodeReadout, data: Data, signature: Tensor, test: Tensor
) -> float:
    """Return the share of right answers; the whole graph is never in memory at once."""
    model.eval()
    with torch.no_grad():
        h = evolve_in_pieces(model, data.x, data.edge_index, signature, piece_size=50_000)
        return (readout(h).argmax(-1) == data.y)[test].float().mean().item()


def main(nodes: int = 20_000, epochs: int = 2) -> float:
    """Return the test accuracy."""
    torch.manual_seed(0)
    data = communities(nodes)
    test = torch.arange(nodes) % 2 == 0
    with listening(Lines()):
        found = structural_signature(
            data.edge_index, nodes, walk_length=8, method="estimate", probes=32
        )
    print("standard error of the estimate", f"{max(found.standard_error or [0]):.4f}")
    signature = found.values
    model = GeoF(
        data.num_features,
        32,
        signature_channels=signature.size(1),
        blocks=4,
        temperature=64.0,
        normalise="layer",
    )
    readout = NodeReadout(32, CLASSES)
    optimiser = torch.optim.Adam([*model.parameters(), *readout.parameters()], lr=0.01)
    sampler = NeighbourSampler(data.edge_index, nodes, [8, 8], batch_size=512, nodes=~test)
    for epoch in range(epochs):
        for batch in sampler.batches(epoch):
            h = model(data.x[batch.n_id], batch.edge_index, signature[batch.n_id])
            seeds = batch.n_id[: batch.batch_size]
            loss = F.cross_entropy(readout(h[: batch.batch_size]), data.y[seeds])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    right = accuracy(model, readout, data, signature, test)
    print(f"test accuracy {100 * right:.1f} %")
    return right


if __name__ == "__main__":
    main()

"""Graphs too large for one pass: batches of sampled neighbourhoods to train on.

In-neighbours are sorted by target, in plain NumPy (:mod:`geof.kernels.neighbour_index`). PyG's
``NeighborLoader`` needs pyg-lib or torch-sparse. Whoever has pyg-lib (:func:`pyg_lib_available`)
can use that loader in place of :class:`NeighbourSampler`: its batches have the same ``n_id``,
``edge_index`` and ``batch_size``. For exact predictions of a large graph see
:func:`geof.nn.evolve_in_pieces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch_geometric.typing
from numpy.typing import NDArray
from torch import Tensor

from geof.draws import Integers, raw_permutation, raw_stream, sorted_unique
from geof.errors import ConfigError, DataError
from geof.kernels.neighbour_index import ALL, NeighbourIndex
from geof.options import require_positive

_ORDER, _NEIGHBOURS = range(2)  # one random stream each


def pyg_lib_available() -> bool:
    """Return whether PyG's compiled ``NeighborLoader`` can be used here."""
    return bool(torch_geometric.typing.WITH_PYG_LIB)


@dataclass(frozen=True, eq=False)
class NeighbourBatch:
    """A sampled subgraph, with the names of a PyG ``NeighborLoader`` batch.

    Attributes:
        n_id: ``(n_batch,)``, the nodes in the graph's numbering, the seeds first.
        edge_index: ``(2, E_batch)`` in the batch's numbering; messages flow from the first row to
            the second, towards the seeds.
        batch_size: Number of seeds. Only their outputs are meant to be used.
    """

    n_id: Tensor
    edge_index: Tensor
    batch_size: int

    @property
    def num_nodes(self) -> int:
        """Nodes in the batch."""
        return len(self.n_id)


class NeighbourSampler:
    """Batches of seed nodes with sampled neighbourhoods of several hops.

    Each node met is expanded once, at the hop where it first appears. With a fanout of -1 at every
    hop, a model of as many steps gives the seeds the values it gives them on the whole graph.
    A batch depends on seed, epoch and its own number only, so it can be drawn again alone.

    Args:
        edge_index: ``(2, E)``, sources in the first row. Repeats and self-loops are left out.
        num_nodes: ``n``.
        fanouts: How many neighbours to draw per node, one entry per hop, beginning at the seeds;
            -1 for all.
        batch_size: Seeds per batch; the last one may have fewer.
        seed: Seed of all draws.
        nodes: Seed nodes, indices or boolean mask (default: all).
        shuffle: Whether seeds come in a new order each epoch.

    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> sampler = NeighbourSampler(edge_index, 3, [2, 2], batch_size=2, shuffle=False)
    >>> [batch.n_id.tolist() for batch in sampler.batches(epoch=0)]
    [[0, 1, 2], [2, 1, 0]]
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        fanouts: Sequence[int],
        *,
        batch_size: int,
        seed: int = 0,
        nodes: Tensor | None = None,
        shuffle: bool = True,
    ) -> None:
        require_positive("batch_size", batch_size)
        require_positive("seed", seed, least=0)
        self.fanouts = _checked_fanouts(fanouts)
        self.index = NeighbourIndex.from_edge_index(edge_index, num_nodes)
        self.nodes = _checked_seeds(nodes, num_nodes)
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle

    def __len__(self) -> int:
        return -(-len(self.nodes) // self.batch_size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[NeighbourBatch]:
        """Yield the epoch's batches, from number ``start`` on when a run is resumed."""
        order = self._order(epoch)
        for number in range(start, len(self)):
            seeds = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self._grow(seeds, raw_stream(self.seed, _NEIGHBOURS, epoch, number))

    def sample(self, seeds: Tensor, *, epoch: int = 0, number: int = 0) -> NeighbourBatch:
        """Return one batch around given seeds, for instance the ends of candidate links."""
        bits = raw_stream(self.seed, _NEIGHBOURS, epoch, number)
        return self._grow(_checked_seeds(seeds, self.index.num_nodes), bits)

    def _order(self, epoch: int) -> Integers:
        require_positive("epoch", epoch, least=0)
        if not self.shuffle:
            return self.nodes
        return self.nodes[raw_permutation(raw_stream(self.seed, _ORDER, epoch), len(self.nodes))]

    def _grow(self, seeds: Integers, bits: np.random.PCG64) -> NeighbourBatch:
        met = _Numbering(self.index.num_nodes)
        frontier = met.add(seeds)
        sources, targets = [], []
        for fanout in self.fanouts:
            nodes = met.nodes[frontier]
            source, owner = self.index.sample(nodes, fanout, bits)
            targets.append(frontier.start + owner)
            frontier = met.add(source)
            sources.append(met.place[source])
        edges = np.stack([np.concatenate(sources), np.concatenate(targets)])
        return NeighbourBatch(
            torch.from_numpy(met.nodes), torch.from_numpy(edges), batch_size=len(seeds)
        )


class _Numbering:
    """Numbers nodes in the order in which they are first met.

    ``place`` has room for every node but is never initialised, so a batch costs time in proportion
    to itself and not to the graph: an entry counts only if the node it points to points back.
    """

    def __init__(self, num_nodes: int) -> None:
        self.place: Integers = np.empty(num_nodes, np.int64)
        self.nodes: Integers = np.empty(0, np.int64)

    def add(self, nodes: Integers) -> slice:
        """Number those of ``nodes`` not met before; return their numbers."""
        fresh = self._once(nodes[~self._met(nodes)])
        start, stop = len(self.nodes), len(self.nodes) + len(fresh)
        self.place[fresh] = np.arange(start, stop)
        self.nodes = np.concatenate([self.nodes, fresh])
        return slice(start, stop)

    def _met(self, nodes: Integers) -> NDArray[np.bool_]:
        if len(self.nodes) == 0:
            return np.zeros(len(nodes), np.bool_)
        place = self.place[nodes]
        within = (place >= 0) & (place < len(self.nodes))
        found: NDArray[np.bool_] = within & (self.nodes[np.where(within, place, 0)] == nodes)
        return found

    def _once(self, nodes: Integers) -> Integers:
        """Keep one of each: of equal nodes, the one that wrote its place last."""
        order = np.arange(len(nodes))
        self.place[nodes] = order
        last: NDArray[np.bool_] = self.place[nodes] == order
        return nodes[last]


def _checked_fanouts(fanouts: Sequence[int]) -> tuple[int, ...]:
    if len(fanouts) == 0 or any(fanout != ALL and fanout < 1 for fanout in fanouts):
        raise ConfigError(
            "Expected 'fanouts' to hold, per hop, a positive number of neighbours or -1 for all "
            f"(got {list(fanouts)})."
        )
    return tuple(int(fanout) for fanout in fanouts)


def _checked_seeds(nodes: Tensor | None, num_nodes: int) -> Integers:
    every = np.arange(num_nodes, dtype=np.int64)
    if nodes is None:
        return every
    try:
        seeds: Integers = every[nodes.cpu().numpy()]
    except IndexError as error:
        raise DataError(
            f"Expected seed nodes as indices below {num_nodes} or a mask of that length ({error})."
        ) from error
    if len(sorted_unique(seeds)) != len(seeds):
        raise DataError("Expected every seed node once. Pass nodes.unique().")
    return seeds

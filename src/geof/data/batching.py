"""Batches to train on: sampled neighbourhoods of a large graph, and many small graphs at once.

In-neighbours are sorted by target (:mod:`geof.kernels.neighbourhood`) and drawn in compiled code
(:mod:`geof.kernels.sampling`) or, to the same draws, in plain NumPy. PyG's ``NeighborLoader``
needs pyg-lib or torch-sparse. Whoever has pyg-lib (:func:`pyg_lib_available`) can use that loader
in place of :class:`NeighbourSampler`: its batches have the same ``n_id``, ``edge_index`` and
``batch_size``. For exact predictions of a large graph see :func:`geof.nn.evolve_in_pieces`.
Batches of graphs are cut out of one packed array instead of put together from many small tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch_geometric.typing
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from geof.data.records import EdgeInputs, carried_on, edge_inputs, undirected_edges
from geof.data.sources import SignatureConfig, cached_signature
from geof.draws import Integers, raw_permutation, raw_stream, sorted_unique
from geof.errors import ConfigError, DataError
from geof.kernels.neighbourhood import ALL, Cache, Neighbourhoods, NeighbourIndex
from geof.kernels.sampling import native_sample
from geof.methods.interface import GraphInputs
from geof.options import require_positive
from geof.signature import StructuralSignature

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
        e_id: ``(E_batch,)``, the edges as columns of the graph's ``edge_index``; ``None`` unless
            asked for.
    """

    n_id: Tensor
    edge_index: Tensor
    batch_size: int
    e_id: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes in the batch."""
        return len(self.n_id)

    def to(self, device: torch.device) -> NeighbourBatch:
        """Return the same on a device."""
        places = None if self.e_id is None else self.e_id.to(device)
        moved = self.n_id.to(device), self.edge_index.to(device)
        return NeighbourBatch(*moved, self.batch_size, places)


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
        edge_ids: Whether batches say which edges they hold, for weights and attributes.

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
        edge_ids: bool = False,
    ) -> None:
        require_positive("batch_size", batch_size)
        require_positive("seed", seed, least=0)
        self.fanouts = _checked_fanouts(fanouts)
        self.index = NeighbourIndex.from_edge_index(edge_index, num_nodes)
        self.nodes = _checked_seeds(nodes, num_nodes)
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.origin: Integers | None = self.index.origin_in(edge_index) if edge_ids else None

    def __len__(self) -> int:
        return -(-len(self.nodes) // self.batch_size)

    def batches(self, epoch: int, start: int = 0, *, workers: int = 0) -> Iterator[NeighbourBatch]:
        """Yield the epoch's batches, from number ``start`` on when a run is resumed.

        Args:
            epoch: Whose order and draws.
            start: The first batch.
            workers: Threads that draw ahead of what is asked for, the same batches in the same
                order; compiled draws run beside each other.
        """
        require_positive("workers", workers, least=0)
        order = self._order(epoch)

        def drawn(number: int) -> NeighbourBatch:
            seeds = order[number * self.batch_size : (number + 1) * self.batch_size]
            return self._grow(seeds, raw_stream(self.seed, _NEIGHBOURS, epoch, number))

        numbers = range(start, len(self))
        return map(drawn, numbers) if workers == 0 else _made_ahead(drawn, numbers, workers)

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
        wanted = self.origin is not None
        made = native_sample(self.index, seeds, self.fanouts, bits, places=wanted)
        nodes, edges, *places = self._grown(seeds, bits) if made is None else made
        given = None if self.origin is None else torch.from_numpy(self.origin[places[0].numpy()])
        return NeighbourBatch(nodes, edges, batch_size=len(seeds), e_id=given)

    def _grown(self, seeds: Integers, bits: np.random.PCG64) -> list[Tensor]:
        """Return nodes, edges and their places in the index, in plain NumPy."""
        met = _Numbering(self.index.num_nodes)
        frontier = met.add(seeds)
        sources, targets, chosen = [], [], []
        for fanout in self.fanouts:
            nodes = met.nodes[frontier]
            place, owner = self.index.sample_places(nodes, fanout, bits)
            source = self.index.source[place]
            targets.append(frontier.start + owner)
            frontier = met.add(source)
            sources.append(met.place[source])
            chosen.append(place)
        edges = np.stack([np.concatenate(sources), np.concatenate(targets)])
        return [torch.from_numpy(part) for part in (met.nodes, edges, np.concatenate(chosen))]


def _made_ahead(
    make: Callable[[int], NeighbourBatch], numbers: range, workers: int
) -> Iterator[NeighbourBatch]:
    """Yield what is made of the numbers, two of each thread waiting at most."""
    ahead: deque[Future[NeighbourBatch]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="geof-sampler") as pool:
        try:
            for number in numbers:
                ahead.append(pool.submit(make, number))
                if len(ahead) > 2 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:  # whoever stops asking does not wait for what he will not see
            pool.shutdown(wait=False, cancel_futures=True)


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
    listed = isinstance(fanouts, Sequence) and not isinstance(fanouts, str)
    whole = listed and all(isinstance(f, int) and not isinstance(f, bool) for f in fanouts)
    if not whole or len(fanouts) == 0 or any(f != ALL and f < 1 for f in fanouts):
        raise ConfigError(
            "Expected 'fanouts' to hold, per hop, a positive number of neighbours or -1 for all "
            f"(got {fanouts!r})."
        )
    return tuple(fanouts)


def _checked_seeds(nodes: Tensor | None, num_nodes: int) -> Integers:
    every = np.arange(num_nodes, dtype=np.int64)
    if nodes is None:
        return every
    if not isinstance(nodes, Tensor) or nodes.dim() != 1:
        got = tuple(nodes.shape) if isinstance(nodes, Tensor) else type(nodes).__name__
        raise DataError(
            f"Expected seed nodes as a tensor of indices or a mask, one dimension (got {got}). "
            "Use torch.as_tensor, and .flatten()."
        )
    if nodes.dtype != torch.bool and nodes.numel() and int(nodes.min()) < 0:
        raise DataError(
            f"Expected seed nodes as indices from 0 to {num_nodes - 1} (got {int(nodes.min())})."
        )
    try:
        seeds: Integers = every[nodes.cpu().numpy()]
    except IndexError as error:
        raise DataError(
            f"Expected seed nodes as indices below {num_nodes} or a mask of that length ({error})."
        ) from error
    if len(sorted_unique(seeds)) != len(seeds):
        raise DataError("Expected every seed node once. Pass nodes.unique().")
    return seeds


@dataclass(frozen=True, eq=False)
class PackedGraphs:
    """Many graphs one after another.

    Attributes:
        x: ``(n, F)``, the features of all nodes.
        edge_index: ``(2, E)``, nodes numbered within their own graph.
        first_node: ``(G + 1,)``; the nodes of graph ``g`` are ``first_node[g]`` and following.
        first_edge: ``(G + 1,)``, likewise.
        caches: What methods derived from each graph, for all batches it appears in.
        closed: The sorted neighbourhoods of all graphs, sorted once for all batches.
        carried: ``edge_weight`` and ``edge_attr`` of all edges, as far as they are used.
    """

    x: Tensor
    edge_index: Tensor
    first_node: Tensor
    first_edge: Tensor
    caches: tuple[Cache, ...]
    closed: _ClosedEdges
    carried: EdgeInputs = field(default_factory=EdgeInputs)

    @classmethod
    def pack(cls, graphs: Sequence[Data], *, edges: bool = False) -> PackedGraphs:
        """Put graphs with ``x`` and ``edge_index`` one after another.

        Args:
            graphs: The graphs.
            edges: Whether batches are to have what edges carry.
        """
        graphs = list(graphs)  # a packed set makes each graph anew whenever it is asked for
        edge_index = torch.cat([graph.edge_index for graph in graphs], dim=1)
        first_node = _starts([graph.num_nodes for graph in graphs])
        first_edge = _starts([graph.edge_index.size(1) for graph in graphs])
        carried = _joined([edge_inputs(graph) for graph in graphs] if edges else [])
        return cls(
            x=torch.cat([graph.x for graph in graphs]),
            edge_index=edge_index,
            first_node=first_node,
            first_edge=first_edge,
            caches=tuple(Cache() for _ in graphs),
            closed=_ClosedEdges.sort(edge_index, first_node, first_edge, origin=bool(carried)),
            carried=carried,
        )

    def __len__(self) -> int:
        return len(self.first_node) - 1

    def to(self, device: torch.device) -> PackedGraphs:
        """Return the same on a device; what was derived from it elsewhere is derived anew there."""
        if self.x.device == device:
            return self
        origin = self.closed.origin
        return PackedGraphs(
            x=self.x.to(device),
            edge_index=self.edge_index.to(device),
            first_node=self.first_node.to(device),
            first_edge=self.first_edge.to(device),
            caches=tuple(Cache() for _ in self.caches),
            closed=replace(
                self.closed,
                ends=self.closed.ends.to(device),
                first=self.closed.first.to(device),
                origin=None if origin is None else origin.to(device),
            ),
            carried=carried_on(self.carried, device),
        )

    def sign(
        self, settings: SignatureConfig | None = None, *, directed: bool = False
    ) -> StructuralSignature:
        """Return the signatures of all nodes; the degree is relative to each graph's own.

        Args:
            settings: How.
            directed: Whether edges have a direction, which plays no part in signatures.
        """
        nodes, edges = self.first_node.diff(), self.first_edge.diff()
        edge_index = self.edge_index + torch.repeat_interleave(self.first_node[:-1], edges)
        return cached_signature(
            undirected_edges(edge_index, len(self.x))[0] if directed else edge_index,
            len(self.x),
            settings,
            batch=torch.repeat_interleave(torch.arange(len(nodes)), nodes),
        )

    def batch(self, chosen: Tensor, signature: Tensor) -> GraphInputs:
        """Return the chosen graphs side by side, in that order.

        Args:
            chosen: Which graphs.
            signature: Of all nodes, where the graphs are.
        """
        caches = [self.caches[i] for i in chosen.tolist()]
        chosen = chosen.to(self.x.device)
        nodes, sizes = _members(self.first_node, chosen)
        edges, counts = _members(self.first_edge, chosen)
        before = sizes.cumsum(0) - sizes
        return GraphInputs.build(
            self.x.index_select(0, nodes),
            _shifted(self.edge_index, edges, torch.repeat_interleave(before, counts)),
            signature.index_select(0, nodes),
            torch.repeat_interleave(torch.arange(len(chosen), device=chosen.device), sizes),
            len(chosen),
            caches=caches,
            edges=self.closed.side_by_side(chosen, before, len(nodes), counts),
            **self._carried_by(edges),
        )

    def _carried_by(self, edges: Tensor) -> EdgeInputs:
        found: EdgeInputs = {}
        if "edge_weight" in self.carried:
            found["edge_weight"] = self.carried["edge_weight"].index_select(0, edges)
        if "edge_attr" in self.carried:
            found["edge_attr"] = self.carried["edge_attr"].index_select(0, edges)
        return found


@dataclass(frozen=True, eq=False)
class _ClosedEdges:
    """The closed neighbourhoods of many graphs, one after another.

    Graphs share no edge: sorted neighbourhoods of graphs side by side are those of each graph one
    after another. So they are sorted once and cut for a batch.

    Attributes:
        ends: ``(2, E)``, sources and targets, numbered within their own graph.
        first: ``(G + 1,)``; the edges of graph ``g`` are ``first[g]`` and following.
        origin: ``(E,)``, the place of each edge within its own graph's, -1 for self-loops, or
            ``None``.
    """

    ends: Tensor
    first: Tensor
    origin: Tensor | None

    @classmethod
    def sort(
        cls, edge_index: Tensor, first_node: Tensor, first_edge: Tensor, *, origin: bool
    ) -> _ClosedEdges:
        """Sort the edges of all graphs at once."""
        _refuse_strangers(edge_index, first_node, first_edge)
        given = first_edge.diff()
        counted_on = edge_index + torch.repeat_interleave(first_node[:-1], given)
        edges = Neighbourhoods.from_edge_index(counted_on, int(first_node[-1]), origin=origin)
        first = torch.searchsorted(edges.target, first_node)
        counts, place = first.diff(), edges.origin
        if place is not None:
            own = place - torch.repeat_interleave(first_edge[:-1], counts)
            place = torch.where(place < 0, -1, own)
        before = torch.repeat_interleave(first_node[:-1], counts)
        return cls(torch.stack([edges.source, edges.target]) - before, first, place)

    def side_by_side(
        self, chosen: Tensor, nodes_before: Tensor, num_nodes: int, given: Tensor
    ) -> Neighbourhoods:
        """Return what sorting the chosen graphs side by side gives, without sorting.

        Args:
            chosen: Which graphs, in order.
            nodes_before: ``(len(chosen),)``, the nodes of the batch before each of them.
            num_nodes: Of the batch.
            given: ``(len(chosen),)``, how many edges of the batch's ``edge_index`` are each one's.
        """
        places, counts = _members(self.first, chosen)
        before = torch.repeat_interleave(nodes_before, counts)
        source, target = _shifted(self.ends, places, before)
        if self.origin is None:
            return Neighbourhoods(source, target, num_nodes)
        own = self.origin.index_select(0, places)
        shift = torch.repeat_interleave(given.cumsum(0) - given, counts)
        origin = torch.where(own < 0, -1, own + shift)
        return Neighbourhoods(source, target, num_nodes, origin=origin, num_given=int(given.sum()))


def _refuse_strangers(edge_index: Tensor, first_node: Tensor, first_edge: Tensor) -> None:
    """Raise for an edge to a node that its graph does not have."""
    sizes = torch.repeat_interleave(first_node.diff(), first_edge.diff())
    wrong = ((edge_index < 0) | (edge_index >= sizes)).any(0).nonzero()
    if len(wrong):
        column = int(wrong[0])
        graph = int(torch.searchsorted(first_edge, column, right=True)) - 1
        raise DataError(
            f"Expected 'edge_index' of graph {graph} to hold node indices from 0 to "
            f"{int(sizes[column]) - 1} (got {edge_index[:, column].tolist()}). Check that 'x' has "
            "a row for every node."
        )


def _joined(parts: Sequence[EdgeInputs]) -> EdgeInputs:
    """Return what the edges of all graphs carry, one after another."""
    found: EdgeInputs = {}
    if parts and "edge_weight" in parts[0]:
        found["edge_weight"] = torch.cat([part["edge_weight"] for part in parts])
    if parts and "edge_attr" in parts[0]:
        found["edge_attr"] = torch.cat([part["edge_attr"] for part in parts])
    return found


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a dense or sparse CSR matrix, in the same layout."""
    if x.layout == torch.strided:
        return x.index_select(0, rows)
    entries, counts = _members(x.crow_indices(), rows)
    pointer = counts.new_zeros(len(counts) + 1)
    pointer[1:] = counts.cumsum(0)
    return torch.sparse_csr_tensor(
        pointer,
        x.col_indices()[entries],
        x.values()[entries],
        (len(rows), x.size(1)),
        check_invariants=False,
    )


def _starts(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def _shifted(ends: Tensor, places: Tensor, shift: Tensor) -> Tensor:
    """Return columns of ``(2, E)`` with something added to each."""
    # Row by row: choosing columns of both at once takes thrice as long.
    return torch.stack([row.index_select(0, places) for row in ends]).add_(shift)


def _members(first: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions that belong to the chosen, in order, and how many each has."""
    begin = first[chosen]
    counts = first[chosen + 1] - begin
    places = torch.arange(int(counts.sum()), device=counts.device)
    shift = torch.repeat_interleave(begin - (counts.cumsum(0) - counts), counts)
    return places + shift, counts

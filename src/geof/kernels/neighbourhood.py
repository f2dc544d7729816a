r"""Closed neighbourhoods :math:`\widetilde{\mathcal N}(i) = \mathcal N(i) \cup \{i\}`, sorted.

The paper's neighbourhoods are sets: an edge given twice counts once, and every node has exactly
one self-loop whether or not the input lists it. What is derived from them is kept with them
(:class:`Cache`). Sampled batches (:mod:`geof.data.batching`) and full-graph inference in pieces
(:func:`geof.nn.evolve_in_pieces`) are read off an index of in-neighbours
(:class:`NeighbourIndex`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.draws import Integers, sorted_unique
from geof.errors import DataError, DeviceError, DtypeError, ShapeError
from geof.options import require_positive

T = TypeVar("T")


def built_to_keep(build: Callable[[], T]) -> T:
    """Return what ``build`` makes, outside inference mode: training may use it afterwards."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return build()
    grad = torch.is_grad_enabled()  # which leaving inference mode would switch on
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        return build()


class Cache:
    """Values by key, each built the first time it is asked for.

    A key says what the value is and what else it depends on: begin it with the class or function
    that makes the value, so that two users never share one by accident.

    >>> cache = Cache()
    >>> cache.cached("answer", lambda: 42), cache.cached("answer", lambda: 43)
    (42, 42)
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the value of a key, built by ``build`` if there is none yet.

        A value first asked for while evaluating serves training afterwards.
        """
        if key not in self._values:
            self._values[key] = built_to_keep(build)
        value: T = self._values[key]
        return value

    def items(self) -> list[tuple[Hashable, Any]]:
        """Return the keys and values there are."""
        return list(self._values.items())

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values


def _empty_cache() -> Cache:
    """Return a new cache: as a default factory, torch.compile traces a function but no class."""
    return Cache()


class EdgeTerms(NamedTuple):
    r"""What edges add to a step, in the order of the neighbourhoods.

    An edge weighs :math:`\omega_{ij} \propto \exp(-\|h_i - h_j\|^2 / \tau + b_{ij})` and carries
    :math:`y_{ij} = y_j + e_{ij}` in environment coordinates, so its message is
    :math:`L_i^{-1}(y_j + e_{ij})`. A self-loop has :math:`b_{ii} = 0` and :math:`e_{ii} = 0`.

    Attributes:
        bias: ``(E,)``, :math:`b_{ij}`; minus infinity takes the edge away.
        row: ``(E,)`` int32, the row of ``table`` that is :math:`e_{ij}`, -1 for none; or ``None``.
        table: ``(C, B, m)``, or ``None`` where no edge carries anything.
    """

    bias: Tensor
    row: Tensor | None = None
    table: Tensor | None = None

    def carried(self, at: slice | Tensor = slice(None)) -> Tensor | None:
        r"""Return :math:`e_{ij}` of some edges, ``(edges, B, m)``; ``None`` if there are none."""
        if self.row is None or self.table is None:
            return None
        row = self.row[at].long()
        if not len(self.table):
            return self.table.new_zeros(len(row), *self.table.shape[1:])
        return self.table[row.clamp_min(0)] * (row >= 0)[:, None, None]

    def to(self, device: torch.device | str) -> EdgeTerms:
        """Return a copy on ``device``."""
        return EdgeTerms(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Neighbourhoods:
    """Directed edges ``source -> target``, one self-loop per node, sorted by target, then source.

    Build it once with :meth:`from_edge_index` and pass it in place of ``edge_index`` to save the
    sort in every forward pass. The order is canonical, so results do not depend, not even in
    the last bit, on the order in which edges were given.

    Attributes:
        source: ``(E,)`` int64.
        target: ``(E,)`` int64, ascending.
        num_nodes: ``n``.
        active: ``(E,)`` bool or ``None`` for all. Repeated edges are inactive instead of absent
            while ``torch.compile`` traces, because shapes must not depend on values there.
        origin: ``(E,)`` int64, each edge's place in the ``edge_index`` it was given in, -1 for
            self-loops; ``None`` unless asked for. Weights and attributes of edges need it.
        num_given: Columns of that ``edge_index``.
        terms: What the edges add to a step, or ``None`` for nothing.
        cache: What was derived from the edges, for the steps to come.

    Args:
        checked: Whether indices and their order are known to be right and need no look.
    """

    source: Tensor
    target: Tensor
    num_nodes: int
    active: Tensor | None = None
    cache: Cache = field(default_factory=_empty_cache, repr=False, compare=False)
    origin: Tensor | None = None
    num_given: int = 0
    terms: EdgeTerms | None = None
    checked: InitVar[bool] = field(default=False, kw_only=True)

    def __post_init__(self, checked: bool) -> None:
        """Require what the steps rely on; the order too, unless it is known to be right.

        Raises:
            DtypeError: If a tensor has another dtype than its attribute's description says.
            ShapeError: If the tensors do not have one entry per edge.
            DeviceError: If they lie on several devices.
            DataError: If an index is out of range or targets do not ascend.
        """
        _check_edges(self)
        if not checked and type(self.source) is Tensor and not self.source.is_meta:
            _check_order(self.source, self.target, self.num_nodes)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_nodes: int,
        *,
        static_shapes: bool | None = None,
        origin: bool = False,
    ) -> Neighbourhoods:
        """Sort, de-duplicate and add self-loops.

        Args:
            edge_index: ``(2, E)`` int64, sources in the first row.
            num_nodes: ``n``, above every index.
            static_shapes: Mark repeats as inactive instead of removing them (default: only while
                ``torch.compile`` traces).
            origin: Remember where each edge was given, for weights and attributes. Then an edge
                may be given once only: neighbourhoods are sets. Self-loops that are given count
                as those every node has.

        Raises:
            DtypeError: If ``edge_index`` is not an int64 tensor.
            ShapeError: If it is not ``(2, E)``.
            DataError: If it holds an index out of range, or with ``origin`` an edge twice (not
                looked at while compiling; the first of several counts then).
        """
        check_edge_index(edge_index, num_nodes)
        static = torch.compiler.is_compiling() if static_shapes is None else static_shapes
        return built_to_keep(lambda: cls._sorted(edge_index, num_nodes, static, origin))

    @classmethod
    def _sorted(
        cls, edge_index: Tensor, num_nodes: int, static: bool, origin: bool
    ) -> Neighbourhoods:
        """Return the neighbourhoods of a checked ``edge_index``."""
        loops = torch.arange(num_nodes, device=edge_index.device)
        key = torch.cat([edge_index[1] * num_nodes + edge_index[0], loops * (num_nodes + 1)])
        place, active = None, None
        if origin or static:
            key, place = key.sort(stable=True)
            active = torch.ones_like(key, dtype=torch.bool)
            active[1:] = key[1:] != key[:-1]
        if not static:
            key, place = (key.unique(), None) if place is None else (key[active], place[active])
            active = None
        divisor = max(num_nodes, 1)
        source, target = key % divisor, key // divisor
        if not origin or place is None:
            return cls(source, target, num_nodes, active, checked=True)
        place = torch.where(source == target, -1, place)
        if not static:
            _refuse_repeats(edge_index, place)
        given = edge_index.size(1)
        return cls(source, target, num_nodes, active, origin=place, num_given=given, checked=True)

    @property
    def edge_index(self) -> Tensor:
        """``(2, E)``, self-loops included, in the canonical order."""
        return torch.stack([self.source, self.target])

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return what ``build`` made of these edges the first time it was asked for."""
        return self.cache.cached(key, build)

    def sum(self, values: Tensor) -> Tensor:
        """Sum per-edge ``values`` ``(E, ...)`` over each target's neighbourhood: ``(n, ...)``."""
        total = values.new_zeros(self.num_nodes, *values.shape[1:])
        return total.index_add(0, self.target, values)

    def to(self, device: torch.device | str) -> Neighbourhoods:
        """Return a copy on ``device``."""
        return Neighbourhoods(
            self.source.to(device),
            self.target.to(device),
            self.num_nodes,
            None if self.active is None else self.active.to(device),
            origin=None if self.origin is None else self.origin.to(device),
            num_given=self.num_given,
            terms=None if self.terms is None else self.terms.to(device),
            checked=True,
        )

    def at_origin(self, values: Tensor, loops: float) -> Tensor:
        """Return values of the given edges ``(E_given, ...)`` in this order, ``loops`` at loops."""
        assert self.origin is not None, "the caller has checked it"
        if not len(values):
            return values.new_full((len(self.source), *values.shape[1:]), loops)
        own = (self.origin < 0).view(-1, *(1 for _ in values.shape[1:]))
        return torch.where(own, loops, values[self.origin.clamp_min(0)]).to(values.dtype)

    def carrying(self, terms: EdgeTerms | None) -> Neighbourhoods:
        """Return the same neighbourhoods with other terms; what was derived is shared."""
        return Neighbourhoods(
            self.source,
            self.target,
            self.num_nodes,
            self.active,
            self.cache,
            self.origin,
            self.num_given,
            terms,
            checked=True,
        )


class TargetEdges(NamedTuple):
    """The edges into consecutive nodes, their ends numbered as in the whole graph.

    Attributes:
        nodes: The targets; with both ends given.
        pointer: ``(targets + 1,)`` int64, where each target's edges begin.
        source: ``(edges,)`` int64.
        target: ``(edges,)`` int64, ascending.
        active: ``(edges,)`` bool or ``None`` for all.
        terms: What these edges add to a step, or ``None``.
    """

    nodes: slice
    pointer: Tensor
    source: Tensor
    target: Tensor
    active: Tensor | None
    terms: EdgeTerms | None


def edges_by_targets(edges: Neighbourhoods, piece_size: int) -> list[TargetEdges]:
    """Cut neighbourhoods, without copying, into those of consecutive targets.

    Args:
        edges: The whole graph's.
        piece_size: Most edges of a piece, each target's self-loop among them. A single node with
            more is a piece of its own.
    """
    require_positive("piece_size", piece_size)
    bounds = torch.arange(edges.num_nodes + 1, device=edges.target.device)
    pointer = torch.searchsorted(edges.target, bounds)
    made = []
    for nodes in _stretches(pointer.cpu().numpy(), piece_size):
        own = pointer[nodes.start : nodes.stop + 1]
        at = slice(int(own[0]), int(own[-1]))
        terms = edges.terms
        if terms is not None:
            row = None if terms.row is None else terms.row[at]
            terms = EdgeTerms(terms.bias[at], row, terms.table)
        active = None if edges.active is None else edges.active[at]
        ends = edges.source[at], edges.target[at]
        made.append(TargetEdges(nodes, own - own[0], *ends, active, terms))
    return made


def _stretches(before: Integers, most: int) -> Iterator[slice]:
    """Cut nodes into stretches of at most so many edges, given how many come before each node."""
    start, num_nodes = 0, len(before) - 1
    while start < num_nodes:
        fits = int(np.searchsorted(before, before[start] + most, side="right")) - 1
        stop = max(fits, start + 1)
        yield slice(start, stop)
        start = stop


def _check_edges(edges: Neighbourhoods) -> None:
    """Require tensors of the right kind with one entry per edge, on one device."""
    terms = edges.terms
    given: list[tuple[str, Tensor | None, torch.dtype | None]] = [
        ("source", edges.source, torch.long),
        ("target", edges.target, torch.long),
        ("active", edges.active, torch.bool),
        ("origin", edges.origin, torch.long),
    ]
    if terms is not None:
        given += [("terms.bias", terms.bias, None), ("terms.row", terms.row, torch.int32)]
    for name, tensor, dtype in given:
        if tensor is None and name not in ("source", "target", "terms.bias"):
            continue
        if not isinstance(tensor, Tensor) or (dtype is not None and tensor.dtype != dtype):
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise DtypeError(
                f"Expected '{name}' of neighbourhoods to be a tensor of {dtype or 'numbers'} (got "
                f"{got}). Use Neighbourhoods.from_edge_index, which makes them of any edges."
            )
        if tensor.dim() != 1 or tensor.shape != edges.source.shape:
            raise ShapeError(
                f"Expected '{name}' of neighbourhoods to have one entry per edge, as 'source' with "
                f"shape {tuple(edges.source.shape)} has (got {tuple(tensor.shape)})."
            )
        if tensor.device != edges.source.device:
            raise DeviceError(
                f"Expected '{name}' on {edges.source.device}, where 'source' is (got "
                f"{tensor.device}). Use Neighbourhoods.to(device) for all of them."
            )
    if terms is not None and terms.table is not None and terms.table.dim() != 3:
        raise ShapeError(
            "Expected 'terms.table' of neighbourhoods to have shape (rows, blocks, block_size) "
            f"(got {tuple(terms.table.shape)})."
        )


def _check_order(source: Tensor, target: Tensor, num_nodes: int) -> None:
    """Require indices of nodes, targets ascending. Skipped while ``torch.compile`` traces."""
    require_positive("num_nodes", num_nodes, least=0)
    if torch.compiler.is_compiling() or source.numel() == 0:
        return
    least, most = torch.stack([source, target]).aminmax()
    if int(least) < 0 or int(most) >= num_nodes or not bool((target.diff() >= 0).all()):
        raise DataError(
            f"Expected neighbourhoods sorted by target, with indices from 0 to {num_nodes - 1} "
            f"(got indices from {int(least)} to {int(most)}). Use Neighbourhoods.from_edge_index, "
            "which sorts and checks."
        )


def _refuse_repeats(edge_index: Tensor, place: Tensor) -> None:
    """Raise unless every edge that is no self-loop has its place."""
    proper = edge_index[0] != edge_index[1]
    if int((place >= 0).sum()) == int(proper.sum()):
        return
    lost = proper.index_fill(0, place[place >= 0], False).nonzero()[0].item()
    source, target = edge_index[:, int(lost)].tolist()
    raise DataError(
        "Expected every edge once where edges carry weights or attributes (got "
        f"{source} -> {target} a second time in column {lost} of 'edge_index'). Merge repeats "
        "with torch_geometric.utils.coalesce(edge_index, edge_attr, reduce=...)."
    )


def check_edge_index(edge_index: Tensor, num_nodes: int) -> None:
    """Require an int64 ``(2, E)`` tensor of node indices.

    Args:
        edge_index: Edges, sources in the first row.
        num_nodes: ``n``, above every index.

    Raises:
        DtypeError: If it is not an int64 tensor.
        ShapeError: If it is not ``(2, E)``.
        DataError: If it holds an index out of range (not looked at while compiling).
    """
    if not isinstance(edge_index, Tensor) or edge_index.dtype != torch.long:
        got = edge_index.dtype if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise DtypeError(
            f"Expected 'edge_index' to be an int64 tensor (got {got}). Use edge_index.long(); "
            "for a sparse adjacency use torch_geometric.utils.to_edge_index."
        )
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ShapeError(
            f"Expected 'edge_index' to have shape (2, num_edges) (got {tuple(edge_index.shape)})."
        )
    # Reading the values would break the graph under torch.compile.
    if torch.compiler.is_compiling() or edge_index.numel() == 0:
        return
    low, high = (int(value) for value in edge_index.aminmax())
    if low < 0 or high >= num_nodes:
        raise DataError(
            f"Expected 'edge_index' to hold node indices from 0 to {num_nodes - 1} "
            f"(got indices from {low} to {high}). Check that 'x' has a row for every node."
        )


ALL = -1
"""The fanout that takes every neighbour."""


@dataclass(frozen=True, eq=False)
class NeighbourIndex:
    """In-neighbours of every node, sorted by target, then source; sets, without self-loops.

    GeoF's neighbourhoods are sets that hold the node itself in any case, so a repeated edge or a
    given self-loop must not use up a draw.

    Attributes:
        pointer: ``(n + 1,)``; the neighbours of ``i`` are ``source[pointer[i]:pointer[i + 1]]``.
        source: ``(E,)``.
    """

    pointer: Integers
    source: Integers

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_nodes: int) -> NeighbourIndex:
        """Sort and de-duplicate ``(2, E)`` int64 edges, sources in the first row."""
        require_positive("num_nodes", num_nodes, least=0)
        check_edge_index(edge_index, num_nodes)
        source, target = edge_index.detach().cpu().numpy()
        key = sorted_unique((target * num_nodes + source)[source != target])
        target, source = np.divmod(key, max(num_nodes, 1))
        return cls(np.searchsorted(target, np.arange(num_nodes + 1)).astype(np.int64), source)

    @property
    def num_nodes(self) -> int:
        """``n``."""
        return len(self.pointer) - 1

    def degree(self, nodes: Integers) -> Integers:
        """Return the number of in-neighbours."""
        return self.pointer[nodes + 1] - self.pointer[nodes]

    def origin_in(self, edge_index: Tensor) -> Integers:
        """Return where each edge stands in the ``edge_index`` this was made from; the first."""
        source, target = edge_index.detach().cpu().numpy()
        target_of = np.repeat(np.arange(self.num_nodes), np.diff(self.pointer))
        given = target * self.num_nodes + source
        order = np.argsort(given, kind="stable").astype(np.int64)
        own = target_of * self.num_nodes + self.source
        found: Integers = order[np.searchsorted(given[order], own)]
        return found

    def neighbours(self, nodes: Integers) -> tuple[Integers, Integers]:
        """Return all in-neighbours and, for each, whose it is as a position in ``nodes``."""
        place, owner = self.places(nodes)
        return self.source[place], owner

    def places(self, nodes: Integers) -> tuple[Integers, Integers]:
        """Return where all in-neighbours stand in ``source`` and, for each, whose it is."""
        degree = self.degree(nodes)
        owner = np.repeat(np.arange(len(nodes), dtype=np.int64), degree)
        # Consecutive within each node: count up, starting anew where a node's stretch begins.
        begin = self.pointer[nodes] - (np.cumsum(degree) - degree)
        return begin[owner] + np.arange(len(owner)), owner

    def sample(
        self, nodes: Integers, fanout: int, bits: np.random.PCG64
    ) -> tuple[Integers, Integers]:
        """Return up to ``fanout`` in-neighbours of each node, drawn without replacement."""
        place, owner = self.sample_places(nodes, fanout, bits)
        return self.source[place], owner

    def sample_places(
        self, nodes: Integers, fanout: int, bits: np.random.PCG64
    ) -> tuple[Integers, Integers]:
        """Return where they stand in ``source`` and, for each, whose it is."""
        many = self.degree(nodes) > fanout
        if fanout == ALL or not many.any():  # whatever the fanout: nothing is drawn
            return self.places(nodes)
        few = np.flatnonzero(~many)
        place, owner = self.places(nodes[few])
        crowded = np.flatnonzero(many)
        chosen = _distinct_below(self.degree(nodes[crowded]), fanout, bits)  # (fanout, crowded)
        drawn = self.pointer[nodes[crowded]] + chosen
        return (
            np.concatenate([place, drawn.ravel()]),
            np.concatenate([few[owner], np.tile(crowded, fanout)]),
        )


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive target nodes with everything that one step needs to update them.

    Attributes:
        targets: The nodes to update, in the graph's numbering.
        rows: The same nodes in the piece's numbering.
        nodes: ``(n_piece,)``, targets and in-neighbours, ascending. So the piece lists each
            target's neighbours in the graph's own order, and sums run as they do there.
        edge_index: ``(2, E_piece)`` in the piece's numbering, into the targets only.
        places: Where these edges stand in the index.
    """

    targets: slice
    rows: slice
    nodes: Tensor
    edge_index: Tensor
    places: slice


def pieces_of(index: NeighbourIndex, piece_size: int) -> Iterator[Piece]:
    """Cut a graph into pieces of bounded size; together their targets are all nodes, once each.

    Args:
        index: The graph.
        piece_size: Most in-neighbours a piece may have, every target counted as its own
            neighbour too. It bounds a piece's edges and its nodes, unlike a number of targets
            would where degrees differ. A single node with more neighbours is a piece of its own.
    """
    require_positive("piece_size", piece_size)
    # Closed neighbourhoods before node i, i = 0..n.
    before = index.pointer + np.arange(index.num_nodes + 1)
    for nodes in _stretches(before, piece_size):
        yield _piece(index, nodes.start, nodes.stop)


def _piece(index: NeighbourIndex, start: int, stop: int) -> Piece:
    targets = np.arange(start, stop, dtype=np.int64)
    source, owner = index.neighbours(targets)
    nodes = sorted_unique(np.concatenate([targets, source]))
    first = int(np.searchsorted(nodes, start))
    edges = np.stack([np.searchsorted(nodes, source), first + owner])
    return Piece(
        targets=slice(start, stop),
        rows=slice(first, first + stop - start),
        nodes=torch.from_numpy(nodes),
        edge_index=torch.from_numpy(edges),
        places=slice(int(index.pointer[start]), int(index.pointer[stop])),
    )


FEW = 256
"""Draws up to which comparing a draw with all before it, for all bounds at once, is fastest."""


def _distinct_below(bounds: Integers, count: int, bits: np.random.PCG64) -> Integers:
    """Draw ``count`` distinct numbers below each bound, ``(count, len(bounds))``.

    Robert Floyd's method: every subset is equally likely, and the cost does not depend on the
    bounds, so a hub is as cheap as any node.
    """
    raw = bits.random_raw(count * len(bounds)).reshape(count, len(bounds))
    uniform = (raw >> np.uint64(11)) * 2.0**-53  # in [0, 1)
    chosen = np.empty((count, len(bounds)), np.int64)
    if count > FEW:
        for column, bound in enumerate(bounds.tolist()):
            chosen[:, column] = _floyd(uniform[:, column], bound)
        return chosen
    for step in range(count):
        last = bounds - count + step
        draw = (uniform[step] * (last + 1)).astype(np.int64)
        taken = (chosen[:step] == draw).any(axis=0)
        chosen[step] = np.where(taken, last, draw)
    return chosen


def _floyd(uniform: NDArray[np.floating[Any]], bound: int) -> list[int]:
    """Return what :func:`_distinct_below` draws for one bound, in time linear in the draws."""
    chosen: dict[int, None] = {}  # a set that keeps the order
    first = bound - len(uniform)
    last = np.arange(first, bound)
    for step, draw in enumerate((uniform * (last + 1)).astype(np.int64).tolist()):
        chosen[first + step if draw in chosen else draw] = None
    return list(chosen)

"""What loading gives, one labelled graph or a labelled set of graphs, and how it is built.

Every reader gives these records. Edges become undirected (unless their direction is asked for),
sorted, without repeats and self-loops; labels become class indices in sorted order, -1 where there
is none, or :mod:`targets <geof.data.targets>`; notes count what changed.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from geof.data.cache import content_hash
from geof.data.targets import (
    CLASSES,
    TargetFacts,
    TargetKind,
    array_facts,
    array_targets,
    labelled,
    require_known,
)
from geof.draws import Integers, sorted_unique
from geof.errors import ConfigError, DataError, DtypeError, ShapeError, listed, nearest

EdgeColumns: TypeAlias = Literal["refuse", "ignore", "use"]
Features: TypeAlias = Tensor | NDArray[Any]

_POLICIES = get_args(EdgeColumns)


class EdgeSizes(NamedTuple):
    """What the columns of ``edge_attr`` are.

    Attributes:
        categories: The sizes of the first columns, which hold codes.
        channels: How many columns of numbers follow.
    """

    categories: tuple[int, ...] = ()
    channels: int = 0


class CarriedByEdges(NamedTuple):
    """Weights and attributes in the order in which edges were given.

    Attributes:
        weight: ``(E,)`` float32, at least 0, or ``None``.
        attributes: ``(E, columns)``, int64 for categories alone, otherwise float32; or ``None``.
        sizes: What the columns are.
    """

    weight: Tensor | None = None
    attributes: Tensor | None = None
    sizes: EdgeSizes = EdgeSizes()


class EdgeInputs(TypedDict, total=False):
    """What edges carry, in the order of an ``edge_index``, as far as they carry anything."""

    edge_weight: Tensor
    edge_attr: Tensor


@dataclass(frozen=True)
class NodeGraph:
    """A single graph whose nodes have labels, or for link prediction.

    Attributes:
        name: The dataset's name.
        graph: ``x`` (dense, or sparse CSR where mostly zero), ``edge_index`` (undirected unless
            ``directed``, sorted, without repeats and self-loops) and ``y`` (int64, -1 for
            unlabelled; ``(n, T)`` with NaN for other targets than classes). Where asked for,
            ``edge_weight`` and ``edge_attr`` in the order of ``edge_index``.
        class_names: The label of each class index, in order.
        node_ids: The user's own identifiers in node order, or ``None`` for 0, 1, 2, ...
        notes: What a reader of a number measured on it must know: fallbacks, dropped rows.
        content_hash: Changes whenever the features, edges or labels do.
        targets: What the labels are.
        directed: Whether edges have kept their direction.
        aside: Columns that a split goes by and that are no features, by name.
        edge_sizes: What its edges carry to a method; ``None`` for nothing.
        feature_names: What the columns of ``x`` are called, where that is known; for reports.
    """

    name: str
    graph: Data
    class_names: tuple[str, ...]
    node_ids: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=())
    content_hash: str = ""
    targets: TargetFacts = CLASSES
    directed: bool = False
    aside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edge_sizes: EdgeSizes | None = None
    feature_names: tuple[str, ...] | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def num_outputs(self) -> int:
        """How many numbers a network gives per row: one per class or target."""
        return len(self.class_names if self.targets.kind == "classes" else self.targets.names)


@dataclass(frozen=True)
class GraphSet:
    """A set of graphs that have labels.

    Attributes:
        name: The dataset's name.
        graphs: Each with ``x`` (dense), ``edge_index`` (undirected, sorted, without repeats and
            self-loops), ``y`` (one int64; ``(1, T)`` for other targets than classes) and, where
            the source has them, ``edge_attr`` in the order of ``edge_index``.
        class_names: The label of each class index, in order.
        graph_ids: The user's own identifiers in order, or ``None`` for 0, 1, 2, ...
        notes: What a reader of a number measured on it must know: fallbacks, dropped rows.
        content_hash: Changes whenever the features, edges or labels do.
        targets: What the labels are.
        directed: Whether edges have kept their direction.
        aside: Columns that a split goes by and that are no features, by name.
        edge_sizes: What their edges carry to a method; ``None`` for nothing, whatever they have.
        feature_names: What the columns of ``x`` are called, where that is known; for reports.
    """

    name: str
    graphs: Sequence[Data]
    class_names: tuple[str, ...]
    graph_ids: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=())
    content_hash: str = ""
    targets: TargetFacts = CLASSES
    directed: bool = False
    aside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edge_sizes: EdgeSizes | None = None
    feature_names: tuple[str, ...] | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def num_outputs(self) -> int:
        """How many numbers a network gives per row: one per class or target."""
        return len(self.class_names if self.targets.kind == "classes" else self.targets.names)


class ReadOptions(TypedDict, total=False):
    """What every reader lets the caller decide.

    Attributes:
        class_names: The classes of an earlier graph; labels must be among them, and their order
            is kept. For prediction; by default the classes are the sorted labels.
        target_kind: ``"classes"``, ``"regression"`` or ``"binary"``; guessed from the labels if
            not given, with a note.
        directed: Whether edges keep their direction (default: no). Messages then run along an
            edge; signatures are those of the undirected graph.
        edge_columns: ``"refuse"`` (default) raises on weights and attributes of edges, so that
            none is passed over in silence; ``"use"`` takes them; ``"ignore"`` drops them and says
            so in a note.
        allow_singletons: Whether a class may have a single member, which no split can hold, and a
            target no value at all (default: no).
    """

    class_names: Sequence[str]
    target_kind: TargetKind | None
    directed: bool
    edge_columns: EdgeColumns
    allow_singletons: bool


def node_graph(
    name: str,
    x: Tensor,
    edge_index: Tensor,
    y: Tensor,
    class_names: tuple[str, ...],
    node_ids: tuple[str, ...] | None,
    notes: Sequence[str],
    *,
    directed: bool = True,
    keep_direction: bool = False,
    targets: TargetFacts = CLASSES,
    carried: CarriedByEdges | None = None,
) -> NodeGraph:
    """Put a graph together: edges normalised, changes noted, content hashed."""
    _check_ids(node_ids, x.size(0), "node")
    normalise = directed_edges if keep_direction else undirected_edges
    edges, changed = normalise(edge_index, x.size(0), directed=directed)
    graph = Data(x=x, edge_index=edges, y=y)
    if carried is not None:
        made = carried_to(
            edges,
            carried,
            edge_index,
            x.size(0),
            directed=directed,
            keep_direction=keep_direction,
        )
        graph.update(made)
    return NodeGraph(
        name,
        graph,
        class_names,
        node_ids,
        (*notes, *change_notes(changed)),
        _hash_graphs([graph], class_names, targets),
        targets,
        directed=keep_direction,
        edge_sizes=None if carried is None else carried.sizes,
    )


def graph_set(
    name: str,
    graphs: list[Data],
    y: Tensor,
    class_names: tuple[str, ...],
    graph_ids: tuple[str, ...] | None,
    notes: Sequence[str],
    targets: TargetFacts = CLASSES,
    *,
    directed: bool = False,
    edge_sizes: EdgeSizes | None = None,
) -> GraphSet:
    """Put a set of graphs together; their edges are normalised already."""
    if not graphs:
        raise DataError(f"Expected at least one graph in '{name}' (got none).")
    _check_ids(graph_ids, len(graphs), "graph")
    for i, (graph, label) in enumerate(zip(graphs, y, strict=True)):
        if graph.x.size(1) != graphs[0].x.size(1):
            raise ShapeError(
                f"Expected {graphs[0].x.size(1)} features in every graph (got {graph.x.size(1)} "
                f"in graph {i})."
            )
        graph.y = label.reshape(1) if targets.kind == "classes" else label.reshape(1, -1)
    digest = _hash_graphs(graphs, class_names, targets)
    return GraphSet(
        name,
        graphs,
        class_names,
        graph_ids,
        tuple(notes),
        digest,
        targets,
        directed=directed,
        edge_sizes=edge_sizes,
    )


def _check_ids(ids: tuple[str, ...] | None, count: int, what: str) -> None:
    if ids is None:
        return
    if len(ids) != count:
        raise ShapeError(f"Expected {count} {what} identifiers (got {len(ids)}).")
    name, most = Counter(ids).most_common(1)[0] if ids else ("", 0)
    if most > 1:
        raise DataError(f"Expected different {what} identifiers (got {name!r} {most} times).")


def _hash_graphs(
    graphs: Sequence[Data], class_names: Sequence[str], targets: TargetFacts = CLASSES
) -> str:
    """Return a hash of features, edges, labels and the names of classes or targets."""
    tensors = {"classes": _bytes(class_names)}
    if targets != CLASSES:
        tensors["targets"] = _bytes([targets.kind, targets.names])
    for i, graph in enumerate(graphs):
        for key, value in graph.to_dict().items():
            pieces = [value]
            if value.layout == torch.sparse_csr:
                pieces = [value.crow_indices(), value.col_indices(), value.values()]
            tensors |= {f"{i}/{key}/{value.shape}/{j}": p for j, p in enumerate(pieces)}
    return content_hash(tensors)


def _bytes(names: Any) -> Tensor:
    return torch.tensor(list(json.dumps(names).encode()), dtype=torch.uint8)


# Edges ----------------------------------------------------------------------------------------


def undirected(source: Integers, target: Integers, num_nodes: int) -> tuple[Integers, Integers]:
    """Return both directions of every edge once, sorted by source and target, without self-loops.

    Returns:
        The edges ``(2, E)`` and, for each, its place in the input; of repeats the first in the
        same direction, and for an edge given in the other direction only, that one's.
    """
    place = np.arange(source.size)
    ends = np.stack([np.append(source, target), np.append(target, source)])
    place = np.append(place, place)
    proper = ends[0] != ends[1]
    ends, place = ends[:, proper], place[proper]
    _, first = np.unique(ends[0] * num_nodes + ends[1], return_index=True)
    return ends[:, first], place[first]


def undirected_edges(
    edge_index: Tensor, num_nodes: int, *, directed: bool = True
) -> tuple[Tensor, Counter[str]]:
    """Return both directions of every edge, sorted and once, and what was changed how often.

    Args:
        edge_index: The edges as given, ``(2, E)``.
        num_nodes: Number of nodes.
        directed: Whether an edge is expected in both directions (PyG), or once (tables).
    """
    ends = _checked_ends(edge_index, num_nodes)
    source, target = ends[:, ends[0] != ends[1]]
    both = _both_ways(source, target, num_nodes)
    # Of an edge given once both directions are there, of one given in both as well.
    given = sorted_unique(source * num_nodes + target).size if directed else both.size // 2
    changed = Counter({"self-loops removed": ends.shape[1] - source.size})
    changed["repeated edges merged"] = source.size - given
    if directed:
        changed[ONE_WAY] = both.size - given
    return torch.from_numpy(np.stack(np.divmod(both, max(num_nodes, 1)))), changed


ONE_WAY = "edges given in one direction taken as undirected"
"""What is said of edges whose other direction is not among those given."""


def one_way_edges(ends: Integers, num_nodes: int) -> int:
    """Return how many different edges ``(2, E)`` are there without their other direction."""
    source, target = ends[:, ends[0] != ends[1]]
    there = sorted_unique(source * num_nodes + target)
    return _both_ways(source, target, num_nodes).size - there.size


def _both_ways(source: Integers, target: Integers, num_nodes: int) -> Integers:
    """Return both directions of every edge once as ``source * n + target``, ascending."""
    keys = np.empty(2 * source.size, np.int64)  # edges may be many: no copy that can be spared
    for part, (one, other) in zip(
        (keys[: source.size], keys[source.size :]),
        ((source, target), (target, source)),
        strict=True,
    ):
        np.multiply(one, num_nodes, out=part)
        part += other
    return sorted_unique(keys)


def directed_edges(
    edge_index: Tensor, num_nodes: int, *, directed: bool = True
) -> tuple[Tensor, Counter[str]]:
    """Return the edges as given, sorted and once, without self-loops, and what was changed.

    Args:
        edge_index: Sources in the first row: messages run from them to the second.
        num_nodes: Number of nodes.
        directed: Not read; :func:`undirected_edges` has it.
    """
    ends = _checked_ends(edge_index, num_nodes)
    kept = ends[:, ends[0] != ends[1]]
    key = sorted_unique(kept[0] * num_nodes + kept[1])
    changed = Counter({"self-loops removed": ends.shape[1] - kept.shape[1]})
    changed["repeated edges merged"] = kept.shape[1] - key.size
    changed["edges keep their direction"] = key.size
    return torch.from_numpy(np.stack(np.divmod(key, max(num_nodes, 1)))), changed


def _checked_ends(edge_index: Tensor, num_nodes: int) -> Integers:
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ShapeError(f"Expected 'edge_index' of shape (2, E) (got {tuple(edge_index.shape)}).")
    if edge_index.is_floating_point() or edge_index.is_complex():
        raise DtypeError(f"Expected whole numbers in 'edge_index' (got {edge_index.dtype}).")
    ends = edge_index.long().numpy()
    wrong = ((ends < 0) | (ends >= num_nodes)).any(0)
    if wrong.any():
        first = int(wrong.argmax())
        raise DataError(
            f"Expected edges between nodes 0 to {num_nodes - 1} (got "
            f"{tuple(ends[:, first].tolist())} at position {first})."
        )
    checked: Integers = ends
    return checked


def carried_to(
    both: Tensor,
    carried: CarriedByEdges,
    edge_index: Tensor,
    num_nodes: int,
    *,
    directed: bool = True,
    keep_direction: bool = False,
    where: str = "the edges",
) -> dict[str, Tensor]:
    """Return ``edge_weight`` and ``edge_attr`` of normalised edges, as far as there are any.

    An edge given in one direction carries the same in the other.

    Args:
        both: What :func:`undirected_edges` or :func:`directed_edges` made of ``edge_index``.
        carried: What the edges carry, in the order of ``edge_index``.
        edge_index: The edges as given.
        num_nodes: Number of nodes.
        directed: As for :func:`undirected_edges`.
        keep_direction: Whether it was :func:`directed_edges`.
        where: What holds the edges, for a message.

    Raises:
        DataError: If an edge is given several times and carries different things.
    """
    ends = edge_index.long().numpy()
    ends = ends if directed or keep_direction else np.sort(ends, axis=0)
    given = np.flatnonzero(ends[0] != ends[1])
    if keep_direction:
        _, first = np.unique(ends[0, given] * num_nodes + ends[1, given], return_index=True)
    else:
        _, first = undirected(ends[0, given], ends[1, given], num_nodes)
    place = torch.from_numpy(given[first])
    names = {"edge_weight": carried.weight, "edge_attr": carried.attributes}
    found = {name: values for name, values in names.items() if values is not None}
    rows = edge_places(both, torch.from_numpy(ends[:, given]), num_nodes)
    for name, values in found.items():
        other = values[place][rows] != values[torch.from_numpy(given)]
        if other.any():
            at = int(other.reshape(len(given), -1).any(1).nonzero()[0])
            edge = int(given[at])
            raise DataError(
                f"Expected an edge that is given several times to carry the same in {where} (got "
                f"'{name}' {values[edge].tolist()} at edge {edge}, {tuple(ends[:, edge].tolist())},"
                f" and {values[place][rows[at]].tolist()} before). Keep one of them, or their sum "
                "or mean."
            )
    return {name: values[place] for name, values in found.items()}


def edge_places(edge_index: Tensor, chosen: Tensor, num_nodes: int) -> Tensor:
    """Return where each of the chosen edges, ``(2, k)``, stands in a sorted ``edge_index``."""
    key = edge_index[0] * num_nodes + edge_index[1]
    return torch.searchsorted(key, (chosen[0] * num_nodes + chosen[1]).contiguous())


def edge_inputs(graph: Data, places: Tensor | None = None) -> EdgeInputs:
    """Return what the edges of a graph have, those at some places or all."""
    found: EdgeInputs = {}
    every = slice(None) if places is None else places
    if "edge_weight" in graph:
        found["edge_weight"] = graph.edge_weight[every]
    if "edge_attr" in graph:
        found["edge_attr"] = graph.edge_attr[every]
    return found


def carried_by(data: NodeGraph, chosen: Tensor | None = None) -> EdgeInputs:
    """Return what the chosen edges ``(2, k)`` of a graph, or all, carry to a method."""
    graph = data.graph
    if data.edge_sizes is None:
        return {}
    if chosen is None:
        return edge_inputs(graph)
    return edge_inputs(graph, edge_places(graph.edge_index, chosen, graph.num_nodes))


def carried_on(carried: EdgeInputs, device: torch.device) -> EdgeInputs:
    """Return what edges carry on a device."""
    moved: EdgeInputs = {}
    if "edge_weight" in carried:
        moved["edge_weight"] = carried["edge_weight"].to(device)
    if "edge_attr" in carried:
        moved["edge_attr"] = carried["edge_attr"].to(device)
    return moved


def checked_carried(
    weight: Any, attributes: Any, count: int, where: str, sizes: Sequence[int] = ()
) -> CarriedByEdges:
    """Return weights and attributes that a graph can use.

    Args:
        weight: ``(E,)`` or ``(E, 1)`` numbers, or ``None``.
        attributes: ``(E,)`` or ``(E, columns)``, whole numbers for categories and others for
            numbers; or ``None``.
        count: How many edges there are.
        where: What holds them, for a message.
        sizes: How many categories the first columns have, where that is known.

    Raises:
        ShapeError: If there are more or fewer than edges.
        DtypeError: If they are no numbers.
        DataError: If a weight is negative, a code is, or anything is not finite.
    """
    if weight is not None:
        weight = _edge_numbers("edge_weight", weight, count, where).float()
        if weight.size(1) != 1:
            raise ShapeError(
                f"Expected one weight per edge in 'edge_weight' of {where} (got "
                f"{weight.size(1)}). Give several numbers as 'edge_attr'."
            )
        weight = weight.view(-1)
        wrong = (weight < 0).nonzero().flatten()
        if len(wrong):
            edge = int(wrong[0])
            raise DataError(
                f"Expected 'edge_weight' of at least 0 in {where} (got {weight[edge].item():g} at "
                f"edge {edge}). Clean or shift the weights; a sign can be a category."
            )
    if attributes is None:
        return CarriedByEdges(weight)
    attributes = _edge_numbers("edge_attr", attributes, count, where)
    whole = not attributes.is_floating_point()
    columns = attributes.size(1) if whole else len(sizes)
    codes = attributes[:, :columns]
    wrong = ((codes < 0) | (codes != codes.floor())).any(1).nonzero().flatten()
    if len(wrong):
        edge = int(wrong[0])
        raise DataError(
            f"Expected categories 0, 1, ... in 'edge_attr' of {where} (got "
            f"{codes[edge].tolist()} at edge {edge}). Count them from 0, or give numbers as floats."
        )
    most = codes.amax(0).long() + 1 if count else codes.new_ones(columns).long()
    known = tuple(sizes) or tuple(most.tolist())
    if len(known) > attributes.size(1) or any(
        type(size) is not int or size < needed
        for size, needed in zip(known, most.tolist(), strict=False)
    ):
        raise DataError(
            f"Expected sizes of the first columns of 'edge_attr' in {where}, each above its codes "
            f"(got {list(known)} for {attributes.size(1)} columns, codes below {most.tolist()})."
        )
    return CarriedByEdges(weight, attributes, EdgeSizes(known, attributes.size(1) - columns))


def _edge_numbers(name: str, values: Any, count: int, where: str) -> Tensor:
    """Return ``(E, columns)``, int64 or finite float32."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biuf":
        raise DtypeError(f"Expected real numbers in '{name}' of {where} (got {values.dtype}).")
    found = torch.as_tensor(values) if not isinstance(values, Tensor) else values.detach().cpu()
    if found.is_complex():
        raise DtypeError(f"Expected real numbers in '{name}' of {where} (got {found.dtype}).")
    if found.dim() not in (1, 2) or found.size(0) != count:
        raise ShapeError(
            f"Expected '{name}' of shape ({count}, columns) in {where}, a row per edge (got "
            f"{tuple(found.shape)})."
        )
    found = found.reshape(count, found.size(1) if found.dim() == 2 else 1)
    found = found.float() if found.is_floating_point() else found.long()
    bad = (~torch.isfinite(found)).any(1).nonzero().flatten()
    if len(bad):
        raise DataError(
            f"Expected finite numbers in '{name}' of {where} (got a NaN or an infinity at edge "
            f"{int(bad[0])}, and {len(bad)} such in all). Correct them or leave the edges out."
        )
    return found


def change_notes(changed: Mapping[str, int]) -> list[str]:
    """Return a sentence for each kind of change that happened."""
    remedies = {ONE_WAY: " Keep the direction with directed=True (--directed)."}
    return [f"{n} {what}." + remedies.get(what, "") for what, n in changed.items() if n]


def edge_columns_note(names: Iterable[str], where: str, options: ReadOptions) -> list[str]:
    """Refuse weights and attributes of edges, or note that they were dropped on request."""
    policy = options.get("edge_columns", "refuse")
    if policy not in _POLICIES:
        raise ConfigError(f"Unknown edge_columns={policy!r}. " + nearest(policy, _POLICIES))
    found = listed(sorted(names))
    if found and policy == "refuse":
        raise DataError(
            f"Expected edges without weights or attributes in {where} (got {found}): the model "
            "does not use them unless asked to. Use them with edge_columns='use' (--edge-columns "
            "use), or drop them explicitly with edge_columns='ignore' (--edge-columns ignore)."
        )
    ignored = found and policy == "ignore"
    return [f"Edge columns ignored on request: {found}."] if ignored else []


# Labels ---------------------------------------------------------------------------------------


def index_labels(
    labels: NDArray[Any] | None, count: int, options: ReadOptions, names: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...], list[str]]:
    """Return class indices, class names and notes.

    Args:
        labels: Strings (blank: none), whole numbers (-1: none) or floats (NaN: none).
        count: How many there must be.
        options: The caller's ``class_names`` and ``allow_singletons``.
        names: The classes in the source's own order, where it says so.
    """
    known = tuple(options.get("class_names", ()))
    if labels is None:
        return torch.full((count,), -1), known, []
    if labels.shape not in ((count,), (count, 1)):
        raise ShapeError(f"Expected {count} labels (got shape {labels.shape}).")
    values, inverse = np.unique(labels.reshape(-1), return_inverse=True)
    texts = [label_text(value) for value in values.tolist()]
    names = known or tuple(names) or class_names_of(texts)
    if not known and len(names) == 1 and -1 in values.tolist():
        raise DataError(
            f"Expected classes 0, 1, ... with -1 for unlabelled (got only -1 and {names[0]}). If "
            "-1 is a class, give the labels as 0 and 1."
        )
    for text in texts:
        if text and text not in names:
            raise DataError(f"Expected a known class (got {text!r}). " + nearest(text, names))
    index = {name: i for i, name in enumerate(names)}
    codes = torch.tensor([index.get(text, -1) for text in texts], dtype=torch.long)
    y = codes[torch.from_numpy(inverse)]
    if not known:
        require_members(y, names, options.get("allow_singletons", False))
    unlabelled = int((y < 0).sum())
    return y, names, [f"{unlabelled} of {count} without a label."] if unlabelled else []


class Labels(NamedTuple):
    """What a reader found to predict: values, names of classes, what they are, notes."""

    y: Tensor
    class_names: tuple[str, ...]
    facts: TargetFacts
    notes: list[str]


def read_labels(
    labels: NDArray[Any] | None,
    count: int,
    options: ReadOptions,
    names: Sequence[str] = (),
    target_names: Sequence[str] = (),
) -> Labels:
    """Return class indices (see :func:`index_labels`), or targets of the kind asked for."""
    asked = options.get("target_kind")
    if asked is None and (names or options.get("class_names")):
        asked = "classes"
    facts, notes = array_facts(labels, asked, target_names)
    if labels is None or facts.kind == "classes":
        y, class_names, said = index_labels(labels, count, options, names)
        return Labels(y, class_names, facts, said)
    y = array_targets(labels, count, facts)
    if not options.get("allow_singletons", False):
        require_known(y, facts, "the labels")
    return Labels(y, (), facts, [*notes, *missing_note(y)])


def missing_note(y: Tensor) -> list[str]:
    """Return a sentence about targets that are missing, if any are."""
    missing, bare = int(y.isnan().sum()), int((~labelled(y)).sum())
    if not missing:
        return []
    return [f"{missing} of {y.numel()} targets are missing; {bare} of {len(y)} rows have none."]


def class_names_of(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the different labels in order, whole numbers by size; blank ones are no label."""
    names = {label for label in labels if label.strip()}
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def require_members(y: Tensor, names: Sequence[str], allowed: bool, where: str = "") -> None:
    """Refuse a class with a single member, unless allowed."""
    counts = torch.bincount(y[y >= 0], minlength=len(names))
    lonely = [name for name, count in zip(names, counts.tolist(), strict=True) if count == 1]
    if lonely and not allowed:
        raise DataError(
            f"Expected at least two members in every class (got one in {lonely[0]!r}{where}"
            + (f" and {len(lonely) - 1} other classes" if len(lonely) > 1 else "")
            + "): no split can hold it. Merge or unlabel it, admit it with allow_singletons=True "
            "(--allow-singletons), or, if the labels are amounts, use target_kind='regression' "
            "(--target-kind regression)."
        )


def label_text(value: Any) -> str:
    """Return a label as text; a whole number without its point."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):
        return value if value.strip() else ""
    if value is None or value == -1 or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float) or value < 0 or value != value // 1:
        raise DataError(f"Expected text or 0, 1, ... as labels, -1 for none (got {value!r}).")
    return str(int(value))


# Features -------------------------------------------------------------------------------------


def finite_features(x: Features, where: str) -> Tensor:
    """Return finite float32 features, ``(n, d)``, dense or CSR."""
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "biuf":
            raise DtypeError(f"Expected numbers as features in {where} (got {x.dtype}).")
        with np.errstate(over="ignore"):  # refused below, with its place
            mapped = isinstance(x, np.memmap)  # which nobody else writes to
            x = torch.from_numpy(x.astype(np.float32, copy=not mapped))
    if x.dim() != 2 or not x.size(0):
        raise ShapeError(
            f"Expected features of shape (nodes, d) in {where} (got {tuple(x.shape)})."
        )
    if x.is_complex():
        raise DtypeError(f"Expected real features in {where} (got {x.dtype}).")
    x = (x.to_sparse_csr() if x.layout == torch.sparse_coo else x).detach().cpu().float()
    finite = torch.isfinite(x.values() if x.layout == torch.sparse_csr else x)
    if not finite.all():
        dense = ~torch.isfinite(x.to_dense())
        row, column = dense.nonzero()[0].tolist()
        raise DataError(
            f"Expected finite features in {where} (got {float(x.to_dense()[row, column])} at node "
            f"{row}, column {column}). Correct or leave out what is missing."
        )
    return x


def sparse_features(
    row_pointer: Tensor, column: Tensor, value: Tensor, shape: list[int] | tuple[int, ...]
) -> Tensor:
    """Return features as a sparse CSR tensor with int64 indices, every index checked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            row_pointer.long(), column.long(), value, shape, check_invariants=True
        )

"""What a page shows of a run that is applied to its data: scores, a map, the geometry of nodes.

Everything comes from what the run itself evaluates: for links, messages pass along the training
edges alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from geof.data.batching import PackedGraphs
from geof.data.columns import ColumnEncoder
from geof.data.records import GraphSet, NodeGraph
from geof.draws import raw_permutation, raw_stream
from geof.errors import ConfigError, nearest
from geof.methods.geof import GeoFEncoder
from geof.methods.interface import GraphInputs
from geof.nn import GeoF
from geof.nn.trace import GeoFState
from geof.report.drawing import Method, node_views, numbers_per_node, plane, positions
from geof.report.html import short
from geof.report.scores import class_scores, link_scores, target_scores
from geof.training.predict import (
    AnyPart,
    Run,
    embed_graphs,
    graph_ids,
    node_ids,
    part_predictions,
    predict_nodes,
)
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Task
from geof.training.trainer import sums_in_fixed_order

NODES = 2000
"""Nodes whose geometry a page holds at most, apart from those asked for."""

GRAPHS = 24
"""Graphs drawn with their nodes' geometry at most, apart from those asked for."""

MAP_GRAPHS = 5000
"""Graphs on the map at most."""

NUMBERS = 1_600_000
"""Numbers of geometry a page holds about; four digits each keep it below 15 MB."""

SEED = 0


@dataclass(frozen=True)
class Wanted:
    """What a page is to hold.

    Attributes:
        nodes: Identifiers of nodes to include whatever the sample.
        graphs: Identifiers of graphs likewise.
        map: How the map is made.
    """

    nodes: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    map: Method = "auto"


def run_views(run: Run, task: Task, part: AnyPart, wanted: Wanted) -> dict[str, Any]:
    """Apply a run to its own data.

    Args:
        run: From its folder.
        task: What it was trained on, from :func:`~geof.training.predict.stored_task`.
        part: The part whose scores are shown.
        wanted: What to include.

    Returns:
        Scores, map, names and (for GeoF) geometry, as plain values.

    Raises:
        ConfigError: If an identifier is unknown.
    """
    fixed = bool(run.about.get("training", {}).get("deterministic", True))
    with torch.no_grad(), sums_in_fixed_order(fixed):
        if isinstance(task, GraphTask):
            return _graph_views(run, task, part, wanted)
        assert isinstance(task, NodeTask | LinkTask)
        return _node_views(run, task, part, wanted)


def _node_views(
    run: Run, task: NodeTask | LinkTask, part: AnyPart, wanted: Wanted
) -> dict[str, Any]:
    _refuse("graph", wanted.graphs)
    data, ids = task.data, node_ids(task.data)
    asked = _places("node", wanted.nodes, ids)
    chance, label, rows = part_predictions(run, data, part, task=task)
    geof = _geof(run)
    if geof is None:
        state, vectors = None, run.network.encode(task.inputs).states
    else:
        state = _evolved(geof, task.inputs)
        vectors = state.output
    what = f"nodes of {'pairs of ' if isinstance(task, LinkTask) else ''}the {part} part"
    chosen, which = _sample_of_nodes(len(ids), rows.unique(), what, asked, _limit(run))
    scopes = []
    if geof is not None and state is not None:
        scopes = [{"key": None, **_scope(geof, state, chosen)}]
    if isinstance(task, LinkTask):
        scores, predicted = link_scores(chance, label), None
    elif run.objective.kind != "classes":
        scores, predicted = target_scores(chance, label, run.objective), None
    else:
        scores = class_scores(chance, label, run.class_names)
        predicted = predict_nodes(run, data).probability
    seen = {*chosen, *(other for s in scopes for n in s["nodes"] for other in n["neighbours"])}
    return {
        "scores": scores,
        "classes": list(data.class_names),
        "names": _names(sorted(seen), ids, data.graph.y, predicted, _parts(task)),
        "map": _map("nodes", vectors[chosen], chosen, which, wanted.map),
        "geometry": _geometry(run, data, which, scopes),
        "first": asked[0] if asked else None,
    }


def _graph_views(run: Run, task: GraphTask, part: AnyPart, wanted: Wanted) -> dict[str, Any]:
    _refuse("node", wanted.nodes)
    data, ids = task.data, graph_ids(task.data)
    asked = _places("graph", wanted.graphs, ids)
    chance, label, rows = part_predictions(run, data, part, task=task)
    shown, about = _sample(rows.tolist(), MAP_GRAPHS, f"graphs of the {part} part")
    shown = sorted({*shown, *asked})
    vectors = embed_graphs(run, _subset(data, shown)).vectors
    scopes, which = _graph_scopes(run, data, rows.tolist(), part, asked)
    names = _graph_names(shown, ids, data, rows, chance, part)
    return {
        "scores": class_scores(chance, label, run.class_names)
        if run.objective.kind == "classes"
        else target_scores(chance, label, run.objective),
        "classes": list(data.class_names),
        "names": names,
        "map": _map("graphs", vectors, shown, about, wanted.map),
        "geometry": _geometry(run, data, which, scopes),
        "first": asked[0] if asked else None,
    }


def _graph_scopes(
    run: Run, data: GraphSet, rows: Sequence[int], part: str, asked: Sequence[int]
) -> tuple[list[dict[str, Any]], str]:
    """Return the drawn graphs with their nodes, and which they are."""
    geof = _geof(run)
    if geof is None:
        return [], ""
    order = [rows[i] for i in raw_permutation(raw_stream(SEED), len(rows)).tolist()]
    limit, taken, room = _limit(run), list(asked), _limit(run)
    for graph in order:
        size = int(data.graphs[graph].num_nodes)
        if len(taken) - len(asked) < GRAPHS and size <= room and graph not in taken:
            taken.append(graph)
            room -= size
    if not taken:  # each alone is more than there is room for
        taken = [min(rows, key=lambda graph: int(data.graphs[graph].num_nodes))]
    which = f"A sample of {len(taken) - len(asked)} of the {len(rows):,} graphs of the {part} part"
    if len(taken) == len(rows):
        which = f"All {len(rows):,} graphs of the {part} part"
    which += f" (seed {SEED}; at most {GRAPHS} graphs and {limit:,} nodes together)"
    if asked:
        which += f" and {len(asked)} asked for"
    return [_graph_scope(run, geof, data, graph) for graph in taken], which + "."


def _graph_scope(run: Run, geof: GeoF, data: GraphSet, graph: int) -> dict[str, Any]:
    packed = PackedGraphs.pack([data.graphs[graph]])
    inputs = packed.batch(torch.tensor([0]), packed.sign(run.config.signature).values)
    state = _evolved(geof, inputs)
    count = int(inputs.x.size(0))
    edges = [(u, v) for u, v in inputs.edge_index.t().tolist() if u < v]
    places, how = positions(count, edges)
    drawn = {"layout": short(places), "how": how, "edges": [list(edge) for edge in edges]}
    return {"key": graph, **drawn, **_scope(geof, state, list(range(count)))}


def _geof(run: Run) -> GeoF | None:
    encoder = run.network.encoder
    return encoder.geof if isinstance(encoder, GeoFEncoder) else None


def _evolved(geof: GeoF, inputs: GraphInputs) -> GeoFState:
    return geof.evolve(
        inputs.x,
        inputs.edges,
        inputs.signature,
        trajectory=True,
        edge_weight=inputs.edge_weight,
        edge_attr=inputs.edge_attr,
    )


def _scope(geof: GeoF, state: GeoFState, nodes: Sequence[int]) -> dict[str, Any]:
    assert state.trajectory is not None
    return {
        "change": short([float(trace.geometry_change) for trace in state.trajectory]),
        "nodes": node_views(state, nodes, geof.feature_lift.weight),
    }


def _geometry(
    run: Run, data: NodeGraph | GraphSet, which: str, scopes: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    geof = _geof(run)
    if geof is None or not scopes:
        return None
    used = {f for s in scopes for n in s["nodes"] for b in n["features"] for d in b for f in d}
    named = data.feature_names
    if isinstance(run.schema, ColumnEncoder):
        named = run.schema.feature_names
    return {
        "of": "graphs" if isinstance(data, GraphSet) else "nodes",
        "which": which,
        "steps": geof.steps,
        "blocks": geof.blocks,
        "size": geof.block_size,
        "features": {} if named is None else {str(f): named[f] for f in sorted(used)},
        "normalised": geof.scale_features or run.config.options["normalise"] != "none",
        "scopes": list(scopes),
    }


def _map(
    unit: str, vectors: Tensor, items: Sequence[int], which: str, method: Method
) -> dict[str, Any] | None:
    if not len(items) or not bool(vectors.isfinite().all()):
        return None
    return {"of": unit, "which": which, "items": list(items), **plane(vectors, method)}


def _sample_of_nodes(
    count: int, rows: Tensor, what: str, asked: Sequence[int], limit: int
) -> tuple[list[int], str]:
    """Return which nodes are shown, ascending, and a sentence that says so."""
    if count <= limit:
        return list(range(count)), f"All {count:,} nodes."
    chosen, which = _sample(rows.tolist(), limit, what)
    more = set(asked) - set(chosen)
    if more:
        which = which.removesuffix(".") + f", and {len(more)} asked for."
    return sorted({*chosen, *more}), which


def _sample(rows: Sequence[int], limit: int, what: str) -> tuple[list[int], str]:
    if len(rows) <= limit:
        return list(rows), f"All {len(rows):,} {what}."
    order = raw_permutation(raw_stream(SEED), len(rows))[:limit].tolist()
    told = f"A sample of {limit:,} of the {len(rows):,} {what} (seed {SEED})."
    return sorted(rows[i] for i in order), told


def _limit(run: Run) -> int:
    """Return how many nodes a page can hold without growing too large."""
    geof = _geof(run)
    if geof is None:
        return NODES
    return max(min(NODES, NUMBERS // numbers_per_node(geof.blocks, geof.steps)), 1)


def _names(
    shown: Iterable[int],
    ids: Sequence[str],
    label: Tensor,
    chance: Tensor | None,
    parts: Mapping[int, str],
) -> dict[str, list[Any]]:
    """Return identifier, class, predicted class, its probability and part by number."""
    found = {}
    for i in shown:
        said: list[Any] = [None, None]
        if chance is not None:
            best = int(chance[i].argmax())
            said = [best, short(float(chance[i, best]))]
        true = -1 if label.is_floating_point() else int(label[i])
        found[str(i)] = [ids[i], true if true >= 0 else None, *said, parts.get(i)]
    return found


def _graph_names(
    shown: Sequence[int],
    ids: Sequence[str],
    data: GraphSet,
    rows: Tensor,
    chance: Tensor,
    part: str,
) -> dict[str, list[Any]]:
    place = {row: i for i, row in enumerate(rows.tolist())}
    found = {}
    for graph in shown:
        said: list[Any] = [None, None]
        classes = data.targets.kind == "classes"
        if graph in place and classes:
            row = chance[place[graph]]
            said = [int(row.argmax()), short(float(row.max()))]
        true = int(data.graphs[graph].y.view(-1)[0]) if classes else -1
        inside = part if graph in place else None
        found[str(graph)] = [ids[graph], true if true >= 0 else None, *said, inside]
    return found


def _parts(task: NodeTask | LinkTask) -> dict[int, str]:
    if isinstance(task, LinkTask):
        return {}  # pairs are in parts, nodes are not
    split = task.split
    named = {"train": split.train, "validation": split.validation, "test": split.test}
    return {i: name for name, rows in named.items() for i in rows.tolist()}


def _subset(data: GraphSet, chosen: Sequence[int]) -> GraphSet:
    ids = graph_ids(data)
    return replace(
        data,
        graphs=[data.graphs[i] for i in chosen],
        graph_ids=tuple(ids[i] for i in chosen),
    )


def _places(flag: str, asked: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Return where identifiers are, each once.

    Raises:
        ConfigError: For one that is not there.
    """
    if not asked:
        return []
    place = {name: i for i, name in enumerate(ids)}
    for name in asked:
        if name not in place:
            raise ConfigError(
                f"Expected '--{flag}' to name a {flag} of the data (got {name!r}). "
                + (nearest(name, ids) if len(ids) <= 20 else f"The first is {ids[0]!r}.")
            )
    return sorted({place[name] for name in asked})


def _refuse(flag: str, asked: Sequence[str]) -> None:
    if asked:
        other = {"graph": "--node, as the run is on one graph", "node": "--graph ID instead"}[flag]
        raise ConfigError(f"Expected no '--{flag}' for this run (got {asked[0]!r}). Use {other}.")

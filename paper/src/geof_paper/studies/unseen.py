"""Graphs nobody tuned for: GeoF ``auto`` beside GCN, GraphSAGE and an MLP without edges.

Every row, one training of one method on one split, is written when it is finished; a study that was
stopped goes on. The epoch is chosen on validation and the test part is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from geof.data.records import GraphSet, NodeGraph
from geof.io import merge
from geof.methods.interface import TaskKind
from geof.methods.registry import AUTO, load_preset
from geof.training import RunConfig, adapted
from geof_paper.studies.trained_rows import BUDGET, Job, Row, cell, complete, is_behind, score_of
from geof_paper.studies.unseen_graphs import UNSEEN, Unseen

SPLITS = (0, 1, 2)

FOLDS = 5
"""Sets of graphs are divided 60/20/20, as nodes are."""

TITLES = {
    "geof": "GeoF `auto`",
    "gcn": "GCN",
    "sage-classic": "GraphSAGE",
    "feature-mlp": "MLP, no edges",
}
"""The compared methods, GeoF first."""


def run_study(
    path: Path,
    graphs: Sequence[Unseen] = UNSEEN,
    methods: Sequence[str] = tuple(TITLES),
    splits: Sequence[int] = SPLITS,
    *,
    changes: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train what a file of rows has not yet.

    Args:
        path: The file, one row of JSON per line.
        graphs: What is learned from.
        methods: What is trained.
        splits: Numbers of splits.
        changes: Laid over the options of all methods.
        say: Told about every row.

    Returns:
        The rows that were asked for.
    """
    return complete(path, _jobs(graphs, methods, splits, changes or {}), say)


def _jobs(
    graphs: Sequence[Unseen],
    methods: Sequence[str],
    splits: Sequence[int],
    changes: Mapping[str, Any],
) -> Iterator[Job]:
    for unseen in graphs:
        data = unseen.make()
        for split in splits:
            for method in methods:
                config = config_of(unseen, data, method, split, changes)
                yield Job(unseen.name, data, method, config)


def config_of(
    unseen: Unseen,
    data: NodeGraph | GraphSet,
    method: str,
    split: int,
    changes: Mapping[str, Any],
) -> RunConfig:
    """Return a run's config: the method's preset, for GeoF with what the data choose."""
    about = {"method": method, "task": unseen.task, "split": split, "folds": FOLDS}
    judged = {} if unseen.metric is None else {"metric": unseen.metric}
    config = RunConfig.parse(merge(about, judged, _layer(method, unseen.task), changes))
    return adapted(config, data)


def _layer(method: str, task: TaskKind) -> dict[str, Any]:
    """Return what a method gets over its preset."""
    if method == "geof":
        return {"preset": AUTO}
    if method == "feature-mlp":
        return {**BUDGET, "readout": load_preset("geof", AUTO, task)["readout"]}
    return dict(BUDGET)


def table(rows: Sequence[Row], part: str = "test") -> str:
    """Return Markdown: a line per dataset, a column per method.

    The best mean is bold; GeoF's is followed by ``(below)`` where it is below the best of the
    others by more than the pooled deviation.

    Args:
        rows: Of any datasets and methods.
        part: ``"test"`` or ``"validation"``.
    """
    methods = [name for name in TITLES if any(row.method == name for row in rows)]
    about = {unseen.name: unseen.about for unseen in UNSEEN}
    lines = [
        "| data | what | metric | " + " | ".join(TITLES[name] for name in methods) + " |",
        "|---|---|---|" + "---:|" * len(methods),
    ]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        of_it = [row for row in rows if row.dataset == dataset]
        scores = {name: score_of(of_it, name, part) for name in methods}
        cells = " | ".join(cell(name, scores, ("geof",)) for name in methods)
        lines.append(f"| {dataset} | {about.get(dataset, '')} | {of_it[0].metric} | {cells} |")
    return "\n".join(lines) + "\n"


def losses(rows: Sequence[Row]) -> list[str]:
    """Return the datasets on which GeoF is below the best of the others beyond the deviation."""
    found = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        of_it = [row for row in rows if row.dataset == dataset]
        if is_behind("geof", {name: score_of(of_it, name, "test") for name in TITLES}, ("geof",)):
            found.append(dataset)
    return found

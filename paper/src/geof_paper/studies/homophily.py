"""GeoF beside GCN, GraphSAGE, GAT and an MLP on graphs of falling homophily.

The graphs are those of :mod:`geof_paper.studies.homophily_graphs`. The number of the split is that
of the draw and of the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from geof.data.records import NodeGraph
from geof.io import merge
from geof.methods.registry import AUTO, load_preset
from geof.training import RunConfig, adapted
from geof_paper.studies.homophily_graphs import FAMILIES, LEVELS, graph_name, homophily_graph
from geof_paper.studies.trained_rows import Job, Row, Score, cell, complete, is_behind, score_of

DRAWS = (0, 1, 2, 3, 4)

BUDGET = {"epochs": 60, "patience": None}
"""Of all methods: that of the tuned presets, under which learning rates fall to zero in time."""

TITLES = {
    "geof:auto": "GeoF `auto`",
    "geof:tuned": "GeoF `tuned`",
    "gcn-classic": "GCN",
    "sage-classic": "GraphSAGE",
    "gat-classic": "GAT",
    "feature-mlp": "MLP, no edges",
}
"""The compared methods, with a preset behind a colon; GeoF first."""

OWN = ("geof:auto", "geof:tuned")

GRAPHS = {graph_name(f, level): (f, level) for f in reversed(FAMILIES) for level in LEVELS}
"""Family and homophily by the name of the graphs."""

REPORTED = tuple(name for name, (family, _) in GRAPHS.items() if family == "next")
"""What is trained on when no graphs are named: where edges between classes tell something."""


def run_study(
    path: Path,
    graphs: Sequence[str] = REPORTED,
    methods: Sequence[str] = tuple(TITLES),
    draws: Sequence[int] = DRAWS,
    *,
    changes: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train what a file of rows has not yet.

    Args:
        path: The file, one row of JSON per line.
        graphs: Names of :data:`GRAPHS`.
        methods: What is trained.
        draws: Numbers of draws, which are those of splits and seeds too.
        changes: Laid over the options of all methods.
        say: Told about every row.

    Returns:
        The rows that were asked for.
    """
    return complete(path, _jobs(graphs, methods, draws, changes or {}), say)


def _jobs(
    graphs: Sequence[str],
    methods: Sequence[str],
    draws: Sequence[int],
    changes: Mapping[str, Any],
) -> Iterator[Job]:
    for name in graphs:
        for draw in draws:
            data = homophily_graph(*GRAPHS[name], draw)
            for method in methods:
                yield Job(name, data, method, config_of(data, method, draw, changes))


def config_of(data: NodeGraph, method: str, draw: int, changes: Mapping[str, Any]) -> RunConfig:
    """Return a run's config: the preset with the budget of all, and what the data choose."""
    name, _, preset = method.partition(":")
    about: dict[str, Any] = {"method": name, "task": "node", "split": draw, **BUDGET}
    if preset:
        about["preset"] = preset
    if name == "feature-mlp":
        about["readout"] = load_preset("geof", AUTO, "node")["readout"]
    return adapted(RunConfig.parse(merge(about, changes)), data)


def table(rows: Sequence[Row], part: str = "test") -> str:
    """Return Markdown: a line per level, a column per method.

    The best mean is bold; GeoF's are followed by ``(below)`` where they are below the best of the
    others by more than the pooled deviation.

    Args:
        rows: Of any graphs and methods.
        part: ``"test"`` or ``"validation"``.
    """
    methods = [name for name in TITLES if any(row.method == name for row in rows)]
    lines = [
        "| edges | homophily | " + " | ".join(TITLES[name] for name in methods) + " |",
        "|---|---:|" + "---:|" * len(methods),
    ]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        scores = {name: score_of(rows_of(rows, dataset), name, part) for name in methods}
        family, level = GRAPHS[dataset]
        cells = " | ".join(cell(name, scores, OWN) for name in methods)
        lines.append(f"| {family} | {level} | {cells} |")
    return "\n".join(lines) + "\n"


def differences(rows: Sequence[Row], own: str = OWN[0]) -> str:
    """Return Markdown: how far GeoF is above each other method on the test parts, draw by draw.

    Draws differ more than methods do; a difference on the same draw tells methods apart. One whose
    mean is below zero by more than its own deviation is followed by ``(below)``.
    """
    others = [name for name in TITLES if name not in OWN and any(r.method == name for r in rows)]
    lines = [
        "| edges | homophily | " + " | ".join(f"over {TITLES[name]}" for name in others) + " |",
        "|---|---:|" + "---:|" * len(others),
    ]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        family, level = GRAPHS[dataset]
        cells = " | ".join(_difference(rows_of(rows, dataset), own, name) for name in others)
        lines.append(f"| {family} | {level} | {cells} |")
    return "\n".join(lines) + "\n"


def _difference(rows: Sequence[Row], own: str, other: str) -> str:
    tests = {(row.method, row.split): row.test for row in rows if row.test is not None}
    both = [
        test - tests[other, split]
        for (method, split), test in tests.items()
        if method == own and (other, split) in tests
    ]
    if not both:
        return "not run"
    score = Score.of(both)
    text = f"{score.mean:+.1f} ± {score.deviation:.1f}"
    return f"{text} (below)" if score.mean < -score.deviation else text


def losses(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return graphs and presets where GeoF is below the best of the others."""
    found = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        scores = {name: score_of(rows_of(rows, dataset), name, "test") for name in TITLES}
        found += [(dataset, name) for name in OWN if is_behind(name, scores, OWN)]
    return found


def rows_of(rows: Sequence[Row], dataset: str) -> list[Row]:
    """Return the rows of one kind of graphs."""
    return [row for row in rows if row.dataset == dataset]

"""Where the evolving geometry pays: GeoF beside its variants, GCN, GAT and GIN, over a knob.

The graphs are those of :mod:`geof_paper.studies.geometry_graphs`. All networks have one recipe:
width, depth, normalisation, dropouts, readout and schedule of GeoF ``tuned``, made smaller. The
number of the draw is that of the split and of the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from geof.data.records import NodeGraph
from geof.io import merge
from geof.nn.settings import VARIANTS
from geof.training import RunConfig, adapted
from geof_paper.studies.geometry_graphs import LEVELS, geometry_graph, graph_name
from geof_paper.studies.trained_rows import Job, Row, Score, complete, score_of

DRAWS = tuple(range(10))
DEPTHS = (1, 2)
"""Numbers of steps or layers."""

TRAINING: dict[str, Any] = {
    "epochs": 60,
    "patience": None,
    "learning_rate": 0.05,
    "schedule": "cosine",
    "weight_decay": 0.0005,
    "clip": 1.0,
    "evaluate_every": 2,
}
"""Of all methods."""

SHARED: dict[str, Any] = {
    "hidden_channels": 32,
    "dropout": 0.0,
    "feature_dropout": 0.2,
    "outputs": "all",
}
"""Options of all methods, as GeoF ``tuned`` has them but for the width."""

READOUT = {"dropout": 0.5}

TITLES = {
    "geof": "GeoF",
    "w/o SF": "w/o SF",
    "w/o GE": "w/o GE",
    "gcn-classic": "GCN",
    "gat-classic": "GAT",
    "gin": "GIN",
}
"""The compared methods; GeoF first, then its own variants."""

GRAPHS = {
    f"{graph_name(level)}, {depth} step{'s' * (depth > 1)}": (level, depth)
    for depth in DEPTHS
    for level in LEVELS
}
"""Knob and depth by the name of what a row is of."""


def run_study(
    path: Path,
    graphs: Sequence[str] = tuple(GRAPHS),
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
        level, depth = GRAPHS[name]
        for draw in draws:
            data = geometry_graph(level, draw)
            for method in methods:
                yield Job(name, data, method, config_of(data, method, depth, draw, changes))


def config_of(
    data: NodeGraph, method: str, depth: int, draw: int, changes: Mapping[str, Any]
) -> RunConfig:
    """Return a run's config: one recipe, and what makes the method or variant."""
    about: dict[str, Any] = {"method": method, "task": "node", "split": draw, "preset": "none"}
    options: dict[str, Any] = {"num_layers": depth}
    if method in ("geof", *VARIANTS):
        about |= {"method": "geof", "preset": "tuned"}
        options = {"steps": depth, "blocks": 4, "controller_channels": 8}
        options |= VARIANTS.get(method, {})
    elif method != "gin":  # whose layers have their own normalisation
        options |= {"norm": "batch", "residual": True}
    own = {**TRAINING, "options": {**SHARED, **options}, "readout": READOUT}
    return adapted(RunConfig.parse(merge({**about, **own}, changes)), data)


def table(rows: Sequence[Row], part: str = "test") -> str:
    """Return Markdown: a line per depth and level, a column per method, the best mean bold.

    Args:
        rows: Of any levels and methods.
        part: ``"test"`` or ``"validation"``.
    """
    methods = [name for name in TITLES if any(row.method == name for row in rows)]
    lines = _head([TITLES[name] for name in methods])
    for name, (level, depth) in GRAPHS.items():
        scores = [score_of(rows_of(rows, name), method, part) for method in methods]
        best = max((score.mean for score in scores if score is not None), default=0.0)
        cells = [
            "not run" if score is None else f"**{score}**" if score.mean == best else str(score)
            for score in scores
        ]
        if any(scores):
            lines.append(f"| {depth} | {level} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def gains(rows: Sequence[Row]) -> str:
    """Return Markdown: how far GeoF is above each other method on the test parts, draw by draw.

    A mean beyond twice its standard error is marked with ``*``.
    """
    others = [name for name in list(TITLES)[1:] if any(row.method == name for row in rows)]
    lines = _head([f"over {TITLES[name]}" for name in others])
    for name, (level, depth) in GRAPHS.items():
        found = [gain(rows_of(rows, name), method) for method in others]
        cells = [_gain_cell(each) for each in found]
        if any(found):
            lines.append(f"| {depth} | {level} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def gain(rows: Sequence[Row], other: str) -> tuple[Score, int] | None:
    """Return GeoF's score less another's on the same draws, and their number; ``None`` if none."""
    tests = {(row.method, row.split): row.test for row in rows if row.test is not None}
    both = [
        test - tests[other, split]
        for (method, split), test in tests.items()
        if method == "geof" and (other, split) in tests
    ]
    return (Score.of(both), len(both)) if both else None


def _gain_cell(found: tuple[Score, int] | None) -> str:
    if found is None:
        return "not run"
    score, count = found
    clear = count > 1 and abs(score.mean) > 2 * score.deviation / count**0.5
    return f"{score.mean:+.1f} ± {score.deviation:.1f}{' *' if clear else ''}"


def _head(columns: Sequence[str]) -> list[str]:
    return [
        "| steps | knob | " + " | ".join(columns) + " |",
        "|---:|---:|" + "---:|" * len(columns),
    ]


def rows_of(rows: Sequence[Row], name: str) -> list[Row]:
    """Return the rows of one level and depth."""
    return [row for row in rows if row.dataset == name]

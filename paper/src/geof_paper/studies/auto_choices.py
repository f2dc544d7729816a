"""What single options of the preset ``auto`` do for nodes: validation on data kept apart.

Generated graphs of other draws than the reported ones, a generated table as a graph of nearest
rows, and split 0 of CiteSeer and Photo. The test parts are not read. One variant sets the
temperature by what is measured: :func:`neighbour_distance` before training, times
:data:`PER_DISTANCE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from geof.data.catalogue import load
from geof.data.records import NodeGraph
from geof.io import merge
from geof.methods.geof import GeoFEncoder
from geof.methods.registry import AUTO
from geof.training import NodeTask, RunConfig, Trainer, adapted, build_task
from geof_paper.studies.homophily_graphs import CHOOSING, homophily_graph
from geof_paper.studies.trained_rows import Job, Row, complete
from geof_paper.studies.unseen_graphs import nearest_rows

DRAWS = (CHOOSING,)
"""Of what is generated; benchmarks have split 0 alone."""

UNSCALED = "rows not scaled"
"""Of the benchmarks alone, whose rows ``auto`` scales: words, and columns that vary little."""

MEASURED = "measured temperature"
PER_DISTANCE = 32.0
"""Temperature over the mean squared distance of neighbours, of the variant that measures it.

With it the constant 4096 is right where neighbours lie as far apart as any two nodes, 2 d = 128.
"""

OPTIONS: dict[str, dict[str, Any]] = {
    "target_mix 0.5": {"target_mix": 0.5},
    "dropout 0": {"dropout": 0.0},
    "feed_forward 0": {"feed_forward": 0},
}
"""Changed on the graphs of known homophily alone."""

VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "temperature 64": {"temperature": 64.0},
    "temperature 512": {"temperature": 512.0},
    MEASURED: {},
    UNSCALED: {"scale_features": False},
    **OPTIONS,
}
"""Options laid over the preset, by what the table calls them."""

BENCHMARKS = ("CiteSeer", "Photo")
EPOCHS = {"Photo": {"epochs": 40}}
"""Photo has a hundred times the edges of a generated graph."""


def numbers_table(draw: int) -> NodeGraph:
    """Return 1,500 rows of 30 numbers, each joined with its nearest; six classes of clusters."""
    rng = np.random.default_rng([draw, 2])
    cluster = np.arange(1500) % 18
    x = 0.8 * rng.normal(size=(18, 30))[cluster] + rng.normal(size=(1500, 30))
    return nearest_rows("table", x, cluster % 6)


Make = Callable[[int], NodeGraph]

HOMOPHILY: dict[str, Make] = {
    "next-0.1": partial(homophily_graph, "next", 0.1),
    "even-0.5": partial(homophily_graph, "even", 0.5),
}
GENERATED: dict[str, Make] = {**HOMOPHILY, "table": numbers_table}
DATA = (*GENERATED, *BENCHMARKS)


def run_study(
    path: Path,
    data_root: Path | None,
    names: Sequence[str] = DATA,
    variants: Sequence[str] = tuple(VARIANTS),
    draws: Sequence[int] = DRAWS,
    *,
    changes: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train what a file of rows has not yet, and return the rows that were asked for."""
    return complete(path, _jobs(data_root, names, variants, draws, changes or {}), say)


def _jobs(
    data_root: Path | None,
    names: Sequence[str],
    variants: Sequence[str],
    draws: Sequence[int],
    changes: Mapping[str, Any],
) -> Iterator[Job]:
    for name in names:
        for draw in draws if name in GENERATED else (0,):
            data = _data(name, draw, data_root)
            for variant in variants:
                if variant in OPTIONS and name not in HOMOPHILY:
                    continue
                if variant == UNSCALED and name in GENERATED:
                    continue
                yield Job(name, data, variant, config_of(data, name, variant, draw, changes))


def _data(name: str, draw: int, data_root: Path | None) -> NodeGraph:
    if name in GENERATED:
        return GENERATED[name](draw)
    data = load(name, data_root=data_root)
    assert isinstance(data, NodeGraph)
    return data


def config_of(
    data: NodeGraph, name: str, variant: str, draw: int, changes: Mapping[str, Any]
) -> RunConfig:
    """Return the config of a variant of ``auto``."""
    about = {"preset": AUTO, "task": "node", "split": draw, **EPOCHS.get(name, {})}
    given = merge(about, {"options": VARIANTS[variant]}, changes)
    config = replace(adapted(RunConfig.parse(given), data), read_test=False)
    if variant != MEASURED:
        return config
    temperature = round(PER_DISTANCE * neighbour_distance(config, data), 1)
    return replace(config, options={**config.options, "temperature": temperature})


@torch.no_grad()
def neighbour_distance(config: RunConfig, data: NodeGraph, most: int = 10_000) -> float:
    """Return the mean squared distance of neighbours' first states, before training.

    Args:
        config: Of the network.
        data: The graph.
        most: Edges that are drawn, at most.
    """
    certain = {**config.options, "dropout": 0.0, "feature_dropout": 0.0}
    config = replace(config, options=certain)
    trainer = Trainer(config, build_task(config, data))
    task, encoder = trainer.task, trainer.network.train().encoder
    assert isinstance(task, NodeTask)
    assert isinstance(encoder, GeoFEncoder)
    first = encoder.geof.initial_state(task.inputs.x, task.inputs.signature)
    states = encoder.geof.environment(*first)
    source, target = data.graph.edge_index
    drawn = torch.from_numpy(np.random.default_rng(0).permutation(len(source))[:most])
    return float((states[source[drawn]] - states[target[drawn]]).square().sum(1).mean())


def table(rows: Sequence[Row]) -> str:
    """Return Markdown: mean validation, a line per variant, a column per data."""
    names = list(dict.fromkeys(row.dataset for row in rows))
    lines = ["| `auto` with | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for variant in dict.fromkeys(row.method for row in rows):
        cells = (_mean(rows, variant, name) for name in names)
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _mean(rows: Sequence[Row], variant: str, name: str) -> str:
    values = [row.validation for row in rows if (row.method, row.dataset) == (variant, name)]
    return f"{fmean(values):.1f}" if values else ""

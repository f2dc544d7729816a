"""``geof demo``: GeoF beside a GCN on embedded data, no network, a few minutes on a laptop."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import positive, require_new_folder

if TYPE_CHECKING:
    from rich.console import Console

    from geof.data.records import NodeGraph
    from geof.training.checkpoint import EpochReport
    from geof.training.tasks import NodeTask
    from geof.training.trainer import Result


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    demo = commands.add_parser(
        "demo",
        help="train GeoF beside a GCN on embedded data",
        description="Train GeoF beside a GCN on data that ships with the package's dependencies: "
        "no network, no files, a few minutes.",
    )
    demo.add_argument("--out", type=Path, help="run folder (default: runs/demo-TIME)")
    demo.add_argument("--splits", type=positive, default=2, help="random splits (default: 2)")
    demo.add_argument("--quiet", action="store_true", help="no progress, only the table")
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, print the table, say where the runs are."""
    from rich.console import Console

    from geof.cli.progress import training_meter

    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = require_new_folder(options.out or Path("runs") / f"demo-{stamp}")
    console = Console()
    total = options.splits * sum(entry.epochs for entry in ENTRIES)
    with training_meter(console, total, quiet=options.quiet) as meter:
        rows = run_demo(
            out,
            options.splits,
            lambda c, seed: meter.start(f"{c.dataset}: {c.title}, split {seed}"),
            meter.epoch,
        )
    _print_rows(console, rows)
    console.print(
        "Epoch chosen on validation, test read once. 'digits': a neighbour graph of real images, "
        "two steps or layers. 'covariance': classes differ only in how neighbours vary; within "
        "one step a first-order update cannot see that, the second-order feedback can "
        "(Proposition 2)."
    )
    console.print(f"Run folders: {out.resolve()}", soft_wrap=True)
    return 0


def _print_rows(console: Console, rows: list[Row]) -> None:
    from rich.table import Table

    table = Table(title="Test accuracy, mean and deviation over splits")
    for name in ("data", "method"):
        table.add_column(name)
    for name in ("splits", "val. %", "test %", "s/epoch", "params"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.dataset,
            row.title,
            str(row.splits),
            f"{row.validation:.1f}",
            f"{row.test:.1f} ± {row.test_deviation:.1f}" if row.splits > 1 else f"{row.test:.1f}",
            f"{row.seconds_per_epoch:.3f}",
            f"{row.parameters:,}",
        )
    console.print(table)


# One step with weights so nearly uniform that they tell nothing: the setting of Proposition 2.
_UNIFORM = {"steps": 1, "temperature": 1e6, "structure_aware": False}


@dataclass(frozen=True)
class Entry:
    """One row of the demonstration's table."""

    dataset: str
    title: str
    method: str
    options: dict[str, Any]
    epochs: int


ENTRIES = (
    Entry("digits", "GCN", "gcn", {"num_layers": 2}, 100),
    Entry("digits", "GeoF", "geof", {}, 50),
    Entry("covariance", "GCN", "gcn", {"num_layers": 1}, 60),
    Entry("covariance", "GeoF w/o SF", "geof", {"feedback": "none", **_UNIFORM}, 60),
    Entry("covariance", "GeoF", "geof", _UNIFORM, 60),
)


@dataclass(frozen=True)
class Row:
    """Mean and standard deviation over the splits, in percent."""

    dataset: str
    title: str
    validation: float
    test: float
    test_deviation: float
    splits: int
    seconds_per_epoch: float
    parameters: int


def run_demo(
    out: Path,
    splits: int,
    on_start: Callable[[Entry, int], None],
    on_epoch: Callable[[EpochReport], None],
) -> list[Row]:
    """Train every entry on every split, write one run folder each and a summary.

    Args:
        out: Folder for the runs.
        splits: Number of random 60/20/20 splits.
        on_start: Called before each run with the entry and the split's seed.
        on_epoch: Called after each epoch.
    """
    from geof.io import write_json
    from geof.training.config import RunConfig
    from geof.training.stages import TrainingConfig
    from geof.training.trainer import Trainer, Watch

    tasks = {name: _tasks(data, splits) for name, data in demo_data().items()}
    rows = []
    for entry in ENTRIES:
        results = []
        for seed, task in enumerate(tasks[entry.dataset]):
            on_start(entry, seed)
            config = RunConfig(
                method=entry.method,
                preset="demo",
                split=str(seed),
                options=entry.options,
                training=TrainingConfig(epochs=entry.epochs),
            )
            folder = out / f"{entry.dataset}-{_slug(entry.title)}-split{seed}"
            trainer = Trainer(config, task, out=folder, watch=Watch(on_epoch=on_epoch))
            results.append(trainer.fit())
        rows.append(_summarise(entry, results))
    write_json(out / "summary.json", [vars(row) for row in rows])
    return rows


def demo_data() -> dict[str, NodeGraph]:
    """Return the embedded data of the demonstration by name."""
    from geof.data import covariance_graph, digits_graph
    from geof.data.records import NodeGraph

    graphs = {"digits": digits_graph(), "covariance": covariance_graph(centres=400)}
    return {
        name: NodeGraph(name, graph, tuple(map(str, range(int(graph.y.max()) + 1))))
        for name, graph in graphs.items()
    }


def _tasks(data: NodeGraph, splits: int) -> list[NodeTask]:
    from geof.data import random_node_split
    from geof.training.tasks import NodeTask

    graph = data.graph
    return [
        NodeTask(data, random_node_split(graph.num_nodes, seed, nodes=graph.y >= 0))
        for seed in range(splits)
    ]


def _summarise(entry: Entry, results: list[Result]) -> Row:
    tests = [result.test for result in results if result.test is not None]
    mean = sum(tests) / len(tests)
    spread = sum((test - mean) ** 2 for test in tests) / max(len(tests) - 1, 1)
    return Row(
        dataset=entry.dataset,
        title=entry.title,
        validation=sum(result.validation for result in results) / len(results),
        test=mean,
        test_deviation=math.sqrt(spread),
        splits=len(results),
        seconds_per_epoch=sum(result.seconds_per_epoch for result in results) / len(results),
        parameters=results[0].parameters,
    )


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).replace("--", "-")

"""``geof demo``: GeoF beside a GCN on embedded data."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import positive

if TYPE_CHECKING:
    from rich.console import Console

    from geof.training.demo import Row


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

    from geof.cli.arguments import require_new_folder
    from geof.cli.progress import training_meter
    from geof.training import demo

    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = require_new_folder(options.out or Path("runs") / f"demo-{stamp}")
    console = Console()
    total = options.splits * sum(entry.epochs for entry in demo.ENTRIES)
    with training_meter(console, total, quiet=options.quiet) as meter:
        rows = demo.run_demo(
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

"""The command line. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from geof.errors import GeofError
from geof.version import __version__

if TYPE_CHECKING:
    from geof.training.demo import Contestant, Row
    from geof.training.loop import EpochReport


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="geof",
        description="Graph neural networks whose nodes carry a learned, evolving geometry.",
    )
    parser.add_argument("--version", action="version", version=f"geof {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train GeoF beside a GCN on embedded data",
        description="Train GeoF beside a GCN on data that ships with the package's dependencies: "
        "no network, no files, a few minutes.",
    )
    demo.add_argument("--out", type=Path, help="run folder (default: runs/demo-TIME)")
    demo.add_argument("--splits", type=_positive, default=2, help="random splits (default: 2)")
    demo.add_argument("--quiet", action="store_true", help="no progress, only the table")
    demo.set_defaults(run=_demo)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 refused, 130 interrupted."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except GeofError as error:
        print(f"geof: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("geof: interrupted; finished runs are kept", file=sys.stderr)
        return 130
    return code


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1 (got {value})")
    return value


def _demo(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from geof.errors import DataError
    from geof.training.demo import CONTESTANTS, run_demo

    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = options.out or Path("runs") / f"demo-{stamp}"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            f"Expected '--out' to be a new or empty folder (got '{out}'). Name another one."
        )
    console = Console()
    live = console.is_terminal and not options.quiet
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not live,
    )
    total = options.splits * sum(contestant.epochs for contestant in CONTESTANTS)
    bar = progress.add_task("starting", total=total, status="")

    def on_start(contestant: Contestant, seed: int) -> None:
        text = f"{contestant.dataset}: {contestant.model}, split {seed}"
        progress.update(bar, description=text)
        if not live and not options.quiet:
            console.print(text)

    def on_epoch(report: EpochReport) -> None:
        status = f"loss {report.loss:.3f}, validation {report.validation:.1f} %"
        progress.update(bar, advance=1, status=status)

    with progress:
        rows = run_demo(out, options.splits, on_start, on_epoch)
    _print_rows(console, rows)
    console.print(
        "Epoch chosen on validation, test read once. 'digits': a neighbour graph of real images, "
        "two steps or layers. 'covariance': classes differ only in how neighbours vary; within "
        "one step a first-order update cannot see that, the second-order feedback can "
        "(Proposition 2)."
    )
    console.print(f"Run folders: {out.resolve()}", soft_wrap=True)
    return 0


def _print_rows(console: object, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    assert isinstance(console, Console)
    table = Table(title="Test accuracy, mean and deviation over splits")
    for name in ("data", "model"):
        table.add_column(name)
    for name in ("splits", "val. %", "test %", "s/epoch", "params"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.dataset,
            row.model,
            str(row.splits),
            f"{row.validation:.1f}",
            f"{row.test:.1f} ± {row.test_deviation:.1f}" if row.splits > 1 else f"{row.test:.1f}",
            f"{row.seconds_per_epoch:.3f}",
            f"{row.parameters:,}",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

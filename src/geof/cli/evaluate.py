"""``geof evaluate``: the metrics of a run on a part of the split it was trained with."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from geof.cli.applied import add_run_arguments, open_run, read_data, say_notes

if TYPE_CHECKING:
    from geof.training import Scores


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="metrics of a run on a part of its own split",
        description="Score the validation, test or training part of the split a run was trained "
        "with. Name the data only if they are no longer where they were; other data are refused.",
    )
    add_run_arguments(parser)
    parser.add_argument(
        "--part",
        choices=("validation", "test", "train"),
        default="test",
        help="which part (default: test)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read run and data, score the part, print the metrics."""
    from geof.training.predict import evaluate_part

    opened = open_run(options)
    data = read_data(options, opened, labelled=True)
    scores = evaluate_part(opened, data, options.part)
    say_notes(options, opened, data.notes)
    if options.json:
        answer = {"part": options.part, "metrics": scores.metrics, "loss": scores.loss}
        print(json.dumps(answer, indent=2))
    else:
        _print(f"{data.name}, {options.part} part, epoch {opened.epoch}", scores)
    return 0


def _print(title: str, scores: Scores) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in scores.metrics.items():
        table.add_row(name, f"{value:.2f} %")
    table.add_row("loss", f"{scores.loss:.4f}")
    Console(markup=False).print(table)

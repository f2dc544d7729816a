"""``geof train``: fit a network on a benchmark or on your own data; go on where a run stopped."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import (
    add_plan_arguments,
    add_source_arguments,
    add_training_data_arguments,
    take_words_anywhere,
)

if TYPE_CHECKING:
    from rich.console import Console

    from geof.cli.runs import Request
    from geof.data.records import GraphSet, NodeGraph
    from geof.training import Result, Task


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train on a benchmark or on your own data",
        description="Train, choose the epoch on validation, read the test metric once, and write "
        "a run folder. Stopped or killed, the same command goes on.",
        epilog="Settings are KEY=VALUE words, for instance epochs=300 learning_rate=0.005 "
        "model.steps=3 readout.dropout=0.5 signature.walk_length=8. They go over a settings file, "
        "which goes over the preset.",
    )
    add_source_arguments(parser)
    add_training_data_arguments(parser)
    add_plan_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="RUN", help="default: runs/NAME-TIME")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run begun before")
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="go on even if training settings differ from those the run began with",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the effective settings as YAML and stop"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and no more")
    take_words_anywhere(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the data, train, print the result."""
    from rich.console import Console

    from geof.cli.runs import prepare
    from geof.errors import ConfigError
    from geof.machine import note_machine
    from geof.training import Watch, run_experiment

    if options.resume is not None:
        for name in ("out", "config"):
            if getattr(options, name) is not None:
                raise ConfigError(f"Expected '--resume RUN' or '--{name}' (got both).")
        options.config, options.out = options.resume / "settings.yaml", options.resume
    request = prepare(options)
    if options.show:
        print(request.settings_yaml(), end="")
        return 0
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = options.out or Path("runs") / f"{request.data.name}-{stamp}"
    console = Console(stderr=options.json, quiet=options.json and options.quiet)
    task = request.task
    for note in request.notes:
        _say(console, f"note: {note}")
    _say(console, _describe(request.data, task))
    result = _train(request, out, options, console, Watch, run_experiment)
    note_machine(out)
    if options.json:
        print(json.dumps({**vars(result), "folder": str(out)}, indent=2, sort_keys=True))
        return 0
    test = "" if result.test is None else f"test {result.test:.2f} %, "
    _say(
        console,
        f"{result.metric}: {test}validation {result.validation:.2f} % at epoch "
        f"{result.best_epoch} of {result.epochs}",
    )
    _say(console, f"Run folder: {out.resolve()}")
    return 0


def _train(
    request: Request, out: Path, options: argparse.Namespace, console: Console, watch: Any, fit: Any
) -> Result:
    from geof.cli.interrupts import stop_requests
    from geof.cli.progress import training_meter
    from geof.errors import StoppedError

    plan, task = request.plan, request.task
    quiet = options.quiet or options.json
    with (
        stop_requests() as should_stop,
        training_meter(console, plan.training.epochs, quiet=quiet) as meter,
    ):
        meter.start(
            f"{task.dataset}: {plan.encoder} ({plan.preset}), {task.kind} task, {task.split_name}"
        )
        try:
            _, result = fit(
                request.experiment(),
                out=out,
                allow_changes=options.allow_changes,
                watch=watch(
                    on_note=lambda note: _say(console, f"note: {note}"),
                    on_epoch=meter.epoch,
                    should_stop=should_stop,
                ),
            )
        except (StoppedError, KeyboardInterrupt) as error:
            again = f"geof train --resume {shlex.quote(str(out))}"
            print(f"geof: {str(error) or 'Stopped at once.'} Go on with: {again}", file=sys.stderr)
            raise KeyboardInterrupt from error
    done: Result = result
    return done


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _describe(data: NodeGraph | GraphSet, task: Task) -> str:
    """Say what is about to be learned from what."""
    from geof.data.records import GraphSet

    y = [int(g.y) for g in data.graphs] if isinstance(data, GraphSet) else data.graph.y.tolist()
    counts = ", ".join(f"{name} {y.count(i)}" for i, name in enumerate(data.class_names))
    sizes = "/".join(
        str(part.size(-1)) for part in (task.split.train, task.split.validation, task.split.test)
    )
    return f"{task.in_channels} features; classes: {counts or 'none'}; split {sizes}"

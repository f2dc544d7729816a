"""``geof train``: fit a method on a benchmark or on your own data; go on where a run stopped."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from geof.cli.arguments import (
    Parser,
    add_config_arguments,
    add_source_arguments,
    add_training_data_arguments,
    config_of,
)
from geof.errors import ConfigError, StoppedError

if TYPE_CHECKING:
    from rich.console import Console

    from geof.training import Ranks, Result, Task, Trainer


GRACE = 5.0
"""Seconds that an epoch is given to end after Ctrl-C."""


def add_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train on a benchmark or on your own data",
        description="Train, choose the epoch on validation, read the test metric once, and write "
        "a run folder. Stopped or killed, the same command goes on.",
        epilog="Options are KEY=VALUE words, for instance epochs=300 learning_rate=0.005 "
        "options.steps=3 readout.dropout=0.5 signature.walk_length=8. They go over a config file, "
        "which goes over the preset.",
    )
    add_source_arguments(parser)
    add_training_data_arguments(parser)
    add_config_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="RUN", help="default: runs/NAME-TIME")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run begun before")
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="go on even if training options differ from those the run began with",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the effective config as YAML and stop"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and no more")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train in this process, or with all those that a launcher started."""
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        # What goes wrong between processes is said in a sentence; torch adds pages on its way.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from geof.training.distributed import join

        ranks = join()
    else:
        from geof.training import ALONE

        ranks = ALONE
    with ranks.guarded():
        return _train(options, ranks)


def _train(options: argparse.Namespace, ranks: Ranks) -> int:
    """Read the data, train, print the result."""
    from rich.console import Console

    from geof.cli.progress import working
    from geof.data.sources import notes_of, read_data
    from geof.devices import resolve_device
    from geof.training import Trainer, adapted, build_task

    options.quiet = options.quiet or not ranks.writes
    if options.resume is not None:
        for name in ("out", "config"):
            if getattr(options, name) is not None:
                raise ConfigError(f"Expected '--resume RUN' or '--{name}' (got both).")
        options.config, options.out = options.resume / "config.json", options.resume
    config = config_of(options)
    if options.show:
        print(config.to_yaml() if ranks.writes else "", end="")
        return 0
    resolve_device(config.training.device)  # or say what is there, before anything is read
    silent = (options.json and options.quiet) or not ranks.writes
    console = Console(stderr=options.json, quiet=silent)
    with working(console, quiet=options.quiet):
        data, schema = read_data(config.data, config.task, config.split)
        config = adapted(config, data)
        task = build_task(config, data)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    named = options.out or Path("runs") / f"{data.name}-{stamp}"
    out = Path(ranks.told(lambda: str(named)))
    for note in notes_of(data):
        _say(console, f"note: {note}")
    for key, reason in config.chosen.items():
        _say(console, f"chosen: {key} = {config.value_of(key)} ({reason})")
    _say(console, _describe(task))
    changes = options.allow_changes
    trainer = Trainer(config, task, out=out, allow_changes=changes, schema=schema, ranks=ranks)
    result = _fit(trainer, out, console, quiet=options.quiet or options.json)
    if not ranks.writes:
        return 0
    if options.json:
        print(json.dumps({**vars(result), "folder": str(out)}, indent=2, sort_keys=True))
        return 0
    shown = trainer.metric.shown
    test = "" if result.test is None else f"test {shown(result.test)}, "
    _say(
        console,
        f"{result.metric}: {test}validation {shown(result.validation)} at epoch "
        f"{result.best_epoch} of {result.epochs}",
    )
    _say(console, f"Run folder: {out.resolve()}")
    return 0


def _fit(trainer: Trainer, out: Path, console: Console, *, quiet: bool) -> Result:
    """Train with a progress bar; say how to go on when stopped."""
    from geof.cli.progress import stop_requests, training_meter
    from geof.training import Watch

    config, task = trainer.config, trainer.task
    whole = task.kind != "graph" and config.training.fanouts is None
    with (
        stop_requests(grace=GRACE) as should_stop,
        training_meter(
            console,
            config.training.epochs,
            quiet=quiet,
            shown=trainer.metric.shown,
            cheaper="batch_size=1024 fanouts=[10,10]" if whole else "",
        ) as meter,
    ):
        meter.start(
            f"{task.dataset}: {config.method} ({config.preset}), {task.kind} task, "
            f"{task.split_name}"
        )
        trainer.watch = Watch(
            on_note=lambda note: _say(console, f"note: {note}"),
            on_epoch=meter.epoch,
            on_step=lambda epoch, step: meter.batch(epoch, step, task.steps_per_epoch),
            should_stop=should_stop,
        )
        try:
            return trainer.fit()
        except (StoppedError, KeyboardInterrupt) as error:
            again = f"geof train --resume {shlex.quote(str(out))}"
            if trainer.ranks.count > 1:
                again = f"torchrun ... -m {again}"
            said = f"geof: {str(error) or 'Stopped at once.'} Go on with: {again}"
            if trainer.ranks.writes:
                print(said, file=sys.stderr)
            raise KeyboardInterrupt from error


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _describe(task: Task) -> str:
    """Say what is about to be learned from what."""
    from geof.data.records import GraphSet

    data = task.data
    targets = f"{data.targets.kind}: {', '.join(data.targets.names)}"
    if data.targets.kind == "classes":
        y = [int(g.y) for g in data.graphs] if isinstance(data, GraphSet) else data.graph.y.tolist()
        counts = ", ".join(f"{name} {y.count(i)}" for i, name in enumerate(data.class_names))
        targets = f"classes: {counts or 'none'}"
    parts = (task.split.train, task.split.validation, task.split.test)
    sizes = "/".join(str(part.size(-1)) for part in parts)
    return f"{task.shape.in_channels} features; {targets}; split {sizes}"

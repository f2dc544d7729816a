"""``geof sweep``: search options on validation, with several processes, over any interruption."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import (
    Parser,
    add_config_arguments,
    add_source_arguments,
    add_training_data_arguments,
    config_of,
    given_data,
    load_plugins,
    positive,
    read_config_file,
)
from geof.errors import ConfigError, GeofError, StoppedError

if TYPE_CHECKING:
    from geof.training.sweep import Finished, Order, Study, Sweep
    from geof.training.trials import Sampler, TrialTrainer

_REMEMBERED = (
    *("space", "out", "splits", "sampler", "seed", "try_base"),
    *("config", "task", "method", "preset", "split", "folds", "settings"),
)


def add_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "sweep",
        help="search options on validation",
        description="Train one trial after another with options drawn from a space, and keep the "
        "one with the best mean validation metric. The test part is never read. Stopped or killed, "
        "'geof sweep --resume STUDY' goes on.",
        epilog="A space is YAML: 'learning_rate: {low: 1e-4, high: 1e-2, log: true}' or "
        "'options.steps: [1, 2, 3]'. See docs/sweeps.md. Then: geof train --config "
        "STUDY/best.yaml.",
    )
    parser.add_argument("space", nargs="?", type=Path, metavar="SPACE.yaml", help="what to search")
    add_source_arguments(parser)
    add_training_data_arguments(parser)
    add_config_arguments(parser)
    search = parser.add_argument_group("the search")
    search.add_argument("--out", type=Path, metavar="STUDY", help="folder of the study")
    search.add_argument("--resume", type=Path, metavar="STUDY", help="go on with a study")
    search.add_argument(
        "--trials", type=positive, help="default: 30; every point of a grid; may grow on resuming"
    )
    search.add_argument("--splits", metavar="N,N", help="splits of a trial (default: 0,1)")
    search.add_argument("--workers", type=positive, help="processes (default: 2)")
    search.add_argument("--sampler", choices=("tpe", "grid", "random", "near"), help="default: tpe")
    search.add_argument("--seed", type=int, help="of the draws (default: 0)")
    search.add_argument(
        "--try-base", action="store_true", help="begin with the values of the config or preset"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and no more")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make or open the study, train its trials, print the result."""
    from geof.training.sweep import load_optuna

    load_optuna()  # or say how to install it, before anything is read
    from geof.devices import resolve_device
    from geof.training.sweep import Study

    screen = _Screen(options)
    trainer = None
    if options.resume is not None:
        _require_no_other_flags(options)
        load_plugins(options)
        study = Study.read(options.resume)  # before a lock is written where there is no study
        changes = {name: getattr(options, name) for name in ("trials", "workers")}
        given = {name: value for name, value in changes.items() if value is not None}
        study = replace(study, order=replace(study.order, **given))
        if options.device is not None:
            study = replace(study, base=study.base.on(options.device))
        resolve_device(study.base.training.device)  # before anything is written
    else:
        study, trainer = _prepare(options, screen)
    if trainer is None or study.order.workers > 1:
        trainer = _trainer(options, study.order)  # workers read the data themselves
    with study.held():
        if options.resume is None and study.exists():
            study.require_same(Study.read(study.folder))
        study.write()
        return _search(study, trainer, screen)


def _search(study: Study, trainer: TrialTrainer, screen: _Screen) -> int:
    """Train until there are enough trials, and print the best."""
    from geof.executor import Executor, InProcess
    from geof.processes import Processes

    workers, sweep = study.order.workers, study.open()
    executor: Executor = InProcess()
    if workers > 1:
        executor = Processes(workers, log=study.folder / "workers")
    screen.start(sweep)
    with _resumable(study) as should_stop:
        sweep.run(trainer, executor=executor, should_stop=should_stop, on_trial=screen.tell)
    return screen.result(sweep, study.order)


def _trainer(options: argparse.Namespace, order: Order) -> TrialTrainer:
    from geof.training.trials import Runner, TrialTrainer

    plugin = None if options.plugin is None else options.plugin.resolve()
    # Workers of a sweep that was killed stop after their epoch: wait for them.
    runner = Runner(tasks=len(order.splits), patience=float("inf"), plugin=plugin)
    return TrialTrainer(runner, order.data_hash or None)


def _prepare(options: argparse.Namespace, screen: _Screen) -> tuple[Study, TrialTrainer]:
    """Read and check everything; nothing is written yet."""
    from geof.data.sources import notes_of
    from geof.devices import resolve_device
    from geof.training import adapted
    from geof.training.sweep import Order, Study
    from geof.training.trials import laid_over, present_name

    if options.out is None:
        raise ConfigError("Expected '--out STUDY', or '--resume STUDY' to go on (got neither).")
    Study.require_room(options.out)
    if options.space is None:
        raise ConfigError("Expected 'SPACE.yaml', the options to search (got none).")
    from geof.io import read_yaml

    searched = read_yaml(options.space)
    splits = _splits(options)
    sampler: Sampler = options.sampler or "tpe"
    trials = options.trials or (None if sampler == "grid" else 30)
    order = Order(
        trials=trials,
        splits=splits,
        sampler=sampler,
        seed=options.seed or 0,
        try_base=options.try_base or sampler == "near",
        workers=options.workers or 2,
    )
    config, trainer = config_of(options), _trainer(options, order)
    resolve_device(config.training.device)  # or say what is there, before anything is read
    data = trainer.runner.read(laid_over(config, {}, splits[0])).data
    base = laid_over(adapted(config, data), {}, splits[0])
    study = Study(options.out, order, base, searched)
    names = set(map(present_name, study.space.dimensions))
    for word in options.settings:
        key = word.partition("=")[0]
        if present_name(key) in names:
            raise ConfigError(f"Expected '{key}' in the space or as {word} (got both).")
    order.trials_of(study.space)
    if order.try_base:
        study.space.point_of(base)
    tasks = [trainer.runner.task(laid_over(base, {}, split)) for split in splits]
    for note in notes_of(tasks[0].data):
        screen.say(f"note: {note}")
    data_hash = trainer.content_hash = tasks[0].data.content_hash
    order = replace(order, metric=tasks[0].metric, data_hash=data_hash)
    return replace(study, order=order), trainer


def _splits(options: argparse.Namespace) -> tuple[str, ...]:
    from geof.io import parse_words

    word = parse_words(options.settings).get("split")
    named = [split for split in (options.splits, options.split, word) if split is not None]
    if len(named) > 1:
        raise ConfigError("Expected '--splits N,N' or '--split N' (got both).")
    if not named and options.config is not None:
        named = [read_config_file(options.config).get("split")]
    text = named[0] if named and named[0] is not None else "0,1"
    return tuple(part.strip() for part in str(text).split(","))


def _require_no_other_flags(options: argparse.Namespace) -> None:
    values = {name: getattr(options, name) for name in _REMEMBERED}
    # A seed of 0 was given, though it equals False.
    given = [n for n, value in values.items() if value is not False and value not in (None, [])]
    given += given_data(options)
    if given:
        raise ConfigError(
            f"Expected no '{given[0]}' beside '--resume STUDY', which remembers what was asked "
            "for. Only --trials, --workers and --device may change."
        )


@contextmanager
def _resumable(study: Study) -> Iterator[Callable[[], bool]]:
    """Yield what tells that a stop was asked for; say how to go on when it was."""
    from geof.cli.progress import stop_requests
    from geof.executor import WorkerLostError

    with stop_requests() as should_stop:
        try:
            yield should_stop
        except (StoppedError, KeyboardInterrupt) as error:
            said = str(error) or "Stopped at once."
            print(f"geof: {said} Go on with: {study.go_on}", file=sys.stderr)
            raise KeyboardInterrupt from error
        except WorkerLostError as error:
            raise GeofError(f"{error} Go on with: {study.go_on}") from error


class _Screen:
    """What a user sees."""

    def __init__(self, options: argparse.Namespace) -> None:
        from rich.console import Console

        self.json = options.json
        self._progress = not (options.quiet or options.json)
        self._console = Console(stderr=options.json, quiet=options.json and options.quiet)
        self._sweep: Sweep | None = None
        self._told: dict[int, Finished] = {}

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def start(self, sweep: Sweep) -> None:
        """Begin to tell of trials; those finished before are only counted."""
        self._sweep = sweep
        self._told = {trial.number: trial for trial in sweep.finished()}
        if self._progress:
            before = f", {len(self._told)} finished before" if self._told else ""
            self.say(f"{sweep.trials} trials in '{sweep.folder}'{before}")

    def tell(self) -> None:
        """Print a line for every trial that ended since."""
        assert self._sweep is not None
        for trial in self._sweep.finished():
            if trial.number not in self._told:
                self._told[trial.number] = trial
                if self._progress:
                    place = f"trial {len(self._told)} of {self._sweep.trials}"
                    self.say(f"{place}: {self._outcome(trial)}")

    def result(self, sweep: Sweep, order: Order) -> int:
        """Print the best trial; return the exit code."""
        from geof.training.sweep import best_of

        finished = sweep.finished()
        best = best_of(finished, sweep.metric)
        if best is None:
            raise GeofError(
                f"Expected a trial that works, but all {len(finished)} failed, the last with: "
                f"{finished[-1].error} See '{sweep.folder / 'summary.csv'}'."
            )
        if self.json:
            failed = sum(trial.error is not None for trial in finished)
            summary = {
                "best": asdict(best),
                "failed": failed,
                "folder": str(sweep.folder),
                "metric": order.metric,
                "trials": len(finished),
            }
            print(json.dumps(summary, indent=2))
            return 0
        assert best.validation is not None
        self.say(
            f"Best: validation {order.metric} {sweep.metric.shown(best.validation)} on splits "
            f"{', '.join(order.splits)} with {_words(best)}"
        )
        self.say(f"Train it: geof train --config {shlex.quote(str(sweep.folder / 'best.yaml'))}")
        return 0

    def _outcome(self, trial: Finished) -> str:
        if trial.validation is None:
            return f"failed with {_words(trial)}: {trial.error}"
        assert self._sweep is not None
        metric = self._sweep.metric
        known = [t.validation for t in self._told.values() if t.validation is not None]
        best = min(known) if metric.lower else max(known)
        reached = f"validation {metric.shown(trial.validation)} (best {metric.shown(best)})"
        return f"{reached} with {_words(trial)}"


def _words(trial: Finished) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in trial.values.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)

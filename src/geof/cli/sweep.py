"""``geof sweep``: search settings on validation, with several processes, over any interruption."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import (
    SOURCE_FLAGS,
    add_plan_arguments,
    add_source_arguments,
    add_training_data_arguments,
    positive,
    take_words_anywhere,
)
from geof.errors import ConfigError, DataError, GeofError, StoppedError

if TYPE_CHECKING:
    from geof.cli.runs import Request
    from geof.training import Plan
    from geof.training.sweep import Finished, Subject, Sweep, SweepSettings

ORDER = "sweep.json"
"""Written last when a study is made: a folder without it is none."""

PARENT = "GEOF_SWEEP_PARENT"
"""Environment variable that tells a worker whose it is; it stops when that process is gone."""

_POLL_SECONDS = 0.3
_PLAN_FLAGS = ("config", "task", "model", "preset", "split", "folds", "settings")
_REMEMBERED = ("space", "out", "splits", "sampler", "seed", *_PLAN_FLAGS, *SOURCE_FLAGS)


@dataclass(frozen=True)
class Order:
    """What ``sweep.json`` holds: what was asked for, beside the space and the settings.

    Attributes:
        trials: Number of trials; ``None`` for every point of a grid.
        splits: The splits of a trial.
        sampler: How points are drawn.
        seed: Of the draws.
        workers: Number of processes.
        metric: What is maximised.
        data_hash: Of the data's content.
    """

    trials: int | None
    splits: list[str]
    sampler: Any
    seed: int
    workers: int
    metric: str
    data_hash: str

    @classmethod
    def read(cls, folder: Path) -> Order:
        """Return a study's order.

        Raises:
            DataError: If there is none or it is damaged.
        """
        try:
            return cls(**json.loads((folder / ORDER).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"Expected a study of 'geof sweep' at '{folder}' ({error}). Check the path."
            ) from error

    def search(self) -> SweepSettings:
        """Return how to search."""
        from geof.training.sweep import SweepSettings

        return SweepSettings(self.trials, tuple(self.splits), self.sampler, self.seed)


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "sweep",
        help="search settings on validation",
        description="Train one trial after another with settings drawn from a space, and keep the "
        "one with the best mean validation metric. The test part is never read. Stopped or killed, "
        "'geof sweep --resume STUDY' goes on.",
        epilog="A space is YAML: 'learning_rate: {low: 1e-4, high: 1e-2, log: true}' or "
        "'model.steps: [1, 2, 3]'. See docs/sweeps.md. Then: geof train --config STUDY/best.yaml.",
    )
    parser.add_argument("space", nargs="?", type=Path, metavar="SPACE.yaml", help="what to search")
    add_source_arguments(parser)
    add_training_data_arguments(parser)
    add_plan_arguments(parser)
    search = parser.add_argument_group("the search")
    search.add_argument("--out", type=Path, metavar="STUDY", help="folder of the study")
    search.add_argument("--resume", type=Path, metavar="STUDY", help="go on with a study")
    search.add_argument(
        "--trials", type=positive, help="default: 30; every point of a grid; may grow on resuming"
    )
    search.add_argument("--splits", metavar="N,N", help="splits of a trial (default: 0,1)")
    search.add_argument("--workers", type=positive, help="processes (default: 2)")
    search.add_argument("--sampler", choices=("tpe", "grid", "random"), help="default: tpe")
    search.add_argument("--seed", type=int, help="of the draws (default: 0)")
    search.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and no more")
    parser.set_defaults(run=run)
    take_words_anywhere(parser)


def run(options: argparse.Namespace) -> int:
    """Make or open the study, work on it alone or with workers, print the result."""
    from geof.training.sweep import load_optuna

    load_optuna()  # or say how to install it, before anything is read
    if options.worker is not None and options.resume is not None:
        return _work_for_parent(options)
    screen = _Screen(options)
    if options.resume is not None:
        _require_no_other_flags(options)
        Order.read(options.resume)  # before a lock is written where there is no study
        with _held(options.resume):
            order = _extend(options)
            return _search(options, order, screen, None)
    options.resume = _require_room(options)
    order, files, subject = _prepare(options, screen)
    if order.workers > 1:
        subject = None  # workers read the data themselves
    with _held(options.resume):
        _settle(options.resume, order, files)
        return _search(options, order, screen, subject)


def _search(
    options: argparse.Namespace, order: Order, screen: _Screen, subject: Subject | None
) -> int:
    """Work until there are enough trials, and print the best."""
    folder: Path = options.resume
    sweep = _open(folder, order)
    codes: list[int] = []
    with _resumable(folder) as should_stop:
        _wait_for_orphans(folder, should_stop, screen)
        sweep.prepare()
        screen.start(sweep)
        if order.workers == 1:
            subject = subject or _read_again(options)
            sweep.work(subject, should_stop=should_stop, on_trial=screen.tell)
        else:
            codes = _employ(folder, order, should_stop, screen.tell)
    finished = len(sweep.finished())
    if finished < sweep.trials:
        raise GeofError(
            f"Expected {sweep.trials} finished trials (got {finished}; the workers' exit codes are "
            f"{codes}). What they said is in '{folder / 'workers'}'. Go on with: {_go_on(folder)}"
        )
    return screen.result(sweep, order)


def _prepare(
    options: argparse.Namespace, screen: _Screen
) -> tuple[Order, dict[str, str], Subject | None]:
    """Read and check everything; nothing is written yet."""
    from geof.cli.runs import prepare
    from geof.training.space import Space
    from geof.yaml_files import dump_yaml, read_yaml

    if options.space is None:
        raise ConfigError("Expected 'SPACE.yaml', the settings to search (got none).")
    searched = read_yaml(options.space)
    given = read_yaml(options.config) if options.config is not None else {}
    splits = _splits(options, given)
    options.split = splits[0]
    request = prepare(options)
    space = Space.from_tree(searched, request.plan)
    for word in options.settings:
        key = word.partition("=")[0]
        if key in space.dimensions:
            raise ConfigError(f"Expected '{key}' in the space or as {word} (got both).")
    order = _order(options, splits, request)
    order.search().trials_of(space)
    own_seed = _says_seed(options, given, request)
    subject = _subject(request, options, own_seed, keep_seed="seed" in space.dimensions)
    for split in splits:  # a split that is not there is told now
        subject.task(subject.plan({}, split))
    for note in request.notes:
        screen.say(f"note: {note}")
    settings = _settings_yaml(request, request.plan, seed=own_seed)
    return order, {"space.yaml": dump_yaml(searched), "settings.yaml": settings}, subject


def _order(options: argparse.Namespace, splits: list[str], request: Request) -> Order:
    sampler = options.sampler or "tpe"
    return Order(
        trials=options.trials or (None if sampler == "grid" else 30),
        splits=splits,
        sampler=sampler,
        seed=options.seed or 0,
        workers=options.workers or 2,
        metric=request.task.metric,
        data_hash=request.data.content_hash,
    )


def _says_seed(options: argparse.Namespace, given: dict[str, Any], request: Request) -> bool:
    """Return whether the user or a preset set a seed; otherwise it is the split's number."""
    from geof.methods.presets import load_preset
    from geof.yaml_files import merge, parse_words

    plan = request.plan
    preset = load_preset(plan.encoder, plan.preset, plan.task, request.data.name)
    return "seed" in merge(preset, given, parse_words(options.settings))


def _splits(options: argparse.Namespace, given: dict[str, Any]) -> list[str]:
    if options.split is not None and options.splits is not None:
        raise ConfigError("Expected '--splits N,N' or '--split N' (got both).")
    text = options.splits or options.split or given.get("split")
    return ["0", "1"] if text is None else [part.strip() for part in str(text).split(",")]


def _subject(
    request: Request, options: argparse.Namespace, own_seed: bool, *, keep_seed: bool
) -> Subject:
    from geof.training.sweep import Subject

    subject = Subject(
        data=request.data,
        base=request.plan,
        own_seed=own_seed,
        experiment=lambda plan, task: replace(request, plan=plan, task=task).experiment(),
        settings=lambda plan: _settings_yaml(request, plan, seed=own_seed or keep_seed),
        data_root=options.data_root,
    )
    subject.keep(request.plan, request.task)
    return subject


def _settings_yaml(request: Request, plan: Plan, *, seed: bool) -> str:
    """Return a settings file; without a seed, a run takes the number of its split."""
    from geof.cli.runs import RUN_KEYS
    from geof.yaml_files import dump_yaml

    tree = plan.tree()
    if not seed:
        del tree["seed"]
    about = {key: getattr(plan, key) for key in RUN_KEYS}
    return dump_yaml({"data": dict(request.source), **about, **tree})


def _open(folder: Path, order: Order) -> Sweep:
    """Open the study; its data are not needed for that."""
    from geof.cli.runs import RUN_KEYS
    from geof.training import Plan
    from geof.training.space import Space
    from geof.training.sweep import Sweep
    from geof.yaml_files import read_yaml

    tree = read_yaml(folder / "settings.yaml")
    del tree["data"]
    base = Plan.from_tree(tree, **{key: tree.pop(key) for key in RUN_KEYS})
    space = Space.from_tree(read_yaml(folder / "space.yaml"), base)
    return Sweep(folder, space, order.search())


def _read_again(options: argparse.Namespace) -> Subject:
    """Read the data of a study begun before."""
    from geof.cli.runs import prepare
    from geof.yaml_files import read_yaml

    folder: Path = options.resume
    options.config = folder / "settings.yaml"
    request = prepare(options)
    if request.data.content_hash != Order.read(folder).data_hash:
        raise DataError(
            f"Expected the data '{folder}' was begun with, but '{request.data.name}' has changed. "
            "Bring them back or begin another study."
        )
    own_seed = "seed" in read_yaml(options.config)
    searched = "seed" in read_yaml(folder / "space.yaml")
    return _subject(request, options, own_seed, keep_seed=searched)


def _require_room(options: argparse.Namespace) -> Path:
    """Return ``--out`` if it is empty or a study."""
    folder: Path | None = options.out
    if folder is None:
        raise ConfigError("Expected '--out STUDY', or '--resume STUDY' to go on (got neither).")
    if not folder.exists() or (folder / ORDER).exists():
        return folder
    ours = ("space.yaml", "settings.yaml")
    held = [e.name for e in folder.iterdir()] if folder.is_dir() else [folder.name]
    held = [name for name in held if name not in ours and not name.startswith(".")]
    if held:
        raise DataError(
            f"Expected '--out' to be a new or empty folder, or a study to go on with (got "
            f"'{folder}' with {', '.join(sorted(held)[:3])}). Name another one."
        )
    return folder


def _require_no_other_flags(options: argparse.Namespace) -> None:
    values = {name: getattr(options, name) for name in _REMEMBERED}
    given = [n for n, v in values.items() if v is not None and v is not False and v != []]
    if given:
        raise ConfigError(
            f"Expected no '{given[0]}' beside '--resume STUDY', which remembers what was asked "
            "for. Only --trials and --workers may change."
        )


def _extend(options: argparse.Namespace) -> Order:
    """Return the order of a study with what ``--trials`` and ``--workers`` change."""
    order = Order.read(options.resume)
    changes = {name: getattr(options, name) for name in ("trials", "workers")}
    changed = replace(order, **{name: n for name, n in changes.items() if n is not None})
    _write_order(options.resume, changed)
    return changed


def _settle(folder: Path, order: Order, files: dict[str, str]) -> None:
    """Write what the study is, or check that the one there is the same."""
    from geof.io import write_atomically

    if (folder / ORDER).exists():
        before = replace(Order.read(folder), trials=order.trials, workers=order.workers)
        differ = [name for name in files if (folder / name).read_text() != files[name]]
        differ += [key for key, value in asdict(before).items() if asdict(order)[key] != value]
        if differ:
            raise ConfigError(
                f"Expected what '{folder}' was begun with (other: {', '.join(differ)}). Go on with "
                f"{_go_on(folder)}, or name another folder."
            )
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    _write_order(folder, order)


def _write_order(folder: Path, order: Order) -> None:
    from geof.io import write_json

    write_json(folder / ORDER, asdict(order))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep every other sweep out of the study; the system lets go when this process dies."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".sweep.lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise DataError(
            f"Expected nobody else to work on '{folder}', but another sweep does. Wait for it or "
            "name another folder."
        ) from error
    except OSError as error:
        raise DataError(
            f"Expected to write '{folder}', but {error.strerror or error}. Name another folder."
        ) from error
    with lock:
        yield


@contextmanager
def _resumable(folder: Path) -> Iterator[Callable[[], bool]]:
    """Yield what tells that a stop was asked for; say how to go on when it was."""
    from geof.cli.interrupts import stop_requests

    with stop_requests() as should_stop:
        try:
            yield should_stop
        except (StoppedError, KeyboardInterrupt) as error:
            said = str(error) or "Stopped at once."
            print(f"geof: {said} Go on with: {_go_on(folder)}", file=sys.stderr)
            raise KeyboardInterrupt from error


def _go_on(folder: Path) -> str:
    return f"geof sweep --resume {shlex.quote(str(folder))}"


def _wait_for_orphans(folder: Path, should_stop: Callable[[], bool], screen: _Screen) -> None:
    """Wait for workers whose parent was killed: they stop after their epoch."""
    from filelock import FileLock, Timeout

    said = False
    for path in sorted((folder / "workers").glob("*.lock")):
        while True:
            try:
                with FileLock(path, timeout=0):
                    break
            except Timeout:
                if not said:
                    screen.say("Waiting for the workers of an earlier sweep to end their epoch.")
                said = True
                if should_stop():
                    raise StoppedError("Stopped before any trial.") from None
                time.sleep(_POLL_SECONDS)


def _employ(
    folder: Path, order: Order, should_stop: Callable[[], bool], tell: Callable[[], None]
) -> list[int]:
    """Let processes work and return their exit codes; pass a stop on, and leave none behind."""
    workers: list[subprocess.Popen[bytes]] = []
    asked = False
    try:
        for number in range(order.workers):
            workers.append(_start(folder, number, order.workers))
        while any(worker.poll() is None for worker in workers):
            if should_stop() and not asked:
                asked = True
                for worker in workers:
                    worker.send_signal(signal.SIGINT)
            tell()
            time.sleep(_POLL_SECONDS)
    finally:
        for worker in workers:
            worker.kill()  # nothing, to one that has ended
            worker.wait()
    tell()
    codes = [worker.returncode for worker in workers]
    if asked and any(codes):
        raise StoppedError("Stopped; the state of every trial is saved.")
    return codes


def _start(folder: Path, number: int, workers: int) -> subprocess.Popen[bytes]:
    """Start a worker with its share of the cores, in a session that no Ctrl-C reaches."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = max(1, (cores or 1) // workers)
    (folder / "workers").mkdir(exist_ok=True)
    words = ["sweep", "--resume", str(folder.resolve()), "--worker", str(number)]
    with (folder / "workers" / f"{number}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "geof.cli", *words],
            env={"OMP_NUM_THREADS": str(share), **os.environ, PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _work_for_parent(options: argparse.Namespace) -> int:
    """Be one of several workers."""
    from filelock import FileLock

    from geof.cli.interrupts import stop_requests

    folder: Path = options.resume
    parent = int(os.environ.get(PARENT, os.getppid()))
    # Held for life: as long as it is, nobody takes this worker's trial for abandoned.
    with FileLock(folder / "workers" / f"{options.worker}.lock"), stop_requests() as asked:
        sweep = _open(folder, Order.read(folder))
        try:
            sweep.work(
                _read_again(options),
                should_stop=lambda: asked() or os.getppid() != parent,
            )
        except StoppedError as error:
            raise KeyboardInterrupt from error
    return 0


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
        best = best_of(finished)
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
        self.say(
            f"Best: validation {order.metric} {best.validation:.2f} % on splits "
            f"{', '.join(order.splits)} with {_words(best)}"
        )
        self.say(f"Train it: geof train --config {shlex.quote(str(sweep.folder / 'best.yaml'))}")
        return 0

    def _outcome(self, trial: Finished) -> str:
        if trial.validation is None:
            return f"failed with {_words(trial)}: {trial.error}"
        best = max(t.validation for t in self._told.values() if t.validation is not None)
        return f"validation {trial.validation:.2f} % (best {best:.2f} %) with {_words(trial)}"


def _words(trial: Finished) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in trial.values.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)

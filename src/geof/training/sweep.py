"""Search options: trials drawn by Optuna, trained as ordinary runs, judged on validation alone.

A study is a folder. Its database says which trials there are and how they ended; below ``trials``
every point of the space has run folders of its own, named by a hash of the config. One process
draws and records; workers only train. Any of them may die at any moment: what was trained is found
again, and nothing is trained twice. The test part is never read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import Field

from geof.errors import ConfigError, DataError, FolderLockedError, GeofError, StoppedError
from geof.executor import Executor, InProcess, Outcome
from geof.io import dump_yaml, read_json, read_yaml, write_atomically, write_json
from geof.options import Count, declared
from geof.training.config import RunConfig
from geof.training.metrics import Metric, metric_named
from geof.training.trials import (
    Choices,
    Space,
    SweepConfig,
    Trial,
    TrialTrainer,
    as_json,
    laid_over,
)


def load_optuna() -> Any:
    """Import Optuna and keep it from talking.

    Raises:
        ConfigError: If it is not installed; says how to.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "Expected Optuna for searching options (it is not installed). Run pip install "
            "'geof[sweep]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@dataclass(frozen=True)
class Finished:
    """A trial that ended.

    Attributes:
        number: In the database.
        values: Its options.
        validation: Mean validation metric, ``None`` if it failed.
        splits: Validation metric by split.
        folder: Name of its folder below ``trials``.
        seconds: Time it took in the process that ended it.
        error: Why it failed.
    """

    number: int
    values: Mapping[str, Any]
    validation: float | None
    splits: Mapping[str, float]
    folder: str
    seconds: float
    error: str | None


def best_of(finished: Sequence[Finished], metric: Metric | None = None) -> Finished | None:
    """Return the trial with the best mean validation metric, the highest if not said otherwise.

    Of equals it is the first.
    """
    sign = 1 if metric is None else metric.sign
    complete = [(sign * t.validation, -t.number, t) for t in finished if t.validation is not None]
    return max(complete, default=(None, None, None))[2]


class Sweep:
    """A study in a folder, opened; made when it is not there. One process at a time has it open.

    Args:
        folder: ``study.db``, ``trials``, ``summary.csv`` and ``best.yaml`` go there.
        base: Every option that is not searched.
        space: What to search.
        config: How.

    Raises:
        ConfigError: If Optuna is not installed or a grid has a range.
    """

    def __init__(self, folder: Path, base: RunConfig, space: Space, config: SweepConfig) -> None:
        self.folder, self.space, self.config = folder, space, config
        self.base = replace(base, read_test=False)  # a search must not see it
        named = (config.metric if isinstance(config, Order) else "") or base.training.metric
        self.metric = metric_named(named or "accuracy")
        self.trials = config.trials_of(space)
        if set("?{}") & set(str(folder)):  # which a database's address cannot hold
            raise ConfigError(f"Expected a study folder without '?', '{{', '}}' (got '{folder}').")
        self._optuna = load_optuna()
        folder.mkdir(parents=True, exist_ok=True)
        # SQLite, SQLAlchemy, Optuna and JSON each have several ways of finding it damaged.
        with self._database(Exception):
            self._study = self._opened()
            self.finished()
        self._training: dict[str, list[Any]] = {}  # by folder; several where a point came twice

    def _opened(self) -> Any:
        # A tool of Optuna's may be reading: wait rather than give up.
        storage = self._optuna.storages.RDBStorage(
            f"sqlite:///{self.folder / 'study.db'}",
            engine_kwargs={"connect_args": {"timeout": 120}},
        )
        return self._optuna.create_study(
            storage=storage,
            study_name="sweep",
            direction="minimize" if self.metric.lower else "maximize",
            load_if_exists=True,
        )

    @contextmanager
    def _database(self, *kinds: type[Exception]) -> Iterator[None]:
        """Raise ``DataError`` where the database cannot be read or written."""
        from sqlalchemy.exc import SQLAlchemyError

        kinds = (*kinds, SQLAlchemyError, self._optuna.exceptions.StorageInternalError)
        try:
            yield
        except GeofError:
            raise
        except kinds as error:
            reason = _one_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            raise DataError(
                f"Expected to read and write the study in '{self.folder / 'study.db'}', but "
                f"{reason} Check the permissions and the free space; if it was damaged, use a "
                "copy or name another folder."
            ) from error

    def run(
        self,
        trainer: TrialTrainer,
        *,
        executor: Executor | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        on_trial: Callable[[], None] = lambda: None,
    ) -> None:
        """Train trials until there are enough, those that were under way first.

        Args:
            trainer: Trains a trial.
            executor: Where; in this process if not said.
            should_stop: Asked after every epoch and between trials.
            on_trial: Told that a trial ended.

        Raises:
            StoppedError: If ``should_stop`` said so; trials under way go on when the study does.
            DataError: If something is wrong that no other options would mend.
        """
        with self._database():
            self._run(trainer, executor or InProcess(), should_stop, on_trial)

    def _run(
        self,
        trainer: TrialTrainer,
        executor: Executor,
        should_stop: Callable[[], bool],
        on_trial: Callable[[], None],
    ) -> None:
        self._prepare()
        self.write_reports()
        self._training.clear()
        ended: list[GeofError] = []  # what ends the search rather than a trial
        outcomes = executor.run(
            trainer, self._wanted(on_trial), should_stop=lambda: bool(ended) or should_stop()
        )
        with closing(outcomes):
            for trial, outcome in outcomes:
                if isinstance(outcome.error, DataError | StoppedError):
                    ended.append(outcome.error)
                    continue
                for drawn in self._training.pop(trial.folder.name):
                    self._tell(drawn, outcome)
                    on_trial()
        self._raise_what_ended(ended)

    def finished(self) -> list[Finished]:
        """Return the trials that ended, in the order in which they did."""
        ended = [t for t in self._counted() if t.state.name in ("COMPLETE", "FAIL")]
        return [self._finished(t) for t in sorted(ended, key=lambda t: t.datetime_complete)]

    def write_reports(self) -> None:
        """Write ``summary.csv`` and, when there is a best trial, ``best.yaml``."""
        finished = self.finished()
        write_atomically(self.folder / "summary.csv", self._table(finished).encode())
        best = best_of(finished, self.metric)
        if best is not None:
            unit = " %" if self.metric.percent else ""
            title = (
                f"# Trial {best.number} of summary.csv: validation {best.validation}{unit}, the "
                f"mean of splits {', '.join(self.config.splits)}"
            )
            config = laid_over(self.base, best.values, self.config.splits[0])
            write_atomically(self.folder / "best.yaml", f"{title}\n{config.to_yaml()}".encode())

    def _prepare(self) -> None:
        """Take back the trials of dead processes and queue a grid's points."""
        for trial in self._all_trials():
            if trial.state.name == "RUNNING":
                self._take_back(trial)
        if self.config.try_base and not self._all_trials():
            self._queue(self.space.point_of(self.base))
        if self.config.sampler != "grid":
            return
        there = [trial.user_attrs.get("point") for trial in self._all_trials()]
        for point in islice(self.space.points(), self.trials):
            if point not in there:
                self._queue(point)

    def _all_trials(self) -> list[Any]:
        trials: list[Any] = self._study.get_trials(deepcopy=False)
        return trials

    def _counted(self) -> list[Any]:
        """Return all trials but those a dead process left, whose place another has taken."""
        trials = self._all_trials()
        retried = {trial.user_attrs.get("retry_of") for trial in trials}
        return [
            trial
            for trial in trials
            if trial.number not in retried
            and not (trial.state.name == "FAIL" and "error" not in trial.user_attrs)
        ]

    def _take_back(self, trial: Any) -> None:
        """Queue a dead process's trial again. Killed in between, this is done only once."""
        point = trial.user_attrs.get("point", trial.params)
        retried = any(t.user_attrs.get("retry_of") == trial.number for t in self._all_trials())
        # One without all its parameters is simply drawn again: the draw will be the same.
        if point.keys() == self.space.dimensions.keys() and not retried:
            self._queue(point, retry_of=trial.number)
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)

    def _queue(self, point: Mapping[str, Any], **about: Any) -> None:
        self._study.enqueue_trial(dict(point), user_attrs={"point": dict(point), **about})

    def _wanted(self, on_trial: Callable[[], None]) -> Iterator[Trial]:
        """Draw trials, and yield those that need training; others are told at once."""
        while (drawn := self._draw()) is not None:
            try:
                values = self.space.values(drawn.params)
                runs = tuple(laid_over(self.base, values, split) for split in self.config.splits)
            except ConfigError as error:
                self._tell(drawn, Outcome(error=error))
                on_trial()
                continue
            name = _hash_of(runs[0])
            drawn.set_user_attr("folder", name)
            known = next((trial for trial in self.finished() if trial.folder == name), None)
            if known is not None:
                failure = None if known.error is None else GeofError(known.error)
                self._tell(drawn, Outcome(dict(known.splits), failure))
                on_trial()
            elif name in self._training:
                self._training[name].append(drawn)
            else:
                self._training[name] = [drawn]
                yield Trial(self.folder / "trials" / name, runs)

    def _draw(self) -> Any:
        """Return the next trial with its parameters, ``None`` if there are enough."""
        states = [trial.state.name for trial in self._counted()]
        begun = len(states) - states.count("WAITING")
        if begun >= self.trials or (self.config.sampler == "grid" and begun == len(states)):
            return None
        self._study.sampler = self._sampler(begun)
        if self.config.sampler == "near" and "WAITING" not in states:
            self._study.enqueue_trial(self._near_best(begun))
        return self._study.ask(
            {key: d.distribution(self._optuna) for key, d in self.space.dimensions.items()}
        )

    def _near_best(self, begun: int) -> dict[str, Any]:
        """Return the best trial's parameters with a few changed; of ranges, left to be drawn."""
        best = best_of(self.finished(), self.metric)
        point = self.space.point_of(self.base)
        if best is not None:
            point = dict(self._study.get_trials(deepcopy=False)[best.number].params)
        draw = np.random.Generator(np.random.PCG64((self.config.seed, begun)))
        count = min(CHANGED, len(point) / 2)  # to change all of a few would be to draw anywhere
        changed = [key for key in point if draw.random() * len(point) < count]
        for key in changed or [list(point)[begun % len(point)]]:
            dimension, before = self.space.dimensions[key], point.pop(key)
            if isinstance(dimension, Choices):
                others = [value for value in map(as_json, dimension.values) if value != before]
                point[key] = others[int(draw.random() * len(others))] if others else before
        return point

    def _sampler(self, begun: int) -> Any:
        """Return a sampler whose draws depend on the seed and a trial's place alone."""
        samplers = self._optuna.samplers
        seed = int(np.random.SeedSequence((self.config.seed, begun)).generate_state(1)[0])
        if self.config.sampler != "tpe":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():  # of arguments that are experimental in some versions
            warnings.simplefilter("ignore")
            return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def _tell(self, drawn: Any, outcome: Outcome[dict[str, float]]) -> None:
        """Record a trial's end: whatever its error is, a night's search goes on without it."""
        drawn.set_user_attr("seconds", outcome.seconds)
        if outcome.error is not None:
            drawn.set_user_attr("error", _one_line(outcome.error))
            self._study.tell(drawn, state=self._optuna.trial.TrialState.FAIL)
        else:
            scores = outcome.value or {}
            drawn.set_user_attr("splits", scores)
            self._study.tell(drawn, math.fsum(scores.values()) / len(scores))
        self.write_reports()

    def _raise_what_ended(self, ended: Sequence[GeofError]) -> None:
        grave = [error for error in ended if not isinstance(error, StoppedError)]
        if grave or len(ended) == 1:
            raise (grave or ended)[0]
        if ended:
            raise StoppedError("Stopped; the state of every trial is saved.")
        if len(self.finished()) < self.trials:
            raise StoppedError("Stopped between trials.")

    def _finished(self, trial: Any) -> Finished:
        attributes, ended = trial.user_attrs, trial.datetime_complete
        failed = trial.state.name == "FAIL"
        return Finished(
            number=trial.number,
            values=self.space.values(trial.params),
            validation=None if failed else trial.value,
            splits=attributes.get("splits", {}),
            folder=attributes.get("folder", ""),
            seconds=attributes.get("seconds", (ended - trial.datetime_start).total_seconds()),
            error=attributes["error"] if failed else None,
        )

    def _table(self, finished: Sequence[Finished]) -> str:
        splits = self.config.splits
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        names = [f"validation_split_{split}" for split in splits]
        heading = ["trial", "state", "validation", *names, "seconds", "folder", "error"]
        writer.writerow([*heading, *self.space.dimensions])
        for trial in sorted(finished, key=lambda trial: trial.number):
            writer.writerow(
                [
                    trial.number,
                    "failed" if trial.validation is None else "complete",
                    trial.validation,
                    *(trial.splits.get(split) for split in splits),
                    f"{trial.seconds:.1f}",
                    trial.folder,
                    trial.error,
                    *(v if isinstance(v, str) else as_json(v) for v in trial.values.values()),
                ]
            )
        return text.getvalue()


def _hash_of(config: RunConfig) -> str:
    """Return a name for what decides a run, wherever its data are."""
    plain = {key: value for key, value in config.decisive().items() if key != "data"}
    if config.data.edge_columns is not None:  # how they are read, which a space may have
        plain["edge_columns"] = config.data.edge_columns
    return hashlib.sha256(as_json(plain, sort_keys=True).encode()).hexdigest()[:16]


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, GeofError) else f"{type(error).__name__}: {text}"


CHANGED = 4
"""With sampler 'near': how many options of the best trial are changed on average, at most half."""

ORDER = "sweep.json"
"""Written last when a study is made: a folder without it is none."""

SPACE = "space.yaml"
CONFIGS = ("config.yaml", "settings.yaml")
"""What is not searched; the second name is that of studies begun by earlier versions."""


@dataclass(frozen=True)
class Order(SweepConfig):
    """What ``sweep.json`` holds: what was asked for, beside the space and the config."""

    workers: Annotated[Count, Field(description="Number of processes.")] = 2
    metric: Annotated[str, Field(description="What judges a trial.")] = ""
    data_hash: Annotated[str, Field(description="Of the data's content.")] = ""

    @classmethod
    def read(cls, folder: Path) -> Order:
        """Return the order of a study.

        Raises:
            DataError: If there is none or it is damaged.
        """
        stored = read_json(folder / ORDER, "a study of 'geof sweep'")
        try:
            newer = {"try_base"}  # which studies begun by earlier versions do not have
            if missing := set(declared(Order)) - newer - stored.keys():
                raise ConfigError(f"Expected '{min(missing)}' (got none).")
            return cls.of(stored)
        except ConfigError as error:
            raise DataError(
                f"Expected '{folder / ORDER}' to be what 'geof sweep' wrote ({error})"
            ) from error


@dataclass(frozen=True)
class Study:
    """A study's folder and what its files say."""

    folder: Path
    order: Order
    base: RunConfig
    searched: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Study:
        """Return the study in a folder.

        Raises:
            DataError: If there is none or it is damaged.
            ConfigError: If what it trains cannot be trained by this version.
        """
        order = Order.read(folder)
        there = [folder / name for name in CONFIGS if (folder / name).exists()]
        base = RunConfig.parse(read_yaml(there[0] if there else folder / CONFIGS[0]))
        return cls(folder, order, base, read_yaml(folder / SPACE))

    @classmethod
    def require_room(cls, folder: Path) -> None:
        """Raise ``DataError`` unless a folder is new, empty or a study."""
        if not folder.exists() or (folder / ORDER).exists():
            return
        held = [e.name for e in folder.iterdir()] if folder.is_dir() else [folder.name]
        ours = (SPACE, *CONFIGS)
        held = [name for name in held if name not in ours and not name.startswith(".")]
        if held:
            raise DataError(
                f"Expected '--out' to be a new or empty folder, or a study to go on with (got "
                f"'{folder}' with {', '.join(sorted(held)[:3])}). Name another one."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other search out; the system lets go when this process dies.

        Raises:
            FolderLockedError: If another one is at work.
            DataError: If the folder cannot be written.
        """
        lock = FileLock(self.folder / ".sweep.lock", timeout=0)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise FolderLockedError(
                f"Expected nobody else to work on '{self.folder}', but another sweep does. Wait "
                "for it or name another folder."
            ) from error
        except OSError as error:
            raise DataError(
                f"Expected to write '{self.folder}', but {error.strerror or error}. Name another "
                "folder."
            ) from error
        with lock:
            yield

    def exists(self) -> bool:
        """Return whether one is in the folder already."""
        return (self.folder / ORDER).exists()

    @property
    def space(self) -> Space:
        """What is searched."""
        return Space.from_tree(self.searched, self.base)

    def write(self) -> None:
        """Write what the study is."""
        write_atomically(self.folder / SPACE, dump_yaml(self.searched).encode())
        write_atomically(self.folder / CONFIGS[0], self.base.to_yaml().encode())
        write_json(self.folder / ORDER, asdict(self.order))

    def require_same(self, before: Study) -> None:
        """Raise ``ConfigError`` unless a study begun before is this one."""
        old = replace(before.order, trials=self.order.trials, workers=self.order.workers)
        new = asdict(self.order)
        differ = [] if self.searched == before.searched else [SPACE]
        differ += [] if self.base == before.base else [CONFIGS[0]]
        differ += [key for key, value in asdict(old).items() if new[key] != value]
        if differ:
            raise ConfigError(
                f"Expected what '{self.folder}' was begun with (other: {', '.join(differ)}). Go on "
                f"with {self.go_on}, or name another folder."
            )

    @property
    def go_on(self) -> str:
        """The command that goes on with it."""
        return f"geof sweep --resume {shlex.quote(str(self.folder))}"

    def open(self) -> Sweep:
        """Open its database; its data are not needed for that."""
        return Sweep(self.folder, self.base, self.space, self.order)

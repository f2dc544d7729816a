"""Search settings: trials drawn by Optuna, trained as ordinary runs, judged on validation alone.

A study is a folder. Its database says which trials there are and how they ended; below ``trials``
every point of the space has run folders of its own, named by a hash of the settings. A process may
therefore die at any moment: what it trained is found again, and nothing is trained twice. The test
part is never read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from filelock import FileLock, Timeout

from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError, DataError, GeofError, NonFiniteError, StoppedError
from geof.io import write_atomically
from geof.options import require_option, require_positive
from geof.training import Experiment, Plan, Task, Watch, run_experiment
from geof.training.space import Range, Space, as_json, laid_over

Sampler: TypeAlias = Literal["tpe", "grid", "random"]


def load_optuna() -> Any:
    """Import Optuna and keep it from talking.

    Raises:
        ConfigError: If it is not installed; says how to.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "Expected Optuna for searching settings (it is not installed). Run pip install "
            "'geof[sweep]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@dataclass(frozen=True)
class SweepSettings:
    """How a space is searched.

    Attributes:
        trials: Number of trials; ``None`` for every point of a grid.
        splits: The splits a trial trains on; its value is the mean over them.
        sampler: ``"tpe"``, ``"grid"`` or ``"random"``.
        seed: Of the draws. The draw of a trial depends on the seed, its place and the trials
            before it, so that one worker draws the same again, interrupted or not.
    """

    trials: int | None = 30
    splits: tuple[str, ...] = ("0",)
    sampler: Sampler = "tpe"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.trials is not None:
            require_positive("trials", self.trials)
        elif self.sampler != "grid":
            raise ConfigError(f"Expected 'trials' for sampler {self.sampler!r} (got none).")
        if not self.splits or len(set(self.splits)) != len(self.splits):
            raise ConfigError(f"Expected different 'splits' (got {','.join(self.splits)!r}).")
        require_option("sampler", self.sampler, get_args(Sampler))
        require_positive("seed", self.seed, least=0)

    def trials_of(self, space: Space) -> int:
        """Return the number of trials, of a grid no more than it has points.

        Raises:
            ConfigError: If a grid has a range.
        """
        if self.sampler != "grid":
            return self.trials or 0
        for key, dimension in space.dimensions.items():
            if isinstance(dimension, Range):
                raise ConfigError(
                    f"Expected lists of values for a grid (got a range for '{key}'). List the "
                    "values or choose --sampler tpe."
                )
        points = math.prod(len(dimension.values) for dimension in space.dimensions.values())
        return min(self.trials or points, points)


@dataclass(frozen=True)
class Subject:
    """What trials are trained on: data read once, and the settings a point is laid over.

    Attributes:
        data: What to learn from.
        base: Every setting that is not searched.
        own_seed: Whether ``base`` says a seed; otherwise it is the number of the split.
        experiment: Makes a run of a plan and its task.
        settings: Makes a settings file of a plan.
        data_root: Where raw benchmark files are.
    """

    data: NodeGraph | GraphSet
    base: Plan
    own_seed: bool = False
    experiment: Callable[[Plan, Task], Experiment] = lambda plan, task: plan.experiment(task)
    settings: Callable[[Plan], str] = lambda plan: ""
    data_root: Path | None = None
    _tasks: dict[str, tuple[Any, Task]] = field(default_factory=dict, repr=False)

    def plan(self, values: Mapping[str, Any], split: str) -> Plan:
        """Return the plan of a point on a split."""
        return laid_over(self.base, values, split, own_seed=self.own_seed)

    def task(self, plan: Plan) -> Task:
        """Return a plan's task, the one before where only the method differs."""
        if plan.split not in self._tasks or self._tasks[plan.split][0] != _task_key(plan):
            self._tasks.pop(plan.split, None)  # two would not fit where one just does
            self.keep(plan, plan.build_task(self.data, self.data_root))
        return self._tasks[plan.split][1]

    def keep(self, plan: Plan, task: Task) -> None:
        """Remember a plan's task."""
        self._tasks[plan.split] = (_task_key(plan), task)


@dataclass(frozen=True)
class Finished:
    """A trial that ended.

    Attributes:
        number: In the database.
        values: Its settings.
        validation: Mean validation metric in percent, ``None`` if it failed.
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


def best_of(finished: Sequence[Finished]) -> Finished | None:
    """Return the trial with the highest mean validation metric, the first of equals."""
    complete = [(t.validation, -t.number, t) for t in finished if t.validation is not None]
    return max(complete, default=(None, None, None))[2]


class Sweep:
    """A study in a folder, opened; made when it is not there.

    Args:
        folder: ``study.db``, ``trials``, ``summary.csv`` and ``best.yaml`` go there.
        space: What to search.
        settings: How.

    Raises:
        ConfigError: If Optuna is not installed or a grid has a range.
    """

    def __init__(self, folder: Path, space: Space, settings: SweepSettings) -> None:
        self.folder, self.space, self.settings = folder, space, settings
        self.trials = settings.trials_of(space)
        if set("?{}") & set(str(folder)):  # which a database's address cannot hold
            raise ConfigError(f"Expected a study folder without '?', '{{', '}}' (got '{folder}').")
        self._optuna = load_optuna()
        folder.mkdir(parents=True, exist_ok=True)
        # Others may be writing: wait rather than give up.
        storage = self._optuna.storages.RDBStorage(
            f"sqlite:///{folder / 'study.db'}", engine_kwargs={"connect_args": {"timeout": 120}}
        )
        self._study = self._optuna.create_study(
            storage=storage, study_name="sweep", direction="maximize", load_if_exists=True
        )

    def prepare(self) -> None:
        """Take back the trials of dead processes and queue a grid's points.

        Only for a process that knows that no other is at work on the study.
        """
        for trial in self._all_trials():
            if trial.state.name == "RUNNING":
                self._take_back(trial)
        if self.settings.sampler != "grid":
            return
        there = [trial.user_attrs.get("point") for trial in self._all_trials()]
        for point in islice(self.space.points(), self.trials):
            if point not in there:
                self._queue(point)

    def work(
        self,
        subject: Subject,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_trial: Callable[[], None] = lambda: None,
    ) -> None:
        """Train trials until there are enough.

        Args:
            subject: What to train on.
            should_stop: Asked after every epoch and between trials.
            on_trial: Told that a trial ended.

        Raises:
            StoppedError: If ``should_stop`` said so; the trial goes on when the study does.
            DataError: If something is wrong that no other settings would mend.
        """
        self.write_reports(subject)
        while (trial := self._take(should_stop)) is not None:
            self._run(trial, subject, should_stop)
            self.write_reports(subject)
            on_trial()

    def finished(self) -> list[Finished]:
        """Return the trials that ended, in the order in which they did."""
        ended = [t for t in self._counted() if t.state.name in ("COMPLETE", "FAIL")]
        return [self._finished(t) for t in sorted(ended, key=lambda t: t.datetime_complete)]

    def write_reports(self, subject: Subject) -> None:
        """Write ``summary.csv`` and, when there is a best trial, ``best.yaml``."""
        with self._one_at_a_time():
            finished = self.finished()
            write_atomically(self.folder / "summary.csv", self._table(finished).encode())
            best = best_of(finished)
            if best is not None:
                title = (
                    f"# Trial {best.number} of summary.csv: validation {best.validation} %, the "
                    f"mean of splits {', '.join(self.settings.splits)}"
                )
                plan = subject.plan(best.values, self.settings.splits[0])
                text = f"{title}\n{subject.settings(plan)}"
                write_atomically(self.folder / "best.yaml", text.encode())

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

    def _take(self, should_stop: Callable[[], bool]) -> Any:
        """Return the next trial with its parameters, ``None`` if there are enough."""
        with self._one_at_a_time():
            states = [trial.state.name for trial in self._counted()]
            begun = len(states) - states.count("WAITING")
            if begun >= self.trials or (self.settings.sampler == "grid" and begun == len(states)):
                return None
            if should_stop():
                raise StoppedError("Stopped between trials.")
            self._study.sampler = self._sampler(begun)
            return self._study.ask(
                {key: d.distribution(self._optuna) for key, d in self.space.dimensions.items()}
            )

    def _sampler(self, begun: int) -> Any:
        """Return a sampler whose draws depend on the seed and a trial's place alone."""
        samplers = self._optuna.samplers
        seed = int(np.random.SeedSequence((self.settings.seed, begun)).generate_state(1)[0])
        if self.settings.sampler != "tpe":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():  # of arguments that are experimental in some versions
            warnings.simplefilter("ignore")
            return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def _run(self, trial: Any, subject: Subject, should_stop: Callable[[], bool]) -> None:
        try:
            scores = self._train(trial, subject, should_stop)
            mean = math.fsum(scores.values()) / len(scores)
            if not math.isfinite(mean):
                raise NonFiniteError(f"Expected a finite validation metric (got {scores}).")
        except (DataError, StoppedError):
            raise  # not for want of good settings: the trial goes on when the study does
        except Exception as error:  # whatever it is, a night's search goes on without this point
            trial.set_user_attr("error", _one_line(error))
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            trial.set_user_attr("splits", scores)
            self._study.tell(trial, mean)

    def _train(
        self, trial: Any, subject: Subject, should_stop: Callable[[], bool]
    ) -> dict[str, float]:
        """Return the validation metric on every split."""
        values, splits = self.space.values(trial.params), self.settings.splits
        name = _hash_of(subject.plan(values, splits[0]))
        trial.set_user_attr("folder", name)
        folder = self.folder / "trials" / name
        scores = {}
        with _alone(folder, should_stop):
            for known in self.finished():
                if known.folder == name and known.error is not None:
                    raise GeofError(known.error)
            for split in splits:
                plan = subject.plan(values, split)
                run = subject.experiment(plan, subject.task(plan))
                _, result = run_experiment(
                    replace(run, read_test=False),  # a search must not see it
                    out=folder / f"split-{split}",
                    watch=Watch(should_stop=should_stop),
                )
                scores[split] = result.validation
        return scores

    def _finished(self, trial: Any) -> Finished:
        attributes = trial.user_attrs
        failed = trial.state.name == "FAIL"
        return Finished(
            number=trial.number,
            values=self.space.values(trial.params),
            validation=None if failed else trial.value,
            splits=attributes.get("splits", {}),
            folder=attributes.get("folder", ""),
            seconds=(trial.datetime_complete - trial.datetime_start).total_seconds(),
            error=attributes["error"] if failed else None,
        )

    def _table(self, finished: Sequence[Finished]) -> str:
        splits = self.settings.splits
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

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Keep other processes from counting, drawing and reporting meanwhile."""
        with FileLock(self.folder / ".study.lock"):
            yield


@contextmanager
def _alone(folder: Path, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Wait for another process that trains the same settings; its results serve both."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            if should_stop():
                raise StoppedError(f"Stopped while another process works in '{folder}'.") from None
    try:
        yield
    finally:
        lock.release()


def _task_key(plan: Plan) -> Any:
    return plan.training.seed, plan.batches, plan.signature


def _hash_of(plan: Plan) -> str:
    return hashlib.sha256(as_json(plan.tree(), sort_keys=True).encode()).hexdigest()[:16]


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, GeofError) else f"{type(error).__name__}: {text}"

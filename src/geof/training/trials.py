"""The trials of a search and the runs they consist of.

A search draws from a space: choices and ranges of options, checked before anything runs. Many runs
are trained in one process: data and tasks are kept from one to the next.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from geof.data.own_splits import split_columns
from geof.data.sources import Loaded, read_data
from geof.errors import (
    ConfigError,
    DataError,
    FolderLockedError,
    NonFiniteError,
    StoppedError,
    nearest,
)
from geof.methods.registry import load_plugin
from geof.options import Count, Options
from geof.training.config import RENAMED, RUN_KEYS, RunConfig, values_of
from geof.training.stages import PretrainingConfig
from geof.training.tasks import SEEN_BY_TASKS, Task, build_task
from geof.training.trainer import Result, Trainer, Watch

Sampler: TypeAlias = Literal["tpe", "grid", "random", "near"]

_RANGE_KEYS = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Choices:
    """An option that takes one of several values, each plain JSON."""

    values: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return as_json(value) in map(as_json, self.values)

    def distribution(self, optuna: Any) -> Any:
        """Return Optuna's form. The choices are JSON text, as a list is no choice to Optuna."""
        return optuna.distributions.CategoricalDistribution([as_json(v) for v in self.values])


@dataclass(frozen=True)
class Range:
    """An option between two numbers, whole ones if ``whole``."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def values(self) -> tuple[Any, ...]:
        """The ends."""
        return self.low, self.high

    def distribution(self, optuna: Any) -> Any:
        """Return Optuna's form."""
        kinds = optuna.distributions
        with warnings.catch_warnings():  # of a step that does not end at 'high'
            warnings.simplefilter("ignore")
            if self.whole:
                return kinds.IntDistribution(self.low, self.high, self.log, self.step or 1)
            return kinds.FloatDistribution(self.low, self.high, self.log, self.step)


@dataclass(frozen=True)
class Space:
    """What is searched: dotted options, named as the user wrote them, each with its values."""

    dimensions: Mapping[str, Choices | Range]

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], base: RunConfig) -> Space:
        """Read a space and try every value it names, each beside the first of the others.

        Args:
            tree: Options, dotted or in sections, with lists of values or
                ``{low:, high:, log:, step:}``.
            base: The config a point is laid over.

        Raises:
            ConfigError: For an unknown option, naming the nearest, or a value it cannot have.
        """
        known = _defaults(base)
        dimensions: dict[str, Choices | Range] = {}
        for key, value in _flat(tree):
            if present_name(key) in map(present_name, dimensions):
                raise ConfigError(f"Expected '{key}' once in the space (got it twice).")
            if present_name(key) not in known:
                raise ConfigError(f"Unknown option {key!r} in the space. " + nearest(key, known))
            dimensions[key] = _dimension(key, value, known[present_name(key)])
        if not dimensions:
            raise ConfigError("Expected options to search in the space (got none).")
        space = cls(dimensions)
        for values in space._samples():
            laid_over(base, values, base.split)
        return space

    def points(self) -> Iterator[dict[str, str]]:
        """Yield every point of a grid as Optuna's parameters, the last option fastest."""
        texts = ([as_json(value) for value in d.values] for d in self.dimensions.values())
        for point in product(*texts):
            yield dict(zip(self.dimensions, point, strict=True))

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for Optuna's parameters."""
        return {
            key: json.loads(parameters[key]) if isinstance(d, Choices) else parameters[key]
            for key, d in self.dimensions.items()
        }

    def point_of(self, config: RunConfig) -> dict[str, Any]:
        """Return the values a config has itself, as Optuna's parameters.

        Raises:
            ConfigError: If one of them is not in the space.
        """
        plain, point = config.to_dict(), {}
        for key, dimension in self.dimensions.items():
            section, _, name = present_name(key).rpartition(".")
            value = plain[section or "training"].get(name)
            if value not in dimension:
                raise ConfigError(
                    f"Expected the config's own '{key}', {as_json(value)}, among the values of the "
                    "space, to try it first. Add it, or leave '--try-base' out."
                )
            point[key] = as_json(value) if isinstance(dimension, Choices) else value
        return point

    def _samples(self) -> Iterator[dict[str, Any]]:
        first = {key: dimension.values[0] for key, dimension in self.dimensions.items()}
        for key, dimension in self.dimensions.items():
            yield from ({**first, key: value} for value in dimension.values)


def laid_over(base: RunConfig, values: Mapping[str, Any], split: str) -> RunConfig:
    """Return a config with values put over it, on a split.

    Raises:
        ConfigError: If a value, or values together, cannot be.
    """
    plain: dict[str, Any] = {**base.to_dict(), "split": split}
    for key, value in values.items():
        section, _, name = present_name(key).rpartition(".")
        plain[section or "training"][name] = value
    return RunConfig.from_dict(plain)


def present_name(key: str) -> str:
    """Return an option's name with what earlier versions called its section replaced."""
    section, dot, name = key.partition(".")
    return f"{RENAMED.get(section, section)}{dot}{name}" if dot else key


def _defaults(base: RunConfig) -> dict[str, Any]:
    """Return every option that can be searched with its default.

    Not the value given: who fixes 'weight_decay: 0' still has a real option.
    """
    tree = RunConfig(method=base.method, task=base.task).tree()
    tree["pretraining"] = values_of(PretrainingConfig())
    tree["data"] = {"edge_columns": None}  # how data are read, not which
    known: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            known |= {f"{key}.{name}": default for name, default in value.items()}
        elif key not in RUN_KEYS:
            known[key] = value
    return known


def _dimension(key: str, value: Any, default: Any) -> Choices | Range:
    if isinstance(value, list) and value:
        return _choices(key, value)
    if isinstance(value, Mapping):
        return _range(key, value, default)
    raise ConfigError(
        f"Expected a list of values or {{low: ..., high: ...}} for '{key}' (got {value!r}). "
        f"An option that is not searched goes on the command line: {key}=VALUE."
    )


def _choices(key: str, values: Sequence[Any]) -> Choices:
    try:
        texts = [as_json(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Expected plain finite values for '{key}' ({error}).") from error
    if len(set(texts)) != len(texts) or any(isinstance(value, Mapping) for value in values):
        raise ConfigError(f"Expected different values for '{key}', no sections (got {values}).")
    return Choices(tuple(values))


def _range(key: str, given: Mapping[str, Any], default: Any) -> Range:
    for name in given:
        if name not in _RANGE_KEYS:
            raise ConfigError(f"Unknown '{name}' for '{key}'. " + nearest(str(name), _RANGE_KEYS))
    low, high, step = (_number(key, name, given) for name in ("low", "high", "step"))
    log = given.get("log", False)
    if low is None or high is None or low > high or type(log) is not bool:
        raise ConfigError(f"Expected low <= high and log: true or false for '{key}' (got {given}).")
    if log and (low <= 0 or step is not None):
        raise ConfigError(f"Expected 0 < low and no step beside 'log: true' for '{key}'.")
    if step is not None and step <= 0:
        raise ConfigError(f"Expected 'step' of '{key}' to be above 0 (got {step}).")
    whole = all(isinstance(n, int) for n in (low, high, step) if n is not None)
    if isinstance(default, int) and not whole:
        raise ConfigError(f"Expected whole numbers for '{key}' (got {dict(given)}).")
    # '{low: 0, high: 1}' of an option such as dropout means every number in between.
    return Range(low, high, log, step, whole and not isinstance(default, float))


def _number(key: str, name: str, given: Mapping[str, Any]) -> float | None:
    number = given.get(name)
    if number is not None and (type(number) not in (int, float) or not math.isfinite(number)):
        raise ConfigError(f"Expected '{name}' of '{key}' to be a number (got {number!r}).")
    return number


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def as_json(value: Any, *, sort_keys: bool = False) -> str:
    """Return plain values as JSON text."""
    return json.dumps(value, sort_keys=sort_keys, allow_nan=False)


@dataclass(frozen=True)
class SweepConfig(Options):
    """How a space is searched.

    The draw of a trial depends on the seed, its place and the trials before it, so that one worker
    draws the same again, interrupted or not.
    """

    trials: Annotated[Count | None, Field(description="How many; None for a whole grid.")] = 30
    splits: Annotated[
        tuple[str, ...],
        Field(description="What a trial trains on; its value is the mean over them."),
    ] = ("0",)
    sampler: Annotated[Sampler, Field(description="How points are drawn.")] = "tpe"
    seed: Annotated[int, Field(ge=0, description="Of the draws.")] = 0
    try_base: Annotated[
        bool, Field(description="The first trial has the values of the config itself.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials is None and self.sampler != "grid":
            raise ConfigError(f"Expected 'trials' for sampler {self.sampler!r} (got none).")
        if self.sampler == "near" and not self.try_base:
            raise ConfigError("Expected 'try_base' with sampler 'near', which begins there.")
        if not self.splits or len(set(self.splits)) != len(self.splits):
            raise ConfigError(f"Expected different 'splits' (got {','.join(self.splits)!r}).")

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


_LOCK_SECONDS = 0.5
"""From one look at a locked folder to the next."""


@dataclass
class Runner:
    """Trains one run after another.

    A pickled copy reads its data anew, except data made in Python, which it carries along.

    Attributes:
        tasks: How many tasks to keep.
        patience: Seconds to wait for another process that works in a run's folder.
        save_seconds: Time from one saved state of a run to the next.
        plugin: A Python file that registers methods, imported by a copy in another process.
    """

    tasks: int = 1
    patience: float = 0.0
    save_seconds: float = 10.0
    plugin: Path | None = None
    _data: dict[Any, Loaded] = field(default_factory=dict, repr=False)
    _tasks: dict[Any, Task] = field(default_factory=dict, repr=False)

    def read(self, config: RunConfig) -> Loaded:
        """Return the data of a run.

        Raises:
            DataError: If they cannot be read.
        """
        key = _data_key(config)
        if key not in self._data:
            self._data[key] = read_data(config.data, config.task, config.split)
        return self._data[key]

    def keep(self, config: RunConfig, loaded: Loaded) -> None:
        """Take data that were read, or made, elsewhere."""
        self._data[_data_key(config)] = loaded

    def task(self, config: RunConfig) -> Task:
        """Return the task of a run, the same as before where only the method differs."""
        key = (
            *(_data_key(config), config.task, config.split, config.folds, config.seed),
            *(config.signature, *(getattr(config.training, name) for name in SEEN_BY_TASKS)),
        )
        task = self._tasks.pop(key, None)
        if task is None:
            while len(self._tasks) >= self.tasks:  # room first: one more might not fit
                self._tasks.pop(next(iter(self._tasks)))
            task = build_task(config, self.read(config).data)
        self._tasks[key] = task  # the last one used goes last
        return task

    def train(
        self, config: RunConfig, out: Path, should_stop: Callable[[], bool] = lambda: False
    ) -> Result:
        """Train a run in its folder, or go on with it there.

        Raises:
            FolderLockedError: If another process still works there when patience is over.
            StoppedError: If ``should_stop`` said so; the state is saved.
            GeofError: Whatever else is wrong with it.
        """
        task, schema = self.task(config), self.read(config).schema
        watch = Watch(should_stop=should_stop, save_seconds=self.save_seconds)
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return Trainer(config, task, out=out, watch=watch, schema=schema).fit()
            except FolderLockedError as error:
                if time.monotonic() >= deadline:
                    raise
                if should_stop():
                    raise StoppedError(
                        f"Stopped while another process works in '{out}'."
                    ) from error
            time.sleep(_LOCK_SECONDS)

    def __getstate__(self) -> dict[str, Any]:
        made = {key: data for key, data in self._data.items() if key[0].kind is None}
        return {**self.__dict__, "_data": made, "_tasks": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.plugin is not None:
            load_plugin(self.plugin)


@dataclass(frozen=True)
class Trial:
    """A point of the space to be trained.

    Attributes:
        folder: For its runs.
        runs: Their configs, one per split.
    """

    folder: Path
    runs: tuple[RunConfig, ...]


@dataclass
class TrialTrainer:
    """Trains trials, in the process that draws them or in a worker.

    Attributes:
        runner: Trains the runs.
        content_hash: Of the data the study was begun with; ``None`` takes any.
    """

    runner: Runner = field(default_factory=lambda: Runner(patience=math.inf))
    content_hash: str | None = None

    def __call__(self, trial: Trial, should_stop: Callable[[], bool]) -> dict[str, float]:
        """Return the validation metric of every split.

        Raises:
            DataError: If something is wrong that no other options would mend.
            StoppedError: If ``should_stop`` said so; the state is saved.
        """
        scores = {}
        for config in trial.runs:
            self.require_data(config)
            result = self.runner.train(config, trial.folder / f"split-{config.split}", should_stop)
            scores[config.split] = result.validation
        if not all(map(math.isfinite, scores.values())):
            raise NonFiniteError(f"Expected a finite validation metric (got {scores}).")
        return scores

    def require_data(self, config: RunConfig) -> None:
        """Raise ``DataError`` if the data are no longer what they were."""
        data = self.runner.read(config).data
        if self.content_hash not in (None, data.content_hash):
            raise DataError(
                f"Expected the data the study was begun with, but '{data.name}' has changed. Bring "
                "them back or begin another study."
            )


def _data_key(config: RunConfig) -> Any:
    """Return what data are read by; only of a user's own files the task asks for a label."""
    own = None if config.data.kind == "dataset" else (config.task, split_columns(config.split))
    return config.data, own

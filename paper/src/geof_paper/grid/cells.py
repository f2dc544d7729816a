"""Rows of a table of results and their cells: one run each, found again by what decides it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from geof.data.catalogue import CATALOGUE
from geof.errors import ConfigError, nearest
from geof.io import parse_words
from geof.methods.interface import TaskKind
from geof.methods.registry import get_method
from geof.training.config import RENAMED, RUN_KEYS, RunConfig
from geof.training.stages import UNDECISIVE
from geof_paper.studies.compared import COMPARED

Benchmark: TypeAlias = tuple[TaskKind, str]
"""A task on a dataset."""

_TASKS: dict[TaskKind, str] = {
    "node": "node classification",
    "link": "link prediction",
    "graph": "graph classification",
}


def benchmarks_of(datasets: Collection[str]) -> tuple[Benchmark, ...]:
    """Return the tasks on datasets of the catalogue, task by task."""
    return tuple(
        (kind, name)
        for kind, task in _TASKS.items()
        for name in datasets
        if task in CATALOGUE[name].tasks
    )


BENCHMARKS = benchmarks_of(
    [
        *("CiteSeer", "PubMed", "CS", "Physics", "Photo", "Computers"),
        *("PROTEINS", "NCI1", "Mutagenicity", "FRANKENSTEIN", "BBBP", "ogbg-molhiv"),
    ]
)
"""The paper's eighteen benchmarks; the catalogue may have more."""


def compared_methods(task: TaskKind) -> list[tuple[str, str]]:
    """Return name and preset of every compared method on a task."""
    return [(compared.method, compared.preset_for(task)) for compared in COMPARED]


@dataclass(frozen=True)
class Row:
    """One row of a table: a method on a benchmark.

    Attributes:
        task: Node, link or graph.
        dataset: Its name.
        method: What is trained.
        preset: Which preset of it.
        changes: ``KEY=VALUE`` words over the preset; none for a plain result.
        study: The study the changes belong to, declared beforehand: its test parts are read like
            a plain result's. Changes that are tried out have none and see the validation part
            alone.
    """

    task: TaskKind
    dataset: str
    method: str
    preset: str
    changes: tuple[str, ...] = ()
    study: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", tuple(map(_present_spelling, self.changes)))

    @property
    def reads_test(self) -> bool:
        """Whether runs of this row read the test part, once, at the chosen epoch."""
        return self.study is not None or not self.changes

    @property
    def benchmark(self) -> Benchmark:
        """Task and dataset."""
        return (self.task, self.dataset)

    def config(self, split: str) -> RunConfig:
        """Return everything that decides this row's run on a split.

        Raises:
            ConfigError: For an unknown method, preset or option, naming the nearest.
        """
        about = {"method": self.method, "task": self.task, "preset": self.preset, "split": split}
        parsed = RunConfig.parse(
            {**about, "data": {"dataset": self.dataset}}, parse_words(self.changes)
        )
        return replace(parsed, read_test=self.reads_test)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options in force that differ from the defaults of the code."""
        return changed_options(self.config("0"))

    @property
    def name(self) -> str:
        """A short name that is good for a file."""
        changes = "".join(f"+{_slug(word)}" for word in self.changes)
        return f"{self.task}-{self.dataset}-{self.method}-{self.preset}{changes}"

    def command(self, splits: str) -> str:
        """Return the command that makes this row."""
        if self.study is not None:
            preset = "" if self.preset == "tuned" else f" --preset {self.preset}"
            return (
                f"geof reproduce {self.study} --datasets {self.dataset} --splits {splits}{preset}"
            )
        words = "".join(f" {word}" for word in self.changes)
        return (
            f"geof results run --tasks {self.task} --datasets {self.dataset} --methods "
            f"{self.method}:{self.preset} --splits {splits}{words}"
        )


@dataclass(frozen=True)
class Cell:
    """A row on one split."""

    row: Row
    split: str

    @cached_property
    def config(self) -> RunConfig:
        """Everything that decides its run."""
        return self.row.config(self.split)

    @property
    def revision(self) -> int:
        """The revision of the method that trains it."""
        return get_method(self.row.method).revision

    def code(self) -> str:
        """Say what trains it, for machines to compare."""
        return f"revision {self.revision} of '{self.row.method}'"

    def folder(self, work: Path) -> Path:
        """Return the run folder: another one as soon as an option or the revision differs."""
        return work / self.row.name / f"split-{self.split}-{self._digest}"

    @cached_property
    def _digest(self) -> str:
        parts = [self.revision, self.row.reads_test, self.row.options]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def changed_options(config: RunConfig) -> dict[str, Any]:
    """Return the options of a config that differ from the defaults of the code.

    With the method, the task and the dataset they decide a run: :func:`config_of` makes the config
    again. An option that is added to the code later, with a default that changes nothing, does not
    make another run of it; a default that changes numbers moves the method's canaries.
    """
    usual = _defaults(config.method, config.task, get_method(config.method).build)
    found = json.loads(json.dumps(_difference(_options(config), usual)))
    assert isinstance(found, dict)
    return found


@lru_cache
def _defaults(method: str, task: TaskKind, build: object) -> dict[str, Any]:
    """Return the options of a method when nothing is chosen; another one may take its name."""
    return _options(RunConfig.parse({"method": method, "task": task, "preset": "none"}))


def config_of(method: str, task: str, dataset: str, options: Mapping[str, Any]) -> RunConfig:
    """Return the config that :func:`changed_options` was told of, apart from preset and split."""
    about = {"method": method, "task": task, "preset": "none", "data": {"dataset": dataset}}
    return RunConfig.parse(about, options)


def choose_rows(
    tasks: Iterable[str] | None,
    datasets: Iterable[str] | None,
    methods: Collection[tuple[str, str]] | None,
    changes: tuple[str, ...] = (),
) -> list[Row]:
    """Return the rows asked for, all of the paper's benchmarks and methods where nothing is said.

    Raises:
        ConfigError: If nothing fits, or a name is unknown.
    """
    asked = None if datasets is None else list(datasets)
    for name in asked or ():
        if name not in CATALOGUE:
            raise ConfigError(f"Unknown dataset {name!r}. " + nearest(name, CATALOGUE))
    wanted = None if asked is None else [name for name in CATALOGUE if name in asked]
    kinds = None if tasks is None else list(tasks)
    rows = [
        Row(task, dataset, method, preset, changes)
        for task, dataset in (BENCHMARKS if wanted is None else benchmarks_of(wanted))
        for method, preset in (compared_methods(task) if methods is None else methods)
        if kinds is None or task in kinds
    ]
    if not rows:
        raise ConfigError("Expected at least one row (no benchmark has these tasks and datasets).")
    for row in rows:
        row.config("0")  # unknown methods, presets and options are told at once
    return rows


def _options(config: RunConfig) -> dict[str, Any]:
    """Return what is chosen, apart from method, task, preset, source of data, split and device."""
    given = {*RUN_KEYS, *UNDECISIVE, "data"} - {"folds"}
    found = {key: value for key, value in config.tree().items() if key not in given}
    return found | {"data": {"edge_columns": config.data.edge_columns}}


def _difference(given: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Return what differs from the usual values, an option that is off and usually on included."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        below = usual.get(key)
        if isinstance(value, dict):
            inner = _difference(value, below or {})
            found |= {key: inner} if inner else {}
        elif value != below:
            found[key] = value
    return found


def _present_spelling(word: str) -> str:
    """Return a ``KEY=VALUE`` word with the names of today, so that a row is found by either."""
    section, dot, rest = word.partition(".")
    return f"{RENAMED.get(section, section)}{dot}{rest}"


def _slug(word: str) -> str:
    return "".join(c if c.isalnum() or c in ".=_" else "-" for c in word)

"""Cells of a table of results: one run each, found again by what it is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from geof.data.catalogue import CATALOGUE
from geof.errors import ConfigError, nearest
from geof.methods.interface import TaskKind
from geof.methods.presets import load_preset
from geof.training import Plan
from geof.yaml_options import merge, parse_words
from geof_paper.grid.provenance import code_digest
from geof_paper.studies.compared import COMPARED

SETTINGS: tuple[tuple[TaskKind, str], ...] = (
    *(("node", name) for name, b in CATALOGUE.items() if "node classification" in b.tasks),
    *(("link", name) for name, b in CATALOGUE.items() if "link prediction" in b.tasks),
    *(("graph", name) for name, b in CATALOGUE.items() if "graph classification" in b.tasks),
)
"""The paper's eighteen settings: task and dataset."""

METHODS = tuple((method.encoder, method.preset) for method in COMPARED)
"""Encoder and preset of every compared method."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a method on a setting.

    Attributes:
        task: Node, link or graph.
        dataset: A benchmark.
        encoder: Which encoder.
        preset: Which preset of it.
        changes: ``KEY=VALUE`` words over the preset; none for a plain result.
        study: The study the changes belong to, declared beforehand: its test parts are read like
            a plain result's. Changes that are tried out have none and see the validation part
            alone.
    """

    task: TaskKind
    dataset: str
    encoder: str
    preset: str
    changes: tuple[str, ...] = ()
    study: str | None = None

    @property
    def reads_test(self) -> bool:
        """Whether runs of this row read the test part, once, at the chosen epoch."""
        return self.study is not None or not self.changes

    def plan(self, split: str) -> Plan:
        """Return the plan of this row on a split."""
        preset = load_preset(self.encoder, self.preset, self.task, self.dataset)
        return Plan.from_tree(
            merge(preset, parse_words(self.changes)),
            task=self.task,
            encoder=self.encoder,
            preset=self.preset,
            split=split,
        )

    @property
    def name(self) -> str:
        """A short name that is good for a file."""
        changes = "".join(f"+{_slug(word)}" for word in self.changes)
        return f"{self.task}-{self.dataset}-{self.encoder}-{self.preset}{changes}"

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
            f"{self.encoder}:{self.preset} --splits {splits}{words}"
        )


@dataclass(frozen=True)
class Cell:
    """A row on one split."""

    row: Row
    split: str

    @property
    def code(self) -> str:
        """The digest of the code that trains it."""
        return code_digest(self.row.encoder)

    def folder(self, work: Path) -> Path:
        """Return the run folder: another one as soon as a setting or the code differs."""
        row = self.row
        parts = [*map(json.dumps, (row.dataset, row.encoder)), self._settings]
        parts += map(json.dumps, (self.code, row.reads_test))
        digest = hashlib.sha256(f"[{', '.join(parts)}]".encode()).hexdigest()[:10]
        return work / row.name / f"split-{self.split}-{digest}"

    @cached_property
    def _settings(self) -> str:
        return json.dumps(without_nones(self.row.plan(self.split).tree()), sort_keys=True)


def choose_rows(
    tasks: Iterable[str] | None,
    datasets: Iterable[str] | None,
    methods: Iterable[tuple[str, str]] | None,
    changes: tuple[str, ...] = (),
) -> list[Row]:
    """Return the rows asked for, all of the paper's settings and methods where nothing is said.

    Raises:
        ConfigError: If nothing fits, or a name is unknown.
    """
    wanted = None if datasets is None else list(datasets)
    for name in wanted or ():
        if name not in CATALOGUE:
            raise ConfigError(f"Unknown dataset {name!r}. " + nearest(name, CATALOGUE))
    kinds = None if tasks is None else list(tasks)
    rows = [
        Row(task, dataset, encoder, preset, changes)
        for task, dataset in SETTINGS
        for encoder, preset in (METHODS if methods is None else methods)
        if (kinds is None or task in kinds) and (wanted is None or dataset in wanted)
    ]
    if not rows:
        raise ConfigError("Expected at least one row (no setting has these tasks and datasets).")
    for row in rows:
        row.plan("0")  # unknown encoders, presets and settings are told at once
    return rows


def without_nones(tree: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is off: a setting added later and not used must not make another cell."""
    return {
        key: without_nones(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def _slug(word: str) -> str:
    return "".join(c if c.isalnum() or c in ".=_" else "-" for c in word)


def as_plain(plan: Plan) -> Any:
    """Return a plan's settings as plain JSON values."""
    return json.loads(json.dumps(plan.tree()))

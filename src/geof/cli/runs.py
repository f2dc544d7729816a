"""From the command line to a run: flags over a settings file over a preset."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from geof.cli.arguments import SOURCE_FLAGS, SOURCES, read_training_data
from geof.data.columns import ColumnEncoder
from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError, nearest
from geof.methods.interface import TaskKind
from geof.methods.presets import default_preset, load_preset
from geof.methods.registry import method_options
from geof.options import require_option, require_positive
from geof.training import Experiment, Plan, Task
from geof.yaml_options import dump_settings, merge, parse_words, read_settings

RUN_KEYS = ("task", "encoder", "preset", "split", "folds")
"""What a settings file may say about the run itself, beside ``data`` and the settings."""


@dataclass(frozen=True)
class Request:
    """What was asked for, read and checked.

    Attributes:
        data: What to learn from.
        columns: The schema of a table's columns.
        plan: How.
        task: The task on its split.
        source: The flags that name the data, as a settings file writes them.
        notes: What a reader of the result must know.
    """

    data: NodeGraph | GraphSet
    columns: ColumnEncoder | None
    plan: Plan
    task: Task
    source: Mapping[str, Any]
    notes: tuple[str, ...]

    def settings_yaml(self) -> str:
        """Return the whole request as a settings file."""
        run = {"data": dict(self.source), **{key: getattr(self.plan, key) for key in RUN_KEYS}}
        return dump_settings({**run, **self.plan.tree()})

    def experiment(self, **more: Any) -> Experiment:
        """Return the run with its record and files; ``more`` are fields of ``Experiment``."""
        files = {"settings.yaml": self.settings_yaml().encode()}
        record: dict[str, Any] = {
            "data": {"content_hash": self.data.content_hash, "notes": list(self.notes)},
            "class_names": list(self.data.class_names),
            "columns": {name: self.source.get(name) for name in ("id", "smiles", "label")},
        }
        if self.columns is not None:
            files["columns.json"] = self.columns.to_json().encode()
            # Here too, so that a checkpoint alone can read another table.
            record["schema"] = json.loads(self.columns.to_json())
        return self.plan.experiment(self.task, record=record, files=files, **more)


def prepare(options: argparse.Namespace) -> Request:
    """Read settings and data and build the task.

    Raises:
        GeofError: Whatever is wrong with them, before anything is written.
    """
    tree = read_settings(options.config) if options.config is not None else {}
    _apply_run_keys(options, tree)
    words = parse_words(options.settings)
    encoder = options.model or "geof"
    method_options(encoder, {})  # before its presets are looked for
    preset = options.preset or default_preset(encoder)
    default = options.task or ("graph" if options.molecules else "node")
    # Mistakes in the settings are told before the data are read, which may take a while.
    _plan(options, tree, words, encoder, preset, default, None, check_readout=False)
    data, columns = read_training_data(options)
    task_kind = options.task or ("graph" if isinstance(data, GraphSet) else "node")
    dataset = data.name if options.dataset is not None else None
    plan = _plan(options, tree, words, encoder, preset, task_kind, dataset)
    return Request(
        data=data,
        columns=columns,
        plan=plan,
        task=plan.build_task(data, options.data_root),
        source=_source(options),
        notes=(*data.notes, *_unused(data)),
    )


def _plan(
    options: argparse.Namespace,
    tree: Mapping[str, Any],
    words: Mapping[str, Any],
    encoder: str,
    preset: str,
    task: Any,
    dataset: str | None,
    *,
    check_readout: bool = True,
) -> Plan:
    settings = merge(load_preset(encoder, preset, task, dataset), tree, words)
    if not check_readout:  # the task is not known yet, and with it the readout
        settings.pop("readout", None)
    return Plan.from_tree(
        settings,
        task=task,
        encoder=encoder,
        preset=preset,
        split=str(options.split if options.split is not None else 0),
        folds=options.folds or 10,
    )


def _apply_run_keys(options: argparse.Namespace, tree: dict[str, Any]) -> None:
    """Move what a settings file says about data and run into flags that were not given."""
    flags = {"encoder": "model", **{key: key for key in RUN_KEYS if key != "encoder"}}
    for key, flag in flags.items():
        value = tree.pop(key, None)
        if value is not None and getattr(options, flag) is None:
            setattr(options, flag, _run_value(key, value))
    apply_source(options, tree.pop("data", None))


def _run_value(key: str, value: Any) -> Any:
    if key == "folds":
        require_positive(key, value)
    elif not isinstance(value, str) and not (key == "split" and type(value) is int):
        raise ConfigError(f"Expected '{key}' to be text (got {value!r}).")
    if key == "task":  # which also names a preset's file
        require_option(key, value, get_args(TaskKind))
    return value


def apply_source(options: argparse.Namespace, data: Any) -> None:
    """Take what a settings file says below ``data`` for flags that were not given.

    Once a flag names a source, what the file says about another one is left aside.

    Raises:
        ConfigError: For a key that is not a flag, naming the nearest, or a value it cannot have.
    """
    if not isinstance(data or {}, Mapping):
        raise ConfigError(f"Expected 'data' to be a section of settings (got {data!r}).")
    given = names_source(options)
    for key, value in (data or {}).items():
        if key not in SOURCE_FLAGS:
            raise ConfigError(f"Unknown setting 'data.{key}'. " + nearest(str(key), SOURCE_FLAGS))
        if value is not None:
            value = _source_value(key, value)
            if not given and not getattr(options, key, None):
                setattr(options, key, value)


def names_source(options: argparse.Namespace) -> bool:
    """Return whether a flag names the data."""
    return any(getattr(options, name) is not None for name in SOURCES)


def _source_value(key: str, value: Any) -> Any:
    kind = SOURCE_FLAGS[key]
    wanted = {list: "a list of columns", bool: "true or false"}.get(kind, "text")
    if not isinstance(value, str if kind is Path else kind):
        raise ConfigError(f"Expected 'data.{key}' to be {wanted} (got {value!r}).")
    return Path(str(value)) if kind is Path else value


def _source(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that name the data; paths made absolute, to be found again."""
    found: dict[str, Any] = {}
    for name in SOURCE_FLAGS:
        value = getattr(options, name, None)
        if value:
            found[name] = str(value.resolve()) if isinstance(value, Path) else value
    return found


def _unused(data: NodeGraph | GraphSet) -> list[str]:
    """Say what the data have and no encoder reads."""
    if isinstance(data, GraphSet) and data.graphs and data.graphs[0].edge_attr is not None:
        return ["Edge features (bonds) are there and not used: the paper's model has none."]
    return []

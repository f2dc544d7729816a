"""Methods by name: registered beside their class, found by entry point or from a plugin file.

A package offers methods through the entry-point group ``geof.methods``: the entry's name is the
method's, its value the module whose import registers it. A single file does the same through
``--plugin FILE.py``. Nothing is imported before a method is asked for.

Presets are options that travel with a method as files, ``PRESET/TASK.yaml``. A file has a section
``all`` and one per dataset, laid over it. Every value stands with its reason.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import nn

from geof.errors import ConfigError, DataError, nearest
from geof.io import Tree, merge, read_yaml
from geof.methods.interface import GIVEN, Choice, DataFacts, TaskKind
from geof.nn.readout import GraphReadout, LinkReadout, NodeReadout
from geof.options import arguments, require_known, require_option
from geof.plugins import INSTALL_PAPER, METHODS, PAPER_METHODS, entry_points

OWN = {"geof": "geof.methods.geof", "gcn": "geof.methods.gcn"}
"""The library's own methods and the modules that register them."""


@dataclass(frozen=True)
class Method:
    """What is trained, and how to build it.

    Attributes:
        name: What ``--method`` calls it.
        build: Takes those of :data:`~geof.methods.interface.GIVEN` it names, and options; returns a
            module that keeps the interface of :mod:`geof.methods.interface`.
        documented: What has the options as keyword arguments with defaults, if not ``build``.
        readouts: The method's own readouts by task. They are built with ``in_channels``,
            ``num_classes`` and ``feature_channels`` (if they name them) and options, and are called
            with the :class:`~geof.methods.interface.Encoding`, the inputs and the pairs.
        presets: Folder of the presets that travel with it, ``PRESET/TASK.yaml``.
        choose: Returns the options that follow from the data, with reasons, for the preset
            ``auto``.
        revision: Raised when its numbers change: recorded runs of an earlier one are stale.
    """

    name: str
    build: Callable[..., nn.Module]
    documented: Callable[..., object] | None = None
    readouts: Mapping[TaskKind, Callable[..., nn.Module]] = field(default_factory=dict)
    presets: Path | None = None
    choose: Callable[[DataFacts], list[Choice]] | None = None
    revision: int = 1


READOUTS: dict[TaskKind, Callable[..., nn.Module]] = {
    "node": NodeReadout,
    "link": LinkReadout,
    "graph": GraphReadout,
}
"""The readouts all methods share, by task."""

READOUT_KINDS = ("own", "shared")
"""Values of ``readout.kind``, which methods with a readout of their own have."""

_METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Make a method known by its name.

    Raises:
        ConfigError: If another one has the name.
    """
    before = _METHODS.get(method.name)
    if before is not None and not _same_place(before.build, method.build):
        raise ConfigError(
            f"Expected a new name for a method (got {method.name!r}, which "
            f"{before.build.__module__} has registered). Choose another one."
        )
    _METHODS[method.name] = method
    return method


def unregister(name: str) -> None:
    """Forget a method."""
    _METHODS.pop(name, None)


def method_names() -> list[str]:
    """Return the names of all methods that can be had here, the library's own first."""
    return list(dict.fromkeys([*OWN, *_entry_points(), *_METHODS]))


def get_method(name: str) -> Method:
    """Return a method by name, importing what registers it.

    Raises:
        ConfigError: If there is none, naming the nearest, or its module does not register it.
    """
    if name in _METHODS:
        return _METHODS[name]
    if name in OWN:
        importlib.import_module(OWN[name])
    elif name in _entry_points():
        _load(_entry_points()[name])
    elif name in PAPER_METHODS:
        raise ConfigError(
            f"Expected an installed method (got {name!r}, which is part of geof-paper). Install it "
            f"with: {INSTALL_PAPER}"
        )
    else:
        raise ConfigError(
            f"Expected a known method (got {name!r}). {nearest(name, method_names())} For a method "
            "of your own pass --plugin FILE.py."
        )
    if name not in _METHODS:
        raise ConfigError(
            f"Expected the module of method {name!r} to register it, with "
            "geof.methods.register(Method(...)), and it did not."
        )
    return _METHODS[name]


def load_plugin(path: Path) -> list[str]:
    """Import a Python file that registers methods; return the names of those it added.

    Raises:
        DataError: If the file is not there.
        ConfigError: If it cannot be imported, or registers nothing.
    """
    if not path.is_file():
        raise DataError(f"Expected a Python file at '{path}' for '--plugin' (there is none).")
    name = f"geof_plugin_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"Expected '--plugin' to be a file that ends in .py (got '{path}').")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and inspect look it up there
    try:
        module_spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"Expected to import '{path}' ({type(error).__name__}: {error})."
        ) from error
    added = [n for n, method in _METHODS.items() if method.build.__module__ == name]
    if not added:
        raise ConfigError(
            f"Expected '{path}' to register a method, with geof.methods.register(Method(...))."
        )
    return added


def method_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of a method, given or by default.

    Raises:
        ConfigError: For a method or an option that does not exist, naming the nearest.
    """
    method = get_method(name)
    return _with_defaults("options", method.documented or method.build, options)


def readout_options(name: str, task: TaskKind, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of the readout of a method for a task, given or by default.

    Raises:
        ConfigError: For an option it does not have, naming the nearest.
    """
    method = get_method(name)
    if task not in method.readouts:
        return _with_defaults("readout", READOUTS[task], options)
    kind = options.get("kind", "own")
    require_option("readout.kind", kind, READOUT_KINDS)
    return _with_defaults("readout", readout_of(method, task, kind), options, kind="own")


def readout_of(method: Method, task: TaskKind, kind: str) -> Callable[..., nn.Module]:
    """Return what builds a readout: the method's own, or the one all methods share."""
    return method.readouts[task] if kind == "own" else READOUTS[task]


def _with_defaults(
    section: str, documented: Callable[..., object], options: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Return all options of a class, those given checked against its annotations."""
    own = {name: option for name, option in arguments(documented).items() if name not in GIVEN}
    require_known(options, [*more, *own], f"{section}.")
    complete = more | {name: option.default for name, option in own.items()}
    given = {
        name: own[name].check(value, f"{section}.") if name in own else value
        for name, value in options.items()
    }
    return {**complete, **given}


@cache
def _entry_points() -> dict[str, metadata.EntryPoint]:
    return entry_points(METHODS)


def _load(entry: metadata.EntryPoint) -> None:
    try:
        entry.load()
    except Exception as error:
        raise ConfigError(
            f"Expected to import method {entry.name!r} from '{entry.value}' "
            f"({type(error).__name__}: {error}). Reinstall the package that brings it."
        ) from error


def _same_place(one: Callable[..., object], other: Callable[..., object]) -> bool:
    """Return whether two builders are the same, imported twice perhaps."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


AUTO = "auto"
"""The preset whose values a method lays over by the data; see :attr:`Method.choose`."""

NONE = "none"
"""The preset that sets nothing: every option has the default of its code."""


def preset_names(method: str, task: str | None = None) -> list[str]:
    """Return the presets of a method, ``"none"`` last.

    Args:
        method: Whose presets.
        task: Only those with a file for this task; all where none has one.

    Raises:
        ConfigError: If there is no such method.
    """
    folder = get_method(method).presets
    there = folder is not None and folder.is_dir()
    paths = [path for path in folder.iterdir() if path.is_dir()] if folder and there else []
    fitting = [path for path in paths if (path / f"{task}.yaml").is_file()]
    return [*sorted(path.name for path in fitting or paths), NONE]


def default_preset(method: str, task: str | None = None, *, own_data: bool = False) -> str:
    """Return the preset of a method when none is named, for a task if one is given.

    For data of one's own that is the one that chooses by the data, if the method has it; otherwise
    the tuned one if it ships, then the published one, or its own.

    >>> default_preset("geof"), default_preset("geof", own_data=True), default_preset("gcn")
    ('tuned', 'auto', 'plain')
    """
    names = preset_names(method, task)
    if own_data and get_method(method).choose is not None and AUTO in names:
        return AUTO
    return next((name for name in ("tuned", "published") if name in names), names[0])


def load_preset(method: str, preset: str, task: str, dataset: str | None = None) -> Tree:
    """Return the options of a preset for a task and a dataset.

    Args:
        method: Whose preset.
        preset: Its name.
        task: ``"node"``, ``"link"`` or ``"graph"``.
        dataset: A benchmark; ``None``, or one the file has no section of, gets what all share.

    Raises:
        ConfigError: If there is no such preset, naming the nearest, or only others have options for
            the task.
    """
    sections = _sections_of(method, preset, task)
    return deepcopy(merge(sections.get("all") or {}, sections.get(dataset or "") or {}))


def preset_datasets(method: str, preset: str, task: str) -> list[str]:
    """Return the datasets a preset has options of their own for."""
    return [name for name in _sections_of(method, preset, task) if name != "all"]


def _sections_of(method: str, preset: str, task: str) -> Tree:
    if preset == NONE:
        return {}
    names = preset_names(method)
    if preset not in names:
        raise ConfigError(
            f"Expected a preset of '{method}' (got {preset!r}). " + nearest(preset, names)
        )
    fitting = preset_names(method, task)
    if preset not in fitting:
        raise ConfigError(
            f"Expected a preset of '{method}' with options for the {task} task (got {preset!r}, "
            f"which has none). Valid: {', '.join(map(repr, fitting))}."
        )
    folder = get_method(method).presets
    assert folder is not None  # or it would have no names
    file = folder / preset / f"{task}.yaml"
    return _sections(file, file.stat().st_mtime_ns) if file.is_file() else {}


@cache
def _sections(path: Path, changed: int) -> Tree:
    """Return a preset's file, read once as long as it stays as it is."""
    return read_yaml(path)

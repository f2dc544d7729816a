"""Presets: options that travel with a method as files, ``PRESET/TASK.yaml``.

A file has a section ``all`` and one per dataset, laid over it. Every value stands with its reason.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path

from geof.errors import ConfigError, nearest
from geof.io import Tree, merge, read_yaml
from geof.methods.registry import get_method

NONE = "none"
"""The preset that sets nothing: every option has the default of its code."""


def preset_names(method: str) -> list[str]:
    """Return the presets of a method, ``"none"`` last.

    Raises:
        ConfigError: If there is no such method.
    """
    folder = get_method(method).presets
    there = folder is not None and folder.is_dir()
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder and there else []
    return [*sorted(names), NONE]


def default_preset(method: str) -> str:
    """Return the preset of a method when none is named: the tuned one if it ships, or its own.

    >>> default_preset("geof"), default_preset("gcn")
    ('tuned', 'plain')
    """
    names = preset_names(method)
    return "tuned" if "tuned" in names else names[0]


def load_preset(method: str, preset: str, task: str, dataset: str | None = None) -> Tree:
    """Return the options of a preset for a task and a dataset.

    Args:
        method: Whose preset.
        preset: Its name.
        task: ``"node"``, ``"link"`` or ``"graph"``.
        dataset: A benchmark; ``None``, or one the file has no section of, gets what all share.

    Raises:
        ConfigError: If there is no such preset, naming the nearest.
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
    folder = get_method(method).presets
    assert folder is not None  # or it would have no names
    return _sections(folder / preset / f"{task}.yaml")


@cache
def _sections(path: Path) -> Tree:
    """Return a preset's file, read once; nothing where it has none for the task."""
    return read_yaml(path) if path.is_file() else {}

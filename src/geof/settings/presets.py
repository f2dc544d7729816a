"""Presets: settings that ship as files, ``presets/ENCODER/PRESET/TASK.yaml``.

A file has a section ``all`` and one per dataset, laid over it. Every value stands with its reason.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from importlib import resources
from pathlib import Path

from geof.errors import ConfigError, nearest
from geof.settings.files import Tree, merge, read_settings

NONE = "none"
"""The preset that sets nothing: every setting has the default of its code."""


def preset_folder() -> Path:
    """Return where the presets are."""
    with resources.as_file(resources.files("geof.settings") / "presets") as folder:
        return folder


def preset_names(encoder: str) -> list[str]:
    """Return the presets of an encoder, ``"none"`` last."""
    folder = preset_folder() / encoder
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return [*sorted(names), NONE]


def default_preset(encoder: str) -> str:
    """Return the preset of an encoder when none is named: the tuned one if it ships, or its own.

    >>> default_preset("geof"), default_preset("gcn"), default_preset("hgcn")
    ('tuned', 'plain', 'published')
    """
    names = preset_names(encoder)
    return "tuned" if "tuned" in names else names[0]


def load_preset(encoder: str, preset: str, task: str, dataset: str | None = None) -> Tree:
    """Return the settings of a preset for a task and a dataset.

    Args:
        encoder: Whose preset.
        preset: Its name.
        task: ``"node"``, ``"link"`` or ``"graph"``.
        dataset: A benchmark; ``None``, or one the file has no section of, gets what all share.

    Raises:
        ConfigError: If there is no such preset, naming the nearest.
    """
    if preset == NONE:
        return {}
    names = preset_names(encoder)
    if preset not in names:
        raise ConfigError(
            f"Expected a preset of '{encoder}' (got {preset!r}). " + nearest(preset, names)
        )
    sections = _sections(encoder, preset, task)
    return deepcopy(merge(sections.get("all") or {}, sections.get(dataset or "") or {}))


def preset_datasets(encoder: str, preset: str, task: str) -> list[str]:
    """Return the datasets a preset has settings of their own for."""
    sections = _sections(encoder, preset, task)
    return [name for name in sections if name != "all"]


@cache
def _sections(encoder: str, preset: str, task: str) -> Tree:
    """Return a preset's file, read once: a grid asks for it thousands of times."""
    return read_settings(preset_folder() / encoder / preset / f"{task}.yaml")

"""A run's folder: one process at a time, one configuration, found again after any interruption."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from geof.errors import ConfigError, DataError
from geof.io import write_json

LOCK = ".lock"
_TEMPORARY = re.compile(r"\..+\.(?:json|jsonl|npz|yaml|safetensors|new)\.\w+")
_NOT_COMPARED = ("versions", "changes")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other process out of a run folder; the system lets go when this one dies.

    Raises:
        DataError: If another process holds it.
    """
    _require_run_or_room(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"Expected to make the folder '{folder}', but {error.strerror or error}. Name another."
        ) from error
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise DataError(
            f"Expected nobody else to write '{folder}', but another run is at work there. Wait for "
            "it or name another folder."
        ) from error
    try:
        _sweep(folder)
        yield
    finally:
        lock.release()


def _sweep(folder: Path) -> None:
    """Remove what a killed process was writing: temporary names of files of ours."""
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def settle_config(folder: Path, config: Mapping[str, Any], *, allow_changes: bool) -> list[str]:
    """Write ``config.json``, or check that the one there says the same.

    Args:
        folder: The run folder, locked.
        config: What is about to be run.
        allow_changes: Whether settings below ``training`` may differ.

    Returns:
        What a user should know.

    Raises:
        ConfigError: Naming every setting that differs and may not.
        DataError: If the one there cannot be read.
    """
    path = folder / "config.json"
    if not path.exists():
        write_json(path, config)
        return []
    before = read_config(folder)
    wanted = json.loads(json.dumps(config))
    differences = _differences(_compared(before), _compared(wanted))
    notes = []
    if differences:
        fixed = [name for name in differences if not name.startswith("training.")]
        listed = "; ".join(
            f"{name}: {old} there, {new} now" for name, (old, new) in _few(differences)
        )
        finished = (folder / "result.json").exists()  # its files say how it was made
        if fixed or finished or not allow_changes:
            raise ConfigError(
                f"Expected the settings that '{folder}' was begun with ({listed}). "
                + (
                    "Go back to them or name another folder."
                    if fixed or finished
                    else "Go back to them, name another folder, or pass --allow-changes to go on "
                    "with the new ones."
                )
            )
        changes = [*before.get("changes", []), {n: list(pair) for n, pair in differences.items()}]
        write_json(path, {**wanted, "changes": changes})
        notes.append(f"Settings changed on the way: {listed}.")
    if before.get("versions") != wanted.get("versions"):
        notes.append("Other versions than at the start: the last bits may differ.")
    return notes


def read_config(folder: Path) -> dict[str, Any]:
    """Return a run folder's ``config.json``.

    Raises:
        DataError: If there is none or it is damaged.
    """
    return _read_json(folder / "config.json")


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return a run folder's ``result.json``, ``None`` while the run is not finished.

    Raises:
        DataError: If it is damaged.
    """
    path = folder / "result.json"
    return _read_json(path) if path.exists() else None


def _require_run_or_room(folder: Path) -> None:
    """Refuse a folder that holds something else, before anything is written into it."""
    if not folder.exists() or (folder / "config.json").exists():
        return
    held = [] if not folder.is_dir() else [e.name for e in folder.iterdir() if e.name != LOCK]
    # Files still being written when a run was killed begin with a dot.
    held = [name for name in held if not name.startswith(".")]
    if held or not folder.is_dir():
        raise DataError(
            f"Expected '{folder}' to be a new or empty folder, or a run to go on with (got "
            f"{', '.join(sorted(held)[:3]) or 'a file'}). Name another one."
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(
            f"Expected a run folder of 'geof train' at '{path.parent}' ({error}). Check the path."
        ) from error
    return content


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in _NOT_COMPARED}


def _differences(before: Any, now: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in sorted(before.keys() | now.keys()):
            place = f"{name}.{key}" if name else key
            found |= _differences(before.get(key), now.get(key), place)
        return found
    return {} if before == now else {name: (before, now)}


def _few(differences: Mapping[str, tuple[Any, Any]]) -> list[tuple[str, tuple[Any, Any]]]:
    return list(differences.items())[:6]

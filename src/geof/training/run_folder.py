"""A run's folder: one process at a time, one configuration, found again after any interruption."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from filelock import FileLock, Timeout

from geof.data.catalogue import CATALOGUE
from geof.data.columns import Schema
from geof.data.sources import notes_of
from geof.errors import ConfigError, DataError, FolderLockedError
from geof.io import write_json
from geof.training.config import RunConfig
from geof.training.metrics import metric_named
from geof.training.stages import UNDECISIVE
from geof.training.tasks import Task
from geof.version import __version__

CHECKPOINT = "checkpoint.safetensors"
LOCK = ".lock"
FORMAT = 2
"""Of ``config.json`` and the checkpoint's header; :func:`upgraded` reads the one before."""

_TEMPORARY = re.compile(r"\..+\.(?:json|jsonl|npz|yaml|safetensors|new)\.\w+")


@contextmanager
def locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Keep every other process out of a run folder; the system lets go when this one dies.

    Yields:
        What raises ``DataError`` if the folder is no longer there, which is asked at the end, too.

    Raises:
        FolderLockedError: If another process holds it.
        DataError: If something else is there, or it cannot be written to.
    """
    try:
        _require_run_or_room(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
        held = (folder / LOCK).stat()
    except Timeout as error:
        raise FolderLockedError(
            f"Expected nobody else to write '{folder}', but another run is at work there. Wait for "
            "it or name another folder."
        ) from error
    except (OSError, NotImplementedError) as error:  # the latter: no locks on this file system
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"Expected to make the folder '{folder}' and to lock it, but {reason}. Name another."
        ) from error

    def require_it() -> None:
        with suppress(OSError):
            there = (folder / LOCK).stat()
            if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
                return
        raise DataError(
            f"Expected '{folder}' to stay while the run works, but it was removed or replaced: "
            "what was saved is gone. Run the command again."
        )

    try:
        _sweep(folder)
        yield require_it
        require_it()
    finally:
        lock.release()


def _sweep(folder: Path) -> None:
    """Remove what a killed process was writing: temporary names of files of ours."""
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def describe(config: RunConfig, task: Task, schema: Schema | None = None) -> dict[str, Any]:
    """Return what ``config.json`` and a checkpoint's header hold: the config and what it met.

    Args:
        config: What was asked for.
        task: What it was asked of.
        schema: What a table of nodes went through.
    """
    data = task.data
    return {
        "format": FORMAT,
        "run": config.to_dict(),
        "revision": config.revision,
        "seed": config.seed,
        "dataset": task.dataset,
        "content_hash": data.content_hash,
        "notes": list(notes_of(data)),
        "class_names": list(data.class_names),
        "split": task.split_name,
        "split_hash": task.split_hash,
        "shape": asdict(task.shape),
        "signature": task.signature.describe(),
        "protocol": task.record(),
        "selection": metric_named(task.metric).selection,
        **({} if task.objective is None else task.objective.record()),
        **({} if schema is None else {"schema": json.loads(schema.to_json())}),
        "versions": {
            "geof": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torch_geometric": torch_geometric.__version__,
        },
    }


def upgraded(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description in the present format.

    Raises:
        KeyError: If it is neither this format nor the one before.
    """
    if about.get("format") == FORMAT:
        for section in (about["run"], about["run"]["training"]):
            if not isinstance(section, Mapping):
                raise TypeError(f"expected a section, got {section!r}")
        return dict(about)
    network, stored = about["network"], about.get("data") or {}
    shape = ("in_channels", "signature_channels", "num_classes", "num_nodes", "num_edges")
    signature = about["signature"]
    names = ("walk_length", "degree", "method", "probes", "seed")
    columns = {n: v for n, v in (about.get("columns") or {}).items() if v is not None}
    dataset = {"dataset": about["dataset"]} if about["dataset"] in CATALOGUE else {}
    run = {
        "method": network["encoder"],
        "task": network["task"],
        "preset": about.get("preset", "none"),
        "data": columns or dataset,
        "options": network["options"],
        "readout": network.get("readout") or {},
        "training": {n: v for n, v in about.get("training", {}).items() if v is not None},
        "pretraining": about.get("pretraining") or {},
        "signature": {n: signature[n] for n in names if signature.get(n) is not None},
        "read_test": about.get("read_test", True),
    }
    protocol = ("leak_checked", "batch_size", "fanouts", "order_seed", "hidden_edges")
    return {
        **{name: about[name] for name in _ASIDE if name in about},
        "run": run,
        "seed": about.get("training", {}).get("seed", 0),
        "content_hash": stored.get("content_hash"),
        "notes": stored.get("notes", []),
        "class_names": about.get("class_names"),
        "shape": {name: network.get(name) for name in shape},
        "protocol": {name: about[name] for name in protocol if name in about},
    }


_ASIDE = (
    *("dataset", "split", "split_hash", "signature", "selection", "schema", "versions", "changes"),
    *("epoch", "validation"),
)
"""What stood at the same place in the format before."""


def settle_config(folder: Path, config: Mapping[str, Any], *, allow_changes: bool) -> list[str]:
    """Write ``config.json``, or check that the one there says the same.

    Args:
        folder: The run folder, locked.
        config: What is about to be run.
        allow_changes: Whether training options may differ.

    Returns:
        What a user should know.

    Raises:
        ConfigError: Naming every option that differs and may not.
        DataError: If the one there cannot be read.
    """
    path = folder / "config.json"
    if not path.exists():
        write_json(path, config)
        return []
    before = read_config(folder)
    wanted = json.loads(json.dumps(config))
    differences = _differences(*_compared(before, wanted))
    notes = []
    if differences:
        fixed = [name for name in differences if not name.startswith("training.")]
        listed = "; ".join(
            f"{name}: {old} there, {new} now" for name, (old, new) in _few(differences)
        )
        finished = (folder / "result.json").exists()  # its files say how it was made
        if fixed or finished or not allow_changes:
            raise ConfigError(
                f"Expected the options that '{folder}' was begun with ({listed}). "
                + (
                    "Go back to them or name another folder."
                    if fixed or finished
                    else "Go back to them, name another folder, or pass --allow-changes to go on "
                    "with the new ones."
                )
            )
        changes = [*before.get("changes", []), {n: list(pair) for n, pair in differences.items()}]
        write_json(path, {**wanted, "changes": changes})
        notes.append(f"Options changed on the way: {listed}.")
    if before.get("versions") != wanted.get("versions"):
        notes.append("Other versions than at the start: the last bits may differ.")
    begun, now = before.get("processes", 1), wanted.get("processes", 1)
    if begun != now:
        notes.append(
            f"Begun in {begun} {'process' if begun == 1 else 'processes'}, going on in {now}: the "
            "last bits may differ, and dropout draws other entries."
        )
    return notes


def disagreement(
    first: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, tuple[Any, Any]]]:
    """Return in what two descriptions of a run differ that processes must agree on, a few of it.

    Versions are among it: what is computed in part here and in part there must be the same thing.
    """
    differences = _differences(*_compared(first, other))
    differences |= _differences(first["versions"], other["versions"], "versions")
    return _few(differences)


def read_config(folder: Path) -> dict[str, Any]:
    """Return a run folder's ``config.json``, in the present format.

    Raises:
        DataError: If there is none or it is damaged.
    """
    path = folder / "config.json"
    try:
        return upgraded(_read_json(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"Expected '{path}' to describe a run ({type(error).__name__}: {error})."
        ) from error


def read_result(folder: Path, *, whole: bool = False) -> dict[str, Any] | None:
    """Return a run folder's ``result.json``, ``None`` while the run is not finished.

    Args:
        folder: The run folder.
        whole: Whether every entry that a page shows must be there.

    Raises:
        DataError: If it is damaged.
    """
    path = folder / "result.json"
    if not path.exists():
        return None
    result = _read_json(path)
    if "model" in result:  # as it was called before
        result["method"] = result.pop("model")
    _require_entries(path, result, whole)
    return result


_NUMBER = (int, float)
_ENTRIES: dict[str, Any] = {
    **dict.fromkeys(("dataset", "task", "method", "metric"), str),
    **dict.fromkeys(("best_epoch", "epochs", "parameters"), int),
    **dict.fromkeys(("validation", "seconds_per_epoch", "peak_rss_bytes"), _NUMBER),
    "test": (*_NUMBER, type(None)),
    "metrics": dict,
}


def _require_entries(path: Path, result: Mapping[str, Any], whole: bool) -> None:
    """Refuse a result whose entries are not what everyone who reads one takes them for."""
    wanted = _ENTRIES if whole else result.keys() & _ENTRIES
    wrong = [n for n in wanted if n not in result or not isinstance(result[n], _ENTRIES[n])]
    if not wrong:
        metrics = result.get("metrics", {})
        wrong = [f"metrics.{n}" for n, v in metrics.items() if not isinstance(v, _NUMBER)]
    if wrong:
        raise DataError(
            f"Expected '{path}' as 'geof train' writes it, but {', '.join(sorted(wrong))} cannot "
            "be read. It was damaged or changed: use a copy, or train again into another folder."
        )


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
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"Expected a run folder of 'geof train' at '{path.parent}' ({error}). Check the path."
        ) from error
    if not isinstance(content, dict):
        raise DataError(
            f"Expected a run folder of 'geof train' at '{path.parent}' ('{path.name}' holds a "
            f"{type(content).__name__}). Check the path."
        )
    return content


def _compared(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what must agree for a run to go on: what decides its numbers.

    Files may have moved, since the content decides, and a run may move to another device. Seeds
    are compared as they take effect.
    """
    names = ["method", "preset", "task", "options", "readout", "training", "pretraining"]
    names += ["read_test"]
    facts = ["seed", "dataset", "content_hash", "class_names", "split", "split_hash"]
    facts += ["signature", "protocol"]
    both = []
    for about in (before, now):
        run = about["run"]
        kept = {name: run.get(name) for name in names}
        apart = ("seed", *UNDECISIVE)
        kept["training"] = {n: v for n, v in run["training"].items() if n not in apart}
        both.append({**kept, **{name: about.get(name) for name in facts}})
    if "format" not in before:  # which had these beside the protocol only
        for name in ("batch_size", "fanouts", "hidden_edges"):
            both[1]["training"].pop(name, None)
        both[1]["pretraining"] = both[0]["pretraining"] = None
    return both[0], both[1]


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

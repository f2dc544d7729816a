"""Prepared data on disk, under a key made of everything it was computed from.

An entry is a folder with ``tensors.safetensors`` and ``entry.json``; there is no pickle in it. It
is written under a temporary name and renamed, so a reader finds a whole entry or none, and of two
processes that build the same one the first wins. An entry of another format version or with a byte
out of place is built again, never read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from geof.data.files import file_digest
from geof.errors import DataError
from geof.io import read_json, temporary_folder

FORMAT_VERSION = 1
"""Raised whenever the layout of an entry changes."""

_TENSORS, _INDEX = "tensors.safetensors", "entry.json"
_TEMPORARY = ".new-"
_UNHELD = ".tmp-"
"""As earlier versions named what they wrote, without holding it."""
_ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Entry:
    """What is stored under one key.

    Attributes:
        tensors: Strided tensors by name. They come back mapped from the file, copy-on-write.
        metadata: Anything JSON can hold.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, Any] = field(default_factory=dict)


def cache_folder() -> Path:
    """Return ``GEOF_CACHE``, or ``geof`` in the platform's folder for caches."""
    if chosen := os.environ.get("GEOF_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "geof"
    variable, fallback = ("XDG_CACHE_HOME", Path.home() / ".cache")
    if sys.platform == "win32":
        variable, fallback = ("LOCALAPPDATA", Path.home() / "AppData" / "Local")
    return Path(os.environ.get(variable) or fallback) / "geof"


def cache_key(sources: Mapping[str, str], version: int, options: Mapping[str, Any]) -> str:
    """Return the key of what ``version`` of a computation makes of ``sources``.

    Args:
        sources: Digest of every input by name.
        version: Raised by the author of the computation whenever its result changes.
        options: Everything else the result depends on; JSON values.
    """
    parts = {"sources": dict(sources), "version": version, "options": dict(options)}
    return _json_digest(parts)[:32]


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return 16 hexadecimal digits that change with any name, dtype, shape or value."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def load_or_build(
    kind: str, key: str, build: Callable[[], Entry], folder: Path | None = None
) -> Entry:
    """Return the entry ``kind/key``, building and publishing it where there is no sound one.

    Args:
        kind: Name of the subfolder, for people who look into the cache.
        key: From :func:`cache_key`.
        build: Makes the entry; called only where needed.
        folder: The cache (default: :func:`cache_folder`).

    Raises:
        DataError: If the cache cannot be written to. It is left as it was.
    """
    place = (folder or cache_folder()) / kind / key
    found = read_entry(place)
    if found is not None:
        return found
    built = build()
    publish(place, built)
    return built


def read_entry(place: Path) -> Entry | None:
    """Return the entry in the folder ``place``; ``None`` for none, an old or a damaged one."""
    try:
        index = read_json(place / _INDEX, "the index of a cache entry")
        if index["format_version"] != FORMAT_VERSION:
            return None
        if index["metadata_sha256"] != _json_digest(index["metadata"]):
            return None
        if index["tensors_sha256"] != file_digest(place / _TENSORS):
            return None
        return Entry(load_file(place / _TENSORS), index["metadata"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def publish(place: Path, entry: Entry) -> None:
    """Make ``entry`` appear in the folder ``place``, whole.

    A sound entry already there stays; any other is replaced.

    Raises:
        DataError: If the cache cannot be written to. It is left as it was.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place.parent)
        with temporary_folder(place.parent, _TEMPORARY) as temporary:
            _write(temporary, entry)
            _move_into_place(temporary, place)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"Expected to write '{place}', but {reason}. Free some space there, point GEOF_CACHE "
            "at a folder you may write to, or load with cache=False."
        ) from error


def _write(folder: Path, entry: Entry) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in entry.tensors.items()}
    save_file(tensors, folder / _TENSORS)
    index = {
        "format_version": FORMAT_VERSION,
        "tensors_sha256": file_digest(folder / _TENSORS),
        "metadata_sha256": _json_digest(entry.metadata),
        "metadata": entry.metadata,
    }
    text = json.dumps(index, indent=2, sort_keys=True, allow_nan=False)
    (folder / _INDEX).write_text(text + "\n", encoding="utf-8")
    for name in (_TENSORS, _INDEX):
        with (folder / name).open("rb+") as file:
            os.fsync(file.fileno())


def _move_into_place(temporary: Path, place: Path, attempts: int = 10) -> None:
    """Rename; where another process was first, keep its entry if it is sound."""
    for attempt in range(attempts):
        try:
            os.rename(temporary, place)
            return
        except OSError:
            if read_entry(place) is not None:
                return
            # Another process may be repairing the same entry: then try again.
            if not place.exists() and attempt == attempts - 1:
                raise
            _set_aside(place)


def _set_aside(place: Path) -> None:
    """Remove what is at ``place`` in one step for those who look."""
    with temporary_folder(place.parent, _TEMPORARY) as aside, suppress(FileNotFoundError):
        os.rename(place, aside / "old")


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes of earlier versions, killed while writing, have left a day ago."""
    for path in folder.glob(f"{_UNHELD}*"):
        try:
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue


def _json_digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

"""Files written to a temporary name and renamed, and JSON files read with their faults named."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from geof.errors import DataError


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` so that ``path`` holds either the old bytes or all of the new ones.

    Raises:
        DataError: If the folder cannot be written to; nothing is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(
            f"Expected to write '{path}', but {error.strerror or error}. Check the path, the "
            "permissions and the free space."
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically."""
    text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")


def read_json(path: Path, expected: str, kind: type = dict) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        expected: What it should be, for the message: ``"a results file"``.
        kind: Type of the whole content: ``dict`` or ``list``.

    Raises:
        DataError: If the file is missing, unreadable, not JSON, nested too deeply to be read, or
            its content of another type.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, kind):
            raise TypeError(f"got a {type(content).__name__} instead of a {kind.__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"Expected {expected} at '{path}' ({reason}). Check the path, or make the file again."
        ) from error
    return content

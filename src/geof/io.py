"""Files written to a temporary name and renamed, so that a reader never sees half of one."""

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

"""Processes that tests start: found again by a mark in their environment, waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def marked(mark: str) -> list[int]:
    """Return the processes whose environment has a mark, ``NAME=VALUE``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("nothing happened")

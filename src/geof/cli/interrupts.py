"""Ctrl-C that saves: the first asks a run to stop after its epoch, the second stops at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield what tells whether Ctrl-C was pressed or the process was asked to end."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print(
            "geof: finishing this epoch, then saving; once more to stop at once and go back to the "
            "last saved epoch",
            file=sys.stderr,
            flush=True,
        )

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

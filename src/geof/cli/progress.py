"""What happens while a command trains: progress shown, and Ctrl-C that saves.

Progress is live on a terminal, plain lines elsewhere, and silent on request.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

    from geof.training import EpochReport

PLAIN_SECONDS = 15.0
"""Time from one plain line to the next."""


class Meter(Protocol):
    """Receives what happens during a run."""

    def start(self, title: str) -> None:
        """Say what is beginning."""

    def epoch(self, report: EpochReport) -> None:
        """Show an epoch."""


@contextmanager
def training_meter(
    console: Console,
    total: int,
    *,
    quiet: bool,
    shown: Callable[[float, int], str] = "{:.{}f} %".format,
) -> Iterator[Meter]:
    """Show epochs on a bar when on a terminal; otherwise print a line now and then.

    Args:
        console: Where to.
        total: Number of epochs in all.
        quiet: Show nothing.
        shown: How to write a metric with so many digits.
    """
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    live = console.is_terminal and not quiet
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not live,
    )
    bar = progress.add_task("starting", total=total, status="")

    class _Meter:
        def __init__(self) -> None:
            self.began = self.spoke = time.monotonic()
            self.before = 0  # epochs of the runs before this one
            self.done = 0  # of all, those of an earlier process among them
            self.seen = 0  # here

        def start(self, title: str) -> None:
            self.before = self.done
            progress.update(bar, description=title)
            if not live and not quiet:
                console.print(title, highlight=False, soft_wrap=True)

        def epoch(self, report: EpochReport) -> None:
            self.done, self.seen = self.before + report.epoch, self.seen + 1
            status = f"epoch {report.epoch}, loss {report.loss:.3f}"
            if report.validation is not None:
                status += f", validation {shown(report.validation, 1)}"
            if live:
                progress.update(bar, completed=self.done, status=status)
            elif not quiet:
                self._plain(status)

        def _plain(self, status: str) -> None:
            now = time.monotonic()
            if now - self.spoke < PLAIN_SECONDS:
                return
            left = (now - self.began) / self.seen * (total - self.done)
            console.print(f"{status}, {_clock(left)} left", highlight=False, soft_wrap=True)
            self.spoke = now

    with progress:
        yield _Meter()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes}:{rest:02d}"
        if minutes < 60
        else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    )


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

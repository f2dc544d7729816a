"""What happens while a command trains: progress shown, and Ctrl-C that saves.

Progress is live on a terminal, plain lines elsewhere, and silent on request.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from geof.progress import LONG, Listener, clock, listening

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from geof.training import EpochReport

PLAIN_SECONDS = 15.0
"""Time from one plain line to the next."""

SURE_SECONDS = 5.0
"""Batches are watched so long before an epoch's time is told."""


class Meter(Protocol):
    """Receives what happens during a run."""

    def start(self, title: str) -> None:
        """Say what is beginning."""

    def epoch(self, report: EpochReport) -> None:
        """Show an epoch."""

    def batch(self, epoch: int, step: int, steps: int) -> None:
        """Show how far an epoch is."""


@contextmanager
def training_meter(
    console: Console,
    total: int,
    *,
    quiet: bool,
    shown: Callable[[float, int], str] = "{:.{}f} %".format,
    cheaper: str = "",
) -> Iterator[Meter]:
    """Show epochs on a bar when on a terminal; otherwise print a line now and then.

    Args:
        console: Where to.
        total: Number of epochs in all.
        quiet: Show nothing.
        shown: How to write a metric with so many digits.
        cheaper: What would take less time, said beside the cost of a long run.
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
            self.told = False  # what it costs
            self.at = ""  # how far the epoch is
            self.first = (0, 0, 0.0)  # the epoch, the first batch seen of it, and when

        def start(self, title: str) -> None:
            self.before = self.done
            progress.update(bar, description=title)
            if not live and not quiet:
                console.print(title, highlight=False, soft_wrap=True)

        def epoch(self, report: EpochReport) -> None:
            self.done, self.seen = self.before + report.epoch, self.seen + 1
            self.at = ""
            self._cost(time.monotonic() - self.began)
            status = f"epoch {report.epoch}, loss {report.loss:.3f}"
            if report.validation is not None:
                status += f", validation {shown(report.validation, 1)}"
            if live:
                progress.update(bar, completed=self.done, status=status)
            elif not quiet:
                self._plain(status)

        def batch(self, epoch: int, step: int, steps: int) -> None:
            if steps <= 1:
                return
            now = time.monotonic()
            if epoch != self.first[0]:
                self.first = (epoch, step, now)
            # A resumed epoch begins in its midst: the pace is that of the batches seen here.
            seen, passed = step - self.first[1], now - self.first[2]
            self.at = f"epoch {epoch}, batch {step} of {steps}"
            if seen:
                self.at += f", {clock(passed / seen * (steps - step))} of the epoch left"
            if seen and passed >= SURE_SECONDS:
                self._cost(passed / seen * steps, "about ")
            if live:
                progress.update(bar, status=self.at)
            elif not quiet and now - self.spoke >= PLAIN_SECONDS:
                console.print(self.at, highlight=False, soft_wrap=True)
                self.spoke = now

        def _cost(self, each: float, about: str = "") -> None:
            """Say as soon as it is known what all epochs will take, where that is long."""
            if self.told or quiet:
                return
            self.told = not about or each >= LONG
            left = each * (total - self.done)
            if each >= LONG:
                text = f"note: An epoch takes {about}{clock(each)}; "
                text += f"{total} at most {clock(left)} more."
                text += f" Cheaper: {cheaper}." if cheaper else ""
                console.print(text, highlight=False, soft_wrap=True, markup=False)

        def pulse(self) -> None:
            """Say that an epoch is still at work."""
            now = time.monotonic()
            if now - self.spoke >= PLAIN_SECONDS:
                doing = self.at or f"epoch {self.done - self.before + 1} is at work"
                console.print(
                    f"{doing}, {clock(now - self.began)} since the start",
                    highlight=False,
                    soft_wrap=True,
                )
                self.spoke = now

        def _plain(self, status: str) -> None:
            now = time.monotonic()
            if now - self.spoke < PLAIN_SECONDS:
                return
            left = (now - self.began) / self.seen * (total - self.done)
            console.print(f"{status}, {clock(left)} left", highlight=False, soft_wrap=True)
            self.spoke = now

    meter, over = _Meter(), threading.Event()

    def watch() -> None:
        while not over.wait(PLAIN_SECONDS):
            meter.pulse()

    if not live and not quiet:
        threading.Thread(target=watch, daemon=True).start()
    try:
        with progress:
            yield meter
    finally:
        over.set()


class _WorkMeter(Listener):
    """Shows loading, signatures and predictions: a bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console, bars: Progress | None) -> None:
        self.console, self.bars = console, bars
        self.tasks: dict[str, TaskID] = {}
        self.began = self.spoke = time.monotonic()

    def advance(self, what: str, done: int, total: int) -> None:
        if self.bars is not None:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(what, total=total)
            self.bars.update(self.tasks[what], completed=done, total=total, visible=done < total)
            return
        now = time.monotonic()
        if not done:
            self.began = self.spoke = now
        if done and done < total and now - self.spoke >= PLAIN_SECONDS:
            left = clock((now - self.began) / done * (total - done))
            self._say(f"{what}: {100 * done // total} %, {left} left")
            self.spoke = now

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def working(console: Console, *, quiet: bool = False) -> Iterator[None]:
    """Show how far long work inside a ``with`` block is, and beforehand what it will cost."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    if quiet:
        with listening(_Costs(console)):
            yield
        return
    if not console.is_terminal:
        with listening(_WorkMeter(console, None)):
            yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True)
    with bars, listening(_WorkMeter(console, bars)):
        yield


class _Costs(Listener):
    """Says nothing but what will take long."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, text: str) -> None:
        self.console.print(f"note: {text}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def stop_requests(grace: float | None = None) -> Iterator[Callable[[], bool]]:
    """Yield what tells whether Ctrl-C was pressed or the process was asked to end.

    Args:
        grace: Seconds an epoch may take to its end; a longer one is given up. Its state on disk
            is then that of the epoch before, since long epochs are saved one by one.
    """
    asked: list[int] = []
    timers: list[threading.Timer] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        wait = "" if grace is None else f" (for {grace:g} s at most)"
        print(
            f"geof: finishing this epoch{wait}, then saving; once more to stop at once and go back "
            "to the last saved epoch",
            file=sys.stderr,
            flush=True,
        )
        if grace is not None:
            timers.append(threading.Timer(grace, _thread.interrupt_main))
            timers[-1].daemon = True
            timers[-1].start()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)

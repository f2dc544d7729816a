"""Progress that is live on a terminal and silent or plain elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

    from geof.training.loop import EpochReport


class Meter(Protocol):
    """Receives what happens during a run."""

    def start(self, title: str) -> None:
        """Say what is beginning."""

    def epoch(self, report: EpochReport) -> None:
        """Show an epoch."""


@contextmanager
def training_meter(console: Console, total: int, *, quiet: bool) -> Iterator[Meter]:
    """Show epochs on a bar when on a terminal; otherwise print one line per run."""
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
        def start(self, title: str) -> None:
            progress.update(bar, description=title)
            if not live and not quiet:
                console.print(title)

        def epoch(self, report: EpochReport) -> None:
            status = f"loss {report.loss:.3f}, validation {report.validation:.1f} %"
            progress.update(bar, advance=1, status=status)

    with progress:
        yield _Meter()

"""What follows a run: an interface of five events, and the files most people want.

A run folder has ``metrics.jsonl`` in any case. Further logs are callbacks of the
:class:`~geof.training.trainer.Trainer`: that of TensorBoard is here, those of Weights & Biases and
MLflow are in ``examples/logging``.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from geof.errors import ConfigError
from geof.training.checkpoint import EpochReport

if TYPE_CHECKING:
    from geof.training.trainer import Result, Trainer


class Callback:
    """Told what happens during a run; every method may be left as it is.

    The trainer is as it stands at that moment: ``trainer.network``, ``trainer.config``,
    ``trainer.task``, ``trainer.out``. What a callback draws at random or writes into the network
    changes the run.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Know that the run begins, or goes on after ``trainer.progress.epoch`` epochs."""

    def on_step(self, trainer: Trainer, epoch: int, step: int) -> None:
        """Know that optimiser step number ``step`` of an epoch, from 1, was taken."""

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Know an epoch's loss and, where it was looked at, validation."""

    def on_note(self, trainer: Trainer, note: str) -> None:
        """Know a sentence that the user should read."""

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        """Know that the run ended: with a result, or ``None`` if it was stopped or failed."""


class Callbacks(Callback):
    """Several, told in turn."""

    def __init__(self, members: Iterable[Callback] = ()) -> None:
        self.members = tuple(members)
        for member in self.members:
            if not isinstance(member, Callback):
                raise ConfigError(
                    "Expected callbacks that derive from geof.training.Callback (got "
                    f"{member!r}). Pass an object, not its class."
                )

    def on_start(self, trainer: Trainer) -> None:
        """Tell all."""
        for member in self.members:
            member.on_start(trainer)

    def on_step(self, trainer: Trainer, epoch: int, step: int) -> None:
        """Tell all."""
        for member in self.members:
            member.on_step(trainer, epoch, step)

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Tell all."""
        for member in self.members:
            member.on_epoch(trainer, report)

    def on_note(self, trainer: Trainer, note: str) -> None:
        """Tell all."""
        for member in self.members:
            member.on_note(trainer, note)

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        """Tell all."""
        for member in self.members:
            member.on_end(trainer, result)


class JsonLines(Callback):
    """A line of JSON per epoch, as ``metrics.jsonl`` of a run folder has it.

    Args:
        path: The file; begun anew, with the epochs of a run that goes on.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Open the file and write the epochs there are."""
        self._file = self.path.open("w")
        for report in trainer.progress.reports:
            self._file.write(report.line())

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Write a line."""
        assert self._file is not None
        self._file.write(report.line())
        self._file.flush()

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class CsvLog(JsonLines):
    """A row per epoch; an empty cell where validation was not looked at."""

    def on_start(self, trainer: Trainer) -> None:
        """Open the file, write the header and the epochs there are."""
        self._file = self.path.open("w", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow([field.name for field in fields(EpochReport)])
        self._writer.writerows(asdict(report).values() for report in trainer.progress.reports)

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Write a row."""
        assert self._file is not None
        self._writer.writerow(asdict(report).values())
        self._file.flush()


class TensorBoard(Callback):
    """Scalars for TensorBoard: ``pip install 'geof[tensorboard]'``.

    Args:
        folder: Where to (default: ``tensorboard`` in the run folder, or ``runs/tensorboard``).
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._writer: Any = None

    def on_start(self, trainer: Trainer) -> None:
        """Open the log; epochs of an earlier process are there already."""
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "Expected TensorBoard for its log. Run: pip install 'geof[tensorboard]'"
            ) from error
        folder = self.folder or (trainer.out or Path("runs")) / "tensorboard"
        self._writer = SummaryWriter(str(folder))

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Write what the epoch has of numbers."""
        for name, value in scalars(report).items():
            self._writer.add_scalar(name, value, report.epoch)

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        """Write the result's metrics and close the log."""
        if self._writer is None:
            return
        if result is not None:
            for name, value in result.metrics.items():
                self._writer.add_scalar(f"test/{name}", value, result.best_epoch)
        self._writer.close()


class EpochLines(Callback):
    """Print a line now and then.

    Args:
        every: Epochs from one line to the next.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self._began = 0.0

    def on_start(self, trainer: Trainer) -> None:
        """Take the time."""
        self._began = time.monotonic()

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Print loss, validation and the time since the start."""
        if report.epoch % self.every:
            return
        seen = "" if report.validation is None else f", validation {report.validation:.2f}"
        seconds = time.monotonic() - self._began
        print(f"epoch {report.epoch}: loss {report.loss:.4f}{seen}, {seconds:.1f} s")


def scalars(report: EpochReport) -> dict[str, float]:
    """Return the numbers of an epoch by name, for a log of any kind.

    >>> scalars(EpochReport(1, 0.5, None, None, learning_rate=0.01, gradient_norm=1.0))
    {'loss': 0.5, 'learning_rate': 0.01, 'gradient_norm': 1.0}
    """
    found = {name: value for name, value in asdict(report).items() if name != "epoch"}
    counts = ("rescued_blocks", "kept_blocks")
    return {n: v for n, v in found.items() if v is not None and (v or n not in counts)}

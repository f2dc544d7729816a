"""Log runs to Weights & Biases: ``Trainer(config, task, callbacks=[WandbLog("my-project")])``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from geof.training import Callback, EpochReport, Result, Trainer
from geof.training.callbacks import scalars


class WandbLog(Callback):
    """A W&B run per training, with its config, a point per epoch and the result.

    Args:
        project: Of W&B.
        **options: Of ``wandb.init``, such as ``mode="offline"``.
    """

    def __init__(self, project: str, **options: Any) -> None:
        self.project, self.options = project, options
        self.run: Any = None

    def on_start(self, trainer: Trainer) -> None:
        """Begin the run."""
        import wandb

        config = trainer.config.to_dict() | {"dataset": trainer.task.dataset}
        self.run = wandb.init(project=self.project, config=config, **self.options)

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Log the epoch's numbers."""
        self.run.log(scalars(report), step=report.epoch)

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        """Log the result and end the run."""
        if self.run is None:
            return
        if result is not None:
            self.run.summary.update(asdict(result))
        self.run.finish(exit_code=0 if result is not None else 1)

"""Log runs to MLflow: ``Trainer(config, task, callbacks=[MlflowLog("my experiment")])``."""

from __future__ import annotations

from geof.training import Callback, EpochReport, Result, Trainer
from geof.training.callbacks import scalars


class MlflowLog(Callback):
    """An MLflow run per training, with its options, a point per epoch and the test metrics.

    Args:
        experiment: Of MLflow; where to is ``MLFLOW_TRACKING_URI``, as always.
    """

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment

    def on_start(self, trainer: Trainer) -> None:
        """Begin the run and write its options."""
        import mlflow

        mlflow.set_experiment(self.experiment)
        mlflow.start_run(run_name=trainer.task.dataset)
        tree = trainer.config.to_dict()
        flat = {
            f"{name}.{key}": v for name in ("options", "training") for key, v in tree[name].items()
        }
        mlflow.log_params(
            {"method": trainer.config.method, "preset": trainer.config.preset, **flat}
        )

    def on_epoch(self, trainer: Trainer, report: EpochReport) -> None:
        """Log the epoch's numbers."""
        import mlflow

        mlflow.log_metrics(scalars(report), step=report.epoch)

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        """Log the test metrics and end the run."""
        import mlflow

        if result is not None:
            names = {name.replace("@", "_at_"): value for name, value in result.metrics.items()}
            mlflow.log_metrics({f"test.{name}": value for name, value in names.items()})
        mlflow.end_run("FINISHED" if result is not None else "FAILED")

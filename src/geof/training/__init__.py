"""Configs, tasks, the trainer and the files of a run."""

from geof.training.callbacks import Callback, CsvLog, EpochLines, JsonLines, TensorBoard
from geof.training.checkpoint import EpochReport, load_checkpoint, save_checkpoint
from geof.training.chosen import adapted, facts_of
from geof.training.config import RunConfig
from geof.training.metrics import (
    accuracy,
    graph_loss,
    link_loss,
    link_metrics,
    node_loss,
    roc_auc,
)
from geof.training.network import Network
from geof.training.ranks import ALONE, Ranks
from geof.training.stages import PretrainingConfig, TrainingConfig
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Scores, Task, build_task
from geof.training.trainer import Result, Trainer, Watch

__all__ = [
    "ALONE",
    "Callback",
    "CsvLog",
    "EpochLines",
    "EpochReport",
    "GraphTask",
    "JsonLines",
    "LinkTask",
    "Network",
    "NodeTask",
    "PretrainingConfig",
    "Ranks",
    "Result",
    "RunConfig",
    "Scores",
    "Task",
    "TensorBoard",
    "Trainer",
    "TrainingConfig",
    "Watch",
    "accuracy",
    "adapted",
    "build_task",
    "facts_of",
    "graph_loss",
    "link_loss",
    "link_metrics",
    "load_checkpoint",
    "node_loss",
    "roc_auc",
    "save_checkpoint",
]

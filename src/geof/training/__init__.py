"""Losses, tasks, the training loop and the files of a run."""

from geof.training.checkpoint import load_checkpoint, save_checkpoint
from geof.training.loop import EpochReport, Result, TrainSettings, fit
from geof.training.networks import ENCODERS, Network, NetworkSpec
from geof.training.objectives import (
    accuracy,
    graph_loss,
    link_loss,
    link_metrics,
    node_loss,
    roc_auc,
)
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Scores, Task

__all__ = [
    "ENCODERS",
    "EpochReport",
    "GraphTask",
    "LinkTask",
    "Network",
    "NetworkSpec",
    "NodeTask",
    "Result",
    "Scores",
    "Task",
    "TrainSettings",
    "accuracy",
    "fit",
    "graph_loss",
    "link_loss",
    "link_metrics",
    "load_checkpoint",
    "node_loss",
    "roc_auc",
    "save_checkpoint",
]

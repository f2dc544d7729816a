"""Losses, the training loop and the files of a run."""

from geof.training.checkpoint import load_checkpoint, save_checkpoint
from geof.training.loop import (
    EpochReport,
    NodeResult,
    NodeTask,
    TrainSettings,
    fit_nodes,
)
from geof.training.objectives import accuracy, graph_loss, link_loss, node_loss

__all__ = [
    "EpochReport",
    "NodeResult",
    "NodeTask",
    "TrainSettings",
    "accuracy",
    "fit_nodes",
    "graph_loss",
    "link_loss",
    "load_checkpoint",
    "node_loss",
    "save_checkpoint",
]

"""Losses, tasks, the training loop and the files of a run."""

from geof.training.checkpoint import load_checkpoint, save_checkpoint
from geof.training.metrics import accuracy, graph_loss, link_loss, link_metrics, node_loss, roc_auc
from geof.training.network import Network, NetworkSpec
from geof.training.plan import Plan
from geof.training.settings import BatchSettings, TrainSettings
from geof.training.state import EpochReport
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Scores, Task
from geof.training.trainer import Experiment, Result, Watch, fit, run_experiment

__all__ = [
    "BatchSettings",
    "EpochReport",
    "Experiment",
    "GraphTask",
    "LinkTask",
    "Network",
    "NetworkSpec",
    "NodeTask",
    "Plan",
    "Result",
    "Scores",
    "Task",
    "TrainSettings",
    "Watch",
    "accuracy",
    "fit",
    "graph_loss",
    "link_loss",
    "link_metrics",
    "load_checkpoint",
    "node_loss",
    "roc_auc",
    "run_experiment",
    "save_checkpoint",
]

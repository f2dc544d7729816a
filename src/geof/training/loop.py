"""Full-batch training of node classifiers, selected on validation, tested once."""

from __future__ import annotations

import copy
import json
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor, nn

from geof.config import require_positive
from geof.data.files import write_atomically, write_json
from geof.data.splits import NodeSplit
from geof.errors import ConfigError, NonFiniteError
from geof.kernels import Neighbourhoods
from geof.training.checkpoint import save_checkpoint
from geof.training.objectives import accuracy, node_loss
from geof.version import __version__

SELECTION = "highest validation accuracy, then lowest validation loss, then earliest epoch"


@dataclass(frozen=True)
class NodeTask:
    """One node-classification setting.

    Attributes:
        dataset: Its name.
        x: ``(n, F)`` features.
        edge_index: ``(2, E)``, both directions of every edge.
        edges: The same, prepared for GeoF.
        signature: ``(n, q)``.
        labels: ``(n,)``.
        split: Which nodes train, validate and test.
    """

    dataset: str
    x: Tensor
    edge_index: Tensor
    edges: Neighbourhoods
    signature: Tensor
    labels: Tensor
    split: NodeSplit

    @property
    def num_classes(self) -> int:
        """Number of classes among the labelled nodes."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Attributes:
        epochs: Passes over the graph.
        learning_rate: Adam's.
        weight_decay: Adam's.
        seed: Seed of initialisation and dropout.
    """

    epochs: int = 200
    learning_rate: float = 1e-2
    weight_decay: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("epochs", self.epochs)
        if not self.learning_rate > 0:
            raise ConfigError(
                f"Expected 'learning_rate' to be positive (got {self.learning_rate})."
            )
        if not self.weight_decay >= 0:
            raise ConfigError(
                f"Expected 'weight_decay' to be zero or positive (got {self.weight_decay})."
            )


@dataclass(frozen=True)
class EpochReport:
    """One epoch: its number (from 1), training loss, validation accuracy (percent) and loss."""

    epoch: int
    loss: float
    validation: float
    validation_loss: float


@dataclass(frozen=True)
class NodeResult:
    """What ``result.json`` holds. Accuracies are percentages."""

    dataset: str
    task: str
    model: str
    preset: str
    metric: str
    test: float
    validation: float
    best_epoch: int
    epochs: int
    seconds_per_epoch: float
    peak_rss_bytes: int
    parameters: int
    split: str
    split_hash: str
    seed: int
    selection: str


def fit_nodes(
    build: Callable[..., nn.Module],
    options: Mapping[str, Any],
    task: NodeTask,
    settings: TrainSettings,
    *,
    model_name: str,
    preset: str,
    out: Path | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> tuple[nn.Module, NodeResult]:
    """Train a node classifier and read its test accuracy once, at the epoch validation chose.

    Args:
        build: Makes the model from the task and ``options``, after seeding. The model maps a task
            to its logits, ``(n, C)``.
        options: Settings of the model, recorded in the run folder.
        task: The setting.
        settings: How to train.
        model_name: For the record.
        preset: For the record.
        out: Run folder to write, or ``None``.
        on_epoch: Called after every epoch.

    Raises:
        NonFiniteError: If the loss stops being finite; says at which epoch.
    """
    torch.manual_seed(settings.seed)
    model = build(task, **options)
    optimiser = torch.optim.Adam(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    if out is not None:
        write_json(out / "config.json", _config(model_name, preset, options, task, settings))
    best: tuple[tuple[float, float], int, dict[str, Tensor]] | None = None
    lines = []
    started = time.perf_counter()
    for epoch in range(1, settings.epochs + 1):
        report = _run_epoch(epoch, model, task, optimiser)
        lines.append(json.dumps(asdict(report)))
        score = (report.validation, -report.validation_loss)
        if best is None or score > best[0]:
            best = (score, epoch, copy.deepcopy(model.state_dict()))
        if on_epoch is not None:
            on_epoch(report)
    seconds = (time.perf_counter() - started) / settings.epochs
    assert best is not None  # epochs >= 1
    (validation, _), best_epoch, weights = best
    model.load_state_dict(weights)
    result = NodeResult(
        dataset=task.dataset,
        task="node",
        model=model_name,
        preset=preset,
        metric="accuracy",
        test=_test_accuracy(model, task),
        validation=validation,
        best_epoch=best_epoch,
        epochs=settings.epochs,
        seconds_per_epoch=seconds,
        peak_rss_bytes=_peak_rss_bytes(),
        parameters=sum(p.numel() for p in model.parameters()),
        split=task.split.name,
        split_hash=task.split.hash,
        seed=settings.seed,
        selection=SELECTION,
    )
    if out is not None:
        write_atomically(out / "metrics.jsonl", "".join(f"{line}\n" for line in lines).encode())
        save_checkpoint(out / "checkpoint.safetensors", model, {"model": model_name})
        write_json(out / "result.json", asdict(result))
    return model, result


def _run_epoch(
    epoch: int, model: nn.Module, task: NodeTask, optimiser: torch.optim.Optimizer
) -> EpochReport:
    model.train()
    optimiser.zero_grad()
    loss = node_loss(model(task), task.labels, task.split.train)
    if not bool(loss.isfinite()):
        raise NonFiniteError(
            f"Expected a finite training loss (got {float(loss.detach())} at epoch {epoch}). Lower "
            "'learning_rate' or narrow the admissible box."
        )
    loss.backward()
    optimiser.step()
    model.eval()
    with torch.no_grad():
        output = model(task)
    held_out = task.split.validation
    return EpochReport(
        epoch=epoch,
        loss=float(loss.detach()),
        validation=accuracy(output[held_out], task.labels[held_out]),
        validation_loss=float(node_loss(output, task.labels, held_out)),
    )


@torch.no_grad()
def _test_accuracy(model: nn.Module, task: NodeTask) -> float:
    model.eval()
    return accuracy(model(task)[task.split.test], task.labels[task.split.test])


def _config(
    model: str, preset: str, options: Mapping[str, Any], task: NodeTask, settings: TrainSettings
) -> dict[str, Any]:
    return {
        "model": model,
        "model_options": dict(options),
        "preset": preset,
        "dataset": task.dataset,
        "split": task.split.name,
        "split_hash": task.split.hash,
        "training": asdict(settings),
        "selection": SELECTION,
        "versions": {
            "geof": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torch_geometric": torch_geometric.__version__,
        },
    }


def _peak_rss_bytes() -> int:
    """Return the process's peak resident memory; Linux counts kibibytes, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

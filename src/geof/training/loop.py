"""The training loop: fit on the training part, choose the epoch on validation, test once."""

from __future__ import annotations

import copy
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor

from geof.config import require_number, require_positive
from geof.data.files import write_atomically, write_json
from geof.errors import GeometryError, NonFiniteError
from geof.training.checkpoint import save_checkpoint
from geof.training.networks import Network, NetworkSpec
from geof.training.tasks import Scores, Task
from geof.version import __version__

SELECTION = "highest validation metric, then lowest validation loss, then earliest epoch"


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Attributes:
        epochs: Most passes over the training part.
        patience: Stop after this many epochs without a better one on validation; ``None`` for
            never.
        learning_rate: Adam's.
        weight_decay: Adam's.
        seed: Seed of initialisation and dropout.
    """

    epochs: int = 200
    patience: int | None = None
    learning_rate: float = 1e-2
    weight_decay: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("epochs", self.epochs)
        if self.patience is not None:
            require_positive("patience", self.patience)
        require_number("learning_rate", self.learning_rate, above=0)
        require_number("weight_decay", self.weight_decay, least=0)
        require_positive("seed", self.seed, least=0)


@dataclass(frozen=True)
class EpochReport:
    """One epoch: number (from 1), mean training loss, validation metric (percent) and loss."""

    epoch: int
    loss: float
    validation: float
    validation_loss: float


@dataclass(frozen=True)
class Result:
    """What ``result.json`` holds. Metrics are percentages; ``metrics`` are all test metrics."""

    dataset: str
    task: str
    model: str
    preset: str
    metric: str
    test: float
    validation: float
    metrics: dict[str, float]
    best_epoch: int
    epochs: int
    seconds_per_epoch: float
    peak_rss_bytes: int
    parameters: int
    split: str
    split_hash: str
    seed: int
    selection: str


@dataclass
class _Best:
    """The epoch validation prefers so far."""

    score: tuple[float, float]
    epoch: int
    weights: dict[str, Tensor]


def fit(
    task: Task,
    settings: TrainSettings,
    *,
    encoder: str = "geof",
    options: Mapping[str, Any] | None = None,
    preset: str = "custom",
    out: Path | None = None,
    record: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> tuple[Network, Result]:
    """Train a network and read its test metric once, at the epoch validation chose.

    Args:
        task: Data, split and protocol.
        settings: How to train.
        encoder: Which encoder, a key of :data:`geof.training.networks.ENCODERS`.
        options: The encoder's own arguments.
        preset: Name of the preset the settings come from, for the record.
        out: Run folder to write, or ``None``.
        record: More to write into the run's ``config.json``.
        files: More files to write into the run folder, by name.
        on_epoch: Called after every epoch.

    Raises:
        NonFiniteError: If a loss stops being finite; says at which epoch.
    """
    torch.manual_seed(settings.seed)
    spec = NetworkSpec(
        encoder=encoder,
        options=options or {},
        task=task.kind,
        in_channels=task.in_channels,
        signature_channels=task.signature.values.size(1),
        num_classes=task.num_classes,
    )
    network = Network(spec)
    if out is not None:
        write_json(out / "config.json", _config(task, settings, network.spec, preset, record or {}))
        task.save_split(out / "split.npz")
        for name, content in (files or {}).items():
            write_atomically(out / name, content)
    best, reports, seconds = _train(network, task, settings, on_epoch)
    network.load_state_dict(best.weights)
    test = _evaluate(network, task)
    result = Result(
        dataset=task.dataset,
        task=task.kind,
        model=encoder,
        preset=preset,
        metric=task.metric,
        test=test.metrics[task.metric],
        validation=best.score[0],
        metrics=test.metrics,
        best_epoch=best.epoch,
        epochs=len(reports),
        seconds_per_epoch=seconds / len(reports),
        peak_rss_bytes=_peak_rss_bytes(),
        parameters=sum(p.numel() for p in network.parameters()),
        split=task.split_name,
        split_hash=task.split_hash,
        seed=settings.seed,
        selection=SELECTION,
    )
    if out is not None:
        lines = "".join(f"{json.dumps(asdict(report))}\n" for report in reports)
        write_atomically(out / "metrics.jsonl", lines.encode())
        save_checkpoint(out / "checkpoint.safetensors", network)
        write_json(out / "result.json", asdict(result))
    return network, result


def _train(
    network: Network,
    task: Task,
    settings: TrainSettings,
    on_epoch: Callable[[EpochReport], None] | None,
) -> tuple[_Best, list[EpochReport], float]:
    optimiser = torch.optim.Adam(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    best: _Best | None = None
    reports = []
    started = time.perf_counter()
    for epoch in range(1, settings.epochs + 1):
        report = _run_epoch(epoch, network, task, optimiser)
        reports.append(report)
        score = (report.validation, -report.validation_loss)
        if best is None or score > best.score:
            best = _Best(score, epoch, copy.deepcopy(network.state_dict()))
        if on_epoch is not None:
            on_epoch(report)
        if settings.patience is not None and epoch - best.epoch >= settings.patience:
            break
    assert best is not None  # epochs >= 1
    return best, reports, time.perf_counter() - started


def _run_epoch(
    epoch: int, network: Network, task: Task, optimiser: torch.optim.Optimizer
) -> EpochReport:
    network.train()
    losses = []
    try:
        for loss in task.losses(network, epoch):
            losses.append(float(loss.detach()))
            if not bool(loss.isfinite()):
                raise NonFiniteError(
                    f"Expected a finite training loss (got {losses[-1]}). Lower 'learning_rate' "
                    "or narrow the admissible box."
                )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        network.eval()
        with torch.no_grad():
            scores = task.evaluate(network, "validation")
    except GeometryError as error:
        raise type(error)(f"Epoch {epoch}, step {len(losses)}: {error}") from error
    return EpochReport(epoch, sum(losses) / len(losses), scores.metrics[task.metric], scores.loss)


@torch.no_grad()
def _evaluate(network: Network, task: Task) -> Scores:
    network.eval()
    return task.evaluate(network, "test")


def _config(
    task: Task,
    settings: TrainSettings,
    spec: NetworkSpec,
    preset: str,
    record: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "dataset": task.dataset,
        "split": task.split_name,
        "split_hash": task.split_hash,
        "preset": preset,
        "network": spec.as_json(),
        "training": asdict(settings),
        "signature": task.signature.describe(),
        "selection": SELECTION,
        **task.record(),
        "versions": {
            "geof": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torch_geometric": torch_geometric.__version__,
        },
        **record,
    }


def _peak_rss_bytes() -> int:
    """Return the process's peak resident memory, 0 where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    # Linux counts kibibytes, macOS bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

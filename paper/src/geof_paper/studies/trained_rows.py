"""Rows of a study that trains methods on data made on the spot, written as they are finished.

A study that was stopped goes on: what has a row with the same data and the same config is taken
instead of a training. The epoch is chosen on validation and the test part is read once, or never.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from torch import Tensor, nn
from torch.nn import functional as F

from geof.data.records import GraphSet, NodeGraph
from geof.io import write_atomically
from geof.methods.interface import GraphInputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.options import Count, Probability, checked
from geof.training import RunConfig, Trainer, build_task

BUDGET = {"epochs": 200, "patience": 50}
"""Of the compared methods, and of the preset ``auto`` for nodes."""


class FeatureMLP(nn.Module):
    """Two layers on the features of each node by itself.

    Args:
        in_channels: Width of the features.
        hidden_channels: Width.
        dropout: After the first layer.
    """

    @checked
    def __init__(
        self, in_channels: int, *, hidden_channels: Count = 64, dropout: Probability = 0.5
    ) -> None:
        super().__init__()
        self.first = SparseLinear(in_channels, hidden_channels)
        self.second = nn.Linear(hidden_channels, hidden_channels)
        self.dropout = dropout
        self.out_channels = hidden_channels

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the second layer's states."""
        first = F.dropout(F.relu(self.first(inputs.x)), self.dropout, self.training)
        return F.relu(self.second(first))


register(Method("feature-mlp", FeatureMLP))


@dataclass(frozen=True)
class Row:
    """One training of one method on one split.

    Attributes:
        dataset: The graph or set of graphs.
        content_hash: Of its features, edges and labels.
        method: What was trained, as the study calls it.
        digest: Of the method's revision and everything that decided the run.
        split: Number of the split or fold.
        split_hash: Its hash.
        metric: What chose the epoch.
        test: At that epoch, in percent; ``None`` where the study does not read it.
        validation: Likewise.
        best_epoch: The epoch.
        epochs: How many were trained.
        seconds: For the whole training.
        chosen: What the data chose, with reasons.
    """

    dataset: str
    content_hash: str
    method: str
    digest: str
    split: int
    split_hash: str
    metric: str
    test: float | None
    validation: float
    best_epoch: int
    epochs: int
    seconds: float
    chosen: Mapping[str, str]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What must be the same for a row to be taken instead of a training."""
        return self.dataset, self.content_hash, self.method, self.digest


@dataclass(frozen=True)
class Job:
    """A training that is wanted.

    Attributes:
        dataset: What rows and tables call the data.
        data: What is learned from.
        method: What rows and tables call the method.
        config: All values of the run.
    """

    dataset: str
    data: NodeGraph | GraphSet
    method: str
    config: RunConfig

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key of its row."""
        return self.dataset, self.data.content_hash, self.method, digest_of(self.config)


def complete(
    path: Path, jobs: Iterable[Job], say: Callable[[str], None] = lambda text: None
) -> list[Row]:
    """Train what a file of rows has not yet.

    Args:
        path: The file, one row of JSON per line.
        jobs: What is wanted.
        say: Told about every new row.

    Returns:
        The rows of the jobs, in their order.
    """
    before = {row.key: row for row in read_rows(path)}
    rows: list[Row] = []
    for job in jobs:
        row = before.get(job.key)
        if row is None:
            row = train(job)
            _append(path, row)
            judged = row.validation if row.test is None else row.test
            about = f"{row.dataset} {row.split} {row.method}"
            say(f"{about}: {judged:.2f} ({row.seconds:.1f} s)")
        rows.append(row)
    return rows


def train(job: Job) -> Row:
    """Train once."""
    started = time.perf_counter()
    config = job.config
    result = Trainer(config, build_task(config, job.data)).fit()
    return Row(
        dataset=job.dataset,
        content_hash=job.data.content_hash,
        method=job.method,
        digest=digest_of(config),
        split=int(config.split),
        split_hash=result.split_hash,
        metric=result.metric,
        test=result.test,
        validation=result.validation,
        best_epoch=result.best_epoch,
        epochs=result.epochs,
        seconds=round(time.perf_counter() - started, 2),
        chosen=dict(config.chosen),
    )


def digest_of(config: RunConfig) -> str:
    """Return a hash of everything that decides a run but the data."""
    text = json.dumps([config.revision, config.decisive()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; one that was cut off in the middle is left out."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(Row(**json.loads(line)))
        except json.JSONDecodeError:
            if number != len(lines) - 1:
                raise
            write_atomically(path, "".join(f"{kept}\n" for kept in lines[:-1]).encode())
    return rows


def _append(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(row), sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class Score:
    """Mean and sample deviation over the splits."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Score:
        """Return both; no deviation below two splits."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0)

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.deviation:.1f}"


def is_below(one: Score, other: Score) -> bool:
    """Return whether a score is below another by more than their pooled deviation."""
    pooled = math.sqrt((one.deviation**2 + other.deviation**2) / 2)
    return one.mean < other.mean - pooled


def score_of(rows: Sequence[Row], method: str, part: str) -> Score | None:
    """Return a method's score on the test or validation part; ``None`` without rows."""
    values = [getattr(row, part) for row in rows if row.method == method]
    return Score.of(values) if values else None


def cell(name: str, scores: Mapping[str, Score | None], own: Sequence[str]) -> str:
    """Return a method's score for a table, the best mean in bold.

    Those of ``own`` are followed by ``(below)`` where :func:`is_behind` says so.
    """
    score = scores[name]
    if score is None:
        return "not run"
    best = max(other.mean for other in scores.values() if other is not None)
    text = f"**{score}**" if math.isclose(score.mean, best) else str(score)
    return f"{text} (below)" if name in own and is_behind(name, scores, own) else text


def is_behind(name: str, scores: Mapping[str, Score | None], own: Sequence[str]) -> bool:
    """Return whether a method is below the best that is not of ``own`` beyond the deviation."""
    score = scores.get(name)
    others = [other for key, other in scores.items() if key not in own and other is not None]
    if score is None or not others:
        return False
    return is_below(score, max(others, key=lambda other: other.mean))

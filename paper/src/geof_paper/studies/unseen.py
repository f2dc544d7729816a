"""Graphs nobody tuned for: GeoF ``auto`` beside GCN, GraphSAGE and an MLP without edges.

Every row, one training of one method on one split, is written when it is finished; a study that was
stopped goes on. The epoch is chosen on validation and the test part is read once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from geof.data.records import GraphSet, NodeGraph
from geof.io import merge, write_atomically
from geof.methods.interface import GraphInputs, TaskKind
from geof.methods.registry import AUTO, Method, load_preset, register
from geof.nn.inputs import SparseLinear
from geof.options import Count, Probability, checked
from geof.training import RunConfig, Trainer, adapted, build_task
from geof_paper.studies.unseen_graphs import UNSEEN, Unseen

SPLITS = (0, 1, 2)

FOLDS = 5
"""Sets of graphs are divided 60/20/20, as nodes are."""

BUDGET = {"epochs": 200, "patience": 50}
"""Of the compared methods. GeoF has that of its preset, which for sets of graphs is less."""


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

TITLES = {
    "geof": "GeoF `auto`",
    "gcn": "GCN",
    "sage-classic": "GraphSAGE",
    "feature-mlp": "MLP, no edges",
}
"""The compared methods, GeoF first."""


@dataclass(frozen=True)
class Row:
    """One training of one method on one split.

    Attributes:
        dataset: The graph or set of graphs.
        content_hash: Of its features, edges and labels.
        method: What was trained.
        digest: Of the method's revision and everything that decided the run.
        split: Number of the split or fold.
        split_hash: Its hash.
        metric: What chose the epoch.
        test: At that epoch, in percent.
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
    test: float
    validation: float
    best_epoch: int
    epochs: int
    seconds: float
    chosen: Mapping[str, str]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What must be the same for a row to be taken instead of a training."""
        return self.dataset, self.content_hash, self.method, self.digest


def run_study(
    path: Path,
    graphs: Sequence[Unseen] = UNSEEN,
    methods: Sequence[str] = tuple(TITLES),
    splits: Sequence[int] = SPLITS,
    *,
    changes: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train what a file of rows has not yet.

    Args:
        path: The file, one row of JSON per line.
        graphs: What is learned from.
        methods: What is trained.
        splits: Numbers of splits.
        changes: Laid over the options of all methods.
        say: Told about every row.

    Returns:
        The rows that were asked for.
    """
    before = {row.key: row for row in read_rows(path)}
    rows: list[Row] = []
    for unseen in graphs:
        data = unseen.make()
        for split in splits:
            for method in methods:
                config = config_of(unseen, data, method, split, changes or {})
                key = (unseen.name, data.content_hash, method, digest_of(config))
                row = before.get(key)
                if row is None:
                    row = train(unseen, data, config)
                    _append(path, row)
                    say(f"{unseen.name} {split} {method}: {row.test:.2f} ({row.seconds:.1f} s)")
                rows.append(row)
    return rows


def config_of(
    unseen: Unseen,
    data: NodeGraph | GraphSet,
    method: str,
    split: int,
    changes: Mapping[str, Any],
) -> RunConfig:
    """Return a run's config: the method's preset, for GeoF with what the data choose."""
    about = {"method": method, "task": unseen.task, "split": split, "folds": FOLDS}
    judged = {} if unseen.metric is None else {"metric": unseen.metric}
    config = RunConfig.parse(merge(about, judged, _layer(method, unseen.task), changes))
    return adapted(config, data)


def _layer(method: str, task: TaskKind) -> dict[str, Any]:
    """Return what a method gets over its preset."""
    if method == "geof":
        return {"preset": AUTO}
    if method == "feature-mlp":
        return {**BUDGET, "readout": load_preset("geof", AUTO, task)["readout"]}
    return dict(BUDGET)


def digest_of(config: RunConfig) -> str:
    """Return a hash of everything that decides a run but the data."""
    text = json.dumps([config.revision, config.to_dict()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def train(unseen: Unseen, data: NodeGraph | GraphSet, config: RunConfig) -> Row:
    """Train once and read the test part once."""
    started = time.perf_counter()
    result = Trainer(config, build_task(config, data)).fit()
    assert result.test is not None  # configs of this study read it
    return Row(
        dataset=unseen.name,
        content_hash=data.content_hash,
        method=config.method,
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


# The table --------------------------------------------------------------------------------------


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


def table(rows: Sequence[Row], part: str = "test") -> str:
    """Return Markdown: a line per dataset, a column per method.

    The best mean is bold; GeoF's is followed by ``(below)`` where it is below the best of the
    others by more than the pooled deviation.

    Args:
        rows: Of any datasets and methods.
        part: ``"test"`` or ``"validation"``.
    """
    methods = [name for name in TITLES if any(row.method == name for row in rows)]
    about = {unseen.name: unseen.about for unseen in UNSEEN}
    lines = [
        "| data | what | metric | " + " | ".join(TITLES[name] for name in methods) + " |",
        "|---|---|---|" + "---:|" * len(methods),
    ]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        of_it = [row for row in rows if row.dataset == dataset]
        scores = {name: _score(of_it, name, part) for name in methods}
        cells = " | ".join(_cell(name, scores) for name in methods)
        lines.append(f"| {dataset} | {about.get(dataset, '')} | {of_it[0].metric} | {cells} |")
    return "\n".join(lines) + "\n"


def losses(rows: Sequence[Row]) -> list[str]:
    """Return the datasets on which GeoF is below the best of the others beyond the deviation."""
    found = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        of_it = [row for row in rows if row.dataset == dataset]
        if _geof_is_below({name: _score(of_it, name, "test") for name in TITLES}):
            found.append(dataset)
    return found


def _score(rows: Sequence[Row], method: str, part: str) -> Score | None:
    values = [getattr(row, part) for row in rows if row.method == method]
    return Score.of(values) if values else None


def _cell(name: str, scores: Mapping[str, Score | None]) -> str:
    score = scores[name]
    if score is None:
        return "not run"
    best = max(other.mean for other in scores.values() if other is not None)
    text = f"**{score}**" if math.isclose(score.mean, best) else str(score)
    return f"{text} (below)" if name == "geof" and _geof_is_below(scores) else text


def _geof_is_below(scores: Mapping[str, Score | None]) -> bool:
    own = scores.get("geof")
    others = [score for name, score in scores.items() if name != "geof" and score is not None]
    if own is None or not others:
        return False
    return is_below(own, max(others, key=lambda score: score.mean))

"""Callbacks are told what happens, and logs hold what metrics.jsonl does."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from geof.errors import ConfigError, StoppedError
from geof.training import (
    Callback,
    CsvLog,
    EpochLines,
    JsonLines,
    RunConfig,
    TensorBoard,
    Trainer,
    TrainingConfig,
    Watch,
)
from tests.training.toys import graph_task

CONFIG = RunConfig(
    method="gcn", task="graph", options={"hidden_channels": 4}, training=TrainingConfig(epochs=3)
)


class Heard(Callback):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_start(self, trainer):
        self.events.append(f"start after {trainer.progress.epoch}")

    def on_step(self, trainer, epoch, step):
        self.events.append(f"step {epoch}.{step}")

    def on_epoch(self, trainer, report):
        self.events.append(f"epoch {report.epoch}")

    def on_note(self, trainer, note):
        self.events.append(note)

    def on_end(self, trainer, result):
        self.events.append("stopped" if result is None else f"end at {result.epochs}")


def train(*callbacks: Callback, out: Path | None = None, stop_after: int = 99) -> None:
    seen: list[int] = []
    watch = Watch(
        on_epoch=lambda report: seen.append(1), should_stop=lambda: len(seen) >= stop_after
    )
    task = graph_task(training=TrainingConfig(batch_size=100))
    Trainer(CONFIG, task, out=out, watch=watch, callbacks=callbacks).fit()


def test_events_come_in_order():
    heard = Heard()
    train(heard)
    epochs = [event for i in (1, 2, 3) for event in (f"step {i}.1", f"epoch {i}")]
    assert heard.events == ["start after 0", *epochs, "end at 3"]


def test_a_stopped_run_ends_too_and_goes_on(tmp_path):
    heard = Heard()
    with pytest.raises(StoppedError):
        train(heard, out=tmp_path / "run", stop_after=1)
    assert heard.events[-1] == "stopped"
    train(heard, CsvLog(tmp_path / "log.csv"), out=tmp_path / "run")
    assert "start after 1" in heard.events
    assert "Going on after epoch 1." in heard.events
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4  # those before among them


def test_files_hold_what_metrics_do(tmp_path, capsys):
    logs = JsonLines(tmp_path / "log.jsonl"), CsvLog(tmp_path / "log.csv"), EpochLines(2)
    train(*logs, out=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert (tmp_path / "log.jsonl").read_text() == lines
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [
        json.loads(line)["loss"] for line in lines.splitlines()
    ]
    assert capsys.readouterr().out.startswith("epoch 2: loss ")


def test_tensorboard(tmp_path):
    pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    train(TensorBoard(), out=tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(ConfigError, match=r"geof\[tensorboard\]"):
        train(TensorBoard())


def test_a_class_is_no_callback():
    with pytest.raises(ConfigError, match="not its class"):
        train(Heard)

"""The examples run."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from geof.data import NodeGraph, digits_graph, random_node_split
from geof.training import NodeTask, RunConfig, Trainer, TrainingConfig

ROOT = Path(__file__).parents[1]


def example(path: str) -> ModuleType:
    file = ROOT / "examples" / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_loop_of_ones_own(capsys):
    assert example("pyg_loop.py").main(epochs=12) > 0.8
    assert "epoch 10" in capsys.readouterr().out


@pytest.mark.slow
def test_lightning(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    assert example("lightning_module.py").main(epochs=12, enable_model_summary=False, **quiet) > 0.8


def test_the_page_about_pyg(capsys):
    text = (ROOT / "docs" / "pyg.md").read_text()
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, namespace)
    assert namespace["explanation"].edge_mask.numel() == namespace["data"].num_edges


class Recorded:
    """Stands for a package that logs: every call is noted."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*values: Any, **named: Any) -> Recorded:
            self.calls.append((name, values, named))
            return self

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [values for called, values, _ in self.calls if called == name]


@pytest.fixture
def trained():
    """Return what trains two epochs with a callback."""

    def train(callback: Any) -> Any:
        digits = NodeGraph("digits", digits_graph(), tuple("0123456789"))
        config = RunConfig(method="gcn", training=TrainingConfig(epochs=2))
        task = NodeTask(digits, random_node_split(1797, 0))
        return Trainer(config, task, callbacks=[callback]).fit()

    return train


def test_logs_for_weights_and_biases(trained, monkeypatch):
    package = Recorded()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=package.init))
    result = trained(example("logging/wandb_callback.py").WandbLog("mine", mode="offline"))
    assert [sorted(values[0])[:2] for values in package.named("log")] == [
        ["gradient_norm", "learning_rate"]
    ] * 2
    assert package.summary["test"] == result.test
    assert package.calls[-1][2] == {"exit_code": 0}


def test_logs_for_mlflow(trained, monkeypatch):
    package = Recorded()
    monkeypatch.setitem(sys.modules, "mlflow", package)
    result = trained(example("logging/mlflow_callback.py").MlflowLog("mine"))
    assert package.named("log_params")[0][0]["method"] == "gcn"
    assert package.named("log_metrics")[-1][0] == {"test.accuracy": result.test}
    assert package.named("end_run") == [("FINISHED",)]

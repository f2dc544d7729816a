"""The examples run."""

from __future__ import annotations

import csv
import importlib.util
import json
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


def test_own_tables_become_predictions(tmp_path, capsys):
    assert example("own_tables.py").main(tmp_path, epochs=8) > 50
    rows = list(csv.reader((tmp_path / "predictions.csv").open(newline="")))
    assert rows[0] == ["id", "club", "probability"]
    assert len(rows) == 201  # those without a known club too
    assert rows[-1][1].startswith("club ")
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 9


def test_a_grid_search(capsys):
    assert example("grid_search.py").main(epochs=3) > 0.5
    assert "options.steps" in capsys.readouterr().out


def test_molecules(capsys):
    pytest.importorskip("rdkit")
    assert example("molecules.py").main(epochs=6) < 6
    assert "CCCCCCO: " in capsys.readouterr().out


def test_a_large_graph(capsys):
    assert example("large_graph.py").main(nodes=1500, epochs=1) > 0.3
    told = capsys.readouterr().out
    assert "standard error" in told
    assert "signatures: 1 of 1" in told


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_tell_nothing_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 150_000
    assert not re.search(r"/(home|root|tmp|work|usr|opt)/|site-packages", text)
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert cells
    for number, cell in enumerate(cells, start=1):
        assert cell["execution_count"] == number  # stored as run from top to bottom
        assert all(output["output_type"] != "error" for output in cell["outputs"])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path):
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=where).execute()


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

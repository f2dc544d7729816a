from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from geof.data import NodeSplit
from geof.errors import ConfigError, DataError, NonFiniteError
from geof.kernels import Neighbourhoods
from geof.training import (
    NodeTask,
    TrainSettings,
    accuracy,
    fit_nodes,
    graph_loss,
    link_loss,
    load_checkpoint,
    node_loss,
)
from tests.graphs import random_sample


@pytest.fixture
def task() -> NodeTask:
    x, edge_index, u = random_sample(0, nodes=30, edges=60, dtype=torch.float32)
    part = torch.arange(30)
    split = NodeSplit(part[:18], part[18:24], part[24:], "fixed")
    edges = Neighbourhoods.from_edge_index(edge_index, 30)
    return NodeTask("toy", x, edge_index, edges, u, part % 2, split)


class Linear(nn.Module):
    def __init__(self, task: NodeTask, scale: float = 1.0):
        super().__init__()
        self.scale = scale
        self.layer = nn.Linear(task.x.size(1), task.num_classes)

    def forward(self, task: NodeTask) -> torch.Tensor:
        return self.layer(task.x) * self.scale


def fit(task, out=None, epochs=12, seed=0, **options):
    return fit_nodes(
        Linear,
        options,
        task,
        TrainSettings(epochs=epochs, seed=seed),
        model_name="linear",
        preset="test",
        out=out,
    )


def test_run_folder_holds_what_it_says(task, tmp_path):
    _, result = fit(task, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.json", "metrics.jsonl", "checkpoint.safetensors", "result.json"}
    lines = [json.loads(t) for t in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["test"] == result.test
    assert stored["split_hash"] == task.split.hash
    chosen = max(lines, key=lambda line: (line["validation"], -line["validation_loss"]))
    assert (stored["best_epoch"], stored["validation"]) == (chosen["epoch"], chosen["validation"])
    again = Linear(task)
    load_checkpoint(tmp_path / "run" / "checkpoint.safetensors", again)
    test = task.split.test
    assert accuracy(again(task)[test], task.labels[test]) == stored["test"]


def test_the_chosen_epoch_is_what_is_kept(task, tmp_path):
    """Validation labels that contradict training make an early epoch the best."""
    labels = task.labels.clone()
    labels[task.split.train] = (task.x[task.split.train, 0] > 0).long()
    labels[task.split.validation] = (task.x[task.split.validation, 0] < 0).long()
    contrary = NodeTask(**{**vars(task), "labels": labels})
    model, result = fit(contrary, tmp_path / "run", epochs=60)
    assert result.best_epoch < 60
    held_out = task.split.validation
    assert accuracy(model(contrary)[held_out], labels[held_out]) == result.validation
    again = Linear(task)
    load_checkpoint(tmp_path / "run" / "checkpoint.safetensors", again)
    assert torch.equal(again.layer.weight, model.layer.weight)


def test_test_labels_have_no_influence(task, tmp_path):
    """Scrambled test labels change the test number and nothing else."""
    model, result = fit(task)
    labels = task.labels.clone()
    labels[task.split.test] = 1 - labels[task.split.test]
    other = NodeTask(**{**vars(task), "labels": labels})
    model2, result2 = fit(other)
    assert torch.equal(model.layer.weight, model2.layer.weight)
    assert result.validation == result2.validation
    assert result2.test == pytest.approx(100 - result.test)


def test_same_seed_same_result(task):
    assert torch.equal(fit(task)[0].layer.weight, fit(task)[0].layer.weight)
    assert not torch.equal(fit(task)[0].layer.weight, fit(task, seed=1)[0].layer.weight)


def test_non_finite_loss_is_named(task):
    with pytest.raises(NonFiniteError, match=r"finite training loss .*at epoch 1"):
        fit(task, scale=float("nan"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "'epochs'"),
        ({"learning_rate": 0.0}, "'learning_rate'"),
        ({"weight_decay": -1.0}, "'weight_decay'"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainSettings(**options)


def test_objectives_are_the_equations(random_state):
    """Eqs. (13) to (15) written out."""
    logits, labels = random_state(0).normal(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    mask = torch.tensor([True, False, True, True, False, False])
    p = torch.softmax(logits, -1)
    chosen = -torch.log(p[torch.arange(6), labels])
    torch.testing.assert_close(node_loss(logits, labels, mask), chosen[mask].mean())
    torch.testing.assert_close(graph_loss(logits, labels), chosen.mean())
    yes, no = logits[:2, 0], logits[2:, 0]
    wanted = torch.cat([-torch.sigmoid(yes).log(), -(1 - torch.sigmoid(no)).log()]).mean()
    torch.testing.assert_close(link_loss(yes, no), wanted)
    with pytest.raises(DataError, match="'mask'"):
        node_loss(logits, labels, torch.zeros(6, dtype=torch.bool))
    with pytest.raises(DataError, match="at least one"):
        accuracy(logits[:0], labels[:0])

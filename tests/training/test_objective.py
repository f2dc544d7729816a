"""Losses with gaps, units given back, weights, and tasks that predict numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Data

from geof.data.formats import from_pyg, from_pyg_list
from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import GraphSplit, NodeSplit
from geof.errors import ConfigError, DataError
from geof.training import GraphTask, LinkTask, NodeTask, RunConfig, Trainer, TrainingConfig
from geof.training.checkpoint import EpochReport
from geof.training.objective import Objective
from geof.training.predict import Run, evaluate_part, predict_graphs, predict_nodes, table_of
from geof.training.tasks import build_task
from tests.training.toys import link_task

nan = math.nan


def graph(y: torch.Tensor, **options) -> NodeGraph:
    """A ring whose one feature is what is to be predicted, in another unit."""
    count = len(y)
    ring = torch.arange(count)
    edges = torch.stack([ring, (ring + 1) % count])
    x = torch.linspace(-1, 1, count).reshape(-1, 1).repeat(1, 3)
    data = Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=y)
    return from_pyg(data, **options)


def split(count: int, kind=NodeSplit):
    order = torch.arange(count)
    third = count // 5
    return kind(order[2 * third :], order[:third], order[third : 2 * third], "toy")


def line(count: int = 40) -> torch.Tensor:
    return 1000.5 + 50.0 * torch.linspace(-1, 1, count)


def node_task(y: torch.Tensor, training: TrainingConfig | None = None, **options) -> NodeTask:
    return NodeTask(graph(y, **options), split(len(y)), training=training)


def config(task, **training) -> RunConfig:
    options = {"hidden_channels": 16}
    return RunConfig("gcn", task.kind, options=options, training=TrainingConfig(**training))


# Losses and units -----------------------------------------------------------------------------


def test_numbers_are_standardised_on_the_training_part_alone():
    y = line()
    task = node_task(y)
    train = y[task.split.train].double()
    assert task.objective.mean == pytest.approx([float(train.mean())])
    assert task.objective.scale == pytest.approx([float(train.std(correction=0))])
    moved = y.clone()
    moved[task.split.test] += 1e6
    moved[task.split.validation] = 0.25
    assert node_task(moved).objective == task.objective
    aims = task.objective.aims(task.data.graph.y)
    back = task.objective.values(aims)
    torch.testing.assert_close(back, task.data.graph.y, rtol=0, atol=1e-4)


def test_a_target_that_is_constant_while_training_is_not_divided_by_zero():
    y = line()
    y[8:] = 7.5
    assert node_task(y).objective.scale == (1.0,)


def test_missing_targets_weigh_nothing():
    objective = Objective("regression", ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    aims = torch.tensor([[0.0, nan], [nan, 1.0]])
    loss = objective.loss(outputs, aims)
    assert float(loss.detach()) == pytest.approx((1 + 9) / 2)
    loss.backward()
    assert outputs.grad.tolist() == [[1.0, 0.0], [0.0, 3.0]]
    binary = Objective("binary", ("a", "b"), weights=(2.0, 3.0))
    y = torch.tensor([[1.0, nan], [nan, 0.0]])
    expected = (2 * F.softplus(torch.tensor(-1.0)) + F.softplus(torch.tensor(4.0))) / 2
    torch.testing.assert_close(binary.loss(outputs.detach(), y), expected)


def test_class_weights():
    data = graph(torch.tensor([0] * 30 + [1] * 10))
    y, train = data.graph.y, torch.arange(40)
    balanced = Objective.fit(data, y, train, "balanced").weights
    assert balanced == pytest.approx((40 / 60, 40 / 20))
    given = Objective.fit(data, y, train, (1.0, 5.0))
    logits = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        given.loss(logits, y), F.cross_entropy(logits, y, weight=torch.tensor([1.0, 5.0]))
    )
    assert Objective.fit(data, y, train).weights == ()
    with pytest.raises(ConfigError, match=r"a weight for each class, 0, 1 .got 3"):
        Objective.fit(data, y, train, (1.0, 2.0, 3.0))
    with pytest.raises(ConfigError, match="no 'class_weights' for regression"):
        node_task(line(), TrainingConfig(class_weights="balanced"))
    several = graph(torch.tensor([[0, 1], [0, -1], [1, 0], [0, 0]] * 10))
    assert Objective.fit(several, several.graph.y, train, "balanced").weights == (3.0, 2.0)


def test_a_target_unknown_in_the_training_part_is_refused():
    y = torch.stack([line(), line()], 1)
    y[8:, 1] = nan
    with pytest.raises(DataError, match="the target 'target_1' in the training part"):
        node_task(y)
    with pytest.raises(ConfigError, match="one of 'none', 'balanced' or a list"):
        TrainingConfig(class_weights=(1.0, 0.0))


# Tasks ----------------------------------------------------------------------------------------


def test_metrics_that_cannot_judge_are_refused():
    classes = torch.arange(40) % 3
    for y, metric, message in (
        (line(), "accuracy", "judge regression: one of rmse, mae, r2"),
        (classes, "rmse", "judge classes: one of accuracy"),
        (classes, "hits@10", "judge classes"),
    ):
        with pytest.raises(ConfigError, match=message):
            node_task(y, TrainingConfig(metric=metric))
    with pytest.raises(DataError, match=r"two classes for metric 'average_precision' .got 3"):
        node_task(classes, TrainingConfig(metric="average_precision"))
    task = link_task()
    with pytest.raises(ConfigError, match=r"judge links: one of roc_auc.*hits@K"):
        LinkTask(task.data, task.split, training=TrainingConfig(metric="accuracy"))
    with pytest.raises(ConfigError, match="Did you mean 'rmse'"):
        TrainingConfig(metric="rmsee")


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_numbers_of_nodes_are_learned_in_their_unit(metric, tmp_path):
    task = node_task(line())
    chosen = config(task, epochs=60, metric=metric)
    task = NodeTask(task.data, task.split, training=chosen.training)
    result = Trainer(chosen, task, out=tmp_path / "run").fit()
    assert result.metric == metric
    assert result.metrics.keys() == {"rmse", "mae", "r2"}
    assert result.test == result.metrics[metric]
    assert 0 < result.metrics["rmse"] < 10
    assert result.metrics["mae"] <= result.metrics["rmse"]
    reports = [json.loads(r) for r in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    best = (max if metric == "r2" else min)(r["validation"] for r in reports)
    assert result.validation == best
    assert result.selection.startswith("highest" if metric == "r2" else "lowest")
    run = Run.open(tmp_path / "run")
    said = predict_nodes(run, task.data)
    error = (said.probability - task.data.graph.y)[task.split.test].square().mean().sqrt()
    assert float(error) == pytest.approx(result.metrics["rmse"])
    assert evaluate_part(run, task.data).metrics == result.metrics
    table = table_of(said, ["id"])
    assert list(table) == ["id", "part", "truth", "prediction"]
    assert [table["part"].count(part) for part in ("train", "validation", "test")] == [24, 8, 8]
    assert table["truth"] == pytest.approx(line().tolist())


def test_the_lowest_error_is_kept_and_not_the_highest():
    task = node_task(line())
    trainer = Trainer(config(task), task)
    for epoch, value in enumerate((3.0, 1.0, 2.0), 1):
        trainer._take(EpochReport(epoch, 0.0, value, 0.5, 0.1, 0.1))
    assert trainer.progress.best.epoch == 2


def binary_graphs(count: int = 40) -> GraphSet:
    """Graphs of two nodes whose two features say two things; a third of the second is missing."""
    draw = torch.Generator().manual_seed(0)
    both = torch.tensor([[0, 1], [1, 0]])
    graphs = []
    for i in range(count):
        x = torch.randn(1, 2, generator=draw)
        y = (x > 0).float()
        if i % 3 == 0:
            y[0, 1] = nan
        graphs.append(Data(x=x.repeat(2, 1), edge_index=both, y=y))
    return from_pyg_list(graphs)


def test_several_targets_with_gaps_are_learned(tmp_path):
    data = binary_graphs()
    chosen = RunConfig("gcn", "graph", options={"hidden_channels": 16}, folds=5)
    chosen = replace(chosen, training=TrainingConfig(epochs=40, batch_size=8))
    task = build_task(chosen, data)
    assert task.split_name == "random fold 0 of 5 seed 0"
    assert task.metric == "roc_auc"
    result = Trainer(chosen, task, out=tmp_path / "run").fit()
    assert result.test > 80
    names = [f"roc_auc/{name}" for name in data.targets.names]
    assert result.test == pytest.approx(sum(result.metrics[name] for name in names) / 2)
    table = table_of(predict_graphs(Run.open(tmp_path / "run"), data), ["id"])
    columns = [f"{what}_target_{i}" for i in (0, 1) for what in ("truth", "prediction")]
    chances = ["probability_target_0", "probability_target_1"]
    assert list(table) == ["id", "part", *columns, *chances]
    assert table["truth_target_1"][0] is None
    assert set(table["prediction_target_0"]) == {0, 1}


def test_a_metric_that_only_informs_may_be_undefined():
    y = torch.tensor([0, 1] * 20)
    y[8:16] = 1  # the whole test part
    data = from_pyg_list(
        [Data(x=torch.eye(2), edge_index=torch.empty(2, 0).long(), y=v) for v in y]
    )
    task = GraphTask(data, split(40, GraphSplit))
    scores = task.evaluate(Trainer(config(task), task).network.eval(), "test")
    assert scores.metrics.keys() == {"accuracy"}
    task = GraphTask(data, split(40, GraphSplit), metric="roc_auc")
    with pytest.raises(DataError, match="both labels for ROC-AUC"):
        task.evaluate(Trainer(config(task), task).network.eval(), "test")


def test_a_metric_of_choice_is_reported_beside_the_default():
    task = node_task(torch.arange(40) % 3, TrainingConfig(metric="macro_f1"))
    network = Trainer(config(task), task).network.eval()
    assert task.evaluate(network, "test").metrics.keys() == {"accuracy", "macro_f1"}
    assert task.evaluate(network, "test", brief=True).metrics.keys() == {"macro_f1"}
    assert task.record() == {"metric": "macro_f1"}
    assert node_task(torch.arange(40) % 3).record() == {}


def test_a_run_does_not_change_its_metric_on_the_way(tmp_path):
    task = node_task(line())
    Trainer(config(task, epochs=2), task, out=tmp_path / "run").fit()
    (tmp_path / "run" / "result.json").unlink()
    chosen = config(task, epochs=3, metric="r2")
    other = NodeTask(task.data, task.split, training=chosen.training)
    with pytest.raises(ConfigError, match=r"protocol\.metric"):
        Trainer(chosen, other, out=tmp_path / "run", allow_changes=True).fit()


# Direction ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["geof", "gcn"])
def test_messages_run_along_the_edge_and_signatures_do_not(method):
    count = 12
    chain = torch.stack([torch.arange(count - 1), torch.arange(1, count)])
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    data = from_pyg(Data(x=x, edge_index=chain, y=torch.arange(count) % 2), directed=True)
    both = from_pyg(Data(x=x, edge_index=chain, y=torch.arange(count) % 2))
    task = NodeTask(data, split(count))
    assert torch.equal(task.signature.values, NodeTask(both, split(count)).signature.values)
    small = {"hidden_channels": 8} if method == "gcn" else {"hidden_channels": 8, "blocks": 2}
    run = RunConfig(method, "node", options=small)
    network = Trainer(run, task).network.eval()
    before = network(task.inputs)
    x = x.clone()
    x[5] += 1
    moved = from_pyg(Data(x=x, edge_index=chain, y=torch.arange(count) % 2), directed=True)
    after = network(NodeTask(moved, split(count)).inputs)
    changed = (before != after).any(1).nonzero().flatten().tolist()
    assert min(changed) == 5
    assert max(changed) > 5


def test_graphs_may_be_directed_and_links_may_not():
    arrow = torch.tensor([[0, 1], [1, 2]])
    graphs = [Data(x=torch.eye(3), edge_index=arrow, y=i % 2) for i in range(20)]
    task = GraphTask(from_pyg_list(graphs, directed=True), split(20, GraphSplit))
    assert task.inputs_of(torch.tensor([0])).edge_index.tolist() == arrow.tolist()
    undirected = GraphTask(from_pyg_list(graphs), split(20, GraphSplit))
    assert torch.equal(task.signature.values, undirected.signature.values)
    links = link_task()
    with pytest.raises(ConfigError, match="without direction for the link task"):
        LinkTask(replace(links.data, directed=True), links.split)

"""One loop for three tasks: what it writes, what chooses the epoch, what it must not see."""

from __future__ import annotations

import json

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.link_splits import LeakError, random_link_split
from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import GraphSplit, NodeSplit, random_node_split
from geof.errors import ConfigError, DataError, NonFiniteError
from geof.signature import SignatureSettings
from geof.training import (
    GraphTask,
    LinkTask,
    Network,
    NodeTask,
    Task,
    TrainSettings,
    fit,
    load_checkpoint,
)
from geof.training.networks import NetworkSpec
from tests.graphs import random_sample

GCN = {"hidden_channels": 8, "num_layers": 1, "dropout": 0.0}
GEOF = {"hidden_channels": 8, "blocks": 2}


def node_graph(labels: torch.Tensor | None = None) -> NodeGraph:
    x, edge_index, _ = random_sample(0, nodes=40, edges=70, dtype=torch.float32)
    y = (x[:, 0] > 0).long() if labels is None else labels
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
    return NodeGraph("toy", Data(x=x, edge_index=edge_index, y=y), ("no", "yes"))


def node_task(labels: torch.Tensor | None = None) -> NodeTask:
    return NodeTask(node_graph(labels), random_node_split(40, 0), signature=SignatureSettings(3))


def link_task() -> LinkTask:
    data = node_graph()
    return LinkTask(
        data, random_link_split(data.graph.edge_index, 40, 0), signature=SignatureSettings(3)
    )


def graph_task(**options) -> GraphTask:
    graphs = []
    for i in range(30):
        x, edge_index, _ = random_sample(i, nodes=4 + i % 3, edges=6, dtype=torch.float32)
        edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
        graphs.append(Data(x=x + i % 2, edge_index=edge_index, y=torch.tensor([i % 2])))
    part = torch.arange(30)
    split = GraphSplit(part[:18], part[18:24], part[24:], "fixed")
    data = GraphSet("toys", graphs, ("no", "yes"))
    return GraphTask(data, split, **{"batch_size": 7, "signature": SignatureSettings(3), **options})


TASKS = {"node": node_task, "link": link_task, "graph": graph_task}


def run(task: Task, out=None, epochs=8, encoder="gcn", seed=0, **settings):
    options = GCN if encoder == "gcn" else GEOF
    plan = TrainSettings(epochs=epochs, seed=seed, **settings)
    return fit(task, plan, encoder=encoder, options=options, preset="test", out=out)


@pytest.mark.parametrize("encoder", ["gcn", "geof"])
@pytest.mark.parametrize("kind", TASKS)
def test_run_folder_holds_what_it_says(kind, encoder, tmp_path):
    task, out = TASKS[kind](), tmp_path / "run"
    _, result = run(task, out, encoder=encoder)
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "split.npz",
        "checkpoint.safetensors",
        "result.json",
    }
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 9))
    chosen = max(lines, key=lambda line: (line["validation"], -line["validation_loss"]))
    stored = json.loads((out / "result.json").read_text())
    assert (stored["best_epoch"], stored["validation"]) == (chosen["epoch"], chosen["validation"])
    assert stored["split_hash"] == task.split_hash
    assert stored["test"] == stored["metrics"][task.metric] == result.test

    # The folder alone rebuilds the network, and the network gives the recorded number.
    spec = json.loads((out / "config.json").read_text())["network"]
    again = Network(NetworkSpec(**spec))
    load_checkpoint(out / "checkpoint.safetensors", again)
    again.eval()
    assert task.evaluate(again, "test").metrics == result.metrics


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_learns(kind):
    task = TASKS[kind]()
    network, _ = run(task, epochs=60, encoder="geof", weight_decay=0.0)
    early = sum(float(loss) for loss in task.losses(Network(_spec(task)), 1))
    late = sum(float(loss) for loss in task.losses(network, 1))
    assert late < 0.8 * early


def _spec(task: Task) -> NetworkSpec:
    width = task.signature.values.size(1)
    return NetworkSpec("geof", GEOF, task.kind, task.in_channels, width, task.num_classes)


def test_the_chosen_epoch_is_what_is_kept(tmp_path):
    """Validation labels that contradict training make an early epoch the best."""
    data, split = node_graph(), random_node_split(40, 0)
    labels = data.graph.y.clone()
    labels[split.validation] = 1 - labels[split.validation]
    task = node_task(labels)
    network, result = run(task, tmp_path / "run", epochs=60)
    assert result.best_epoch < 60
    network.eval()
    assert task.evaluate(network, "validation").metrics["accuracy"] == result.validation


def test_test_labels_have_no_influence():
    """Scrambled test labels change the test number and nothing else."""
    labels = node_graph().graph.y.clone()
    scrambled = labels.clone()
    test = random_node_split(40, 0).test
    scrambled[test] = 1 - scrambled[test]
    (one, first), (two, second) = run(node_task(labels)), run(node_task(scrambled))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert first.validation == second.validation
    assert second.test == pytest.approx(100 - first.test)


@pytest.mark.parametrize("kind", TASKS)
def test_same_seed_same_bits(kind):
    def weights(seed: int) -> torch.Tensor:
        network, _ = run(TASKS[kind](), seed=seed, epochs=3)
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_patience_stops_early():
    labels = torch.arange(40) % 2  # nothing to learn
    _, result = run(node_task(labels), epochs=200, patience=5)
    assert result.epochs == result.best_epoch + 5 < 200


def test_graphs_come_in_another_order_each_epoch():
    task = graph_task()
    orders = [[int(y) for _, ys in _seen(task, epoch) for y in ys] for epoch in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def _seen(task: GraphTask, epoch: int):
    seen = []

    def spy(inputs):
        seen.append((inputs, inputs.x[:, 0].mul(1e4).long().tolist()))
        return torch.zeros(inputs.num_graphs, 2)

    list(task.losses(spy, epoch))
    return seen


def test_link_runs_check_for_leaks_first():
    data = node_graph()
    split = random_link_split(data.graph.edge_index, 40, 0)
    assert link_task().leak_checked
    object.__setattr__(split, "train", torch.cat([split.train, split.test[:, :1]], dim=1))
    with pytest.raises(LeakError):
        LinkTask(data, split)


def test_link_structure_comes_from_training_edges_only():
    task = link_task()
    seen = {tuple(pair) for pair in task.inputs.edge_index.t().tolist()}
    for pairs in (task.split.validation, task.split.test):
        for u, v in pairs.t().tolist():
            assert (u, v) not in seen
            assert (v, u) not in seen


def test_unlabelled_nodes_cannot_be_split():
    labels = node_graph().graph.y.clone()
    labels[3] = -1
    with pytest.raises(DataError, match="labelled node"):
        node_task(labels)
    part = torch.arange(60)
    with pytest.raises(DataError, match="labelled node"):
        NodeTask(node_graph(), NodeSplit(part[:30], part[30:45], part[45:], "too large"))


@pytest.mark.parametrize("encoder", ["gcn", "geof"])
def test_divergence_names_the_epoch(encoder):
    with pytest.raises(NonFiniteError, match=r"Epoch \d+, step \d: Expected"):
        run(node_task(), encoder=encoder, epochs=60, learning_rate=1e30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "'epochs'"),
        ({"patience": 0}, "'patience'"),
        ({"learning_rate": 0.0}, "'learning_rate'"),
        ({"weight_decay": -1.0}, "'weight_decay'"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainSettings(**options)


def test_unknown_encoder_and_option():
    with pytest.raises(ConfigError, match=r"'geoff'.*Did you mean 'geof'"):
        fit(node_task(), TrainSettings(epochs=1), encoder="geoff")
    with pytest.raises(ConfigError, match=r"'model.temprature'.*Did you mean 'temperature'"):
        fit(node_task(), TrainSettings(epochs=1), options={"temprature": 3})
    with pytest.raises(ConfigError, match="PyG's GCN"):
        fit(node_task(), TrainSettings(epochs=1), encoder="gcn", options={"depth": 3})


def test_roc_auc_needs_two_classes():
    task = graph_task()
    three = GraphSet("three", task.data.graphs, ("a", "b", "c"))
    with pytest.raises(DataError, match="two classes"):
        GraphTask(three, task.split, metric="roc_auc")

"""A tree of settings: checked as a whole, complete, and the same when read again."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from torch_geometric.data import Data

from geof import GeoF
from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError
from geof.training import Plan, TrainSettings, run_experiment
from geof.training.plan import metric_of
from geof.training.settings import BatchSettings
from geof.yaml_options import dump_settings, read_settings
from tests.training.toys import graph_set, node_graph


def test_every_setting_is_written_out():
    plan = Plan.from_tree({"epochs": 3, "model": {"steps": 4}}, task="link")
    assert (plan.training.epochs, plan.model["steps"]) == (3, 4)
    own = inspect.signature(GeoF).parameters.keys() - {"in_channels", "signature_channels"}
    assert plan.model.keys() == own
    assert plan.model["temperature"] == 1.0
    assert plan.readout["normalise"] is False
    assert plan.signature.walk_length == 16


def test_a_plan_survives_its_settings_file(tmp_path):
    tree = {
        "epochs": 3,
        "learning_rate": 1e-3,
        "batch_size": 9,
        "fanouts": [3, 2],
        "model": {"log_scale_bounds": [-1.0, 1.0], "normalise": "batch"},
        "readout": {"dropout": 0.5},
        "signature": {"walk_length": 4, "degree": "log"},
    }
    plan = Plan.from_tree(tree, task="node")
    path = tmp_path / "settings.yaml"
    path.write_text(dump_settings(plan.tree()))
    again = Plan.from_tree(read_settings(path), task="node")
    assert again.training == plan.training
    assert again.batches == plan.batches == BatchSettings(9, (3, 2))
    assert json.dumps(again.tree()) == json.dumps(plan.tree())


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"epoch": 3}, r"Unknown setting 'epoch'.*Did you mean 'epochs'"),
        ({"batchsize": 3}, "Did you mean 'batch_size'"),
        ({"modell": {}}, "Did you mean 'model'"),
        ({"model": {"step": 3}}, r"'model\.step'.*Did you mean 'steps'"),
        ({"model": {"in_channels": 3}}, r"Unknown option 'model\.in_channels'"),
        ({"readout": {"drop": 0.5}}, r"'readout\.drop'.*Did you mean 'dropout'"),
        ({"readout": {"pool": "sum"}}, r"'readout\.pool'"),  # only graphs are pooled
        ({"signature": {"walk_lengt": 3}}, r"'signature\.walk_lengt'.*Did you mean 'walk_length'"),
        ({"model": 3}, "'model' to be a section"),
        ({"model": [3]}, "'model' to be a section"),
        ({"epochs": "many"}, "'epochs' to be an integer"),
        ({"epochs": None}, "'epochs' to be an integer"),
        ({"fanouts": [3]}, "'batch_size' beside 'fanouts'"),
    ],
)
def test_mistakes_are_told_before_any_data_is_read(tree, message):
    with pytest.raises(ConfigError, match=message):
        Plan.from_tree(tree, task="node")


def test_tasks_and_encoders_are_known_by_name():
    with pytest.raises(ConfigError, match=r"a task \(got 'nodes'\).*Did you mean 'node'"):
        Plan.from_tree({}, task="nodes")
    with pytest.raises(ConfigError, match=r"\(got 'gcm'\).*Did you mean 'gcn'"):
        Plan.from_tree({}, task="node", encoder="gcm")
    with pytest.raises(ConfigError, match=r"'model\.steps'"):
        Plan.from_tree({"model": {"steps": 3}}, task="node", encoder="gcn")


def test_an_empty_section_is_none():
    assert Plan.from_tree({"model": None, "readout": {}}, task="node") == Plan.from_tree(
        {}, task="node"
    )


def test_the_split_is_the_seed_unless_there_is_one():
    assert Plan.from_tree({}, task="node", split="3").training.seed == 3
    assert Plan.from_tree({"seed": 7}, task="node", split="3").training.seed == 7
    assert Plan.from_tree({}, task="graph", split="scaffold").training == TrainSettings()


def build(task: str, data, split: str = "0", **tree):
    return Plan.from_tree(tree, task=task, split=split, folds=5).build_task(data)


def test_every_split_is_another_and_each_is_the_same_again():
    for kind, data in (("node", node_graph()), ("link", node_graph()), ("graph", graph_set())):
        first, second, again = (build(kind, data, split).split_hash for split in ("0", "1", "0"))
        assert first == again != second
        # Other seeds on the same split are other initialisations, not another split.
        assert build(kind, data, "0", seed=5).split_hash == first


def test_splits_that_do_not_exist():
    with pytest.raises(ConfigError, match=r"'--split' from 0 to 4 \(got 5\)"):
        build("graph", graph_set(), "5")
    for kind, data in (("node", node_graph()), ("link", node_graph()), ("graph", graph_set())):
        for split in ("first", "-1", "1.5"):
            with pytest.raises(ConfigError, match="'--split' to be a number from 0"):
                build(kind, data, split)
    with pytest.raises(ConfigError, match="ogbg-molhiv for '--split scaffold'"):
        build("graph", graph_set(), "scaffold")


def test_tasks_fit_their_data():
    with pytest.raises(ConfigError, match=r"graph for a set of graphs \(got 'node' for 'toys'\)"):
        build("node", graph_set())
    with pytest.raises(ConfigError, match=r"\(got 'graph' for 'toy'\)"):
        build("graph", node_graph())


def test_what_has_no_label_is_in_no_part():
    labels = node_graph().graph.y.clone()
    labels[::7] = -1
    split = build("node", node_graph(labels)).split
    chosen = torch.cat([split.train, split.validation, split.test])
    assert sorted(chosen.tolist()) == [i for i in range(40) if i % 7]
    graphs = list(graph_set().graphs)
    graphs[4] = Data(x=graphs[4].x, edge_index=graphs[4].edge_index, y=torch.tensor([-1]))
    split = build("graph", GraphSet("toys", graphs, ("no", "yes"))).split
    chosen = torch.cat([split.train, split.validation, split.test])
    assert sorted(chosen.tolist()) == [i for i in range(30) if i != 4]


def test_benchmarks_have_their_own_metric():
    assert metric_of(graph_set()) == "accuracy"
    assert metric_of(GraphSet("ogbg-molhiv", [], ("0", "1"))) == "roc_auc"
    assert metric_of(GraphSet("MUTAG", [], ("0", "1"))) == "accuracy"


def test_a_plan_is_what_is_run(tmp_path):
    tree = {
        "epochs": 2,
        "batch_size": 8,
        "fanouts": [2],
        "model": {"hidden_channels": 8, "blocks": 2},
        "signature": {"walk_length": 3},
    }
    plan = Plan.from_tree(tree, task="node", preset="own", split="1")
    task = plan.build_task(NodeGraph(**{**vars(node_graph()), "content_hash": "abc"}))
    network, result = run_experiment(plan.experiment(task), out=tmp_path)
    assert (result.preset, result.seed, result.epochs) == ("own", 1, 2)
    assert network.encoder.out_channels == 8
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["signature"]["walk_length"] == 3
    assert (config["batch_size"], config["fanouts"], config["order_seed"]) == (8, [2], 1)
    assert config["network"]["options"]["steps"] == 2

"""The config of a run: checked as a whole, complete, and the same when read again."""

from __future__ import annotations

import inspect
import json
import math
from copy import deepcopy

import pytest
import torch
from torch_geometric.data import Data

from geof import GeoF
from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError
from geof.io import read_yaml
from geof.training import RunConfig, Trainer, TrainingConfig, build_task
from geof.training import config as config_module
from geof.training.tasks import metric_of
from tests.training.toys import graph_set, node_graph


def parse(tree=None, **about) -> RunConfig:
    """Parse options over no preset."""
    return RunConfig.parse({"preset": "none", **about}, tree or {})


def test_every_option_is_written_out():
    config = parse({"epochs": 3, "options": {"steps": 4}}, task="link")
    assert (config.training.epochs, config.options["steps"]) == (3, 4)
    given = {"in_channels", "signature_channels", "edge_categories", "edge_channels"}
    own = inspect.signature(GeoF).parameters.keys() - given
    assert config.options.keys() == own
    assert config.options["temperature"] == 1.0
    assert config.readout["normalise"] is False
    assert config.signature.walk_length == 16


def test_names_of_earlier_versions_are_understood():
    config = parse({"encoder": "gcn", "model": {"num_layers": 4}})
    assert (config.method, config.options["num_layers"]) == ("gcn", 4)


def test_later_layers_lie_over_earlier_ones_and_over_the_preset():
    tuned = RunConfig.parse({"task": "node"})
    assert (tuned.method, tuned.preset) == ("geof", "tuned")
    assert tuned.options["normalise"] == "batch"
    config = RunConfig.parse({"options": {"steps": 3}}, {"options": {"blocks": 4}, "epochs": 7})
    assert (config.options["steps"], config.options["blocks"]) == (3, 4)
    assert config.options["normalise"] == "batch"
    assert config.training.epochs == 7
    assert config.training.schedule == "cosine"


def test_the_task_follows_from_the_data():
    def task(**data):
        return RunConfig.parse({"data": data}).task

    assert task(dataset="CiteSeer") == "node"
    assert task(dataset="NCI1") == "graph"
    assert task(molecules="m.csv", label="y") == "graph"
    assert task(npz="g.npz") == "node"


def test_a_config_survives_its_file_and_its_record(tmp_path):
    tree = {
        "epochs": 3,
        "learning_rate": 1e-3,
        "batch_size": 9,
        "fanouts": [3, 2],
        "options": {"log_scale_bounds": [-1.0, 1.0], "normalise": "batch"},
        "readout": {"dropout": 0.5},
        "signature": {"walk_length": 4, "degree": "log"},
    }
    config = parse(tree, task="node", data={"npz": "g.npz"}, split=3)
    path = tmp_path / "run.yaml"
    path.write_text(config.to_yaml())
    again = RunConfig.parse(read_yaml(path))
    assert again.training == config.training
    assert (config.training.batch_size, config.training.fanouts) == (9, (3, 2))
    assert again.to_dict() == config.to_dict()
    stored = json.loads(json.dumps(config.to_dict()))
    assert RunConfig.from_dict(stored).to_dict() == config.to_dict()
    assert RunConfig.from_dict(stored).options == config.options


def test_an_option_that_is_off_stays_off_over_a_preset(tmp_path):
    config = RunConfig.parse({"method": "geof", "task": "link"}, {"hidden_edges": None})
    assert RunConfig.parse({"task": "link"}).training.hidden_edges is not None
    path = tmp_path / "run.yaml"
    path.write_text(config.to_yaml())
    assert RunConfig.parse(read_yaml(path)).training.hidden_edges is None


def test_a_checkpoint_does_not_tell_where_files_are():
    config = parse(data={"nodes": "a.csv", "edges": "b.csv", "label": "kind"})
    assert config.to_dict()["data"]["nodes"].endswith("/a.csv")
    assert config.without_paths().to_dict()["data"] == {"label": "kind"}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"epoch": 3}, r"Unknown option 'epoch'.*Did you mean 'epochs'"),
        ({"batchsize": 3}, "Did you mean 'batch_size'"),
        ({"option": {}}, "Did you mean 'options'"),
        ({"options": {"step": 3}}, r"'options\.step'.*Did you mean 'steps'"),
        ({"options": {"in_channels": 3}}, r"Unknown option 'options\.in_channels'"),
        (
            {"options": {"recompute": "off"}},
            r"'options\.recompute' to be True or False \(got 'off'",
        ),
        ({"options": {"scale_features": 1}}, r"'options\.scale_features' to be True or False"),
        ({"options": {"steps": "3"}}, r"'options\.steps' to be an integer \(got '3'\)"),
        (
            {"options": {"log_scale_bounds": [1.0]}},
            r"'options\.log_scale_bounds' to be a list of 2",
        ),
        ({"options": {"outputs": "al"}}, r"'options\.outputs'.*Did you mean 'all'"),
        ({"readout": {"dropout": "no"}}, r"'readout\.dropout' to be a finite number"),
        ({"signature": {"walk_length": True}}, r"'signature\.walk_length'"),
        ({"data": {"node": "a.csv"}}, r"'data\.node'.*Did you mean 'nodes'"),
        ({"data": {"nodes": 3}}, r"'data\.nodes'"),
        ({"data": {"edge_columns": "keep"}}, r"'data\.edge_columns'.*'ignore', 'refuse'"),
        ({"folds": 0}, "'folds' to be an integer >= 1"),
        ({"preset": 3}, "'preset' to be text"),
        ({"preset": "tuend"}, "a preset of 'geof'.*Did you mean 'tuned'"),
        ({"readout": {"drop": 0.5}}, r"'readout\.drop'.*Did you mean 'dropout'"),
        ({"readout": {"pool": "sum"}}, r"'readout\.pool'"),  # only graphs are pooled
        ({"signature": {"walk_lengt": 3}}, r"'signature\.walk_lengt'.*Did you mean 'walk_length'"),
        ({"options": 3}, "'options' to be a section"),
        ({"model": [3]}, "'options' to be a section"),
        ({"epochs": "many"}, "'epochs' to be an integer"),
        ({"epochs": None}, "'epochs' to be an integer"),
        ({"fanouts": [3]}, "'batch_size' beside 'fanouts'"),
    ],
)
def test_mistakes_are_told_before_any_data_is_read(tree, message):
    with pytest.raises(ConfigError, match=message):
        parse(tree, task="node") if "preset" not in tree else RunConfig.parse(tree)


def test_tasks_and_methods_are_known_by_name():
    with pytest.raises(ConfigError, match=r"'task' \(got 'nodes'\).*Did you mean 'node'"):
        parse(task="nodes")
    with pytest.raises(ConfigError, match=r"\(got 'gcm'\).*Did you mean 'gcn'"):
        parse(task="node", method="gcm")
    with pytest.raises(ConfigError, match=r"'options\.steps'"):
        parse({"options": {"steps": 3}}, task="node", method="gcn")


def test_an_empty_section_is_none():
    assert parse({"options": None, "readout": {}}, task="node") == parse(task="node")


def test_the_split_is_the_seed_unless_there_is_one():
    assert parse(task="node", split="3").seed == 3
    assert parse({"seed": 7}, task="node", split="3").seed == 7
    assert parse(task="graph", split="scaffold").seed == 0
    assert parse(task="graph", split="scaffold").training == TrainingConfig()


def build(task: str, data, split: str = "0", **tree):
    return build_task(parse(tree, task=task, split=split, folds=5), data)


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
    with pytest.raises(ConfigError, match="ogbg-molhiv for split 'scaffold'"):
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


def test_a_config_is_what_is_run(tmp_path):
    tree = {
        "epochs": 2,
        "batch_size": 8,
        "fanouts": [2],
        "options": {"hidden_channels": 8, "blocks": 2},
        "signature": {"walk_length": 3},
    }
    config = parse(tree, task="node", split="1")
    task = build_task(config, NodeGraph(**{**vars(node_graph()), "content_hash": "abc"}))
    trainer = Trainer(config, task, out=tmp_path)
    result = trainer.fit()
    assert (result.preset, result.seed, result.epochs) == ("none", 1, 2)
    assert trainer.network.encoder.out_channels == 8
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["signature"]["walk_length"] == 3
    protocol = about["protocol"]
    assert (protocol["batch_size"], protocol["fanouts"], protocol["order_seed"]) == (8, [2], 1)
    assert about["run"]["options"]["steps"] == 2
    assert about["revision"] == 1
    assert RunConfig.from_dict(about["run"]).to_dict() == config.to_dict()


def test_a_trainer_wants_the_configs_task():
    with pytest.raises(ConfigError, match=r"'link' \(got a task for 'node'\)"):
        Trainer(parse(task="link"), build("node", node_graph()))


def rates(**options) -> list[float]:
    training = TrainingConfig(learning_rate=0.1, **options)
    return [training.learning_rate_at(epoch) for epoch in range(1, training.epochs + 1)]


def test_a_constant_rate_after_a_linear_rise():
    assert rates(epochs=3) == [0.1, 0.1, 0.1]
    assert rates(epochs=5, warmup=4) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    assert rates(epochs=2, warmup=4) == pytest.approx([0.025, 0.05])


def test_a_cosine_begins_at_the_rate_and_falls_towards_zero():
    cosine = rates(epochs=10, schedule="cosine")
    assert cosine[0] == 0.1
    assert cosine[5] == pytest.approx(0.05)  # half of the way
    assert cosine == sorted(cosine, reverse=True)
    assert cosine[-1] == pytest.approx(0.05 * (1 + math.cos(0.9 * math.pi)))
    assert 0 < cosine[-1] < 0.003
    warm = rates(epochs=10, schedule="cosine", warmup=2)
    assert warm == pytest.approx([0.5 * cosine[0], *cosine[1:]])


def test_looks_come_every_so_often_and_at_the_end():
    training = TrainingConfig(epochs=8, evaluate_every=3)
    assert [e for e in range(1, 9) if training.looks_at(e)] == [3, 6, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "'epochs' to be an integer >= 1"),
        ({"epochs": 2.5}, "'epochs'"),
        ({"patience": 0}, "'patience'"),
        ({"learning_rate": 0.0}, "'learning_rate' to be a finite number above 0"),
        ({"learning_rate": math.nan}, "'learning_rate'"),
        ({"learning_rate": "1e-2"}, "'learning_rate'"),
        ({"weight_decay": -1.0}, "'weight_decay'"),
        ({"optimiser": "adamx"}, "'optimiser'.*Did you mean 'adam"),
        ({"schedule": "cosin"}, "'schedule'.*Did you mean 'cosine'"),
        ({"warmup": -1}, "'warmup'"),
        ({"clip": 0.0}, "'clip'"),
        ({"evaluate_every": 0}, "'evaluate_every'"),
        ({"deterministic": "no"}, "'deterministic' to be True or False"),
        ({"deterministic": 1}, "'deterministic'"),
        ({"seed": -1}, "'seed'"),
    ],
)
def test_ranges(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainingConfig.of(options)


def test_a_refusal_tells_what_the_option_means():
    with pytest.raises(ConfigError, match=r"\(got 0\)\. Most passes over the training part\.$"):
        TrainingConfig(epochs=0)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'learning_rat'.*Did you mean 'learning_rate'"):
        TrainingConfig.of({"learning_rat": 0.1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "'batch_size'"),
        ({"batch_size": "many"}, "'batch_size'"),
        ({"batch_size": 8, "fanouts": 10}, r"'fanouts' to be a list.*\(got 10\)"),
        ({"batch_size": 8, "fanouts": "10,10"}, "'fanouts'"),
        ({"fanouts": [10]}, "'batch_size' beside 'fanouts'"),
    ],
)
def test_batches(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**options)


def test_fanouts_may_come_as_a_list():
    assert TrainingConfig(batch_size=8, fanouts=[3, 2]) == TrainingConfig(
        batch_size=8, fanouts=(3, 2)
    )


class TestDataOfAPreset:
    """A preset may say that the attributes of edges are used, and nothing else of the data."""

    @pytest.fixture
    def says(self, monkeypatch):
        def tell(data):
            tree = {"epochs": 3, "data": data}
            monkeypatch.setattr(config_module, "load_preset", lambda *_: deepcopy(tree))

        return tell

    @pytest.mark.parametrize(
        ("given", "found"), [({}, "use"), ({"edge_columns": "ignore"}, "ignore")]
    )
    def test_it_lies_below_what_is_given(self, says, given, found):
        says({"edge_columns": "use"})
        about = {"task": "graph", "preset": "tuned", "data": {"dataset": "BBBP", **given}}
        config = RunConfig.parse(about)
        assert (config.data.edge_columns, config.data.dataset) == (found, "BBBP")
        assert config.training.epochs == 3

    def test_of_nothing(self, says):
        says({"edge_columns": None})
        config = RunConfig.parse({"task": "graph", "preset": "tuned", "data": {"dataset": "BBBP"}})
        assert config.data.edge_columns is None

    @pytest.mark.parametrize("data", [{"dataset": "NCI1"}, {"edge_columns": "maybe"}])
    def test_anything_else_is_refused(self, says, data):
        says(data)
        with pytest.raises(ConfigError):
            RunConfig.parse({"task": "graph", "preset": "tuned", "data": {"dataset": "BBBP"}})

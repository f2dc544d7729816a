"""What a method may bring besides states: loss, decoder, pretext, work between epochs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from geof.errors import ConfigError
from geof.methods.interface import Encoding, Outputs
from geof.methods.registry import Method, register, unregister
from geof.training import PretrainingConfig, RunConfig, TrainingConfig, Watch
from tests.training.toys import TASKS, fit, network_of, node_task


class Everything(nn.Module):
    """A linear map with everything a method may have."""

    def __init__(self, in_channels, task, num_nodes, num_edges, num_classes, *, width=4):
        super().__init__()
        self.given = (task, num_nodes, num_edges, num_classes)
        self.out_channels = width
        self.map = nn.Linear(in_channels, width)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("epochs_ended", torch.zeros((), dtype=torch.long))
        self.log: list[str] = []

    def forward(self, inputs):
        self.log.append("train" if self.training else "eval")
        states = self.norm(self.map(inputs.x))
        return Encoding(states, penalty=states.square().mean(), context="told")

    def pretext_loss(self, inputs):
        self.log.append("pretext")
        return (self.map(inputs.x) - 1).square().mean()

    def end_epoch(self, view):
        self.epochs_ended += 1
        self.log.append("end")
        score = view.score(Encoding(torch.zeros(view.inputs.x.size(0), self.out_channels)))
        assert 0 <= score <= 100
        assert view.epoch == int(self.epochs_ended)


class OwnReadout(nn.Module):
    def __init__(self, in_channels, num_classes, *, factor=2.0):
        super().__init__()
        self.map, self.factor = nn.Linear(in_channels, num_classes), factor

    def forward(self, encoding, inputs, pairs):
        assert encoding.context in ("told", None)
        logits = self.map(encoding.states)
        return Outputs(logits, [(1.0, logits), (self.factor, 3 * logits)])


class Silent(nn.Module):
    def __init__(self, in_channels):
        super().__init__()

    def forward(self, encoding, inputs, pairs):
        return encoding.states[pairs[0]].sum(-1)


@pytest.fixture(autouse=True)
def _registered():
    register(Method("mine", Everything, readouts={"node": OwnReadout, "link": Silent}))
    yield
    unregister("mine")


def parse(tree=None, **about) -> RunConfig:
    return RunConfig.parse({"method": "mine", "task": "node", **about}, tree or {})


def test_a_method_is_given_what_it_names():
    for kind, make in TASKS.items():
        task = make()
        network, shape = network_of(task, method="mine"), task.shape
        assert network.encoder.given == (
            *(kind, shape.num_nodes, shape.num_edges, shape.num_classes),
        )
    assert network.encoder.given[1:3] == (None, None)  # a set of graphs has no one size


def test_the_loss_is_what_is_graded_and_the_penalty():
    logits = torch.tensor([2.0])
    outputs = Outputs(logits, [(0.5, logits), (2.0, 3 * logits)], penalty=torch.tensor(7.0))
    assert outputs.loss(lambda z: z.sum()).item() == 0.5 * 2 + 2 * 6 + 7
    assert Outputs(logits).loss(lambda z: z.sum()).item() == 2
    task = node_task()
    network = network_of(task, method="mine")
    outputs = network.outputs(task.inputs)
    (loss,) = task.losses(network, 1)
    train, y = task.split.train, task.data.graph.y
    cross = nn.functional.cross_entropy
    wanted = cross(outputs.prediction[train], y[train])
    wanted = wanted + 2 * cross(3 * outputs.prediction[train], y[train])
    wanted = wanted + network.encoder(task.inputs).penalty
    torch.testing.assert_close(loss, wanted)


def test_a_readout_of_its_own_or_the_shared_one():
    assert parse().readout == {"kind": "own", "factor": 2.0}
    config = parse({"readout": {"kind": "shared"}})
    assert config.readout == {"kind": "shared", "dropout": 0.0}
    network = network_of(node_task(), method="mine", readout={"kind": "shared"})
    assert not network.has_own_readout
    assert network(node_task().inputs).shape == (40, 2)
    assert "kind" not in parse(task="graph").readout
    with pytest.raises(ConfigError, match=r"readout.kind.*Did you mean 'shared'"):
        parse({"readout": {"kind": "shard"}})
    with pytest.raises(ConfigError, match=r"readout.dropout.*Valid: 'factor', 'kind'"):
        parse({"readout": {"dropout": 0.1}})
    with pytest.raises(ConfigError, match=r"Unknown option 'readout\.kind'"):
        parse({"readout": {"kind": "own"}}, method="gcn")


@pytest.mark.parametrize("freeze", [True, False])
def test_first_the_pretext_then_the_task(freeze):
    task = node_task()
    stage = PretrainingConfig(epochs=3, learning_rate=0.1, freeze=freeze)
    training = TrainingConfig(epochs=2, learning_rate=0.1)
    alone, _ = fit(task, TrainingConfig(epochs=1), method="mine", pretraining=stage)
    reports = []
    network, result = fit(
        task, training, method="mine", pretraining=stage, watch=Watch(on_epoch=reports.append)
    )
    log = network.encoder.log
    assert log[:3] == ["pretext"] * 3
    assert "pretext" not in log[3:]
    assert [report.validation is None for report in reports] == [True, True, True, False, False]
    assert result.epochs == 5
    assert result.best_epoch > 3
    same = torch.equal(alone.encoder.map.weight, network.encoder.map.weight)
    assert same == freeze
    assert int(network.encoder.epochs_ended) == result.best_epoch - 3
    if freeze:
        assert "train" not in log  # normalisation keeps the statistics of the pretext
        assert log.count("eval") == 1  # the graph is encoded once for all epochs of the probe
        assert not network.encoder.map.weight.requires_grad
    else:
        assert "train" in log


def test_a_frozen_encoders_states_are_not_those_of_another():
    task = node_task()
    first = network_of(task, TrainingConfig(seed=0), method="mine").eval()
    second = network_of(task, TrainingConfig(seed=1), method="mine").eval()
    for network in (first, second):
        before = network.encode(task.inputs).states
        network.freeze_encoder()
        assert torch.equal(network.encode(task.inputs).states, before)
        assert network.encode(task.inputs).penalty is None
        assert not network.train().encoder.training


def test_stages_that_cannot_be():
    with pytest.raises(ConfigError, match="'gcn', which has no pretext task"):
        fit(node_task(), TrainingConfig(), method="gcn", pretraining=PretrainingConfig(epochs=2))
    stage = PretrainingConfig(epochs=2)
    with pytest.raises(ConfigError, match="nothing would be left to train"):
        fit(TASKS["link"](), TrainingConfig(), method="mine", pretraining=stage)
    for options in ({"epochs": -1}, {"learning_rate": 0}, {"weight_decay": -1}, {"freeze": 1}):
        with pytest.raises(ConfigError, match=rf"pretraining.{next(iter(options))}"):
            PretrainingConfig(**options)
    with pytest.raises(ConfigError, match=r"'pretraining.epoch'.*Did you mean 'epochs'"):
        parse({"pretraining": {"epoch": 3}})


def test_the_stage_before_is_part_of_the_config(monkeypatch):
    assert parse().tree()["pretraining"]["epochs"] == 0
    config = parse({"pretraining": {"epochs": 3, "freeze": False}})
    assert config.tree()["pretraining"]["epochs"] == 3
    assert RunConfig.parse(config.tree()) == config
    # Switched off over a preset that has one, it stays off when the config is read again.
    preset = {"pretraining": {"epochs": 5}}
    monkeypatch.setattr("geof.training.config.load_preset", lambda *_: preset)
    assert parse().pretraining.epochs == 5
    off = parse({"pretraining": {"epochs": 0}})
    assert RunConfig.parse(off.tree()) == off


def test_the_learning_rate_falls_in_steps():
    training = TrainingConfig(
        epochs=6, learning_rate=1.0, schedule="step", decay_every=2, decay_factor=0.5
    )
    assert [training.learning_rate_at(e) for e in range(1, 7)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    for options in (
        {"schedule": "step"},
        {"schedule": "step", "decay_every": 3},
        {"schedule": "cosine", "decay_every": 3},
        {"decay_factor": 0.5},
    ):
        with pytest.raises(ConfigError, match="'decay_every' and 'decay_factor'"):
            TrainingConfig(**options)
    for bad in ({"decay_every": 0}, {"decay_factor": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            TrainingConfig(**{"schedule": "step", "decay_every": 3, "decay_factor": 0.5, **bad})


def test_what_changes_between_epochs_is_not_averaged():
    with pytest.raises(ConfigError, match="Expected no 'weight_averaging' for 'mine'"):
        network_of(node_task(), TrainingConfig(weight_averaging=0.9), method="mine")

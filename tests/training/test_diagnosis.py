"""A run that stops being finite says where, keeps the best epoch and leaves the weights finite."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from geof import GeoF
from geof.errors import NonFiniteError
from geof.training import TrainingConfig, Watch
from geof.training.network import diagnose
from geof.training.predict import Run
from tests.training.toys import FRAGILE, TASKS, fit, graph_task, network_of, node_task

SETTINGS = TrainingConfig(epochs=9, learning_rate=0.02)
OPTIONS = {"hidden_channels": 8, "blocks": 2}


class Spoilt:
    """A task whose loss goes wrong at one optimiser step; remembers the network's weights."""

    def __init__(self, task, epoch, step, spoil):
        self.task, self.where, self.spoil = task, (epoch, step), spoil
        self.network, self.before = None, {}

    def __getattr__(self, name):
        return getattr(self.task, name)

    def losses(self, network, epoch):
        self.network = network
        for step, loss in enumerate(self.task.losses(network, epoch), start=1):
            if (epoch, step) == self.where:
                self.before = {n: p.detach().clone() for n, p in network.named_parameters()}
                loss = self.spoil(loss, network)
            yield loss

    def assert_untouched(self):
        for name, value in self.network.named_parameters():
            assert torch.equal(value, self.before[name]), name
            assert bool(value.isfinite().all()), name


def nan_loss(loss, network):
    return loss * torch.nan


def nan_gradient(loss, network):
    return loss + (0 * network.readout.mlp[0].bias[0]).abs().sqrt()  # 0 forward, NaN backward


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (nan_loss, r"a finite training loss \(got nan\)"),
        (nan_gradient, r"finite gradients \(that of readout\.mlp\.0\.bias is not\)"),
    ],
)
def test_the_step_is_named_and_not_taken(spoil, said, tmp_path):
    task, reports = Spoilt(graph_task(), 4, 2, spoil), []
    with pytest.raises(NonFiniteError, match=rf"Epoch 4, optimiser step 2: Expected {said}"):
        fit(
            task,
            SETTINGS,
            options=OPTIONS,
            readout={"hidden_channels": 4},
            out=tmp_path,
            watch=Watch(on_epoch=reports.append),
        )
    task.assert_untouched()
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["epoch"], failure["optimiser_step"]) == (4, 2)
    assert failure["step"] is None  # the recurrence itself was sound
    assert failure["retried_blocks"] == [0, 0]
    assert len(reports) == 3
    # What was best so far is kept and can be used.
    best = max(reports, key=lambda r: (r.validation, -r.validation_loss, -r.epoch))
    network = Run.open(tmp_path).network
    score = task.evaluate(network, "validation")
    assert (score.metrics["accuracy"], score.loss) == (best.validation, best.validation_loss)
    assert not (tmp_path / "result.json").exists()


def test_the_message_names_the_kept_checkpoint(tmp_path):
    with pytest.raises(NonFiniteError, match=r"The checkpoint of epoch [123] is in '.*'"):
        fit(Spoilt(node_task(), 4, 1, nan_loss), SETTINGS, options=OPTIONS, out=tmp_path)
    with pytest.raises(NonFiniteError, match="No checkpoint was written yet") as caught:
        fit(Spoilt(node_task(), 1, 1, nan_loss), SETTINGS, options=OPTIONS)
    assert "Blocks jittered again per step: 0, 0." in str(caught.value)


def test_after_a_failure_the_run_goes_on_with_other_settings(tmp_path):
    spoilt, watch = Spoilt(node_task(), 4, 1, nan_loss), Watch(save_seconds=0)
    with pytest.raises(NonFiniteError):
        fit(spoilt, SETTINGS, options=OPTIONS, out=tmp_path, watch=watch)
    gentle = replace(SETTINGS, clip=0.1)
    _, result = fit(node_task(), gentle, options=OPTIONS, out=tmp_path, allow_changes=True)
    assert result.epochs == 9
    assert not (tmp_path / "failure.json").exists()


@pytest.mark.parametrize("method", ["geof", "gcn"])
@pytest.mark.parametrize("kind", TASKS)
def test_divergence_is_told_by_every_method_on_every_task(kind, method, tmp_path):
    options = OPTIONS if method == "geof" else {"hidden_channels": 8}
    settings = TrainingConfig(epochs=60, learning_rate=1e30)
    with pytest.raises(NonFiniteError, match=r"Epoch \d+, optimiser step \d+: Expected"):
        fit(TASKS[kind](), settings, method=method, options=options, out=tmp_path)
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["quantity"]
    if method == "geof":
        assert failure["step"] == 1


def test_a_forward_pass_that_fails_belongs_to_the_step_it_was_for(tmp_path):
    """Huge weights after the first step: the second cannot even compute its loss."""
    with pytest.raises(NonFiniteError, match="Epoch 1, optimiser step 2: Expected finite second"):
        fit(graph_task(), replace(SETTINGS, learning_rate=1e30), options=OPTIONS, out=tmp_path)


def exploding(factor: float, **options):
    """Return a network whose states grow by a factor with every step, and its task's inputs."""
    task = node_task()
    network = network_of(task, SETTINGS, options={**OPTIONS, "steps": 3, **options})
    network.encoder.geof.transport.message.weight.data.mul_(factor)
    return network, task.inputs


def test_the_recurrent_step_is_named():
    # Residuals of 1e10 and 1e20, whose squares are too much for single precision.
    network, inputs = exploding(1e10, spectral_floor=1e15, temperature=1e30)
    found = diagnose(network, inputs, "the loss")
    assert (found.step, found.retried_blocks) == (2, (0,))
    assert "second moments" in found.quantity
    assert "at recurrent step 2" in str(found)
    # Without moments the features themselves grow too large.
    found = diagnose(exploding(1e14, evolution="frozen")[0], inputs, "the loss")
    assert (found.quantity, found.step, found.retried_blocks) == ("features", 3, (0, 0, 0))
    found = diagnose(exploding(1.0)[0], inputs, "the loss")
    assert (found.quantity, found.step, found.retried_blocks) == ("the loss", None, (0, 0, 0))


def test_a_bad_parameter_is_named_before_what_follows_from_it():
    network, inputs = exploding(1.0)
    network.readout.weight.data[0, 0] = torch.inf
    assert diagnose(network, inputs, "the loss").quantity == "parameter readout.weight"


def test_jittered_blocks_are_counted(monkeypatch):
    step = GeoF.step

    def rescued(self, state, edges, signature, number, *, trace):
        state, found = step(self, state, edges, signature, number, trace=trace)
        return state, replace(found, retried_blocks=torch.tensor(5 * number))

    monkeypatch.setattr(GeoF, "step", rescued)
    network, inputs = exploding(1.0)
    found = diagnose(network, inputs, "the loss")
    assert found.retried_blocks == (0, 5, 10)
    assert "Blocks jittered again per step: 0, 5, 10." in str(found)


def test_looking_changes_nothing():
    task = node_task()
    network = network_of(task, SETTINGS, options=FRAGILE)
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    diagnose(network, task.inputs, "the loss")
    assert network.encoder.geof.training
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in before.items():
        assert torch.equal(network.state_dict()[name], value), name


def test_other_methods_have_no_steps():
    task = node_task()
    network = network_of(task, SETTINGS, method="gcn")
    found = diagnose(network, task.inputs, "the loss")
    assert (found.quantity, found.step, found.retried_blocks) == ("the loss", None, ())

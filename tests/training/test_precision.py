"""Runs whose dense layers compute in half precision."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from geof.data.sources import SignatureConfig
from geof.errors import ConfigError, NonFiniteError, StoppedError
from geof.training import RunConfig, Trainer, TrainingConfig, Watch
from geof.training.predict import Run
from tests.training.toys import FRAGILE, TASKS, config_of, node_task

TRAINING = TrainingConfig(epochs=4, learning_rate=0.02, clip=0.5)
STEADY = {**FRAGILE, "dropout": 0.0, "feature_dropout": 0.0}


def a_trainer(task, precision, out=None, watch=None, method="geof", **training):
    options = STEADY if method == "geof" else {"dropout": 0.0}
    training = replace(TRAINING, precision=precision, **training)
    config = config_of(task, training, method=method, options=options, signature=SignatureConfig(3))
    return Trainer(config, task, out=out, watch=watch)


@pytest.mark.parametrize("method", ["geof", "gcn"])
@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(("precision", "unit"), [("bf16", 2**-8), ("float16", 2**-11)])
def test_losses_are_those_of_single_precision_within_the_formats_error(
    kind, precision, unit, method, tmp_path
):
    plain = a_trainer(TASKS[kind](), None, method=method)
    plain.fit()
    lowered = a_trainer(TASKS[kind](), precision, tmp_path, method=method)
    result = lowered.fit()
    first = [trainer.progress.reports[0].loss for trainer in (plain, lowered)]
    assert first[0] != first[1]
    assert abs(first[0] - first[1]) < 8 * unit * abs(first[0])
    assert all(p.dtype == torch.float32 for p in lowered.network.parameters())
    # The run is applied as it was judged.
    scores = Run.open(tmp_path).evaluate_part(lowered.task.data)
    assert scores.metrics == result.metrics
    assert json.loads((tmp_path / "config.json").read_text())["run"]["training"]["precision"]


def test_answers_are_in_single_precision(tmp_path):
    task = node_task()
    a_trainer(task, "bf16", tmp_path).fit()
    run = Run.open(tmp_path)
    whole, pieces = run.predict_nodes(task.data), run.predict_nodes(task.data, piece_size=20)
    assert whole.probability.dtype == pieces.probability.dtype == torch.float32
    torch.testing.assert_close(pieces.probability, whole.probability, rtol=0, atol=2**-5)
    assert run.embed_nodes(task.data).vectors.dtype == torch.float32


@pytest.mark.parametrize("precision", ["bf16", "float16"])
def test_a_stopped_run_goes_on_to_the_same_bits(precision, tmp_path):
    whole = a_trainer(node_task(), precision)
    whole.fit()
    stop = Watch(should_stop=lambda: True, save_seconds=0.0)
    with pytest.raises(StoppedError):
        a_trainer(node_task(), precision, tmp_path, stop).fit()
    resumed = a_trainer(node_task(), precision, tmp_path)
    resumed.fit()
    assert resumed.progress.epoch == 4
    assert [r.loss for r in resumed.progress.reports] == [r.loss for r in whole.progress.reports]


def test_gradients_that_overflow_leave_a_step_out_and_the_scale_falls():
    trainer = a_trainer(node_task(), "float16")
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = {name: p.detach().clone() for name, p in trainer.network.named_parameters()}
    taken = []
    while not taken or taken[-1] == 0.0:
        loss = next(iter(trainer.task.losses(trainer.network, 1)))
        taken.append(trainer._step(loss, trainer.optimiser_of(1)))
        if taken[-1] == 0.0:
            for name, parameter in trainer.network.named_parameters():
                assert torch.equal(parameter, before[name]), name
    assert len(taken) > 1
    assert trainer.scaler.get_scale() == 2.0 ** (40 - (len(taken) - 1))


def test_gradients_that_are_not_finite_at_any_scale_are_told():
    trainer = a_trainer(node_task(), "float16")
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    parameter = next(trainer.network.parameters())
    steep = (parameter - parameter.detach()).abs().sum().sqrt()  # the slope at zero is infinite
    with pytest.raises(NonFiniteError, match="finite gradients"):
        trainer._step(steep, trainer.optimiser_of(1))


def test_single_precision_is_the_default_and_not_recorded():
    assert TrainingConfig(precision="float32") == TrainingConfig()
    assert "precision" not in RunConfig().to_dict()["training"]
    assert RunConfig.parse({"precision": "bf16"}).training.precision == "bf16"
    assert RunConfig.parse({"precision": "bf16"}) != RunConfig.parse({})
    with pytest.raises(ConfigError, match=r"known 'precision'.*'bf16'"):
        TrainingConfig(precision="bfloat16")

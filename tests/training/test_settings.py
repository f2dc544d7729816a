"""How to optimise and what a step sees: ranges, names, and the learning rate of each epoch."""

from __future__ import annotations

import math

import pytest

from geof.errors import ConfigError
from geof.training import BatchSettings, TrainSettings


def rates(**options) -> list[float]:
    settings = TrainSettings(learning_rate=0.1, **options)
    return [settings.learning_rate_at(epoch) for epoch in range(1, settings.epochs + 1)]


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
    settings = TrainSettings(epochs=8, evaluate_every=3)
    assert [e for e in range(1, 9) if settings.looks_at(e)] == [3, 6, 8]


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
        TrainSettings.from_options(options)


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'learning_rat'.*Did you mean 'learning_rate'"):
        TrainSettings.from_options({"learning_rat": 0.1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "'batch_size'"),
        ({"batch_size": "many"}, "'batch_size'"),
        ({"batch_size": 8, "fanouts": 10}, r"such as \[10, 10\] \(got 10\)"),
        ({"batch_size": 8, "fanouts": "10,10"}, "'fanouts'"),
        ({"fanouts": [10]}, "'batch_size' beside 'fanouts'"),
    ],
)
def test_batches(options, message):
    with pytest.raises(ConfigError, match=message):
        BatchSettings(**options)


def test_fanouts_may_come_as_a_list():
    assert BatchSettings(8, [3, 2]) == BatchSettings(8, (3, 2))

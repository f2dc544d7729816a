"""What a saved state holds: weights, moments, random numbers, the best epoch, the reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from geof.errors import DataError
from geof.training import TrainingConfig
from geof.training.checkpoint import (
    CURRENT,
    PREVIOUS,
    Best,
    EpochReport,
    Progress,
    discard_states,
    load_state,
    save_state,
)
from tests.training.toys import FRAGILE, network_of, node_task

REPORT = EpochReport(1, 0.7, 50.0, 0.69, 0.01, 1.3)


def build(seed: int = 0):
    task = node_task()
    network = network_of(task, TrainingConfig(seed=seed), options=FRAGILE)
    return task, network, torch.optim.Adam(network.parameters(), lr=0.05)


def step(task, network, optimiser) -> None:
    network.train()
    optimiser.zero_grad()
    next(task.losses(network, 1)).backward()
    optimiser.step()


def weights(network) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def test_everything_comes_back(tmp_path):
    task, network, optimiser = build()
    step(task, network, optimiser)
    best = Best((50.0, -0.69), 1, weights(network))
    step(task, network, optimiser)
    unseen = replace(REPORT, epoch=2, validation=None, validation_loss=None, loss=0.1 + 0.2)
    save_state(tmp_path, Progress([REPORT, unseen], best, 1.5), network, optimiser)
    here = weights(network)
    step(task, network, optimiser)
    wanted = weights(network)

    task, network, optimiser = build(seed=1)
    progress, notes = load_state(tmp_path, network, lambda epoch: optimiser)
    assert notes == []
    assert (progress.reports, progress.epoch, progress.seconds) == ([REPORT, unseen], 2, 1.5)
    assert (progress.best.score, progress.best.epoch) == (best.score, 1)
    for name, value in best.weights.items():
        assert torch.equal(progress.best.weights[name], value), name
        assert torch.equal(network.state_dict()[name], here[name]), name
    # The next step uses the moments, the buffers and the random numbers.
    step(task, network, optimiser)
    for name, value in wanted.items():
        assert torch.equal(network.state_dict()[name], value), name


def test_nothing_there_is_the_beginning(tmp_path):
    _, network, optimiser = build()
    progress, notes = load_state(tmp_path, network, lambda epoch: optimiser)
    assert (progress.epoch, progress.best, notes) == (0, None, [])


def test_the_state_before_is_kept_until_the_next(tmp_path):
    _, network, optimiser = build()
    for count in (1, 2, 3):
        save_state(tmp_path, Progress([REPORT] * count), network, optimiser)
    assert {path.name for path in tmp_path.iterdir()} == {CURRENT, PREVIOUS}
    assert load_state(tmp_path, network, lambda epoch: optimiser)[0].epoch == 3
    (tmp_path / CURRENT).unlink()
    assert load_state(tmp_path, network, lambda epoch: optimiser)[0].epoch == 2
    (tmp_path / f"{CURRENT}.new").touch()
    discard_states(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_state_of_another_network_is_refused(tmp_path):
    _, network, optimiser = build()
    save_state(tmp_path, Progress([REPORT]), network, optimiser)
    other = network_of(node_task(), TrainingConfig(), options={**FRAGILE, "steps": 3})
    before = weights(other)
    with pytest.raises(DataError, match="missing encoder"):
        load_state(tmp_path, other, lambda epoch: torch.optim.Adam(other.parameters()))
    for name, value in before.items():
        assert torch.equal(other.state_dict()[name], value), name

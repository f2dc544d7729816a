"""Plain lines where there is no terminal: now and then, with the time that is left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from geof.cli import progress
from geof.training import EpochReport


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def lines(clock, runs, total, *, quiet=False) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    with progress.training_meter(console, total, quiet=quiet) as meter:
        for number, epochs in enumerate(runs):
            meter.start(f"run {number}")
            for epoch in epochs:
                clock[0] += 10
                meter.epoch(EpochReport(epoch, 0.5, 90.0, 0.1, 0.01, 1.0))
    return console.file.getvalue().splitlines()


def test_epochs_of_several_runs_add_up(clock):
    said = lines(clock, [range(1, 5), range(1, 5)], total=8)
    assert said[0] == "run 0"
    assert said[1] == "epoch 2, loss 0.500, validation 90.0 %, 1:00 left"
    assert said[-1] == "epoch 4, loss 0.500, validation 90.0 %, 0:00 left"


def test_a_resumed_run_counts_only_its_own_time(clock):
    said = lines(clock, [range(91, 95)], total=100)
    assert said[1] == "epoch 92, loss 0.500, validation 90.0 %, 1:20 left"


def test_quiet_says_nothing(clock):
    assert lines(clock, [range(1, 9)], total=8, quiet=True) == []


def test_hours_are_shown(clock):
    assert "1:46:20 left" in lines(clock, [[1, 2]], total=640)[1]

"""Thousands of steps of every task: neither memory nor open files grow."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import pytest

from geof.training import TrainingConfig, Watch
from tests.faults.harness import forked, tries
from tests.training.toys import SAMPLED_TASKS, TASKS, fit

STEPS = tries(600, 5000)
"""Of the optimiser, in each task."""
ROOM = 6_000_000
"""Bytes: what allocators keep; a tensor of a step is some hundred."""


def resident() -> int:
    """Return what this process holds, without what it has freed and the C library keeps.

    The process is forked off one in which hundreds of tests have left holes in the heap.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", [*TASKS, *SAMPLED_TASKS])
def test_nothing_grows(kind, tmp_path, tried):
    task = {**TASKS, **SAMPLED_TASKS}[kind]()
    seen: list[tuple[int, int]] = []
    steps = 0
    options = {"hidden_channels": 4, "blocks": 1, "controller_channels": 2}

    def count(epoch: int, step: int) -> None:
        nonlocal steps
        steps += 1

    def train() -> int:
        nonlocal steps
        fit(task, TrainingConfig(epochs=1), options=options, watch=Watch(on_step=count))
        epochs, steps = -(-STEPS // steps), 0

        def look(report) -> None:
            if report.epoch in (epochs // 3, epochs):
                seen.append((resident(), descriptors()))

        watch = Watch(on_epoch=look, on_step=count, save_seconds=0.5)
        training = TrainingConfig(epochs=epochs, learning_rate=1e-3)
        fit(task, training, options=options, out=tmp_path / "run", watch=watch)
        assert steps >= STEPS
        (early, files), (late, still) = seen
        print(late - early, still - files, steps)
        return int(late - early > ROOM or still > files)

    ended = forked(train, seconds=3600.0)
    assert ended.code == 0, ended.said
    tried(int(ended.said.split()[-1]))

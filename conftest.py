"""What makes thousands of short tests in one process cheaper, and where Triton's kernels run."""

from __future__ import annotations

import gc
import os

import pytest

# Threads that wait for each other do not spin for long: with a test process on every core they
# would mostly wait for one that cannot run. OpenMP reads this once; processes that tests start do
# not have it.
SPINS = "GOMP_SPINCOUNT"
given = {SPINS, "OMP_WAIT_POLICY"} & os.environ.keys()
if not given:
    os.environ[SPINS] = "1000"
import torch  # noqa: E402

if not given:
    del os.environ[SPINS]

# Without a GPU Triton's kernels are tested on the CPU. Triton reads this when it is imported, and
# torch_geometric imports it.
if not torch.cuda.device_count():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep modules and collected tests, alive to the end anyway, out of every collection."""
    gc.collect()
    gc.freeze()
    # Counting walks over all of them, a million objects, and every training asks whether any are.
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen


def leave_it_in_memory(handle: int) -> None:
    """Stand in for ``os.fsync``: nothing that tests write has to outlive the machine."""


def seed_the_processor(seed: int) -> torch.Generator:
    """Seed as ``torch.manual_seed`` does where there is nothing but a processor."""
    return torch.default_generator.manual_seed(int(seed))


os.fsync = leave_it_in_memory  # else a tenth of the time is waiting for the disk

# Torch notes the seed for three kinds of accelerators, each with the text of the whole stack, in
# case one is used later: a millisecond per call, and there are more than ten thousand.
if not torch.accelerator.is_available():
    torch.manual_seed = torch.random.manual_seed = seed_the_processor

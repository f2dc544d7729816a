"""What makes thousands of short tests in one process cheaper; it changes no result."""

from __future__ import annotations

import gc

import pytest
import torch


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep modules and collected tests, alive to the end anyway, out of every collection."""
    gc.collect()
    gc.freeze()


def seed_the_processor(seed: int) -> torch.Generator:
    """Seed as ``torch.manual_seed`` does where there is nothing but a processor."""
    return torch.default_generator.manual_seed(int(seed))


# Torch notes the seed for three kinds of accelerators, each with the text of the whole stack, in
# case one is used later: a millisecond per call, and there are more than ten thousand.
if not torch.accelerator.is_available():
    torch.manual_seed = torch.random.manual_seed = seed_the_processor

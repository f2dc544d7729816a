"""One thread, derandomised hypothesis runs, and the random draws and commands the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from geof.geometry import AdmissibleBox, num_coordinates
from geof.nn import CoupledState
from tests.cli.commands import Commands
from tests.pretended import elsewhere

__all__ = ["elsewhere"]

torch.set_num_threads(1)
settings.register_profile("geof", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("geof")


@dataclass
class RandomState:
    """Double-precision draws from one seed."""

    seed: int
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform numbers in [-1, 1]."""
        return 2 * torch.rand(shape, generator=self.generator, dtype=torch.float64) - 1

    def coordinates(self, box: AdmissibleBox, m: int, *leading: int) -> Tensor:
        """Return admissible coordinates; half of the entries lie on the boundary."""
        low, high = box.log_scale_bounds
        unit = (2 * self.uniform(*leading, num_coordinates(m))).clamp(-1, 1)
        log_scale = low + (high - low) * (unit[..., -m:] + 1) / 2
        return torch.cat([box.offdiagonal_bound * unit[..., :-m], log_scale.clamp(low, high)], -1)

    def coupled(
        self, box: AdmissibleBox, n: int, blocks: int, m: int, bound: float
    ) -> CoupledState:
        """Return a state of Proposition 3's set: features within the bound, some on it."""
        direction = torch.nn.functional.normalize(self.normal(n, blocks * m), dim=-1)
        radius = bound * (2 * self.uniform(n, 1).abs()).clamp(max=1)
        return CoupledState(radius * direction, self.coordinates(box, m, n, blocks))


@pytest.fixture(scope="session")
def random_state() -> type[RandomState]:
    """Return the constructor: ``random_state(seed).normal(3, 2)``."""
    return RandomState


@pytest.fixture(scope="session")
def geof() -> Iterator[Commands]:
    """Return what runs a command in a process of its own: ``geof("train", ...).code``."""
    commands = Commands()
    yield commands
    commands.close()

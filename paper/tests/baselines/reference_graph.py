"""A small graph and weights without a random generator, for numbers computed by public code.

The authors' code was run once on this graph with these weights, where its licence allows; the tests
hold its numbers, none of its text. A misreading of the code is then caught, not mirrored.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from geof.methods.interface import GraphInputs

EDGES = ((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (3, 5), (1, 6))
NODES = 7


def wave(*shape: int, start: float, scale: float = 1.0) -> Tensor:
    """Return values that look irregular but are the same everywhere: sines of 0.7 k + start."""
    count = torch.Size(shape).numel()
    return scale * (0.7 * torch.arange(count, dtype=torch.float64) + start).sin().reshape(shape)


def reference_edges() -> Tensor:
    """Return both directions of every edge, ``(2, 16)``."""
    one_way = torch.tensor(EDGES).t()
    return torch.cat([one_way, one_way.flip(0)], dim=1)


def reference_graph(channels: int = 5) -> GraphInputs:
    """Return the graph with features, in float64."""
    x = wave(NODES, channels, start=0.3)
    return GraphInputs.build(x, reference_edges(), torch.zeros(NODES, 1).double())


@torch.no_grad()
def fill(module: nn.Module, names: list[str], start: float = 1.0) -> None:
    """Give the parameters named, and no fewer, the weights of their place in the list."""
    parameters = dict(module.named_parameters())
    assert set(names) == set(parameters), set(names) ^ set(parameters)
    for place, name in enumerate(names):
        value = parameters[name]
        value.copy_(wave(*value.shape, start=start + place, scale=0.6))


def assert_close(found: Tensor, wanted: object, tolerance: float = 1e-6) -> None:
    """Check numbers of public code, which guards divisions by zero with other tiny constants."""
    numbers = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(found.detach(), numbers, rtol=0, atol=tolerance)

"""Random inputs shared by the tests."""

from __future__ import annotations

import torch
from torch import Tensor

Sample = tuple[Tensor, Tensor, Tensor]


def random_sample(
    seed: int,
    *,
    nodes: int = 9,
    edges: int = 24,
    channels: int = 5,
    signature: int = 3,
    dtype: torch.dtype = torch.float64,
) -> Sample:
    """Return features, directed edges (with repeats and self-loops) and signatures."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    edge_index = torch.randint(0, nodes, (2, edges), generator=generator)
    u = torch.rand(nodes, signature, generator=generator, dtype=torch.float64)
    return x.to(dtype), edge_index, u.to(dtype)

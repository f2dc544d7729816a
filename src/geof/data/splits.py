"""Seeded splits with a hash, so that a number can be traced to the nodes it was measured on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from geof.errors import ConfigError


@dataclass(frozen=True)
class NodeSplit:
    """Indices of training, validation and test nodes, each ascending.

    Attributes:
        train: Training nodes.
        validation: Nodes that choose the epoch.
        test: Nodes read once, at that epoch.
        name: How the split was made.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    name: str

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the three index lists."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            digest.update(part.numpy().astype("<i8").tobytes())
            digest.update(b"|")
        return digest.hexdigest()[:16]


def random_node_split(
    num_nodes: int,
    seed: int,
    *,
    nodes: Tensor | None = None,
    train: float = 0.6,
    validation: float = 0.2,
) -> NodeSplit:
    """Split nodes at random, 60/20/20 unless told otherwise (paper, section 4.1).

    The permutation comes from NumPy's PCG64, whose stream does not change between releases.

    Args:
        num_nodes: ``n``.
        seed: Which split.
        nodes: The nodes to split, indices or boolean mask (default: all).
        train: Share of training nodes.
        validation: Share of validation nodes; the rest is test.
    """
    if not (train > 0 and validation > 0 and train + validation < 1):
        raise ConfigError(
            "Expected 'train' and 'validation' to be positive shares that leave a rest for test "
            f"(got train={train}, validation={validation})."
        )
    pool = torch.arange(num_nodes) if nodes is None else torch.arange(num_nodes)[nodes]
    draw = np.random.Generator(np.random.PCG64(seed)).permutation(len(pool))
    order = pool[torch.from_numpy(draw)]
    first = round(train * len(pool))
    second = first + round(validation * len(pool))
    if not 0 < first < second < len(pool):
        raise ConfigError(
            f"Expected enough nodes for three parts (got {len(pool)}). Give at least 5."
        )
    return NodeSplit(
        train=order[:first].sort().values,
        validation=order[first:second].sort().values,
        test=order[second:].sort().values,
        name=f"random {train:g}/{validation:g}/{1 - train - validation:g} seed {seed}",
    )

"""Random draws that are the same on every machine and with every release of NumPy.

NumPy promises that the raw stream of PCG64 never changes; it promises no such thing for the
methods of ``Generator``. So everything is drawn from the raw stream.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]


def raw_stream(seed: int, *path: int) -> np.random.PCG64:
    """Return the bit generator of one purpose: equal arguments, equal stream, on any machine."""
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=path))


def raw_permutation(bits: np.random.PCG64, size: int) -> Integers:
    """Return a random order of ``range(size)`` that only depends on the raw stream."""
    return np.argsort(bits.random_raw(size), kind="stable").astype(np.int64)


def sorted_unique(values: Integers) -> Integers:
    """Return the distinct values, ascending: ``np.unique`` by sorting, far faster on NumPy 2.4."""
    ascending = np.sort(values)
    return ascending[run_starts(ascending)]


def run_starts(ascending: NDArray[Any]) -> Integers:
    """Return where each run of equal values begins."""
    fresh = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)

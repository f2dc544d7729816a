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


def pair_numbers(first: Integers, second: Integers, seed: int, *path: int) -> NDArray[np.float64]:
    """Return a number from [0, 1) per pair: the same for ``(i, j)`` and ``(j, i)``, and no state.

    A hash of the two nodes and the seed (the finaliser of SplitMix64) instead of a stream: a pair
    gets its number wherever it stands.

    >>> one, two = np.array([3, 5]), np.array([5, 3])
    >>> bool(np.ptp(pair_numbers(one, two, 7)) == 0.0)
    True
    """
    low, high = np.minimum(first, second), np.maximum(first, second)
    mixed = _mixed(low.astype(np.uint64) + raw_stream(seed, *path).random_raw())
    mixed = _mixed(mixed ^ high.astype(np.uint64))
    return np.asarray((mixed >> np.uint64(11)) * 2.0**-53)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a bijection of 64-bit words whose every bit depends on all."""
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sorted_unique(values: Integers) -> Integers:
    """Return the distinct values, ascending: ``np.unique`` by sorting, far faster on NumPy 2.4."""
    ascending = np.sort(values)
    return ascending[run_starts(ascending)]


def run_starts(ascending: NDArray[Any]) -> Integers:
    """Return where each run of equal values begins."""
    fresh = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)

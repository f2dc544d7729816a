"""Memory that is used again: fresh pages cost more than the arithmetic on small graphs.

The C library gives large blocks back to the system when they are freed, and every page asked for
again is cleared and mapped anew. Here freed blocks are kept, never more than were on loan at once,
and handed out again. ``GEOF_KEPT_MEMORY`` in the environment is a bound on them, half of the
machine's memory without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geof.errors import ConfigError
from geof.machine import memory_bytes

CHOICE = "GEOF_KEPT_MEMORY"
"""Environment variable: how much freed memory to keep, in bytes or as 64K, 512M, 2G."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

SMALL = 2**17
"""Below this size the C library keeps blocks by itself."""

LINE = 64
"""Bytes of a cache line."""


@cache
def kept_bytes() -> int:
    """Return up to which size in total freed blocks are kept; read once per process.

    The kernels read the same variable for the scratch of their threads (``native/tasks.h``), of
    which one keeps a quarter of it, a gibibyte without it.

    Raises:
        ConfigError: If ``GEOF_KEPT_MEMORY`` is no size.
    """
    given = os.environ.get(CHOICE)
    if not given:
        return memory_bytes() // 2
    size = re.fullmatch(r"(\d{1,12})([KMG]?)", given)
    if size is None:
        raise ConfigError(
            f"Expected {CHOICE} to be a number of bytes, such as 0, 536870912 or 512M with one of "
            f"K, M and G (got {given!r})."
        )
    return int(size[1]) * _UNITS[size[2]]


@dataclass
class _Bytes:
    """How many are on loan, and the most there were."""

    now: int = 0
    most: int = 0


_free: list[Tensor] = []
_lent = _Bytes()
_lock = RLock()  # a block may come back while one is taken, by the collector's hand


class _Lease:
    """A block on loan: numpy's array keeps it, torch's storage keeps the array."""

    def __init__(self, size: int) -> None:
        self.block = _take(size)
        self.__array_interface__: dict[str, Any] = {
            "data": (self.block.data_ptr(), False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        _give_back([self.block])


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised contiguous tensor of ``like``'s dtype on kept memory.

    The memory is free again when the tensor and all its views are gone.
    """
    # A compiler's stand-ins come first: it must not learn of a bound on its symbolic sizes.
    if type(like) not in (Tensor, torch.nn.Parameter) or like.device.type != "cpu":
        return like.new_empty(shape)
    size = torch.Size(shape).numel() * like.element_size()
    if size < SMALL:
        return like.new_empty(shape)
    return torch.from_numpy(np.asarray(_Lease(size))).view(like.dtype).view(*shape)


@contextmanager
def scratch(like: Tensor, *shapes: Sequence[int]) -> Iterator[list[Tensor]]:
    """Yield uninitialised tensors of ``like``'s dtype; their memory is free again afterwards.

    A block in use is off the list, so threads never share one.
    """
    sizes = [torch.Size(shape).numel() * like.element_size() for shape in shapes]
    blocks = [_take(size) for size in sizes]
    try:
        yield [
            block[:size].view(like.dtype).view(*shape)
            for block, size, shape in zip(blocks, sizes, shapes, strict=True)
        ]
    finally:
        _give_back(blocks)


def _take(size: int) -> Tensor:
    with _lock:
        fits = [k for k, block in enumerate(_free) if size <= block.numel() <= 2 * size + 2**16]
        block = _free.pop(min(fits, key=lambda k: _free[k].numel())) if fits else None
        _lent.now += size if block is None else block.numel()
        _lent.most = max(_lent.most, _lent.now)
        if block is None:
            _make_room_for(size)
    return _fresh(size) if block is None else block


def _fresh(size: int) -> Tensor:
    """Return a block at the start of a cache line.

    numpy asks Linux for huge pages, which torch does not: fewer to map, and less to look up when
    neighbours are fetched from all over a large graph.
    """
    block = torch.from_numpy(np.empty(size + LINE, np.uint8))
    start = -block.data_ptr() % LINE
    return block[start : start + size]


def _make_room_for(size: int) -> None:
    """Drop kept blocks until no more is held than was ever on loan at once.

    Batches differ in size: the blocks of the smaller ones would pile up beside the larger ones'.
    The nearest below the new size goes first, which the new block can stand in for.
    """
    _free.sort(key=lambda block: (block.numel() >= size, block.numel()))
    while _free and _kept() > min(kept_bytes(), _lent.most - _lent.now):
        smaller = sum(block.numel() < size for block in _free)
        _free.pop(smaller - 1 if smaller else -1)


def _kept() -> int:
    return sum(map(Tensor.numel, _free))


def _give_back(blocks: Sequence[Tensor]) -> None:
    with _lock:
        for block in sorted(blocks, key=Tensor.numel):
            _lent.now -= block.numel()
            if _kept() + block.numel() <= kept_bytes():
                _free.append(block)

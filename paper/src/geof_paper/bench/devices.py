"""Clock and memory where an epoch is computed: on the CPU, or on a device with its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from geof.devices import synchronise
from geof_paper.bench import memory

CPU = torch.device("cpu")


def clock_on(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds; where calls return before the work is done it waits for it."""
    if device.type == "cpu":
        return time.perf_counter

    def clock() -> float:
        synchronise(device)
        return time.perf_counter()

    return clock


def counts_memory(device: torch.device) -> bool:
    """Tell whether a peak of memory can be read: the process's on the CPU, else torch's own."""
    return device.type == "cpu" or _counters(device) is not None


def free_bytes(device: torch.device) -> int | None:
    """Return the memory an epoch may use, ``None`` where that is not told."""
    if device.type == "cpu":
        return memory.available_bytes()
    counters = _counters(device)
    return None if counters is None else int(counters.mem_get_info(device)[0])


def reset_device_peak(device: torch.device) -> int | None:
    """Forget the peak of a device and return the bytes it holds; ``None`` without counters."""
    counters = _counters(device)
    if counters is None:
        return None
    counters.empty_cache()
    counters.reset_peak_memory_stats(device)
    return int(counters.memory_allocated(device))


def device_peak(device: torch.device) -> int | None:
    """Return the most bytes of tensors on a device since :func:`reset_device_peak`."""
    counters = _counters(device)
    return None if counters is None else int(counters.max_memory_allocated(device))


def _counters(device: torch.device) -> Any | None:
    """Return torch's module of a kind of device if it counts memory, as those of CUDA and XPU."""
    module = getattr(torch, device.type, None)
    return module if hasattr(module, "max_memory_allocated") else None

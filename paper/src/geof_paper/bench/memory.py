"""Memory: what the machine has left, what a process peaked at, what a method is going to need."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from geof.machine import memory_bytes, peak_resident_bytes, told_bytes
from geof_paper.bench.problems import Facts

# The paper-literal form needs about 18 kB per edge at width 64 in 8 blocks, the factored one in
# torch operators about 40 kB per node. What fits even at these prices needs no prediction.
EDGE_CEILING = 20_000
NODE_CEILING = 60_000
# Methods with presets are below these prices (docs/baselines.md), but drop and view wide features.
DATA_COPIES = 8

USABLE = 0.9
"""Share of the available memory that a prediction may fill."""

_OWN_MAPPING = -3  # M_MMAP_THRESHOLD of malloc.h
_MACHINE, _PROCESS = "/proc/meminfo", "/proc/self/status"


def available_bytes() -> int:
    """Return the memory a new process may use: the machine's, or less inside a container."""
    free = [told_bytes(_MACHINE, "MemAvailable") or memory_bytes()]
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        if limit != "max":
            free.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # not in such a group
    return min(free)


def surely_fits(facts: Facts, available: int) -> bool:
    """Tell whether even the most wasteful method fits, so that nothing need be predicted."""
    ceiling = facts.largest_edges * EDGE_CEILING + facts.largest_nodes * NODE_CEILING
    return ceiling + DATA_COPIES * facts.data_bytes < USABLE * available


def extrapolate(small: tuple[int, int], large: tuple[int, int], size: int) -> int:
    """Return the peak at ``size`` on the line through two measured ``(size, peak)`` pairs.

    A method may have a cheaper form for larger graphs; the line never falls.
    """
    slope = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return int(large[1] + slope * (size - large[0]))


def refusal(predicted: int, available: int) -> str | None:
    """Return why a run with this peak is not started, or ``None`` if it may."""
    if predicted <= USABLE * available:
        return None
    return (
        f"would need about {predicted / 1e9:.1f} GB, {available / 1e9:.1f} GB are available "
        f"(of which {USABLE:.0%} may be planned with)"
    )


def release_freed() -> None:
    """Give freed memory back to the system, so that it does not hide in a later baseline."""
    gc.collect()
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


@contextmanager
def every_byte_counted() -> Iterator[None]:
    """Hand freed tensors back to the system at once, so that peaks are those of live memory.

    glibc keeps what is freed in its heap, in holes that depend on everything allocated before:
    peaks of the same work differ by a half. The price is time, so never time inside.

    Holes that are there already still serve any request that fits. They are emptied on entry, so
    that filling one counts; measure in a young process, which has few.
    """
    release_freed()
    option = _of_glibc("mallopt")
    if option is None:
        yield
        return
    option(_OWN_MAPPING, 2**16)
    try:
        yield
    finally:
        option(_OWN_MAPPING, 2**25)  # the largest that glibc comes to by itself


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Return a function of the C library, ``None`` where it is another one."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def reset_peak() -> None:
    """Lower the recorded peak of this process to its present size, where the system lets us."""
    with suppress(OSError):  # then the peak is that of the whole life of the process
        Path("/proc/self/clear_refs").write_text("5")


def resident_bytes() -> int:
    """Return the present resident size of this process."""
    return told_bytes(_PROCESS, "VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """Return the largest resident size since :func:`reset_peak`."""
    return peak_resident_bytes()

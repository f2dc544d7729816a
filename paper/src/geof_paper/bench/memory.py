"""Memory: what the machine has left, what a process peaked at, what a method is going to need."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

from geof_paper.bench.problems import Facts

# The paper-literal form needs about 18 kB per edge at width 64 in 8 blocks, the factored one in
# torch operators about 40 kB per node. What fits even at these prices needs no prediction.
EDGE_CEILING = 20_000
NODE_CEILING = 60_000
# Methods with presets are below these prices (docs/baselines.md), but drop and view wide features.
DATA_COPIES = 8

USABLE = 0.9
"""Share of the available memory that a prediction may fill."""

_MACHINE, _PROCESS = "/proc/meminfo", "/proc/self/status"


def available_bytes() -> int:
    """Return the memory a new process may use: the machine's, or less inside a container."""
    free = [_told_bytes(_MACHINE, "MemAvailable") or _physical_bytes()]
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        if limit != "max":
            free.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # not in such a group
    return min(free)


def total_bytes() -> int:
    """Return the machine's memory."""
    return _told_bytes(_MACHINE, "MemTotal") or _physical_bytes()


def _told_bytes(path: str, key: str) -> int | None:
    """Return a number of a file of Linux's ``/proc``, ``None`` where there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)


def reset_peak() -> None:
    """Lower the recorded peak of this process to its present size, where the system lets us."""
    with suppress(OSError):  # then the peak is that of the whole life of the process
        Path("/proc/self/clear_refs").write_text("5")


def resident_bytes() -> int:
    """Return the present resident size of this process."""
    return _told_bytes(_PROCESS, "VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """Return the largest resident size since :func:`reset_peak`."""
    own = _told_bytes(_PROCESS, "VmHWM")
    if own is not None:
        return own
    import resource  # not on Windows, where there is no /proc either

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

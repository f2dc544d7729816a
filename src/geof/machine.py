"""The machine a number was measured on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from geof.io import read_json, write_json

MACHINE = "machine.json"


def machine() -> dict[str, Any]:
    """Return what the numbers of time depend on."""
    return {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()}


def note_machine(folder: Path, device: str = "cpu") -> None:
    """Write ``machine.json`` into the folder of a run that ended here.

    Args:
        folder: The run folder.
        device: Where it was computed; noted if it was not the CPU.
    """
    write_json(folder / MACHINE, machine() | ({} if device == "cpu" else {"device": device}))


def noted_machine(folder: Path) -> dict[str, Any] | None:
    """Return the machine a run ended on, ``None`` if that was not noted."""
    path = folder / MACHINE
    return dict(read_json(path, "a note of the machine")) if path.is_file() else None


def processor() -> str:
    """Return the processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Return the machine's memory, 2 GiB where the system does not tell (Windows)."""
    told = told_bytes("/proc/meminfo", "MemTotal")
    if told is not None:
        return told
    if not hasattr(os, "sysconf"):
        return 2**31
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_resident_bytes() -> int:
    """Return this process's peak resident memory, 0 where the system does not tell (Windows).

    Linux counts into ``getrusage`` what the parent process had when it started this one;
    ``/proc`` tells this program's own.
    """
    own = told_bytes("/proc/self/status", "VmHWM")
    if own is not None:
        return own
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def told_bytes(path: str, key: str) -> int | None:
    """Return a number of a file of Linux's ``/proc``, ``None`` where there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)

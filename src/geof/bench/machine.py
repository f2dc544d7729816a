"""The machine behind a number."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from geof.bench.memory import total_bytes
from geof.version import __version__


def describe_machine(threads: int) -> dict[str, Any]:
    """Return processor, cores, memory, versions, threads and present load as JSON values."""
    return {
        "cpu": _cpu_model(),
        "cores": _usable_cores(),
        "memory_bytes": total_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "threads": threads,
        "load_average_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "geof": __version__,
        "torch": _version("torch"),
        "torch_geometric": _version("torch_geometric"),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"

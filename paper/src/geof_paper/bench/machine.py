"""The machine behind a number."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from geof.devices import device_model
from geof.machine import memory_bytes, processor
from geof.processes import cores
from geof.version import __version__
from geof_paper.bench.devices import CPU


def describe_machine(threads: int, device: torch.device = CPU) -> dict[str, Any]:
    """Return processor, device, cores, memory, versions, threads and load as JSON values."""
    return {
        "cpu": processor(),
        "device": str(device),
        "device_model": device_model(device),
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "threads": threads,
        "load_average_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "geof": __version__,
        "torch": _version("torch"),
        "torch_geometric": _version("torch_geometric"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"

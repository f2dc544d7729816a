"""Where a run computes: names of devices, which are there, waiting for them, their random numbers.

A device is no part of what decides a result: configs that differ in it alone are equal, and a
run may go on on another one. Bits are promised per device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from geof.errors import ConfigError, DeviceError, listed

AUTO = "auto"
"""The first CUDA device where there is one, else the CPU."""

_NUMBERED = ("cuda", "xpu")
_NAME = re.compile(r"auto|cpu|mps|(?:cuda|xpu)(?::\d{1,3})?")


def require_device_name(name: str) -> None:
    """Raise ``ConfigError`` for what names no device anywhere; whether it is here is not asked."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "Expected 'device' to be auto, cpu, cuda, mps or xpu, a certain one of several as in "
            f"cuda:1 (got {name!r}). Here there are: {listed(available_devices())}."
        )


def available_devices() -> list[str]:
    """Return the names of the devices that are here, the CPU first."""
    found = ["cpu"]
    for kind in _NUMBERED:
        found += [f"{kind}:{number}" for number in range(_count(kind))]
    return found + (["mps"] if torch.backends.mps.is_available() else [])


def _count(kind: str) -> int:
    module = getattr(torch, kind)
    return int(module.device_count()) if module.is_available() else 0


def resolve_device(name: str | None = None) -> torch.device:
    """Return the device a name means here, with its number.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1``, ``xpu``, ``mps``; ``auto`` or ``None`` is the first
            CUDA device where there is one, else the CPU.

    Raises:
        ConfigError: If it names no device anywhere.
        DeviceError: If it is not here; says what is.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    name = name or AUTO
    require_device_name(name)
    there = available_devices()
    if name == AUTO:
        name = next((found for found in there if found.startswith("cuda")), "cpu")
    if name in _NUMBERED and f"{name}:0" in there:
        name = f"{name}:{getattr(torch, name).current_device()}"
    if name not in there:
        raise DeviceError(
            f"Expected device '{name}' to be here (there is {listed(there)}). Take one of these, "
            "or device='auto' (--device auto); a GPU needs a torch that was built for it."
        )
    if name.startswith("cuda"):
        # Products in a fixed order want it, and it is read when the first of them is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("mps", 0) if name == "mps" else torch.device(name)


def synchronise(device: torch.device) -> None:
    """Wait until a device has done what it was asked; the CPU has when a call returns."""
    if device.type in _NUMBERED:
        getattr(torch, device.type).synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def device_model(device: torch.device) -> str | None:
    """Return what its maker calls a device, such as a GPU's name; ``None`` where torch knows none.

    >>> device_model(torch.device("cpu"))
    """
    if device.type not in _NUMBERED:
        return None
    return str(getattr(torch, device.type).get_device_name(device))


def random_state(device: torch.device) -> Tensor | None:
    """Return the state of a device's own random numbers; ``None`` where it has none."""
    if device.type in _NUMBERED:
        state: Tensor = getattr(torch, device.type).get_rng_state(device)
        return state
    return torch.mps.get_rng_state() if device.type == "mps" else None


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Put a device's random numbers where :func:`random_state` found them."""
    if device.type in _NUMBERED:
        getattr(torch, device.type).set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)


@contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Leave the random numbers of the CPU and of a device as they were."""
    before = random_state(device)
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        if before is not None:
            set_random_state(device, before)

"""One switch between the implementations of the step."""

from __future__ import annotations

import torch
from torch import Tensor

from geof.errors import ConfigError, nearest
from geof.geometry import apply_frame, frame_from_coordinates
from geof.kernels.factored import factored_step
from geof.kernels.interface import Backend
from geof.kernels.library import LARGEST_BLOCK, find_library
from geof.kernels.native import native_environment, native_evolve, native_step
from geof.kernels.reference import reference_step


def _environment(xi: Tensor, coords: Tensor) -> Tensor:
    return apply_frame(frame_from_coordinates(coords), xi)


_NATIVE = Backend("native", native_step, native_environment, native_evolve)

BACKENDS: dict[str, Backend] = {
    "reference": Backend("reference", reference_step, _environment),
    "torch": Backend("torch", factored_step, _environment),
    **({"native": _NATIVE} if find_library().library is not None else {}),
}
"""Implementations by name; ``native`` only where its library could be opened. The parity tests run
over every entry, so a new one is tested too."""


def resolve_backend(name: str, block_size: int, device: torch.device | None = None) -> Backend:
    """Return the implementation called ``name``; ``"auto"`` is the fastest one that can be used.

    Args:
        name: A key of :data:`BACKENDS` or ``"auto"``.
        block_size: :math:`m`.
        device: Where the tensors are (default: the CPU).

    Raises:
        ConfigError: If there is no such backend, or it cannot work on such blocks or there.
    """
    obstacle = _obstacle_to_native(block_size, device)
    if name == "auto":
        return BACKENDS["torch"] if obstacle else BACKENDS["native"]
    if name == "native" and obstacle:
        raise ConfigError(
            f"Expected 'backend' to be usable here, but the native kernels are {obstacle}. "
            "Use backend='auto' or 'torch'; `geof doctor` tells more."
        )
    if name not in BACKENDS:
        raise ConfigError(
            f"Expected 'backend' to name an implementation of the step (got {name!r}). "
            + nearest(name, ["auto", *BACKENDS])
        )
    return BACKENDS[name]


def _obstacle_to_native(block_size: int, device: torch.device | None) -> str | None:
    if "native" not in BACKENDS:
        return find_library().reason
    if block_size > LARGEST_BLOCK:
        return f"made for blocks of at most {LARGEST_BLOCK} (got {block_size})"
    if device is not None and device.type != "cpu":
        return f"made for the CPU (got tensors on {device})"
    return None

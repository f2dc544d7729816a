"""One switch between the implementations of the step."""

from __future__ import annotations

import torch
from torch import Tensor

from geof.errors import ConfigError, DtypeError, nearest
from geof.geometry import apply_frame, frame_from_coordinates
from geof.kernels.factored import factored_images, factored_statistics, factored_targets
from geof.kernels.interface import Backend, Request, Statistic, Support
from geof.kernels.library import LARGEST_BLOCK, find_library
from geof.kernels.native import (
    native_environment,
    native_fused_step,
    native_gate,
    native_images,
    native_statistics,
    native_targets,
    native_whole_step,
)
from geof.kernels.native_arguments import STATISTIC_CODES
from geof.kernels.reference import reference_statistics

PRECISE = torch.float32, torch.float64


def _environment(xi: Tensor, coords: Tensor) -> Tensor:
    return apply_frame(frame_from_coordinates(coords), xi)


def _supported_by_reference(request: Request) -> Support:
    if request.dtype not in (None, *PRECISE):
        return Support(f"made for float32 or float64 (got {request.dtype})", DtypeError)
    return Support()


def _supported_by_torch(request: Request) -> Support:
    if request.dtype not in (None, *PRECISE, torch.float16, torch.bfloat16):
        return Support(f"made for floating-point numbers (got {request.dtype})", DtypeError)
    return Support()


def _supported_by_native(request: Request) -> Support:
    if request.block_size > LARGEST_BLOCK:
        got = f"(got {request.block_size})"
        return Support(f"made for blocks of at most {LARGEST_BLOCK} {got}", ConfigError)
    if request.device is not None and request.device.type != "cpu":
        return Support(f"made for the CPU (got tensors on {request.device})", ConfigError)
    if request.dtype not in (None, *PRECISE):
        return Support(f"made for float32 or float64 (got {request.dtype})", DtypeError)
    if request.statistic not in STATISTIC_CODES:
        return Support(f"not made for the statistic {request.statistic!r}", ConfigError)
    return Support()


_NATIVE = Backend(
    "native",
    native_statistics,
    native_environment,
    _supported_by_native,
    native_fused_step,
    native_gate,
    native_whole_step,
    native_images,
    native_targets,
)

BACKENDS: dict[str, Backend] = {
    "reference": Backend("reference", reference_statistics, _environment, _supported_by_reference),
    "torch": Backend(
        "torch",
        factored_statistics,
        _environment,
        _supported_by_torch,
        images=factored_images,
        targets=factored_targets,
    ),
    **({"native": _NATIVE} if find_library().library is not None else {}),
}
"""Implementations by name; ``native`` only where its library could be opened. The parity tests run
over every entry, so a new one is tested too."""


def resolve_backend(
    name: str,
    block_size: int,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    statistic: Statistic | None = None,
) -> Backend:
    """Return the implementation called ``name``; ``"auto"`` is the fastest one that can be used.

    Args:
        name: A key of :data:`BACKENDS` or ``"auto"``.
        block_size: :math:`m`.
        device: Where the tensors are (default: not known, the CPU is assumed).
        dtype: Their dtype (default: not known, float32 is assumed).
        statistic: Which second moment is wanted, if any.

    Raises:
        ConfigError: If there is no such backend, or it cannot work on such blocks or there.
        DtypeError: If it cannot work with such numbers.
    """
    request = Request(block_size, device, dtype, statistic)
    if name == "auto":
        native = BACKENDS.get("native")
        usable = native is not None and native.supports(request).error is None
        name = "native" if usable else "torch"
    if name == "native" and name not in BACKENDS:
        support = Support(find_library().reason, ConfigError)
    elif name not in BACKENDS:
        raise ConfigError(
            f"Expected 'backend' to name an implementation of the step (got {name!r}). "
            + nearest(name, ["auto", *BACKENDS])
        )
    else:
        support = BACKENDS[name].supports(request)
    if support.error is not None:
        kernels = "the native kernels are" if name == "native" else f"the {name} backend is"
        raise support.error(
            f"Expected 'backend' to be usable here, but {kernels} {support.reason}. "
            "Use backend='auto' or 'torch'; `geof doctor` tells more."
        )
    return BACKENDS[name]

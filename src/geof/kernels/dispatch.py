"""One switch between the implementations of the step."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from geof.errors import ConfigError, DtypeError, nearest
from geof.geometry import apply_frame, frame_from_coordinates
from geof.kernels.factored import (
    factored_environment,
    factored_images,
    factored_statistics,
    factored_targets,
    factored_update,
)
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
        factored_environment,
        _supported_by_torch,
        images=factored_images,
        targets=factored_targets,
        update=factored_update,
    ),
    **({"native": _NATIVE} if find_library().library is not None else {}),
}
"""Implementations by name that serve the CPU; ``native`` only where its library could be opened.
The parity tests run over every entry, so a new one is tested too. ``triton``, which is for GPUs and
imported when it is asked for, comes from :func:`find_triton`."""


class TritonFinding(NamedTuple):
    """Whether there is a Triton backend.

    Attributes:
        backend: It, or ``None``.
        reason: Why not, to follow "the triton backend is"; empty if there is one.
    """

    backend: Backend | None
    reason: str = ""


_found: list[TritonFinding] = []  # torch.compile traces this; it warns of functools.cache


def find_triton() -> TritonFinding:
    """Import the Triton backend the first time, unless Triton is not there."""
    if not _found:
        _found.append(_look_for_triton())
    return _found[0]


def _look_for_triton() -> TritonFinding:
    if find_spec("triton") is None:
        return TritonFinding(
            None, "not there: Triton is not installed (pip install 'geof[triton]')"
        )
    try:
        from geof.kernels.triton_backend import TRITON
    except ImportError as error:  # an installation for another Python or with parts missing
        return TritonFinding(None, f"not there: Triton cannot be imported ({error})")
    return TritonFinding(TRITON)


def _find(name: str) -> Backend | None:
    return find_triton().backend if name == "triton" else BACKENDS.get(name)


def backends_on(device: torch.device, block_size: int = 8) -> dict[str, Backend]:
    """Return the implementations that serve float32 blocks on a device, by name."""
    request = Request(block_size, device, torch.float32)
    found = {name: _find(name) for name in (*BACKENDS, "triton")}
    return {
        name: backend
        for name, backend in found.items()
        if backend is not None and backend.supports(request).error is None
    }


def _fastest(request: Request) -> str:
    """Return the fastest backend that can serve a request."""
    if request.device is None and torch.cuda.device_count():
        find_triton()  # a model is being made: later torch.compile may trace, which cannot import
    on_gpu = request.device is not None and request.device.type == "cuda"
    name = "triton" if on_gpu else "native"
    backend = _find(name)
    usable = backend is not None and backend.supports(request).error is None
    return name if usable else "torch"


def resolve_backend(
    name: str,
    block_size: int,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    statistic: Statistic | None = None,
) -> Backend:
    """Return the implementation called ``name``; ``"auto"`` is the fastest one that can be used.

    Args:
        name: A key of :data:`BACKENDS`, ``"triton"`` or ``"auto"``.
        block_size: :math:`m`.
        device: Where the tensors are (default: not known, the CPU is assumed).
        dtype: Their dtype (default: not known, float32 is assumed).
        statistic: Which second moment is wanted, if any.

    Raises:
        ConfigError: If there is no such backend, or it cannot work on such blocks or there.
        DtypeError: If it cannot work with such numbers.
    """
    request = Request(block_size, device, dtype, statistic)
    name = _fastest(request) if name == "auto" else name
    backend = _find(name)
    if backend is not None:
        support = backend.supports(request)
        if support.error is None:
            return backend
    elif name in ("native", "triton"):
        reason = find_library().reason if name == "native" else find_triton().reason
        support = Support(reason, ConfigError)
    else:
        raise ConfigError(
            f"Expected 'backend' to name an implementation of the step (got {name!r}). "
            + nearest(name, ["auto", *BACKENDS, "triton"])
        )
    assert support.error is not None, "what is supported was returned"
    kernels = "the native kernels are" if name == "native" else f"the {name} backend is"
    raise support.error(
        f"Expected 'backend' to be usable here, but {kernels} {support.reason}. "
        "Use backend='auto' or 'torch'; `geof doctor` tells more."
    )

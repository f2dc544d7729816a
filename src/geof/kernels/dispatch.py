"""One switch between the implementations of the step."""

from __future__ import annotations

from geof.errors import ConfigError, nearest
from geof.kernels.factored import factored_step
from geof.kernels.interface import Backend
from geof.kernels.reference import reference_step

BACKENDS: dict[str, Backend] = {"reference": reference_step, "torch": factored_step}
"""Implementations by name. The parity tests run over every entry, so a new one is tested too."""


def resolve_backend(name: str) -> Backend:
    """Return the implementation called ``name``; ``"auto"`` is the fastest one that is present.

    Raises:
        ConfigError: If there is no such backend.
    """
    if name == "auto":
        return BACKENDS["torch"]
    if name not in BACKENDS:
        raise ConfigError(
            f"Expected 'backend' to name an implementation of the step (got {name!r}). "
            + nearest(name, ["auto", *BACKENDS])
        )
    return BACKENDS[name]

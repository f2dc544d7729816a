"""What stands for Triton where it is not installed: enough to define the kernels, none to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as it is: without Triton nothing launches it."""
    return function

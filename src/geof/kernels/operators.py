"""What the operators of ``torch.library`` have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from geof.errors import DeviceError


def stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what torch runs in an operator's place while it traces, or on tensors without memory.

    One such tensor among others is enough for torch to take the stand-in, whose uninitialised
    results would pass for the operator's: several devices are refused.
    """

    @wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        leaves = tree_leaves((given, named))
        devices = {str(leaf.device) for leaf in leaves if isinstance(leaf, Tensor)}
        if len(devices) > 1:
            raise DeviceError(
                f"Expected all tensors on one device (got {', '.join(sorted(devices))}). "
                "Use .to(device) for the model, the features and the neighbourhoods alike."
            )
        return function(*given, **named)

    return run

"""Numbers as a page carries them: short, finite, plain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

DIGITS = 4
"""Significant digits of what is drawn; metrics are not rounded."""


def short(values: Any) -> Any:
    """Return nested lists of numbers with four significant digits; ``None`` for what is not finite.

    Args:
        values: A tensor, an array, a number, or (nested) lists of them.

    >>> short([1.23456, float("nan"), 12345.6, 2.0])
    [1.235, None, 12350, 2]
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray | np.generic):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [short(value) for value in values]
    return _short(values) if isinstance(values, float) else values


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def plain(value: Any) -> Any:
    """Return a value as plain JSON: tuples as lists, ``None`` for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

"""Typed settings: one place for names, defaults, ranges and their meaning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from geof.errors import ConfigError, nearest


def known_options(
    kind: type[Any], options: Mapping[str, Any], section: str = ""
) -> Mapping[str, Any]:
    """Return the options if a dataclass has a field for each.

    Args:
        kind: The dataclass.
        options: By name of the field.
        section: Where in a file of settings they stand, with the dot.

    Raises:
        ConfigError: For another one, naming the nearest.
    """
    valid = [field.name for field in fields(kind)]
    for name in options:
        if name not in valid:
            raise ConfigError(f"Unknown setting '{section}{name}'. " + nearest(name, valid))
    return options


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ``ConfigError`` unless ``value`` is a finite number in the range given."""
    wanted = "a finite number"
    wanted += "" if above is None else f" above {above:g}"
    wanted += "" if least is None else f" of at least {least:g}"
    wanted += "" if most is None else f" and at most {most:g}"
    wanted += "" if below is None else f" and below {below:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not number
        or not math.isfinite(value)  # type: ignore[arg-type]
        or (above is not None and value <= above)  # type: ignore[operator]
        or (least is not None and value < least)  # type: ignore[operator]
        or (most is not None and value > most)  # type: ignore[operator]
        or (below is not None and value >= below)  # type: ignore[operator]
    ):
        raise ConfigError(f"Expected '{name}' to be {wanted} (got {value!r}).")


def require_option(name: str, value: object, options: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` unless ``value`` is one of ``options``, naming the nearest."""
    if value not in options:
        hint = nearest(str(value), options)
        raise ConfigError(f"Expected a known '{name}' (got {value!r}). {hint}")


def require_divisible(channels: int, blocks: int) -> int:
    """Return the block size ``channels / blocks``.

    Raises:
        ConfigError: If either is not a positive integer or ``blocks`` does not divide
            ``channels``.
    """
    require_positive("hidden_channels", channels)
    require_positive("blocks", blocks)
    if channels % blocks:
        divisors = [b for b in range(1, channels + 1) if channels % b == 0]
        above = blocks * (channels // blocks + 1)
        raise ConfigError(
            "Expected 'blocks' to divide 'hidden_channels' "
            f"(got hidden_channels={channels}, blocks={blocks}). "
            f"Use hidden_channels={above} or blocks in {{{', '.join(map(str, divisors))}}}."
        )
    return channels // blocks


def require_positive(name: str, value: int, *, least: int = 1) -> None:
    """Raise ``ConfigError`` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"Expected '{name}' to be an integer >= {least} (got {value!r}).")

"""The error tree: every error this package raises on purpose derives from :class:`GeofError`.

A message says what was expected, what came and what to do. The classes also derive from the
built-in a caller would expect (``ValueError``, ``TypeError``), so existing handlers keep working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GeofError(Exception):
    """Root of the tree."""


class ShapeError(GeofError, ValueError):
    """A tensor has the wrong number of dimensions or the wrong size."""


class DtypeError(GeofError, TypeError):
    """An argument has the wrong type or dtype."""


class DeviceError(GeofError, RuntimeError):
    """A device is not there, or a tensor lies on another one than it is needed on."""


class DataError(GeofError, ValueError):
    """Input data cannot be used: indices out of range, non-finite values, missing pieces."""


class FolderLockedError(DataError):
    """Another process works in a folder."""


class ConfigError(GeofError, ValueError):
    """A setting is unknown, out of range or contradicts another."""


class GeometryError(GeofError, ArithmeticError):
    """A geometric quantity left the set on which it is defined."""


class NotPositiveDefiniteError(GeometryError):
    """A matrix stayed indefinite through the whole jitter schedule."""


class NonFiniteError(GeometryError):
    """A NaN or an infinity appeared where a finite number is required."""


class StoppedError(GeofError):
    """A run was asked to stop and has saved its state."""


class RankError(GeofError, RuntimeError):
    """The processes that train one run together did not meet, disagree, or lost one of them."""


class CostWarning(UserWarning):
    """What was asked for will take long, and something cheaper may do."""


class NumericalWarning(UserWarning):
    """A computation was rescued, for instance by a larger diagonal jitter."""


SHOWN = 10
"""How many of a list a message names before it counts the rest, unless they are options."""


def listed(names: Iterable[object], most: int = SHOWN) -> str:
    """Return names for a message, a long list cut.

    >>> listed(["a", "b"]), listed(range(4), most=2)
    ("'a', 'b'", '0, 1 and 2 more')
    """
    every = list(names)
    rest = len(every) - most
    if rest <= 1:  # naming the last is as short as counting it
        return ", ".join(map(repr, every))
    return f"{', '.join(map(repr, every[:most]))} and {rest} more"


def nearest(name: str, valid: Iterable[str], *, most: int = 50) -> str:
    """Return a hint naming the valid options and, when one is close, the likely one."""
    options = sorted(valid)
    folded = {option.casefold(): option for option in options}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    hint = f" Did you mean {folded[close[0]]!r}?" if close else ""
    return f"Valid: {listed(options, most)}.{hint}"

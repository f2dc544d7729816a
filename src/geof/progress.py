"""How long work tells how far it is, and beforehand what it will cost, to whoever listens.

The command line listens and shows it. In Python nothing is shown, but work of more than half a
minute is announced with a :class:`~geof.errors.CostWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from geof.errors import CostWarning

T = TypeVar("T")

LONG = 30.0
"""Seconds from which work is announced."""


class Listener:
    """Told about work; does nothing by itself."""

    def advance(self, what: str, done: int, total: int) -> None:
        """Know that so many of all pieces are done; the first call has none done."""

    def note(self, text: str) -> None:
        """Know a sentence that the user should read."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener be told about all work inside a ``with`` block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tracked(what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield items; tell how many are done.

    >>> list(tracked("letters", "ab", 2))
    ['a', 'b']
    """
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    listener.advance(what, 0, total)
    for done, item in enumerate(items, start=1):
        yield item
        listener.advance(what, done, total)


def announce(what: str, seconds: float, cheaper: str = "") -> None:
    """Say that work will take long, if it will, and what would be cheaper."""
    if seconds < LONG:
        return
    text = f"{what}: about {clock(seconds)} on this machine."
    if cheaper:
        text += f" Cheaper: {cheaper}."
    listener = _listener.get()
    if listener is None:
        warnings.warn(text, CostWarning, stacklevel=3)
    else:
        listener.note(text)


def clock(seconds: float) -> str:
    """Return minutes and seconds, with hours where there are any.

    >>> clock(75), clock(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"

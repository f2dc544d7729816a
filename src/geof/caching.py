"""What is derived once and used many times: a typed store that lives with what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Cache:
    """Values by key, each built the first time it is asked for.

    A key says what the value is and what else it depends on: begin it with the class or function
    that makes the value, so that two users never share one by accident.

    >>> cache = Cache()
    >>> cache.cached("answer", lambda: 42), cache.cached("answer", lambda: 43)
    (42, 42)
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the value of a key, built by ``build`` if there is none yet.

        It is built outside inference mode: a value first asked for while evaluating serves
        training afterwards.
        """
        if key not in self._values:
            grad = torch.is_grad_enabled()  # which leaving inference mode would switch on
            with torch.inference_mode(False), torch.set_grad_enabled(grad):
                self._values[key] = build()
        value: T = self._values[key]
        return value

    def items(self) -> list[tuple[Hashable, Any]]:
        """Return the keys and values there are."""
        return list(self._values.items())

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

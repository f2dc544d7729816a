"""One self-contained page: a template, its style and script, and the data as inert JSON.

Nothing of the data becomes markup: the script reads it from a block of JSON, in which every
character that could end that block is escaped, and writes it as text only. Numbers are short,
finite and plain.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
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


SCRIPTS = ("dom", "save", "charts", "tables", "scores", "map", "geometry", "run")
"""The parts of the script, in the order in which they are put together; ``page`` comes last."""

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(page: Mapping[str, Any], script: str = "") -> str:
    """Return the page as HTML.

    Args:
        page: What :func:`geof.report.run_page.run_page` returns, or the content of another kind of
            page.
        script: JavaScript that another kind of page brings: it defines ``resultsPage``.
    """
    parts = "\n".join([*(_asset(f"{name}.js") for name in SCRIPTS), script, _asset("page.js")])
    filled = {
        "title": html.escape(_encodable(str(page["title"]))),
        "style": _asset("page.css"),
        "data": json_for_html(page),
        "script": f'(() => {{\n"use strict";\n{parts}\n}})();',
    }
    # In one pass: what is put in is never searched for places to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: filled[place[1]], _asset("page.html"))


def json_for_html(value: Any) -> str:
    r"""Return JSON that is safe inside a ``script`` element, whatever names the data have.

    >>> json_for_html({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    # ASCII only, so that not even half a surrogate pair can spoil the file.
    text = json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def _asset(name: str) -> str:
    return (resources.files("geof.report") / "assets" / name).read_text(encoding="utf-8")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")

"""One self-contained page: a template, its style and script, and the data as inert JSON.

Nothing of the data becomes markup: the script reads it from a block of JSON, in which every
character that could end that block is escaped, and writes it as text only.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from geof.report.numbers import plain

SCRIPTS = ("dom", "charts", "tables", "scores", "map", "geometry", "run")
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

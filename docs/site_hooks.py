"""What the documentation site needs beyond Markdown: formulas, and links that leave the folder.

Formulas become MathML when the site is built, which browsers draw by themselves: no script is
loaded from anywhere.
"""

from __future__ import annotations

import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_FORMULA = re.compile(r"\$(?!\s)([^$\n]+?)(?<!\s)\$")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?([^`]+)`")
_MATH = re.compile(r":math:`([^`]+)`", re.DOTALL)
_DISPLAY = re.compile(r"^\.\. math::\n+((?:[ ]+.*\n?|\n)+)", re.MULTILINE)
_SESSION = re.compile(r"^(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Draw formulas, and name files of the repository instead of linking out of the site."""
    depth = page.file.src_uri.count("/") + 1
    outside = "../" * depth
    parts = _CODE.split(markdown)
    for place in range(0, len(parts), 2):  # what is between pieces of code
        parts[place] = _FORMULA.sub(lambda found: _inline(found[1]), parts[place])
    text = "".join(parts)

    def named(found: re.Match[str]) -> str:
        label, target = found.groups()
        if not target.startswith(outside):
            return found[0]
        path = target.removeprefix(outside).partition("#")[0]
        return label if path in label else f"{label} (`{path}`)"

    return _OUTSIDE.sub(named, text)


class PlainRoles(griffe.Extension):
    """Turn the roles of docstrings into Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one object's docstring."""
        if obj.docstring is not None:
            text = _DISPLAY.sub(lambda found: _display(found[1]), obj.docstring.value)
            text = _MATH.sub(lambda found: _inline(found[1]), text)
            text = _ROLE.sub(lambda found: f"`{found[1].split('.')[-1]}`", text)
            obj.docstring.value = _SESSION.sub(r"```pycon\n\1\n```", text)


def _inline(formula: str) -> str:
    # A line that began with the formula itself would be taken for a block.
    return f"<span>{convert(' '.join(formula.split()))}</span>"


def _display(formula: str) -> str:
    lines = " ".join(formula.split())
    if "&" in lines:
        lines = rf"\begin{{align*}} {lines} \end{{align*}}"
    # On a phone a wide formula scrolls by itself, not the page.
    return f'<div style="overflow-x: auto">{convert(lines, display="block")}</div>\n\n'

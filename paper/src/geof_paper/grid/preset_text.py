"""Sections of a preset's file as text, so that reasons beside values are kept when some change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

_VALUE = re.compile(r"( +)(\w+): (.+?)(?: +# (.*))?$")


def sections(text: str, dataset: str) -> tuple[str, str, str]:
    """Return what stands before a dataset's section, in it, and after it."""
    heads = [m.start() for m in re.finditer(r"^\S+:", text, re.MULTILINE)] + [len(text)]
    for start, end in pairwise(heads):
        if text.startswith(f"{dataset}:", start):
            return text[:start], text[start:end], text[end:]
    return text if text.endswith("\n") else f"{text}\n", "", ""


def values_of(section: str) -> Iterator[tuple[str, str, str]]:
    """Yield dotted names of options with the text of their value and reason."""
    within = ""
    for line in section.splitlines()[1:]:
        if line.startswith("  ") and line.endswith(":"):
            within = line.strip(" :")
        elif (match := _VALUE.match(line)) is not None:
            indent, name, value, why = match.groups()
            yield name if len(indent) == 2 else f"{within}.{name}", value, why or ""


def lines_of(values: Mapping[str, tuple[str, str]]) -> str:
    """Return the lines of a section: dotted options, the text of their value and its reason."""
    lines = [f"  {k}: {v} # {why}\n" for k, (v, why) in values.items() if "." not in k]
    for section in dict.fromkeys(key.partition(".")[0] for key in values if "." in key):
        lines.append(f"  {section}:\n")
        own = {k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{section}.")}
        lines += [f"    {name}: {value} # {why}\n" for name, (value, why) in own.items()]
    return "".join(lines)


def as_yaml(value: Any) -> str:
    """Return a value as it is written into a preset."""
    text = json.dumps(value)
    return value if isinstance(value, str) and value.isalnum() else text

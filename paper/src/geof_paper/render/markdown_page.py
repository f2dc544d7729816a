"""One Markdown page of all that was reproduced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geof.errors import DataError
from geof_paper.render.tables import escape_markdown
from geof_paper.studies.declared import STUDIES

ORDER = ("aggregate", *STUDIES, "efficiency")
"""Of the exhibits on the page, by how their names begin."""


def markdown_page(folder: Path, page: Path, remarks: str = "") -> str:
    """Return the page of the exhibits in a folder, with links to their figures.

    Args:
        folder: Where ``geof reproduce`` wrote them.
        page: Where the page will be, for the links.
        remarks: Text to put before the exhibits.

    Raises:
        DataError: If there is no exhibit, or one is damaged.
    """
    places = sorted((p.parent for p in folder.glob("*/study.json")), key=_place)
    if not places:
        raise DataError(f"Expected exhibits of 'geof reproduce' in '{folder}' (got none).")
    parts = [
        "# Reproduced\n",
        "<!-- Written by `geof reproduce page`; edit the remarks instead. -->\n",
        *([remarks.strip() + "\n"] if remarks else []),
        *(_section(place, page) for place in places),
    ]
    return "\n".join(parts)


def _place(folder: Path) -> tuple[int, str]:
    rank = next((i for i, name in enumerate(ORDER) if folder.name.startswith(name)), len(ORDER))
    return rank, folder.name


def _section(folder: Path, page: Path) -> str:
    about = _read(folder)
    table = (folder / "table.md").read_text().split("\n", 1)[1]  # its title is the section's
    link = Path(os.path.relpath(folder, page.parent)).as_posix()
    parts = [f"## {escape_markdown(about['title'])}\n", escape_markdown(about["text"]) + "\n"]
    parts.append(table.strip() + "\n")
    if (folder / "figure.svg").is_file():
        parts.append(f"![{escape_markdown(about['title'])}]({link}/figure.svg)\n")
    parts.append(f"`{about['command']}`; [the numbers]({link}/table.csv).\n")
    if about["missing"]:
        listed = "\n".join(f"- {escape_markdown(entry)}" for entry in about["missing"])
        count = len(about["missing"])
        parts.append(f"<details><summary>Not run: {count}</summary>\n\n{listed}\n\n</details>\n")
    return "\n".join(parts)


def _read(folder: Path) -> Mapping[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / "study.json").read_text())
        for name in ("title", "text", "command", "missing"):
            about[name]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"Expected '{folder}' to be an exhibit ({error}).") from error
    return about

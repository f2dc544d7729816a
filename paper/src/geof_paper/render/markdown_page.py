"""One Markdown page of all that was reproduced, with one light figure per study."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

from geof.errors import DataError
from geof.io import read_json
from geof_paper.grid.declared import STUDIES
from geof_paper.render.study_tables import FIGURE
from geof_paper.render.tables import escape_markdown

ORDER = ("aggregate", *STUDIES, "efficiency")
"""Of the studies on the page, by how the names of their tables begin."""

HEAVIEST = 150_000
"""Bytes a figure beside the page may have."""


def markdown_page(folder: Path, page: Path, remarks: str = "") -> str:
    """Return the page of the tables in a folder, with links to the figures beside the page.

    Args:
        folder: Where ``geof reproduce`` wrote them.
        page: Where the page will be; its figures are in a folder of the same name.
        remarks: Text to put before the tables.

    Raises:
        DataError: If there is no table, or one is damaged.
    """
    parts = [
        "# Reproduced\n",
        "<!-- Written by `geof reproduce page`; edit the remarks instead. -->\n",
        *([remarks.strip() + "\n"] if remarks else []),
        *(_section(place, page) for place in _places(folder)),
    ]
    return "\n".join(parts)


def page_commands(page: Path) -> list[list[str]]:
    """Return the commands that make the tables on a page, as words after ``geof``, each once.

    Raises:
        DataError: If there is no such page, or none on it.
    """
    text = page.read_text() if page.is_file() else ""
    found = re.findall(r"^`geof (reproduce [^`]*)`$", text, re.MULTILINE)
    if not found:
        raise DataError(f"Expected a page of 'geof reproduce page' at '{page}' (got none).")
    return [shlex.split(command) for command in dict.fromkeys(found)]


def copy_figures(folder: Path, page: Path) -> list[str]:
    """Put the first figure of each study beside the page; return what is to be said of it.

    One that cannot be drawn here stays as it was.
    """
    said, done = [], set()
    for place in _places(folder):
        study, figure = _rank(place), place / FIGURE
        if study in done or not figure.is_file():
            continue
        done.add(study)
        if figure.stat().st_size > HEAVIEST:
            said.append(f"{figure} is left out: it has more than {HEAVIEST // 1000} kB.")
            continue
        target = _figure(place, page)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figure, target)
    return said


def _places(folder: Path) -> list[Path]:
    """Return the folders of the tables in their order on the page."""
    places = sorted((p.parent for p in folder.glob("*/study.json")), key=lambda p: (_rank(p), p))
    if not places:
        raise DataError(f"Expected tables of 'geof reproduce' in '{folder}' (got none).")
    return places


def _rank(folder: Path) -> int:
    return next((i for i, name in enumerate(ORDER) if folder.name.startswith(name)), len(ORDER))


def _figure(folder: Path, page: Path) -> Path:
    return page.with_suffix("") / f"{folder.name}.svg"


def _section(folder: Path, page: Path) -> str:
    about = _read(folder)
    title = escape_markdown(about["title"])
    table = (folder / "table.md").read_text().split("\n", 1)[1]  # its title is the section's
    parts = [f"## {title}\n", escape_markdown(about["text"]) + "\n", table.strip() + "\n"]
    figure = _figure(folder, page)
    if figure.is_file():
        parts.append(f"![{title}]({figure.relative_to(page.parent).as_posix()})\n")
    parts.append(f"`{about['command']}`\n")
    if about["missing"]:
        listed = "\n".join(f"- {escape_markdown(entry)}" for entry in about["missing"])
        count = len(about["missing"])
        parts.append(f"<details><summary>Not run: {count}</summary>\n\n{listed}\n\n</details>\n")
    return "\n".join(parts)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "study.json"
    about: dict[str, Any] = read_json(path, "what 'geof reproduce' writes")
    lacking = {"title", "text", "command", "missing"} - about.keys()
    if lacking:
        raise DataError(f"Expected {', '.join(sorted(lacking))} in '{path}'. Make it again.")
    return about

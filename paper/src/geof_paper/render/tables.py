"""Tables of our numbers beside the paper's, as JSON, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from geof.errors import ConfigError, DataError, ShapeError, nearest
from geof.io import write_atomically, write_json

Better = Literal["larger", "smaller", "neither"]
"""Which number of a column is best."""

MARK_MEANING = (
    "differs from the paper by more than the two standard deviations combined "
    "(the root of the sum of their squares)"
)
LARGEST = 1e6
"""From here on numbers are written with an exponent."""
NOT_RUN = "not run"
FIELDS = (
    *("mean", "deviation", "count", "of", "paper", "paper_deviation"),
    *("difference", "marked", "note"),
)


@dataclass(frozen=True)
class Cell:
    """One number of ours and the paper's for the same thing.

    Attributes:
        mean: Ours; ``None`` if there is none, then ``note`` says why (else: not run).
        deviation: Sample deviation over the splits; ``None`` below two splits.
        count: Splits behind the mean; zero for what is no mean over splits, such as a rank.
        of: Splits there should be.
        paper: What the paper prints.
        paper_deviation: Its deviation.
        note: Shown with the cell, for instance ``failed: out of memory``.

    Raises:
        DataError: If a number is not finite.
    """

    mean: float | None
    deviation: float | None = None
    count: int = 0
    of: int = 10
    paper: float | None = None
    paper_deviation: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("mean", "deviation", "paper", "paper_deviation"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise DataError(
                    f"Expected '{name}' of a cell to be finite or None (got {value}). Give None "
                    "and say why in 'note'."
                )

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, without what binary floats add."""
        if self.mean is None or self.paper is None:
            return None
        return float(f"{float(self.mean) - float(self.paper):.12g}")

    @property
    def marked(self) -> bool:
        """Whether ours differs from the paper by more than the deviations explain.

        That is, whether ``|mean - paper| > sqrt(deviation^2 + paper_deviation^2)``. Without both
        deviations nothing can be said, and the cell is not marked.
        """
        if self.difference is None or self.deviation is None or self.paper_deviation is None:
            return False
        return abs(self.difference) > math.hypot(self.deviation, self.paper_deviation)

    @property
    def partial(self) -> bool:
        """Whether the mean rests on fewer splits than there should be."""
        return self.mean is not None and 0 < self.count < self.of

    def as_json(self) -> dict[str, Any]:
        """Return the cell as JSON values."""
        return {name: getattr(self, name) for name in FIELDS}


@dataclass(frozen=True)
class Row:
    """A label and one cell per column."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns.

    Attributes:
        title: What it shows.
        columns: Names of the columns.
        rows: Each with one cell per column.
        caption: What a reader must know.
        decimals: Of our means and deviations; a number so small that it would keep one significant
            digit or none, such as a p-value, is shown with three instead.
        better: Which number of a column is printed bold in LaTeX, for all columns or for each:
            ``larger``, ``smaller`` or ``neither``.

    Raises:
        ShapeError: If a row does not have one cell per column.
        ConfigError: If ``better`` does not fit the columns.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    decimals: int = 2
    better: Better | tuple[Better, ...] = "larger"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ShapeError(
                    f"Expected {len(self.columns)} cells in row {row.label!r}, one per column "
                    f"(got {len(row.cells)})."
                )
        if len(self._better()) != len(self.columns):
            raise ConfigError(
                f"Expected 'better' for each of {len(self.columns)} columns (got "
                f"{len(self._better())})."
            )
        for value in self._better():
            if value not in get_args(Better):
                raise ConfigError(
                    f"Unknown {value!r} in 'better'. {nearest(value, get_args(Better))}"
                )

    def as_json(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        rows = [{"label": r.label, "cells": [c.as_json() for c in r.cells]} for r in self.rows]
        columns = list(self.columns)
        return {"title": self.title, "caption": self.caption, "columns": columns, "rows": rows}

    def csv(self) -> str:
        """Return one line per cell: label, column and everything the cell holds."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("label", "column", *FIELDS))
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                values = cell.as_json() | {"marked": str(cell.marked).lower()}
                writer.writerow((row.label, column, *values.values()))
        return text.getvalue()

    def markdown(self) -> str:
        """Return title, table and caption as Markdown."""
        header = ["", *map(escape_markdown, self.columns)]
        lines = [header, ["---"] * len(header)]
        for row in self.rows:
            cells = [_markdown_cell(cell, self.decimals) for cell in row.cells]
            lines.append([escape_markdown(row.label), *cells])
        parts = [f"### {escape_markdown(self.title)}"]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        if self.caption:
            parts.append(escape_markdown(self.caption))
        if self._any_marked():
            parts.append(f"\\* {MARK_MEANING}.")
        return "\n\n".join(parts) + "\n"

    def latex(self) -> str:
        r"""Return a ``table`` environment that needs ``\usepackage{booktabs}`` alone.

        The paper's numbers stand in a line of their own under ours. Notes are numbered and stand
        under the table, where they cannot widen a column.
        """
        notes: list[str] = []
        body = [self._latex_line("", [escape_latex(c) for c in self.columns]), r"\midrule"]
        bold = self._bold()
        for i, row in enumerate(self.rows):
            ours = [
                _latex_cell(cell, self.decimals, (i, j) in bold, notes)
                for j, cell in enumerate(row.cells)
            ]
            body.append(self._latex_line(escape_latex(row.label), ours))
            if any(cell.paper is not None for cell in row.cells):
                body.append(self._latex_line(r"\quad paper", [_latex_paper(c) for c in row.cells]))
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{self._latex_caption()}}}"]
        lines += [rf"\begin{{tabular}}{{l{'c' * len(self.columns)}}}", r"\toprule", *body]
        lines += [r"\bottomrule", r"\end{tabular}"]
        if notes:
            listed = " ".join(rf"$^{{{n}}}$~{text}" for n, text in enumerate(notes, start=1))
            lines += ["", rf"{{\footnotesize {listed}\par}}"]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def _latex_line(self, label: str, cells: Sequence[str]) -> str:
        return " & ".join([label, *cells]) + r" \\"

    def _latex_caption(self) -> str:
        parts = [escape_latex(part).rstrip(".") for part in (self.title, self.caption) if part]
        if any(cell.partial for row in self.rows for cell in row.cells):
            parts.append("$(a/b)$: $a$ of $b$ splits")
        if self._any_marked():
            parts.append(rf"$\dagger$: {MARK_MEANING}")
        return ". ".join(parts) + ("." if len(parts) > 1 else "")

    def _any_marked(self) -> bool:
        return any(cell.marked for row in self.rows for cell in row.cells)

    def _better(self) -> tuple[Better, ...]:
        return (self.better,) * len(self.columns) if isinstance(self.better, str) else self.better

    def _bold(self) -> set[tuple[int, int]]:
        """Return row and column of the best of each column, all that are equal as printed."""
        found = set()
        for j, better in enumerate(self._better()):
            given = {i: r.cells[j] for i, r in enumerate(self.rows) if r.cells[j].mean is not None}
            if better == "neither" or len(given) < 2:
                continue
            sign = 1 if better == "larger" else -1
            best = max(given.values(), key=lambda cell: sign * (cell.mean or 0.0))
            shown = _number(best, self.decimals)
            found |= {(i, j) for i, c in given.items() if _number(c, self.decimals) == shown}
        return found


def write_table(table: Table, folder: Path) -> tuple[Path, ...]:
    """Write ``table.csv``, ``table.json``, ``table.md`` and ``table.tex``, each atomically.

    Args:
        table: What to write.
        folder: Where; made if need be.

    Returns:
        The four files.

    Raises:
        DataError: If the folder cannot be written to.
    """
    texts = {"csv": table.csv(), "md": table.markdown(), "tex": table.latex()}
    for ending, text in texts.items():
        write_atomically(folder / f"table.{ending}", text.encode(errors="replace"))
    write_json(folder / "table.json", table.as_json())
    return tuple(folder / f"table.{ending}" for ending in ("csv", "json", "md", "tex"))


def escape_markdown(text: str) -> str:
    """Return the text so that Markdown, also inside a table, shows it as it is, on one line."""
    text = re.sub(r"\s+", " ", text).strip()
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]$])", r"\\\1", text)


def escape_latex(text: str) -> str:
    """Return the text so that LaTeX shows it as it is, on one line.

    A character that pdfLaTeX does not know without further packages becomes its number, such as
    ``[U+4E2D]``: seen by a reader, and no error.
    """
    text = re.sub(r"\s+", " ", text).strip()
    return "".join(map(_latex_character, text)).replace("--", "-{}-").replace("--", "-{}-")


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    # A bracket or a star right after \\ would be taken for its argument.
    **{character: f"{{{character}}}" for character in "[]*"},
    **{c: f"$^{{{n}}}$" for n, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{c: f"$_{{{n}}}$" for n, c in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",  # noqa: RUF001
    "·": r"$\cdot$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "∞": r"$\infty$",
    "→": r"$\to$",
    "†": r"$\dagger$",
    "−": "$-$",  # noqa: RUF001
    "–": r"\textendash{}",  # noqa: RUF001
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
    "‘": "`",  # noqa: RUF001
    "’": "'",  # noqa: RUF001
    "“": "``",
    "”": "''",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "ø": r"\o{}",
    "ł": r"\l{}",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}
_GREEK_WITHOUT_COMMAND = re.compile(
    "OMICRON|FINAL|CAPITAL LETTER (ALPHA|BETA|EPSILON|ZETA|ETA|IOTA|KAPPA|MU|NU|RHO|TAU|CHI)$"
)


def _latex_character(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    if " " <= character <= "~":
        return character
    name = unicodedata.name(character, "")
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", name)
    if greek and not _GREEK_WITHOUT_COMMAND.search(name):
        letter = greek[2].lower().replace("lamda", "lambda")
        return rf"$\{letter if greek[1] == 'SMALL' else letter.capitalize()}$"
    base, accent = (*unicodedata.normalize("NFD", character), "")[:2]
    if base.isascii() and accent in _ACCENTS:
        return rf"\{_ACCENTS[accent]}{{{base}}}"
    return f"{{[}}U+{ord(character):04X}{{]}}"


def _uneven(mean: float, deviation: float | None, decimals: int) -> bool:
    """Return whether a number is too small for the table's decimals, or too large to read in them.

    A mean near zero with a deviation far from it, such as of differences, is not too small.
    """
    size = max(abs(mean), deviation or 0.0)
    return mean != 0 and (size < 10.0 ** (1 - decimals) or size >= LARGEST)


def _number(cell: Cell, decimals: int) -> str:
    """Return our mean as text."""
    assert cell.mean is not None
    uneven = _uneven(cell.mean, cell.deviation, decimals)
    return f"{cell.mean:.3g}" if uneven else f"{cell.mean:.{decimals}f}"


def _spread(cell: Cell, decimals: int) -> str | None:
    if cell.mean is None or cell.deviation is None:
        return None
    uneven = _uneven(cell.mean, cell.deviation, decimals)
    return f"{cell.deviation:.2g}" if uneven else f"{cell.deviation:.{decimals}f}"


def _printed(value: float) -> str:
    """Return a number of the paper with the digits it was given with."""
    return repr(float(value))


def _signed(cell: Cell) -> str:
    """Return the difference with as many decimals as the paper prints."""
    assert cell.difference is not None
    assert cell.paper is not None
    digits = _printed(cell.paper)
    if "e" in digits:
        return f"{cell.difference:+.2e}"
    text = f"{cell.difference:+.{len(digits.split('.')[1])}f}"
    return text[1:] if float(text) == 0 else text


def _markdown_cell(cell: Cell, decimals: int) -> str:
    note = escape_markdown(cell.note)
    if cell.mean is None:
        parts = [note or NOT_RUN]
    else:
        spread = _spread(cell, decimals)
        ours = _number(cell, decimals) + (f" ± {spread}" if spread else "")
        parts = [f"{ours} ({cell.count} of {cell.of})" if cell.partial else ours]
        parts += [note] if note else []
    if cell.paper is not None:
        beside = f"paper {_printed(cell.paper)}"
        if cell.paper_deviation is not None:
            beside += f" ± {_printed(cell.paper_deviation)}"
        if cell.mean is not None:
            beside += f", {_signed(cell)}" + ("*" if cell.marked else "")
        parts.append(beside)
    return "<br>".join(parts)


def _latex_cell(cell: Cell, decimals: int, bold: bool, notes: list[str]) -> str:
    if cell.mean is None:
        text = "failed" if cell.note.startswith("failed") else NOT_RUN
    else:
        text = _scientific(_number(cell, decimals))
        text = rf"\textbf{{{text}}}" if bold else text
        spread = _spread(cell, decimals)
        text += rf" $\pm$ {_scientific(spread)}" if spread else ""
        text += r"$^\dagger$" if cell.marked else ""
        text += rf" $({cell.count}/{cell.of})$" if cell.partial else ""
    if cell.note:
        note = escape_latex(cell.note)
        if note not in notes:
            notes.append(note)
        text += f"$^{{{notes.index(note) + 1}}}$"
    return text


def _latex_paper(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    text = _scientific(_printed(cell.paper))
    if cell.paper_deviation is not None:
        text += rf" $\pm$ {_scientific(_printed(cell.paper_deviation))}"
    return text


def _scientific(number: str) -> str:
    """Return a number for LaTeX: a true minus, and powers of ten instead of ``e``."""
    digits, _, power = number.partition("e")
    digits = digits.replace("-", "$-$")
    return rf"{digits}$\times10^{{{int(power)}}}$" if power else digits

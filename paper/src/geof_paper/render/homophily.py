"""The figure of the study of homophily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from geof_paper.render.figures import Panel, Series, lines
from geof_paper.studies.homophily import GRAPHS, TITLES, rows_of
from geof_paper.studies.homophily_graphs import LEVELS, Family, graph_name
from geof_paper.studies.trained_rows import Row, score_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

YLABEL = {"next": "test accuracy, %", "even": "test accuracy, %, even edges"}
"""What the panel of a family shows."""


def homophily_figure(rows: Sequence[Row]) -> Figure:
    """Return test accuracy over homophily, a panel per family."""
    families = list(dict.fromkeys(GRAPHS[row.dataset][0] for row in rows))
    first, *others = [Panel(YLABEL[family], _series(rows, family)) for family in families]
    return lines(
        LEVELS,
        first.series,
        "share of edges inside a class",
        first.ylabel,
        secondary=others[0] if others else None,
        height=3.6 if others else 2.4,
    )


def _series(rows: Sequence[Row], family: Family) -> Series:
    """Return mean and deviation of every method at every level, missing where not run."""
    found: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for name, title in TITLES.items():
        at = [score_of(rows_of(rows, graph_name(family, x)), name, "test") for x in LEVELS]
        if any(at):
            means = [None if score is None else score.mean for score in at]
            deviations = [None if score is None else score.deviation for score in at]
            found[title.replace("`", "")] = means, deviations
    return found

"""The figure of the study of geometry: GeoF's gain over the knob."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from geof_paper.render.figures import Panel, Series, lines
from geof_paper.studies.geometry import GRAPHS, TITLES, gain, rows_of
from geof_paper.studies.geometry_graphs import LEVELS
from geof_paper.studies.trained_rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def geometry_figure(rows: Sequence[Row]) -> Figure:
    """Return the gains on the test parts over the knob, a panel per number of steps."""
    shown = [GRAPHS[name][1] for name in GRAPHS if rows_of(rows, name)]
    depths = list(dict.fromkeys(shown))
    first, *others = [
        Panel(f"gain, points, {depth} step{'s' * (depth > 1)}", _series(rows, depth))
        for depth in depths
    ]
    return lines(
        LEVELS,
        first.series,
        "knob: from means to covariances",
        first.ylabel,
        secondary=others[0] if others else None,
        height=3.6 if others else 2.4,
    )


def _series(rows: Sequence[Row], depth: int) -> Series:
    """Return mean gain and its deviation over each other method, missing where not run."""
    found: dict[str, tuple[list[float | None], list[float | None]]] = {}
    names = [name for name, (_, own) in GRAPHS.items() if own == depth]
    for method in list(TITLES)[1:]:
        at = [gain(rows_of(rows, name), method) for name in names]
        if any(at):
            means = [None if each is None else each[0].mean for each in at]
            deviations = [None if each is None else each[0].deviation for each in at]
            found[f"over {TITLES[method]}"] = means, deviations
    return found

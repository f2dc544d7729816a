"""Bars, curves and bounds for a column of a paper: SVG and PNG, from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from geof.errors import ConfigError, DataError
from geof_paper.render.figure_style import (
    COLUMN,
    Array,
    Numbers,
    colour_of,
    footnote,
    hatch_of,
    legend_of,
    marker_of,
    new_figure,
    numbers_of,
    styled,
    text_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = Mapping[str, tuple[Numbers, Numbers | None]]
"""Name -> mean and deviation at each x, or ``None`` for no deviations."""


@dataclass(frozen=True)
class Panel:
    """A second panel below the first, over the same x.

    Attributes:
        ylabel: What it shows, with its unit.
        series: As of the first panel; the same name has the same look in both.
        logy: Whether y is on a logarithmic scale.
    """

    ylabel: str
    series: Series
    logy: bool = False


@styled
def bars(
    groups: Sequence[str],
    series: Sequence[str],
    means: Numbers,
    deviations: Numbers | None,
    ylabel: str,
    *,
    title: str = "",
    ylim: tuple[float, float] | None = None,
    from_zero: bool = False,
    width: float = COLUMN,
    height: float = 2.1,
) -> Figure:
    """Draw grouped bars with whiskers of one deviation.

    Bars that do not start at zero exaggerate differences; where they do not, the figure says at
    what value they start.

    Args:
        groups: Along x, for instance datasets.
        series: Bars of each group, for instance variants.
        means: Series x groups; ``None`` or NaN leaves a gap.
        deviations: The same shape, or ``None``.
        ylabel: What the bars are, with its unit.
        title: Above the axes.
        ylim: Lower and upper end of y, instead of what fits the data.
        from_zero: Whether y starts at zero if ``ylim`` is not given.
        width: In inches.
        height: In inches.

    Raises:
        ShapeError: If the numbers are not series x groups.
        DataError: If there is no number at all.
    """
    shape = (len(series), len(groups))
    values = numbers_of(means, "means", shape)
    spread = (
        None if deviations is None else numbers_of(deviations, "deviations", shape, required=False)
    )
    figure = new_figure(width, height)
    axes: Any = figure.subplots()
    axes.set_title(text_of(title, longest=None))
    place = np.arange(len(groups), dtype=np.float64)
    thick = 0.82 / len(series)
    low, high = ylim or _bar_limits(values, spread, from_zero)
    start = min(max(low, 0.0), high)
    handles = []
    for i in range(len(series)):
        x = place + (i - (len(series) - 1) / 2) * thick
        there = np.isfinite(values[i])
        drawn = axes.bar(
            x[there],
            values[i][there] - start,
            thick * 0.92,
            bottom=start,
            color=colour_of(i),
            edgecolor="white" if hatch_of(i) else "none",
            hatch=hatch_of(i),
            linewidth=0,
        )
        handles.append(drawn)
        if spread is not None:
            both = there & np.isfinite(spread[i])
            whiskers = {"fmt": "none", "ecolor": "#222222", "elinewidth": 0.7, "capsize": 1.6}
            axes.errorbar(x[both], values[i][both], spread[i][both], capthick=0.7, **whiskers)
    axes.set_ylim(low, high)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(place, [text_of(group) for group in groups])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    axes.set_ylabel(text_of(ylabel))
    if start > 0:
        _break_mark(axes)
    if start != 0:
        footnote(figure, f"bars start at {start:g}, not at 0")
    legend_of(figure, handles, series)
    return figure


@styled
def lines(
    x: ArrayLike,
    series: Series,
    xlabel: str,
    ylabel: str,
    *,
    logx: bool | int = False,
    secondary: Panel | None = None,
    title: str = "",
    width: float = COLUMN,
    height: float | None = None,
) -> Figure:
    """Draw lines with bands of one deviation, and a second panel below where asked.

    Two quantities stand in two panels over one x, not on two y axes of one panel, where any
    crossing could be made to appear.

    Args:
        x: Places of the points, ascending.
        series: Name -> mean and deviation at each x; missing values break the line.
        xlabel: What x is, with its unit.
        ylabel: What the lines are, with its unit.
        logx: Base of a logarithmic x axis; ``True`` means two.
        secondary: The second panel.
        title: Above the axes.
        width: In inches.
        height: In inches; by default 2.1, with a second panel 3.2.

    Raises:
        ShapeError: If a series is not as long as x.
        DataError: If there is no number at all, or x does not ascend or suit a logarithmic axis.
        ConfigError: If no series is given or the base makes no sense.
    """
    places = numbers_of(x, "x", (np.size(np.asarray(x)),))
    if not (np.diff(places) > 0).all() or np.isnan(places).any():
        raise DataError("Expected 'x' to ascend (it does not, or a value is missing).")
    base = _base(logx, places)
    panels = [Panel(ylabel, series)] + ([] if secondary is None else [secondary])
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    if not names:
        raise ConfigError("Expected one series or more to draw (got none).")
    figure = new_figure(width, height or (2.1 if secondary is None else 3.2))
    shares = [1.0] if secondary is None else [1.25, 1.0]
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=shares)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        for name, (mean, deviation) in panel.series.items():
            _line(axes, places, name, mean, deviation, names.index(name))
        if panel.logy:
            axes.set_yscale("log")
            _plain_log_ticks(axes.yaxis)
        axes.set_ylabel(text_of(panel.ylabel))
        axes.grid(axis="y")
    figure.align_ylabels()
    grid[0, 0].set_title(text_of(title, longest=None))
    bottom = grid[-1, 0]
    _x_ticks(bottom, places, base)
    bottom.set_xlabel(text_of(xlabel))
    if len(names) > 1:
        legend_of(figure, [_line_handle(i) for i in range(len(names))], names)
    return figure


@styled
def comparison(
    labels: Sequence[str],
    bound: Numbers,
    observed: Numbers,
    xlabel: str,
    *,
    bound_name: str = "bound",
    observed_name: str = "observed",
    title: str = "",
    width: float = COLUMN,
    height: float | None = None,
) -> Figure:
    """Draw theoretical bounds beside observed values on a logarithmic axis, a line per label.

    Zero and infinity have no place on the axis: they stand at its ends, named.

    Args:
        labels: One per line, from the top.
        bound: What theory allows; ``None`` or NaN leaves a gap.
        observed: What was measured.
        xlabel: What is compared, with its unit.
        bound_name: For the legend.
        observed_name: For the legend.
        title: Above the axes.
        width: In inches.
        height: In inches; by default as many lines need.

    Raises:
        ShapeError: If there is not one number per label.
        DataError: If a number is negative or none lies between zero and infinity.
    """
    pair = [
        numbers_of(v, n, (len(labels),), infinite=True)
        for v, n in ((bound, "bound"), (observed, "observed"))
    ]
    inside = np.concatenate([v[np.isfinite(v) & (v > 0)] for v in pair])
    if any((v < 0).any() for v in pair) or inside.size == 0:
        raise DataError(
            "Expected numbers of zero or more, some of them between zero and infinity, for a "
            "logarithmic axis."
        )
    figure = new_figure(width, height or 0.85 + 0.2 * len(labels))
    axes: Any = figure.subplots()
    axes.set_title(text_of(title, longest=None))
    axes.set_xscale("log")
    low, high = _log_limits(inside)
    axes.set_xlim(low, high)
    y = np.arange(len(labels), dtype=np.float64)
    ends = [np.clip(v, low, high) for v in pair]  # NaN stays NaN
    axes.hlines(y, *ends, color="#BBBBBB", linewidth=1.0, zorder=1)
    looks = (("D", "white", colour_of(1)), ("o", colour_of(0), colour_of(0)))
    handles = []
    for exact, shown, (marker, face, edge) in zip(pair, ends, looks, strict=True):
        look = {"marker": marker, "markerfacecolor": face, "markeredgecolor": edge}
        handles += axes.plot(shown, y, linestyle="none", clip_on=False, zorder=3, **look)
        for at, value, place in zip(y, exact, shown, strict=True):
            if value == 0 or math.isinf(value):
                _beside(axes, place, at, "0" if value == 0 else "∞", right=value == 0)
    axes.set_yticks(y, [text_of(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    _plain_log_ticks(axes.xaxis)
    axes.set_xlabel(text_of(xlabel))
    legend_of(figure, handles, [bound_name, observed_name])
    return figure


def _base(logx: bool | int, places: Array) -> int:
    """Return the base of the x axis, zero for a linear one."""
    base = 2 if logx is True else int(logx)
    if base == 0:
        return 0
    if base < 2:
        raise ConfigError(
            f"Expected 'logx' to be False, True or a base of two or more (got {logx})."
        )
    if not (places > 0).all():
        raise DataError("Expected positive 'x' for a logarithmic axis.")
    return base


def _bar_limits(values: Array, spread: Array | None, from_zero: bool) -> tuple[float, float]:
    """Return limits that hold bars and whiskers; from zero unless that hides the differences."""
    reach = np.zeros_like(values) if spread is None else np.nan_to_num(spread)
    low, high = float(np.nanmin(values - reach)), float(np.nanmax(values + reach))
    room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    if low < 0:
        return low - room, max(high + room, 0.0)
    if from_zero or low < 0.5 * high:
        return 0.0, high + room
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-12 * high)))
    start = math.floor((low - 2 * room) / step) * step  # a number that can be read off
    return max(round(start, 12), 0.0), high + room


def _log_limits(values: Array) -> tuple[float, float]:
    """Return powers of ten around the values, with room for what stands at the ends."""
    low = math.floor(math.log10(values.min()) - 0.15)
    high = math.ceil(math.log10(values.max()) + 0.15)
    return 10.0 ** max(low, -307), 10.0 ** min(high, 308)


def _break_mark(axes: Any) -> None:
    """Draw two strokes across the foot of the y axis: it does not start at zero."""
    for y in (0.018, 0.048):
        x, ends = (-0.014, 0.014), (y - 0.014, y + 0.014)
        axes.plot(x, ends, transform=axes.transAxes, color="black", linewidth=0.7, clip_on=False)


def _line_handle(i: int) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour_of(i), marker=marker_of(i))


def _line(axes: Any, x: Array, name: str, mean: Numbers, deviation: Numbers | None, i: int) -> None:
    """Draw one series; a point without neighbours has no band and gets a whisker."""
    values = numbers_of(mean, f"mean of {name}", x.shape)
    every = math.ceil(x.size / 24)  # more markers would hide the line
    axes.plot(x, values, color=colour_of(i), marker=marker_of(i), markevery=every, zorder=3)
    if deviation is None:
        return
    spread = numbers_of(deviation, f"deviation of {name}", x.shape, required=False)
    known = np.isfinite(values) & np.isfinite(spread)
    axes.fill_between(
        x,
        values - spread,
        values + spread,
        where=known,
        color=colour_of(i),
        alpha=0.18,
        linewidth=0,
    )
    beside = np.zeros_like(known)
    beside[1:] |= known[:-1]
    beside[:-1] |= known[1:]
    alone = known & ~beside
    if alone.any():
        whiskers = {"fmt": "none", "ecolor": colour_of(i), "elinewidth": 0.7, "capsize": 1.6}
        axes.errorbar(x[alone], values[alone], spread[alone], **whiskers)


def _x_ticks(axes: Any, places: Array, base: int) -> None:
    """Put ticks where the points are, if they lie far apart; else leave them to matplotlib."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    if base:
        axes.set_xscale("log", base=base)
        axes.xaxis.set_minor_locator(NullLocator())
    shown = np.log(places) if base else places
    whole = bool((places % 1 == 0).all())
    gaps = np.diff(shown) / (shown[-1] - shown[0]) if shown.size > 1 else np.ones(1)
    if gaps.min() >= 0.06:
        axes.set_xticks(places, [f"{value:g}" for value in places])
    elif base:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=whole))


def _plain_log_ticks(axis: Any) -> None:
    """Label powers of ten without mathematical typesetting, which names are kept from."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, numticks=6))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: _power_of_ten(value, axis.get_view_interval()))
    )


def _power_of_ten(value: float, view: Sequence[float]) -> str:
    """Return 0.1, 1, 10 on an axis of few powers, and 10 with an exponent on others."""
    if min(view) > 5e-4 and max(view) < 2e3:
        return f"{value:g}"
    exponent = str(round(math.log10(value)))
    return "10" + exponent.translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _beside(axes: Any, x: float, y: float, text: str, *, right: bool) -> None:
    """Write a few characters right or left of a point."""
    axes.annotate(
        text,
        (x, y),
        xytext=(4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=7.0,
        color="#333333",
        annotation_clip=False,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    )

"""Figures for a column of a paper: SVG and PNG, from plain numbers.

Every figure is readable in print and without colours: series differ in marker or hatch too. The
same data give the same bytes, whatever matplotlib's settings of the user are. Matplotlib is an
extra (``pip install 'geof[figures]'``) and is imported when the first figure is drawn; pyplot is
never used, so a notebook's figures are left alone.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geof.data.files import write_atomically
from geof.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Numbers = ArrayLike | Sequence[float | None] | Sequence[Sequence[float | None]]
"""Numbers, ``None`` or NaN where there is none."""
Series = Mapping[str, tuple[Numbers, Numbers | None]]
"""Name -> mean and deviation at each x, or ``None`` for no deviations."""
ScatterPanel = tuple[str, ArrayLike, Sequence[Any] | NDArray[Any], ArrayLike | None]
"""Title, points (n, 2) or (n, 3), class of each point, and a value of each point or ``None``."""

COLUMN = 3.35
"""Width in inches of a column of a two-column page."""
PAGE = 7.0
"""Width in inches of both columns."""
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"),
)
"""Okabe and Ito's colours, told apart by colour-blind readers; the pale yellow comes last."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "oooo", "||||")
RASTER_POINTS = 5000
"""Above so many points a cloud is a picture inside the SVG (all points are drawn in any case)."""
LONGEST_LABEL = 40
"""A longer label loses its middle, and an ellipsis says so."""
GREY = "#666666"

STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],  # ships with matplotlib: the same everywhere
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "grid.linewidth": 0.4,
    "grid.color": "#D8D8D8",
    "lines.linewidth": 1.1,
    "lines.markersize": 3.8,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.0,
    "legend.handletextpad": 0.5,
    "legend.labelspacing": 0.35,
    "legend.borderaxespad": 0.2,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "svg.fonttype": "none",  # text stays text: it can be found, read aloud and edited
    "svg.hashsalt": "geof",
    "text.parse_math": False,  # a dollar or an underscore in a name is just that
    "text.usetex": False,
}

_Arguments = ParamSpec("_Arguments")


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


@contextmanager
def _style() -> Iterator[None]:
    """Give matplotlib its default settings and ours for a while, and its own back afterwards.

    Raises:
        ConfigError: If it is not installed; says how to.
    """
    try:
        import matplotlib.style
    except ImportError as error:
        raise ConfigError(
            "Expected matplotlib for figures (it is not installed). Run pip install "
            "'geof[figures]'."
        ) from error
    with matplotlib.style.context(["default", STYLE]):
        yield


def _styled(draw: Callable[_Arguments, Figure]) -> Callable[_Arguments, Figure]:
    """Run a drawing function in our style, then lay the figure out once and for all.

    A layout that ran again at each writing could differ between SVG and PNG.
    """

    @wraps(draw)
    def styled(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Figure:
        with _style():
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()
            if _turn_crowded_labels(figure):
                figure.draw_without_rendering()
            figure.set_layout_engine("none")
            return figure

    return styled


def save(figure: Figure, folder: Path, name: str = "figure") -> tuple[Path, Path]:
    """Write a figure as SVG and as PNG with 200 dots per inch, each atomically.

    Args:
        figure: From one of the functions below.
        folder: Where; made if need be.
        name: Of both files, without ending.

    Returns:
        The two files.

    Raises:
        DataError: If the folder cannot be written to.
    """
    paths = folder / f"{name}.svg", folder / f"{name}.png"
    for path, metadata in zip(
        paths, ({"Date": None, "Creator": None}, {"Software": None}), strict=True
    ):
        content = io.BytesIO()
        with _style():
            figure.savefig(content, format=path.suffix[1:], dpi=200, metadata=metadata)
        write_atomically(path, content.getvalue())
    return paths


@_styled
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
    values = _numbers(means, "means", shape)
    spread = (
        None if deviations is None else _numbers(deviations, "deviations", shape, required=False)
    )
    figure = _figure(width, height)
    axes: Any = figure.subplots()
    axes.set_title(_text(title, longest=None))
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
            color=_colour(i),
            edgecolor="white" if _hatch(i) else "none",
            hatch=_hatch(i),
            linewidth=0,
        )
        handles.append(drawn)
        if spread is not None:
            both = there & np.isfinite(spread[i])
            whiskers = {"fmt": "none", "ecolor": "#222222", "elinewidth": 0.7, "capsize": 1.6}
            axes.errorbar(x[both], values[i][both], spread[i][both], capthick=0.7, **whiskers)
    axes.set_ylim(low, high)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(place, [_text(group) for group in groups])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    axes.set_ylabel(_text(ylabel))
    if start > 0:
        _break_mark(axes)
    if start != 0:
        _footnote(figure, f"bars start at {start:g}, not at 0")
    _legend(figure, handles, series)
    return figure


@_styled
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
    places = _numbers(x, "x", (np.size(np.asarray(x)),))
    if not (np.diff(places) > 0).all() or np.isnan(places).any():
        raise DataError("Expected 'x' to ascend (it does not, or a value is missing).")
    base = _base(logx, places)
    panels = [Panel(ylabel, series)] + ([] if secondary is None else [secondary])
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    if not names:
        raise ConfigError("Expected one series or more to draw (got none).")
    figure = _figure(width, height or (2.1 if secondary is None else 3.2))
    shares = [1.0] if secondary is None else [1.25, 1.0]
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=shares)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        for name, (mean, deviation) in panel.series.items():
            _line(axes, places, name, mean, deviation, names.index(name))
        if panel.logy:
            axes.set_yscale("log")
            _plain_log_ticks(axes.yaxis)
        axes.set_ylabel(_text(panel.ylabel))
        axes.grid(axis="y")
    figure.align_ylabels()
    grid[0, 0].set_title(_text(title, longest=None))
    bottom = grid[-1, 0]
    _x_ticks(bottom, places, base)
    bottom.set_xlabel(_text(xlabel))
    if len(names) > 1:
        _legend(figure, [_line_handle(i) for i in range(len(names))], names)
    return figure


@_styled
def scatter_panels(
    panels: Sequence[ScatterPanel],
    *,
    shared_limits: bool = False,
    axis_name: str = "t-SNE",
    size_label: str = "",
    highlight: Any = None,
    note: str = "",
    width: float | None = None,
    height: float | None = None,
) -> Figure:
    """Draw clouds of points side by side, coloured by class.

    Args:
        panels: Title, points, classes and sizes of each. All points have two coordinates or all
            three. Sizes are values shown as areas, on one scale for all panels, or ``None``.
        shared_limits: Whether all panels show the same region.
        axis_name: Axes are labelled with this and a number. They bear no ticks: the coordinates of
            an embedding have no unit.
        size_label: What the sizes are, for their legend.
        highlight: A class around which to draw the dashed ellipse of two standard deviations, in
            each panel with three of its points or more; in two dimensions only.
        note: Printed below, for instance of how many nodes these are a sample.
        width: In inches; by default a column for up to two panels, a page for more.
        height: In inches.

    Raises:
        ShapeError: If points, classes and sizes do not fit each other.
        DataError: If a number is not finite.
        ConfigError: If there is no panel, or the highlighted class is not there or cannot be
            outlined.
    """
    clouds = [_Cloud.checked(*panel) for panel in panels]
    dimensions = {cloud.points.shape[1] for cloud in clouds}
    if len(dimensions) != 1:
        raise ConfigError("Expected panels of points with either two or three coordinates.")
    flat = dimensions == {2}
    classes = _classes(clouds)
    if highlight is not None and not (flat and str(highlight) in classes):
        raise ConfigError(
            f"Expected 'highlight' to be a class of points in two dimensions (got {highlight!r}). "
            f"Classes: {', '.join(classes)}."
        )
    width = width or (COLUMN if len(clouds) <= 2 else PAGE)
    scale = _Areas.of(clouds)
    needed = width / len(clouds) + 0.55 + 0.35 * (not scale.plain) + 0.3 * bool(note)
    figure = _figure(width, height or needed)
    projection = {} if flat else {"projection": "3d"}
    grid = figure.subplots(1, len(clouds), squeeze=False, subplot_kw=projection)[0]
    for axes, cloud in zip(grid, clouds, strict=True):
        _cloud(axes, cloud, classes, scale)
        if highlight is not None:
            _ellipse(axes, cloud.points[cloud.labels == str(highlight)])
    if shared_limits:
        _share_limits(grid, [cloud.points for cloud in clouds])
    for number, axes in enumerate(grid):
        _name_axes(axes, axis_name, first=number == 0)
        if not flat:
            axes.set_box_aspect(None, zoom=0.9)  # else the third label is cut off
    if note:
        _footnote(figure, _text(note, longest=None))
    _class_legend(figure, classes, highlight)
    if not scale.plain:
        _size_legend(figure, scale, size_label)
    return figure


@_styled
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
        _numbers(v, n, (len(labels),), infinite=True)
        for v, n in ((bound, "bound"), (observed, "observed"))
    ]
    inside = np.concatenate([v[np.isfinite(v) & (v > 0)] for v in pair])
    if any((v < 0).any() for v in pair) or inside.size == 0:
        raise DataError(
            "Expected numbers of zero or more, some of them between zero and infinity, for a "
            "logarithmic axis."
        )
    figure = _figure(width, height or 0.85 + 0.2 * len(labels))
    axes: Any = figure.subplots()
    axes.set_title(_text(title, longest=None))
    axes.set_xscale("log")
    low, high = _log_limits(inside)
    axes.set_xlim(low, high)
    y = np.arange(len(labels), dtype=np.float64)
    ends = [np.clip(v, low, high) for v in pair]  # NaN stays NaN
    axes.hlines(y, *ends, color="#BBBBBB", linewidth=1.0, zorder=1)
    looks = (("D", "white", _colour(1)), ("o", _colour(0), _colour(0)))
    handles = []
    for exact, shown, (marker, face, edge) in zip(pair, ends, looks, strict=True):
        look = {"marker": marker, "markerfacecolor": face, "markeredgecolor": edge}
        handles += axes.plot(shown, y, linestyle="none", clip_on=False, zorder=3, **look)
        for at, value, place in zip(y, exact, shown, strict=True):
            if value == 0 or math.isinf(value):
                _beside(axes, place, at, "0" if value == 0 else "∞", right=value == 0)
    axes.set_yticks(y, [_text(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    _plain_log_ticks(axes.xaxis)
    axes.set_xlabel(_text(xlabel))
    _legend(figure, handles, [bound_name, observed_name])
    return figure


@_styled
def critical_difference(
    methods: Sequence[str],
    ranks: Numbers,
    reference: str,
    p_values: Numbers,
    *,
    level: float = 0.05,
    title: str = "",
    width: float = COLUMN,
    height: float | None = None,
) -> Figure:
    """Draw average ranks, and connect the reference with what does not differ significantly.

    Args:
        methods: Their names.
        ranks: Their average ranks; one is best.
        reference: The method the p-values compare with.
        p_values: Adjusted for their number (Holm); the reference's own is not looked at.
        level: Of significance.
        title: Above the axes.
        width: In inches.
        height: In inches; by default as many lines need.

    Raises:
        ShapeError: If there is not one rank and one p-value per method.
        DataError: If a rank or another method's p-value is missing.
        ConfigError: If the reference is not among the methods.
    """
    values = _numbers(ranks, "ranks", (len(methods),))
    tested = _numbers(p_values, "p_values", (len(methods),), required=False)
    if reference not in methods:
        raise ConfigError(f"Expected the reference {reference!r} among the methods.")
    base = list(methods).index(reference)
    if np.isnan(values).any() or np.isnan(np.delete(tested, base)).any():
        raise DataError("Expected a rank of each method and a p-value of each but the reference.")
    order = np.argsort(values, kind="stable")
    alike = [j for j in order if j == base or tested[j] >= level]
    row = {int(j): i for i, j in enumerate(order)}
    figure = _figure(width, height or 0.95 + 0.165 * len(methods))
    axes: Any = figure.subplots()
    axes.set_title(_text(title, longest=None))
    axes.hlines(range(len(order)), 1, values[order], color="#DDDDDD", linewidth=0.8, zorder=1)
    if len(alike) > 1:
        axes.plot(values[alike], [row[j] for j in alike], color="#999999", linewidth=3.5, zorder=2)
    looks = {"reference": ("D", _colour(1), _colour(1)), "same": ("o", "white", _colour(0))}
    looks["different"] = ("o", _colour(0), _colour(0))
    for j in range(len(methods)):
        kind = "reference" if j == base else "same" if j in alike else "different"
        _dot(axes, values[j], row[j], looks[kind])
        place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(1.09, row[j], f"{values[j]:.1f}", fontsize=7.0, **place)
    axes.set_yticks(range(len(order)), [_text(methods[j]) for j in order])
    axes.get_yticklabels()[row[base]].set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlim(1 - 0.03 * len(methods), max(values.max(), 2.0) + 0.03 * len(methods))
    axes.set_xlabel("average rank (1 is best)")
    kinds = ["reference", "different", "same"] if len(alike) > 1 else ["reference", "different"]
    names = {
        "reference": "reference",
        "different": f"differs (p < {level:g}, Holm)",
        "same": "not shown to differ",
    }
    handles = [_dot_handle(looks[kind]) for kind in kinds]
    _legend(figure, handles, [names[kind] for kind in kinds])
    return figure


# Data


def _numbers(
    values: Numbers,
    name: str,
    shape: tuple[int, ...],
    *,
    infinite: bool = False,
    required: bool = True,
) -> Array:
    """Return numbers of a shape, NaN where there is none; refuse what cannot be drawn."""
    try:
        array = np.array(values, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError) as error:
        raise ShapeError(f"Expected '{name}' to be numbers of shape {shape} ({error}).") from error
    if array.shape != shape:
        raise ShapeError(f"Expected '{name}' of shape {shape} (got {array.shape}).")
    if not infinite and np.isinf(array).any():
        raise DataError(
            f"Expected '{name}' to be finite, or NaN where there is none (got infinity)."
        )
    if array.size == 0 or (required and np.isnan(array).all()):
        raise DataError(f"Expected a number in '{name}' (got none). There is nothing to draw.")
    return array


@dataclass(frozen=True)
class _Cloud:
    """One panel of points, checked. Classes are compared as text."""

    title: str
    points: Array
    labels: NDArray[np.str_]
    sizes: Array | None

    @classmethod
    def checked(cls, title: str, points: Any, labels: Any, sizes: Any) -> _Cloud:
        where = np.asarray(points, dtype=np.float64)
        names = np.array([str(label) for label in np.asarray(labels).tolist()], dtype=np.str_)
        values = None if sizes is None else np.asarray(sizes, dtype=np.float64)
        fits = where.ndim == 2 and where.shape[1] in (2, 3) and names.shape == where.shape[:1]
        if not fits or len(where) == 0 or (values is not None and values.shape != names.shape):
            raise ShapeError(
                f"Expected points (n, 2) or (n, 3), n classes and n sizes or none in panel "
                f"{title!r} (got {where.shape}, {names.shape} and "
                f"{None if values is None else values.shape})."
            )
        if not np.isfinite(where).all() or (values is not None and not np.isfinite(values).all()):
            raise DataError(f"Expected finite points and sizes in panel {title!r}.")
        return cls(title, where, names, values)


@dataclass(frozen=True)
class _Areas:
    """From values to areas of markers in square points, one scale for all panels."""

    low: float
    high: float
    plain: bool

    @classmethod
    def of(cls, clouds: Sequence[_Cloud]) -> _Areas:
        values = [cloud.sizes for cloud in clouds if cloud.sizes is not None]
        if not values:
            return cls(0.0, 1.0, plain=True)
        everything = np.concatenate(values)
        return cls(float(everything.min()), float(everything.max()), plain=False)

    def __call__(self, values: Array | None, count: int) -> Array:
        if values is None or self.high == self.low:
            return np.full(count, 9.0)
        return np.asarray(3.0 + 42.0 * (values - self.low) / (self.high - self.low))


def _classes(clouds: Sequence[_Cloud]) -> list[str]:
    """Return every class once, numbers in their order and then words in theirs."""
    found = {str(name) for cloud in clouds for name in cloud.labels}

    def key(name: str) -> tuple[bool, float, str]:
        number = bool(re.fullmatch(r"-?\d{1,9}(\.\d{1,9})?", name))
        return (not number, float(name) if number else 0.0, name)

    return sorted(found, key=key)


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


# Looks


def _text(label: str, longest: int | None = LONGEST_LABEL) -> str:
    """Return a label on one line that any XML file can hold; a long one loses its middle."""
    text = re.sub(r"\s+", " ", str(label)).strip()
    text = re.sub("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    if longest is None or len(text) <= longest:
        return text
    return f"{text[: longest // 2]}…{text[-(longest // 2 - 1) :]}"


def _colour(i: int) -> str:
    return PALETTE[i % len(PALETTE)]


def _marker(i: int) -> str:
    return MARKERS[i % len(MARKERS)]  # nine beside eight colours: seventy-two pairs


def _hatch(i: int) -> str:
    return HATCHES[i % len(HATCHES)]


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _footnote(figure: Any, text: str) -> None:
    """Write a remark below everything that comes later."""
    lines = textwrap.fill(text, int(18 * figure.get_figwidth()))  # characters of 4 points each
    look = {"fontsize": 7.0, "color": GREY, "ha": "right", "va": "bottom"}
    note = figure.text(0.99, 0.03 / figure.get_figheight(), lines, **look)
    _reserve(figure, bottom=note.get_window_extent().y1)


def _reserve(figure: Any, *, top: float | None = None, bottom: float | None = None) -> None:
    """Keep the axes, and what is placed next, below one height and above another, in pixels.

    Matplotlib's own legends outside the axes overlap with other things there.
    """
    engine, whole = figure.get_layout_engine(), figure.bbox.height
    _, low, _, high = engine.get()["rect"]
    high += low
    low = low if bottom is None else bottom / whole
    high = high if top is None else top / whole
    engine.set(rect=(0, low, 1, high - low))


def _legend(
    figure: Any,
    handles: Sequence[Any],
    labels: Sequence[str],
    place: str = "upper",
    title: str = "",
) -> None:
    """Put a legend above or below the axes, in as many columns as fit the width."""
    free = figure.get_layout_engine().get()["rect"]
    where = {"loc": f"{place} center", "bbox_to_anchor": free, "title_fontsize": 7.0}
    for columns in range(len(handles), 0, -1):
        rows = math.ceil(len(handles) / columns)
        if columns > 1 and math.ceil(len(handles) / (columns - 1)) == rows:
            continue  # fewer columns make no more rows, and look better
        # A name that starts with an underscore would be left out: set the text afterwards.
        names = ["-"] * len(handles)
        legend = figure.legend(handles, names, ncols=columns, title=_text(title) or None, **where)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set_text(_text(label))
        legend.set_in_layout(False)  # its place is reserved here
        box = legend.get_window_extent()
        if columns == 1 or box.width <= 0.98 * figure.bbox.width:
            break
        legend.remove()
    if place == "upper":
        _reserve(figure, top=box.y0)
    else:
        _reserve(figure, bottom=box.y1)


def _turn_crowded_labels(figure: Figure) -> bool:
    """Turn the labels below an axis where two would touch; return whether any was turned."""
    turned = False
    for axes in figure.axes:
        if axes.name == "3d":
            continue
        low, high = sorted(axes.get_xlim())
        labels = [t for t in axes.get_xticklabels() if low <= t.get_position()[0] <= high]
        labels = [label for label in labels if label.get_text()]
        if not labels:
            continue
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
        edge = figure.bbox
        touch = any(a.x1 + 2 > b.x0 for a, b in pairwise(boxes))
        if touch or boxes[0].x0 < edge.x0 or boxes[-1].x1 > edge.x1:
            for label in labels:
                label.set(rotation=35, ha="right", va="top", rotation_mode="anchor")
            turned = True
    return turned


def _break_mark(axes: Any) -> None:
    """Draw two strokes across the foot of the y axis: it does not start at zero."""
    for y in (0.018, 0.048):
        x, ends = (-0.014, 0.014), (y - 0.014, y + 0.014)
        axes.plot(x, ends, transform=axes.transAxes, color="black", linewidth=0.7, clip_on=False)


def _line_handle(i: int) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=_colour(i), marker=_marker(i))


def _line(axes: Any, x: Array, name: str, mean: Numbers, deviation: Numbers | None, i: int) -> None:
    """Draw one series; a point without neighbours has no band and gets a whisker."""
    values = _numbers(mean, f"mean of {name}", x.shape)
    every = math.ceil(x.size / 24)  # more markers would hide the line
    axes.plot(x, values, color=_colour(i), marker=_marker(i), markevery=every, zorder=3)
    if deviation is None:
        return
    spread = _numbers(deviation, f"deviation of {name}", x.shape, required=False)
    known = np.isfinite(values) & np.isfinite(spread)
    axes.fill_between(
        x,
        values - spread,
        values + spread,
        where=known,
        color=_colour(i),
        alpha=0.18,
        linewidth=0,
    )
    beside = np.zeros_like(known)
    beside[1:] |= known[:-1]
    beside[:-1] |= known[1:]
    alone = known & ~beside
    if alone.any():
        whiskers = {"fmt": "none", "ecolor": _colour(i), "elinewidth": 0.7, "capsize": 1.6}
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


def _dot_handle(look: tuple[str, str, str]) -> Any:
    from matplotlib.lines import Line2D

    marker, face, edge = look
    return Line2D(
        [], [], linestyle="none", marker=marker, markerfacecolor=face, markeredgecolor=edge
    )


def _dot(axes: Any, x: float, y: float, look: tuple[str, str, str]) -> None:
    marker, face, edge = look
    axes.plot(
        x, y, marker=marker, markerfacecolor=face, markeredgecolor=edge, linestyle="none", zorder=3
    )


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


# Clouds


def _cloud(axes: Any, cloud: _Cloud, classes: Sequence[str], scale: _Areas) -> None:
    """Draw the points class by class, large ones first so that they hide none."""
    areas = scale(cloud.sizes, len(cloud.points))
    for i, name in enumerate(classes):
        chosen = np.flatnonzero(cloud.labels == name)
        chosen = chosen[np.argsort(-areas[chosen], kind="stable")]
        look = {"marker": _marker(i), "color": _colour(i), "linewidths": 0.25}
        axes.scatter(
            *cloud.points[chosen].T,
            s=areas[chosen],
            alpha=0.8,
            edgecolors="white",
            rasterized=len(cloud.points) > RASTER_POINTS,
            **look,
        )
    axes.set_title(_text(cloud.title))


def _ellipse(axes: Any, points: Array) -> None:
    """Draw the covariance ellipse at two deviations."""
    from matplotlib.patches import Ellipse

    if len(points) < 3:
        return
    variances, directions = np.linalg.eigh(np.cov(points.T))
    across, along = 4 * np.sqrt(np.maximum(variances, 0))
    angle = math.degrees(math.atan2(directions[1, 1], directions[0, 1]))
    centre = (float(points[:, 0].mean()), float(points[:, 1].mean()))
    look = {"fill": False, "linestyle": "--", "linewidth": 0.9, "edgecolor": "black"}
    axes.add_patch(Ellipse(centre, float(along), float(across), angle=angle, zorder=4, **look))


def _share_limits(grid: Sequence[Any], points: Sequence[Array]) -> None:
    everything = np.concatenate(points)
    for axis, values in zip("xyz", everything.T, strict=False):
        low, high = float(values.min()), float(values.max())
        room = 0.05 * (high - low) or 1.0
        for axes in grid:
            getattr(axes, f"set_{axis}lim")(low - room, high + room)


def _name_axes(axes: Any, name: str, *, first: bool) -> None:
    """Label the axes and take their ticks away; y is named once, left of all panels."""
    names = {"x": f"{name} 1", "y": f"{name} 2", "z": f"{name} 3"}
    flat = axes.name != "3d"
    for axis in "xy" if flat else "xyz":
        getattr(axes, f"set_{axis}ticks")([])
        if axis != "y" or first or not flat:
            getattr(axes, f"set_{axis}label")(_text(names[axis]), labelpad=2 if flat else -14)


def _class_legend(figure: Any, classes: Sequence[str], highlight: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [_dot_handle((_marker(i), _colour(i), _colour(i))) for i in range(len(classes))]
    names = list(classes)
    if highlight is not None:
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=0.9))
        names.append(f"2 deviations of {highlight}")
    _legend(figure, handles, names)


def _size_legend(figure: Any, scale: _Areas, label: str) -> None:
    values = _round_values(scale.low, scale.high)
    dots = [_dot_handle(("o", "#BBBBBB", "#888888")) for _ in values]
    for dot, area in zip(dots, scale(values, len(values)), strict=True):
        dot.set_markersize(math.sqrt(area))
    _legend(figure, dots, [f"{v:.3g}" for v in values], "lower", label or "size")


def _round_values(low: float, high: float) -> Array:
    """Return two to four round numbers of a range, for a legend; the ends if there are none."""
    from matplotlib.ticker import MaxNLocator

    ticks = np.asarray(MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(low, high))
    inside = ticks[(ticks >= low) & (ticks <= high)]
    return inside if inside.size > 1 else np.unique([low, high])

"""Clouds of points side by side: maps of representations."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geof.errors import ConfigError, DataError, ShapeError
from geof_paper.render.figure_style import (
    COLUMN,
    PAGE,
    Array,
    colour_of,
    dot_handle,
    footnote,
    legend_of,
    marker_of,
    new_figure,
    styled,
    text_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ScatterPanel = tuple[str, ArrayLike, Sequence[Any] | NDArray[Any], ArrayLike | None]
"""Title, points (n, 2) or (n, 3), class of each point, and a value of each point or ``None``."""
RASTER_POINTS = 2000
"""Above so many points a cloud is a picture inside the SVG (all points are drawn in any case)."""


@styled
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
    figure = new_figure(width, height or needed)
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
        footnote(figure, text_of(note, longest=None))
    _class_legend(figure, classes, highlight)
    if not scale.plain:
        _size_legend(figure, scale, size_label)
    return figure


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


def _cloud(axes: Any, cloud: _Cloud, classes: Sequence[str], scale: _Areas) -> None:
    """Draw the points class by class, large ones first so that they hide none."""
    areas = scale(cloud.sizes, len(cloud.points))
    alike = bool((areas == areas[0]).all())  # then an SVG holds the marker once
    for i, name in enumerate(classes):
        chosen = np.flatnonzero(cloud.labels == name)
        chosen = chosen[np.argsort(-areas[chosen], kind="stable")]
        look = {"marker": marker_of(i), "color": colour_of(i), "linewidths": 0.25}
        axes.scatter(
            *cloud.points[chosen].T,
            s=float(areas[0]) if alike else areas[chosen],
            alpha=0.8,
            edgecolors="white",
            rasterized=len(cloud.points) > RASTER_POINTS,
            **look,
        )
    axes.set_title(text_of(cloud.title))


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
            getattr(axes, f"set_{axis}label")(text_of(names[axis]), labelpad=2 if flat else -14)


def _class_legend(figure: Any, classes: Sequence[str], highlight: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [dot_handle((marker_of(i), colour_of(i), colour_of(i))) for i in range(len(classes))]
    names = list(classes)
    if highlight is not None:
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=0.9))
        names.append(f"2 deviations of {highlight}")
    legend_of(figure, handles, names)


def _size_legend(figure: Any, scale: _Areas, label: str) -> None:
    values = _round_values(scale.low, scale.high)
    dots = [dot_handle(("o", "#BBBBBB", "#888888")) for _ in values]
    for dot, area in zip(dots, scale(values, len(values)), strict=True):
        dot.set_markersize(math.sqrt(area))
    legend_of(figure, dots, [f"{v:.3g}" for v in values], "lower", label or "size")


def _round_values(low: float, high: float) -> Array:
    """Return two to four round numbers of a range, for a legend; the ends if there are none."""
    from matplotlib.ticker import MaxNLocator

    ticks = np.asarray(MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(low, high))
    inside = ticks[(ticks >= low) & (ticks <= high)]
    return inside if inside.size > 1 else np.unique([low, high])

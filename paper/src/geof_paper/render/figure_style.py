"""How our figures look, and the parts they share.

Every figure is readable in print and without colours: series differ in marker or hatch too. The
same data give the same bytes, whatever matplotlib's settings of the user are. Matplotlib is an
extra (``pip install './paper[figures]'``) and is imported when the first figure is drawn; pyplot is
never used, so a notebook's figures are left alone.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geof.errors import ConfigError, DataError, ShapeError
from geof.io import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Numbers = ArrayLike | Sequence[float | None] | Sequence[Sequence[float | None]]
"""Numbers, ``None`` or NaN where there is none."""
COLUMN = 3.35
"""Width in inches of a column of a two-column page."""
PAGE = 7.0
"""Width in inches of both columns."""
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"),
)
"""Okabe and Ito's colours, told apart by colour-blind readers; the pale yellow comes last."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
HATCHES = ("", "////", "\\\\\\\\", "xxx", "---", "|||", "++", "//", "\\\\")
"""Of lines alone: dots and circles make an SVG ten times as heavy."""
LONGEST_LABEL = 40
"""A longer label loses its middle, and an ellipsis says so."""
GREY = "#666666"
DOTS = {".svg": 110, ".png": 200}
"""Dots per inch: of a PNG, and of the pictures inside an SVG, which would be most of its size."""
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
            "'./paper[figures]'."
        ) from error
    with matplotlib.style.context(["default", STYLE]):
        yield


def styled(draw: Callable[_Arguments, Figure]) -> Callable[_Arguments, Figure]:
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
            figure.savefig(
                content, format=path.suffix[1:], dpi=DOTS[path.suffix], metadata=metadata
            )
        write_atomically(path, content.getvalue())
    return paths


def numbers_of(
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


def text_of(label: str, longest: int | None = LONGEST_LABEL) -> str:
    """Return a label on one line that any XML file can hold; a long one loses its middle."""
    text = re.sub(r"\s+", " ", str(label)).strip()
    text = re.sub("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    if longest is None or len(text) <= longest:
        return text
    return f"{text[: longest // 2]}…{text[-(longest // 2 - 1) :]}"


def colour_of(i: int) -> str:
    """Return the colour of series ``i``."""
    return PALETTE[i % len(PALETTE)]


def marker_of(i: int) -> str:
    """Return the marker of series ``i``."""
    return MARKERS[i % len(MARKERS)]  # nine beside eight colours: seventy-two pairs


def hatch_of(i: int) -> str:
    """Return the hatch of series ``i``."""
    return HATCHES[i % len(HATCHES)]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that lays itself out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def footnote(figure: Any, text: str) -> None:
    """Write a remark below everything that comes later."""
    lines = textwrap.fill(text, int(18 * figure.get_figwidth()))  # characters of 4 points each
    look = {"fontsize": 7.0, "color": GREY, "ha": "right", "va": "bottom"}
    note = figure.text(0.99, 0.03 / figure.get_figheight(), lines, **look)
    reserve(figure, bottom=note.get_window_extent().y1)


def reserve(figure: Any, *, top: float | None = None, bottom: float | None = None) -> None:
    """Keep the axes, and what is placed next, below one height and above another, in pixels.

    Matplotlib's own legends outside the axes overlap with other things there.
    """
    engine, whole = figure.get_layout_engine(), figure.bbox.height
    _, low, _, high = engine.get()["rect"]
    high += low
    low = low if bottom is None else bottom / whole
    high = high if top is None else top / whole
    engine.set(rect=(0, low, 1, high - low))


def legend_of(
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
        legend = figure.legend(handles, names, ncols=columns, title=text_of(title) or None, **where)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set_text(text_of(label))
        legend.set_in_layout(False)  # its place is reserved here
        box = legend.get_window_extent()
        if columns == 1 or box.width <= 0.98 * figure.bbox.width:
            break
        legend.remove()
    if place == "upper":
        reserve(figure, top=box.y0)
    else:
        reserve(figure, bottom=box.y1)


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


def dot_handle(look: tuple[str, str, str]) -> Any:
    """Return a dot for a legend: marker, face and edge."""
    from matplotlib.lines import Line2D

    marker, face, edge = look
    return Line2D(
        [], [], linestyle="none", marker=marker, markerfacecolor=face, markeredgecolor=edge
    )

"""Average ranks of methods, and which of them are not shown to differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from geof.errors import ConfigError, DataError
from geof_paper.render.figure_style import (
    COLUMN,
    Numbers,
    colour_of,
    dot_handle,
    legend_of,
    new_figure,
    numbers_of,
    styled,
    text_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def critical_difference(
    methods: Sequence[str],
    ranks: Numbers,
    reference: str,
    p_values: Numbers,
    *,
    level: float = 0.05,
    difference: float | None = None,
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
        difference: Nemenyi's critical difference, drawn as a ruler: of any two methods, not only
            with the reference, ranks that are nearer are not shown to differ.
        title: Above the axes.
        width: In inches.
        height: In inches; by default as many lines need.

    Raises:
        ShapeError: If there is not one rank and one p-value per method.
        DataError: If a rank or another method's p-value is missing.
        ConfigError: If the reference is not among the methods.
    """
    values = numbers_of(ranks, "ranks", (len(methods),))
    tested = numbers_of(p_values, "p_values", (len(methods),), required=False)
    if reference not in methods:
        raise ConfigError(f"Expected the reference {reference!r} among the methods.")
    base = list(methods).index(reference)
    if np.isnan(values).any() or np.isnan(np.delete(tested, base)).any():
        raise DataError("Expected a rank of each method and a p-value of each but the reference.")
    order = np.argsort(values, kind="stable")
    alike = [j for j in order if j == base or tested[j] >= level]
    row = {int(j): i for i, j in enumerate(order)}
    figure = new_figure(width, height or 0.95 + 0.165 * len(methods))
    axes: Any = figure.subplots()
    axes.set_title(text_of(title, longest=None))
    axes.hlines(range(len(order)), 1, values[order], color="#DDDDDD", linewidth=0.8, zorder=1)
    if len(alike) > 1:
        axes.plot(values[alike], [row[j] for j in alike], color="#999999", linewidth=3.5, zorder=2)
    looks = {"reference": ("D", colour_of(1), colour_of(1)), "same": ("o", "white", colour_of(0))}
    looks["different"] = ("o", colour_of(0), colour_of(0))
    for j in range(len(methods)):
        kind = "reference" if j == base else "same" if j in alike else "different"
        _dot(axes, values[j], row[j], looks[kind])
        place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(1.09, row[j], f"{values[j]:.1f}", fontsize=7.0, **place)
    axes.set_yticks(range(len(order)), [text_of(methods[j]) for j in order])
    axes.get_yticklabels()[row[base]].set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) - 0.4, -0.6)
    last = max(values.max(), 2.0)
    if difference is not None:
        axes.set_ylim(len(order) - 0.4, -2.2)
        _ruler(axes, difference, -1.1)
        last = max(last, 1 + difference)
    axes.set_xlim(1 - 0.03 * len(methods), last + 0.03 * len(methods))
    axes.set_xlabel("average rank (1 is best)")
    kinds = ["reference", "different", "same"] if len(alike) > 1 else ["reference", "different"]
    names = {
        "reference": "reference",
        "different": f"differs (p < {level:g}, Holm)",
        "same": "not shown to differ",
    }
    handles = [dot_handle(looks[kind]) for kind in kinds]
    legend_of(figure, handles, [names[kind] for kind in kinds])
    return figure


def _dot(axes: Any, x: float, y: float, look: tuple[str, str, str]) -> None:
    marker, face, edge = look
    axes.plot(
        x, y, marker=marker, markerfacecolor=face, markeredgecolor=edge, linestyle="none", zorder=3
    )


def _ruler(axes: Any, length: float, y: float) -> None:
    """Draw how far ranks must be apart, from the best possible rank on."""
    axes.plot([1, 1 + length], [y, y], color="#333333", linewidth=1.0, marker="|", zorder=2)
    axes.text(
        1 + length / 2, y - 0.1, f"critical difference {length:.1f}", fontsize=7.0, ha="center"
    )

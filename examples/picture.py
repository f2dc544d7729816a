"""One step of GeoF on a handful of nodes with two features, drawn: docs/pictures/step.svg.

Every number in the picture is computed by the library; the equations are the paper's.

    python examples/picture.py docs/pictures/step.svg
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor

from geof.geometry import (
    AdmissibleBox,
    apply_frame,
    frame_from_coordinates,
    target_coordinates,
    triangular_solve,
)

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.hashsalt": "geof", "svg.fonttype": "none"}  # the same file always

import matplotlib.pyplot as plt  # noqa: E402

NEIGHBOURS, TEMPERATURE, FLOOR, MIX = 9, 6.0, 0.15, 0.5
BLUE, RED, GREY = "#2b6cb0", "#c05621", "#718096"


def scene() -> tuple[Tensor, Tensor]:
    """Return features and coordinates: the target first, its neighbours along a ridge."""
    draw = torch.Generator().manual_seed(3)
    along = torch.linspace(-2.0, 2.0, NEIGHBOURS)[:, None] * torch.tensor([[0.9, 0.55]])
    around = along + 0.28 * torch.randn(NEIGHBOURS, 2, generator=draw)
    features = torch.cat([torch.zeros(1, 2), around])
    coords = 0.22 * torch.randn(NEIGHBOURS + 1, 3, generator=draw)
    coords[0] = 0.0
    return features, coords


def outline(frame: Tensor, size: float = 0.32) -> Tensor:
    """Return the points at one metric length from the origin: ``|L v| = size``."""
    angle = torch.linspace(0, 2 * torch.pi, 90)
    circle = size * torch.stack([angle.cos(), angle.sin()], dim=-1)
    return triangular_solve(frame.expand(len(circle), 2, 2), circle)


def panel(axes: Any, title: str, note: str) -> None:
    """Prepare one of the three parts."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.text(0.0, -0.04, note, transform=axes.transAxes, fontsize=8.5, color=GREY, va="top")
    axes.set_aspect("equal")
    axes.set_xlim(-2.7, 2.7)
    axes.set_ylim(-2.0, 2.0)
    axes.set_xticks([])
    axes.set_yticks([])


def ellipse(axes: Any, frame: Tensor, centre: Tensor, **style: Any) -> None:
    """Draw one length of a metric around a point."""
    points = outline(frame, style.pop("size", 0.32)) + centre
    axes.plot(*points.T, **style)


def draw(path: Path) -> None:
    """Compute the step and draw its three acts."""
    features, coords = scene()
    frames = frame_from_coordinates(coords)  # Eq. (1)
    environment = apply_frame(frames, features)
    energy = (environment[0] - environment).square().sum(-1)
    weight = torch.softmax(-energy / TEMPERATURE, dim=0)  # Eq. (4)
    transported = triangular_solve(frames[:1].expand_as(frames), environment)  # Eq. (5)
    residual = transported - features[0]
    moment = (weight[:, None, None] * residual[:, :, None] * residual[:, None, :]).sum(0)
    moment = moment + FLOOR * torch.eye(2)  # Eq. (8)
    target = target_coordinates(moment)  # Eq. (10)
    box = AdmissibleBox(2.0, (-5.0, 5.0))
    updated = box.project((1 - MIX) * coords[0] + MIX * target)  # Eq. (12) without a controller

    figure, (one, two, three) = plt.subplots(1, 3, figsize=(10.5, 3.1))
    panel(one, "1  Every node has a frame", "ellipses: one length in the node's own metric")
    for k, (point, frame) in enumerate(zip(features, frames, strict=True)):
        one.plot(*torch.stack([features[0], point]).T, color="#cbd5e0", linewidth=0.8, zorder=0)
        colour = RED if k == 0 else BLUE
        ellipse(one, frame, point, color=colour, linewidth=1.4)
        one.plot(*point, "o", color=colour, markersize=3)
    panel(two, "2  Messages enter the target's frame", "two triangular solves; size: weight")
    for before, after, share in zip(features[1:], transported[1:], weight[1:], strict=True):
        two.annotate(
            "",
            xy=after.tolist(),
            xytext=before.tolist(),
            arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 1.0},
        )
        two.plot(*after, "o", color=BLUE, markersize=3 + 22 * float(share))
    ellipse(two, frames[0], features[0], color=RED, linewidth=1.4)
    panel(three, "3  Their spread becomes its metric", "one length: before (dashed), after")
    for after, share in zip(residual[1:], weight[1:], strict=True):
        three.plot(*after, "o", color=BLUE, alpha=0.5, markersize=3 + 22 * float(share))
    ellipse(three, frames[0], features[0], color=RED, linestyle="--", linewidth=1.1, size=1.0)
    ellipse(three, frame_from_coordinates(updated), features[0], color=RED, linewidth=2.0, size=1.0)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else "step.svg"))

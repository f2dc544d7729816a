r"""The Poincare ball of curvature :math:`-c`, written so that every formula is smooth in float32.

.. math::
    x \oplus y &= \frac{(1 + 2c\langle x, y\rangle + c|y|^2)\,x + (1 - c|x|^2)\,y}
                       {1 + 2c\langle x, y\rangle + c^2|x|^2|y|^2} \\
    \exp_0(u) &= \tanh(\sqrt c|u|)\, u / (\sqrt c|u|), \qquad
    \log_0(x) = \operatorname{artanh}(\sqrt c|x|)\, x / (\sqrt c|x|) \\
    \exp_x(v) &= x \oplus \exp_0(\tfrac{\lambda_x}{2} v), \qquad
    \log_x(y) = \tfrac{2}{\lambda_x} \log_0(-x \oplus y), \qquad
    \lambda_x = 2 / (1 - c|x|^2) \\
    d(x, y) &= \tfrac{2}{\sqrt c} \operatorname{artanh}(\sqrt c|-x \oplus y|)

Reference: Ganea, Becigneul, Hofmann, "Hyperbolic Neural Networks", NeurIPS 2018. Evidence: the
equations, from source; tested against an independent library. The forms used here are equal to them
and keep their digits and derivatives where those lose them:

- a length enters as :math:`q = c|u|^2` only, through functions such as
  :math:`\tanh(\sqrt q)/\sqrt q`, which have a power series at :math:`q = 0`. Zero vectors,
  coincident points and :math:`c = 0` (the Euclidean limit) need no special case;
- with :math:`s = x + y`,
  :math:`x \oplus y = [(1 - c|x|^2)\,s + c|s|^2 x] / [(1 - c|x|^2)(1 - c|y|^2) + c|s|^2]`, a
  denominator of positive terms;
- :math:`d(x, y)^2 = \tfrac{4}{c} \operatorname{arsinh}^2 \sqrt{q}`,
  :math:`q = c|x - y|^2 / [(1 - c|x|^2)(1 - c|y|^2)]`, which needs no clamp at the ball's edge;
  likewise :math:`\log_x(y)`.

Public code for the ball detaches the conformal factor; here gradients are complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Curvature: TypeAlias = Tensor | float
"""The ball has curvature ``-c``; a number or a tensor without dimensions, at least zero."""

EDGE = {torch.float32: 4e-3, torch.float64: 1e-5}
"""How far, relative to the radius, points are kept away from the ball's edge."""

_ARTANH_MOST = {torch.float32: 1.0 - 1e-5, torch.float64: 1.0 - 1e-10}
_AT_EDGE = {torch.float32: 1e-4, torch.float64: 1e-9}  # of q: far above rounding, far below reach
_ROOM_LEAST = {torch.float32: 1e-6, torch.float64: 1e-14}
_SERIES_BELOW = 1e-3  # five terms of a series are exact to 1e-16 there

_TANH = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835)
_ARTANH = (1.0, 1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)
_ARSINH = (1.0, -1 / 6, 3 / 40, -15 / 336, 105 / 3456)


def exp0(u: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`\exp_0(u)`, a point of the ball."""
    return tanh_ratio(c * square(u)) * u


def log0(x: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`\log_0(x)`, the chart of the ball in the tangent space at the origin."""
    return artanh_ratio(c * square(x)) * x


def within_reach(u: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`\log_0(\operatorname{proj}(\exp_0(u)))` without leaving the chart.

    All three maps are radial: long vectors are cut to length
    :math:`\operatorname{artanh}(1 - \epsilon) / \sqrt c`, others stay as they are.
    """
    return reach_factor(square(u), c) * u


def reach_factor(squared_length: Tensor, c: Curvature) -> Tensor:
    """Return the factor, one or less, by which :func:`within_reach` scales a row."""
    longest = math.atanh(1.0 - EDGE[squared_length.dtype])
    return _shrink(c * squared_length, longest)


def project(x: Tensor, c: Curvature) -> Tensor:
    r"""Return the points, those beyond it moved to radius :math:`(1 - \epsilon)/\sqrt c`."""
    return _shrink(c * square(x), 1.0 - EDGE[x.dtype]) * x


def mobius_add(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`x \oplus y`."""
    total = x + y
    bend = c * square(total)
    room = _room(x, c)
    return (room * total + bend * x) / (room * _room(y, c) + bend)


def exp(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`\exp_x(v)`."""
    return mobius_add(x, exp0(v / _room(x, c), c), c)


def log(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`\log_x(y)`."""
    room = _room(x, c)
    apart = square(x - y) / (room * _room(y, c))
    return room * distance_ratio(c * apart) * mobius_add(-x, y, c)


def squared_distance(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return :math:`d(x, y)^2` of rows, without their last dimension.

    At :math:`c = 0` it is :math:`4|x - y|^2`, the limit of the ball's metric.
    """
    apart = square(x - y) / (_room(x, c) * _room(y, c))
    return (4.0 * apart * arsinh_ratio(c * apart).square()).squeeze(-1)


def square(x: Tensor) -> Tensor:
    """Return the squared length of rows, ``(..., 1)``."""
    return x.square().sum(-1, keepdim=True)


def tanh_ratio(q: Tensor) -> Tensor:
    r"""Return :math:`\tanh(\sqrt q)/\sqrt q`."""
    return _smooth(q, lambda s: s.tanh() / s, _TANH)


def artanh_ratio(q: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{artanh}(\sqrt q)/\sqrt q`, finite up to :math:`q = 1`."""
    most = _ARTANH_MOST[q.dtype]

    def ratio(s: Tensor) -> Tensor:
        s = s.clamp_max(most)
        return 0.5 * (s.log1p() - (-s).log1p()) / s

    return _smooth(q, ratio, _ARTANH)


def arsinh_ratio(q: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{arsinh}(\sqrt q)/\sqrt q`."""
    return _smooth(q, lambda s: s.asinh() / s, _ARSINH)


def distance_ratio(q: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{artanh}(\sqrt p)/\sqrt p` of :math:`p = |-x \oplus y|^2 c`.

    Args:
        q: That of the distance, :math:`p/(1 - p)`, which does not lose its digits at :math:`p = 1`.
    """
    return arsinh_ratio(q) * (1.0 + q).sqrt()


def _room(x: Tensor, c: Curvature) -> Tensor:
    """Return ``1 - c|x|^2``, positive also where rounding says otherwise."""
    return (1.0 - c * square(x)).clamp_min(_ROOM_LEAST[x.dtype])


def _shrink(q: Tensor, longest: float) -> Tensor:
    """Return ``longest / sqrt(q)`` where that is below one, else one.

    What was cut before comes back at this very length, to a rounding error. It is cut again, or
    that error would decide whether there is a gradient along the radius.
    """
    beyond = q > longest**2 * (1.0 - _AT_EDGE[q.dtype])
    return torch.where(beyond, longest * torch.where(beyond, q, 1.0).rsqrt(), 1.0)


def _smooth(q: Tensor, of_root: Callable[[Tensor], Tensor], series: tuple[float, ...]) -> Tensor:
    """Return a function of the root, near zero by its power series in ``q``.

    Each branch sees harmless values where the other is taken, so that no derivative is infinite.
    """
    small = q < _SERIES_BELOW
    low = torch.where(small, q, 0.0)
    near = torch.full_like(low, series[-1])
    for coefficient in series[-2::-1]:
        near = near * low + coefficient
    return torch.where(small, near, of_root(torch.where(small, 1.0, q).sqrt()))

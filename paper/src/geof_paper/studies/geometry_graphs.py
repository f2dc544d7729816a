r"""Generated graphs whose classes show in the means of neighbours, in covariances, or in both.

Centres of two classes, each with leaves of its own; only centres have labels, and a centre's own
state :math:`s_i \sim N(0, I)` tells nothing. With the knob :math:`t` the leaves of a centre of
class :math:`\pm` lie in pairs at :math:`m_i + \delta` and :math:`m_i - \delta`,

.. math::
    m_i = s_i + e_i \pm a \cos(\tfrac{\pi}{2} t)\, u, \quad e_i \sim N(0, \sigma^2 I), \qquad
    \delta \sim N(0, I \pm r \sin(\tfrac{\pi}{2} t)\, P)

where :math:`P` pairs coordinates up (:math:`P e_1 = e_2`, :math:`P e_2 = e_1`, ...) and :math:`u`
is a unit vector, all turned by a random rotation. At 0 means suffice and covariances are equal; at
1 the means have one distribution and only covariances tell. The leaves' mean is :math:`m_i`
exactly: it never says anything about their covariance. Draws below :data:`CHOOSING` are reported;
those from it on settled sizes and options and are reported nowhere.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from geof.data.records import NodeGraph, node_graph
from geof.data.sources import standardised
from geof.options import require_number

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the knob."""

CHOOSING = 1000
"""The first draw that may settle something."""

CENTRES, LEAVES, CHANNELS = 300, 4, 8
MEAN, NOISE, CORRELATION = 1.0, 0.5, 0.9
"""Of the formula: a, sigma and r."""


def geometry_graph(knob: float, draw: int) -> NodeGraph:
    """Return a graph; classes, noise and rotation depend on the draw alone.

    Args:
        knob: From 0, means suffice, to 1, only covariances tell.
        draw: Number of the draw.
    """
    require_number("knob", knob, least=0, most=1)
    rng = np.random.default_rng([draw, 2])
    y = rng.permutation(np.arange(CENTRES) % 2)
    rotation = np.linalg.qr(rng.normal(size=(CHANNELS, CHANNELS)))[0]
    direction = rng.normal(size=CHANNELS)
    direction /= np.linalg.norm(direction)
    own = rng.normal(size=(CENTRES, 1, CHANNELS))
    shift = NOISE * rng.normal(size=(CENTRES, 1, CHANNELS))
    noise = rng.normal(size=(CENTRES, LEAVES // 2, CHANNELS))
    sign = np.where(y == 1, 1.0, -1.0)[:, None, None]
    mean = own + shift + sign * MEAN * math.cos(math.pi / 2 * knob) * direction
    around = _correlated(noise, sign * CORRELATION * math.sin(math.pi / 2 * knob))
    leaves = np.concatenate([mean + around, mean - around], axis=1)
    x = np.concatenate([own.reshape(-1, CHANNELS), leaves.reshape(-1, CHANNELS)]) @ rotation
    centre = np.repeat(np.arange(CENTRES), LEAVES)
    leaf = CENTRES + np.arange(CENTRES * LEAVES)
    record = node_graph(
        graph_name(knob),
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(np.stack([centre, leaf])),
        torch.from_numpy(np.concatenate([y, np.full(CENTRES * LEAVES, -1)])),
        ("0", "1"),
        None,
        (),
        directed=False,
    )
    made = standardised(record).data
    assert isinstance(made, NodeGraph)
    return made


def graph_name(knob: float) -> str:
    """Return what rows and tables call the graphs of a level."""
    return f"knob-{knob}"


def _correlated(
    noise: NDArray[np.float64], correlation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return noise whose coordinates 1 and 2, 3 and 4, ... are correlated, each of variance one."""
    first, second = noise[..., 0::2], noise[..., 1::2]
    mixed = correlation * first + np.sqrt(1 - correlation**2) * second
    return np.stack([first, mixed], axis=-1).reshape(noise.shape)

"""Random graphs, layers and per-edge quantities for tests of the recurrent step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

from geof.geometry import AdmissibleBox, JitterSchedule, frame_from_coordinates
from geof.kernels import BACKENDS, Neighbourhoods, StepSpec
from geof.nn import GeoFConv

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(1, 3)  # block sizes and numbers of blocks
BOX = AdmissibleBox(1.0, (-1.0, 1.0))
ROUNDING = 1 + 1e-9  # a bound may be attained, so it is compared with this slack
every_backend = pytest.mark.parametrize("backend", sorted(BACKENDS))


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def random_graph(draw, n):
    """Return the closed neighbourhoods of an undirected graph with about half of all edges."""
    pairs = (draw.uniform(n, n).triu(1) > 0).nonzero().mT
    return Neighbourhoods.from_edge_index(torch.cat([pairs, pairs.flip(0)], 1), n)


def star(n):
    """Return the closed neighbourhoods of a hub, node 0, with n - 1 leaves."""
    leaves = torch.arange(1, n)
    spokes = torch.stack([leaves, torch.zeros_like(leaves)])
    return Neighbourhoods.from_edge_index(torch.cat([spokes, spokes.flip(0)], 1), n)


def random_layer(draw, m, blocks, *, signature_channels=2, scale=0.5, box=BOX, **options):
    """Return a layer whose parameters, the message map included, are all random."""
    layer = GeoFConv(
        m * blocks,
        blocks=blocks,
        signature_channels=signature_channels,
        correction_rank=2,
        controller_channels=6,
        offdiagonal_bound=box.offdiagonal_bound,
        log_scale_bounds=box.log_scale_bounds,
        **options,
    ).double()
    for parameter in layer.parameters():
        parameter.requires_grad_(False).copy_(scale * draw.normal(*parameter.shape))
    return layer


def specification(statistic="full", temperature=1.0, spectral_floor=1.0):
    return StepSpec(temperature, statistic, True, spectral_floor, JitterSchedule(initial=1e-12))


def dense_frames(coordinates):
    """Return the block-diagonal frames ``(n, d, d)`` of Eq. (2)."""
    return torch.stack([torch.block_diag(*node) for node in frame_from_coordinates(coordinates)])


def edge_messages(layer, state, edges):
    """Return m_{j->i} of every edge ``(E, d)`` from explicitly inverted frames, Eq. (5)."""
    frame = dense_frames(state.coordinates)
    message = (state.features @ layer.transport.message.weight.mT).unsqueeze(-1)
    inverse = torch.linalg.inv(frame)
    return (inverse[edges.target] @ frame[edges.source] @ message[edges.source]).squeeze(-1)


def edge_residuals(layer, state, edges):
    """Return delta_ij of every edge in blocks ``(E, B, m)``, section 3.3."""
    message = state.features @ layer.transport.message.weight.mT
    residual = edge_messages(layer, state, edges) - message[edges.target]
    return residual.unflatten(-1, (layer.blocks, layer.block_size))

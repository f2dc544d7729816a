"""Proposition 1, frame-aligned transport, and the weights of Eq. (4), in double precision."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geof.geometry import block_size_of, frame_bounds, frame_from_coordinates
from geof.kernels import BACKENDS, Neighbourhoods
from tests.steps import (
    BOX,
    ROUNDING,
    SEEDS,
    SIZES,
    close,
    dense_frames,
    edge_residuals,
    every_backend,
    random_graph,
    random_layer,
    specification,
)


class TestWeights:
    """Eq. (4) and the first paragraph of Proposition 1's proof."""

    @every_backend
    @given(seed=SEEDS, m=SIZES, blocks=SIZES, temperature=st.floats(0.3, 5.0))
    def test_positive_and_normalised(self, random_state, backend, seed, m, blocks, temperature):
        """omega_ij > 0, they sum to one over each closed neighbourhood, and follow Eq. (4)."""
        draw = random_state(seed)
        edges, state = random_graph(draw, 7), draw.coupled(BOX, 7, blocks, m, 1.0)
        xi = state.features.unflatten(-1, (blocks, m))
        weight = (
            BACKENDS[backend]
            .statistics(xi, xi, state.coordinates, edges, specification(temperature=temperature))
            .weight
        )
        assert (weight > 0).all()
        close(edges.sum(weight), torch.ones(7, dtype=torch.float64), 1e-14)
        h = (dense_frames(state.coordinates) @ state.features.unsqueeze(-1)).squeeze(-1)
        for i in range(7):
            energy = (h[i] - h[edges.source[edges.target == i]]).square().sum(-1)
            close(weight[edges.target == i], (-energy / temperature).softmax(0), 1e-12)


def frame_map(backend, coordinates, j, i):
    """Return T_{j->i} ``(B, m, m)`` as the backend carries it out.

    Column k is read off a pair of nodes with the frames of i and j: with zero states both
    weights are one half, so the aggregate at i is half of the message e_k carried from j.
    """
    _, blocks, t = coordinates.shape
    m = block_size_of(t)
    pairs = coordinates[[i, j]].repeat(m, 1, 1)  # nodes 2k and 2k + 1 are i and j
    message = torch.zeros(2 * m, blocks, m, dtype=coordinates.dtype)
    message[torch.arange(1, 2 * m, 2), :, torch.arange(m)] = 1
    arrows = torch.stack([torch.arange(1, 2 * m, 2), torch.arange(0, 2 * m, 2)])
    edges = Neighbourhoods.from_edge_index(arrows, 2 * m)
    statistics = BACKENDS[backend].statistics(
        torch.zeros_like(message), message, pairs, edges, specification()
    )
    return 2 * statistics.aggregate[::2].permute(1, 2, 0)


class TestFrameAlignedTransport:
    """Proposition 1."""

    @every_backend
    @given(seed=SEEDS, m=SIZES, blocks=SIZES)
    @settings(max_examples=20)
    def test_frame_maps(self, random_state, backend, seed, m, blocks):
        """T_{j->i} = L_i^{-1} L_j, T_{i->i} = I, and ||T|| <= sigma_+ / sigma_-."""
        coordinates = random_state(seed).coordinates(BOX, m, 2, blocks)
        bounds = frame_bounds(m, BOX)
        frame = frame_from_coordinates(coordinates)
        carried = frame_map(backend, coordinates, 1, 0)
        close(carried, torch.linalg.inv(frame[0]) @ frame[1])
        identity = torch.eye(m, dtype=torch.float64).expand(blocks, m, m)
        pair = coordinates[[0, 0]]  # two nodes that share a frame
        close(frame_map(backend, pair, 1, 0), identity)
        norm = torch.linalg.matrix_norm(carried, ord=2)
        assert (norm <= bounds.sigma_plus / bounds.sigma_minus * ROUNDING).all()

    @every_backend
    @given(seed=SEEDS, m=SIZES, walk=st.lists(st.integers(0, 3), min_size=2, max_size=7))
    @settings(max_examples=20)
    def test_walks_depend_on_endpoints_only(self, random_state, backend, seed, m, walk):
        """The product of the maps along a walk is T from its start to its end; I if closed."""
        coordinates = random_state(seed).coordinates(BOX, m, 4, 2)
        identity = torch.eye(m, dtype=torch.float64).expand(2, m, m)

        def along(nodes):
            product = identity
            for j, i in pairwise(nodes):
                product = frame_map(backend, coordinates, j, i) @ product
            return product

        close(along(walk), frame_map(backend, coordinates, walk[0], walk[-1]), 1e-8)
        close(along([*walk, walk[0]]), identity, 1e-8)

    @every_backend
    @given(seed=SEEDS, m=SIZES, blocks=SIZES)
    @settings(max_examples=20)
    def test_environment_coordinates(self, random_state, backend, seed, m, blocks):
        """L_i xbar_i = sum_j w_ij M_j h_j, and L_i delta_ij = M_j h_j - M_i h_i.

        The residuals are seen through what the layer makes of them, their weighted mean and
        second moment.
        """
        draw = random_state(seed)
        edges, state = random_graph(draw, 6), draw.coupled(BOX, 6, blocks, m, 1.0)
        layer = random_layer(draw, m, blocks, backend=backend)
        _, trace = layer.step(state, edges, draw.uniform(6, 2), trace=True)
        frame = dense_frames(state.coordinates)
        transform = frame @ layer.transport.message.weight @ torch.linalg.inv(frame)
        h = layer.environment(*state).unsqueeze(-1)
        close(h, frame @ state.features.unsqueeze(-1))
        sent = (transform @ h).squeeze(-1)  # M_j h_j
        i, j, weight = edges.target, edges.source, trace.weight.unsqueeze(-1)

        aggregate = (frame @ trace.aggregate.unsqueeze(-1)).squeeze(-1)
        close(aggregate, edges.sum(weight * sent[j]))
        difference = sent[j] - sent[i]
        mean = (frame @ trace.mean_residual.flatten(1).unsqueeze(-1)).squeeze(-1)
        close(mean, edges.sum(weight * difference))

        block = frame_from_coordinates(state.coordinates)
        scatter = trace.moment - layer.settings.spectral_floor * torch.eye(m)
        parts = difference.unflatten(-1, (blocks, m))
        outer = parts.unsqueeze(-1) * parts.unsqueeze(-2)
        close(block @ scatter @ block.mT, edges.sum(weight[..., None, None] * outer))
        lifted = block[i] @ edge_residuals(layer, state, edges).unsqueeze(-1)
        close(lifted.squeeze(-1), parts)

    @given(SEEDS, SIZES, SIZES, st.floats(-2.0, 2.0))
    def test_transforms(self, random_state, seed, m, blocks, scale):
        """M_j has the spectrum of W_phi, norm at most (sigma_+ / sigma_-) w_phi; cI stays cI."""
        draw = random_state(seed)
        bounds, d = frame_bounds(m, BOX), m * blocks
        weight = draw.normal(d, d)
        frame = dense_frames(draw.coordinates(BOX, m, 5, blocks))
        inverse = torch.linalg.inv(frame)
        transform = frame @ weight @ inverse
        norm, w_phi = torch.linalg.matrix_norm(transform, ord=2), torch.linalg.norm(weight, ord=2)
        assert (norm <= bounds.sigma_plus / bounds.sigma_minus * w_phi * ROUNDING).all()
        for power in range(1, d + 1):  # the power sums of the eigenvalues determine them
            expected = torch.linalg.matrix_power(weight, power).trace().expand(5)
            traces = torch.linalg.matrix_power(transform, power).diagonal(dim1=1, dim2=2).sum(-1)
            assert ((traces - expected).abs() <= 1e-9 * norm**power).all()
        scalar = scale * torch.eye(d, dtype=torch.float64)
        close(frame @ scalar @ inverse, scalar.expand(5, d, d))

    @every_backend
    def test_scalar_transform_is_kernel_smoothing(self, random_state, backend):
        """With W_phi = cI one step averages c h_j: L_i xbar_i = c sum_j w_ij h_j."""
        draw = random_state(3)
        edges, state = random_graph(draw, 6), draw.coupled(BOX, 6, 2, 2, 1.0)
        layer = random_layer(draw, 2, 2, backend=backend)
        layer.transport.message.weight.copy_(-0.7 * torch.eye(4, dtype=torch.float64))
        _, trace = layer.step(state, edges, draw.uniform(6, 2), trace=True)
        h = layer.environment(*state)
        aggregate = layer.environment(trace.aggregate, state.coordinates)
        close(aggregate, -0.7 * edges.sum(trace.weight.unsqueeze(-1) * h[edges.source]))

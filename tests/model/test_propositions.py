"""Propositions 1 to 3 of the paper as executable statements, in double precision."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from geof.errors import ConfigError
from geof.geometry import (
    AdmissibleBox,
    JitterSchedule,
    StepNorms,
    block_size_of,
    frame_bounds,
    frame_from_coordinates,
    step_lipschitz,
)
from geof.kernels import BACKENDS, Neighbourhoods, StepSpec
from geof.model import CoupledState, GeoFConv, decompose_moment, evolve_coordinates

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


class TestWeights:
    """Eq. (4) and the first paragraph of Proposition 1's proof."""

    @every_backend
    @given(seed=SEEDS, m=SIZES, blocks=SIZES, temperature=st.floats(0.3, 5.0))
    def test_positive_and_normalised(self, random_state, backend, seed, m, blocks, temperature):
        """omega_ij > 0, they sum to one over each closed neighbourhood, and follow Eq. (4)."""
        draw = random_state(seed)
        edges, state = random_graph(draw, 7), draw.coupled(BOX, 7, blocks, m, 1.0)
        xi = state.features.unflatten(-1, (blocks, m))
        weight = BACKENDS[backend](
            xi, xi, state.coordinates, edges, specification(temperature=temperature)
        ).weight
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
    statistics = BACKENDS[backend](
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
        _, trace = layer.traced_advance(state, edges, draw.uniform(6, 2))
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
        _, trace = layer.traced_advance(state, edges, draw.uniform(6, 2))
        h = layer.environment(*state)
        aggregate = layer.environment(trace.aggregate, state.coordinates)
        close(aggregate, -0.7 * edges.sum(trace.weight.unsqueeze(-1) * h[edges.source]))


class TestMomentDecomposition:
    """Eqs. (8) and (9)."""

    @every_backend
    @given(seed=SEEDS, m=SIZES, blocks=SIZES, floor=st.floats(0.01, 2.0))
    @settings(max_examples=20)
    def test_mean_covariance(self, random_state, backend, seed, m, blocks, floor):
        """v^T C v = eps_s |v|^2 + (v . mean)^2 + sum_j w_ij [v . (delta_ij - mean)]^2."""
        draw = random_state(seed)
        edges, state = random_graph(draw, 6), draw.coupled(BOX, 6, blocks, m, 1.0)
        layer = random_layer(draw, m, blocks, backend=backend, spectral_floor=floor)
        _, trace = layer.traced_advance(state, edges, draw.uniform(6, 2))
        residual, weight = edge_residuals(layer, state, edges), trace.weight[:, None, None]
        mean = edges.sum(weight * residual)
        close(trace.mean_residual, mean)

        v = draw.normal(20, m)
        centred = residual - mean[edges.target]
        spread = edges.sum(weight * (centred @ v.mT).square())  # (n, B, 20)
        shift, size = (mean @ v.mT).square(), floor * v.square().sum(-1)
        parts = decompose_moment(trace.moment, trace.mean_residual, floor)

        def energy(matrix):
            return torch.einsum("vr,nbrs,vs->nbv", v, matrix, v)

        close(energy(trace.moment), size + shift + spread)
        close(energy(parts.mean), shift)
        close(energy(parts.covariance), spread)
        assert parts.floor == floor
        identity = floor * torch.eye(m, dtype=torch.float64)
        close(identity + parts.mean + parts.covariance, trace.moment)

    @every_backend
    @given(seed=SEEDS, m=SIZES)
    @settings(max_examples=20)
    def test_covariance_is_positive_semidefinite(self, random_state, backend, seed, m):
        """The covariance, and so C - eps_s I, has no negative eigenvalue; C keeps its floor."""
        draw = random_state(seed)
        edges, state = random_graph(draw, 6), draw.coupled(BOX, 6, 2, m, 1.0)
        layer = random_layer(draw, m, 2, backend=backend)
        _, trace = layer.traced_advance(state, edges, draw.uniform(6, 2))
        parts = decompose_moment(trace.moment, trace.mean_residual, 1.0)
        assert (torch.linalg.eigvalsh(parts.covariance) >= -1e-12).all()
        assert (torch.linalg.eigvalsh(trace.moment) >= 1 - 1e-12).all()


def twin_centres(draw, layer, first, second, *, shared=True):
    """Return a state in which nodes 0 and 1 differ only in where their neighbours lie.

    Both have the same feature, frame and signature. Node 0 has two neighbours at plus and
    minus ``first`` in the environment, node 1 at plus and minus ``second``, all in the centres'
    frame. A further neighbour with a frame of its own, node 2, is shared on request, so that the
    mean residual is not zero.
    """
    m, blocks = layer.block_size, layer.blocks
    centre, far = draw.coupled(BOX, 1, blocks, m, 1.0), draw.coupled(BOX, 1, blocks, m, 1.0)
    other = CoupledState(*(torch.lerp(c, f, 0.3) for c, f in zip(centre, far, strict=True)))
    inverse = torch.linalg.inv(dense_frames(centre.coordinates)[0])
    offsets = torch.stack([first, -first, second, -second]) @ inverse.mT
    features = torch.cat([centre.features.expand(2, -1), other.features, centre.features + offsets])
    frames = centre.coordinates.expand(7, -1, -1).clone()
    frames[2] = other.coordinates
    pairs = [(0, 3), (0, 4), (1, 5), (1, 6)] + ([(0, 2), (1, 2)] if shared else [])
    arrows = torch.tensor(pairs).mT
    edges = Neighbourhoods.from_edge_index(torch.cat([arrows, arrows.flip(0)], 1), 7)
    signature = draw.uniform(7, layer.signature_channels)
    signature[1] = signature[0]
    return CoupledState(features, frames), edges, signature


def with_feedback(layer, feedback):
    """Return the same layer, parameters included, with another statistic."""
    twin = GeoFConv(
        layer.channels,
        blocks=layer.blocks,
        signature_channels=layer.signature_channels,
        correction_rank=2,
        controller_channels=6,
        backend=layer.backend,
        feedback=feedback,
    ).double()
    twin.load_state_dict(layer.state_dict())
    return twin.requires_grad_(False)


def star_statistics(backend, weights, residuals, **options):
    """Return the statistics of a star's hub with prescribed weights and residuals.

    ``weights`` are relative to the hub's own and at most one; the message at the hub is zero and
    all frames are the identity, so the leaves' messages are the residuals. Environment positions
    enter the weights only.
    """
    k, m = residuals.shape
    xi = torch.zeros(k + 1, 2, m, dtype=torch.float64)  # a second block sets the distances
    xi[1:, 1, 0] = (-weights.log()).sqrt()
    message = torch.zeros_like(xi)
    message[1:, 0] = residuals
    coordinates = torch.zeros(k + 1, 2, m * (m + 1) // 2, dtype=torch.float64)
    step = BACKENDS[backend](xi, message, coordinates, star(k + 1), specification(**options))
    normalised = step.weight[: k + 1]  # the hub's neighbourhood comes first
    close(normalised[1:] / normalised[0], weights)
    return normalised, step.aggregate[0, 0], step.moment[0, 0], step.target[0, 0]


class TestSecondOrderRefinement:
    """Proposition 2."""

    @every_backend
    @pytest.mark.parametrize(("m", "blocks"), [(1, 2), (2, 1), (2, 2), (3, 1)])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_separates_what_the_mean_hides(self, random_state, backend, m, blocks, seed):
        """(i), (ii): first-order outputs agree, the full target and z', h' do not."""
        draw = random_state(seed)
        wide = AdmissibleBox()
        layer = random_layer(draw, m, blocks, box=wide, backend=backend)
        first, second = torch.nn.functional.normalize(draw.normal(2, m * blocks), dim=-1)
        state, edges, signature = twin_centres(draw, layer, first, second)
        following, trace = layer.traced_advance(state, edges, signature)

        # The premise: equal own states, equal weights, equal mean residuals, not all zero.
        close(trace.weight[edges.target == 0], trace.weight[edges.target == 1], 1e-13)
        close(trace.mean_residual[0], trace.mean_residual[1], 1e-13)
        assert trace.mean_residual[0].abs().max() > 1e-3

        # (i) First-order updates cannot tell the two nodes apart.
        close(trace.aggregate[0], trace.aggregate[1], 1e-13)
        close(following.features[0], following.features[1], 1e-13)
        close(trace.correction[0], trace.correction[1], 1e-13)
        mean_state, mean_trace = with_feedback(layer, "mean").traced_advance(
            state, edges, signature
        )
        expected = trace.mean_residual.unsqueeze(-1) * trace.mean_residual.unsqueeze(-2)
        close(mean_trace.moment, expected + torch.eye(m), 1e-12)
        close(mean_trace.target[0], mean_trace.target[1], 1e-12)
        close(mean_state.coordinates[0], mean_state.coordinates[1], 1e-12)

        # (ii) The full target can, and the difference reaches the next state.
        assert (trace.moment[0] - trace.moment[1]).abs().max() > 1e-2
        gap = trace.target[0] - trace.target[1]
        assert gap.abs().max() > 1e-3
        change = following.coordinates[0] - following.coordinates[1]
        assert (following.coordinates[:2].abs() < 2).all()  # nothing is clipped
        close(change, layer.settings.target_mix * gap, 1e-12)
        h = layer.environment(*following)
        frame = dense_frames(following.coordinates)
        close(h[0] - h[1], (frame[0] - frame[1]) @ following.features[0], 1e-12)
        assert (h[0] - h[1]).norm() > 1e-4

    @every_backend
    def test_first_order_outputs_do_not_need_equal_weights(self, random_state, backend):
        """(i): the three updates named there see the mean alone, whatever the weights are."""
        draw = random_state(5)
        layer = random_layer(draw, 2, 2, backend=backend)
        near, far = torch.nn.functional.normalize(draw.normal(2, 4), dim=-1)
        state, edges, signature = twin_centres(draw, layer, 0.5 * near, far, shared=False)
        following, trace = layer.traced_advance(state, edges, signature)
        difference = trace.weight[edges.target == 0] - trace.weight[edges.target == 1]
        assert difference.abs().max() > 1e-2
        close(trace.mean_residual[:2], torch.zeros(2, 2, 2, dtype=torch.float64), 1e-13)
        close(following.features[0], following.features[1], 1e-13)
        close(trace.correction[0], trace.correction[1], 1e-13)
        mean_trace = with_feedback(layer, "mean").traced_advance(state, edges, signature)[1]
        close(mean_trace.target[0], mean_trace.target[1], 1e-12)

    @every_backend
    @given(seed=SEEDS, m=SIZES, blocks=SIZES)
    @settings(max_examples=20)
    def test_first_order_updates(self, random_state, backend, seed, m, blocks):
        """(i): Eqs. (7) and (11) are functions of xi_i, its aggregate and u_i, and no more."""
        draw = random_state(seed)
        edges, state = random_graph(draw, 5), draw.coupled(BOX, 5, blocks, m, 1.0)
        layer, signature = random_layer(draw, m, blocks, backend=backend), draw.uniform(5, 2)
        following, trace = layer.traced_advance(state, edges, signature)

        xi, aggregate, gate = state.features, trace.aggregate, layer.transport.gate
        r = torch.sigmoid(torch.cat([xi, aggregate], 1) @ gate.weight.mT + gate.bias)
        close(following.features, (1 - r) * xi + r * aggregate, 1e-12)

        first, second = layer.controller.hidden, layer.controller.output
        for b in range(blocks):
            block = slice(b * m, (b + 1) * m)
            q = torch.cat([xi[:, block], aggregate[:, block], signature], 1)
            hidden = q @ first.weight.mT + first.bias
            hidden = hidden / (1 + torch.exp(-hidden))
            output = hidden @ second.weight.mT + second.bias
            left, right = output[:, : 4 * m].view(5, 2, m, 2).unbind(1)  # rank 2
            product = left @ right.mT
            lower = [product[:, r, s] for r in range(m) for s in range(r)]
            expected = torch.stack([*lower, *output[:, 4 * m :].unbind(1)], 1)
            close(trace.correction[:, b], expected, 1e-12)

    @every_backend
    @given(seed=SEEDS, m=SIZES, k=st.integers(2, 5))
    @settings(max_examples=20)
    def test_generic_configurations_are_separated(self, random_state, backend, seed, m, k):
        """(iii): with weights and first moment fixed, a random configuration has another C.

        Also the proof's line: delta_1 + s e_a, delta_2 - (w_1 / w_2) s e_a changes C_aa by
        2 w_1 s (delta_1a - delta_2a) + (w_1 + w_1^2 / w_2) s^2 and the mean not at all.
        """
        draw = random_state(seed)
        weights = 0.3 + 0.7 * draw.uniform(k).abs()
        residuals, others = draw.normal(k, m), draw.normal(k, m)
        others += (weights @ (residuals - others)) / weights.sum()
        omega, mean, moment, target = star_statistics(backend, weights, residuals)
        _, other_mean, other_moment, other_target = star_statistics(backend, weights, others)
        close(mean, other_mean, 1e-12)
        assert (moment - other_moment).abs().max() > 1e-6
        assert (target - other_target).abs().max() > 1e-6

        shifted, axis, s = residuals.clone(), seed % m, 0.5
        w_1, w_2 = float(omega[1]), float(omega[2])
        shifted[0, axis] += s
        shifted[1, axis] -= w_1 / w_2 * s
        _, shifted_mean, shifted_moment, _ = star_statistics(backend, weights, shifted)
        close(shifted_mean, mean, 1e-12)
        gain = 2 * w_1 * s * (residuals[0, axis] - residuals[1, axis])
        gain = gain + (w_1 + w_1**2 / w_2) * s**2
        close(shifted_moment[axis, axis] - moment[axis, axis], gain)

    @every_backend
    @pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
    def test_limit_for_size_one(self, backend, q):
        """(iv), m = 1: {q, p, r} and {-1, 0, 1} differ in the third moment, not in the target.

        The hub's own residual is always zero, so it joins both sets.
        """
        root = math.sqrt(4 - 3 * q**2)
        skewed = torch.tensor([q, (-q + root) / 2, (-q - root) / 2], dtype=torch.float64)
        even = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        weights = torch.full((3,), 0.8, dtype=torch.float64)
        omega, mean, moment, target = star_statistics(backend, weights, skewed.unsqueeze(-1))
        _, even_mean, even_moment, even_target = star_statistics(
            backend, weights, even.unsqueeze(-1)
        )
        close(mean, torch.zeros_like(mean), 1e-14)
        close(even_mean, torch.zeros_like(mean), 1e-14)
        close(moment, even_moment, 1e-14)
        close(moment, 1 + 2 * omega[1].expand(1, 1), 1e-14)
        close(target, even_target, 1e-14)
        assert (skewed.sort().values - even).abs().max() > 1e-2
        close(skewed.pow(3).sum(), torch.tensor(3 * q * (q**2 - 1), dtype=torch.float64))

    @every_backend
    @pytest.mark.parametrize("m", [2, 3, 4])
    def test_restrictions_are_weaker(self, backend, m):
        """(iv), m >= 2: {0, +-v} and {0, +-w} share mean and diagonal targets, not the full one."""
        v, w = torch.zeros(2, m, dtype=torch.float64)
        v[:2], w[0], w[1] = 1, 1, -1
        weights = torch.full((2,), 0.6, dtype=torch.float64)

        def both(statistic):
            return [
                star_statistics(backend, weights, torch.stack([x, -x]), statistic=statistic)
                for x in (v, w)
            ]

        identity = torch.eye(m, dtype=torch.float64)
        (omega, _, mean_v, target_v), (_, _, mean_w, target_w) = both("mean")
        weight = float(omega[1])
        close(mean_v, identity, 1e-14)
        close(mean_w, identity, 1e-14)
        close(target_v, target_w, 1e-14)

        (_, _, diagonal_v, target_v), (_, _, diagonal_w, target_w) = both("diagonal")
        close(diagonal_v, identity + 2 * weight * torch.diag(v * v), 1e-14)
        close(diagonal_w, diagonal_v, 1e-14)
        close(target_v, target_w, 1e-14)

        (_, _, full_v, target_v), (_, _, full_w, target_w) = both("full")
        close(full_v, identity + 2 * weight * v.outer(v), 1e-14)
        close(full_w, identity + 2 * weight * w.outer(w), 1e-14)
        assert float(full_v[0, 1]) == pytest.approx(2 * weight)
        assert float(full_w[0, 1]) == pytest.approx(-2 * weight)
        assert (target_v - target_w).abs().max() > 0.1


class TestProximalStep:
    """Proposition 3 (i)."""

    @given(SEEDS, st.integers(1, 4), st.floats(0.05, 1.0), st.floats(0.0, 2.0))
    def test_minimises_the_stated_objective(self, random_state, seed, m, mix, strength):
        """No feasible point does better, L-BFGS-B's included, and the minimiser is unique."""
        draw = random_state(seed)
        z = draw.coordinates(BOX, m, 1, 1)
        target, correction = 2 * draw.normal(*z.shape), draw.normal(*z.shape)
        following = evolve_coordinates(
            z, target, correction, target_mix=mix, correction_strength=strength, box=BOX
        )

        def objective(point):
            near, reach = (point - z).square().sum(-1), (point - target).square().sum(-1)
            gain = (correction * (point - z)).sum(-1)
            return (1 - mix) / 2 * near + mix / 2 * reach - strength * gain

        assert BOX.contains(following).all()
        feasible = draw.coordinates(BOX, m, 300, 1)
        feasible[:50] = BOX.project(following + 0.01 * draw.normal(50, 1, z.size(-1)))
        # Strong convexity: f(z) >= f(z*) + |z - z*|^2 / 2, so z* is the only minimiser.
        excess = objective(feasible) - objective(following)
        assert (excess >= 0.5 * (feasible - following).square().sum(-1) - 1e-12).all()

        def value_and_slope(point):
            x = torch.from_numpy(point).view_as(z).requires_grad_()
            value = objective(x).sum()
            return float(value.detach()), torch.autograd.grad(value, x)[0].flatten().numpy()

        low, high = BOX.log_scale_bounds
        limits = [(-BOX.offdiagonal_bound, BOX.offdiagonal_bound)] * (z.size(-1) - m)
        solution = minimize(
            value_and_slope,
            z.flatten().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=limits + [(low, high)] * m,
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        assert float(objective(following)) <= solution.fun + 1e-12
        np.testing.assert_allclose(following.flatten().numpy(), solution.x, atol=1e-6)

    @given(SEEDS, st.integers(1, 4), st.floats(0.05, 1.0), st.floats(0.0, 2.0))
    def test_correction_moves_at_most_its_length(self, random_state, seed, m, mix, strength):
        """|z' - z'0| <= gamma |Delta z|, with equality where nothing is clipped."""
        draw = random_state(seed)
        z = draw.coordinates(BOX, m, 50, 2)
        target, correction = 2 * draw.normal(*z.shape), draw.normal(*z.shape)
        options = {"target_mix": mix, "box": BOX}
        full = evolve_coordinates(z, target, correction, correction_strength=strength, **options)
        plain = evolve_coordinates(z, target, None, correction_strength=strength, **options)
        silent = evolve_coordinates(z, target, correction, correction_strength=0.0, **options)
        close(silent, plain, 1e-14)
        moved, limit = (full - plain).norm(dim=-1), strength * correction.norm(dim=-1)
        assert (moved <= limit * ROUNDING + 1e-14).all()
        small = [0.1 * z, 0.1 * target.clamp(-1, 1), 0.1 * correction.clamp(-1, 1)]
        free = evolve_coordinates(*small, correction_strength=strength, **options)
        close(free, (1 - mix) * small[0] + mix * small[1] + strength * small[2], 1e-14)


NARROW = AdmissibleBox(0.2, (-0.2, 0.2))
FEATURE_BOUND = 0.3
LEAST_SHARE = {  # of each constant, used up by some pair of states below
    "environment": 0.5,
    "weight": 0.01,
    "message": 0.1,
    "aggregate": 0.02,
    "features": 0.01,
    "moment": 4e-3,
    "target": 1e-3,
    "correction": 4e-4,
    "step": 1e-3,
}


def distance(state, other):
    """Return d_inf of Proposition 3."""
    features = (state.features - other.features).norm(dim=-1)
    return (features + (state.coordinates - other.coordinates).flatten(1).norm(dim=-1)).max()


def changes(layer, state, other, edges, signature):
    """Return how far each quantity of StepLipschitz moves between two states."""
    (following, trace), (others, other_trace) = (
        layer.traced_advance(s, edges, signature) for s in (state, other)
    )

    def largest(before, after, dims):
        """Norm over the last ``dims`` dimensions, then the largest."""
        return (before - after).flatten(-dims).norm(dim=-1).max()

    weight_change = edges.sum((trace.weight - other_trace.weight).abs())
    messages = (edge_messages(layer, s, edges) for s in (state, other))
    return {
        "environment": largest(layer.environment(*state), layer.environment(*other), 1),
        "weight": weight_change.max(),
        "message": largest(*messages, 1),
        "aggregate": largest(trace.aggregate, other_trace.aggregate, 1),
        "features": largest(following.features, others.features, 1),
        "moment": largest(trace.moment, other_trace.moment, 2),
        "target": largest(trace.target, other_trace.target, 2),
        "correction": largest(trace.correction, other_trace.correction, 2),
        "step": distance(following, others),
    }


def pairs_of_states(draw, n, blocks, m):
    """Yield pairs in D: far apart, close together, and apart in one half of the state only."""
    state, other = (draw.coupled(NARROW, n, blocks, m, FEATURE_BOUND) for _ in range(2))
    yield state, other
    yield state, CoupledState(*(torch.lerp(s, o, 0.01) for s, o in zip(state, other, strict=True)))
    yield state, CoupledState(other.features, state.coordinates)
    yield state, CoupledState(state.features, other.coordinates)


class TestLipschitz:
    """Proposition 3 (ii)."""

    @every_backend
    @pytest.mark.parametrize("m", [1, 2, 3])
    def test_every_constant_bounds_its_quantity(self, random_state, backend, m):
        """d_inf(F(S), F(S')) <= K d_inf(S, S') and its parts, on random graphs and on stars.

        The worst pairs use up a fair share of each constant, so none is wildly too large either.
        """
        tightest = {}
        for seed in range(24):
            draw = random_state(1000 * m + seed)
            blocks = 1 + seed % 2
            edges = star(9) if seed % 4 == 3 else random_graph(draw, 6)
            n = edges.num_nodes
            layer = random_layer(draw, m, blocks, box=NARROW, backend=backend)
            signature = draw.uniform(n, 2)
            constants = layer.lipschitz(FEATURE_BOUND, float(signature.norm(dim=-1).max()))
            for state, other in pairs_of_states(draw, n, blocks, m):
                apart = distance(state, other)
                for name, change in changes(layer, state, other, edges, signature).items():
                    ratio = float(change / (getattr(constants, name) * apart))
                    assert ratio <= ROUNDING, name
                    tightest[name] = max(tightest.get(name, 0.0), ratio)
        assert tightest.keys() == set(constants._fields)
        for name, share in tightest.items():
            assert share > LEAST_SHARE[name], name

    @every_backend
    def test_degrees_do_not_enter(self, random_state, backend):
        """A hub with 400 neighbours, all moving the same way, obeys the same constants."""
        draw, n, m = random_state(0), 401, 2
        layer = random_layer(draw, m, 1, box=NARROW, backend=backend)
        signature = draw.uniform(n, 2)
        constants = layer.lipschitz(FEATURE_BOUND, float(signature.norm(dim=-1).max()))
        hub, leaf, moved = (draw.coupled(NARROW, 1, 1, m, FEATURE_BOUND) for _ in range(3))

        def state(leaves):
            parts = zip(hub, leaves, strict=True)
            return CoupledState(*(torch.cat([h, x.expand(n - 1, *x.shape[1:])]) for h, x in parts))

        first, second = state(leaf), state(moved)
        apart = distance(first, second)
        for name, change in changes(layer, first, second, star(n), signature).items():
            assert change <= getattr(constants, name) * apart * ROUNDING, name

    def test_constants_are_those_of_the_parameters(self, random_state):
        """The layer hands its own norms and scalars to the formulas of the proof."""
        draw = random_state(2)
        scalars = {
            "temperature": 0.7,
            "spectral_floor": 0.4,
            "jitter": 1e-3,
            "target_mix": 0.3,
            "correction_strength": 0.2,
        }
        layer = random_layer(draw, 2, 3, box=NARROW, **scalars)
        hidden, output = layer.controller.hidden, layer.controller.output
        matrices = layer.transport.message, layer.transport.gate, hidden, output
        norms = StepNorms(
            *(np.linalg.svd(matrix.weight.numpy())[1].max() for matrix in matrices),
            *(np.linalg.norm(bias.numpy()) for bias in (hidden.bias, output.bias)),
            signature=1.5,
        )
        expected = step_lipschitz(2, 3, NARROW, norms, feature_bound=0.8, **scalars)
        assert layer.lipschitz(0.8, 1.5) == pytest.approx(expected)

    def test_speaks_of_the_full_model_only(self):
        for option in ({"frame_transport": False}, {"feedback": "mean"}, {"feedback": "none"}):
            with pytest.raises(ConfigError, match="Expected the full model"):
                GeoFConv(4, blocks=2, **option).lipschitz(1.0, 1.0)


RING = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])  # five nodes and a chord


def geometry_map(layer, features, edges, signature):
    """Return Phi_xi of Proposition 3 (iii): one step's coordinates with the features fixed."""
    return lambda z: layer.advance(CoupledState(features, z), edges, signature).coordinates


def iterate(step, start, count):
    """Return the sequence start, step(start), ... of ``count`` + 1 points."""
    points = [start]
    for _ in range(count):
        points.append(step(points[-1]))
    return torch.stack(points)


class TestConvergence:
    """Proposition 3 (iii) and (iv)."""

    @every_backend
    @pytest.mark.parametrize(
        ("seed", "mix", "temperature", "floor", "scale"),
        [(4, 0.5, 1.0, 1.0, 1.0), (2, 0.8, 4.0, 0.3, 1.5), (2, 0.5, 4.0, 0.05, 1.5)],
        ids=["positive", "negative", "complex"],
    )
    def test_local_rate(self, random_state, backend, seed, mix, temperature, floor, scale):
        """(iii): near an unclipped fixed point the error shrinks at the rate rho(J)."""
        draw, n, m = random_state(seed), 5, 2
        layer = random_layer(
            draw,
            m,
            1,
            box=AdmissibleBox(),
            backend=backend,
            target_mix=mix,
            temperature=temperature,
            spectral_floor=floor,
            correction_strength=0.3 if floor < 1 else 0.1,
        )
        signature, features = draw.uniform(n, 2), scale * draw.normal(n, m)
        edges = Neighbourhoods.from_edge_index(torch.cat([RING, RING.flip(0)], 1), n)
        step = geometry_map(layer, features, edges, signature)
        fixed = iterate(step, torch.zeros(n, 1, 3, dtype=torch.float64), 300)[-1]
        close(step(fixed), fixed, 1e-14)
        assert (fixed.abs() < 1.99).all()  # inside the box: nothing is clipped

        jacobian = torch.autograd.functional.jacobian(step, fixed).view(15, 15)
        radius = float(torch.linalg.eigvals(jacobian).abs().max())
        assert radius < 1
        assert abs(radius - (1 - mix)) > 0.05  # the feedback decides, not the mixing alone

        start = fixed + 1e-2 * draw.normal(*fixed.shape)
        error = (iterate(step, start, 120) - fixed).flatten(1).norm(dim=-1).numpy()
        window = np.flatnonzero((error < 1e-4) & (error > 1e-12))
        assert len(window) > 20
        slope = np.polyfit(window, np.log(error[window]), 1)[0]
        assert math.exp(slope) == pytest.approx(radius, rel=0.02)

    def test_frobenius_constant_grows_with_degree(self, random_state):
        """(iv): in its norm, the Frobenius norm over all nodes, L_z is not degree-free as c_Z is.

        Moving a hub's frame moves the target of each of k leaves alike: sqrt(k) times as much.
        """
        draw = random_state(0)
        layer = random_layer(draw, 2, 1, signature_channels=0, backend="torch")
        hub, leaf = (draw.coupled(BOX, 1, 1, 2, 1.0) for _ in range(2))

        def leaves_move(k):
            features = torch.cat([hub.features, leaf.features.expand(k, -1)])
            frames = torch.cat([hub.coordinates, leaf.coordinates.expand(k, -1, -1)])
            moved = frames.clone()
            moved[0] += 1e-3
            first, second = (
                layer.traced_advance(CoupledState(features, z), star(k + 1), features[:, :0])[1]
                for z in (frames, moved)
            )
            return (first.target - second.target)[1:].norm() / (frames - moved).norm()

        close(leaves_move(100), 10 * leaves_move(1), 1e-8)
        assert leaves_move(1) > 1e-4

    @every_backend
    def test_global_convergence(self, random_state, backend):
        """(iv): where rho < 1, every start leads to one fixed point, steps shrinking by rho.

        With the features fixed, c_Z and c_Delta of part (ii) bound the change of target and
        correction by the largest change of a node's coordinates, so rho contracts the maximum
        over nodes. A node sees its closed neighbourhood only: in the Frobenius norm over all
        nodes the two constants grow by sqrt(1 + largest degree).
        """
        draw, n, m, bound = random_state(1), 5, 2, 0.05
        mix, strength = 0.5, 0.005
        layer = random_layer(
            draw,
            m,
            1,
            box=NARROW,
            scale=0.3,
            backend=backend,
            target_mix=mix,
            correction_strength=strength,
        )
        edges = Neighbourhoods.from_edge_index(torch.cat([RING, RING.flip(0)], 1), n)
        signature = draw.uniform(n, 2)
        features = draw.coupled(NARROW, n, 1, m, bound).features
        constants = layer.lipschitz(bound, float(signature.norm(dim=-1).max()))
        contraction = mix * constants.target + strength * constants.correction
        per_node = (1 - mix) + contraction
        frobenius = (1 - mix) + contraction * math.sqrt(float(edges.target.bincount().max()))
        assert 1 - mix < per_node < frobenius < 0.99

        step = geometry_map(layer, features, edges, signature)
        limits = []
        for _ in range(5):
            points = iterate(step, draw.coordinates(NARROW, m, n, 1), 200)
            assert NARROW.contains(points).all()
            move = (points[1:] - points[:-1]).flatten(2).norm(dim=-1)  # (steps, n)
            for length, rho in ((move.amax(-1), per_node), (move.norm(dim=-1), frobenius)):
                steps = torch.arange(len(length), dtype=torch.float64)
                assert (length <= rho**steps * length[0] * ROUNDING + 1e-15).all()
            assert move[0].norm() > 1e-2
            limits.append(points[-1])
        for limit in limits:
            close(limit, limits[0], 1e-13)
        close(step(limits[0]), limits[0], 1e-13)

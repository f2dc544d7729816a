"""Proposition 2, second-order refinement, and the decomposition of Eq. (9)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geof.geometry import AdmissibleBox
from geof.kernels import BACKENDS, Neighbourhoods
from geof.nn import CoupledState, GeoFConv, decompose_moment
from tests.steps import (
    BOX,
    SEEDS,
    SIZES,
    close,
    dense_frames,
    edge_residuals,
    every_backend,
    random_graph,
    random_layer,
    specification,
    star,
)


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
        _, trace = layer.step(state, edges, draw.uniform(6, 2), trace=True)
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
        _, trace = layer.step(state, edges, draw.uniform(6, 2), trace=True)
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
    step = BACKENDS[backend].statistics(
        xi, message, coordinates, star(k + 1), specification(**options)
    )
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
        following, trace = layer.step(state, edges, signature, trace=True)

        # The premise: equal own states, equal weights, equal mean residuals, not all zero.
        close(trace.weight[edges.target == 0], trace.weight[edges.target == 1], 1e-13)
        close(trace.mean_residual[0], trace.mean_residual[1], 1e-13)
        assert trace.mean_residual[0].abs().max() > 1e-3

        # (i) First-order updates cannot tell the two nodes apart.
        close(trace.aggregate[0], trace.aggregate[1], 1e-13)
        close(following.features[0], following.features[1], 1e-13)
        close(trace.correction[0], trace.correction[1], 1e-13)
        mean_state, mean_trace = with_feedback(layer, "mean").step(
            state, edges, signature, trace=True
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
        following, trace = layer.step(state, edges, signature, trace=True)
        difference = trace.weight[edges.target == 0] - trace.weight[edges.target == 1]
        assert difference.abs().max() > 1e-2
        close(trace.mean_residual[:2], torch.zeros(2, 2, 2, dtype=torch.float64), 1e-13)
        close(following.features[0], following.features[1], 1e-13)
        close(trace.correction[0], trace.correction[1], 1e-13)
        mean_trace = with_feedback(layer, "mean").step(state, edges, signature, trace=True)[1]
        close(mean_trace.target[0], mean_trace.target[1], 1e-12)

    @every_backend
    @given(seed=SEEDS, m=SIZES, blocks=SIZES)
    @settings(max_examples=20)
    def test_first_order_updates(self, random_state, backend, seed, m, blocks):
        """(i): Eqs. (7) and (11) are functions of xi_i, its aggregate and u_i, and no more."""
        draw = random_state(seed)
        edges, state = random_graph(draw, 5), draw.coupled(BOX, 5, blocks, m, 1.0)
        layer, signature = random_layer(draw, m, blocks, backend=backend), draw.uniform(5, 2)
        following, trace = layer.step(state, edges, signature, trace=True)

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

"""Proposition 3, stability and convergence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from geof.errors import ConfigError
from geof.geometry import AdmissibleBox, StepNorms, step_lipschitz
from geof.kernels import Neighbourhoods
from geof.nn import CoupledState, GeoFConv, evolve_coordinates
from tests.steps import (
    BOX,
    ROUNDING,
    SEEDS,
    close,
    edge_messages,
    every_backend,
    random_graph,
    random_layer,
    star,
)


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
        layer.step(s, edges, signature, trace=True) for s in (state, other)
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
    return lambda z: layer.step(CoupledState(features, z), edges, signature)[0].coordinates


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
                layer.step(CoupledState(features, z), star(k + 1), features[:, :0], trace=True)[1]
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

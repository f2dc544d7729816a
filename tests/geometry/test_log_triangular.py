"""Block log-triangular coordinates: section 3.1 and the appendix "Numerical Operators"."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from geof.errors import GeofError, ShapeError
from geof.geometry import (
    apply_frame,
    block_size_of,
    coordinates_from_frame,
    coordinates_from_metric,
    ellipsoids,
    frame_from_coordinates,
    log_determinant,
    metric_from_coordinates,
    num_coordinates,
    split_coordinates,
    strictly_lower_matrix,
    strictly_lower_vector,
    triangular_solve,
)

SEEDS = st.integers(0, 2**32 - 1)
BLOCK_SIZES = st.integers(1, 8)
LEADING = st.sampled_from([(), (1,), (4,), (2, 3), (0,), (2, 0)])
FLOAT64 = {"dtype": torch.float64}


def close(actual, expected, tolerance=1e-11):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


class TestVectorisation:
    @pytest.mark.parametrize("m", range(1, 9))
    def test_order_is_kappa(self, m):
        """Eq. (49): entry kappa(r, s) = (r-1)(r-2)/2 + s (from 1) of Svec_sl(A) is A_rs."""
        matrix = torch.arange(m * m, **FLOAT64).view(m, m)
        vector = strictly_lower_vector(matrix)
        assert vector.shape == (m * (m - 1) // 2,)
        for r in range(1, m + 1):
            for s in range(1, r):
                kappa = (r - 1) * (r - 2) // 2 + s
                assert vector[kappa - 1] == matrix[r - 1, s - 1]

    @pytest.mark.parametrize("m", range(1, 9))
    def test_matrix_places_by_kappa(self, m):
        """Eq. (50): mat_sl(a)_rs = a_kappa(r, s) for r > s, and zero elsewhere."""
        vector = 1 + torch.arange(m * (m - 1) // 2, **FLOAT64)
        matrix = strictly_lower_matrix(vector, m)
        for r in range(1, m + 1):
            for s in range(1, m + 1):
                kappa = (r - 1) * (r - 2) // 2 + s
                assert matrix[r - 1, s - 1] == (vector[kappa - 1] if r > s else 0)

    @given(SEEDS, BLOCK_SIZES, LEADING)
    def test_mutually_inverse_isometry(self, random_state, seed, m, leading):
        """Svec_sl(mat_sl(a)) = a, mat_sl(Svec_sl(A)) = tril(A, -1), ||mat_sl(a)||_F = ||a||."""
        draw = random_state(seed)
        vector, matrix = draw.normal(*leading, m * (m - 1) // 2), draw.normal(*leading, m, m)
        placed = strictly_lower_matrix(vector, m)
        assert torch.equal(strictly_lower_vector(placed), vector)
        assert torch.equal(strictly_lower_matrix(strictly_lower_vector(matrix), m), matrix.tril(-1))
        close(torch.linalg.matrix_norm(placed), vector.norm(dim=-1))


class TestCoordinates:
    def test_worked_example(self):
        """Eq. (1) by hand: L = [[2, 0], [3, 5]] has z = [3, log 2, log 5] and g = L^T L."""
        coords = torch.tensor([3.0, math.log(2), math.log(5)], **FLOAT64)
        frame = torch.tensor([[2.0, 0.0], [3.0, 5.0]], **FLOAT64)
        metric = torch.tensor([[13.0, 15.0], [15.0, 25.0]], **FLOAT64)
        close(frame_from_coordinates(coords), frame)
        close(metric_from_coordinates(coords), metric)
        close(coordinates_from_frame(frame), coords)
        close(coordinates_from_metric(metric), coords)

    @given(SEEDS, BLOCK_SIZES, LEADING)
    def test_round_trips(self, random_state, seed, m, leading):
        """Section 3.1: coordinates, frames and metrics determine one another."""
        coords = 0.5 * random_state(seed).normal(*leading, num_coordinates(m))
        frame, metric = frame_from_coordinates(coords), metric_from_coordinates(coords)
        assert frame.shape == metric.shape == (*leading, m, m)
        assert torch.equal(frame, frame.tril())
        assert (frame.diagonal(dim1=-2, dim2=-1) > 0).all()
        close(coordinates_from_frame(frame), coords)
        close(coordinates_from_metric(metric), coords, 1e-8)
        close(frame_from_coordinates(coordinates_from_metric(metric)), frame, 1e-8)

    @given(SEEDS, BLOCK_SIZES, LEADING)
    def test_metric_measures_environment_lengths(self, random_state, seed, m, leading):
        """Eq. (1): g is symmetric positive definite and ||L v||^2 = v^T g v."""
        draw = random_state(seed)
        coords, v = draw.normal(*leading, num_coordinates(m)), draw.normal(*leading, m)
        metric = metric_from_coordinates(coords)
        assert torch.equal(metric, metric.mT)
        assert (torch.linalg.cholesky_ex(metric).info == 0).all()
        length = apply_frame(frame_from_coordinates(coords), v).square().sum(-1)
        close(length, torch.einsum("...r,...rs,...s->...", v, metric, v), 1e-9)

    @given(SEEDS, BLOCK_SIZES)
    def test_metric_lies_on_geoopt_manifold(self, random_state, seed, m):
        """Lemma 1, first part: geoopt, too, calls every metric a point of SPD(m)."""
        manifold = pytest.importorskip("geoopt").SymmetricPositiveDefinite()
        coords = random_state(seed).normal(3, num_coordinates(m))
        accepted, reason = manifold.check_point_on_manifold(
            metric_from_coordinates(coords), explain=True
        )
        assert accepted, reason
        assert m == 1 or not manifold.check_point_on_manifold(frame_from_coordinates(coords))

    @given(SEEDS, BLOCK_SIZES, LEADING)
    def test_log_determinant(self, random_state, seed, m, leading):
        """Lemma 1: log det L(z) is the sum of the log-scales, and det L > 0."""
        coords = random_state(seed).normal(*leading, num_coordinates(m))
        sign, logabs = torch.linalg.slogdet(frame_from_coordinates(coords))
        assert (sign == 1).all()
        close(log_determinant(coords), logabs)

    def test_split_puts_offdiagonals_first(self):
        """Section 3.1: z = [a, l]."""
        offdiagonal, log_scale = split_coordinates(torch.arange(10.0))
        assert offdiagonal.tolist() == [0, 1, 2, 3, 4, 5]
        assert log_scale.tolist() == [6, 7, 8, 9]

    def test_frame_reading_ignores_the_upper_triangle(self, random_state):
        """Eq. (54) reads the lower triangle only."""
        matrix = random_state(3).normal(2, 4, 4).abs()
        assert torch.equal(coordinates_from_frame(matrix), coordinates_from_frame(matrix.tril()))

    @pytest.mark.parametrize("m", [1, 2, 4])
    def test_gradients(self, random_state, m):
        """First and second derivatives of the reconstruction and of its inverses."""
        coords = 0.5 * random_state(m).normal(2, num_coordinates(m))
        metric = metric_from_coordinates(coords).requires_grad_()
        coords.requires_grad_()

        def from_symmetric(matrix):
            return coordinates_from_metric((matrix + matrix.mT) / 2)

        assert gradcheck(frame_from_coordinates, coords)
        assert gradgradcheck(frame_from_coordinates, coords)
        assert gradcheck(metric_from_coordinates, coords)
        assert gradcheck(from_symmetric, metric)
        assert gradgradcheck(from_symmetric, metric)


class TestEllipsoids:
    @given(SEEDS, BLOCK_SIZES, LEADING)
    def test_axes(self, random_state, seed, m, leading):
        """L takes local axis k onto lengths[k] times environment axis k, the longest first."""
        coords = random_state(seed).normal(*leading, num_coordinates(m))
        frame, metric = frame_from_coordinates(coords), metric_from_coordinates(coords)
        lengths, environment, local = ellipsoids(coords)
        identity = torch.eye(m, **FLOAT64).expand(*leading, m, m)
        close(frame @ local, environment * lengths.unsqueeze(-2), 1e-10)
        close(local.mT @ local, identity)
        close(environment.mT @ environment, identity)
        assert (lengths > 0).all()
        assert (lengths[..., :-1] >= lengths[..., 1:]).all()
        eigenvectors = local * lengths.square().unsqueeze(-2)
        scale = lengths[..., :1, None].square()
        close(metric @ local / scale, eigenvectors / scale, 1e-10)
        close(lengths.log().sum(-1), log_determinant(coords), 1e-9)

    @given(SEEDS, st.integers(1, 5))
    def test_lengths_against_geoopt_distance(self, random_state, seed, m):
        """geoopt's affine-invariant distance from I to g = L^T L is 2 ||log lengths||."""
        geoopt = pytest.importorskip("geoopt")
        manifold = geoopt.SymmetricPositiveDefinite(default_metric="AIM")
        coords = 0.5 * random_state(seed).normal(2, num_coordinates(m))
        identity = torch.eye(m, **FLOAT64).expand(2, m, m)
        distance = manifold.dist(identity, metric_from_coordinates(coords))
        close(distance, 2 * ellipsoids(coords).lengths.log().norm(dim=-1), 1e-8)

    def test_worked_example(self):
        """A diagonal frame stretches the coordinate axes by its diagonal."""
        coords = torch.tensor([0.0, math.log(0.5), math.log(4)], **FLOAT64)
        lengths, environment, local = ellipsoids(coords)
        close(lengths, torch.tensor([4.0, 0.5], **FLOAT64))
        swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], **FLOAT64)
        close(environment.abs(), swap)
        close(local.abs(), swap)


class TestFrameActions:
    @given(SEEDS, BLOCK_SIZES, LEADING)
    def test_against_dense_algebra(self, random_state, seed, m, leading):
        """Eqs. (4), (5): L v and L^{-1} v agree with dense products and inverses."""
        draw = random_state(seed)
        frame = frame_from_coordinates(0.5 * draw.normal(*leading, num_coordinates(m)))
        v = draw.normal(*leading, m)
        close(apply_frame(frame, v), torch.einsum("...rs,...s->...r", frame, v))
        dense = torch.einsum("...rs,...s->...r", torch.linalg.inv(frame), v)
        close(triangular_solve(frame, v), dense, 1e-9)
        close(apply_frame(frame, triangular_solve(frame, v)), v, 1e-9)

    def test_frames_broadcast_over_vectors(self, random_state):
        """One frame may act on many vectors."""
        draw = random_state(7)
        frame, v = frame_from_coordinates(draw.normal(6)), draw.normal(5, 3)
        close(apply_frame(frame, v), v @ frame.mT)
        close(triangular_solve(frame, v), v @ torch.linalg.inv(frame).mT)

    def test_gradients(self, random_state):
        """The solve and the product are differentiable in frame and vector."""
        draw = random_state(8)
        coords = (0.5 * draw.normal(2, 6)).requires_grad_()
        v = draw.normal(2, 3).requires_grad_()
        for act in (apply_frame, triangular_solve):
            assert gradcheck(lambda z, x, act=act: act(frame_from_coordinates(z), x), (coords, v))


class TestShapes:
    def test_counts(self):
        """t = m(m+1)/2, and back."""
        assert [num_coordinates(m) for m in range(1, 9)] == [1, 3, 6, 10, 15, 21, 28, 36]
        assert all(block_size_of(num_coordinates(m)) == m for m in range(1, 200))

    @pytest.mark.parametrize("count", [0, 2, 4, 5, 7, 35])
    def test_non_triangular_counts(self, count):
        with pytest.raises(ShapeError, match=rf"m\(m\+1\)/2.*\(got {count}\)"):
            block_size_of(count)

    @pytest.mark.parametrize(
        "function",
        [
            split_coordinates,
            frame_from_coordinates,
            metric_from_coordinates,
            log_determinant,
            ellipsoids,
        ],
    )
    def test_coordinates_of_wrong_length(self, function):
        with pytest.raises(ShapeError, match="got 4"):
            function(torch.zeros(3, 4))

    @pytest.mark.parametrize(
        "function", [strictly_lower_vector, coordinates_from_frame, coordinates_from_metric]
    )
    def test_matrices_that_are_not_square(self, function):
        with pytest.raises(ShapeError, match=r"\(\.\.\., m, m\) \(got \(5, 2, 3\)\)"):
            function(torch.ones(5, 2, 3))

    @pytest.mark.parametrize("function", [strictly_lower_vector, coordinates_from_metric])
    def test_vectors_are_not_matrices(self, function):
        with pytest.raises(ShapeError, match=r"got \(3,\)"):
            function(torch.ones(3))

    def test_vector_of_wrong_length(self):
        with pytest.raises(ShapeError, match=r"3 entries for block size 3 \(got 4\)"):
            strictly_lower_matrix(torch.zeros(2, 4), 3)

    def test_shape_errors_are_value_errors_of_this_package(self):
        """A caller may catch either kind."""
        assert issubclass(ShapeError, ValueError)
        assert issubclass(ShapeError, GeofError)

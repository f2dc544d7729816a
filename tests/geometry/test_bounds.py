"""The admissible box, Lemma 1, and the constants of Proposition 3 (ii)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geof.errors import ConfigError, ShapeError
from geof.geometry import (
    AdmissibleBox,
    StepNorms,
    frame_bounds,
    frame_from_coordinates,
    log_determinant,
    metric_from_coordinates,
    step_lipschitz,
)

SEEDS = st.integers(0, 2**32 - 1)
BLOCK_SIZES = st.integers(1, 6)
BOXES = st.builds(
    lambda bound, low, width: AdmissibleBox(bound, (low, low + width)),
    st.floats(0.01, 3.0),
    st.floats(-2.0, 1.0),
    st.floats(0.05, 3.0),
)
ROUNDING = 1 + 1e-9  # a bound may be attained, so it is compared with this slack


def spectral_norm(matrix):
    return torch.linalg.matrix_norm(matrix, ord=2)


def dense(coords):
    """Return the block-diagonal frame of one node's blocks ``(B, t)``."""
    return torch.block_diag(*frame_from_coordinates(coords))


class TestLemmaOne:
    @given(SEEDS, BLOCK_SIZES, BOXES)
    def test_spectral_bounds(self, random_state, seed, m, box):
        """||L(z)|| <= sigma_+, ||L(z)^{-1}|| <= 1 / sigma_-, and sigma_+ >= sigma_- > 0."""
        bounds = frame_bounds(m, box)
        frame = frame_from_coordinates(random_state(seed).coordinates(box, m, 20))
        assert bounds.sigma_plus >= bounds.sigma_minus > 0
        assert (spectral_norm(frame) <= bounds.sigma_plus * ROUNDING).all()
        assert (spectral_norm(torch.linalg.inv(frame)) * bounds.sigma_minus <= ROUNDING).all()

    @given(SEEDS, BLOCK_SIZES, BOXES)
    def test_metric_in_the_loewner_order(self, random_state, seed, m, box):
        """sigma_-^2 I <= g(z) <= sigma_+^2 I."""
        bounds = frame_bounds(m, box)
        metric = metric_from_coordinates(random_state(seed).coordinates(box, m, 20))
        identity = torch.eye(m, dtype=torch.float64)
        slack = 1e-12 * bounds.sigma_plus**2
        above = torch.linalg.eigvalsh(metric - bounds.sigma_minus**2 * identity)
        below = torch.linalg.eigvalsh(bounds.sigma_plus**2 * identity - metric)
        assert (above >= -slack).all()
        assert (below >= -slack).all()

    @given(SEEDS, BLOCK_SIZES, BOXES)
    def test_reconstruction_is_lipschitz(self, random_state, seed, m, box):
        """||L - L'||_F <= kappa_L ||z - z'||, ||L^-1 - L'^-1|| <= kappa_L / sigma_-^2 ||z - z'||.

        Pairs far apart and pairs close together.
        """
        bounds = frame_bounds(m, box)
        draw = random_state(seed)
        z, other = draw.coordinates(box, m, 20), draw.coordinates(box, m, 20)
        other[10:] = box.project(z[10:] + 1e-3 * draw.normal(*z[10:].shape))
        distance = (z - other).norm(dim=-1)
        first, second = frame_from_coordinates(z), frame_from_coordinates(other)
        change = torch.linalg.matrix_norm(first - second)
        assert (change <= bounds.kappa_L * distance * ROUNDING).all()
        inverse_change = spectral_norm(torch.linalg.inv(first) - torch.linalg.inv(second))
        factor = bounds.kappa_L / bounds.sigma_minus**2
        assert (inverse_change <= factor * distance * ROUNDING + 1e-12).all()

    @given(SEEDS, BLOCK_SIZES, BOXES)
    def test_determinant(self, random_state, seed, m, box):
        """det L(z) = exp(sum of log-scales) > 0."""
        coords = random_state(seed).coordinates(box, m, 20)
        determinant = torch.linalg.det(frame_from_coordinates(coords))
        torch.testing.assert_close(determinant, log_determinant(coords).exp())
        torch.testing.assert_close(determinant, coords[:, -m:].sum(-1).exp())

    @given(SEEDS, BLOCK_SIZES, BOXES, st.integers(1, 4))
    def test_block_diagonal_frames(self, random_state, seed, m, box, blocks):
        """The same constants serve L_i, the direct sum of its blocks, with ||Z_i - Z_i'||_F."""
        bounds = frame_bounds(m, box)
        draw = random_state(seed)
        z, other = draw.coordinates(box, m, blocks), draw.coordinates(box, m, blocks)
        first, second = dense(z), dense(other)
        inverse, distance = torch.linalg.inv(first), (z - other).norm()
        assert torch.equal(first, first.tril())
        torch.testing.assert_close(torch.linalg.det(first), log_determinant(z).sum().exp())
        assert spectral_norm(first) <= bounds.sigma_plus * ROUNDING
        assert spectral_norm(inverse) * bounds.sigma_minus <= ROUNDING
        assert (first - second).norm() <= bounds.kappa_L * distance * ROUNDING
        factor = bounds.kappa_L / bounds.sigma_minus**2
        change = spectral_norm(inverse - torch.linalg.inv(second))
        assert change <= factor * distance * ROUNDING + 1e-12


class TestConstantsAreNotAbsurd:
    """Lemma 1's constants against the worst admissible frames: none can be much smaller."""

    @given(BOXES)
    def test_size_one_is_exact(self, box):
        """For m = 1, sigma_+ and sigma_- are e^l_max and e^l_min, both attained."""
        bounds = frame_bounds(1, box)
        ends = torch.tensor(box.log_scale_bounds, dtype=torch.float64).unsqueeze(-1)
        assert box.contains(ends).all()
        smallest, largest = frame_from_coordinates(ends).flatten().tolist()
        assert bounds.sigma_plus == pytest.approx(largest, rel=1e-14)
        assert bounds.sigma_minus == pytest.approx(smallest, rel=1e-14)

    @given(BLOCK_SIZES, BOXES)
    def test_sigma_plus_within_a_factor(self, m, box):
        """The corner a = a_max, l = l_max reaches 0.45 sigma_+: half of a two-term sum, nearly."""
        bound, (_, high) = box.offdiagonal_bound, box.log_scale_bounds
        corner = torch.full((m * (m + 1) // 2,), bound, dtype=torch.float64)
        corner[-m:] = high
        reached = spectral_norm(frame_from_coordinates(corner))
        assert reached >= 0.45 * frame_bounds(m, box).sigma_plus

    @given(BLOCK_SIZES, BOXES)
    def test_sigma_minus_within_a_factor(self, m, box):
        """The corner a = -a_max, l = l_min makes forward substitution grow fully: 1 / m is lost."""
        bound, (low, _) = box.offdiagonal_bound, box.log_scale_bounds
        corner = torch.full((m * (m + 1) // 2,), -bound, dtype=torch.float64)
        corner[-m:] = low
        inverse = torch.linalg.inv(frame_from_coordinates(corner))
        assert spectral_norm(inverse) * ROUNDING >= 1 / (m * frame_bounds(m, box).sigma_minus)

    @given(BLOCK_SIZES, BOXES)
    def test_kappa_within_two(self, m, box):
        """Moving one entry at the top of the box attains half of kappa_L at least."""
        _, high = box.log_scale_bounds
        z = torch.zeros(m * (m + 1) // 2, dtype=torch.float64)
        z[-m:] = high
        ratios = []
        for entry in (0, -1):  # an off-diagonal (when m > 1) and a log-scale
            other = z.clone()
            other[entry] -= 1e-6
            change = torch.linalg.matrix_norm(
                frame_from_coordinates(z) - frame_from_coordinates(other)
            )
            ratios.append(float(change / (z - other).norm()))
        least = 0.5 if m > 1 or high >= 0 else math.exp(high) / (1 + math.exp(high))
        assert max(ratios) >= 0.999 * least * frame_bounds(m, box).kappa_L

    def test_inverse_lipschitz_within_two(self):
        """In a narrow box around the identity, half of kappa_L / sigma_-^2 is attained."""
        box = AdmissibleBox(0.01, (-0.01, 0.01))
        bounds = frame_bounds(1, box)
        z = torch.tensor([[-0.01], [-0.01 + 1e-6]], dtype=torch.float64)
        first, second = torch.linalg.inv(frame_from_coordinates(z))
        assert (first - second) / 1e-6 >= 0.48 * bounds.kappa_L / bounds.sigma_minus**2


class TestFormulas:
    def test_lemma_one_by_hand(self):
        """Eqs. (17), (18) for m = 3, a_max = 1, l in [0, log 2]: nu = sqrt 3, a_bar = 1."""
        bounds = frame_bounds(3, AdmissibleBox(1.0, (0.0, math.log(2))))
        assert bounds.sigma_plus == pytest.approx(2 + math.sqrt(3))
        neumann, substitution = 1 + math.sqrt(3) + 3, 4 * math.sqrt(3)
        assert neumann < substitution
        assert 1 / bounds.sigma_minus == pytest.approx(neumann)
        assert bounds.kappa_L == pytest.approx(3)

    def test_forward_substitution_wins_in_a_wide_box(self):
        """kappa_0 takes the smaller of its bounds: sqrt m (1 + a_bar)^3 against 1 + ... + nu^3."""
        box = AdmissibleBox(8.0, (0.0, 1.0))
        assert 1 / frame_bounds(4, box).sigma_minus == pytest.approx(2 * 9**3)

    def test_step_constants_by_hand(self):
        """The list of constants in the proof of Proposition 3 (ii), with small whole numbers.

        sigma_+ = 2, sigma_- = 1, kappa_L = 3, Xi = 1, w_phi = 1, w_r = 4, tau = 1, B = 4,
        eps_s + eta = 1, lambda = 1/4, gamma = 1/2.
        """
        norms = StepNorms(
            message=1.0,
            gate=4.0,
            controller_hidden=2.0,
            controller_output=0.5,
            hidden_bias=1.0,
            output_bias=0.5,
            signature=2.0,
        )
        constants = step_lipschitz(
            1,
            4,
            AdmissibleBox(1.0, (0.0, math.log(2))),
            norms,
            feature_bound=1.0,
            temperature=1.0,
            spectral_floor=0.75,
            jitter=0.25,
            target_mix=0.25,
            correction_strength=0.5,
        )
        target = 2 * math.sqrt(10) * 936  # sqrt(B) c_z L_chol c_C
        correction = math.sqrt(12) * 6 * 1.1 * 204  # sqrt(3B) G l_Gamma (1 + c_agg)
        assert constants._asdict() == pytest.approx(
            {
                "environment": 3,
                "weight": 96,
                "message": 11,
                "aggregate": 203,  # 2 * 96 + 11
                "features": 817,  # 2 + 203 + 1 * 204 * 3
                "moment": 936,  # 9 * 96 + 2 * 3 * 12
                "target": target,
                "correction": correction,
                "step": 817 + 0.75 + 0.25 * target + 0.5 * correction,
            }
        )

    def test_step_constants_with_a_small_floor(self):
        """Below eps_s + eta = 1 the logarithm's slope enters: c_z = (eps_s + eta)^{-1/2}."""
        norms = StepNorms(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
        options = {"feature_bound": 1.0, "temperature": 2.0, "target_mix": 1.0}
        box = AdmissibleBox(1.0, (0.0, math.log(2)))
        constants = step_lipschitz(
            1, 1, box, norms, spectral_floor=0.2, jitter=0.05, correction_strength=0.0, **options
        )
        moment = 9 * 48 + 2 * 3 * 12
        assert constants.weight == pytest.approx(48)
        assert constants.moment == pytest.approx(moment)
        assert constants.target == pytest.approx(2 * math.sqrt(9.25) / 0.25 * moment)
        assert constants.step == pytest.approx(constants.features + constants.target)


class TestBox:
    @given(SEEDS, BLOCK_SIZES, BOXES)
    def test_projection_is_euclidean(self, random_state, seed, m, box):
        """Prop. 3 (i): <y - Py, z - Py> <= 0 for every z of the box, which only the nearest has."""
        draw = random_state(seed)
        z = draw.coordinates(box, m, 200)
        y = 4 * draw.normal(10, 1, z.size(-1))
        nearest = box.project(y)
        assert box.contains(nearest).all()
        assert (((y - nearest) * (z - nearest)).sum(-1) <= 1e-12).all()
        assert ((y - nearest).norm(dim=-1) <= (y - z).norm(dim=-1) + 1e-12).all()

    @given(SEEDS, BLOCK_SIZES, BOXES)
    def test_projection_is_idempotent_and_non_expansive(self, random_state, seed, m, box):
        """Points of the box stay, bit for bit; distances never grow."""
        draw = random_state(seed)
        inside = draw.coordinates(box, m, 3, 5)
        assert box.contains(inside).all()
        assert torch.equal(box.project(inside), inside)
        y, other = 4 * draw.normal(*inside.shape), 4 * draw.normal(*inside.shape)
        assert torch.equal(box.project(box.project(y)), box.project(y))
        shrunk = (box.project(y) - box.project(other)).norm(dim=-1)
        assert (shrunk <= (y - other).norm(dim=-1) * ROUNDING).all()

    def test_bounds_apply_to_their_own_coordinates(self):
        """a is clipped to [-a_max, a_max] and l to [l_min, l_max], by position."""
        box = AdmissibleBox(2.0, (-1.0, 3.0))
        assert box.project(torch.full((6,), 10.0)).tolist() == [2, 2, 2, 3, 3, 3]
        assert box.project(torch.full((6,), -10.0)).tolist() == [-2, -2, -2, -1, -1, -1]
        assert box.project(torch.full((2, 1), -10.0)).tolist() == [[-1], [-1]]

    def test_contains(self):
        """Membership is per block, boundary included; a NaN is outside."""
        box = AdmissibleBox(2.0, (-1.0, 3.0))
        nan = math.nan
        inside, outside = [2.0, -1.0, 3.0], [[2.1, 0, 0], [-2.1, 0, 0], [0, 0, 3.1], [0, -1.1, 0]]
        blocks = torch.tensor([inside, *outside, [nan, 0, 0], [0, 0, nan], [nan, nan, nan]])
        assert box.contains(blocks).tolist() == [True] + 7 * [False]
        assert box.contains(blocks.view(2, 4, 3)).shape == (2, 4)

    def test_default_box_is_the_papers(self):
        assert AdmissibleBox() == AdmissibleBox(2.0, (-5.0, 5.0))

    def test_empty(self):
        box = AdmissibleBox()
        assert box.project(torch.zeros(0, 4, 6)).shape == (0, 4, 6)
        assert box.contains(torch.zeros(0, 4, 6)).shape == (0, 4)

    @pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan")])
    def test_refuses_offdiagonal_bound(self, bound):
        with pytest.raises(ConfigError, match="'offdiagonal_bound' to be a finite number above 0"):
            AdmissibleBox(offdiagonal_bound=bound)

    @pytest.mark.parametrize(
        "bounds",
        [(1, 1), (2, 1), (-math.inf, 0), (0, math.inf), (math.nan, 1), (0, math.nan)],
    )
    def test_refuses_log_scale_bounds(self, bounds):
        with pytest.raises(ConfigError, match="'log_scale_bounds' to be two finite numbers"):
            AdmissibleBox(log_scale_bounds=bounds)

    def test_refuses_coordinates_of_wrong_length(self):
        with pytest.raises(ShapeError, match="got 4"):
            AdmissibleBox().project(torch.zeros(3, 4))

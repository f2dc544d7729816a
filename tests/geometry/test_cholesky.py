"""The stabilised Cholesky factor and its target coordinates (appendix "Numerical Operators")."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from geof.errors import (
    ConfigError,
    DtypeError,
    GeofError,
    GeometryError,
    NonFiniteError,
    NotPositiveDefiniteError,
    NumericalWarning,
    ShapeError,
)
from geof.geometry import (
    JitterSchedule,
    cholesky,
    coordinates_from_frame,
    counting_blocks,
    ellipsoids,
    feedback_target,
    frame_from_coordinates,
    is_kept,
    is_rescued,
    stabilised_cholesky,
    target_coordinates,
)
from geof.geometry.cholesky import RELATIVE_JITTERS

SEEDS = st.integers(0, 2**32 - 1)
SCHEDULE = JitterSchedule(initial=1e-3, growth=10.0, retries=4)
JITTERS = [1e-3, 1e-2, 1e-1, 1.0, 10.0]  # epsilon_t of SCHEDULE, written out
DEFAULT = JitterSchedule()
BEYOND = len(JITTERS)  # an attempt that SCHEDULE does not have


@pytest.fixture(scope="module", autouse=True)
def _said_already():
    """Silence the once-per-process warning, which pytest turns into an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cholesky, "_already_warned", True)
        patch.setattr(cholesky, "_already_warned_of_rescue", True)
        yield


def close(actual, expected, tolerance=1e-11):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def indefinite(draw, m, attempt):
    """Return a symmetric matrix whose first admissible jitter is number ``attempt``.

    Its smallest eigenvalue is minus half of that jitter, five times the jitter before it.
    """
    axes = torch.linalg.qr(draw.normal(m, m)).Q
    eigenvalues = 1 + draw.normal(m).abs()
    eigenvalues[0] = -0.5 * 10.0 ** (attempt - 3)
    matrix = axes * eigenvalues @ axes.mT
    return (matrix + matrix.mT) / 2


def positive(draw, *shape):
    """Return well-conditioned positive-definite matrices."""
    root = draw.normal(*shape, shape[-1])
    return root @ root.mT + 0.5 * torch.eye(shape[-1], dtype=torch.float64)


def symmetric_factor(matrix, schedule=SCHEDULE):
    """Return the factor as a function of an unconstrained matrix."""
    return stabilised_cholesky((matrix + matrix.mT) / 2, schedule).factor


class TestFactor:
    @given(SEEDS, st.integers(1, 8), st.sampled_from([(), (3,), (2, 2), (0,), (2, 0)]))
    def test_first_attempt_carries_the_first_jitter(self, random_state, seed, m, leading):
        """Eq. (53) at t* = 0: R R^T = C + eps_0 I, with R lower triangular, positive diagonal."""
        matrix = positive(random_state(seed), *leading, m)
        factor, attempt = stabilised_cholesky(matrix, SCHEDULE)
        assert attempt.shape == leading
        assert attempt.dtype == torch.long
        assert not attempt.any()
        assert torch.equal(factor, factor.tril())
        assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
        close(factor @ factor.mT, matrix + 1e-3 * torch.eye(m, dtype=torch.float64))

    @given(SEEDS, st.integers(1, 6), st.lists(st.integers(0, 4), min_size=1, max_size=6))
    def test_each_block_takes_its_own_smallest_jitter(self, random_state, seed, m, wanted):
        """Eqs. (51) to (53): t* is minimal block by block, and R R^T = C + beta^t* eps_0 I."""
        draw = random_state(seed)
        blocks = torch.stack([indefinite(draw, m, t) for t in wanted])
        factor, attempt = stabilised_cholesky(blocks, SCHEDULE)
        assert attempt.tolist() == wanted
        for block, root, t in zip(blocks, factor, wanted, strict=True):
            close(root @ root.mT, block + JITTERS[t] * torch.eye(m, dtype=torch.float64))
            assert torch.equal(root, root.tril())
            alone = stabilised_cholesky(block, SCHEDULE)
            assert torch.equal(alone.factor, root)
            assert alone.attempt == t

    def test_neighbours_that_fail_leave_a_block_alone(self, random_state):
        """A block that succeeds at once is, bit for bit, what it is without failing neighbours."""
        draw = random_state(11)
        calm = positive(draw, 3, 4)
        mixed = torch.stack(
            [calm[0], indefinite(draw, 4, 3), calm[1], indefinite(draw, 4, 1), calm[2]]
        )
        factor, attempt = stabilised_cholesky(mixed.view(5, 1, 4, 4), SCHEDULE)
        assert attempt.tolist() == [[0], [3], [0], [1], [0]]
        assert torch.equal(factor[::2, 0], stabilised_cholesky(calm, SCHEDULE).factor)
        close(factor[::2, 0], torch.linalg.cholesky(calm + 1e-3 * torch.eye(4).double()), 1e-14)

    @pytest.mark.parametrize("growth", [2.0, 3.0])
    def test_schedule_grows_geometrically(self, growth):
        """Eq. (51): eps_t = beta^t eps_0, read off the 1 x 1 factor sqrt(c + eps_t)."""
        schedule = JitterSchedule(initial=0.25, growth=growth, retries=3)
        epsilon = [0.25, 0.25 * growth, 0.25 * growth**2, 0.25 * growth**3]
        shortfall = [0.125, 0.3, 0.26 * growth, 0.26 * growth**2]
        matrix = -torch.tensor(shortfall, dtype=torch.float64).view(4, 1, 1)
        factor, attempt = stabilised_cholesky(matrix, schedule)
        assert attempt.tolist() == [0, 1, 2, 3]
        expected = torch.tensor(epsilon, dtype=torch.float64) - torch.tensor(shortfall)
        close(factor.flatten().square(), expected, 1e-7)

    def test_default_is_the_papers_schedule(self):
        """The first jitter is 1e-6, ten times more each time, five retries."""
        assert JitterSchedule() == JitterSchedule(1e-6, 10.0, 5)
        shortfall = -torch.tensor([0.0, 5e-6, 0.05], dtype=torch.float64).view(3, 1, 1)
        assert stabilised_cholesky(shortfall).attempt.tolist() == [0, 1, 5]
        with pytest.raises(NotPositiveDefiniteError):
            stabilised_cholesky(torch.full((1, 1), -0.11))

    @given(SEEDS, st.integers(2, 6), st.integers(0, 3))
    def test_only_the_lower_triangle_is_read(self, random_state, seed, m, t):
        """Whatever stands above the diagonal, the factor and the attempt are the same bits."""
        draw = random_state(seed)
        matrix = indefinite(draw, m, t)
        scribbled = matrix.tril() + 100 * draw.normal(m, m).triu(1)
        plain, other = (stabilised_cholesky(c, SCHEDULE) for c in (matrix, scribbled))
        assert torch.equal(plain.factor, other.factor)
        assert plain.attempt == other.attempt

    def test_input_is_left_alone(self, random_state):
        matrix = torch.stack([indefinite(random_state(2), 3, t) for t in range(3)])
        before = matrix.clone()
        stabilised_cholesky(matrix, SCHEDULE)
        assert torch.equal(matrix, before)

    @pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 4, 4), (0, 1, 1)])
    def test_empty_batches(self, shape):
        factor, attempt = stabilised_cholesky(torch.empty(shape, dtype=torch.float64), SCHEDULE)
        assert factor.shape == shape
        assert attempt.shape == shape[:-2]


class TestErrors:
    @given(SEEDS, st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
    def test_exhausted_schedule(self, random_state, seed, m, hopeless, mended):
        """No admissible index: the error says how many blocks, of how many, up to which jitter."""
        draw = random_state(seed)
        attempts = [BEYOND] * hopeless + [2] * mended
        blocks = torch.stack([indefinite(draw, m, t) for t in attempts])
        message = rf"{hopeless} of {hopeless + mended} stayed indefinite.* 10 after 4 retries"
        with pytest.raises(NotPositiveDefiniteError, match=message):
            stabilised_cholesky(blocks, SCHEDULE)

    def test_without_retries_there_is_one_attempt(self, random_state):
        """T_max = 0 leaves the initial attempt only."""
        once = JitterSchedule(initial=1e-3, growth=10.0, retries=0)
        assert not stabilised_cholesky(indefinite(random_state(0), 3, 0), once).attempt
        with pytest.raises(NotPositiveDefiniteError, match="1 of 1"):
            stabilised_cholesky(indefinite(random_state(0), 3, 1), once)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("place", [(0, 0), (1, 0), (2, 2), (2, 1)])
    def test_non_finite_blocks(self, random_state, value, place):
        """A NaN or an infinity anywhere in the lower triangle is named as such and counted."""
        blocks = positive(random_state(4), 4, 3)
        for k in (1, 3):
            blocks[k, place[0], place[1]] = blocks[k, place[1], place[0]] = value
        with pytest.raises(NonFiniteError, match="2 of 4 blocks hold a NaN or an infinity"):
            stabilised_cholesky(blocks, SCHEDULE)

    def test_nan_is_told_apart_from_indefinite(self, random_state):
        """Among hopelessly indefinite blocks, the NaN is what is reported."""
        draw = random_state(5)
        blocks = torch.stack([indefinite(draw, 3, BEYOND) for _ in range(3)])
        blocks[1, 0, 0] = torch.nan
        with pytest.raises(NonFiniteError, match="1 of 3"):
            stabilised_cholesky(blocks, SCHEDULE)
        with pytest.raises(NotPositiveDefiniteError, match="2 of 2"):
            stabilised_cholesky(blocks[::2], SCHEDULE)

    @pytest.mark.parametrize("family", [GeometryError, GeofError, ArithmeticError])
    @pytest.mark.parametrize("value", [-1e6, torch.nan])
    def test_family(self, family, value):
        """Both errors are caught by their parents, also through the differentiable path."""
        with pytest.raises(family):
            stabilised_cholesky(torch.full((1, 1), value, requires_grad=True), SCHEDULE)

    def test_siblings(self):
        assert not issubclass(NonFiniteError, NotPositiveDefiniteError)
        assert not issubclass(NotPositiveDefiniteError, NonFiniteError)

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"initial": 0.0}, "jitter"),
            ({"initial": -1e-6}, "jitter"),
            ({"initial": float("inf")}, "jitter"),
            ({"initial": float("nan")}, "jitter"),
            ({"growth": 1.0}, "jitter_growth"),
            ({"growth": 0.5}, "jitter_growth"),
            ({"growth": float("inf")}, "jitter_growth"),
            ({"growth": float("nan")}, "jitter_growth"),
            ({"retries": -1}, "jitter_retries"),
            ({"retries": 2.0}, "jitter_retries"),
            ({"retries": True}, "jitter_retries"),
        ],
    )
    def test_schedule_refuses(self, options, name):
        """Eq. (51) needs eps_0 > 0, beta > 1 and T_max in {0, 1, ...}."""
        with pytest.raises(ConfigError, match=f"'{name}'"):
            JitterSchedule(**options)


class TestWarning:
    def test_said_once_per_process(self, random_state, monkeypatch):
        """The first rescue is announced with its extent, later ones are not."""
        monkeypatch.setattr(cholesky, "_already_warned", False)
        draw = random_state(6)
        blocks = torch.stack([indefinite(draw, 3, t) for t in (0, 2, 1, 0)])
        with pytest.warns(NumericalWarning, match=r"2 of 4 blocks .*retry 2") as caught:
            stabilised_cholesky(blocks, SCHEDULE)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert stabilised_cholesky(blocks, SCHEDULE).attempt.tolist() == [0, 2, 1, 0]

    def test_silent_without_retries(self, random_state, monkeypatch):
        """Nothing to rescue, nothing to say: the announcement is kept for the first rescue."""
        monkeypatch.setattr(cholesky, "_already_warned", False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stabilised_cholesky(positive(random_state(7), 3, 4), SCHEDULE)
        assert cholesky._already_warned is False


class TestGradient:
    @pytest.mark.parametrize("m", [1, 2, 3, 5])
    @pytest.mark.parametrize("t", [0, 3])
    def test_numerically(self, random_state, m, t):
        """Eq. (38): first and second derivatives, at the first jitter and after three retries."""
        draw = random_state(100 * m + t)
        blocks = torch.stack([indefinite(draw, m, 3) for _ in range(2)])
        if t == 0:
            blocks += torch.eye(m, dtype=torch.float64)
        blocks.requires_grad_()
        assert stabilised_cholesky(blocks, SCHEDULE).attempt.tolist() == [t, t]
        assert gradcheck(symmetric_factor, blocks)
        assert gradgradcheck(symmetric_factor, blocks)

    @given(SEEDS, st.integers(1, 6), st.integers(0, 3))
    def test_equals_autograd_of_the_plain_factor(self, random_state, seed, m, t):
        """The gradient is that of chol(C + eps_t* I) with the jitter held fixed, and symmetric."""
        draw = random_state(seed)
        matrix, direction = indefinite(draw, m, t), draw.normal(m, m)
        ours, plain = matrix.clone().requires_grad_(), matrix.clone().requires_grad_()
        jittered = plain + JITTERS[t] * torch.eye(m, dtype=torch.float64)
        (direction * stabilised_cholesky(ours, SCHEDULE).factor).sum().backward()
        (direction * torch.linalg.cholesky(jittered)).sum().backward()
        close(ours.grad, (plain.grad + plain.grad.mT) / 2, 1e-8)
        assert torch.equal(ours.grad, ours.grad.mT)

    def test_attempt_carries_no_gradient(self, random_state):
        factor, attempt = stabilised_cholesky(positive(random_state(8), 2, 3).requires_grad_())
        assert factor.requires_grad
        assert not attempt.requires_grad

    def test_empty_batch(self):
        matrix = torch.empty(0, 3, 3, dtype=torch.float64, requires_grad=True)
        stabilised_cholesky(matrix).factor.sum().backward()
        assert matrix.grad.shape == (0, 3, 3)

    @pytest.mark.parametrize("attempts", [[0, 0], [0, 2], [0, BEYOND]])
    def test_operator_registration(self, random_state, attempts):
        """torch.library agrees on schema, fake kernel, autograd and ahead-of-time dispatch."""
        draw = random_state(9)
        blocks = torch.stack([indefinite(draw, 3, t) for t in attempts]).requires_grad_()
        operator = torch.ops.geof.stabilised_cholesky.default
        for rescue in (True, False)[: 2 - (BEYOND in attempts)]:
            found = torch.library.opcheck(operator, (blocks, 1e-3, 10.0, 4, rescue))
            assert set(found.values()) == {"SUCCESS"}
            assert len(found) == 4


def large_and_indefinite(draw, m):
    """Return a matrix of size 1e6 with an eigenvalue of -20, beyond SCHEDULE."""
    axes = torch.linalg.qr(draw.normal(m, m)).Q
    eigenvalues = 1e6 * (1 + draw.normal(m).abs())
    eigenvalues[0] = -20
    return axes * eigenvalues @ axes.mT


def present_coordinates(draw, *leading, m):
    return draw.normal(*leading, m * (m + 1) // 2)


class TestRescue:
    """Beyond the schedule: jitters relative to a block's size, then the present coordinates."""

    @pytest.mark.parametrize("m", [1, 2, 5])
    def test_the_schedule_comes_first_and_unchanged(self, random_state, m):
        """Where Eq. (52) has an index, target, attempt and gradient are the printed operator's."""
        draw = random_state(m)
        blocks = torch.stack([indefinite(draw, m, t) for t in range(BEYOND)]).requires_grad_()
        target, attempt = feedback_target(blocks, present_coordinates(draw, BEYOND, m=m), SCHEDULE)
        wanted = target_coordinates(blocks, SCHEDULE)
        assert attempt.tolist() == list(range(BEYOND))
        assert torch.equal(target, wanted)
        direction = draw.normal(*target.shape)
        ours, theirs = (torch.autograd.grad(t, blocks, direction)[0] for t in (target, wanted))
        assert torch.equal(ours, theirs)

    @pytest.mark.parametrize("size", [1e3, 1e8, 1e20, 1e36])
    @pytest.mark.parametrize("m", [2, 4, 8])
    def test_rounding_at_any_size(self, random_state, size, m):
        """A rank-one block in float32, off by its own rounding: the smallest jitter serves."""
        draw = random_state(m)
        residual = draw.normal(60, m).float() * size**0.5
        blocks = residual.unsqueeze(-1) * residual.unsqueeze(-2) + torch.eye(m)
        blocks *= 1 + 1e-7 * draw.normal(60, m, m).float().tril()  # one unit in the last place
        target, attempt = feedback_target(
            blocks, present_coordinates(draw, 60, m=m).float(), DEFAULT
        )
        frame = frame_from_coordinates(target)
        assert not is_kept(attempt, DEFAULT).any()
        if size > 1e6:
            assert is_rescued(attempt, DEFAULT).any()
            assert int(attempt.max()) == DEFAULT.retries + 1
        symmetric = (blocks.tril() + blocks.tril(-1).mT).double()
        error = (frame.double() @ frame.double().mT - symmetric).abs().amax((-2, -1))
        assert (error <= 1e-4 * symmetric.abs().sum(-1).amax(-1)).all()

    def test_jitters_are_parts_of_the_largest_row_sum(self):
        """The first jitter serves whose pivots reach half of it."""
        shortfall = torch.tensor([0.4e-6, 0.4e-4, 0.4e-2, 0.3], dtype=torch.float64)
        blocks = torch.diag_embed(
            torch.stack([-1e9 * shortfall, torch.full_like(shortfall, 1e9)], -1)
        )
        target, attempt = feedback_target(blocks, torch.zeros(4, 3).double(), SCHEDULE)
        assert attempt.tolist() == [BEYOND, BEYOND + 1, BEYOND + 2, BEYOND + 3]
        assert is_rescued(attempt, SCHEDULE).all()
        jitter = 10 + 1e9 * torch.tensor(RELATIVE_JITTERS, dtype=torch.float64)
        wanted = torch.linalg.cholesky(blocks + jitter[:, None, None] * torch.eye(2))
        close(frame_from_coordinates(target), wanted)

    def test_a_pivot_far_below_the_jitter_does_not_count(self):
        """-0.9e3 + 1e3 is positive, but less than half of the jitter."""
        block = torch.diag(torch.tensor([-0.9e3, 1e9], dtype=torch.float64))
        attempt = feedback_target(block, torch.zeros(3).double(), JitterSchedule(1e-9)).attempt
        assert attempt == JitterSchedule().retries + 2

    def test_a_hopeless_block_keeps_its_coordinates(self, random_state):
        """Target and gradient of z are those of z; the block's own gradient is zero."""
        draw = random_state(0)
        blocks = torch.stack([-1e6 * torch.eye(3).double(), indefinite(draw, 3, 0)])
        blocks.requires_grad_()
        present = present_coordinates(draw, 2, m=3).requires_grad_()
        with counting_blocks() as counts:
            target, attempt = feedback_target(blocks, present, SCHEDULE)
        assert attempt.tolist() == [SCHEDULE.retries + len(RELATIVE_JITTERS) + 1, 0]
        assert is_kept(attempt, SCHEDULE).tolist() == [True, False]
        assert (counts.rescued, counts.kept) == (0, 1)
        assert torch.equal(target[0], present[0])
        direction = draw.normal(2, 6)
        of_blocks, of_present = torch.autograd.grad(target, (blocks, present), direction)
        assert torch.equal(of_present[0], direction[0])
        assert not of_present[1].any()
        assert not of_blocks[0].any()
        assert of_blocks[1].any()

    def test_gradient_numerically(self, random_state):
        """A relative jitter is a constant to the gradient, as the schedule's are."""
        draw = random_state(3)
        blocks = torch.stack([large_and_indefinite(draw, 3) for _ in range(2)])
        present = present_coordinates(draw, 2, m=3)
        given = blocks.clone().requires_grad_()
        target, attempt = feedback_target(given, present, SCHEDULE)
        assert is_rescued(attempt, SCHEDULE).all()
        direction = draw.normal(*target.shape)
        (gradient,) = torch.autograd.grad(target, given, direction)
        frame = frame_from_coordinates(target.detach())
        shift = (frame @ frame.mT - blocks).diagonal(dim1=-2, dim2=-1).mean(-1)
        fixed = (blocks + shift[:, None, None] * torch.eye(3)).requires_grad_()
        exact = coordinates_from_frame(torch.linalg.cholesky(fixed))
        close(gradient, torch.autograd.grad(exact, fixed, direction)[0], 1e-8)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_not_finite_is_still_an_error(self, random_state, value):
        blocks = positive(random_state(4), 4, 3)
        blocks[1, 1, 0] = blocks[1, 0, 1] = value
        blocks[2] *= -1e6
        with pytest.raises(NonFiniteError, match="1 of 4"):
            feedback_target(blocks, torch.zeros(4, 6).double(), SCHEDULE)

    def test_said_once_per_process(self, random_state, monkeypatch):
        monkeypatch.setattr(cholesky, "_already_warned_of_rescue", False)
        draw = random_state(6)
        hopeless = -1e6 * torch.eye(3).double()
        blocks = torch.stack([hopeless, large_and_indefinite(draw, 3), indefinite(draw, 3, 1)])
        given = blocks, torch.zeros(3, 6).double(), SCHEDULE
        message = r"2 of 3 blocks stayed indefinite up to a jitter of 10: 1 needed .*, 1 kept"
        with pytest.warns(NumericalWarning, match=message) as caught:
            feedback_target(*given)
        assert len(caught) == 1
        with counting_blocks() as outer, counting_blocks() as inner:
            feedback_target(*given)  # a second warning would be an error
        assert (outer.rescued, outer.kept, inner.rescued, inner.kept) == (1, 1, 1, 1)
        assert (inner.take().kept, inner.kept, outer.kept) == (1, 0, 1)


class TestTarget:
    @given(SEEDS, st.integers(1, 6), st.integers(0, 3))
    def test_lossless(self, random_state, seed, m, t):
        """Eqs. (54), (55): the target's frame is R, from which C comes back exactly."""
        matrix = indefinite(random_state(seed), m, t)
        target = target_coordinates(matrix, SCHEDULE)
        frame = frame_from_coordinates(target)
        close(frame, stabilised_cholesky(matrix, SCHEDULE).factor)
        close(frame @ frame.mT - JITTERS[t] * torch.eye(m, dtype=torch.float64), matrix)

    @given(SEEDS, st.integers(1, 6))
    def test_ellipsoid(self, random_state, seed, m):
        """Eqs. (56), (57): R maps the unit ball onto {h : h^T (C + eps I)^{-1} h <= 1}."""
        draw = random_state(seed)
        moment, x = positive(draw, m), draw.normal(m, 20)
        target = target_coordinates(moment, SCHEDULE)
        regularised = moment + 1e-3 * torch.eye(m, dtype=torch.float64)
        h = frame_from_coordinates(target) @ x
        level = (h * torch.linalg.solve(regularised, h)).sum(0)
        close(level, x.square().sum(0), 1e-9)
        lengths, environment_axes, _ = ellipsoids(target)
        close(lengths.square(), torch.linalg.eigvalsh(regularised).flip(-1), 1e-9)
        close(regularised @ environment_axes, environment_axes * lengths.square(), 1e-9)

    @given(SEEDS, st.integers(2, 5))
    @settings(max_examples=20)
    def test_stretches_high_energy_directions(self, random_state, seed, m):
        """Section 3.3: the longest semi-axis is the direction of the largest residual energy."""
        draw = random_state(seed)
        loud = torch.nn.functional.normalize(draw.normal(m), dim=0)
        moment = torch.eye(m, dtype=torch.float64) + 9 * loud.outer(loud)
        lengths, environment_axes, _ = ellipsoids(target_coordinates(moment))
        close(lengths[0].square(), torch.tensor(10 + 1e-6, dtype=torch.float64), 1e-9)
        close((environment_axes[:, 0] @ loud).abs(), torch.tensor(1.0, dtype=torch.float64), 1e-9)

    def test_default_schedule(self, random_state):
        """Without a schedule the target uses the paper's first jitter, 1e-6."""
        moment = positive(random_state(10), 3)
        frame = frame_from_coordinates(target_coordinates(moment))
        close(frame @ frame.mT, moment + 1e-6 * torch.eye(3, dtype=torch.float64), 1e-13)


class TestInput:
    def test_a_nan_above_the_diagonal_is_not_read(self, monkeypatch):
        monkeypatch.setattr(cholesky, "_already_warned", True)
        matrix = torch.eye(2).repeat(2, 1, 1)
        matrix[0, 1, 1] = -1e-5  # needs a retry
        matrix[:, 0, 1] = torch.nan
        assert stabilised_cholesky(matrix).attempt.tolist() == [2, 0]

    @pytest.mark.parametrize("matrix", [torch.ones(3), torch.ones(2, 3)])
    def test_shapes(self, matrix):
        with pytest.raises(ShapeError, match="'matrix' to have shape"):
            stabilised_cholesky(matrix)

    def test_integers(self):
        with pytest.raises(DtypeError, match=r"'matrix' to be floating point \(got torch.int64\)"):
            stabilised_cholesky(torch.eye(2, dtype=torch.long))

"""The native step's parts against the same formulas in plain torch: values, gradients, layouts."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from geof.errors import (
    DataError,
    DeviceError,
    DtypeError,
    GeofError,
    NonFiniteError,
    NumericalWarning,
    ShapeError,
)
from geof.geometry import (
    JitterSchedule,
    apply_frame,
    cholesky,
    counting_blocks,
    feedback_target,
    frame_from_coordinates,
    is_kept,
    is_rescued,
    num_coordinates,
    triangular_solve,
)
from geof.kernels import BACKENDS, Neighbourhoods, StepSpec, native, native_arguments, native_parts
from geof.kernels.factored import local_moment
from geof.kernels.interface import gate
from geof.kernels.library import find_library
from geof.kernels.native_arguments import StatisticCode, StepOptions, step_options
from geof.kernels.reference import neighbourhood_weights
from tests.kernels import outcomes

pytestmark = pytest.mark.skipif(
    "native" not in BACKENDS, reason=f"native kernels: {find_library().reason}"
)

COUNTS = (1, 2, 3, 4, 5, 8, 16, 24)
# Every block size, and every block count with several of them; (B, m).
EVERY_SIZE = [(COUNTS[(m + m // 8) % len(COUNTS)], m) for m in range(1, 33)]
# Float32 has code of its own for blocks of 4 and 8 in eights, for pairs of nodes when there are
# eight blocks, and lanes of 8, 4 and 1 for the rest.
SPECIAL = [
    *[(8, 4), (8, 8), (16, 4), (24, 8)],
    *[(8, 1), (16, 3), (8, 12), (24, 5)],
    *[(4, 4), (4, 8), (12, 2), (3, 4), (1, 8), (5, 3)],
]
STATISTICS = [None, "full", "diagonal", "mean"]
SCHEDULE = JitterSchedule(initial=1e-3, growth=10.0, retries=4)


# --- The same in plain torch, lanes last ---------------------------------------------------------


def lower(m: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.tril_indices(m, m)
    return rows, columns


def frames_in_torch(z, x, message, framed):
    frame = frame_from_coordinates(z.mT)
    return {
        "h": apply_frame(frame, x).mT,
        "y": (apply_frame(frame, message) if framed else message).mT,
    }


def moments_in_torch(h, y, edges, temperature, second):
    i, j = edges.target, edges.source
    weight = neighbourhood_weights((h[i] - h[j]).square().sum((-2, -1)), edges, temperature)
    w, residual = weight[:, None, None], y[j] - y[i]
    result = {"weight": weight, "first": edges.sum(w * y[j])}
    if second:
        rows, columns = lower(y.size(1))
        result["second"] = edges.sum(w * residual[:, rows] * residual[:, columns])
    return result


def unpacked(second: Tensor, m: int) -> Tensor:
    """Return ``(n, t, B)`` lower triangles as symmetric ``(n, B, m, m)``."""
    rows, columns = lower(m)
    matrix = second.new_zeros(len(second), second.size(2), m, m)
    matrix[..., rows, columns] = second.mT
    matrix[..., columns, rows] = second.mT
    return matrix


def feedback_in_torch(z, message, first, second, statistic, framed, floor, schedule=SCHEDULE):
    m = message.size(-1)
    frame = frame_from_coordinates(z.mT) if framed else None
    aggregate = first.mT if frame is None else triangular_solve(frame, first.mT)
    if statistic is None:
        return {"aggregate": aggregate}
    matrix = unpacked(second, m) if statistic in ("full", "diagonal") else second
    moment = local_moment(frame, aggregate - message, matrix, statistic)
    moment = moment + floor * torch.eye(m, dtype=moment.dtype)
    target, attempt = feedback_target(moment, z.mT, schedule)
    return {
        "aggregate": aggregate,
        "target": target.mT,
        "moment": moment.detach(),
        "attempt": attempt,
    }


# --- The same in native code ---------------------------------------------------------------------


def native_frames(z, x, message, framed):
    return dict(zip("hy", native_parts.apply_frames(z, x, message, framed), strict=True))


def native_moments(h, y, edges, temperature, second):
    result = native_parts.edge_moments(h, y, edges, temperature, second=second)._asdict()
    if not second:
        assert result.pop("second").numel() == 0
    return result


def native_feedback(z, message, first, second, statistic, framed, floor, schedule=SCHEDULE):
    options = step_options(StepSpec(1.0, statistic, framed, floor, schedule))
    aggregate, target, moment, attempt = native_parts.feedback_target(
        *(z, message, first, second), *options.pack()
    )
    if statistic is None:
        return {"aggregate": aggregate}
    return {"aggregate": aggregate, "target": target, "moment": moment, "attempt": attempt}


# --- Inputs and comparisons ----------------------------------------------------------------------


def coordinates(draw, n, B, m):
    """Return lanes ``(n, t, B)`` of frames whose inverses do not explode with their size."""
    z = draw.uniform(n, num_coordinates(m), B)
    z[:, :-m] /= m**0.5
    return z


def second_moments(draw, n, B, m):
    """Return packed positive definite blocks ``(n, t, B)``."""
    rows, columns = lower(m)
    root = draw.normal(n, B, m, m + 2)
    return (root @ root.mT / (m + 2))[..., rows, columns].mT.contiguous()


def some_edges(draw, n, *, static=False):
    """Return neighbourhoods with repeats, self-loops, a hub and, at the end, an isolated node."""
    edge_index = torch.randint(0, n - 1, (2, 3 * n), generator=draw.generator)
    spokes = torch.stack([torch.arange(n - 1), torch.zeros(n - 1, dtype=torch.long)])
    given = torch.cat([edge_index, spokes, spokes.flip(0)], 1)
    return Neighbourhoods.from_edge_index(given, n, static_shapes=static)


def outcome(run, inputs, *arguments, **how):
    """Return the outcome of a function that takes its inputs by position, then the arguments."""
    return outcomes.outcome(lambda **given: run(*given.values(), *arguments), inputs, **how)


def assert_equal_to(wanted, got, tolerance=1e-10):
    """Compare each tensor relative to its own largest magnitude."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name].shape == value.shape, name
        if not value.numel():
            continue
        error = float((got[name].double() - value.double()).abs().max())
        scale = float(value.abs().max())
        assert error <= tolerance * scale, f"{name}: off by {error:.3g} at a scale of {scale:.3g}"


def frame_inputs(draw, n, B, m):
    return {
        "z": coordinates(draw, n, B, m),
        "x": draw.normal(n, B, m),
        "message": draw.normal(n, B, m),
    }


def feedback_inputs(draw, n, B, m, statistic):
    needed = statistic in ("full", "diagonal")
    return {
        "z": coordinates(draw, n, B, m),
        "message": draw.normal(n, B, m),
        "first": draw.normal(n, m, B),
        "second": second_moments(draw, n, B, m) if needed else torch.empty(0).double(),
    }


FRAMED = pytest.mark.parametrize("framed", [True, False], ids=["framed", "unframed"])
WITH_SECOND = pytest.mark.parametrize("second", [True, False], ids=["second", "first-only"])
EACH_STATISTIC = pytest.mark.parametrize("statistic", STATISTICS, ids=str)


# --- Parity in double precision, every block size ------------------------------------------------


@FRAMED
def test_frames_equal_torch(random_state, framed):
    for (B, m), n in zip(EVERY_SIZE, itertools.cycle((7, 4)), strict=False):
        inputs = frame_inputs(random_state(m), n, B, m)
        assert_equal_to(
            outcome(frames_in_torch, inputs, framed), outcome(native_frames, inputs, framed)
        )


def test_environment_equals_torch(random_state):
    for B, m in EVERY_SIZE:
        draw = random_state(m)
        inputs = {"z": coordinates(draw, 5, B, m), "x": draw.normal(5, B, m)}
        assert_equal_to(
            outcome(lambda z, x: {"h": apply_frame(frame_from_coordinates(z.mT), x)}, inputs),
            outcome(lambda z, x: {"h": native_parts.environment(z, x)}, inputs),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gate_equals_torch(random_state, dtype):
    """Sizes around whole registers and pieces; saturated gates too."""
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    for n, d in ((0, 3), (1, 1), (3, 5), (2, 16), (70, 64), (1025, 33)):
        draw = random_state(n)
        scale = torch.tensor([1.0, 10.0, 100.0, 1000.0]).repeat(d)[:d]
        inputs = {"pre": draw.normal(n, d) * scale, "x": draw.normal(n, d), "a": draw.normal(n, d)}
        wanted = outcome(lambda pre, x, a: {"next": gate(pre, x, a)}, inputs)
        single = {name: value.to(dtype) for name, value in inputs.items()}
        got = outcome(lambda pre, x, a: {"next": native_parts.gate(pre, x, a)}, single)
        for name, value in wanted.items():
            torch.testing.assert_close(
                got[name].double(), value, rtol=tolerance, atol=tolerance, msg=name
            )


@WITH_SECOND
def test_edge_moments_equal_torch(random_state, second):
    for B, m in EVERY_SIZE:
        draw = random_state(m)
        n = 5 + m % 4
        edges = some_edges(draw, n, static=m % 3 == 0)
        assert (edges.active is not None) == (m % 3 == 0)
        inputs = {"h": draw.normal(n, m, B), "y": draw.normal(n, m, B)}
        options = edges, 2.0 * m * B, second
        assert_equal_to(
            outcome(moments_in_torch, inputs, *options), outcome(native_moments, inputs, *options)
        )


@EACH_STATISTIC
@FRAMED
def test_feedback_equals_torch(random_state, statistic, framed):
    for (B, m), n in zip(EVERY_SIZE, itertools.cycle((3, 4)), strict=False):
        inputs = feedback_inputs(random_state(m), n, B, m, statistic)
        options = statistic, framed, 0.3
        assert_equal_to(
            outcome(feedback_in_torch, inputs, *options),
            outcome(native_feedback, inputs, *options),
        )


@pytest.mark.parametrize("statistic", ["mean", None], ids=str)
def test_feedback_that_does_not_use_the_second_moment(random_state, statistic):
    """Its gradient is zero then, not whatever the memory held."""
    inputs = feedback_inputs(random_state(0), 6, 4, 3, "full")
    wanted = outcome(feedback_in_torch, inputs, statistic, True, 0.3)
    assert not wanted["gradient of second"].any()
    for _ in range(3):
        torch.full_like(inputs["second"], torch.nan)  # what a fresh tensor may find
        assert_equal_to(wanted, outcome(native_feedback, inputs, statistic, True, 0.3))


@pytest.mark.parametrize("only", ["h", "y"])
@FRAMED
def test_frames_of_which_one_is_used(random_state, only, framed):
    inputs = frame_inputs(random_state(0), 6, 4, 3)
    assert_equal_to(
        outcome(frames_in_torch, inputs, framed, only=only),
        outcome(native_frames, inputs, framed, only=only),
    )


@pytest.mark.parametrize("only", ["aggregate", "target"])
@pytest.mark.parametrize("statistic", ["full", "diagonal", "mean"])
def test_feedback_of_which_one_is_used(random_state, only, statistic):
    inputs = feedback_inputs(random_state(0), 6, 4, 3, statistic)
    assert_equal_to(
        outcome(feedback_in_torch, inputs, statistic, True, 0.3, only=only),
        outcome(native_feedback, inputs, statistic, True, 0.3, only=only),
    )


@pytest.mark.parametrize("only", ["weight", "first", "second"])
def test_edge_moments_of_which_one_is_used(random_state, only):
    """Gradients that do not come, of the weights most of all, are taken for zero."""
    draw = random_state(0)
    edges = some_edges(draw, 9)
    inputs = {"h": draw.normal(9, 3, 4), "y": draw.normal(9, 3, 4)}
    assert_equal_to(
        outcome(moments_in_torch, inputs, edges, 9.0, True, only=only),
        outcome(native_moments, inputs, edges, 9.0, True, only=only),
    )


# --- Accuracy in single precision, every specialisation ------------------------------------------


def assert_accurate(native_run, torch_run, samples):
    """Require at most twice the error torch itself makes in float32, gradients three times."""
    results = {"candidate": [], "working": [], "exact": []}
    for inputs, options in samples:
        rounded = {name: value.float() for name, value in inputs.items()}
        results["candidate"].append(outcome(native_run, rounded, *options, dtype=torch.float32))
        results["working"].append(outcome(torch_run, rounded, *options, dtype=torch.float32))
        results["exact"].append(outcome(torch_run, rounded, *options))
    outcomes.assert_accurate(*results.values())


@pytest.mark.parametrize(("B", "m"), SPECIAL)
@FRAMED
def test_frames_are_as_accurate_as_torch(random_state, B, m, framed):
    samples = [
        (frame_inputs(random_state(seed), 150 + seed % 2, B, m), (framed,)) for seed in range(4)
    ]
    assert_accurate(native_frames, frames_in_torch, samples)


@pytest.mark.parametrize(("B", "m"), SPECIAL)
@WITH_SECOND
def test_edge_moments_are_as_accurate_as_torch(random_state, B, m, second):
    samples = []
    for seed in range(6):
        draw = random_state(seed)
        n = 60 + seed % 2
        edges = some_edges(draw, n, static=seed == 0)
        inputs = {"h": draw.normal(n, m, B), "y": draw.normal(n, m, B)}
        samples.append((inputs, (edges, 2.0 * m * B, second)))
    assert_accurate(native_moments, moments_in_torch, samples)


@pytest.mark.parametrize(("B", "m"), SPECIAL)
@pytest.mark.parametrize("statistic", ["full", "diagonal", "mean", None], ids=str)
def test_feedback_is_as_accurate_as_torch(random_state, B, m, statistic):
    for framed in (True, False):
        samples = [
            (
                feedback_inputs(random_state(seed), 60 + seed % 2, B, m, statistic),
                (statistic, framed, 0.3),
            )
            for seed in range(2)
        ]
        assert_accurate(native_feedback, feedback_in_torch, samples)


# --- Odd inputs ----------------------------------------------------------------------------------


def test_frames_that_torch_stores_otherwise(random_state):
    """Values and gradients do not depend on how the tensors lie in memory."""
    inputs = frame_inputs(random_state(0), 6, 8, 4)
    strewn = {name: strew(value) for name, value in inputs.items()}
    assert not any(value.is_contiguous() for value in strewn.values())
    run = lambda *given: native_frames(*given, True)  # noqa: E731
    assert_equal_to(outcome(run, inputs), outcome_of_views(run, strewn), 0.0)
    run = lambda z, x: {"h": native_parts.environment(z, x)}  # noqa: E731
    chosen = [{name: given[name] for name in "zx"} for given in (inputs, strewn)]
    assert_equal_to(outcome(run, chosen[0]), outcome_of_views(run, chosen[1]), 0.0)


def test_edge_moments_that_torch_stores_otherwise(random_state):
    draw = random_state(0)
    edges = some_edges(draw, 9)
    inputs = {"h": draw.normal(9, 3, 4), "y": draw.normal(9, 3, 4)}
    run = lambda h, y: native_moments(h, y, edges, 9.0, True)  # noqa: E731
    strewn = {name: strew(value) for name, value in inputs.items()}
    assert_equal_to(outcome(run, inputs), outcome_of_views(run, strewn), 0.0)


@pytest.mark.parametrize("statistic", ["full", "mean"])
def test_feedback_that_torch_stores_otherwise(random_state, statistic):
    inputs = feedback_inputs(random_state(0), 6, 4, 3, statistic)
    run = lambda *given: native_feedback(*given, statistic, True, 0.3)  # noqa: E731
    strewn = {name: strew(value) if value.numel() else value for name, value in inputs.items()}
    assert_equal_to(outcome(run, inputs), outcome_of_views(run, strewn), 0.0)


def strew(value: Tensor) -> Tensor:
    """Return the same values with the last two dimensions swapped in memory."""
    return value.mT.contiguous().mT


def outcome_of_views(run, inputs):
    """Like :func:`outcome`, without the copies that would make everything contiguous."""
    return outcome(lambda *given: run(*map(strew_again, given)), inputs)


def strew_again(value: Tensor) -> Tensor:
    return value if value.dim() < 2 else strew(value)


@pytest.mark.parametrize("B", [1, 8])
def test_no_nodes_at_all(random_state, B):
    draw, m = random_state(0), 4
    edges = Neighbourhoods.from_edge_index(torch.empty(2, 0, dtype=torch.long), 0)
    for dtype in (torch.float32, torch.float64):
        frames = outcome(native_frames, frame_inputs(draw, 0, B, m), True, dtype=dtype)
        assert frames["gradient of z"].shape == (0, 10, B)
        inputs = {"h": draw.normal(0, m, B), "y": draw.normal(0, m, B)}
        moments = outcome(native_moments, inputs, edges, 1.0, True, dtype=dtype)
        assert moments["second"].shape == (0, 10, B)
        inputs = feedback_inputs(draw, 0, B, m, "full")
        done = outcome(native_feedback, inputs, "full", True, 0.3, dtype=dtype)
        assert done["moment"].shape == (0, B, m, m)


def test_isolated_nodes_have_themselves_alone(random_state):
    draw = random_state(0)
    h, y = draw.normal(6, 3, 4), draw.normal(6, 3, 4)
    edges = Neighbourhoods.from_edge_index(torch.empty(2, 0, dtype=torch.long), 6)
    moments = native_parts.edge_moments(h, y, edges, 1.0, second=True)
    assert torch.equal(moments.weight, torch.ones(6).double())
    assert torch.equal(moments.first, y)
    assert not moments.second.any()


@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1e-3, 1e3, 1e6])
def test_scales(random_state, scale):
    """Relative accuracy is the same at every scale, and float32 has a NaN only where torch has."""
    draw = random_state(0)
    edges, n, B, m = some_edges(draw, 9), 9, 8, 4
    frames = frame_inputs(draw, n, B, m)
    frames["x"] *= scale
    frames["message"] *= scale
    moments = {"h": scale * draw.normal(n, m, B), "y": scale * draw.normal(n, m, B)}
    full, mean = (feedback_inputs(draw, n, B, m, statistic) for statistic in ("full", "mean"))
    for inputs in (full, mean):
        inputs["first"] *= scale
        inputs["message"] *= scale
        inputs["second"] *= scale**2
    tiny = JitterSchedule(1e-60)
    cases = [
        (native_frames, frames_in_torch, frames, (True,)),
        (native_moments, moments_in_torch, moments, (edges, 50.0, True)),
        (native_moments, moments_in_torch, moments, (edges, 50.0 * scale**2, True)),
        (native_feedback, feedback_in_torch, full, ("full", True, 0.3)),
        (native_feedback, feedback_in_torch, full, ("full", True, 0.3 * scale**2, tiny)),
        (native_feedback, feedback_in_torch, mean, ("mean", True, 0.3 * scale**2, tiny)),
    ]
    for ours, theirs, inputs, options in cases:
        assert_equal_to(outcome(theirs, inputs, *options), outcome(ours, inputs, *options))
    for ours, theirs, inputs, options in (cases[0], cases[1], cases[3]):
        wanted = outcome(theirs, inputs, *options, dtype=torch.float32)
        got = outcome(ours, inputs, *options, dtype=torch.float32)
        for name, value in wanted.items():
            assert not (got[name].isnan() & ~value.isnan()).any(), name


def test_weights_of_distant_neighbours_fade_to_zero(random_state):
    """Down through the subnormal numbers, without a NaN at any distance."""
    distance = torch.cat([torch.linspace(0, 40, 801), torch.tensor([1e3, 1e10, 1e18])])
    n = len(distance)
    spokes = torch.stack([torch.arange(1, n), torch.zeros(n - 1, dtype=torch.long)])
    edges = Neighbourhoods.from_edge_index(spokes, n)
    for dtype in (torch.float32, torch.float64):
        rounding = 2 * torch.finfo(dtype).eps
        h = distance.to(dtype).view(n, 1, 1)
        got = native_parts.edge_moments(h, h, edges, 1.0, second=False).weight
        exact = moments_in_torch(h.double(), h.double(), edges, 1.0, False)["weight"]
        energy = (h[edges.target] - h[edges.source]).double().square().flatten()
        # An energy's rounding error is a relative error of the weight.
        least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        allowed = rounding * (2 + energy) * exact + least
        assert ((got.double() - exact).abs() <= allowed.nan_to_num(0.0)).all()
        assert ((got[:n] > 0) & (got[:n] < torch.finfo(dtype).tiny)).any()
        assert got[n - 1] == 0


def test_tensors_of_different_types_are_refused(random_state):
    """Read as one type they would be read beyond their end."""
    inputs = frame_inputs(random_state(0), 4, 8, 3)
    z, x, message = (value.float() for value in inputs.values())
    other = message.to(torch.bfloat16)
    for given in ((z, x, other), (z, other, message), (z, x.double(), message.double())):
        with pytest.raises(DtypeError):
            native_parts.apply_frames(*given, True)
    with pytest.raises(DtypeError):
        native_parts.apply_frames(z.half(), x.half(), message.half(), True)
    edges = some_edges(random_state(0), 4)
    with pytest.raises(DtypeError):
        native_parts.edge_moments(x.mT.double(), x.mT, edges, 1.0, second=True)


# --- Blocks that cannot be factorised at once ----------------------------------------------------


@pytest.fixture
def _said_already(monkeypatch):
    """Silence the once-per-process warning, which pytest turns into an error."""
    monkeypatch.setattr(cholesky, "_already_warned", True)
    monkeypatch.setattr(cholesky, "_already_warned_of_rescue", True)


def indefinite_inputs(draw, B, m, attempts):
    """Return inputs whose node ``k`` has blocks that need jitter number ``attempts[k]``.

    The smallest eigenvalue is minus half of that jitter, five times the jitter before it.
    """
    inputs = feedback_inputs(draw, len(attempts), B, m, "full")
    rows, columns = lower(m)
    axes = torch.linalg.qr(draw.normal(len(attempts), B, m, m)).Q
    eigenvalues = 1 + draw.normal(len(attempts), B, m).abs()
    for node, attempt in enumerate(attempts):
        # Of eight blocks only some: each lane has its own number.
        if attempt > 0:
            eigenvalues[node, : max(1, B // 2), 0] = -0.5 * 10.0 ** (attempt - 3)
    matrix = axes * eigenvalues.unsqueeze(-2) @ axes.mT
    inputs["second"] = matrix[..., rows, columns].mT.contiguous()
    return inputs


@pytest.mark.usefixtures("_said_already")
@pytest.mark.parametrize(("B", "m"), [(1, 2), (3, 4), (4, 3), (8, 4), (8, 8), (16, 5)])
@pytest.mark.parametrize("statistic", ["full", "diagonal"])
def test_retries_are_those_of_torch(random_state, B, m, statistic):
    """Each block is tried alone, with the jitters of Eq. (51); its gradient is of that factor."""
    attempts = [0, 1, 2, 0, 3, 4, 1]
    inputs = indefinite_inputs(random_state(m), B, m, attempts)
    options = statistic, False, 1e-9, SCHEDULE
    wanted = outcome(feedback_in_torch, inputs, *options)
    if statistic == "full":
        assert wanted["attempt"][:, 0].tolist() == attempts
        assert wanted["attempt"][:, -1].any() == (B == 1)
    assert_equal_to(wanted, outcome(native_feedback, inputs, *options), 1e-9)
    if B != 8:
        return
    rounded = {name: value.float() for name, value in inputs.items()}
    single = outcome(native_feedback, rounded, *options, dtype=torch.float32)
    assert torch.equal(single["attempt"], wanted["attempt"])
    assert_equal_to({"target": wanted["target"]}, {"target": single["target"]}, 1e-3)


def test_a_retry_warns_once_as_in_torch(random_state, monkeypatch):
    inputs = indefinite_inputs(random_state(0), 4, 3, [0, 2, 0, 1])
    messages = []
    for run in (native_feedback, feedback_in_torch):
        monkeypatch.setattr(cholesky, "_already_warned", False)
        with pytest.warns(NumericalWarning, match="4 of 16") as caught:
            run(*inputs.values(), "full", False, 1e-9)
        messages.append(str(caught[0].message))
        run(*inputs.values(), "full", False, 1e-9)  # a second warning would be an error
    assert messages[0] == messages[1]


def large_inputs(draw, B, m, statistic):
    """Return inputs with blocks for every relative jitter, and some that keep their coordinates.

    On the diagonal lie 1e6 and, in the blocks of node ``k``, a negative number that jitter ``k``
    mends; node 4 has nothing but negative numbers, and of eight blocks only some are bad.
    """
    inputs = indefinite_inputs(draw, B, m, [0] * 6)
    rows, columns = lower(m)
    second = inputs["second"]
    bad = torch.arange(B) < max(1, B // 2)
    for node, negative in enumerate((-0.2, -40, -4e3, -3e5)):
        diagonal = torch.full((m,), 1e6).double()
        diagonal[0] = negative
        second[node, rows == columns] = torch.where(
            bad, diagonal[:, None], second[node, rows == columns]
        )
    second[4] = torch.where(bad, -1e6 * (rows == columns)[:, None].double(), second[4])
    return inputs


@pytest.mark.usefixtures("_said_already")
@pytest.mark.parametrize(("B", "m"), [(1, 2), (3, 4), (4, 3), (8, 4), (8, 8), (16, 5), (24, 8)])
@pytest.mark.parametrize("statistic", ["full", "diagonal"])
def test_blocks_beyond_the_schedule_are_those_of_torch(random_state, B, m, statistic):
    """Relative jitters and kept coordinates: attempts, targets, gradients and counts."""
    schedule = JitterSchedule(1e-3, 10.0, 2)
    inputs = large_inputs(random_state(m), B, m, statistic)
    options = statistic, False, 1e-9, schedule
    counts = []
    for run in (feedback_in_torch, native_feedback):
        with counting_blocks() as counted:
            counts.append((outcome(run, inputs, *options), counted))
    (wanted, in_torch), (got, in_native) = counts
    assert wanted["attempt"][:, 0].tolist() == [3, 4, 5, 6, 7, 0]
    assert_equal_to(wanted, got, 1e-9)
    bad = max(1, B // 2)
    assert (in_torch.rescued, in_torch.kept) == (4 * bad, bad)
    assert (in_native.rescued, in_native.kept) == (4 * bad, bad)
    assert torch.equal(got["target"][4, :, :bad], inputs["z"][4, :, :bad])
    single = outcome(native_feedback, inputs, *options, dtype=torch.float32)
    assert torch.equal(single["attempt"], wanted["attempt"])
    assert_equal_to({"target": wanted["target"]}, {"target": single["target"]}, 1e-4)
    assert all(value.isfinite().all() for value in single.values())


@pytest.mark.usefixtures("_said_already")
@pytest.mark.parametrize(("B", "m"), [(3, 4), (4, 3), (8, 4), (8, 8)])
def test_kept_blocks_beside_frames_are_those_of_torch(random_state, B, m):
    """Frames pull the moment back; what goes to z is its share of the target and the frames'."""
    schedule = JitterSchedule(1e-3, 10.0, 2)
    inputs = large_inputs(random_state(m), B, m, "full")
    wanted = outcome(feedback_in_torch, inputs, "full", True, 1e-9, schedule)
    assert is_kept(wanted["attempt"], schedule).any()
    assert is_rescued(wanted["attempt"], schedule).any()
    assert_equal_to(wanted, outcome(native_feedback, inputs, "full", True, 1e-9, schedule), 1e-8)


@pytest.mark.parametrize(("B", "m"), [(3, 4), (8, 8)])
def test_a_rescue_warns_once_as_in_torch(random_state, monkeypatch, B, m):
    inputs = large_inputs(random_state(0), B, m, "full")
    messages = []
    for run in (native_feedback, feedback_in_torch):
        monkeypatch.setattr(cholesky, "_already_warned_of_rescue", False)
        with pytest.warns(NumericalWarning, match=f"{max(1, B // 2)} kept") as caught:
            run(*inputs.values(), "full", False, 1e-9)
        messages.append([str(warning.message) for warning in caught])
        run(*inputs.values(), "full", False, 1e-9)  # a second warning would be an error
    assert messages[0] == messages[1]
    assert len(messages[0]) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("B", "m"), [(1, 1), (3, 4), (4, 3), (8, 4), (8, 8)])
@pytest.mark.parametrize("statistic", ["full", "diagonal", "mean"])
def test_blocks_that_are_not_finite_are_an_error(random_state, bad, B, m, statistic):
    """Wherever the number is that is none, also where the others are fine."""
    for dtype, entry in itertools.product((torch.float32, torch.float64), (0, -1)):
        inputs = feedback_inputs(random_state(0), 5, B, m, statistic)
        spoilt = inputs["first"] if statistic == "mean" else inputs["second"]
        spoilt[3, entry, B - 1] = bad
        messages = []
        for run in (native_feedback, feedback_in_torch):
            with pytest.raises(NonFiniteError) as caught:
                run(*(value.to(dtype) for value in inputs.values()), statistic, False, 0.3)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_a_diagonal_statistic_does_not_look_beside_the_diagonal(random_state):
    inputs = feedback_inputs(random_state(0), 5, 8, 4, "diagonal")
    plain = native_feedback(*inputs.values(), "diagonal", False, 0.3)
    inputs["second"][3, 1, 2] = float("nan")  # row 1, column 0
    spoilt = native_feedback(*inputs.values(), "diagonal", False, 0.3)
    assert_equal_to(plain, spoilt, 0.0)


# --- The plan of the edges -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5, 16, 17, 33, 300])
def test_plan_has_every_edge_once(random_state, n):
    draw = random_state(n)
    edge_index = torch.randint(0, n, (2, 7 * n), generator=draw.generator)
    edges = Neighbourhoods.from_edge_index(edge_index, n)
    plan = native_parts.edge_plan(edges)
    assert native_parts.edge_plan(edges) is plan
    assert torch.equal(plan.source.long(), edges.source)
    assert torch.equal(plan.target.long(), edges.target)
    degrees = torch.bincount(edges.target, minlength=n)
    assert torch.equal(plan.pointer.diff(), degrees)
    assert plan.pointer[0] == 0
    assert torch.equal(plan.by_source.long().sort().values, torch.arange(len(edges.source)))


SPAN = 32_768
"""Edges of a span, as in ``native/tasks.h``."""


def test_edges_of_a_span_are_sorted_by_source(random_state):
    """Spans are whole stretches of 64 targets, as many as their edges allow."""
    n = 700
    edge_index = torch.randint(0, n, (2, 150 * n), generator=random_state(0).generator)
    plan = native_parts.edge_plan(Neighbourhoods.from_edge_index(edge_index, n))
    ends = [int(plan.pointer[min(k, n)]) for k in range(0, n + 64, 64)]
    begin, spans = 0, []
    for end, following in itertools.pairwise([*ends, ends[-1]]):
        if end > begin and (following - begin > SPAN or end == ends[-1]):
            spans.append((begin, end))
            begin = end
    assert len(spans) > 2
    for begin, end in spans:
        edges = plan.by_source[begin:end].long()
        assert torch.equal(edges.sort().values, torch.arange(begin, end))
        key = plan.source[edges].long() * (n + 1) + plan.target[edges]
        assert (key.diff() > 0).all()


def test_plan_refuses_what_is_not_sorted_or_out_of_range():
    for source, target in (([0, 1, 1], [0, 1, 0]), ([0, 3], [0, 1]), ([0, 1], [0, 3]), ([-1], [0])):
        ends = torch.tensor(source), torch.tensor(target)
        with pytest.raises(DataError, match="sorted by target"):
            torch.ops.geof.edge_plan(*ends, 3)
        # Even where somebody claims to have looked.
        with pytest.raises(DataError, match="sorted by target"):
            native_parts.edge_plan(Neighbourhoods(*ends, 3, checked=True))
    for count in (-1, 2**31):
        with pytest.raises(DataError, match="fewer than"):
            torch.ops.geof.edge_plan(torch.tensor([0]), torch.tensor([0]), count)


# --- Registration --------------------------------------------------------------------------------


def operators() -> dict[str, torch._ops.OpOverload]:
    """Return every operator the three modules define."""
    found = {}
    for module in (native_arguments, native_parts, native):
        for value in vars(module).values():
            if isinstance(value, torch._library.custom_ops.CustomOpDef):
                found[value._qualname] = value._opoverload
    return found


def operator_cases(draw) -> dict[str, list[tuple]]:
    """Return arguments for every operator; gradients are asked for where it has a backward."""
    n, B, m = 6, 4, 3
    edges = some_edges(draw, n, static=True)
    plan = list(native_parts.edge_plan(edges))
    z, x, message = frame_inputs(draw, n, B, m).values()
    h, y, grad_h, grad_y = (draw.normal(n, m, B) for _ in range(4))
    weight, first, second = native_moments(h, y, edges, 20.0, True).values()
    nothing = z.new_empty(0)
    full, mean, none = (
        StepOptions(code, framed, 4, 20.0, 0.3, 1e-3, 10.0, 0.5, 0.1, 2.0, -5.0, 5.0).pack()
        for code, framed in (
            (StatisticCode.FULL, True),
            (StatisticCode.MEAN, False),
            (StatisticCode.NONE, True),
        )
    )
    p = 2 * 2 * 2 + m
    maps = [draw.normal(n, 5), draw.normal(5, 2 * m), draw.normal(p, 5), draw.normal(p)]
    bias, table = draw.normal(len(edges.source)), draw.normal(5, m, B)
    row = torch.arange(len(edges.source), dtype=torch.int32) % 6 - 1
    carried = [bias, row, table]
    steps = [
        ((z, x, message, plan, edges.active, chosen, terms), options)
        for chosen, terms, options in (
            (maps, [], full),
            (maps, carried, mean),
            ([], [bias], none),
        )
    ]
    trained = lambda given: tree_map(  # noqa: E731
        lambda v: v.clone().requires_grad_(v.is_floating_point()), given
    )
    return {
        "geof::edge_plan": [(edges.source, edges.target, n)],
        "geof::apply_frames": [(*trained((z, x, message)), f) for f in (True, False)],
        "geof::apply_frames_backward": [(grad_h, grad_y, z, x, message, True)],
        "geof::environment": [trained((z, x))],
        "geof::environment_backward": [(grad_h.mT.contiguous(), z, x)],
        "geof::native_edge_moments": [
            (*trained((h, y)), plan, edges.active, [], 20.0, True),
            (*trained((h, y)), plan, edges.active, trained(carried), 20.0, True),
            (*trained((h, y)), plan, None, trained([bias]), 20.0, False),
        ],
        "geof::native_edge_moments_backward": [
            (weight, first, second, h, y, weight, plan, [], 20.0),
            (None, first, None, h, y, weight, plan, carried, 20.0),
        ],
        "geof::feedback_target": [
            (*trained((z, message, first, second)), *full),
            (*trained((z, message, first, nothing)), *mean),
            (*trained((z, message, first, nothing)), *none),
        ],
        "geof::feedback_target_backward": [
            (message, z, z, message, first, second, *full),
            (message, z, z, message, first, nothing, *mean),
        ],
        "geof::gate": [trained((first, second[:, :m], first))],
        "geof::gate_backward": [(first, first, first, first)],
        "geof::native_step": [
            (*trained(given[:3]), *given[3:5], *map(trained, given[5:]), *options)
            for given, options in steps
        ],
        "geof::native_step_backward": [
            (x, z, *given[:4], given[5], list(native._step(*given, *options)), given[6], *options)
            for given, options in steps
        ],
    }


NAMES = [
    *["gate", "gate_backward"],
    *["edge_plan", "apply_frames", "environment", "native_edge_moments", "feedback_target"],
    "native_step",
    *["apply_frames_backward", "environment_backward", "native_edge_moments_backward"],
    *["feedback_target_backward", "native_step_backward"],
]


def test_every_operator_is_looked_at():
    assert set(operators()) == {f"geof::{name}" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_operators_are_registered_soundly(random_state, name):
    operator = operators()[f"geof::{name}"]
    first, *others = operator_cases(random_state(0))[f"geof::{name}"]
    torch.library.opcheck(operator, first)
    for given in others:  # tracing is the slow part
        quick = "test_schema", "test_autograd_registration", "test_faketensor"
        torch.library.opcheck(operator, given, test_utils=quick)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "edge_plan"])
def test_operators_tell_the_layout_they_make(random_state, name):
    """What a compiler is told of strides is true for inputs that are views."""
    operator = operators()[f"geof::{name}"]
    given = operator_cases(random_state(0))[f"geof::{name}"][0]
    views = tree_map(
        lambda value: (
            strew(value.detach())
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 2
            else value
        ),
        given,
    )
    torch.library.opcheck(operator, views, test_utils=("test_schema", "test_faketensor"))


# --- Arguments that do not fit: addresses are all a kernel gets ----------------------------------


def with_one_changed(given: tuple, change) -> list[tuple]:
    """Return the arguments once for every tensor in them, with that one changed."""
    leaves, structure = tree_flatten(given)
    tensors = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.numel()]
    if change in (WRONG["long"], WRONG["empty"]):  # which a table may be
        tensors = [k for k in tensors if leaves[k].shape != (5, 3, 4)]
    return [
        tree_unflatten([change(v) if k == at else v for k, v in enumerate(leaves)], structure)
        for at in tensors
    ]


def other_dtype(value: Tensor) -> Tensor:
    others = {torch.float64: torch.float32, torch.int64: torch.int32, torch.int32: torch.int64}
    return value.detach().to(others.get(value.dtype, torch.uint8))


WRONG = {
    "dtype": other_dtype,
    "short": lambda value: value.detach()[:-1],
    "long": lambda value: torch.cat([value.detach(), value.detach()[:1]]),
    "flat": lambda value: value.detach().reshape(1, -1),
    "deep": lambda value: value.detach().unsqueeze(0),
    "empty": lambda value: value.detach()[:0],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", NAMES)
def test_operators_refuse_a_tensor_that_does_not_fit(random_state, name, wrong):
    operator = operators()[f"geof::{name}"]
    tried = 0
    for given in operator_cases(random_state(0))[f"geof::{name}"]:
        for changed in with_one_changed(given, WRONG[wrong]):
            with pytest.raises(GeofError, match="Expected "):
                operator(*changed)
            tried += 1
    assert tried > 1


@pytest.mark.parametrize("name", NAMES)
def test_operators_never_read_from_another_device(random_state, name):
    """They refuse, and so does the stand-in that torch takes where a tensor has no memory."""
    operator = operators()[f"geof::{name}"]
    for given in operator_cases(random_state(0))[f"geof::{name}"]:
        for changed in with_one_changed(given, lambda value: value.detach().to("meta")):
            with pytest.raises(DeviceError, match="meta"):
                operator(*changed)


@pytest.mark.parametrize("name", NAMES)
def test_operators_take_any_strides(random_state, name):
    operator = operators()[f"geof::{name}"]
    given = operator_cases(random_state(0))[f"geof::{name}"][-1]
    wanted = tree_flatten(operator(*given))[0]
    for changed in with_one_changed(given, lambda v: v.detach().repeat_interleave(2, 0)[::2]):
        for got, want in zip(tree_flatten(operator(*changed))[0], wanted, strict=True):
            assert torch.equal(got, want.detach())


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("native_")])
@pytest.mark.parametrize("wrong", [-7, 6, 10**6, -(2**31), 2**31 - 1])
def test_operators_refuse_an_index_that_points_outside(random_state, name, wrong):
    """A plan and rows of a table, made by hand: any entry that the kernels go by."""
    operator = operators()[f"geof::{name}"]
    given = operator_cases(random_state(0))[f"geof::{name}"][1]  # edges that carry something
    leaves, structure = tree_flatten(given)
    indices = [k for k, v in enumerate(leaves) if isinstance(v, Tensor) and v.dtype == torch.int32]
    pointer = [k for k, v in enumerate(leaves) if isinstance(v, Tensor) and v.dtype == torch.int64]
    assert (len(pointer), len(indices)) == (1, 4)  # source, target, by_source, row
    source, target, by_source, row = indices
    used = [*pointer, source] + ([target, by_source] if name.endswith("backward") else [])
    used += [row] if wrong > 0 else []  # a negative row is none
    for at in used:
        if at == by_source and wrong == 6:
            continue  # there is such an edge: no memory is missed, and nobody promises numbers
        for place in (0, len(leaves[at]) // 2, -1):
            changed = leaves[at].clone()
            changed[place] = wrong
            attack = [changed if k == at else v for k, v in enumerate(leaves)]
            with pytest.raises(DataError, match="inside their arrays"):
                operator(*tree_unflatten(attack, structure))


@pytest.mark.parametrize("name", NAMES)
def test_operators_refuse_nothing_for_a_tensor(random_state, name):
    """Torch hands on None for any tensor; null would be read, and end the process."""
    operator = operators()[f"geof::{name}"]
    for given in operator_cases(random_state(0))[f"geof::{name}"]:
        for changed in with_one_changed(given, lambda value: None):
            try:
                operator(*changed)
            except (GeofError, AttributeError, RuntimeError, TypeError):
                continue
            leaves = zip(tree_flatten(given)[0], tree_flatten(changed)[0], strict=True)
            (left_out,) = [v for v, w in leaves if v is not w]
            assert name.startswith("native_")  # which edges are active, and two gradients
            assert left_out.dtype == torch.bool or "backward" in name


def test_lists_of_the_wrong_length_are_refused(random_state):
    cases = operator_cases(random_state(0))
    z, x, message, plan, active, maps, terms, *options = cases["geof::native_step"][1]
    lists = [(plan[:3], maps, terms), (plan, maps[:3], terms), (plan, maps, terms[:2])]
    lists += [([], maps, terms), (plan, maps[:1], terms), (plan, [*maps, maps[0]], terms)]
    for given in lists:
        with pytest.raises(ShapeError, match="Expected "):
            torch.ops.geof.native_step(z, x, message, given[0], active, *given[1:], *options)
    backward = list(cases["geof::native_step_backward"][0])
    backward[7] = backward[7][:-1]
    with pytest.raises(ShapeError, match="outputs of the step"):
        torch.ops.geof.native_step_backward(*backward)


def test_blocks_of_a_size_the_kernels_do_not_know_are_refused():
    for m in (0, 33):
        z, x = torch.zeros(2, m * (m + 1) // 2, 4), torch.zeros(2, 4, m)
        with pytest.raises(ShapeError, match="m from 1 to 32"):
            torch.ops.geof.environment(z, x)


def test_what_another_graph_left_in_a_cache_is_not_trusted():
    x, message, coords = torch.zeros(3, 4, 2), torch.zeros(3, 4, 2), torch.zeros(3, 4, 3)
    large = Neighbourhoods.from_edge_index(torch.tensor([[5, 6], [6, 5]]), 7)
    spec = StepSpec(1.0, "full", True, 0.3, SCHEDULE)
    native_parts.edge_plan(large)
    loops = torch.arange(3)
    mixed = Neighbourhoods(loops, loops, 3, cache=large.cache)
    with pytest.raises(ShapeError, match="'pointer'"):
        BACKENDS["native"].step(x, message, coords, mixed, spec)


def test_a_second_derivative_is_refused_not_invented(random_state):
    draw = random_state(0)
    edges = some_edges(draw, 6)
    h = draw.normal(6, 3, 4).requires_grad_()
    first = native_parts.edge_moments(h, h, edges, 5.0, second=False).first
    (gradient,) = torch.autograd.grad(first.square().sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(gradient.square().sum(), h)

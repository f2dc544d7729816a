"""One whole step of a backend: statistics and update together, traced and not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from geof.geometry import AdmissibleBox, JitterSchedule, num_coordinates, strictly_lower_vector
from geof.kernels import BACKENDS, Controller, Evolution, Neighbourhoods, StepSpec
from geof.testing import assert_same
from tests.kernels.outcomes import outcome

every_backend = pytest.mark.parametrize("backend", sorted(BACKENDS))
every_statistic = pytest.mark.parametrize("statistic", ["full", "diagonal", "mean", None], ids=str)
corrected = pytest.mark.parametrize("controller", [True, False], ids=["corrected", "uncorrected"])
N, B, M, RANK, HIDDEN = 9, 3, 4, 2, 5
BOX = AdmissibleBox(0.4, (-0.5, 0.7))


@pytest.fixture
def edges(random_state):
    given = torch.randint(0, N, (2, 30), generator=random_state(1).generator)
    return Neighbourhoods.from_edge_index(given, N)


@pytest.fixture
def tensors(random_state):
    draw = random_state(2)
    p = (2 * RANK + 1) * M
    return {
        "xi": draw.normal(N, B, M),
        "message": draw.normal(N, B, M),
        "coords": 0.5 * draw.uniform(N, B, num_coordinates(M)),
        "shared": draw.normal(N, HIDDEN),
        "hidden": draw.normal(HIDDEN, 2 * M),
        "output": draw.normal(p, HIDDEN),
        "bias": draw.normal(p),
    }


def specification(statistic, framed=True) -> StepSpec:
    return StepSpec(20.0, statistic, framed, 0.3, JitterSchedule(1e-9))


def whole_step(backend, edges, spec, *, controller, trace):
    def run(xi, message, coords, **maps):
        evolution = Evolution(0.6, 0.3, BOX, Controller(**maps) if controller else None)
        step = BACKENDS[backend].step
        result = step(xi, message, coords, edges, spec, evolution, trace=trace)
        return {"aggregate": result.aggregate, "coordinates": result.coordinates}

    return run


def written_out(edges, spec, *, controller):
    """Return the step with Eqs. (11) and (12) as the paper writes them, block by block."""

    def run(xi, message, coords, shared, hidden, output, bias):
        statistics = BACKENDS["reference"].statistics(xi, message, coords, edges, spec)
        following = []
        for b in range(B):
            z = coords[:, b]
            mixed = z if statistics.target is None else 0.4 * z + 0.6 * statistics.target[:, b]
            if controller:
                q = torch.cat([xi[:, b], statistics.aggregate[:, b]], 1)
                parts = F.silu(q @ hidden.mT + shared) @ output.mT + bias
                left, right = parts[:, : 2 * M * RANK].view(N, 2, M, RANK).unbind(1)
                low_rank = strictly_lower_vector(left @ right.mT)
                mixed = mixed + 0.3 * torch.cat([low_rank, parts[:, 2 * M * RANK :]], 1)
            following.append(
                torch.cat([mixed[:, :-M].clamp(-0.4, 0.4), mixed[:, -M:].clamp(-0.5, 0.7)], 1)
            )
        return {"aggregate": statistics.aggregate, "coordinates": torch.stack(following, 1)}

    return run


@every_backend
@every_statistic
@corrected
def test_a_step_is_the_paper_s(backend, statistic, controller, edges, tensors):
    for framed in (True, False):
        spec = specification(statistic, framed)
        wanted = outcome(written_out(edges, spec, controller=controller), tensors)
        for trace in (False, True):
            run = whole_step(backend, edges, spec, controller=controller, trace=trace)
            assert_same(outcome(run, tensors), wanted, 1e-10)


@every_backend
@every_statistic
@corrected
def test_a_traced_step_is_the_step(backend, statistic, controller, edges, tensors):
    """The same bits where nothing is fused, gradients included; elsewhere to rounding."""
    spec = specification(statistic)
    fast, traced = (
        outcome(whole_step(backend, edges, spec, controller=controller, trace=trace), tensors)
        for trace in (False, True)
    )
    assert_same(traced, fast, 1e-12 if BACKENDS[backend].fused else 0)


@every_backend
@every_statistic
def test_a_trace_tells_what_led_to_the_result(backend, statistic, edges, tensors):
    spec = specification(statistic)
    xi, message, coords, *maps = tensors.values()
    evolution = Evolution(0.6, 0.3, BOX, Controller(*maps))
    backend = BACKENDS[backend]
    result = backend.step(xi, message, coords, edges, spec, evolution, trace=True)
    wanted = backend.statistics(xi, message, coords, edges, spec)
    for name, value in wanted._asdict().items():
        found = getattr(result.statistics, name)
        assert (found is None) == (value is None), name
        assert value is None or torch.equal(found, value), name
    assert torch.equal(result.aggregate, wanted.aggregate)
    assert result.correction.shape == coords.shape
    target = coords if statistic is None else wanted.target
    mixed = 0.4 * coords + 0.6 * target + 0.3 * result.correction
    torch.testing.assert_close(result.coordinates, BOX.project(mixed), rtol=1e-12, atol=1e-12)
    silent = backend.step(xi, message, coords, edges, spec, evolution)
    assert silent.statistics is None
    assert silent.correction is None
    uncorrected = evolution._replace(controller=None)
    plain = backend.step(xi, message, coords, edges, spec, uncorrected, trace=True)
    assert plain.correction is None


@every_backend
@pytest.mark.parametrize("trace", [True, False])
def test_without_an_evolution_the_coordinates_stay(backend, trace, edges, tensors):
    """Also those outside the box: nothing projects them."""
    xi, message, coords, *_ = tensors.values()
    result = BACKENDS[backend].step(
        xi, message, 3 * coords, edges, specification(None), trace=trace
    )
    assert torch.equal(result.coordinates, 3 * coords)
    wanted = BACKENDS["reference"].statistics(xi, message, 3 * coords, edges, specification(None))
    torch.testing.assert_close(result.aggregate, wanted.aggregate, rtol=1e-10, atol=1e-10)
    assert (result.statistics is not None) == trace

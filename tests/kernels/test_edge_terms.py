"""Weights and attributes of edges in every backend: values and gradients of the per-edge form."""

from __future__ import annotations

from functools import lru_cache, partial

import pytest
import torch
from torch import Tensor

from geof.geometry import AdmissibleBox, JitterSchedule, num_coordinates
from geof.kernels import BACKENDS, EdgeTerms, Evolution, Neighbourhoods, StepSpec
from geof.testing import assert_no_less_accurate, assert_same
from tests.kernels.outcomes import outcome

FAST = sorted(BACKENDS.keys() - {"reference"})
STATISTICS = ["full", "diagonal", "mean", None]
SHAPES = [(3, 1), (8, 4), (8, 8), (4, 8), (2, 16), (8, 3)]  # (B, m)
every_fast = pytest.mark.parametrize("backend", FAST)
every_statistic = pytest.mark.parametrize("statistic", STATISTICS, ids=str)
every_shape = pytest.mark.parametrize(("B", "m"), SHAPES)


def some_edges(draw, n: int, *, static: bool = False) -> Neighbourhoods:
    """Return neighbourhoods with repeats, a hub and an isolated node."""
    given = torch.randint(0, max(1, n - 1), (2, 4 * n), generator=draw.generator)
    spokes = torch.stack([torch.arange(n - 1), torch.zeros(n - 1, dtype=torch.long)])
    given = torch.cat([given, spokes], 1)
    return Neighbourhoods.from_edge_index(given, n, static_shapes=static)


def some_inputs(draw, edges: Neighbourhoods, B: int, m: int, rows: int) -> dict[str, Tensor]:
    n = edges.num_nodes
    coords = draw.uniform(n, B, num_coordinates(m))
    coords[..., :-m] /= m**0.5
    bias = draw.normal(len(edges.source))
    bias[edges.source == edges.target] = 0
    return {
        "xi": draw.normal(n, B, m),
        "message": draw.normal(n, B, m),
        "coords": coords,
        "bias": bias,
        "table": draw.normal(rows, B, m),
    }


def some_rows(draw, edges: Neighbourhoods, rows: int) -> Tensor:
    row = torch.randint(-1, rows, edges.source.shape, generator=draw.generator, dtype=torch.int32)
    return torch.where(edges.source == edges.target, -1, row)


def removing(edges: Neighbourhoods, bias: Tensor, every: int = 5) -> Tensor:
    """Return the biases with every so manieth edge taken away."""
    gone = (torch.arange(len(bias)) % every == 0) & (edges.source != edges.target)
    return torch.where(gone, -torch.inf, bias)


def specification(B: int, m: int, statistic, *, framed: bool = True) -> StepSpec:
    return StepSpec(3.0 * B * m, statistic, framed, 0.3, JitterSchedule(1e-9))


def by_parts(backend, edges, row, spec, xi, message, coords, bias, table=None) -> dict[str, Tensor]:
    terms = EdgeTerms(removing(edges, bias), None if table is None else row, table)
    result = BACKENDS[backend].statistics(xi, message, coords, edges.carrying(terms), spec)
    values = result._asdict()
    if values["moment"] is not None:  # shown, not differentiated, by the native backend
        values["moment"] = values["moment"].detach()
    return values


def at_once(backend, edges, row, spec, xi, message, coords, bias, table=None) -> dict[str, Tensor]:
    terms = EdgeTerms(removing(edges, bias), None if table is None else row, table)
    evolution = Evolution(0.5, 0.3, AdmissibleBox(0.4, (-0.5, 0.7)), None)
    step = BACKENDS[backend].step
    result = step(xi, message, coords, edges.carrying(terms), spec, evolution)
    return {"aggregate": result.aggregate, "coordinates": result.coordinates}


def on_three_graphs(backend, random_state, run, B, m, statistic) -> list[dict[str, Tensor]]:
    results = []
    for seed, (n, static, framed) in enumerate([(9, False, True), (23, True, True), (9, False, 0)]):
        draw = random_state(seed)
        edges = some_edges(draw, n, static=static)
        inputs, row = some_inputs(draw, edges, B, m, 7), some_rows(draw, edges, 7)
        spec = specification(B, m, statistic, framed=bool(framed))
        results.append(outcome(partial(run, backend, edges, row, spec), inputs))
    return results


# All backends are compared with the same reference, the slowest: it is computed for them once.
reference_on_three_graphs = lru_cache(1)(partial(on_three_graphs, "reference"))


@every_fast
@every_shape
@every_statistic
@pytest.mark.parametrize("run", [by_parts, at_once])
def test_values_and_gradients_equal_the_reference(backend, B, m, statistic, run, random_state):
    case = random_state, run, B, m, statistic
    for ours, reference in zip(
        on_three_graphs(backend, *case), reference_on_three_graphs(*case), strict=True
    ):
        assert_same(ours, reference, tolerance=1e-10)


@every_fast
@pytest.mark.parametrize("run", [by_parts, at_once])
def test_a_bias_alone_equals_the_reference(backend, run, random_state):
    draw = random_state(5)
    edges = some_edges(draw, 14)
    inputs, spec = some_inputs(draw, edges, 8, 4, 1), specification(8, 4, "full")
    del inputs["table"]
    inputs["bias"] *= 200  # beyond what exp can hold in float32, and nearly so in float64
    inputs["bias"][edges.source == edges.target] = 0
    ours, reference = (
        outcome(partial(run, name, edges, None, spec), inputs) for name in (backend, "reference")
    )
    assert_same(ours, reference, tolerance=1e-10)
    assert all(
        value.isfinite().all()
        for value in outcome(
            partial(run, backend, edges, None, spec), inputs, dtype=torch.float32
        ).values()
    )


def on_twelve_graphs(backend, dtype, random_state, run, B, m) -> list[dict[str, Tensor]]:
    results = []
    for seed in range(12):
        draw = random_state(seed)
        edges = some_edges(draw, 30)
        inputs, row = some_inputs(draw, edges, B, m, 5), some_rows(draw, edges, 5)
        inputs = {k: v.float() for k, v in inputs.items()}
        spec = specification(B, m, "full")
        values = outcome(partial(run, backend, edges, row, spec), inputs, dtype=dtype)
        results.append({k: v for k, v in values.items() if k != "attempt"})
    return results


reference_on_twelve_graphs = lru_cache(2)(partial(on_twelve_graphs, "reference"))


@every_fast
@pytest.mark.parametrize("run", [by_parts, at_once])
@pytest.mark.parametrize(("B", "m"), [(8, 4), (8, 8), (4, 3)])
def test_float32_is_as_accurate_as_the_reference(backend, run, B, m, random_state):
    case = random_state, run, B, m
    assert_no_less_accurate(
        on_twelve_graphs(backend, torch.float32, *case),
        reference_on_twelve_graphs(torch.float32, *case),
        reference_on_twelve_graphs(torch.float64, *case),
        factor=3.0,
    )


@every_fast
def test_a_row_for_every_edge(backend, random_state):
    """Continuous numbers: the table is as long as the edge list, in an order of its own."""
    draw = random_state(3)
    edges = some_edges(draw, 40)
    count = len(edges.source)
    row = torch.randperm(count, generator=draw.generator).int()
    row = torch.where(edges.source == edges.target, -1, row)
    inputs, spec = some_inputs(draw, edges, 8, 4, count), specification(8, 4, "full")
    ours, reference = (
        outcome(partial(at_once, name, edges, row, spec), inputs) for name in (backend, "reference")
    )
    assert_same(ours, reference, tolerance=1e-10)


@every_fast
def test_many_edges_at_a_node_and_any_number_of_threads(backend, random_state):
    """Hubs beyond a tile and a span; the same bits for one thread and two."""
    draw, n = random_state(4), 300
    spokes = torch.stack([torch.arange(1, n), torch.zeros(n - 1, dtype=torch.long)])
    others = torch.randint(0, n, (2, 3000), generator=draw.generator)
    edges = Neighbourhoods.from_edge_index(torch.cat([spokes, spokes.flip(0), others], 1), n)
    inputs, row = some_inputs(draw, edges, 8, 4, 6), some_rows(draw, edges, 6)
    spec = specification(8, 4, "full")
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            run = partial(at_once, backend, edges, row, spec)
            results.append(outcome(run, inputs, dtype=torch.float32))
    finally:
        torch.set_num_threads(1)
    one, two = results
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert_same(
        outcome(partial(at_once, backend, edges, row, spec), inputs),
        outcome(partial(at_once, "reference", edges, row, spec), inputs),
        tolerance=1e-10,
    )


def on_several_spans(backend, random_state, run) -> dict[str, Tensor]:
    draw, n = random_state(7), 300
    edges = Neighbourhoods.from_edge_index(torch.ones(n, n).nonzero().t(), n)
    assert len(edges.source) > 2 * 32768
    inputs, row = some_inputs(draw, edges, 2, 3, 4), some_rows(draw, edges, 4)
    return outcome(partial(run, backend, edges, row, specification(2, 3, "full")), inputs)


reference_on_several_spans = lru_cache(1)(partial(on_several_spans, "reference"))


@every_fast
@pytest.mark.parametrize("run", [by_parts, at_once])
def test_edges_of_several_spans(backend, run, random_state):
    """More edges than the native backward pass takes at once, everyone hearing everyone."""
    ours = on_several_spans(backend, random_state, run)
    assert_same(ours, reference_on_several_spans(random_state, run), tolerance=1e-10)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@every_statistic
@pytest.mark.parametrize("run", [by_parts, at_once])
def test_a_bias_of_zero_changes_no_bit(backend, statistic, run, random_state):
    draw = random_state(6)
    edges = some_edges(draw, 30)
    inputs, spec = some_inputs(draw, edges, 8, 4, 1), specification(8, 4, statistic)
    given = {k: inputs[k].float() for k in ("xi", "message", "coords")}

    def biased(edges, xi, message, coords):
        if run is at_once:
            evolution = Evolution(0.5, 0.3, AdmissibleBox(0.4, (-0.5, 0.7)), None)
            result = BACKENDS[backend].step(xi, message, coords, edges, spec, evolution)
            return {"aggregate": result.aggregate, "coordinates": result.coordinates}
        result = BACKENDS[backend].statistics(xi, message, coords, edges, spec)
        return {name: getattr(result, name) for name in ("weight", "aggregate", "target")}

    zero = edges.carrying(EdgeTerms(torch.zeros(len(edges.source))))
    one, two = (outcome(partial(biased, e), given, dtype=torch.float32) for e in (edges, zero))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_factored_operator_is_registered_soundly(random_state):
    draw = random_state(1)
    edges = some_edges(draw, 6, static=True)
    h, y = draw.normal(6, 2, 3).requires_grad_(), draw.normal(6, 2, 3).requires_grad_()
    bias, table = draw.normal(len(edges.source)), draw.normal(4, 2, 3)
    torch.library.opcheck(
        torch.ops.geof.edge_moments.default,
        (
            *(h, y, edges.source, edges.target, edges.active, 2.0, True),
            *(bias.requires_grad_(), some_rows(draw, edges, 4), table.requires_grad_()),
        ),
    )


@pytest.mark.parametrize("second", [True, False])
def test_gradients_of_the_factored_operator(second, random_state):
    from geof.kernels import factored

    draw = random_state(2)
    edges = some_edges(draw, 6, static=True)
    row = some_rows(draw, edges, 3)

    def run(h, y, bias, table):
        carrying = edges.carrying(EdgeTerms(bias, row, table))
        moments = factored.edge_moments(h, y, carrying, 2.0, second=second)
        return moments.weight, moments.first, moments.second

    shapes = (6, 2, 3), (6, 2, 3), (len(edges.source),), (3, 2, 3)
    given = tuple(draw.normal(*shape).requires_grad_() for shape in shapes)
    assert torch.autograd.gradcheck(run, given)

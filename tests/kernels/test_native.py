"""The native backend as a whole: parity, threads, odd graphs, memory, choosing it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

import geof
from geof import GeoF, GeoFConv
from geof.errors import ConfigError, DtypeError, GeofError, NonFiniteError
from geof.geometry import (
    AdmissibleBox,
    JitterSchedule,
    cholesky,
    counting_blocks,
    is_kept,
    is_rescued,
    num_coordinates,
)
from geof.kernels import (
    BACKENDS,
    Controller,
    Evolution,
    Neighbourhoods,
    StepSpec,
    memory,
    native,
    native_parts,
    resolve_backend,
)
from geof.kernels.interface import evolve_coordinates
from geof.kernels.library import LARGEST_BLOCK, LEVELS, find_library
from geof.machine import memory_bytes
from geof.testing import assert_compiles, assert_same, values_and_gradients
from tests.graphs import random_sample
from tests.kernels.outcomes import assert_accurate, outcome

needs_native = pytest.mark.skipif(
    "native" not in BACKENDS, reason=f"native kernels: {find_library().reason}"
)
COUNTS = (1, 2, 3, 4, 5, 8, 16, 24)
# Every block size, and every block count with several of them; (B, m).
EVERY_SIZE = [(COUNTS[(m + m // 8) % len(COUNTS)], m) for m in range(1, 33)]
NONE = torch.empty(2, 0, dtype=torch.long)
GRAIN = 512
EACH_STATISTIC = pytest.mark.parametrize("statistic", ["full", "diagonal", "mean", None], ids=str)


# --- Inputs and comparisons ----------------------------------------------------------------------


def build_conv(backend, B, m, *, seed=0, rank=2, hidden=13, **options) -> GeoFConv:
    """Return a layer with random parameters, in double precision."""
    torch.manual_seed(seed)
    conv = GeoFConv(
        B * m,
        blocks=B,
        signature_channels=3,
        correction_rank=rank,
        controller_channels=hidden,
        backend=backend,
        **{"temperature": 3.0 * B * m, **options},
    ).double()
    for parameter in conv.parameters():
        parameter.data.copy_(torch.randn_like(parameter) / parameter.size(-1) ** 0.5)
    return conv


def build_geof(backend, B, m, *, seed=0, **options) -> GeoF:
    torch.manual_seed(seed)
    model = GeoF(5, B * m, signature_channels=3, blocks=B, backend=backend, **options)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.double()


def some_edges(draw, n, *, static=False) -> Neighbourhoods:
    """Return neighbourhoods with repeats, self-loops, a hub and, at the end, an isolated node."""
    edge_index = torch.randint(0, max(1, n - 1), (2, 3 * n), generator=draw.generator)
    spokes = torch.stack([torch.arange(n - 1), torch.zeros(n - 1, dtype=torch.long)])
    given = torch.cat([edge_index, spokes, spokes.flip(0)], 1)
    return Neighbourhoods.from_edge_index(given, n, static_shapes=static)


def hubs(draw, degrees, n) -> Neighbourhoods:
    """Return a sparse random graph whose first nodes hear ``degrees`` nodes, themselves included.

    The first hub also speaks to everyone.
    """
    parts = [torch.randint(len(degrees), n, (2, n), generator=draw.generator)]
    for hub, degree in enumerate(degrees):
        heard = torch.randperm(n - 1, generator=draw.generator)[: degree - 1]
        parts.append(torch.stack([heard + (heard >= hub), torch.full_like(heard, hub)]))
    everyone = torch.arange(len(degrees), n)
    parts.append(torch.stack([torch.zeros_like(everyone), everyone]))
    edges = Neighbourhoods.from_edge_index(torch.cat(parts, 1), n)
    assert torch.bincount(edges.target)[: len(degrees)].tolist() == list(degrees)
    return edges


def step_inputs(draw, n, B, m) -> dict[str, Tensor]:
    coords = draw.uniform(n, B, num_coordinates(m))
    coords[..., :-m] /= m**0.5
    return {"xi": draw.normal(n, B, m), "message": draw.normal(n, B, m), "coords": coords}


def controller_inputs(draw, n, m, *, rank=2, hidden=13) -> dict[str, Tensor]:
    return {
        "shared": draw.normal(n, hidden),
        "hidden": draw.normal(hidden, 2 * m) / m**0.5,
        "output": draw.normal((2 * rank + 1) * m, hidden) / hidden**0.5,
        "bias": draw.normal((2 * rank + 1) * m),
    }


def specification(B, m, statistic="full", *, framed=True, floor=0.3, schedule=None) -> StepSpec:
    return StepSpec(3.0 * B * m, statistic, framed, floor, schedule or JitterSchedule(1e-9))


def stepped(backend, edges, spec):
    """Return a function of a step's inputs to all there is to see of it."""

    def run(xi, message, coords):
        result = BACKENDS[backend].statistics(xi, message, coords, edges, spec)._asdict()
        # The native backend shows the moment but does not differentiate through it.
        return {k: v.detach() if k == "moment" and v is not None else v for k, v in result.items()}

    return run


UPDATE = 0.5, 0.3, 0.4, (-0.5, 0.7)


def evolved(backend, edges, spec, update=UPDATE):
    """Return a function of a step's inputs to aggregate and next coordinates, Eq. (12)."""
    mix, strength, bound, scales = update
    box = AdmissibleBox(bound, scales)

    def run(xi, message, coords, **maps):
        controller = Controller(**maps) if maps else None
        if BACKENDS[backend].fused is not None:
            evolution = Evolution(mix, strength, box, controller)
            result = BACKENDS[backend].step(xi, message, coords, edges, spec, evolution)
            return {"aggregate": result.aggregate, "coordinates": result.coordinates}
        result = BACKENDS[backend].statistics(xi, message, coords, edges, spec)
        correction = controller and correct(xi, result.aggregate, controller)
        coordinates = evolve_coordinates(
            *(coords, result.target, correction),
            target_mix=mix,
            correction_strength=strength,
            box=box,
        )
        return {"aggregate": result.aggregate, "coordinates": coordinates}

    return run


def correct(xi, aggregate, controller) -> Tensor:
    """Return the correction of Eq. (11)."""
    m = xi.size(-1)
    rank = (len(controller.bias) // m - 1) // 2
    hidden = torch.cat([xi, aggregate], -1) @ controller.hidden.mT + controller.shared[:, None]
    out = torch.nn.functional.silu(hidden) @ controller.output.mT + controller.bias
    left, right, scale = out.split([m * rank, m * rank, m], -1)
    product = left.unflatten(-1, (m, rank)) @ right.unflatten(-1, (m, rank)).mT
    rows, columns = torch.tril_indices(m, m, -1).tolist()
    return torch.cat([product[..., rows, columns], scale], -1)


def equal_bits(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# --- Parity in double precision, every block size ------------------------------------------------


@needs_native
@EACH_STATISTIC
def test_step_equals_the_reference_for_every_block_size(random_state, statistic):
    for (B, m), framed in zip(EVERY_SIZE, itertools.cycle((True, True, False)), strict=False):
        draw = random_state(m)
        edges = some_edges(draw, 5 + m % 2, static=m % 5 == 0)
        inputs = step_inputs(draw, edges.num_nodes, B, m)
        spec = specification(B, m, statistic, framed=framed)
        got, wanted = (
            outcome(stepped(name, edges, spec), inputs) for name in ("native", "reference")
        )
        assert_same(got, wanted, 1e-10)


@needs_native
@EACH_STATISTIC
def test_evolution_equals_the_reference_for_every_block_size(random_state, statistic):
    """With corrections of rank 1 and 4 and without, in turn; the box clips a good part."""
    for (B, m), framed in zip(EVERY_SIZE, itertools.cycle((True, True, False)), strict=False):
        draw = random_state(m)
        n, rank = 5 + m % 2, (1, 4, 0)[m % 3]
        edges = some_edges(draw, n, static=m % 5 == 0)
        inputs = step_inputs(draw, n, B, m)
        if rank:
            inputs |= controller_inputs(draw, n, m, rank=rank, hidden=(1, 7, 8, 13)[m % 4])
        elif statistic is None:
            continue  # nothing moves: see below
        spec = specification(B, m, statistic, framed=framed)
        got, wanted = (
            outcome(evolved(name, edges, spec), inputs) for name in ("native", "reference")
        )
        assert_same(got, wanted, 1e-10)


@needs_native
@EACH_STATISTIC
@pytest.mark.parametrize("only", ["aggregate", "coordinates"])
def test_evolution_of_which_one_result_is_used(random_state, statistic, only):
    draw = random_state(0)
    edges, spec = some_edges(draw, 6), specification(3, 4, statistic)
    inputs = step_inputs(draw, 6, 3, 4) | controller_inputs(draw, 6, 4)
    got, wanted = (
        outcome(evolved(name, edges, spec), inputs, only=only) for name in ("native", "reference")
    )
    assert_same(got, wanted, 1e-10)


@needs_native
@pytest.mark.parametrize("bound", [0.01, 0.5, 2.0])
def test_coordinates_that_nothing_moves_equal_the_reference(random_state, bound):
    """Without target and correction what is left is the box: inside, outside and on its border."""
    draw = random_state(0)
    edges, spec = some_edges(draw, 6), specification(8, 4, None)
    inputs = step_inputs(draw, 6, 8, 4)
    inputs["coords"][0, :4] = bound
    inputs["coords"][1, 4:] = -bound
    update = 0.5, 0.0, bound, (-bound, bound)
    got, wanted = (
        outcome(evolved(name, edges, spec, update), inputs) for name in ("native", "reference")
    )
    assert_same(got, wanted, 1e-12)


@needs_native
@pytest.mark.parametrize(
    "shape",
    [
        (8, 4, 129),  # two chunks of the controller's columns and one node
        (8, 3, 64),
        (16, 2, 65),
        (256, 2, 139),  # more chunks than shares of their sums
        (600, 1, 3),  # more blocks than columns in a chunk
        (5, 6, 210),
    ],
)
def test_evolution_in_many_chunks_equals_the_reference(random_state, shape):
    B, m, n = shape
    draw = random_state(0)
    edges = some_edges(draw, n)
    inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m, hidden=9)
    spec = specification(B, m)
    got, wanted = (outcome(evolved(name, edges, spec), inputs) for name in ("native", "reference"))
    assert_same(got, wanted, 1e-10)


@needs_native
def test_layers_equal_the_reference_for_every_block_size(random_state):
    """Two steps of a whole layer, all parameters random, settings in turn."""
    feedback = itertools.cycle(("full", "mean", "none", "diagonal", "full"))
    strength = itertools.cycle((0.1, 0.1, 0.0))
    for B, m in EVERY_SIZE:
        sample = random_sample(m, nodes=6, edges=14, channels=B * m)
        coords = step_inputs(random_state(m), 6, B, m)["coords"]
        options = {
            "feedback": next(feedback),
            "correction_strength": next(strength),
            "frame_transport": m % 4 > 0,
            "rank": (1, 4)[m % 2],
        }
        results = []
        for name in ("native", "reference"):
            conv = build_conv(name, B, m, **options)

            def run(x, u, coords, conv=conv, edge_index=sample[1], **parameters):
                for _ in range(2):
                    x, coords = torch.func.functional_call(
                        conv, parameters, (x, edge_index, coords, u)
                    )
                return {"x": x, "coordinates": coords, "h": conv.environment(x, coords)}

            inputs = {"x": sample[0], "u": sample[2], "coords": coords}
            inputs |= {k: v.detach() for k, v in conv.named_parameters()}
            results.append(outcome(run, inputs))
        assert_same(*results, 1e-10)


# --- Accuracy in single precision ----------------------------------------------------------------


@needs_native
@pytest.mark.parametrize(
    ("B", "m", "feedback"),
    [
        *[(B, m, "full") for B, m in ((8, 4), (8, 8), (24, 4), (8, 5), (4, 4), (3, 8))],
        *[(8, m, feedback) for m in (4, 8) for feedback in ("mean", "diagonal", "none")],
    ],
)
def test_float32_is_as_accurate_as_the_reference(B, m, feedback):
    results = [[], [], []]
    for seed in range(3):
        # All start from the same numbers, rounded to float32: that rounding is nobody's error.
        x, edge_index, u = random_sample(seed, nodes=32 + seed % 2, edges=120, dtype=torch.float32)
        for kind, name, dtype in zip(
            results,
            ("native", "reference", "reference"),
            (torch.float32, torch.float32, torch.float64),
            strict=True,
        ):
            options = {"temperature": 1.0 * B * m, "feedback": feedback}
            model = build_geof(name, B, m, seed=seed, **options).float().to(dtype)
            kind.append(values_and_gradients(model, x.to(dtype), edge_index, u.to(dtype)))
    assert_accurate(*results)


@needs_native
@pytest.mark.parametrize(
    ("B", "m", "rank"),
    [
        *[(8, 4, 4), (8, 8, 4), (16, 4, 4), (16, 8, 4)],  # sizes that the compiler knows
        *[(8, 8, 2), (24, 4, 4), (8, 6, 4), (12, 4, 2), (5, 8, 2)],
        *[(72, 8, 4), (80, 4, 2)],  # a node has more blocks than a chunk has columns
    ],
)
@pytest.mark.parametrize("statistic", ["full", None], ids=str)
def test_float32_evolution_is_as_accurate_as_the_reference(random_state, B, m, rank, statistic):
    """Several chunks, the last of them incomplete, with and without a target."""
    results = [[], [], []]
    for seed, n in enumerate((63, 64, 65, 130)):
        draw = random_state(seed)
        edges = some_edges(draw, n)
        inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m, rank=rank, hidden=11)
        inputs = {k: v.float() for k, v in inputs.items()}
        spec = specification(B, m, statistic)
        update = 0.5, 0.3, 50.0, (-9.0, 9.0)  # a clip that decides otherwise is no rounding error
        for kind, name, dtype in zip(
            results,
            ("native", "reference", "reference"),
            (torch.float32, torch.float32, torch.float64),
            strict=True,
        ):
            kind.append(outcome(evolved(name, edges, spec, update), inputs, dtype=dtype))
    assert_accurate(*results)


@needs_native
@pytest.mark.parametrize(("B", "m", "rank"), [(8, 8, 4), (16, 4, 4), (8, 4, 2), (5, 3, 2)])
@pytest.mark.parametrize("statistic", ["full", None], ids=str)
def test_infinities_of_two_signs_are_no_bound(random_state, B, m, rank, statistic):
    """A product fused with its sum is not rounded: inf - inf would come out as the bound."""
    draw, n = random_state(0), 9
    edges = some_edges(draw, n)
    inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m, rank=rank)
    inputs["output"].zero_()
    left, right = inputs["bias"].zero_()[: 2 * m * rank].view(2, m, rank)
    left[1, :2] = 1e30  # float32 ends at 3e38
    right[0, :2] = torch.tensor([1e30, -1e30])
    inputs = {k: v.float() for k, v in inputs.items()}
    coordinates = evolved("native", edges, specification(B, m, statistic))(**inputs)["coordinates"]
    assert coordinates[..., 0].isnan().all()
    assert coordinates[..., 1:].isfinite().all()


# --- The same bits, whoever computes them --------------------------------------------------------


@pytest.fixture
def _threads_restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def crowd(random_state, B, m, statistic, n=3600):
    """Return the whole step of a graph large enough for every parallel region, with two hubs."""
    draw = random_state(0)
    edges = hubs(draw, (3100, 1400), n)
    inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m, hidden=8)
    spec = specification(B, m, statistic)
    return inputs, stepped("native", edges, spec), evolved("native", edges, spec)


@needs_native
@pytest.mark.usefixtures("_threads_restored")
@pytest.mark.parametrize(
    ("B", "m", "dtype", "statistic"),
    [
        (8, 4, torch.float32, "full"),
        (8, 8, torch.float32, "mean"),
        (4, 4, torch.float64, "diagonal"),
        (3, 5, torch.float64, None),
    ],
)
def test_bits_do_not_depend_on_the_number_of_threads(random_state, B, m, dtype, statistic):
    inputs, step, evolve = crowd(random_state, B, m, statistic)
    parts = {k: inputs[k] for k in ("xi", "message", "coords")}
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        results.append([outcome(step, parts, dtype=dtype), outcome(evolve, inputs, dtype=dtype)])
    for result in results[1:]:
        assert all(map(equal_bits, result, results[0]))


@needs_native
@pytest.mark.usefixtures("_threads_restored")
@pytest.mark.parametrize("repeats", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_repeats_give_the_same_bits(random_state, repeats):
    """With more threads than there are cores, so that they take turns in ever new ways."""
    inputs, _, evolve = crowd(random_state, 8, 4, "full")
    first = outcome(evolve, inputs, dtype=torch.float32)
    torch.set_num_threads(max(4, 1 + (os.cpu_count() or 1)))
    for repeat in range(repeats):
        assert equal_bits(outcome(evolve, inputs, dtype=torch.float32), first), repeat


@needs_native
@pytest.mark.usefixtures("_threads_restored")
def test_two_threads_equal_the_reference(random_state):
    """The same bits for all numbers of threads could be the same wrong bits."""
    inputs, _, evolve = crowd(random_state, 4, 2, "full")
    draw = random_state(0)
    edges, spec = hubs(draw, (3100, 1400), 3600), specification(4, 2)
    wanted = outcome(evolved("torch", edges, spec), inputs)
    torch.set_num_threads(2)
    assert_same(outcome(evolve, inputs), wanted, 1e-10)


# --- Odd graphs ----------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize("degrees", [(3000,), (1, 2, GRAIN, GRAIN + 1, 2 * GRAIN - 1), (1, 1025)])
def test_hubs_equal_the_reference(random_state, degrees):
    """Around multiples of what a neighbourhood is taken in."""
    n = max(degrees) + 30
    draw = random_state(0)
    edges = hubs(draw, degrees, n)
    inputs = step_inputs(draw, n, 4, 2)
    for statistic in ("full", None):
        spec = specification(4, 2, statistic)
        got, wanted = (
            outcome(stepped(name, edges, spec), inputs) for name in ("native", "reference")
        )
        assert_same(got, wanted, 1e-10)


@needs_native
@pytest.mark.parametrize(("B", "m"), [(8, 4), (8, 8), (4, 3), (3, 5), (16, 1)])
@pytest.mark.parametrize("statistic", ["full", "diagonal"])
@pytest.mark.parametrize("framed", [True, False])
def test_few_and_many_edges_equal_the_reference(random_state, B, m, statistic, framed):
    """Up to m neighbours residuals are pulled one by one, beyond all of them at once."""
    degrees = [1, 2, 3, m, m + 1, m + 2, m + 3, 3 * m]
    draw = random_state(m)
    n = 3 * m + 20
    edges = hubs(draw, degrees, n)
    inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m)
    spec = specification(B, m, statistic, framed=framed)
    got, wanted = (outcome(evolved(name, edges, spec), inputs) for name in ("native", "reference"))
    assert_same(got, wanted, 1e-10)
    update = 0.5, 0.3, 50.0, (-9.0, 9.0)  # a clip that decides otherwise is no rounding error
    single = outcome(evolved("native", edges, spec, update), inputs, dtype=torch.float32)
    assert_same(single, outcome(evolved("reference", edges, spec, update), inputs), 1e-3)


@needs_native
def test_pieces_of_hubs_equal_the_reference(random_state):
    """Every remainder of large neighbourhoods, in single precision too."""
    degrees = [2 * GRAIN + k for k in (0, 1, 2, 15, 16, 17)] + [3 * GRAIN, 3 * GRAIN + 1]
    draw = random_state(0)
    n = 3 * GRAIN + 40
    edges = hubs(draw, degrees, n)
    inputs = step_inputs(draw, n, 8, 1)
    spec = specification(8, 1)
    wanted = outcome(stepped("reference", edges, spec), inputs)
    assert_same(outcome(stepped("native", edges, spec), inputs), wanted, 1e-10)
    single = outcome(stepped("native", edges, spec), inputs, dtype=torch.float32)
    assert_same(single, wanted, 1e-4)


@needs_native
@pytest.mark.parametrize("statistic", ["full", "mean"])
@pytest.mark.parametrize(
    ("n", "count", "span"),
    [(900, 100_000, 32_768), pytest.param(33_000, 300_000, 4 * 33_000, marks=pytest.mark.slow)],
)
def test_edges_of_many_spans_equal_torch(random_state, statistic, n, count, span):
    """More edges than one span has: sources collect several times. Spans grow with the nodes."""
    B, m = 4, 2
    draw = random_state(0)
    edge_index = torch.randint(0, n, (2, count), generator=draw.generator)
    edges = Neighbourhoods.from_edge_index(edge_index, n)
    assert len(edges.source) > 2 * span
    state, maps = step_inputs(draw, n, B, m), controller_inputs(draw, n, m)
    spec = specification(B, m, statistic)
    for step, inputs in ((evolved, state | maps), (stepped, state)):
        got, wanted = (outcome(step(name, edges, spec), inputs) for name in ("native", "torch"))
        assert_same(got, wanted, 1e-10)


@needs_native
@EACH_STATISTIC
def test_a_star_equals_the_reference(random_state, statistic):
    n, B, m = 40, 3, 4
    leaves = torch.arange(1, n)
    spokes = torch.stack([leaves, torch.zeros_like(leaves)])
    draw = random_state(0)
    inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m)
    for given in (spokes, spokes.flip(0), torch.cat([spokes, spokes.flip(0)], 1)):
        edges = Neighbourhoods.from_edge_index(given, n)
        spec = specification(B, m, statistic)
        got, wanted = (
            outcome(evolved(name, edges, spec), inputs) for name in ("native", "reference")
        )
        assert_same(got, wanted, 1e-10)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@EACH_STATISTIC
def test_no_nodes(random_state, statistic, dtype):
    for B, m in ((8, 4), (1, 1), (4, 32)):
        draw = random_state(0)
        inputs = step_inputs(draw, 0, B, m) | controller_inputs(draw, 0, m)
        edges = Neighbourhoods.from_edge_index(NONE, 0)
        spec = specification(B, m, statistic)
        result = outcome(evolved("native", edges, spec), inputs, dtype=dtype)
        assert result["aggregate"].shape == (0, B, m)
        assert result["coordinates"].shape == (0, B, num_coordinates(m))
        for name in ("hidden", "output", "bias"):
            assert not result[f"gradient of {name}"].any()


@needs_native
def test_no_edges_equals_the_reference(random_state):
    """Every node hears only itself: the aggregate is its own message."""
    draw = random_state(0)
    inputs = step_inputs(draw, 7, 8, 4)
    edges, spec = Neighbourhoods.from_edge_index(NONE, 7), specification(8, 4)
    got, wanted = (outcome(stepped(name, edges, spec), inputs) for name in ("native", "reference"))
    assert_same(got, wanted, 1e-10)
    torch.testing.assert_close(got["aggregate"], inputs["message"])


@needs_native
@EACH_STATISTIC
def test_repeats_and_self_loops_count_once(random_state, statistic):
    draw = random_state(0)
    plain = torch.tensor([[0, 1, 1, 2, 5], [1, 0, 2, 1, 2]])
    loops = torch.arange(7).expand(2, 7)
    repeated = torch.cat([plain, plain, loops, plain[:, :2], loops], 1)
    inputs = step_inputs(draw, 7, 8, 4) | controller_inputs(draw, 7, 4)
    spec = specification(8, 4, statistic)
    compact, marked = (
        Neighbourhoods.from_edge_index(given, 7, static_shapes=static)
        for given, static in ((plain, False), (repeated, True))
    )
    assert not marked.active.all()
    wanted = outcome(evolved("native", compact, spec), inputs)
    assert_same(outcome(evolved("native", marked, spec), inputs), wanted, 1e-12)
    loops_given = Neighbourhoods.from_edge_index(torch.cat([plain, loops], 1), 7)
    assert equal_bits(outcome(evolved("native", loops_given, spec), inputs), wanted)


@needs_native
def test_weights_of_inactive_edges_are_zero(random_state):
    inputs = step_inputs(random_state(0), 4, 2, 3)
    edges = Neighbourhoods.from_edge_index(
        torch.tensor([[0, 0, 0, 2], [1, 1, 1, 2]]), 4, static_shapes=True
    )
    weight = stepped("native", edges, specification(2, 3))(**inputs)["weight"]
    assert torch.equal(weight > 0, edges.active)
    torch.testing.assert_close(edges.sum(weight), torch.ones(4).double())


@needs_native
def test_layout_in_memory_does_not_matter(random_state):
    """Views of all kinds give the same bits as tensors of their own, backward included."""
    n, B, m = 9, 8, 4
    draw = random_state(0)
    edges, spec = some_edges(draw, n), specification(B, m)
    inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m)
    swapped = lambda v: v.mT.contiguous().mT if v.dim() > 1 else v  # noqa: E731
    sliced = lambda v: torch.stack([v, -v], -1)[..., 0]  # noqa: E731
    offset = lambda v: torch.cat([v.new_zeros(1), v.flatten()])[1:].view(v.shape)  # noqa: E731
    for run in (evolved("native", edges, spec), evolved("native", edges, spec, UPDATE)):
        wanted = outcome(run, inputs)
        for change in (swapped, sliced, offset):
            assert not all(change(v).is_contiguous() for v in inputs.values()) or change is offset
            changed = outcome(
                lambda run=run, change=change, **given: run(
                    **{k: change(v) for k, v in given.items()}
                ),
                inputs,
            )
            assert equal_bits(changed, wanted)


@pytest.fixture
def _said_already(monkeypatch):
    """Silence the once-per-process warning, which pytest turns into an error."""
    monkeypatch.setattr(cholesky, "_already_warned", True)
    monkeypatch.setattr(cholesky, "_already_warned_of_rescue", True)


@needs_native
@pytest.mark.usefixtures("_said_already")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("feedback", ["full", "mean", "diagonal", "none"])
def test_huge_and_tiny_scales(dtype, feedback):
    """No NaN where the reference has none; in double precision the same numbers."""
    for scale, temperature in itertools.product((1e-20, 1e-10, 1e-3, 1e3, 1e6), (1.0, 1e9)):
        x, edge_index, u = random_sample(3, nodes=10, edges=40, dtype=dtype)
        # A floor well above the rounding errors of a moment, or far below: no borderline cases.
        options = {"temperature": temperature, "feedback": feedback, "spectral_floor": 30.0}
        try:
            wanted = values_and_gradients(
                build_geof("reference", 8, 4, **options).to(dtype), scale * x, edge_index, u
            )
        except GeofError:
            continue
        model = build_geof("native", 8, 4, **options).to(dtype)
        got = values_and_gradients(model, scale * x, edge_index, u)
        for name, value in wanted.items():
            assert not (got[name].isnan() & ~value.isnan()).any(), (name, scale)
            if value.isfinite().all():
                assert got[name].isfinite().all(), (name, scale)
        if dtype == torch.float64 and scale < 1e6:
            assert_same(got, wanted, 1e-9)


# --- What cannot be computed ---------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize("statistic", ["full", "diagonal", "mean"])
@pytest.mark.parametrize(("B", "m"), [(8, 4), (8, 8), (4, 3), (3, 5)])
def test_moments_that_overflow_are_the_same_error_everywhere(random_state, B, m, statistic):
    draw = random_state(0)
    edges = Neighbourhoods.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), 7)
    inputs = {k: v.float() for k, v in step_inputs(draw, 7, B, m).items()}
    inputs["message"][2] = 1e25
    spec = specification(B, m, statistic)
    runs = [stepped(name, edges, spec) for name in BACKENDS] + [evolved("native", edges, spec)]
    messages = set()
    for run in runs:
        with pytest.raises(NonFiniteError, match=f"{2 * B} of {7 * B}") as caught:
            run(**inputs)
        messages.add(str(caught.value))
    assert len(messages) == 1


@needs_native
@pytest.mark.usefixtures("_said_already")
@pytest.mark.parametrize(("B", "m"), [(8, 4), (8, 8), (4, 3), (3, 5)])
@pytest.mark.parametrize("statistic", ["full", "diagonal", "mean"])
def test_jitters_are_those_of_the_reference(random_state, B, m, statistic):
    """A negative floor makes blocks indefinite; each needs the jitter the reference finds."""
    n = 13
    draw = random_state(0)
    given = torch.randint(0, n - 1, (2, 9 * n), generator=draw.generator)
    edges = Neighbourhoods.from_edge_index(given, n)
    inputs = step_inputs(draw, n, B, m)
    inputs["message"] *= 4
    spec = specification(
        B, m, statistic, floor=-0.5, schedule=JitterSchedule(initial=0.1, growth=2.0, retries=5)
    )
    wanted = outcome(stepped("reference", edges, spec), inputs)
    assert len(wanted["attempt"].unique()) > 1 or statistic == "mean"
    assert (wanted["attempt"][-1] == 3).all()  # the isolated node: -0.5 + 0.8 > 0
    assert_same(outcome(stepped("native", edges, spec), inputs), wanted, 1e-9)
    inputs |= controller_inputs(draw, n, m)
    got, wanted = (outcome(evolved(name, edges, spec), inputs) for name in ("native", "reference"))
    assert_same(got, wanted, 1e-9)


@needs_native
@pytest.mark.usefixtures("_said_already")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("B", "m"), [(8, 4), (8, 8), (4, 3), (3, 5)])
def test_blocks_beyond_the_schedule_are_the_same_everywhere(random_state, B, m, dtype):
    """The isolated node's blocks, -0.5 I, keep their coordinates; those of others are rescued."""
    draw = random_state(0)
    edges = some_edges(draw, 9)
    inputs = step_inputs(draw, 9, B, m)
    schedule = JitterSchedule(1e-9, 2.0, 1)
    spec = specification(B, m, floor=-0.5, schedule=schedule)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    wanted = outcome(stepped("reference", edges, spec), inputs)
    assert is_kept(wanted["attempt"][-1], schedule).all()
    assert is_rescued(wanted["attempt"], schedule).any()
    inputs |= controller_inputs(draw, 9, m)
    exact = outcome(evolved("reference", edges, spec), inputs)
    for name in BACKENDS:
        with counting_blocks() as counts:
            got = outcome(evolved(name, edges, spec), inputs, dtype=dtype)
        assert_same(got, exact, tolerance)
        assert counts.rescued == int(is_rescued(wanted["attempt"], schedule).sum())
        assert counts.kept == int(is_kept(wanted["attempt"], schedule).sum())


@needs_native
def test_half_precision_is_refused():
    x, edge_index, u = random_sample(0)
    model = build_geof("native", 2, 4).to(torch.bfloat16)
    with pytest.raises(DtypeError, match="float32 or float64"):
        model(x.bfloat16(), edge_index, u.bfloat16())


@needs_native
def test_a_second_derivative_is_refused_not_invented():
    x, edge_index, u = random_sample(0)
    x.requires_grad_()
    output = build_geof("native", 2, 4)(x, edge_index, u)
    (gradient,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(gradient.square().sum(), x)


@needs_native
def test_plain_functions_give_what_the_operators_give(random_state, monkeypatch):
    """Eager code does without ``torch.library``; compiled code goes through it.

    Forward to the bit. In eager code the dense maps' gradients are summed in place, in an order of
    their own.
    """
    x, edge_index, u = random_sample(0)
    results = []
    for plain in (True, False):
        if not plain:
            for module in (native, native_parts):
                monkeypatch.setattr(module, "is_plain", lambda *tensors: False)
        model = build_geof("native", 2, 4)
        given = x.detach().clone().requires_grad_()
        output = model(given, edge_index, u)
        output.square().sum().backward()
        results.append([output, given.grad, *(p.grad for p in model.parameters())])
    assert torch.equal(results[0][0], results[1][0])
    assert_same(*(dict(enumerate(result)) for result in results), 1e-13)


# --- Memory --------------------------------------------------------------------------------------


def everyone_to_everyone(n) -> Tensor:
    return torch.cartesian_prod(torch.arange(n), torch.arange(n)).mT.contiguous()


@needs_native
@pytest.mark.parametrize("feedback", ["full", "diagonal", "mean", "none"])
def test_nothing_of_the_size_of_edges_times_width_is_kept(feedback):
    n, B, m = 120, 8, 4
    edges = Neighbourhoods.from_edge_index(everyone_to_everyone(n), n)
    x, _, u = random_sample(0, nodes=n)
    kept = []

    def pack(value):
        kept.append(value.numel())
        return value

    results = {}
    for name in ("native", "reference"):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            results[name] = build_geof(name, B, m, feedback=feedback)(x, edges, u).sum()
        results[name].backward()
        largest = max(kept)
        if name == "native":
            assert largest < n * n * B * m / 2, f"{largest} values"
        else:
            assert largest >= n * n * B * m  # else the limit says nothing


@needs_native
def test_nothing_of_the_size_of_edges_times_width_is_allocated():
    """Forward and backward: every request for memory is smaller, the kernels' scratch included."""
    n, B, m = 120, 8, 4
    edges = Neighbourhoods.from_edge_index(everyone_to_everyone(n), n)
    x, _, u = random_sample(0, nodes=n)
    largest = {}
    for name in ("native", "reference"):
        model = build_geof(name, B, m)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            model(x, edges, u).sum().backward()
        events = profile.profiler.kineto_results.events()
        largest[name] = max(e.nbytes() for e in events if e.name() == "[memory]")
    size = 8 * n * n * B * m
    assert 0 < largest["native"] < size / 2
    assert largest["reference"] >= size  # else the limit says nothing


@needs_native
def test_scratch_of_other_sizes_changes_nothing(random_state):
    """Steps of different sizes, types and statistics in turn, each as if it were alone."""
    runs = []
    for n, B, m, statistic, dtype in (
        (40, 8, 4, "full", torch.float32),
        (7, 3, 5, "mean", torch.float64),
        (300, 8, 8, "full", torch.float32),
        (41, 8, 4, "diagonal", torch.float64),
        (2, 1, 1, None, torch.float32),
    ):
        draw = random_state(n)
        edges = some_edges(draw, n)
        inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m)
        runs.append((evolved("native", edges, specification(B, m, statistic)), inputs, dtype))
    alone = [outcome(run, inputs, dtype=dtype) for run, inputs, dtype in runs]
    for order in ([4, 3, 2, 1, 0], [0, 2, 0, 1, 4], [2, 3, 2, 3, 1]):
        # Nothing may be left of what memory held before: NaN in Python's buffers and in C++'s.
        for buffer in memory._free:
            buffer.fill_(255)
        for dtype in (torch.float32, torch.float64):
            poison(random_state, dtype)
        for k in order:
            run, inputs, dtype = runs[k]
            assert equal_bits(outcome(run, inputs, dtype=dtype), alone[k])


def poison(random_state, dtype) -> None:
    """Run a large step of which every number is NaN."""
    n, B, m = 300, 16, 8
    draw = random_state(0)
    inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m)
    inputs["xi"].fill_(torch.nan)
    spec = specification(B, m, None)
    result = outcome(evolved("native", some_edges(draw, n), spec), inputs, dtype=dtype)
    assert result["gradient of hidden"].isnan().all()


class SlowList(list):
    """A list that gives other threads every chance to come between."""

    def pop(self, *position):
        time.sleep(1e-4)
        return super().pop(*position)

    def append(self, value):
        super().append(value)
        time.sleep(1e-4)


@needs_native
def test_models_in_two_python_threads_do_not_share_scratch(random_state, monkeypatch):
    monkeypatch.setattr(memory, "_free", SlowList())
    jobs = []
    for n, B, m in ((60, 8, 4), (333, 8, 4), (90, 4, 3)):
        draw = random_state(n)
        edges = some_edges(draw, n)
        inputs = step_inputs(draw, n, B, m) | controller_inputs(draw, n, m)
        run = evolved("native", edges, specification(B, m))
        jobs.append((run, inputs, outcome(run, inputs)))
    problems, start = [], threading.Barrier(len(jobs))

    def work(run, inputs, wanted):
        start.wait()
        try:
            for _ in range(25):
                if not equal_bits(outcome(run, inputs), wanted):
                    problems.append("another result")
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_memory_is_free_again_when_all_views_are_gone(monkeypatch):
    monkeypatch.setattr(memory, "_free", [])
    like = torch.empty(0)
    tensor = memory.empty(like, (300, 200))
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((300, 200), like.dtype, True)
    address, view = tensor.data_ptr(), tensor[5:]
    assert address % 64 == 0
    del tensor
    assert memory._free == []  # the view still reads it
    other = memory.empty(like, (300, 200))
    assert other.data_ptr() != address
    del view
    assert memory.empty(like, (299, 200)).data_ptr() == address
    assert len(memory._free) == 1  # the last one was dropped at once


def test_little_and_foreign_memory_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(memory, "_free", [])
    for like, shape in ((torch.empty(0), (3, 5)), (torch.empty(0, device="meta"), (300, 200))):
        made = memory.empty(like, shape)
        assert (made.shape, made.device) == (shape, like.device)
        del made
    assert memory._free == []


def test_no_more_is_kept_than_the_bound(monkeypatch):
    monkeypatch.setattr(memory, "_free", [])
    monkeypatch.setattr(memory, "kept_bytes", lambda: 2**20)
    like = torch.empty(0)
    blocks = [memory.empty(like, (2**17,)) for _ in range(5)]  # half a mebibyte each
    del blocks
    assert sum(block.numel() for block in memory._free) <= 2**20


@pytest.fixture
def asked_anew():
    """Forget what was read of the environment, before and after."""
    memory.kept_bytes.cache_clear()
    yield
    memory.kept_bytes.cache_clear()


@pytest.mark.parametrize(
    ("given", "size"),
    [("0", 0), ("4096", 4096), ("64K", 2**16), ("512M", 2**29), ("2G", 2**31)],
)
def test_the_bound_is_a_setting(given, size, asked_anew, monkeypatch):
    monkeypatch.setenv("GEOF_KEPT_MEMORY", given)
    assert memory.kept_bytes() == size


def test_half_of_the_memory_is_the_usual_bound(asked_anew, monkeypatch):
    monkeypatch.setenv("GEOF_KEPT_MEMORY", "")
    assert memory.kept_bytes() == memory_bytes() // 2


def test_blocks_begin_at_a_line_of_the_cache(monkeypatch):
    monkeypatch.setattr(memory, "_free", [])
    made = [memory.empty(torch.empty(0), (size,)) for size in (2**15 + 1, 2**17 + 3, 2**21)]
    assert [tensor.data_ptr() % 64 for tensor in made] == [0, 0, 0]


@pytest.mark.parametrize("given", ["512MB", "half", "-1", "1.5G", "M", " 5M", "5m"])
def test_a_bound_that_is_no_size_is_refused(given, asked_anew, monkeypatch):
    monkeypatch.setenv("GEOF_KEPT_MEMORY", given)
    with pytest.raises(ConfigError, match=r"Expected GEOF_KEPT_MEMORY .*512M") as error:
        memory.kept_bytes()
    assert repr(given) in str(error.value)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("given", ["0", "64K"])
def test_a_small_bound_changes_no_number(given):
    """The kernels read the bound once per process: in one of its own."""
    code = (
        "import torch, geof.kernels.memory as memory\n"
        "from geof import GeoF\n"
        "torch.manual_seed(0)\n"
        "model = GeoF(5, 16, signature_channels=0, blocks=2)\n"
        "edges = torch.randint(0, 3000, (2, 9000))\n"
        "loss = model(torch.rand(3000, 5), edges, torch.rand(3000, 0)).square().sum()\n"
        "loss.backward()\n"
        "kept = sum(block.numel() for block in memory._free)\n"
        "print(kept, loss.item(), model.feature_lift.weight.grad.double().sum().item())"
    )

    def run(**setting: str) -> list[str]:
        environment = {**os.environ, **setting}
        command = [sys.executable, "-c", code]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return shown.stdout.split()

    usual, small = run(GEOF_KEPT_MEMORY=""), run(GEOF_KEPT_MEMORY=given)
    assert small[1:] == usual[1:]
    assert int(small[0]) <= int(given.replace("64K", "65536")) < int(usual[0])


def test_blocks_of_smaller_batches_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(memory, "_free", [])
    monkeypatch.setattr(memory, "_lent", memory._Bytes())
    like, most = torch.empty(0), 0
    for rows in (*range(1000, 9000, 500), *range(9000, 1000, -700), 9000):
        batch = [memory.empty(like, (rows, width)) for width in (64, 64, 128)]
        most = max(most, sum(4 * tensor.numel() for tensor in batch))
        del batch
    assert sum(block.numel() for block in memory._free) <= 1.5 * most
    assert memory._lent.now == 0


@needs_native
def test_scratch_is_used_by_one_step_at_a_time():
    like = torch.zeros(1)
    with memory.scratch(like, (100,), (100,), (3, 5)) as first:
        with memory.scratch(like, (100,), (90,)) as second:
            places = [range(v.data_ptr(), v.data_ptr() + 4 * v.numel()) for v in first + second]
        assert [v.shape for v in first] == [(100,), (100,), (3, 5)]
    for one, other in itertools.combinations(places, 2):
        assert one.stop <= other.start or other.stop <= one.start


# --- Compiling -----------------------------------------------------------------------------------


@needs_native
@pytest.mark.slow
def test_compiles_to_one_graph():
    """The mean statistic; the full one, and other sizes, are compiled in tests/nn."""
    torch.manual_seed(0)
    model = GeoF(5, 32, signature_channels=3, steps=1, backend="native", feedback="mean")
    assert_compiles(model, [random_sample(0, dtype=torch.float32)])


# --- Choosing the backend ------------------------------------------------------------------------


@pytest.mark.skipif(bool(os.environ.get("GEOF_KERNELS")), reason="GEOF_KERNELS chooses")
def test_where_there_is_a_compiler_there_are_kernels():
    """An install that lost its kernels on the way would pass every other test here."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("no C++ compiler, so the package may have been installed without kernels")
    assert "native" in BACKENDS, find_library().reason
    assert resolve_backend("auto", 8).name == "native"
    assert find_library().library.path.exists()


@needs_native
def test_automatic_choice_goes_by_block_size_and_device():
    assert resolve_backend("auto", LARGEST_BLOCK).name == "native"
    assert resolve_backend("auto", LARGEST_BLOCK + 1).name == "torch"
    assert resolve_backend("auto", 8, torch.device("cpu")).name == "native"
    assert resolve_backend("auto", 8, torch.device("meta")).name == "torch"
    with pytest.raises(ConfigError, match=r"at most 32 \(got 33\).*backend='auto' or 'torch'"):
        resolve_backend("native", LARGEST_BLOCK + 1)
    with pytest.raises(ConfigError, match="CPU"):
        resolve_backend("native", 8, torch.device("meta"))
    with pytest.raises(ConfigError, match="at most 32"):
        GeoFConv(66, blocks=2, backend="native")


@needs_native
def test_blocks_beyond_the_largest_work_by_themselves():
    x, edge_index, u = random_sample(0)
    sample = x[:, :1].expand(-1, 5).contiguous(), edge_index, u
    got, wanted = (
        values_and_gradients(build_geof(name, 1, 33), *sample) for name in ("auto", "torch")
    )
    assert equal_bits(got, wanted)


CHILD = r"""
import contextlib, io, json, os, sys
import torch, torch._dynamo  # imported once instead of in every child

torch.set_num_threads(1)


def examined():
    from geof.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main(["doctor", "--json"]) == 0
    return json.loads(told.getvalue())


def study(choice):
    os.environ["GEOF_KERNELS"] = choice
    from geof.errors import ConfigError
    from geof.geometry import AdmissibleBox, JitterSchedule
    from geof.kernels import BACKENDS, Controller, Evolution, Neighbourhoods, StepSpec
    from geof.kernels import resolve_backend
    from geof.kernels.library import find_library

    result = {"reason": find_library().reason, "auto": resolve_backend("auto", 4).name}
    if "native" not in BACKENDS:
        try:
            resolve_backend("native", 4)
        except ConfigError as error:
            result["refusal"] = str(error)
        if choice == "off":
            result["doctor"] = examined()
        return result
    result["level"] = find_library().library.level
    result["worst"], result["outputs"] = 0.0, []
    for B, m, dtype in ((8, 4, "float32"), (8, 8, "float32"), (3, 5, "float64"), (4, 9, "float64")):
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)
        n, t = 11, m * (m + 1) // 2
        edge_index = torch.randint(0, n, (2, 40), generator=generator)
        edges = Neighbourhoods.from_edge_index(edge_index, n)
        spec = StepSpec(3.0 * B * m, "full", True, 0.3, JitterSchedule(1e-9))
        maps = draw(n, 6), draw(6, 2 * m), draw(5 * m, 6), draw(5 * m)
        inputs = draw(n, B, m), draw(n, B, m), 0.3 * draw(n, B, t)

        def run(name, dtype):
            given = [v.to(dtype).requires_grad_() for v in inputs]
            step = BACKENDS[name].statistics(*given, edges, spec)
            loss = step.aggregate.square().sum() + step.target.square().sum()
            return [step.aggregate, step.target, *torch.autograd.grad(loss, given)]

        def evolve(dtype):
            given = [v.to(dtype).requires_grad_() for v in (*inputs, *maps)]
            evolution = Evolution(0.5, 0.1, AdmissibleBox(), Controller(*given[3:]))
            pair = BACKENDS["native"].step(*given[:3], edges, spec, evolution)[:2]
            loss = sum(v.square().sum() for v in pair)
            return [*pair, *torch.autograd.grad(loss, given)]

        working = getattr(torch, dtype)
        unit = torch.finfo(working).eps
        for got, wanted in zip(run("native", working), run("reference", torch.float64)):
            error = (got.double() - wanted).abs().max() / wanted.abs().max()
            result["worst"] = max(result["worst"], error.item() / unit)
        made = evolve(working)
        result["outputs"].append([dtype, [v.detach().double().flatten().tolist() for v in made]])
    return result


for choice in sys.argv[1:]:
    sys.stdout.flush()
    child = os.fork()  # a fresh process for geof, without torch's start each time
    if child == 0:
        try:
            result = study(choice)
        except Exception as error:
            result = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps({"choice": choice, **result}))
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(json.dumps({"choice": choice, "error": f"ended with status {status}"}))
"""


@pytest.fixture(scope="module")
def studies() -> dict[str, dict]:
    """Return what processes with each value of ``GEOF_KERNELS`` say."""
    choices = ["off", "avx1024", *LEVELS]
    folders = [str(Path(geof.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *choices],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {study["choice"]: study for study in found}


def test_kernels_can_be_switched_off(studies):
    study = studies["off"]
    assert study["auto"] == "torch"
    assert "GEOF_KERNELS=off" in study["reason"]
    assert "switched off by GEOF_KERNELS=off" in study["refusal"]
    assert "backend='auto' or 'torch'" in study["refusal"]


def test_the_doctor_says_so_when_kernels_are_switched_off(studies):
    findings = studies["off"]["doctor"]
    assert findings["auto"] == "torch"
    assert findings["backends"] == ["reference", "torch"]
    assert "switched off by GEOF_KERNELS=off" in findings["why"]
    assert findings["native library"] is None


def test_an_unknown_instruction_set_is_an_error(studies):
    study = studies["avx1024"]
    assert study["error"] == "ConfigError"
    assert all(word in study["message"] for word in ("GEOF_KERNELS", "'avx1024'", "'avx2'"))


@needs_native
@pytest.mark.parametrize("level", LEVELS)
def test_every_instruction_set_computes_the_step(studies, level):
    study = studies[level]
    if "this processor has no" in study.get("reason", ""):
        pytest.skip(study["reason"])
    assert "error" not in study, study
    assert study["level"] == level
    assert study["auto"] == "native"
    assert study["worst"] < 200  # units in the last place of the largest entry


@needs_native
def test_instruction_sets_agree_to_rounding(studies):
    usable = [studies[level] for level in LEVELS if "level" in studies[level]]
    assert usable
    for study in usable[1:]:
        for (dtype, ours), (_, theirs) in zip(study["outputs"], usable[0]["outputs"], strict=True):
            unit = torch.finfo(getattr(torch, dtype)).eps
            for one, other in zip(map(torch.tensor, ours), map(torch.tensor, theirs), strict=True):
                assert (one - other).abs().max() <= 200 * unit * other.abs().max()

"""Small matrices written out over lanes: the library's numbers and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from geof.geometry import (
    AdmissibleBox,
    JitterSchedule,
    apply_frame,
    block_size_of,
    feedback_target,
    frame_from_coordinates,
    strictly_lower_vector,
)
from geof.kernels import Neighbourhoods, factored, lanes, segments
from geof.kernels.interface import evolve_coordinates
from tests.kernels.outcomes import outcome

SCHEDULE = JitterSchedule()
SCALARS = SCHEDULE.initial, SCHEDULE.growth, SCHEDULE.retries
BOX = AdmissibleBox(1.0, (-0.5, 1.0))


def drawn(random_state, n, blocks, m):
    draw = random_state(m)
    second = draw.normal(n, blocks, m, m)
    return {
        "coords": 0.4 * draw.normal(n, blocks, m * (m + 1) // 2),
        "first": draw.normal(n, blocks, m),
        "second": second @ second.mT,
    }


def by_library(coords, first, second):
    frame = frame_from_coordinates(coords)
    aggregate = torch.linalg.solve_triangular(frame, first.unsqueeze(-1), upper=False).squeeze(-1)
    symmetric = 0.5 * (second + second.mT)
    moment = factored.local_moment(frame, aggregate, symmetric, "full")
    moment = moment + 0.3 * torch.eye(first.size(-1), dtype=first.dtype)
    target, _ = feedback_target(moment, coords, SCHEDULE)
    return {"aggregate": aggregate, "moment": moment, "target": target}


def by_lanes(coords, first, second):
    made = lanes.pulled_back(coords, first, 0.5 * (second + second.mT), 0.3, *SCALARS)
    return dict(zip(("aggregate", "moment", "target"), made[:3], strict=True))


def update_by_library(coords, target=None, output=None):
    m, correction = block_size_of(coords.size(-1)), None
    if output is not None:
        size = (output.size(-1) - m) // 2
        left, right, log_scale = output.split([size, size, m], -1)
        product = left.unflatten(-1, (m, -1)) @ right.unflatten(-1, (m, -1)).mT
        correction = torch.cat([strictly_lower_vector(product), log_scale], -1)
    strengths = {"target_mix": 0.4, "correction_strength": 0.3}
    return evolve_coordinates(coords, target, correction, **strengths, box=BOX)


def update_by_lanes(coords, target=None, output=None):
    bounds = BOX.offdiagonal_bound, *BOX.log_scale_bounds
    return lanes.updated(coords, target, output, 0.4, 0.3, *bounds)[0]


@pytest.fixture(params=[2, 2**12], ids=["pieces", "whole"])
def piece(request, monkeypatch):
    for size in ("CACHED", "SHARED"):
        monkeypatch.setattr(lanes, size, request.param)


@pytest.mark.usefixtures("piece")
class TestParity:
    @pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 16])
    def test_feedback(self, random_state, m):
        inputs = drawn(random_state, 3, 2, m)
        wanted, found = outcome(by_library, inputs), outcome(by_lanes, inputs)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("m", [1, 2, 3, 8])
    def test_images(self, random_state, m):
        inputs = drawn(random_state, 3, 2, m)
        given = {"coords": inputs["coords"], "xi": inputs["first"], "message": -inputs["first"]}

        def library(coords, xi, message):
            frame = frame_from_coordinates(coords)
            return {"h": apply_frame(frame, xi), "y": apply_frame(frame, message)}

        def written(coords, xi, message):
            return dict(zip("hy", lanes.images(coords, xi, message), strict=True))

        wanted, found = outcome(library, given), outcome(written, given)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("m", [1, 3, 8])
    def test_one_image_alone(self, random_state, m):
        inputs = drawn(random_state, 3, 2, m)
        given = {"coords": inputs["coords"], "xi": inputs["first"]}
        wanted, found = (
            outcome(lambda coords, xi, of=of: {"h": of(coords, xi)}, given)
            for of in (
                lambda coords, xi: apply_frame(frame_from_coordinates(coords), xi),
                lambda coords, xi: lanes.images(coords, xi, None)[0],
            )
        )
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("parts", ["target", "output", "both"])
    @pytest.mark.parametrize(("m", "rank"), [(1, 1), (2, 3), (4, 1), (8, 4)])
    def test_update(self, random_state, m, rank, parts):
        """Some coordinates leave the box on either side; some stand on its edge and stay."""
        draw = random_state(rank)
        given = {"coords": 1.5 * draw.normal(5, 2, m * (m + 1) // 2)}
        given["coords"][0] = BOX.log_scale_bounds[1]
        if parts != "output":
            given["target"] = 1.5 * draw.normal(*given["coords"].shape)
            given["target"][0] = given["coords"][0]
        if parts != "target":
            given["output"] = draw.normal(5, 2, (2 * rank + 1) * m)
            given["output"][0] = 0
        wanted, found = (
            outcome(lambda coords, of=of, **rest: {"z": of(coords, **rest)}, given)
            for of in (update_by_library, update_by_lanes)
        )
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::geof.errors.NumericalWarning")
def test_blocks_that_fail_are_served_as_by_the_library(random_state):
    inputs = drawn(random_state, 4, 2, 4)
    inputs["second"][0, 0] = -torch.eye(4) * 0.31  # indefinite by more than the first jitters
    inputs["second"][1, 1] = -torch.eye(4) * 1e9  # which is kept, or rescued by its own size
    inputs["coords"] *= 0
    with torch.no_grad():
        found = lanes.pulled_back(*inputs.values(), 0.3, *SCALARS)
        moment = found[1]
        target, attempt = feedback_target(moment, inputs["coords"], SCHEDULE)
    assert int(attempt.max()) > SCHEDULE.retries
    assert torch.equal(found[3], attempt)
    torch.testing.assert_close(found[2], target, rtol=1e-12, atol=1e-12)


def test_nobody_reads_the_upper_part_of_a_lower_triangle(random_state, monkeypatch):
    """What is not written is NaN here: one in a result would show."""
    inputs = drawn(random_state, 5, 2, 4)
    coords, first = inputs["coords"], inputs["first"]
    said = {"coords": coords, "target": 2 * coords, "output": random_state(0).normal(5, 2, 20)}
    steps = (
        (by_lanes, inputs),
        (lambda **given: {"following": update_by_lanes(**given)}, said),
        (
            lambda **given: dict(zip("hy", lanes.images(**given), strict=True)),
            {"coords": coords, "xi": first, "message": 2 * first},
        ),
    )
    usual = [outcome(step, given) for step, given in steps]
    fills = [(torch, "empty_like"), (Tensor, "new_empty")]
    for owner, name in fills:
        monkeypatch.setattr(owner, name, _filled_with_nan(getattr(owner, name)))
    for (step, given), wanted in zip(steps, usual, strict=True):
        for name, value in outcome(step, given).items():
            assert torch.equal(value, wanted[name]), name


def _filled_with_nan(make):
    def made(*args, **options):
        tensor = make(*args, **options)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    return made


def test_nothing_is_cut_into_what_a_cache_holds_elsewhere(monkeypatch):
    """On the CPU a piece is as large as its cache; on other devices memory alone bounds it."""
    for module in (segments, lanes):
        for size in ("CACHED", "SHARED"):
            monkeypatch.setattr(module, size, 1)
    target = torch.arange(50).repeat_interleave(3)
    assert sum(1 for _ in segments.rectangles(target, target, range(50), 8)) == 50
    assert sum(1 for _ in lanes._pieces(torch.empty(50, 4))) == 50
    elsewhere = torch.empty(50, 4, device="meta")
    assert sum(1 for _ in lanes._pieces(elsewhere)) == 1


@pytest.mark.parametrize(
    "counts", [[0, 1, 9, 3, 9, 8, 300, 0], [1] * 20, [17, 16, 15, 14], [5000, 2]]
)
def test_rectangles_hold_every_edge_once(counts):
    target = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    source = torch.arange(len(target)) % len(counts)
    seen = torch.zeros(len(target), dtype=torch.long)
    nodes = []
    for group in segments.rectangles(source, target, range(len(counts)), 8):
        there = torch.ones_like(group.place, dtype=torch.bool)
        there = there if group.there is None else group.there
        assert group.place.numel() <= 1.25 * int(there.sum())
        seen[group.place[there]] += 1
        assert bool((target[group.place] == group.nodes[:, None])[there].all())
        wanted = torch.where(there, source[group.place], group.nodes[:, None])
        assert torch.equal(group.neighbours.view(wanted.shape), wanted)
        nodes += group.nodes.tolist()
    assert bool((seen == 1).all())
    assert sorted(nodes) == [i for i, count in enumerate(counts) if count]


class TestKeptRectangles:
    """They are made once for the same edges, and anew for others."""

    def test_once(self):
        source, target = torch.arange(6) % 3, torch.arange(6) // 2
        made = segments.rectangles(source, target, range(3), 8)
        assert segments.rectangles(source, target, range(3), 8) is made

    @pytest.mark.parametrize("change", ["source", "changed in place", "nodes", "width"])
    def test_of_other_edges(self, change):
        source, target = torch.arange(6) % 3, torch.arange(6) // 2
        given = [source, target, range(3), 8]
        made = segments.rectangles(*given)
        if change == "source":
            given[0] = source.flip(0)
        elif change == "changed in place":
            source.add_(1).remainder_(3)
        elif change == "nodes":
            given[2] = range(4)
        else:
            given[3] = 16
        again = segments.rectangles(*given)
        assert again is not made
        place = torch.cat([group.place.view(-1) for group in again])
        neighbours = torch.cat([group.neighbours for group in again])
        assert torch.equal(neighbours, given[0][place])

    def test_not_longer_than_the_edges(self):
        source, target = torch.arange(6) % 3, torch.arange(6) // 2
        segments.rectangles(source, target, range(3), 8)
        before = len(segments._kept)
        del target
        assert len(segments._kept) == before - 1

    def test_not_of_very_many(self, monkeypatch):
        monkeypatch.setattr(segments, "KEPT", 5)
        source, target = torch.arange(6) % 3, torch.arange(6) // 2
        made = segments.rectangles(source, target, range(3), 8)
        assert segments.rectangles(source, target, range(3), 8) is not made

    def test_of_tensors_without_versions(self):
        with torch.inference_mode():
            source, target = torch.arange(6) % 3, torch.arange(6) // 2
            made = segments.rectangles(source, target, range(3), 8)
            assert sum(group.nodes.numel() for group in made) == 3

    def test_what_an_evaluation_made_serves_a_training(self):
        source, target = torch.arange(6) % 3, torch.arange(6) // 2
        with torch.inference_mode():
            made = segments.rectangles(source, target, range(3), 8)
        assert segments.rectangles(source, target, range(3), 8) is made
        assert not any(group.place.is_inference() for group in made)


def test_the_mean_of_a_hub_does_not_cancel():
    """A node's own message far above all others, and next to no weight of its own."""
    n = 2000
    leaves = torch.arange(1, n)
    edges = Neighbourhoods.from_edge_index(torch.stack([leaves, torch.zeros_like(leaves)]), n)
    h, y = torch.zeros(n, 1, 1), torch.ones(n, 1, 1)
    y[0] = 1e6
    found = factored.edge_moments(h, y, edges, 1.0, second=True).first[0, 0, 0]
    wanted = (1e6 + n - 1) / n
    assert float(found) == pytest.approx(wanted, rel=2e-5)

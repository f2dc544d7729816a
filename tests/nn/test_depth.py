"""Many steps in float32: whatever rounding does to a block, training goes on."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from geof import GeoF, structural_signature
from geof.geometry import (
    AdmissibleBox,
    JitterSchedule,
    cholesky,
    counting_blocks,
    frame_from_coordinates,
    is_rescued,
    num_coordinates,
)
from geof.kernels import BACKENDS, Evolution, Neighbourhoods, StepSpec
from tests.faults.harness import FULL

every_backend = pytest.mark.parametrize("backend", sorted(BACKENDS))
BOX = AdmissibleBox(1.0, (-1.0, 1.0))
SPEC = StepSpec(64.0, "full", True, 1.0, JitterSchedule())


@pytest.fixture(autouse=True)
def _said_already(monkeypatch):
    """Silence the once-per-process warnings, which pytest turns into errors."""
    monkeypatch.setattr(cholesky, "_already_warned", True)
    monkeypatch.setattr(cholesky, "_already_warned_of_rescue", True)


# --- One step with frames at the box's corners ---------------------------------------------------


def at_a_corner(draw, scale, n=60, B=8, m=8):
    """Return states whose frames are as near to singular as the box of +-1 allows.

    Every strictly lower entry is -1 and every scale 1/e, so that the inverse has entries of
    e (1 + e)^(m - 2): 7e3 for m = 8. Neighbours differ in two directions only.
    """
    coords = torch.full((n, B, num_coordinates(m)), -1.0)
    coords[::2] *= 0.5  # or every transport would be the identity
    plane = draw.normal(2, B, m).float()
    message = torch.einsum("nk,kbm->nbm", draw.normal(n, 2).float(), plane) * scale
    edges = torch.randint(0, n, (2, 5 * n), generator=draw.generator)
    return 0.01 / scale * message, message, coords, Neighbourhoods.from_edge_index(edges, n)


@every_backend
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_frames_at_a_corner(random_state, backend, scale):
    """C is above eps_s I by definition; float32 loses that, and the step goes on all the same."""
    xi, message, coords, edges = at_a_corner(random_state(0), scale)
    given = [value.clone().requires_grad_() for value in (xi, message, coords)]
    statistics = BACKENDS[backend].statistics(*given, edges, SPEC)
    assert is_rescued(statistics.attempt, SPEC.schedule).any()
    with counting_blocks() as counts:
        result = BACKENDS[backend].step(*given, edges, SPEC, Evolution(0.5, 0.0, BOX, None))
    assert counts.rescued > 0
    assert result.coordinates.isfinite().all()
    assert (result.coordinates.abs() <= 1).all()
    (result.coordinates.sum() + result.aggregate.square().mean()).backward()
    assert all(value.grad.isfinite().all() for value in given)


def test_where_positivity_is_lost(random_state):
    """Already in the float32 moment, magnified by |L^-1|^2: exact solves do not bring it back."""
    _, message, coords, edges = at_a_corner(random_state(0), 100.0)
    frame = frame_from_coordinates(coords)
    y = (frame @ message.unsqueeze(-1)).squeeze(-1)
    r = y[edges.source] - y[edges.target]
    weight = 1 / torch.bincount(edges.target)[edges.target, None, None, None].float()
    outer = weight * r.unsqueeze(-1) * r.unsqueeze(-2)
    exactly = weight.double() * r.double().unsqueeze(-1) * r.double().unsqueeze(-2)
    least = {}
    for name, moment, solves in (
        ("exact", edges.sum(exactly), torch.float64),
        ("moment", edges.sum(outer), torch.float64),
        ("both", edges.sum(outer), torch.float32),
    ):
        half = torch.linalg.solve_triangular(frame.to(solves), moment.to(solves), upper=False)
        local = torch.linalg.solve_triangular(frame.to(solves), half.mT, upper=False).double()
        least[name] = float(torch.linalg.eigvalsh((local + local.mT) / 2).min()) + 1
    assert least["exact"] > 0
    assert least["moment"] < 0
    assert least["both"] < 0


# --- Training ------------------------------------------------------------------------------------


def board(side, seed):
    """Return a grid with few kinds of features, so that neighbourhoods are short of directions."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(side * side).view(side, side)
    pairs = [
        torch.stack([a.flatten(), b.flatten()])
        for a, b in (
            (place[:, 1:], place[:, :-1]),
            (place[1:], place[:-1]),
            (place[1:, 1:], place[:-1, :-1]),
        )
    ]
    one_way = torch.cat(pairs, 1)
    edge_index = torch.cat([one_way, one_way.flip(0)], 1)
    mine = torch.rand(side * side, generator=generator) < 0.3
    count = torch.zeros(side * side).index_add_(0, edge_index[1], mine[edge_index[0]].float())
    hidden = torch.rand(side * side, generator=generator) < 0.5
    x = F.one_hot(torch.where(hidden, 7, count.long()), 8).float()
    return x, edge_index, mine.long()


def train(steps, seed, *, epochs, backend="auto"):
    """Train on a small board with a rate far too high; return the blocks that were rescued."""
    x, edge_index, mine = board(8, seed)
    signature = structural_signature(edge_index, len(x)).values
    edges = Neighbourhoods.from_edge_index(edge_index, len(x))
    torch.manual_seed(seed)
    model = GeoF(
        x.size(1),
        32,
        signature_channels=signature.size(1),
        blocks=4,
        steps=steps,
        temperature=64.0,
        offdiagonal_bound=1.0,
        log_scale_bounds=(-1.0, 1.0),
        normalise=("batch", "none", "layer")[seed % 3],
        feed_forward=2 * (seed % 2),
        dropout=0.3 * (seed % 5 == 0),
        backend=backend,
    )
    readout = torch.nn.Linear(model.out_channels, 2)
    parameters = [*model.parameters(), *readout.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=0.05)
    with counting_blocks() as counts:
        for _ in range(epochs):
            loss = F.cross_entropy(readout(model(x, edges, signature)), mine)
            optimiser.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            assert loss.isfinite()
            assert norm.isfinite()
            optimiser.step()
    return counts


@pytest.mark.parametrize("steps", [8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_a_deep_run_does_not_stop(steps, seed):
    train(steps, seed, epochs=8)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(("steps", "epochs"), [(16, 10), *([(8, 20)] if FULL else [])])
def test_a_hundred_deep_runs_do_not_stop(steps, epochs):
    rescued = sum(train(steps, seed, epochs=epochs).rescued for seed in range(100))
    assert rescued > 0  # or the runs show nothing

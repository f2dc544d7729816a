"""Each switch does what the paper's sections 4.3 and 4.5 say, and nothing else."""

from __future__ import annotations

import pytest
import torch

from geof import GeoF
from geof.geometry import target_coordinates
from geof.kernels import BACKENDS
from geof.nn.controller import CorrectionController
from geof.nn.settings import VARIANTS
from tests.graphs import random_sample


def build(backend: str = "auto", **options) -> GeoF:
    torch.manual_seed(0)
    return GeoF(
        5, 8, signature_channels=3, blocks=2, steps=3, temperature=4.0, backend=backend, **options
    ).double()


def trace(model: GeoF, sample=None):
    return model.evolve(*(sample or random_sample(0)), trajectory=True)


def test_a_checkpoint_loads_into_every_variant():
    weights = build().state_dict()
    for options in VARIANTS.values():
        build(**options).load_state_dict(weights)
    full = build()(*random_sample(0))
    different = {
        name
        for name, options in VARIANTS.items()
        if not torch.equal(build(**options)(*random_sample(0)), full)
    }
    assert different == VARIANTS.keys() - {"full"}


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_without_structure_signatures_play_no_part(backend):
    x, edge_index, u = random_sample(0)
    model = build(backend, structure_aware=False)
    assert torch.equal(model(x, edge_index, u), model(x, edge_index, 5 * u + 1))
    assert not torch.equal(build(backend)(x, edge_index, u), build(backend)(x, edge_index, 5 * u))


def test_signatures_among_the_features_are_no_part_of_structure_awareness():
    """The paper's w/o SA takes them from the gate and the correction; the lift is our own."""
    x, edge_index, u = random_sample(0)
    model = build(structure_aware=False, signature_features=True)
    state = model.evolve(x, edge_index, u)
    other = model.evolve(x, edge_index, 5 * u + 1)
    assert not torch.equal(state.initial_features, other.initial_features)
    assert torch.equal(state.initial_coordinates, other.initial_coordinates)


def test_without_atlas_every_frame_starts_as_the_identity():
    state = trace(build(atlas_initialisation=False))
    assert not state.initial_coordinates.any()
    assert state.coordinates.any()


def test_without_feedback_only_the_correction_moves_the_geometry():
    state = trace(build(feedback="none"))
    previous = state.initial_coordinates
    for step in state.trajectory:
        assert step.moment is None
        assert step.target is None
        torch.testing.assert_close(step.coordinates, previous + 0.1 * step.correction)
        previous = step.coordinates


def test_frozen_geometry_stays_where_the_atlas_put_it():
    state = trace(build(evolution="frozen"))
    assert torch.equal(state.coordinates, state.initial_coordinates)
    assert all(step.target is None and step.correction is None for step in state.trajectory)


def test_one_shot_updates_after_the_first_step_only():
    state = trace(build(evolution="one-shot"))
    first, second, third = state.trajectory
    assert torch.equal(first.coordinates, trace(build()).trajectory[0].coordinates)
    assert not torch.equal(first.coordinates, state.initial_coordinates)
    assert torch.equal(third.coordinates, first.coordinates)
    assert second.moment is None
    assert float(third.geometry_change) == 0


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_without_transport_messages_are_taken_as_they_are(backend):
    """Aggregate, residuals and statistic by hand; weights still come from the frames."""
    model = build(backend, frame_transport=False)
    x, edge_index, u = random_sample(0)
    state = trace(model, (x, edge_index, u))
    step, edges = state.trajectory[0], state.edges
    message = model.transport.message(state.initial_features).view(9, 2, 4)
    torch.testing.assert_close(
        step.aggregate.view(9, 2, 4), edges.sum(step.weight[:, None, None] * message[edges.source])
    )
    residual = message[edges.source] - message[edges.target]
    outer = step.weight[:, None, None, None] * residual.unsqueeze(-1) * residual.unsqueeze(-2)
    torch.testing.assert_close(step.moment, edges.sum(outer) + torch.eye(4).double())
    full = trace(build(backend), (x, edge_index, u)).trajectory[0]
    assert torch.equal(step.weight, full.weight)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_restricted_statistics(backend):
    full = trace(build(backend)).trajectory[0]
    mean = trace(build(backend, feedback="mean")).trajectory[0]
    diagonal = trace(build(backend, feedback="diagonal")).trajectory[0]
    eye = torch.eye(4).double()
    outer = full.mean_residual.unsqueeze(-1) * full.mean_residual.unsqueeze(-2)
    torch.testing.assert_close(mean.moment, outer + eye)
    torch.testing.assert_close(
        diagonal.moment, torch.diag_embed(full.moment.diagonal(dim1=-2, dim2=-1))
    )
    for step in (full, mean, diagonal):
        torch.testing.assert_close(step.target, target_coordinates(step.moment))


def test_correction_off_is_gamma_zero_and_comes_back():
    model, sample = build(), random_sample(0)
    on = model(*sample)
    with model.correction_off():
        off = model(*sample)
        assert trace(model).trajectory[0].correction is None
    assert torch.equal(model(*sample), on)
    assert not torch.equal(off, on)
    reference = build(correction_strength=0.0)
    assert torch.equal(reference(*sample), off)


def test_controller_equals_its_equation(random_state):
    """Eq. (11), with the concatenated input and U, V, d read row by row."""
    draw = random_state(0)
    torch.manual_seed(0)
    controller = CorrectionController(4, signature_channels=3, hidden_channels=16, rank=2).double()
    xi, aggregate, u = draw.normal(5, 2, 4), draw.normal(5, 2, 4), draw.normal(5, 3)
    got = controller(xi, aggregate, u)
    for i in range(5):
        for b in range(2):
            q = torch.cat([xi[i, b], aggregate[i, b], u[i]])
            output = controller.output(torch.nn.functional.silu(controller.hidden(q)))
            left, right = output[:8].view(4, 2), output[8:16].view(4, 2)
            product = left @ right.T
            lower = torch.stack([product[r, s] for r in range(4) for s in range(r)])
            torch.testing.assert_close(got[i, b], torch.cat([lower, output[16:]]))


def test_feature_gate_equals_its_equation(random_state):
    """Eq. (7)."""
    model = build()
    xi, aggregate = random_state(0).normal(6, 8), random_state(1).normal(6, 8)
    gate = model.transport.gate
    r = torch.sigmoid(torch.cat([xi, aggregate], 1) @ gate.weight.T + gate.bias)
    torch.testing.assert_close(model.transport(xi, aggregate), (1 - r) * xi + r * aggregate)


@pytest.mark.parametrize("bounds", [(-0.1, 0.05), (-5.0, 5.0), (0.5, 1.0), (-1.0, -0.5)])
def test_atlas_equals_its_equation(bounds):
    """Eq. (3), clipping included; with a wide box nothing needs it."""
    model = build(offdiagonal_bound=0.1 * bounds[1] + 0.2, log_scale_bounds=bounds)
    a, (low, high) = model.box.offdiagonal_bound, bounds
    u = random_sample(0)[2]
    alpha = torch.softmax(u @ model.atlas.gate.weight.T + model.atlas.gate.bias, -1)
    for shift in (0.0, 0.5005 * (low > 0) - 0.4998):  # around the bounds, too
        model.atlas.prototypes.data[..., 6:] += shift
        mixed = sum(alpha[:, k, None, None] * model.atlas.prototypes[k] for k in range(4))
        wanted = torch.cat([mixed[..., :6].clamp(-a, a), mixed[..., 6:].clamp(low, high)], -1)
        torch.testing.assert_close(model.atlas(u), wanted)
        assert torch.equal(wanted, mixed) == (bounds == (-5.0, 5.0))

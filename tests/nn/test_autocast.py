"""Under autocast dense maps compute in fewer bits and the geometry in the model's precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from geof import GeoF, GeoFConv
from geof.kernels import BACKENDS
from geof.nn import evolve_in_pieces
from tests.graphs import random_sample

X, EDGES, U = random_sample(1, nodes=30, edges=90, dtype=torch.float32)
HALF = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
BACKEND_NAMES = ["torch", "reference", *(["native"] if "native" in BACKENDS else [])]


def a_model(**options):
    torch.manual_seed(0)
    usual = {"signature_channels": U.size(1), "blocks": 4, "feed_forward": 1, "normalise": "layer"}
    return GeoF(X.size(1), 16, **{**usual, **options})


def relative(found, wanted):
    difference, size = (found.double() - wanted.double()).norm(), wanted.double().norm()
    return (difference / size).item()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_values_and_gradients_are_those_within_the_formats_error(backend, dtype):
    model = a_model(backend=backend)
    wanted = model(X, EDGES, U)
    wanted.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with torch.autocast("cpu", dtype):
        found = model(X, EDGES, U)
    assert found.dtype == torch.float32
    # Some ten products one after another, each rounded to half a unit: not the same, but near.
    assert 0 < relative(found, wanted) < 10 * HALF[dtype]
    found.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32
        assert relative(parameter.grad, gradients[name]) < 40 * HALF[dtype], name


def test_which_parts_are_lowered():
    model, seen = a_model(backend="torch"), {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda m, i, out, name=name: seen.update({name: out.dtype})
            )
    with torch.autocast("cpu", torch.bfloat16):
        state = model.evolve(X, EDGES, U, trajectory=True)
    lowered = {name for name, dtype in seen.items() if dtype == torch.bfloat16}
    kept = {name for name, dtype in seen.items() if dtype == torch.float32}
    assert {"feature_lift", "transport.message"} < lowered
    assert any(name.startswith("refinement.feed_forward") for name in lowered)
    assert kept == {"atlas.gate"}
    assert {state.features.dtype, state.coordinates.dtype} == {torch.float32}
    assert {step.weight.dtype for step in state.trajectory} == {torch.float32}


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_the_geometry_of_given_states_is_that_of_full_precision(backend):
    """What makes frames of states sees no autocast: with dense maps of few bits it is the same."""
    model = a_model(backend=backend, normalise="none", feed_forward=0)
    with torch.no_grad():  # what bfloat16 holds exactly
        for parameter in (model.transport.message.weight, model.feature_lift.weight):
            parameter.copy_(torch.eye(*parameter.shape))
    x = X.bfloat16().float()
    edges = model.neighbourhoods(EDGES, len(x))
    state = model.initial_state(x, U)
    wanted, _ = model.step(state, edges, U, trace=True)
    with torch.autocast("cpu", torch.bfloat16):
        lowered = model.initial_state(x, U)
        found, _ = model.step(lowered, edges, U, trace=True)
    torch.testing.assert_close(lowered.features, state.features, rtol=0, atol=0)
    torch.testing.assert_close(lowered.coordinates, state.coordinates, rtol=0, atol=0)
    torch.testing.assert_close(found.coordinates, wanted.coordinates, rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_a_layer_and_inference_in_pieces_go_along(backend):
    model, conv = a_model(backend=backend), GeoFConv(X.size(1), 16, blocks=4, backend=backend)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        whole = model(X, EDGES, U)
        pieces = evolve_in_pieces(model, X, EDGES, U, piece_size=20)
        assert relative(pieces, whole) < 2**-6
        assert relative(conv(X, EDGES)[0], whole_step(conv)) < 2**-6


def whole_step(conv):
    with torch.autocast("cpu", enabled=False):
        return conv(X, EDGES)[0]


def test_what_an_earlier_layer_lowered_is_taken():
    model, before = a_model(), nn.Linear(X.size(1), X.size(1))
    with torch.autocast("cpu", torch.bfloat16):
        lowered = before(X)
        assert lowered.dtype == torch.bfloat16
        loss = model(lowered, EDGES, U).sum()
        GeoFConv(X.size(1), 16, blocks=4)(lowered, EDGES)
    loss.backward()
    assert before.weight.grad.isfinite().all()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_sparse_features_are_multiplied_as_they_are(layout):
    model = a_model(feed_forward=0)
    sparse = X.to_sparse_csr() if layout == torch.sparse_csr else X.to_sparse()
    wanted = model.initial_state(sparse, U).features
    with torch.autocast("cpu", torch.bfloat16):
        found = model.initial_state(sparse, U).features
    assert torch.equal(found, wanted)

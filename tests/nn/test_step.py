"""The step of a layer: one text for the fast and for the traced path."""

from __future__ import annotations

import pytest
import torch

from geof import GeoF
from geof.errors import NonFiniteError
from geof.kernels import BACKENDS, Neighbourhoods
from geof.nn import CoupledState, GeoFConv
from geof.nn.inputs import SparseLinear
from geof.nn.settings import VARIANTS
from geof.testing import assert_same, values_and_gradients
from tests.graphs import random_sample

every_backend = pytest.mark.parametrize("backend", sorted(BACKENDS))
every_variant = pytest.mark.parametrize("variant", sorted(VARIANTS))


def build(backend="auto", **options) -> GeoF:
    torch.manual_seed(0)
    sizes = {"signature_channels": 3, "blocks": 3, "steps": 3, "temperature": 4.0}
    return GeoF(5, 12, backend=backend, **{**sizes, **options}).double()


def rounding(backend) -> float:
    """Return 0, the same bits, for backends that fuse nothing."""
    return 1e-12 if BACKENDS[backend].fused else 0


@every_backend
@every_variant
def test_a_traced_step_is_the_step(backend, variant):
    model = build(backend, **VARIANTS[variant])
    x, edge_index, u = random_sample(0)
    state = model.initial_state(x, u)
    edges = model.evolve(x, edge_index, u).edges
    for number in range(2):
        following, nothing = model.step(state, edges, u, number)
        assert nothing is None
        traced, trace = model.step(state, edges, u, number, trace=True)
        assert_same(traced._asdict(), following._asdict(), rounding(backend))
        assert trace.features is traced.features
        assert trace.coordinates is traced.coordinates
        state = following


class Traced(torch.nn.Module):
    """A network that is evaluated with its trajectory."""

    def __init__(self, model: GeoF) -> None:
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, u):
        state = self.model.evolve(x, edge_index, u, trajectory=True)
        assert len(state.trajectory) == self.model.steps
        return state.output


@every_backend
@every_variant
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_a_traced_evolution_is_the_evolution(backend, variant, recompute):
    """Values and gradients, also where the steps are computed once more for the backward pass."""
    sample = random_sample(0, nodes=12, edges=40)
    options = {"backend": backend, "outputs": "all", **VARIANTS[variant]}
    fast = values_and_gradients(build(**options), *sample)
    traced = values_and_gradients(Traced(build(recompute=recompute, **options)), *sample)
    traced = {name.replace("model.", ""): value for name, value in traced.items()}
    assert_same(traced, fast, 1e-11 if BACKENDS[backend].fused else 0)


@every_backend
def test_the_number_of_a_step_decides_where_the_variant_says_so(backend):
    x, edge_index, u = random_sample(0)
    for evolution, moves in (
        ("recurrent", [True, True]),
        ("one-shot", [True, False]),
        ("frozen", [False, False]),
    ):
        model = build(backend, evolution=evolution)
        state, edges = model.initial_state(x, u), model.evolve(x, edge_index, u).edges
        for number, moved in enumerate(moves):
            following, trace = model.step(state, edges, u, number, trace=True)
            assert torch.equal(following.coordinates, state.coordinates) != moved
            assert (trace.moment is not None) == moved
            assert (trace.correction is not None) == moved


@every_backend
def test_a_layer_s_step_is_what_its_forward_returns(backend):
    torch.manual_seed(0)
    conv = GeoFConv(12, blocks=3, signature_channels=3, backend=backend).double()
    x, edge_index, u = random_sample(0, channels=12)
    features, coordinates = conv(x, edge_index, signature=u)
    state = CoupledState(x, conv.identity_coordinates(9))
    following, _ = conv.step(state, Neighbourhoods.from_edge_index(edge_index, 9), u)
    assert torch.equal(following.features, features)
    assert torch.equal(following.coordinates, coordinates)


@pytest.mark.slow
def test_recomputing_compiles_to_one_graph():
    sample = random_sample(0, dtype=torch.float32)
    model = build(recompute=True, steps=2).float()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same({"h": compiled(*sample)}, {"h": model(*sample)}, 1e-6)


def test_the_lift_takes_dense_and_sparse_rows_alike():
    model = build()
    assert isinstance(model.feature_lift, SparseLinear)
    assert model.feature_lift.bias is None
    x, _, u = random_sample(0)
    x = torch.where(x > 0, x, 0.0)
    dense, sparse = (model.initial_state(given, u).features for given in (x, x.to_sparse()))
    torch.testing.assert_close(sparse, dense, rtol=1e-13, atol=1e-13)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("blocks", [4, 8, 16])
def test_an_overflow_never_passes_for_a_bound(backend, dtype, blocks):
    """Infinities of both signs: a fused sum keeps the first, and the clip would hide it.

    For larger blocks torch's own products are fused, too.
    """
    torch.manual_seed(0)
    conv = GeoFConv(32, blocks=blocks, backend=backend).to(dtype)
    with torch.no_grad():
        conv.controller.output.bias.uniform_(-1, 1).mul_(torch.finfo(dtype).max)
    x, edge_index = torch.randn(4, 32, dtype=dtype), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    x, coordinates = conv(x, edge_index)
    offdiagonal = coordinates[..., : -(32 // blocks)]
    assert offdiagonal.isnan().any()
    with pytest.raises(NonFiniteError):
        conv(x, edge_index, coordinates)


@every_backend
def test_a_temperature_without_a_reciprocal_gives_finite_gradients(backend):
    """Far neighbours weigh nothing: their share of the gradient is zero, not zero by infinity."""
    x, edge_index, u = random_sample(0)
    model = build(backend, temperature=1e-320)
    got = values_and_gradients(model, x, edge_index, u)
    assert all(value.isfinite().all() for value in got.values())
    assert_same(
        got, values_and_gradients(build("reference", temperature=1e-320), x, edge_index, u), 1e-9
    )


@every_backend
@pytest.mark.parametrize(
    "options",
    [{}, {"scale_features": True}, {"normalise": "batch", "outputs": "all"}, {"recompute": True}],
    ids=str,
)
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_evaluating_first_does_not_stand_in_the_way_of_training(backend, options, layout):
    """What is kept of a pass in inference mode must serve the passes after it."""
    model = build(backend, **options)
    x, edge_index, u = random_sample(0)
    x = x if layout == "dense" else x.to_sparse_csr()
    edges = Neighbourhoods.from_edge_index(edge_index, len(x))
    with torch.inference_mode():
        inside = Neighbourhoods.from_edge_index(edge_index, len(x))
        for prepared in (edges, inside):
            model.eval()(x, prepared, u)
    for prepared in (edges, inside):
        model.train()(x, prepared, u).sum().backward()

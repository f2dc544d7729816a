"""GeoF as a PyG module: shapes, symmetries, odd graphs, compile, save and load."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import pickle
import shutil
import warnings

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import from_networkx

from geof import GeoF, GeoFConv
from geof.geometry import log_determinant, metric_from_coordinates
from geof.kernels import BACKENDS, Neighbourhoods, resolve_backend
from geof.nn.settings import VARIANTS, StepSettings
from geof.testing import (
    assert_batch_equals_alone,
    assert_compiles,
    assert_edge_order_irrelevant,
    assert_permutation_equivariant,
    assert_positive_definite,
    assert_same,
    values_and_gradients,
)
from geof.training import load_checkpoint, save_checkpoint
from tests.graphs import random_sample

BACKEND_NAMES = sorted(BACKENDS)


def build(**options) -> GeoF:
    torch.manual_seed(0)
    return GeoF(5, 12, **{"signature_channels": 3, "blocks": 3, "temperature": 4.0, **options})


def test_parameters_have_the_documented_names_and_shapes():
    model = GeoF(5, 12, signature_channels=3, blocks=3, prototypes=4, correction_rank=2)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == {
        "feature_lift.weight": (12, 5),
        "atlas.gate.weight": (4, 3),
        "atlas.gate.bias": (4,),
        "atlas.prototypes": (4, 3, 10),
        "transport.message.weight": (12, 12),
        "transport.gate.weight": (12, 24),
        "transport.gate.bias": (12,),
        "controller.hidden.weight": (8, 11),
        "controller.hidden.bias": (8,),
        "controller.output.weight": (20, 8),
        "controller.output.bias": (20,),
    }


def test_defaults_are_those_of_the_settings():
    parameters = inspect.signature(GeoF).parameters
    for field in dataclasses.fields(StepSettings):
        assert parameters[field.name].default == field.default, field.name
    assert parameters["hidden_channels"].default == 64
    assert (parameters["blocks"].default, parameters["prototypes"].default) == (8, 4)
    assert parameters["steps"].default == 2
    assert parameters["backend"].default == "auto"


def test_repr_names_the_sizes():
    assert str(build()) == "GeoF(5, 12, blocks=3, steps=2)"
    assert str(GeoFConv(16, blocks=4)) == "GeoFConv(16, blocks=4)"


def test_message_map_starts_at_the_identity_and_reset_restores_it():
    model = build()
    model.transport.message.weight.data.zero_()
    before = model.atlas.prototypes.clone()
    model.reset_parameters()
    assert torch.equal(model.transport.message.weight, torch.eye(12))
    assert not torch.equal(model.atlas.prototypes, before)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_gradcheck_with_and_without_clipping(backend):
    x, edge_index, u = random_sample(0, nodes=5, edges=9)
    for options, clipped in (
        ({}, False),
        ({"offdiagonal_bound": 0.05, "log_scale_bounds": (-0.02, 0.02)}, True),
    ):
        model = build(backend=backend, correction_strength=1.0, **options).double()
        inside = model.evolve(x, edge_index, u).coordinates
        bounds = inside.abs() >= inside.abs().max() - 1e-12
        assert (int(bounds.sum()) > 1) == clipped
        names = [name for name, _ in model.named_parameters()]

        def run(x, u, *parameters, model=model, names=names):
            return torch.func.functional_call(
                model, dict(zip(names, parameters, strict=True)), (x, edge_index, u)
            )

        inputs = [x, u, *(p.detach() for p in model.parameters())]
        fast = [value.clone().requires_grad_() for value in inputs]
        assert torch.autograd.gradcheck(run, fast, fast_mode=True)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_symmetries(backend):
    model = build(backend=backend).double()
    for seed in range(5):
        sample = random_sample(seed, nodes=11, edges=30)
        assert_permutation_equivariant(model, *sample, seed=seed)
        assert_edge_order_irrelevant(model, *sample, seed=seed)


def test_permutation_over_the_graph_atlas():
    model = build().double()
    for graph in nx.graph_atlas_g()[1:60]:
        edge_index = from_networkx(graph).edge_index.reshape(2, -1).long()
        n = graph.number_of_nodes()
        x, _, u = random_sample(n, nodes=n, edges=0)
        assert_permutation_equivariant(model, x, edge_index, u)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_repeated_edges_and_given_self_loops_count_once(backend):
    model = build(backend=backend).double()
    x, _, u = random_sample(0, nodes=4, edges=0)
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    repeated = torch.cat([edge_index, edge_index[:, :2], torch.tensor([[3, 0], [3, 0]])], dim=1)
    assert torch.equal(model(x, repeated, u), model(x, edge_index, u))


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_odd_graphs(backend):
    """One node, no edges, no nodes, isolated nodes: an isolated node hears only itself."""
    model = build(backend=backend).double()
    none = torch.empty(2, 0, dtype=torch.long)
    x, edge_index, u = random_sample(0, nodes=6, edges=8)
    alone = torch.cat([model(x[i : i + 1], none, u[i : i + 1]) for i in range(6)])
    assert_same({"h": model(x, none, u)}, {"h": alone}, 1e-12)
    assert model(x[:0], none, u[:0]).shape == (0, 12)
    state = model.evolve(x[:0], none, u[:0], trajectory=True)
    assert state.trajectory[0].geometry_change.item() == 0
    edge_index = edge_index[:, (edge_index != 2).all(0)]
    assert_same({"h": model(x, edge_index, u)[2:3]}, {"h": alone[2:3]}, 1e-12)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_batches_equal_each_graph_alone(backend):
    model = build(backend=backend).double()
    graphs = [
        random_sample(s, nodes=n, edges=e) for s, (n, e) in enumerate([(5, 9), (1, 0), (7, 20)])
    ]
    assert_batch_equals_alone(model, graphs)
    batch = Batch.from_data_list([Data(x=x, edge_index=e, signature=u) for x, e, u in graphs])
    together = model(batch.x, batch.edge_index, batch.signature, batch.batch)
    assert_same({"h": together}, {"h": torch.cat([model(*g) for g in graphs])}, 1e-10)


def test_prepared_neighbourhoods_give_the_same_bits():
    model = build()
    x, edge_index, u = random_sample(0, dtype=torch.float32)
    edges = Neighbourhoods.from_edge_index(edge_index, len(x))
    assert torch.equal(model(x, edges, u), model(x, edge_index, u))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_features(layout):
    model = build().double()
    x, edge_index, u = random_sample(0)
    x = torch.where(x > 0.5, x, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its CSR support is in beta
        sparse = x.to_sparse_csr() if layout == torch.sparse_csr else x.to_sparse()
        got = model(sparse, edge_index, u)
        got.square().sum().backward()
    gradient = model.feature_lift.weight.grad.clone()
    model.zero_grad()
    wanted = model(x, edge_index, u)
    wanted.square().sum().backward()
    assert_same(
        {"h": got, "W_in": gradient}, {"h": wanted, "W_in": model.feature_lift.weight.grad}, 1e-12
    )


@pytest.mark.parametrize(
    "backend",
    # What 'auto' chooses, and the others with more time.
    [
        name
        if name == resolve_backend("auto", 4).name
        else pytest.param(name, marks=pytest.mark.slow)
        for name in BACKEND_NAMES
    ],
)
def test_compiles_to_one_graph_for_all_sizes(backend):
    samples = [
        random_sample(s, nodes=n, edges=e, dtype=torch.float32)
        for s, (n, e) in enumerate([(9, 24), (14, 50), (30, 61)])
    ]
    assert_compiles(build(backend=backend), samples)


def test_exports_to_one_graph():
    model = build()
    sample = random_sample(0, dtype=torch.float32)
    program = torch.export.export(model, sample)
    assert_same({"h": program.module()(*sample)}, {"h": model(*sample)}, 1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_same_bits(threads):
    sample = random_sample(0, nodes=400, edges=6000, dtype=torch.float32)
    torch.set_num_threads(threads)
    try:
        first, second = (values_and_gradients(build(), *sample) for _ in range(2))
    finally:
        torch.set_num_threads(1)
    for name, value in first.items():
        assert torch.equal(second[name], value), name


def test_save_and_load_through_safetensors(tmp_path):
    sample = random_sample(0, dtype=torch.float32)
    model, other = build(), GeoF(5, 12, signature_channels=3, blocks=3, temperature=4.0)
    save_checkpoint(tmp_path / "model.safetensors", model)
    load_checkpoint(tmp_path / "model.safetensors", other)
    assert torch.equal(other(*sample), model(*sample))


def test_copies_and_pickles():
    sample = random_sample(0, dtype=torch.float32)
    model = build()
    buffer = io.BytesIO(pickle.dumps(model))
    for other in (copy.deepcopy(model), pickle.load(buffer)):
        assert torch.equal(other(*sample), model(*sample))


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_recomputing_steps_changes_nothing_but_memory(backend, variant):
    sample = random_sample(0, nodes=12, edges=40)
    results, kept = [], []
    for recompute in (False, True):
        model = build(steps=3, backend=backend, recompute=recompute, **VARIANTS[variant]).double()
        saved: list[int] = []

        def note(tensor, saved=saved):
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(*sample)
        kept.append(sum(saved))
        results.append(values_and_gradients(model, *sample))
    assert_same(results[1], results[0], tolerance=0)
    assert kept[1] < 0.7 * kept[0]


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_trajectory_tells_what_happened(backend):
    model = build(steps=3, backend=backend).double()
    x, edge_index, u = random_sample(0)
    state = model.evolve(x, edge_index, u, trajectory=True)
    assert model.evolve(x, edge_index, u).trajectory is None
    assert len(state.trajectory) == 3
    previous = state.initial_coordinates
    for trace in state.trajectory:
        torch.testing.assert_close(state.edges.sum(trace.weight), torch.ones(9).double())
        change = (trace.coordinates - previous).norm(dim=-1).mean()
        torch.testing.assert_close(trace.geometry_change, change)
        updated = torch.lerp(previous, trace.target, 0.5) + 0.1 * trace.correction
        torch.testing.assert_close(trace.coordinates, model.box.project(updated))
        assert int(trace.retried_blocks) == 0
        previous = trace.coordinates
    last = state.trajectory[-1]
    assert torch.equal(last.coordinates, state.coordinates)
    assert torch.equal(last.features, state.features)
    # A traced native step is taken part by part: the same numbers up to rounding.
    torch.testing.assert_close(state.environment, model(x, edge_index, u), rtol=1e-12, atol=1e-12)
    assert log_determinant(state.coordinates).shape == (9, 3)


def test_geometry_stays_positive_definite_over_many_steps():
    model = build(steps=25, correction_strength=3.0).double()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    state = model.evolve(*random_sample(0), trajectory=True)
    for trace in state.trajectory:
        assert model.box.contains(trace.coordinates).all()
        assert_positive_definite(metric_from_coordinates(trace.coordinates))


def test_conv_composes_to_the_network():
    """Steps of a GeoFConv with the parameters of a GeoF are the steps of that GeoF."""
    model = build().double()
    x, edge_index, u = random_sample(0)
    conv = GeoFConv(12, signature_channels=3, blocks=3, temperature=4.0).double()
    conv.load_state_dict(
        {k: v for k, v in model.state_dict().items() if k.startswith(("transport", "controller"))}
    )
    xi, coordinates = model.initial_state(x, u)
    for _ in range(2):
        xi, coordinates = conv(xi, edge_index, coordinates=coordinates, signature=u)
    assert torch.equal(conv.environment(xi, coordinates), model(x, edge_index, u))


def test_conv_needs_no_signature_and_no_coordinates():
    conv = GeoFConv(8, blocks=2).double()
    x, edge_index, _ = random_sample(0, channels=8)
    xi, coordinates = conv(x, edge_index)
    again = conv(x, edge_index, coordinates=torch.zeros(9, 2, 10, dtype=torch.float64))
    assert torch.equal(again[0], xi)
    assert torch.equal(again[1], coordinates)


@pytest.mark.slow
def test_compiles_with_the_default_compiler():
    """Inductor's own code, forward and backward; needs a C++ compiler, as torch.compile does."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("torch.compile's default compiler needs a C++ compiler")
    torch._dynamo.reset()
    sample = random_sample(0, nodes=40, edges=200, dtype=torch.float32)
    model = build()
    compiled = torch.compile(build(), fullgraph=True)
    output = compiled(*sample)
    output.square().sum().backward()
    wanted = model(*sample)
    wanted.square().sum().backward()
    assert_same({"h": output}, {"h": wanted}, 1e-5)
    for (name, ours), theirs in zip(
        compiled._orig_mod.named_parameters(), model.parameters(), strict=True
    ):
        assert_same({name: ours.grad}, {name: theirs.grad}, 1e-4)

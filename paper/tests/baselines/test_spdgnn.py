"""SPDGNN computes Frechet means of positive definite matrices, and so does its decoder."""

from __future__ import annotations

import math

import pytest
import torch

from geof.errors import ShapeError
from geof.methods.interface import Encoding, GraphInputs, InputShape
from geof.testing import (
    MethodTestCase,
    assert_positive_definite,
    assert_same,
    draw_parameters,
    random_graph,
)
from geof.training import Network, RunConfig
from geof_paper.baselines.fermi_dirac import FermiDiracReadout
from geof_paper.baselines.spdgnn import SPDGNN, transformed

JITTER = 1e-5


def build(**options) -> SPDGNN:
    torch.manual_seed(0)
    model = SPDGNN(5, **{"matrix_size": 4, "dropout": 0.0, **options}).double()
    return draw_parameters(model, spread=1.0)


def matrix_of(coords: torch.Tensor) -> torch.Tensor:
    """P from coordinates, entry by entry: rows of the strictly lower part, then log-diagonal."""
    size = (math.isqrt(8 * len(coords) + 1) - 1) // 2
    factor = torch.zeros(size, size, dtype=coords.dtype)
    values = iter(coords)
    for row in range(size):
        for column in range(row):
            factor[row, column] = next(values)
    for row in range(size):
        factor[row, row] = next(values).exp()
    return factor @ factor.t()


def coordinates_of(matrix: torch.Tensor) -> torch.Tensor:
    factor = torch.linalg.cholesky(matrix)
    size = len(factor)
    lower = [factor[row, column] for row in range(size) for column in range(row)]
    return torch.stack(lower + [factor[row, row].log() for row in range(size)])


def by_hand(model: SPDGNN, given: GraphInputs, floor: float, rectify: bool) -> torch.Tensor:
    """The network node by node, with matrices instead of coordinates where possible."""
    nodes = given.x.size(0)
    heard = [{i} for i in range(nodes)]
    for j, i in given.edge_index.t().tolist():
        heard[i].add(j)
    lifted = given.x @ model.lift.weight.t() + model.lift.bias
    size = int(model.transforms[0].weight.size(1))
    lifted[:, -size:] = lifted[:, -size:].clamp(-5, 5)
    matrices = [matrix_of(row) for row in lifted]
    for transform in model.transforms:
        q = transform.weight
        eye = JITTER * torch.eye(len(q), dtype=q.dtype)
        charts = [coordinates_of(q @ matrix @ q.t() + eye) for matrix in matrices]
        matrices = []
        for i in range(nodes):
            mean = sum(charts[j] for j in heard[i]) / len(heard[i])
            mean[-len(q) :] = mean[-len(q) :].exp().clamp(min=floor).log()
            if rectify:
                mean[: -len(q)] = mean[: -len(q)].clamp(min=0)
            matrices.append(matrix_of(mean))
    return torch.stack([coordinates_of(matrix) for matrix in matrices])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"factorisation": "cholesky"},
        {"floor": 1.0, "num_layers": 3},
        {"out_size": 2, "rectify_lower": True},
    ],
    ids=str,
)
def test_equals_matrices_by_hand(options):
    given, model = GraphInputs.build(*random_graph()), build(**options)
    wanted = by_hand(model, given, options.get("floor", 0.5), options.get("rectify_lower", False))
    assert_same({"z": model(given)}, {"z": wanted}, 1e-10)
    assert model.out_channels == wanted.size(1)


def test_the_two_routes_agree_and_their_gradients_too():
    coords = torch.randn(6, 10, dtype=torch.float64)
    weight = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q[:3]
    results = []
    for route in ("qr", "cholesky"):
        z, q = coords.clone().requires_grad_(), weight.clone().requires_grad_()
        out = transformed(z, q, route)
        out.sin().sum().backward()
        results.append({"out": out, "coords": z.grad, "weight": q.grad})
    assert_same(*results, 1e-8)


def test_gradients_by_differences():
    coords = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q[:2].requires_grad_()
    assert torch.autograd.gradcheck(transformed, (coords, weight))


def test_the_mean_of_identical_matrices_is_itself():
    """Equal features everywhere: what a node hears changes nothing, with or without edges."""
    x, edge_index, u = random_graph()
    x = x[:1].expand_as(x).contiguous()
    model = build(floor=1e-9)
    linked = model(GraphInputs.build(x, edge_index, u))
    alone = model(GraphInputs.build(x, edge_index[:, :0], u))
    assert_same({"z": linked}, {"z": alone}, 1e-12)
    assert_same({"z": linked}, {"z": linked[:1].expand_as(linked)}, 1e-12)


def test_matrices_are_positive_definite_and_the_floor_acts():
    given = GraphInputs.build(*random_graph())
    for options in ({}, {"floor": 1.0}, {"out_size": 3}):
        z = build(**options)(given)
        matrices = torch.stack([matrix_of(row) for row in z])
        assert_positive_definite((matrices + matrices.mT) / 2)
        size = matrices.size(-1)
        least = z[:, -size:].exp().min()
        assert least >= options.get("floor", 0.5) * (1 - 1e-12)
    free = build(floor=1e-9)(given)
    assert free[:, -4:].exp().min() < 0.5, "the floor of this test does not act"


def test_transforms_stay_orthonormal_while_training():
    torch.manual_seed(0)
    model = SPDGNN(5, matrix_size=4, out_size=3)
    x, edge_index, u = random_graph()
    given = GraphInputs.build(x.float(), edge_index, u.float())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.01)
    before = [layer.weight.detach().clone() for layer in model.transforms]
    for _ in range(5):
        optimiser.zero_grad()
        model(given).square().sum().backward()
        optimiser.step()
    for layer, start in zip(model.transforms, before, strict=True):
        weight = layer.weight.detach()
        eye = torch.eye(len(weight))
        torch.testing.assert_close(weight @ weight.t(), eye, rtol=0, atol=1e-5)
        assert (weight - start).abs().max() > 0.01, "it does not learn"


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_gradients_are_finite_for_any_lift(scale):
    """Large lower parts over tiny diagonals: the inverse of the factor is in the gradient."""
    torch.manual_seed(0)
    model = SPDGNN(5, matrix_size=8, dropout=0.0)
    x, edge_index, u = random_graph(nodes=200, edges=800)
    model(GraphInputs.build(scale * x.float(), edge_index, u.float())).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()


def test_normalisation_keeps_the_lift_out_of_its_clamp():
    """A large common part of all features: without it all diagonals are at the clamp."""
    x, edge_index, u = random_graph(nodes=50)
    given = GraphInputs.build(x + 100.0, edge_index[:, :0], u)
    spread = {}
    for norm in ("none", "batch", "layer"):
        model = build(norm=norm, num_layers=1).train()
        model(given).sum().backward()
        spread[norm] = float(model.lift.weight.grad[-4:].abs().max())
    assert spread["none"] == 0.0
    assert spread["batch"] > 1e-3
    assert spread["layer"] > 0.0


def test_the_decoder_is_fermi_dirac():
    """The probability of the definition, and the Frobenius distance of log-Cholesky factors."""
    torch.manual_seed(0)
    states = torch.randn(5, 6, dtype=torch.float64)
    pairs = torch.tensor([[0, 1, 2, 3], [1, 0, 2, 4]])
    given = GraphInputs.build(*random_graph(0, nodes=5))
    readout = FermiDiracReadout(6, radius=1.5, temperature=0.5)
    logits = readout(Encoding(states), given, pairs)
    for logit, (u, v) in zip(logits, pairs.t().tolist(), strict=True):
        charts = []
        for node in (u, v):
            factor = torch.linalg.cholesky(matrix_of(states[node]))
            charts.append(factor.tril(-1) + factor.diagonal().log().diag())
        distance = torch.linalg.matrix_norm(charts[0] - charts[1])
        wanted = 1 / (((distance**2 - 1.5) / 0.5).exp() + 1)
        torch.testing.assert_close(logit.sigmoid(), wanted, rtol=1e-10, atol=1e-12)
    assert logits[0] == logits[1], "(u, v) and (v, u) differ"
    assert logits[2] == 3.0, "a pair of equal states has logit r / t"
    with pytest.raises(ShapeError, match=r"\(2, P\)"):
        readout(Encoding(states), given, pairs.t())


def test_links_use_it_unless_told_otherwise():
    given = GraphInputs.build(*random_graph())
    pairs = torch.tensor([[0, 1, 4], [2, 3, 4]])
    config = RunConfig(method="spdgnn", task="link", options={"matrix_size": 3})
    network = Network(config, InputShape(5, 3, 2)).double().eval()
    z = network.encoder(given)
    wanted = 2.0 - (z[pairs[0]] - z[pairs[1]]).square().sum(-1)
    assert_same({"logits": network(given, pairs)}, {"logits": wanted}, 1e-12)
    shared = RunConfig(method="spdgnn", task="link", readout={"kind": "shared"})
    readout = Network(shared, InputShape(5, 3, 2)).readout
    assert any("mlp" in name for name, _ in readout.named_modules())


class TestSPDGNN(MethodTestCase):
    method = "spdgnn"
    options = {"matrix_size": 4}
    # Few epochs do as a rule; if not, as many as for every method.
    learning = ((0.01, 25), *MethodTestCase.learning)
    variants = ({}, {"out_size": 3, "norm": "batch"}, {"factorisation": "cholesky"})
    refused = (
        ({"matrix_size": 0}, "'matrix_size'"),
        ({"out_size": 9}, "'out_size' of at most 'matrix_size'"),
        ({"out_size": 0}, "'out_size'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"floor": 0.0}, "'floor'"),
        ({"norm": "bach"}, "'norm'.*Did you mean 'batch'"),
        ({"factorisation": "qrr"}, "'factorisation'.*Did you mean 'qr'"),
    )
    refused_readout = (
        ("link", {"temperature": 0.0}, "temperature"),
        ("link", {"radius": math.inf}, "radius"),
    )

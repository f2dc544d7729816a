"""ML2-GCL computes what its equations say, in linear memory, and learns without labels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

from geof.methods.interface import GraphInputs, HasPretext
from geof.testing import MethodTestCase, assert_same, draw_parameters
from geof_paper.baselines.lle import lle_weights
from geof_paper.baselines.ml2_gcl import ML2GCL, neighbour_loss

NONE = torch.empty(2, 0, dtype=torch.long)


def graph(seed: int = 0, nodes: int = 12, edges: int = 20, channels: int = 5) -> GraphInputs:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    edge_index = torch.randint(0, nodes - 2, (2, edges), generator=generator)  # two are isolated
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
    return GraphInputs.build(x, edge_index, torch.zeros(nodes, 3).double())


def build(task="node", **options) -> ML2GCL:
    torch.manual_seed(0)
    model = ML2GCL(5, task, **{"hidden_channels": 6, **options}).double()
    return draw_parameters(model, spread=1.0, statistics=False)


def dense_loss(z, W, tau, rows=None, candidates=None):
    """The published loss with its n x n matrices, over nodes that have neighbours."""
    S = (F.cosine_similarity(z[:, None], z[None], dim=-1) / tau).exp()
    allowed = (W == 0).to(z.dtype)
    if candidates is not None:
        allowed = allowed * torch.zeros(len(z)).index_fill(0, candidates, 1.0).to(z.dtype)
    rows = W.sum(1).nonzero().view(-1) if rows is None else rows
    pos = (W * S).sum(1)[rows] + 1e-8
    neg = ((allowed * S).sum(1) / allowed.sum(1).clamp_min(1))[rows] + 1e-8
    return -(pos / (pos + neg)).log().mean()


def dense_weights(given: GraphInputs, weight: torch.Tensor) -> torch.Tensor:
    W = torch.zeros(given.x.size(0), given.x.size(0), dtype=torch.float64)
    W[given.edges.target, given.edges.source] = weight
    return W


def graded(function, z: torch.Tensor) -> dict[str, torch.Tensor]:
    z = z.clone().requires_grad_()
    loss = function(z)
    (gradient,) = torch.autograd.grad(loss, z)
    return {"loss": loss, "gradient": gradient}


@pytest.mark.parametrize("tau", [0.1, 0.7])
def test_the_loss_on_200_nodes_is_the_dense_one(tau):
    """Some weights are clipped to zero, so some neighbours are negatives; so is the node itself."""
    given = graph(1, nodes=200, edges=700)
    weight = lle_weights(given, ridge=0.01, binarise=False)
    W = dense_weights(given, weight)
    assert int((W[given.edge_index[1], given.edge_index[0]] == 0).sum()) > 50
    z = torch.randn(200, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours = graded(lambda z: neighbour_loss(z, given.edges, weight, tau), z)
    assert_same(ours, graded(lambda z: dense_loss(z, W, tau), z), 1e-10)
    with_all = graded(lambda z: neighbour_loss(z, given.edges, weight, tau, anchors=200), z)
    assert_same(with_all, ours, 0.0)


def test_drawn_anchors_and_candidates():
    given = graph(1, nodes=60, edges=150)
    weight = lle_weights(given, ridge=0.01, binarise=False)
    W = dense_weights(given, weight)
    z = torch.randn(60, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    usable = W.sum(1).nonzero().view(-1)
    torch.manual_seed(5)
    rows = usable[torch.randperm(len(usable))[:15].sort().values]
    candidates = torch.randperm(60)[:15].sort().values

    def ours(z):
        torch.manual_seed(5)
        return neighbour_loss(z, given.edges, weight, 0.7, anchors=15)

    assert_same(
        graded(ours, z), graded(lambda z: dense_loss(z, W, 0.7, rows, candidates), z), 1e-10
    )


def test_the_drawn_loss_is_near_the_whole_one():
    given = graph(1, nodes=200, edges=700)
    weight = lle_weights(given, ridge=0.01, binarise=False)
    z = torch.randn(200, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.manual_seed(0)
    drawn = [neighbour_loss(z, given.edges, weight, 0.7, anchors=50) for _ in range(200)]
    whole = neighbour_loss(z, given.edges, weight, 0.7)
    torch.testing.assert_close(torch.stack(drawn).mean(), whole, rtol=0.02, atol=0.0)


def test_nothing_to_learn_from_is_a_loss_of_zero():
    for nodes in (1, 4):
        given = GraphInputs.build(torch.rand(nodes, 5).double(), NONE, torch.zeros(nodes, 3))
        for options in ({}, {"anchors": 2}):
            model = build(**options).train()
            loss = model.pretext_loss(given)
            loss.backward()
            assert float(loss.detach()) == 0.0
            assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_zero_states_and_isolated_nodes_have_finite_gradients():
    given = graph()
    weight = lle_weights(given, ridge=0.01, binarise=True)
    z = torch.randn(12, 4).double()
    z[[0, 11]] = 0.0
    found = graded(lambda z: neighbour_loss(z, given.edges, weight, 0.7), z)
    assert all(value.isfinite().all() for value in found.values())
    assert float(found["loss"].detach()) < 5  # a positive sum of 1e-8 would give 18


def by_hand(model: ML2GCL, given: GraphInputs, x: torch.Tensor) -> list[torch.Tensor]:
    A = torch.eye(len(x)).double()
    A[given.edge_index[1], given.edge_index[0]] = 1
    scale = A.sum(1).rsqrt()
    A = scale[:, None] * A * scale[None]
    slope, states = model.trunk.activation.weight, []
    for layer in model.trunk.layers:
        z = A @ x @ layer.linear.weight.t() + layer.bias
        x = torch.where(z > 0, z, slope * z)
        states.append(x)
    return states


def test_the_encoder_by_hand():
    given = graph()
    binary = (given.x > 0).double()
    for options, x in (
        ({}, binary),
        ({"binarise": False}, given.x),
        ({"scale_features": True}, F.normalize(binary, dim=-1) * 5**0.5),
        ({"num_layers": 3, "outputs": "all"}, binary),
    ):
        model = build(scale_states=False, **options)
        states = by_hand(model, given, x)
        wanted = torch.cat(states, dim=-1) if "outputs" in options else states[-1]
        assert model.out_channels == wanted.size(1)
        assert_same({"z": model(given)}, {"z": wanted}, 1e-12)
        assert_same(
            {"loss": model.pretext_loss(given)},
            {
                "loss": dense_loss(
                    wanted,
                    dense_weights(
                        given,
                        lle_weights(given, ridge=0.01, binarise=options.get("binarise", True)),
                    ),
                    0.7,
                )
            },
            1e-10,
        )


def test_the_convolution_is_pygs():
    """The public code takes PyG's, with one PReLU for both layers."""
    given, model = graph(), build(scale_states=False)
    x = (given.x > 0).double()
    for layer in model.trunk.layers:
        theirs = GCNConv(layer.linear.in_features, 6).double()
        theirs.lin.weight, theirs.bias = layer.linear.weight, layer.bias
        x = model.trunk.activation(theirs(x, given.edge_index))
    assert_same({"z": model(given)}, {"z": x}, 1e-12)


def test_dropout_is_between_layers():
    given = graph()
    model = build(scale_states=False, outputs="all", dropout=0.5)
    still, noisy = model(given), model.train()(given)
    assert torch.equal(noisy[:, :6], still[:, :6])
    assert not torch.equal(noisy[:, 6:], still[:, 6:])


def test_states_are_handed_on_at_a_scale_for_probes():
    given = graph()
    z = build(scale_states=False)(given)
    rows = F.normalize(z, dim=-1) * 6**0.5
    model = build()
    assert_same({"z": model(given)}, {"z": rows / (1 + 1e-5) ** 0.5}, 1e-12)  # nothing seen yet
    model.train()
    model.trunk.dropout = 0.0
    for _ in range(60):
        model.pretext_loss(given)
    states = model.eval()(given)
    torch.testing.assert_close(states.mean(0), torch.zeros(6).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(states.std(0), torch.ones(6).double(), rtol=0, atol=1e-3)
    for _ in range(3):  # evaluation changes no statistics
        model.pretext_loss(given)
        assert torch.equal(model(given), states)
    assert not isinstance(build("graph").probe_scale.columns, torch.nn.BatchNorm1d)
    assert build("graph", num_layers=3).out_channels == 18


def test_in_a_batch_weights_are_the_graphs_own_and_negatives_all_nodes():
    first, second = graph(0), graph(1, nodes=9)
    batch = GraphInputs.build(
        torch.cat([first.x, second.x]),
        torch.cat([first.edge_index, second.edge_index + 12], dim=1),
        torch.zeros(21, 3).double(),
        torch.tensor([0] * 12 + [1] * 9),
        2,
    )
    model = build("graph", conv="gin", num_layers=2)
    assert_same({"z": model(batch)}, {"z": torch.cat([model(first), model(second)])}, 1e-10)
    parts = [lle_weights(given, ridge=0.01, binarise=True) for given in (first, second)]
    W = torch.block_diag(dense_weights(first, parts[0]), dense_weights(second, parts[1]))
    assert_same(
        {"loss": model.pretext_loss(batch)}, {"loss": dense_loss(model(batch), W, 0.7)}, 1e-10
    )


def two_camps(nodes: int = 60) -> tuple[GraphInputs, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    camp = torch.arange(nodes) % 2
    same = camp[:, None] == camp[None]
    linked = torch.rand(nodes, nodes, generator=generator) < torch.where(same, 0.2, 0.02)
    edge_index = to_undirected(linked.triu(1).nonzero().t())
    x = torch.rand(nodes, 20, generator=generator)
    words = torch.where(torch.arange(20) % 2 == camp[:, None], 0.4, 0.15)
    return GraphInputs.build((x < words).float(), edge_index, torch.zeros(nodes, 1)), camp


@pytest.mark.parametrize("anchors", [None, 30])
def test_the_pretext_brings_camps_together_without_labels(anchors):
    given, camp = two_camps()
    torch.manual_seed(0)
    model = ML2GCL(20, hidden_channels=16, anchors=anchors)
    assert isinstance(model, HasPretext)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

    def gap() -> float:
        z = F.normalize(model.eval()(given).detach(), dim=-1)
        same = camp[:, None] == camp[None]
        return float((z @ z.t())[same].mean() - (z @ z.t())[~same].mean())

    before, losses = gap(), []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(40):
            model.train()
            optimiser.zero_grad()
            loss = model.pretext_loss(given)
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    finally:
        torch.use_deterministic_algorithms(False)
    assert sum(losses[-5:]) < sum(losses[:5])
    assert gap() > before + 0.3


class TestML2GCL(MethodTestCase):
    method = "ml2-gcl"
    options = {"hidden_channels": 6, "binarise": False}
    # Few epochs do as a rule; if not, as many as for every method.
    learning = ((0.01, 25), *MethodTestCase.learning)
    variants = (
        {"binarise": True},
        {"scale_features": True},
        {"binarise": True, "conv": "gin", "outputs": "all"},
    )
    pretext_options = {"anchors": 6}
    refused = (
        ({"conv": "gnn"}, "'conv'.*Did you mean 'gin'"),
        ({"outputs": "al"}, "'outputs'.*Did you mean 'all'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"temperature": 0.01}, "'temperature'"),
        ({"ridge": 0.0}, "'ridge'"),
        ({"anchors": 0}, "'anchors'"),
    )

"""SPARROW computes the loss it says, on nodes and on graphs, and learns without labels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.utils import to_undirected

from geof.methods.interface import GraphInputs, HasPretext
from geof.testing import MethodTestCase, assert_same, draw_parameters
from geof_paper.baselines.sparrow import SPARROW, pair_loss
from paper.tests.baselines.reference_graph import assert_close, fill, reference_graph

NONE = torch.empty(2, 0, dtype=torch.long)


def graph(seed: int = 0, nodes: int = 12, edges: int = 20, channels: int = 5) -> GraphInputs:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    edge_index = torch.randint(0, nodes - 2, (2, edges), generator=generator)  # two are isolated
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
    return GraphInputs.build(x, edge_index, torch.zeros(nodes, 3).double())


def build(task="node", **options) -> SPARROW:
    torch.manual_seed(0)
    model = SPARROW(5, task, **{"hidden_channels": 6, **options}).double()
    return draw_parameters(model, spread=1.0, statistics=False)


def pairs(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h, z = torch.randn(2, count, 8, generator=generator, dtype=torch.float64)
    return h.requires_grad_(), z.requires_grad_()


def dense_loss(h, z, tau, negatives="all"):
    """One side at a time, as the equations have it."""

    def theta(a, b):
        return (F.cosine_similarity(a[:, None], b[None], dim=-1) / tau).exp()

    def side(a, b):
        total = theta(a, b).sum(1)
        if negatives == "all":
            total = total + (theta(a, a) * (1 - torch.eye(len(a)).to(a.dtype))).sum(1)
        return -(theta(a, b).diagonal() / total).log()

    return (side(h, z) + side(z, h)).sum() / (2 * len(h))


def graded(function, h, z) -> dict[str, torch.Tensor]:
    loss = function(h, z)
    to_h, to_z = torch.autograd.grad(loss, (h, z), materialize_grads=True)
    return {"loss": loss, "gradient of h": to_h, "gradient of z": to_z}


@pytest.mark.parametrize("negatives", ["all", "across"])
@pytest.mark.parametrize("tau", [0.1, 0.9])
def test_the_loss_on_200_nodes_is_the_dense_one(tau, negatives):
    for count in (2, 200):
        h, z = pairs(count)
        ours = graded(lambda h, z: pair_loss(h, z, tau, negatives=negatives), h, z)
        assert_same(ours, graded(lambda h, z: dense_loss(h, z, tau, negatives), h, z), 1e-10)


def test_one_node_has_nothing_to_be_told_apart_from():
    h, z = pairs(1)
    for negatives in ("all", "across"):
        found = graded(lambda h, z, n=negatives: pair_loss(h, z, 0.5, negatives=n), h, z)
        assert all(float(value.detach().abs().max()) < 1e-12 for value in found.values())


def test_zero_rows_have_finite_gradients():
    h, z = (value.detach().clone() for value in pairs(5))
    h[0], z[1] = 0.0, 0.0
    h[2], z[2] = 0.0, 0.0
    found = graded(lambda h, z: pair_loss(h, z, 0.5), h.requires_grad_(), z.requires_grad_())
    assert all(value.isfinite().all() for value in found.values())


def by_hand(model: SPARROW, given: GraphInputs, x: torch.Tensor, act) -> list[torch.Tensor]:
    A = torch.eye(len(x)).double()
    A[given.edge_index[1], given.edge_index[0]] = 1
    scale = A.sum(1).rsqrt()
    states = []
    for layer in model.trunk.layers:
        x = act(scale[:, None] * A * scale[None] @ x @ layer.linear.weight.t() + layer.bias)
        states.append(x)
    return states


def test_encoder_projection_and_loss_by_hand():
    given = graph()
    for options, x in (
        ({}, given.x),
        ({"activation": "relu", "num_layers": 3}, given.x),
        ({"scale_features": True}, F.normalize(given.x, dim=-1) * 5**0.5),
        ({"negatives": "across"}, given.x),
    ):
        model = build(scale_states=False, **options)
        widths = [layer.linear.out_features for layer in model.trunk.layers]
        assert widths == [*[12] * (len(widths) - 1), 6]
        act = (lambda z: z.relu()) if "activation" in options else model.trunk.activation
        h = by_hand(model, given, x, act)[-1]
        assert_same({"h": model(given)}, {"h": h}, 1e-12)
        first, second = model.project[0], model.project[2]
        z = F.elu(h @ first.weight.t() + first.bias) @ second.weight.t() + second.bias
        loss = dense_loss(h + 1e-30, z, 0.9, options.get("negatives", "all"))
        assert_same({"loss": model.pretext_loss(given)}, {"loss": loss}, 1e-10)


def test_states_are_handed_on_at_a_scale_for_probes():
    given = graph()
    h = build(scale_states=False)(given)
    model = build()
    rows = F.normalize(h, dim=-1) * 6**0.5
    assert_same({"h": model(given)}, {"h": rows / (1 + 1e-5) ** 0.5}, 1e-12)  # nothing seen yet
    model.train()
    for _ in range(60):
        model.pretext_loss(given)
    states = model.eval()(given)
    torch.testing.assert_close(states.mean(0), torch.zeros(6).double(), rtol=0, atol=1e-6)
    model.pretext_loss(given)
    assert torch.equal(model(given), states)


@pytest.mark.parametrize("negatives", ["all", "across"])
def test_a_stopped_side_gets_no_gradient_of_its_own(negatives):
    given = graph()
    gradients = {}
    for stop in ("none", "states", "projections"):
        model = build(stop_gradient=stop, negatives=negatives)
        model.pretext_loss(given).backward()
        gradients[stop] = {n: p.grad for n, p in model.named_parameters()}
    assert all(gradients["projections"][f"project.{i}.weight"] is None for i in (0, 2))
    name = "trunk.layers.0.linear.weight"
    for stop in ("states", "projections"):
        assert gradients[stop][name].abs().max() > 1e-8
        assert not torch.allclose(gradients[stop][name], gradients["none"][name])
    assert_same(
        {"g": gradients["states"]["project.2.weight"]},
        {"g": gradients["none"]["project.2.weight"]},
        1e-12,
    )


def test_drawn_nodes_are_contrasted_among_themselves():
    given = graph()
    model = build(anchors=5, scale_states=False)
    torch.manual_seed(4)
    loss = model.pretext_loss(given)
    torch.manual_seed(4)
    chosen = torch.randperm(12)[:5]
    h = model(given)[chosen]
    assert_same({"loss": loss}, {"loss": dense_loss(h, model.project(h), 0.9)}, 1e-10)
    everyone = build(anchors=12).pretext_loss(given)
    assert torch.equal(everyone, build().pretext_loss(given))


def batch_of(graphs: list[GraphInputs]) -> GraphInputs:
    sizes = [graph.x.size(0) for graph in graphs]
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return GraphInputs.build(
        torch.cat([graph.x for graph in graphs]),
        torch.cat([g.edge_index + start for g, start in zip(graphs, starts, strict=False)], dim=1),
        torch.zeros(sum(sizes), 3).double(),
        torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes)),
        len(graphs),
    )


@pytest.mark.parametrize("conv", ["gcn", "gin"])
def test_graphs_are_contrasted_by_their_sums(conv):
    graphs = [graph(seed, nodes=5 + seed) for seed in range(4)]
    graphs.append(GraphInputs.build(graphs[0].x[:1], NONE, torch.zeros(1, 3).double()))
    model = build("graph", conv=conv, num_layers=3)
    assert model.out_channels == (12 + 12 + 6 if conv == "gcn" else 18)
    alone = [model(one) for one in graphs]
    batch = batch_of(graphs)
    assert_same({"h": model(batch)}, {"h": torch.cat(alone)}, 1e-10)
    g = torch.stack([states.sum(0) for states in alone])
    assert_same(
        {"loss": model.pretext_loss(batch)}, {"loss": dense_loss(g, model.project(g), 0.9)}, 1e-10
    )
    assert float(model.pretext_loss(graphs[0]).detach()) == pytest.approx(0.0, abs=1e-12)


def test_isolated_nodes_without_features_and_graphs_without_edges():
    """Their states are zero under ReLU: no direction."""
    for task in ("node", "graph"):
        given = GraphInputs.build(torch.zeros(4, 5), NONE, torch.zeros(4, 3))
        model = SPARROW(5, task, hidden_channels=6, activation="relu")
        loss = model.pretext_loss(given)
        loss.backward()
        assert loss.isfinite()
        assert model(given).isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_pretext_tells_nodes_apart_without_labels():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 10, generator=generator)
    edge_index = to_undirected(torch.randint(0, 60, (2, 90), generator=generator))
    given = GraphInputs.build(x, edge_index[:, edge_index[0] != edge_index[1]], torch.zeros(60, 1))
    torch.manual_seed(0)
    model = SPARROW(10, hidden_channels=16, scale_states=False)
    assert isinstance(model, HasPretext)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

    def likeness() -> float:
        h = F.normalize(model(given).detach(), dim=-1)
        return float((h @ h.t()).mean())

    before, losses = likeness(), []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(40):
            optimiser.zero_grad()
            loss = model.pretext_loss(given)
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses[-1] < losses[0] - 0.5
    assert likeness() < before - 0.3


def test_the_loss_has_the_numbers_of_graces_code():
    """Its two views replaced by states and projections (Apache licence), see reference_graph."""
    given = reference_graph()
    model = SPARROW(5, hidden_channels=4, scale_states=False).double()
    layers = [
        f"trunk.layers.{place}.{name}" for place in (0, 1) for name in ("linear.weight", "bias")
    ]
    head = [f"project.{number}.{kind}" for number in (0, 2) for kind in ("weight", "bias")]
    fill(model, [*layers, "trunk.activation.weight", *head])
    h = model(given)
    state = [0.2492578498815393, 0.2620190623146091, 0.14976489717557506, 0.061588896350082786]
    assert_close(h[0], state, 1e-12)
    projected = [0.6493048701694935, -0.7887034295174984, 0.28026760220871927, -1.435229203628071]
    assert_close(model.project(h)[0], projected, 1e-12)
    loss = model.pretext_loss(given)
    assert_close(loss, 3.347493527491216, 1e-12)
    loss.backward()
    gradient = [
        -0.013853654396990767,
        0.027817962778922824,
        0.056406357392250354,
        0.05846596075035593,
        0.03302810921173217,
    ]
    assert_close(model.trunk.layers[0].linear.weight.grad[0], gradient, 1e-12)


class TestSPARROW(MethodTestCase):
    method = "sparrow"
    options = {"hidden_channels": 6}
    variants = ({}, {"scale_features": True}, {"conv": "gin", "outputs": "all"})
    pretext_options = {"anchors": 6}
    refused = (
        ({"conv": "gnn"}, "'conv'.*Did you mean 'gin'"),
        ({"activation": "pelu"}, "'activation'.*Did you mean '(p)?relu'"),
        ({"outputs": "al"}, "'outputs'.*Did you mean 'all'"),
        ({"negatives": "acros"}, "'negatives'.*Did you mean 'across'"),
        ({"stop_gradient": "state"}, "'stop_gradient'.*Did you mean 'states'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"temperature": 0.01}, "'temperature'"),
        ({"anchors": 0}, "'anchors'"),
    )

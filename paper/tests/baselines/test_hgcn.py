"""HGCN computes what its equations say, also where the ball ends."""

from __future__ import annotations

import math

import geoopt
import pytest
import torch
from torch.nn import functional as F
from torch_geometric.utils import to_undirected

from geof.errors import ConfigError, ShapeError
from geof.methods.interface import Encoding, GraphInputs, HasPretext
from geof.methods.registry import get_method
from geof.testing import MethodTestCase, assert_same, draw_parameters, random_graph
from geof_paper.baselines.hgcn import HGCN, HyperbolicLayer, HyperbolicLinkReadout

EDGE = 1e-5  # of float64


def build(task="link", spread: float = 0.5, **options) -> HGCN:
    torch.manual_seed(0)
    return draw_parameters(HGCN(5, task, **{"hidden_channels": 6, **options}).double(), spread)


def inputs(seed: int = 0, **sizes) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed, **sizes))


def dense_mean(given: GraphInputs) -> torch.Tensor:
    """Rows hear, columns speak."""
    A = torch.eye(given.x.size(0)).double()
    A[given.edge_index[1], given.edge_index[0]] = 1
    return A / A.sum(1, keepdim=True)


def project(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    longest = (1 - EDGE) / c.sqrt()
    lengths = x.norm(dim=-1, keepdim=True)
    return torch.where(lengths > longest, x / lengths.clamp_min(1e-15) * longest, x)


def by_hand(model: HGCN, given: GraphInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The equations on points of the ball, literally, with the library's maps."""
    curvatures = model.curvatures().detach()
    balls = [geoopt.PoincareBall(c=c.detach().clone()) for c in curvatures]
    A = dense_mean(given)
    x = project(balls[0].expmap0(given.x), curvatures[0])
    for number, layer in enumerate(model.layers):
        ball, c = balls[number], curvatures[number]
        h = project(ball.expmap0(ball.logmap0(x) @ layer.weight.t()), c)
        h = project(ball.mobius_add(h, project(ball.expmap0(layer.bias), c)), c)
        weight = A
        chart = ball.logmap0(h)
        if layer.attention is not None:
            n = len(h)
            pairs = torch.cat(
                [chart[:, None].expand(n, n, -1), chart[None].expand(n, n, -1)], dim=-1
            )
            weight = A * layer.attention(pairs).squeeze(-1).sigmoid()
        if layer.aggregation == "origin":
            y = ball.expmap0(weight @ chart)
        else:
            i, j = (A - A.diag().diag()).nonzero().t()  # the library has no gradient at i = j
            seen = weight[i, j, None] * ball.logmap(h[i], h[j])
            y = ball.expmap(h, torch.zeros_like(h).index_add(0, i, seen))
        act = {"relu": F.relu, "leaky_relu": F.leaky_relu, "tanh": torch.tanh}[layer.activation]
        chart = act(ball.logmap0(project(y, c)))
        x = project(balls[number + 1].expmap0(chart), curvatures[number + 1])
    return balls[-1].logmap0(x), x


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 3, "activation": "tanh"},
        {"attention": True, "activation": "leaky_relu"},
        {"aggregation": "centre"},
        {"aggregation": "centre", "attention": True, "num_layers": 1},
        {"trainable_curvature": False, "curvature": 3.0},
        {"spread": 3.0},  # long vectors: projections are at work everywhere
    ],
    ids=str,
)
def test_by_hand(options):
    for seed in range(2):
        x, edge_index, u = random_graph(seed)
        # The library loses its digits near the edge.
        given = GraphInputs.build(x if "spread" in options else 0.3 * x, edge_index, u)
        model = build(**options)
        encoding = model(given)
        states, points = by_hand(model, given)
        assert_same({"h": encoding.states}, {"h": states}, 1e-8)
        c = model.curvatures()[-1]
        assert torch.equal(encoding.context, c)
        pairs = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 3]])
        logits = HyperbolicLinkReadout(6, radius=1.5, temperature=0.7)(encoding, given, pairs)
        ball = geoopt.PoincareBall(c=c.detach().clone())
        apart = ball.dist(points[pairs[0]], points[pairs[1]])
        wanted = 1 / (((apart.square() - 1.5) / 0.7).exp() + 1)
        torch.testing.assert_close(logits.sigmoid(), wanted, rtol=1e-6, atol=1e-9)
        assert logits[3] == 1.5 / 0.7  # a node and itself


def test_a_smaller_ball_cuts_what_comes_from_a_larger_one():
    given, model = inputs(), build(trainable_curvature=False, spread=3.0)
    model.fixed_curvature = torch.tensor([0.1, 0.3, 9.0]).double()
    states = model(given).states
    assert_same({"h": states}, {"h": by_hand(model, given)[0]}, 1e-6)
    longest = states.norm(dim=-1).max().item()
    assert longest == pytest.approx(math.atanh(1 - EDGE) / 3, rel=1e-9)


def test_features_beyond_the_ball_are_cut_before_the_weight_is_applied():
    x, edge_index, u = random_graph()
    given, model = GraphInputs.build(20 * x, edge_index, u), build(spread=0.1)
    assert_same({"h": model(given).states}, {"h": by_hand(model, given)[0]}, 1e-8)


@pytest.mark.parametrize("options", [{}, {"aggregation": "centre", "attention": True}], ids=str)
def test_gradients_are_complete(options):
    """Through conformal factors too, and of the curvatures; against finite differences."""
    given = inputs(nodes=5, edges=7)
    model = build(hidden_channels=2, spread=0.3, activation="tanh", **options)
    names = [name for name, _ in model.named_parameters()]

    def states(*values):
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(model, parameters, (given,)).states

    assert torch.autograd.gradcheck(
        states, tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    )


def test_the_curvature_learns():
    given, model = inputs(), build()
    (slope,) = torch.autograd.grad(model(given).states.square().sum(), model.rho)
    assert (slope[:2] != 0).all()
    for c in (0.3, 1.0, 40.0):
        start = HGCN(5, "graph", curvature=c).curvatures()
        torch.testing.assert_close(start, torch.full((3,), c))
    model.rho.data.fill_(-1e4)
    assert (model.curvatures() >= 1e-4).all()
    assert "rho" not in dict(HGCN(5, "node", trainable_curvature=False).named_parameters())


def test_depth():
    """For nodes the linear readout is one of the layers."""
    for task, depth in (("node", 2), ("link", 3), ("graph", 3)):
        model = HGCN(5, task, num_layers=3)
        assert len(model.layers) == depth
        assert len(model.curvatures()) == depth + 1
    with pytest.raises(ConfigError, match=r"'num_layers'.*at least 2 for node"):
        HGCN(5, "node", num_layers=1)


@pytest.mark.parametrize("aggregation", ["origin", "centre"])
def test_without_curvature_it_is_gcn_with_the_mean(aggregation):
    given = inputs()
    for c, tolerance in ((0.0, 1e-12), (1e-9, 1e-6)):
        model = build(trainable_curvature=False, aggregation=aggregation)
        model.fixed_curvature.fill_(c)
        x = given.x
        for layer in model.layers:
            x = F.relu(dense_mean(given) @ (x @ layer.weight.t() + layer.bias))
        assert_same({"h": model(given).states}, {"h": x}, tolerance)


def extreme_inputs(dtype=torch.float32) -> GraphInputs:
    """Zero rows, huge rows, equal rows, an isolated node."""
    x = torch.zeros(7, 5, dtype=dtype)
    x[1], x[2], x[3], x[4] = 1e3, -1e3, 1e-20, 0.4
    x[5] = x[4]
    edge_index = to_undirected(torch.tensor([[0, 0, 1, 2, 4], [1, 2, 2, 3, 5]]))
    return GraphInputs.build(x, edge_index, torch.zeros(7, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggregation", ["origin", "centre"])
@pytest.mark.parametrize("spread", [0.0, 0.3, 100.0])
def test_values_and_gradients_are_finite_where_it_hurts(dtype, aggregation, spread):
    given = extreme_inputs(dtype)
    pairs = torch.tensor([[0, 1, 4, 6, 1], [0, 2, 5, 6, 1]])
    for curvature in (1e-3, 1.0, 50.0):
        model = build(spread=spread, aggregation=aggregation, attention=True).to(dtype)
        model.rho.data.fill_(math.log(math.expm1(curvature)))
        encoding = model(given)
        logits = HyperbolicLinkReadout(6)(encoding, given, pairs)
        assert encoding.states.isfinite().all()
        assert logits.isfinite().all()
        (logits.sum() + encoding.states.square().sum()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.isfinite().all(), name


def test_single_precision_stays_in_the_ball():
    given = extreme_inputs()
    states = build(spread=100.0).float()(given).states
    c = build(spread=100.0).float().curvatures()[-1]
    assert (c.sqrt() * states.norm(dim=-1)).max() <= math.atanh(1 - 4e-3) * (1 + 1e-5)
    assert (c.sqrt() * states.norm(dim=-1)).max() > 2.5


def test_dropout_is_on_the_weight():
    given, layer = inputs(), HyperbolicLayer(5, 1, dropout=0.5).double().train()
    layer.weight.data.fill_(1.0)
    torch.manual_seed(0)
    kept = F.dropout(layer.weight, 0.5)
    torch.manual_seed(0)
    found = layer(given.x, given, 0.0)
    torch.testing.assert_close(found, F.relu(dense_mean(given) @ (given.x @ kept.t())))


def test_pretext_separates_edges_from_other_pairs():
    """Two cliques of like nodes: trained on links alone, their states part."""
    block = torch.combinations(torch.arange(6)).t()
    edge_index = to_undirected(torch.cat([block, block + 6], dim=1))
    x = torch.eye(2).repeat_interleave(6, 0)
    torch.manual_seed(0)
    model = HGCN(2, "node", hidden_channels=8, num_layers=3)
    assert isinstance(model, HasPretext)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    given = GraphInputs.build(x, edge_index, torch.zeros(12, 1))
    for _ in range(25):
        optimiser.zero_grad()
        loss = model.pretext_loss(given)
        loss.backward()
        optimiser.step()
    logits = HyperbolicLinkReadout(8)(model(given), given, torch.tensor([[0, 0], [1, 7]]))
    assert logits[0] > 1
    assert logits[1] < -1
    empty = GraphInputs.build(x, torch.zeros(2, 0, dtype=torch.long), torch.zeros(12, 1))
    assert model.pretext_loss(empty) == 0
    model.pretext_loss(empty).backward()


def test_random_partners_are_of_the_same_graph():
    from geof_paper.baselines.hgcn import _random_partners

    batch = torch.tensor([0, 0, 0, 1, 2, 2])
    edge_index = torch.tensor([[0, 1], [1, 0]])
    given = GraphInputs.build(torch.zeros(6, 2), edge_index, torch.zeros(6, 1), batch, 3)
    nodes = torch.arange(6).repeat(200)
    partners = _random_partners(nodes, given)
    assert torch.equal(batch[partners], batch[nodes])
    assert set(partners[nodes == 0].tolist()) == {0, 1, 2}


def test_links_have_a_readout_without_parameters():
    readout = get_method("hgcn").readouts["link"](6)
    assert isinstance(readout, HyperbolicLinkReadout)
    assert not list(readout.parameters())
    with pytest.raises(ShapeError, match=r"\(2, P\)"):
        readout(Encoding(torch.zeros(3, 6), context=1.0), inputs(), torch.arange(3))


class TestHGCN(MethodTestCase):
    method = "hgcn"
    options = {"hidden_channels": 6}
    variants = (
        {},
        {"attention": True, "scale_features": True},
        {"aggregation": "centre", "attention": True, "activation": "tanh"},
    )
    random_pretext = True
    tolerance = 1e-8  # rounding is multiplied by 1e5 at the ball's edge, in gradients once more
    exceptions = {
        "test_a_single_precision_copy_computes_the_same": "the ball ends at 1 - 4e-3 in float32 "
        "and at 1 - 1e-5 in float64, so long vectors are cut to another length",
    }
    refused = (
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"curvature": 0.0}, "'curvature'.*above 0.0001"),
        ({"curvature": -1.0, "trainable_curvature": False}, "'curvature'"),
        ({"activation": "rely"}, "'activation'.*Did you mean 'relu'"),
        ({"aggregation": "center"}, "'aggregation'.*Did you mean 'centre'"),
    )
    refused_readout = (
        ("link", {"temperature": 0.0}, "temperature"),
        ("link", {"radius": math.inf}, "radius"),
    )

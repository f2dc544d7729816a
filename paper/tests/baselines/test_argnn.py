"""ARGNN computes what its equations say, also where its expanded form would cancel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from geof.kernels import Neighbourhoods
from geof.methods.interface import Encoding, GraphInputs
from geof.testing import MethodTestCase, assert_same, draw_parameters, random_graph
from geof_paper.baselines import argnn
from geof_paper.baselines.argnn import (
    ARGNN,
    ARGNNNodeReadout,
    CosineReadout,
    MetricConv,
    PenaltyWeights,
    edge_scalars,
    metric_penalty,
)
from paper.tests.baselines.reference_graph import assert_close, fill, reference_graph

KINDS = ("weight", "bias")


def inputs(seed: int = 0, **sizes) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed, **sizes))


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    return draw_parameters(module.double(), spread=1.0)


def states(edges: Neighbourhoods, width: int = 6) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    n = edges.num_nodes
    return torch.randn(n, width).double(), torch.rand(n, width).double() * 3 + 0.05


def by_definition(h: Tensor, g: Tensor, i: int, j: int) -> tuple[float, float]:
    """One edge, number by number."""
    difference = [float(b - a) for a, b in zip(h[i], h[j], strict=True)]
    length = max(math.sqrt(sum(d * d for d in difference)), 1e-8)
    tau = sum(
        (d / length) ** 2 * math.tanh(-math.log(float(k)))
        for d, k in zip(difference, g[i], strict=True)
    )

    def inner(a: Tensor, b: Tensor) -> float:
        return sum(float(k * p * q) for k, p, q in zip(g[i], a, b, strict=True))

    cosine = inner(h[i], h[j]) / math.sqrt(inner(h[i], h[i]) * inner(h[j], h[j]) + 1e-12)
    return tau, 1 / (1 + math.exp(-cosine))


def all_by_definition(h: Tensor, g: Tensor, edges: Neighbourhoods) -> dict[str, Tensor]:
    pairs = zip(edges.target.tolist(), edges.source.tolist(), strict=True)
    rows = [by_definition(h.double(), g.double(), i, j) for i, j in pairs]
    tau, alpha = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return {"tau": tau, "alpha": alpha}


def scalars(h: Tensor, g: Tensor, edges: Neighbourhoods) -> dict[str, Tensor]:
    tau, alpha = edge_scalars(h, g, edges)
    return {"tau": tau, "alpha": alpha}


@pytest.mark.parametrize("seed", range(3))
def test_edge_scalars_equal_their_definition(seed):
    edges = inputs(seed).edges
    h, g = states(edges)
    found = scalars(h, g, edges)
    assert_same(found, all_by_definition(h, g, edges), 1e-12)
    tau = found["tau"]
    assert tau.abs().max() <= 1
    assert float(tau.min()) < 0 < float(tau.max())


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-4])
def test_close_neighbours_keep_their_digits_in_float32(gap):
    """The expanded square loses all of them at a distance of 1e-4."""
    edges = inputs().edges
    h, g = states(edges, width=32)
    h = (h[:1] + gap * h).float()
    exact = all_by_definition(h, g.float(), edges)
    tau, _ = edge_scalars(h, g.float(), edges)
    assert float((tau - exact["tau"]).abs().max()) < 1e-4


def test_a_metric_of_one_turns_nothing_and_loops_send_nothing():
    edges = inputs().edges
    h, g = states(edges)
    tau, _ = edge_scalars(h, torch.ones_like(g), edges)
    assert float(tau.abs().max()) < 1e-12
    tau, _ = edge_scalars(h, g, edges)
    loops = edges.source == edges.target
    assert torch.equal(tau[loops], torch.zeros(int(loops.sum())).double())
    assert (tau[~loops] != 0).all()


def test_a_large_metric_repels_and_a_small_one_attracts():
    edges = inputs().edges
    h, g = states(edges)
    others = edges.source != edges.target
    assert (edge_scalars(h, torch.full_like(g, 10.0), edges)[0][others] < -0.9).all()
    assert (edge_scalars(h, torch.full_like(g, 1e-3), edges)[0][others] > 0.9).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["zero", "equal", "almost", "some equal"])
def test_gradients_stay_finite_where_directions_do_not_exist(case, dtype):
    edges = inputs().edges
    h, g = (value.to(dtype) for value in states(edges))
    if case == "zero":
        h = torch.zeros_like(h)
    elif case == "some equal":
        h[:5] = h[0]
    else:
        h = h[:1].expand_as(h) * (1 + (case == "almost") * torch.finfo(dtype).eps)
        h = h.clone()
        if case == "almost":  # rounding of the last bit, as equal rows of a product have
            h[::2] = torch.nextafter(h[::2], h[::2] + 1)
    h.requires_grad_()
    g.requires_grad_()
    tau, alpha = edge_scalars(h, g, edges)
    if case != "some equal":
        assert torch.equal(tau, torch.zeros_like(tau))
    (tau + alpha).sum().backward()
    assert h.grad.isfinite().all()
    assert g.grad.isfinite().all()
    assert float(h.grad.abs().max()) < 1e3


def test_gradients_of_the_edge_scalars():
    edges = inputs().edges
    h, g = states(edges, width=3)
    h[1] = h[0] + 0.02 * h[1]  # some from differences, some expanded
    assert torch.autograd.gradcheck(
        lambda h, g: edge_scalars(h, g, edges), (h.requires_grad_(), g.requires_grad_())
    )


def test_close_edges_in_pieces_give_the_same(monkeypatch):
    edges = inputs().edges
    results = []
    for piece in (2**16, 3):
        monkeypatch.setattr(argnn, "_PIECE", piece)
        h, g = states(edges)
        h = (h[:1] + 0.01 * h).requires_grad_()
        tau, alpha = edge_scalars(h, g, edges)
        (tau * tau.detach().sin() + alpha).sum().backward()
        results.append({"tau": tau, "h": h.grad})
    assert_same(results[1], results[0], 1e-10)


def dense_layer(conv: MetricConv, h: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """A layer with matrices of all pairs."""
    n = h.size(0)
    closed = torch.eye(n).double()
    closed[edge_index[1], edge_index[0]] = 1
    mean = closed @ h / closed.sum(1, keepdim=True)
    hidden = torch.cat([h, mean], dim=1) @ conv.metric_hidden.weight.t() + conv.metric_hidden.bias
    hidden = F.layer_norm(
        hidden, hidden.shape[1:], conv.metric_norm.weight, conv.metric_norm.bias
    ).relu()
    raw = hidden @ conv.metric_output.weight.t() + conv.metric_output.bias
    g = (torch.log1p(torch.exp(2 * raw)) / 2).clamp(1e-3, 10)
    weight = torch.zeros(n, n).double()
    for i, j in closed.nonzero().tolist():
        if i != j:
            tau, alpha = by_definition(h.detach(), g.detach(), i, j)
            weight[i, j] = tau * alpha
    z = weight @ h @ conv.message.weight.t() + h @ conv.own.weight.t() + conv.own.bias
    return F.layer_norm(z, z.shape[1:], conv.norm.weight, conv.norm.bias), g


@pytest.mark.parametrize("out", [6, 4])
def test_a_layer_by_hand(out):
    given = inputs()
    conv = randomised(MetricConv(6, out, 5))
    h, _ = states(given.edges)
    found = dict(zip(("h", "g"), conv(h, given.edges), strict=True))
    wanted = dict(zip(("h", "g"), dense_layer(conv, h, given.edge_index), strict=True))
    assert_same(found, wanted, 1e-10)
    lowest, highest = wanted["g"].detach().aminmax()
    assert float(lowest) == 1e-3  # a bound is reached
    assert float(highest) > 1


def by_hand(model: ARGNN, given: GraphInputs) -> tuple[Tensor, list[Tensor]]:
    x = given.x @ model.lift.weight.t() + model.lift.bias
    h = F.layer_norm(x, x.shape[1:], model.norm.weight, model.norm.bias).relu()
    metrics = []
    for number, conv in enumerate(model.convs, start=1):
        h, g = dense_layer(conv, h, given.edge_index)
        metrics.append(g)
        if not (model.task == "graph" and number == len(model.convs)):
            h = h.relu()
    return h, metrics


def dense_penalty(g: Tensor, edges: Neighbourhoods, weights: PenaltyWeights) -> Tensor:
    """Over the graph's own edges: no self-loops, and nothing for a node without neighbours."""
    others = edges.target != edges.source
    i, j = edges.target[others], edges.source[others]
    pairs = (g[i] - g[j]).square().mean()
    rows = [g[k] - g[j[i == k]] if (i == k).any() else g[k : k + 1] * 0 for k in range(g.size(0))]
    ricci = torch.stack([(0.5 * row.mean(0)).square() for row in rows]).mean()
    return weights.metric * g.square().mean() + weights.smoothness * pairs + weights.ricci * ricci


@pytest.mark.parametrize(("task", "layers"), [("node", 2), ("link", 2), ("graph", 3)])
def test_the_encoder_by_hand(task, layers):
    given = inputs()
    model = randomised(ARGNN(5, task, hidden_channels=6, metric_channels=4, ricci_penalty=0.3))
    assert len(model.convs) == layers
    encoding = model(given)
    h, metrics = by_hand(model, given)
    penalty = sum(dense_penalty(g, given.edges, model.weights) for g in metrics)
    assert_same(
        {"h": encoding.states, "penalty": encoding.penalty}, {"h": h, "penalty": penalty}, 1e-9
    )


def test_the_last_layer_of_nodes_is_the_readout():
    given = inputs()
    model = randomised(ARGNN(5, "node", hidden_channels=6, metric_channels=4))
    readout = randomised(ARGNNNodeReadout(6, 3, metric_channels=4))
    encoding = model(given)
    outputs = readout(encoding, given, None)
    logits, g = dense_layer(readout.conv, encoding.states, given.edge_index)
    penalty = dense_penalty(g, given.edges, model.weights)
    assert_same(
        {"logits": outputs.prediction, "penalty": outputs.penalty},
        {"logits": logits, "penalty": penalty},
        1e-9,
    )


@pytest.mark.parametrize(
    "weights",
    [PenaltyWeights(1, 0, 0), PenaltyWeights(0, 1, 0), PenaltyWeights(0, 0, 1), PenaltyWeights()],
    ids=str,
)
def test_penalties_equal_their_sums_over_edges(weights):
    edges = inputs().edges
    _, g = states(edges)
    found = {"p": metric_penalty(g, edges, weights)}
    assert_same(found, {"p": dense_penalty(g, edges, weights)}, 1e-12)
    g32 = (5 + 1e-2 * g).float()  # nearly equal metrics: the expanded square must not cancel
    near = metric_penalty(g32, edges, weights)
    torch.testing.assert_close(
        near.double(), dense_penalty(g32.double(), edges, weights), rtol=1e-4, atol=0
    )


def test_penalties_of_isolated_nodes_and_of_graphs_without_edges():
    g = torch.rand(4, 3).double()
    weights = PenaltyWeights(0.3, 0.5, 0.7)
    edges = Neighbourhoods.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 4)
    wanted = {"p": dense_penalty(g, edges, weights)}
    assert_same({"p": metric_penalty(g, edges, weights)}, wanted, 1e-12)
    none = Neighbourhoods.from_edge_index(torch.empty(2, 0, dtype=torch.long), 4)
    torch.testing.assert_close(metric_penalty(g, none, weights), 0.3 * g.square().mean())


def test_gradients_of_the_penalties():
    edges = inputs().edges
    _, g = states(edges, width=2)
    weights = PenaltyWeights(0.3, 0.5, 0.7)
    assert torch.autograd.gradcheck(lambda g: metric_penalty(g, edges, weights), g.requires_grad_())


def test_the_papers_weights():
    weights = PenaltyWeights.of_paper(homophily=0.8, num_layers=4, channels=10, nodes=100)
    assert weights.metric == 0
    assert weights.ricci == pytest.approx((0.2 + 0.1) * 0.8 / 4)
    assert weights.smoothness == pytest.approx(0.1 * 1.8 * 10 / 100)
    given = inputs()
    options = {"hidden_channels": 6, "metric_channels": 4}
    model = randomised(ARGNN(5, "graph", penalties="paper", homophily=0.8, **options))
    _, metrics = by_hand(model, given)
    wanted = PenaltyWeights.of_paper(0.8, 3, 6, 9)
    penalty = sum(dense_penalty(g, given.edges, wanted) for g in metrics)
    assert_same({"p": model(given).penalty}, {"p": penalty}, 1e-9)


def test_links_are_ranked_by_the_cosine():
    readout = CosineReadout(6)
    torch.manual_seed(0)
    h = torch.randn(8, 6).relu()
    h[3] = 0
    h.requires_grad_()
    pairs = torch.tensor([[0, 1, 2, 3, 5], [4, 5, 6, 7, 1]])
    logits = readout(Encoding(h), None, pairs)
    wanted = 10 * F.cosine_similarity(h[pairs[0]], h[pairs[1]], eps=1e-6) - 5
    torch.testing.assert_close(logits, wanted)
    assert torch.equal(logits, readout(Encoding(h), None, pairs.flip(0)))
    logits.sum().backward()
    assert h.grad.isfinite().all()
    assert readout.scale.grad is not None
    plain = CosineReadout(6, scale=1.0, bias=0.0, learnable=False)
    assert not any(parameter.requires_grad for parameter in plain.parameters())
    scores = plain(Encoding(h), None, pairs).detach()
    assert float(scores.min()) >= 0
    assert float(scores.max()) <= 1


def test_dropout_follows_every_layer_but_the_last_of_graphs():
    """States of links are dropped too, before the readout normalises them."""
    given = inputs()
    for task, zeros in (("node", True), ("link", True), ("graph", False)):
        model = ARGNN(5, task, hidden_channels=64, metric_channels=4, num_layers=2, dropout=0.5)
        model = model.double().train()
        for conv in model.convs:
            conv.norm.weight.data.zero_()
            conv.norm.bias.data.fill_(1.0)  # every entry is one before dropout
        h = model(given).states.detach()
        assert h.unique().tolist() == ([0.0, 2.0] if zeros else [1.0]), task


def test_maps_of_messages_and_states_begin_as_published():
    """Glorot's uniform bound, and no bias."""
    conv = MetricConv(40, 60, 8)
    for weight in (conv.message.weight, conv.own.weight):
        bound = math.sqrt(6 / 100)
        assert 0.99 * bound < float(weight.detach().abs().max()) <= bound
    assert not conv.own.bias.any()


# Numbers of the authors' public code (MIT licence), see reference_graph.

LAYER = (
    *(f"metric_{part}.{kind}" for part in ("hidden", "norm", "output") for kind in KINDS),
    "message.weight",
    *(f"{part}.{kind}" for part in ("own", "norm") for kind in KINDS),
)
START = [f"0.{part}.{kind}" for part in ("lift", "norm") for kind in KINDS]
HIDDEN = [f"0.convs.{number}.{name}" for number in (0, 1) for name in LAYER]
LAST = [f"1.conv.{name}" for name in LAYER]


def published(task: str) -> torch.nn.ModuleList:
    """Return encoder and readout with the weights that the public code was given."""
    penalties = {"metric_penalty": 0.3, "smoothness_penalty": 0.5, "ricci_penalty": 0.7}
    encoder = ARGNN(5, task, hidden_channels=4, metric_channels=6, num_layers=3, **penalties)
    parts = torch.nn.ModuleList([encoder])
    if task == "node":
        parts.append(ARGNNNodeReadout(4, 3, metric_channels=6))
    parts = parts.double().eval()
    fill(parts, [*START, *HIDDEN, *(LAST if task == "node" else [])])
    return parts


def test_nodes_have_the_numbers_of_the_public_code():
    given = reference_graph()
    parts = published("node")
    encoding = parts[0](given)
    outputs = parts[1](encoding, given, None)
    logs = outputs.prediction.log_softmax(-1)
    wanted = [
        [-1.38969635744, -0.833239290309, -1.151348815605],
        [-1.598896748836, -0.732024746448, -1.149022658853],
        [-1.569630750642, -0.743934710582, -1.149997111226],
        [-1.543854461709, -0.754981868378, -1.150670628308],
        [-1.297472341356, -0.891910992315, -1.149147787655],
        [-1.247593182341, -0.928229499069, -1.147113943329],
        [-1.133601903413, -1.026588508024, -1.139743023274],
    ]
    assert_close(logs, wanted)
    penalty = encoding.penalty + outputs.penalty
    assert float(penalty.detach()) == pytest.approx(0.46850408958088674, abs=1e-9)
    loss = -logs[[0, 2, 3, 6], [0, 1, 2, 1]].mean() + penalty
    assert float(loss.detach()) == pytest.approx(1.5462266406693033, abs=1e-6)
    loss.backward()
    first = [
        -0.01654552065228098,
        -0.03964875805515616,
        -0.04410456501575726,
        -0.027817305896609263,
        0.0015528668431085953,
    ]
    assert_close(parts[0].lift.weight.grad[0], first)
    second = [-0.026606009544165882, 0.0, 0.0, 0.0, -0.042973212821646296, 0.0, 0.0, 0.0]
    assert_close(parts[0].convs[1].metric_hidden.weight.grad[0], second)


def test_links_have_the_numbers_of_the_public_code():
    given = reference_graph()
    encoding = published("link")[0](given)
    assert float(encoding.penalty.detach()) == pytest.approx(0.15052541395483107, abs=1e-9)
    readout = CosineReadout(4, scale=1.0, bias=0.0, learnable=False).double()
    scores = readout(encoding, given, torch.tensor([[0, 1, 2], [3, 4, 6]]))
    assert_close(scores, [0.9876387017420154, 0.9582915370132952, 0.9997726516583765])
    state = [0.41597951672430805, 0.3034145229396796, 0.6505256516881978, 0.5583162593286564]
    assert_close(F.normalize(encoding.states[1], dim=0), state)


class TestARGNN(MethodTestCase):
    method = "argnn"
    options = {"hidden_channels": 6, "metric_channels": 4}
    # Few epochs do as a rule; if not, as many as for every method.
    learning = ((0.01, 25), *MethodTestCase.learning)
    variants = ({}, {"ricci_penalty": 0.3}, {"penalties": "paper", "homophily": 0.8})
    refused = (
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"metric_channels": 0}, "'metric_channels'"),
        ({"num_layers": 1, "task": "link"}, "'num_layers'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"metric_penalty": -1}, "'metric_penalty'"),
        ({"smoothness_penalty": -1}, "'smoothness_penalty'"),
        ({"ricci_penalty": -1}, "'ricci_penalty'"),
        ({"penalties": "papr"}, "'penalties'.*Did you mean 'paper'"),
        ({"homophily": 1.5}, "'homophily'"),
    )
    refused_readout = (
        ("node", {"metric_channels": 0}, "'metric_channels'"),
        ("link", {"scale": 0}, "'scale'"),
    )

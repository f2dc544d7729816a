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
    i, j = edges.target, edges.source
    pairs = (g[i] - g[j]).square().mean()
    ricci = torch.stack(
        [(0.5 * (g[k] - g[j[i == k]]).mean(0)).square() for k in range(g.size(0))]
    ).mean()
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


def test_dropout_follows_every_layer_but_the_last():
    given = inputs()
    for task, zeros in (("node", True), ("link", False), ("graph", False)):
        model = ARGNN(5, task, hidden_channels=64, metric_channels=4, num_layers=2, dropout=0.5)
        model = model.double().train()
        for conv in model.convs:
            conv.norm.weight.data.zero_()
            conv.norm.bias.data.fill_(1.0)  # every entry is one before dropout
        h = model(given).states.detach()
        assert h.unique().tolist() == ([0.0, 2.0] if zeros else [1.0]), task


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

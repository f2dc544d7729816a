"""G²Former computes what its equations say; in the published mode its attention does nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import add_self_loops

from geof.methods.interface import Encoding, GraphInputs, InputShape, Outputs
from geof.nn import GraphReadout, LinkReadout, NodeReadout
from geof.testing import (
    MethodTestCase,
    assert_same,
    draw_parameters,
    random_graph,
    side_by_side,
)
from geof.training import Network, RunConfig
from geof_paper.baselines.g2former import (
    FilterBank,
    G2Former,
    GuidedGraphReadout,
    GuidedLinkReadout,
    GuidedNodeReadout,
    bank_polynomials,
)

MODES = ("full", "low", "weighted")


def inputs(seed: int = 0, **sizes) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed, **sizes))


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    return draw_parameters(model.double(), spread=1.0)


def build(num_classes: int = 3, **options) -> G2Former:
    sizes = {"hidden_channels": 6, "filter_channels": 7, "attention_channels": 4}
    return randomise(G2Former(5, num_classes, **{**sizes, **options}))


def bank(mode: str, order: int = 3, channels: int = 5) -> FilterBank:
    return randomise(
        FilterBank(
            channels,
            mode=mode,
            order=order,
            filter_channels=7,
            attention_channels=4,
            dropout=0.0,
            norm="layer",
        )
    )


# The bank by its definition, with dense matrices.


def attention_laplacian(q: torch.Tensor) -> torch.Tensor:
    q = q / q.norm(dim=1, keepdim=True)
    S = q @ q.t()
    S.fill_diagonal_(0.0)
    scale = S.sum(1).clamp_min(1e-6).rsqrt()
    return torch.eye(len(q)).double() - scale[:, None] * S * scale


def explicit_bank(L: torch.Tensor, order: int, mode: str) -> list[torch.Tensor]:
    """Return every filter, divided by its integral over [0, 2] as the paper has it."""
    power, one = torch.linalg.matrix_power, torch.eye(len(L)).double()
    filters = []
    for alpha in range(order + 1):
        beta = order if mode == "low" else order - alpha
        integral = (
            2 ** (alpha + beta + 1)
            * math.factorial(alpha)
            * math.factorial(beta)
            / math.factorial(alpha + beta + 1)
        )
        filters.append(power(L, alpha) @ power(2 * one - L, beta) / integral)
    return filters


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_bank_is_the_sum_of_its_filters(mode, order):
    given, made = inputs(), bank(mode, order)
    # The published mode needs an attention to be compared with: any will do.
    f1 = bank("low").f1 if mode == "full" else made.f1
    filters = explicit_bank(attention_laplacian(f1(given.x)), order, mode)
    values = made.f2(given.x)
    weights = made.weights if mode == "weighted" else torch.ones(order + 1, 5)
    wanted = sum(w * (f @ values) for w, f in zip(weights, filters, strict=True))
    torch.testing.assert_close(made(given.x, given), wanted, rtol=1e-10, atol=1e-10)


def test_the_sum_over_the_full_bank_is_a_multiple_of_the_identity():
    for seed, order in product(range(3), (1, 2, 5)):
        q = torch.rand(30, 4, generator=torch.Generator().manual_seed(seed)).double()
        total = sum(explicit_bank(attention_laplacian(q), order, "full"))
        wanted = (order + 1) / 2 * torch.eye(30).double()
        torch.testing.assert_close(total, wanted, rtol=0, atol=1e-12)
        polynomials = torch.tensor(bank_polynomials(order, "full")).sum(0)
        wanted = torch.tensor([(order + 1) / 2, *[0.0] * order])
        torch.testing.assert_close(polynomials, wanted, rtol=0, atol=1e-6)


def test_in_the_published_mode_attention_gets_no_gradient():
    """Computed through the attention after all, the full bank tells f1 nothing; others do."""
    given = inputs()
    gradients = {}
    for mode in ("full", "low", "weighted"):
        made = bank("weighted")
        made.polynomials = bank_polynomials(3, "low" if mode == "low" else "full")
        if mode != "weighted":
            made.weights.data.fill_(1.0)
        made(given.x, given).square().sum().backward()
        gradients[mode] = max(float(p.grad.abs().max()) for p in made.f1.parameters())
    assert gradients["full"] < 1e-9
    assert min(gradients["low"], gradients["weighted"]) > 1e-3


def test_the_published_mode_has_no_attention_to_train():
    assert not any(".f1." in name for name, _ in build().named_parameters())
    for mode in MODES:
        model = build(mode=mode)
        given = inputs()
        encoding = model(given)
        (encoding.states.square().sum() + encoding.context.square().sum()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_weights_start_at_the_published_mode():
    torch.manual_seed(0)
    weighted = G2Former(5, 3, hidden_channels=6, mode="weighted").double().eval()
    full = G2Former(5, 3, hidden_channels=6).double().eval()
    own = {k: v for k, v in weighted.state_dict().items() if k in full.state_dict()}
    full.load_state_dict(own)
    given = inputs()
    assert_same({"h": weighted(given).states}, {"h": full(given).states}, 1e-10)


# The whole encoder.


def dense(edge_index: torch.Tensor, nodes: int) -> torch.Tensor:
    A = torch.eye(nodes).double()
    A[edge_index[1], edge_index[0]] = 1
    return A


def by_hand(
    model: G2Former, given: GraphInputs, conv, *, task="node", times_x=False, residual=True
):
    x = given.x if model.input is None else model.input(given.x)
    guide = (model.bank.order + 1) / 2 * model.bank.f2(x)
    towards = guide * x if times_x else guide
    logits, sure = (h @ model.guide.weight.t() + model.guide.bias for h in (guide, towards))
    gate = sure.sigmoid() if task == "link" else sure.softmax(1).max(1, keepdim=True).values
    x = (1 - gate) * x + gate * towards
    for number, layer in enumerate(model.convs):
        z = conv(layer, x, given)
        if residual:
            z = z + F.linear(x, *model.residuals[number].parameters())
        norm = model.norms[number]
        x = F.relu(F.layer_norm(z, z.shape[-1:], norm.weight, norm.bias))
    return x, guide if task == "link" else logits


def gcn(layer, x, given):
    A = dense(given.edge_index, len(x))
    scale = A.sum(1).rsqrt()
    return scale[:, None] * A * scale @ x @ layer.map.weight.t()


def sage(layer, x, given):
    theirs = SAGEConv(x.size(1), 6).double()
    theirs.lin_l.weight.data, theirs.lin_l.bias.data = layer.mean.weight.data, layer.own.bias.data
    theirs.lin_r.weight.data = layer.own.weight.data
    return theirs(x, add_self_loops(given.edge_index, num_nodes=len(x))[0])


def gat(layer, x, given):
    """Edge by edge: scores of the inputs, each head's own softmax, and a map of the node itself."""
    A, values, rows = dense(given.edge_index, len(x)), layer.map(x).view(len(x), 2, -1), []
    for i in range(len(x)):
        heard = A[i].nonzero().squeeze(1).tolist()
        heads = []
        for head in range(2):
            scores = torch.stack(
                [x[i] @ layer.target.weight[head] + x[j] @ layer.source.weight[head] for j in heard]
            )
            weights = F.leaky_relu(scores, 0.2).softmax(0)
            heads.append(sum(w * values[j, head] for w, j in zip(weights, heard, strict=True)))
        rows.append(torch.cat(heads) + layer.own.weight @ x[i] + layer.own.bias)
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("options", "conv", "details"),
    [
        ({}, gcn, {}),
        ({"residual": False, "num_layers": 3, "order": 5}, gcn, {"residual": False}),
        ({"input_linear": False}, gcn, {}),
        ({"product": True}, gcn, {"times_x": True}),
        ({"gnn": "sage"}, sage, {}),
        ({"gnn": "gat"}, gat, {}),
        ({"task": "link"}, gcn, {"task": "link"}),
        ({"task": "graph"}, gcn, {}),
    ],
    ids=["gcn", "no residual", "no input map", "product", "sage", "gat", "link", "graph"],
)
def test_g2former_by_hand(options, conv, details):
    given, model = inputs(), build(**options)
    states, context = by_hand(model, given, conv, **details)
    encoding = model(given)
    assert_same({"h": encoding.states, "c": encoding.context}, {"h": states, "c": context}, 1e-10)
    assert encoding.states.size(1) == model.out_channels == 6


def test_widths_and_dropouts_are_the_published_ones():
    """Both maps and q are as wide as the network; f2 ends with dropout, the input has two."""
    model = G2Former(5, 3, hidden_channels=6, mode="low", dropout=0.9, feature_dropout=0.9)
    names = [[type(part).__name__ for part in f] for f in (model.bank.f1, model.bank.f2)]
    inside = ["Linear", "LayerNorm", "ReLU", "Dropout", "Linear", "Dropout"]
    assert names == [[*inside, "LayerNorm", "Sigmoid"], inside]
    for f in (model.bank.f1, model.bank.f2):
        assert [(f[i].in_features, f[i].out_features) for i in (0, 4)] == [(6, 6), (6, 6)]
    torch.manual_seed(0)
    ones = replace(inputs(), x=torch.ones(9, 5))
    model.input.weight.data.zero_()
    model.input.bias.data.fill_(1.0)  # whatever is dropped of the features
    kept = model._features(ones)
    torch.testing.assert_close(kept.unique(), torch.tensor([0.0, 10.0]))
    assert (kept == 0).float().mean() > 0.7
    assert (model.eval()._features(ones) == 1).all()


@pytest.mark.parametrize("mode", ["low", "weighted"])
def test_a_single_node_in_single_precision_hears_nothing(mode):
    """Its degree is a rounding error, which must not be divided by."""
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    single = bank(mode).float()
    values = single.f2(x)
    powers = torch.tensor(bank_polynomials(3, mode))[:, 0]
    weight = powers.sum() if mode == "low" else powers @ single.weights
    batch = torch.arange(200)
    none = torch.empty(2, 0, dtype=torch.long)
    given = GraphInputs.build(x, none, x[:, :1], batch, 200)
    torch.testing.assert_close(single(x, given), weight * values)
    alone = GraphInputs.build(x[:1], none, x[:1, :1])
    torch.testing.assert_close(single(x[:1], alone), weight * values[:1])


# Readouts.


def encoding(nodes: int = 9, width: int = 4, context: int = 3) -> Encoding:
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(nodes, width, generator=generator).double()
    return Encoding(states, context=torch.randn(nodes, context, generator=generator).double())


def check_loss(outputs: Outputs, prediction, guide, gamma):
    torch.testing.assert_close(outputs.prediction, prediction)
    loss = outputs.loss(lambda logits: logits.square().sum())
    torch.testing.assert_close(loss, prediction.square().sum() + gamma * guide.square().sum())


def test_node_readout_grades_the_guide_in_training():
    given, made = inputs(), randomise(GuidedNodeReadout(4, 3, gamma=0.7)).train()
    shared = NodeReadout(4, 3).double()
    shared.load_state_dict(made.readout.state_dict())
    one = encoding()
    check_loss(made(one, given, None), shared(one.states), one.context, 0.7)
    assert made.eval()(one, given, None).graded is None
    assert randomise(GuidedNodeReadout(4, 3, gamma=0.0)).train()(one, given, None).graded is None


def test_link_readout_scores_pairs_from_the_guide():
    given, made = inputs(), randomise(GuidedLinkReadout(4, 5, normalise=True, gamma=0.7)).train()
    pairs = torch.tensor([[0, 1, 2], [3, 4, 8]])
    one = encoding(context=4)
    logits = []
    for readout, h in ((made.readout, one.states), (made.guide, one.context)):
        shared = LinkReadout(4, 5, normalise=True).double()
        shared.load_state_dict(readout.state_dict())
        logits.append(shared(h, pairs))
    check_loss(made(one, given, pairs), *logits, 0.7)
    turned = made(one, given, pairs.flip(0))
    torch.testing.assert_close(turned.graded[1][1], logits[1])
    assert made.eval()(one, given, pairs).graded is None
    assert not hasattr(GuidedLinkReadout(4, gamma=0), "guide")


def test_graph_readout_averages_the_guide():
    sizes = ((9, 24), (1, 0), (4, 0), (20, 50))
    parts = [random_graph(i, nodes=n, edges=e) for i, (n, e) in enumerate(sizes)]
    given, made = side_by_side(parts), randomise(GuidedGraphReadout(4, 3, pool="sum", gamma=2.0))
    shared = GraphReadout(4, 3, pool="sum").double()
    shared.load_state_dict(made.readout.state_dict())
    one = encoding(nodes=34)
    guide = torch.stack([one.context[given.batch == g].mean(0) for g in range(4)])
    outputs = made.train()(one, given, None)
    check_loss(outputs, shared(one.states, given.batch, 4), guide, 2.0)
    assert made.eval()(one, given, None).graded is None


@pytest.mark.parametrize("task", ["node", "link", "graph"])
def test_the_guide_is_graded_beside_the_prediction(task):
    config = RunConfig(method="g2former", task=task, options={"hidden_channels": 6})
    network = Network(config, InputShape(5, 3, 3)).double().train()
    given = side_by_side([random_graph(0), random_graph(1)]) if task == "graph" else inputs()
    pairs = torch.tensor([[0, 1], [2, 3]]) if task == "link" else None
    outputs = network.outputs(given, pairs)
    assert outputs.graded[0][1] is outputs.prediction
    assert outputs.graded[1][0] == 1.0
    assert outputs.graded[1][1].shape == outputs.prediction.shape
    shared = Network(replace(config, readout={"kind": "shared"}), InputShape(5, 3, 3)).double()
    assert shared.train().outputs(given, pairs).graded is None


class TestG2Former(MethodTestCase):
    method = "g2former"
    options = {"hidden_channels": 6, "filter_channels": 7, "attention_channels": 4}
    variants = (
        *({"mode": mode, "gnn": gnn} for mode, gnn in product(MODES, ("gcn", "sage", "gat"))),
        {"mode": "weighted", "input_linear": False},
    )
    exceptions = {
        "test_messages_follow_edges": "attention in the modes 'low' and 'weighted' is between all "
        "nodes of a graph",
        "test_a_disjoint_union_is_its_parts": "likewise",
    }
    # Half of the features and of the states are dropped: links need many epochs.
    learning = ((0.01, 25), (0.001, 400))
    refused = (
        ({"mode": "full-spectrum"}, "'mode'"),
        ({"gnn": "gatt"}, "'gnn'.*Did you mean 'gat'"),
        ({"norm": "bach"}, "'norm'.*Did you mean 'batch'"),
        ({"order": 0}, "'order'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"heads": 0}, "'heads'"),
        ({"heads": 3, "gnn": "gat", "hidden_channels": 8}, "'heads' to divide.*hidden_channels=9"),
        ({"filter_channels": 0}, "'filter_channels'"),
        ({"attention_channels": 0}, "'attention_channels'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
    )
    refused_readout = (
        ("node", {"gamma": -1.0}, "'gamma'"),
        ("link", {"gamma": math.nan}, "'gamma'"),
        ("graph", {"pool": "max"}, "'pool'"),
    )

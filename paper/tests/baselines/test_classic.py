"""GCN, GraphSAGE and GAT in the classic recipe, and GIN, compute what PyG's layers do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GINConv, SAGEConv

from geof.data.batching import NeighbourSampler
from geof.methods.gcn import PlainGCN
from geof.methods.interface import GraphInputs
from geof.testing import MethodTestCase, assert_same, draw_parameters, random_graph
from geof_paper.baselines.classic import AttentionConv, ClassicGCN, MeanConv
from geof_paper.baselines.gin import GIN, GINLayer
from geof_paper.baselines.sparse import normalised_adjacency
from paper.tests.baselines.reference_graph import assert_close, reference_graph, wave

PARTS = ("first", "inner", "second", "outer")
"""Of a layer of GIN, in the order of the public code."""


def inputs(seed: int = 0) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed))


def drawn(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return draw_parameters(module.double(), spread=1.0)


def build(kind=ClassicGCN, **options) -> nn.Module:
    torch.manual_seed(0)
    return drawn(kind(5, 3, **{"hidden_channels": 6, **options}))


def results(module, *arguments, names):
    output = module(*arguments)
    output.cos().sum().backward()
    return {"output": output} | {name: get().grad for name, get in names.items()}


def with_an_isolated_node() -> GraphInputs:
    x, edge_index, u = random_graph()
    return GraphInputs.build(x, edge_index[:, (edge_index != 4).all(0)], u)


@pytest.mark.parametrize("given", [inputs(), with_an_isolated_node()], ids=["whole", "isolated"])
def test_sage_is_pygs(given):
    ours, theirs = drawn(MeanConv(5, 4)), SAGEConv(5, 4).double()
    theirs.lin_l.weight.data = ours.neighbours.weight.data.clone()
    theirs.lin_l.bias.data = ours.own.bias.data.clone()
    theirs.lin_r.weight.data = ours.own.weight.data.clone()
    assert_same(
        results(
            ours,
            *(given.x, given),
            names={"w": lambda: ours.neighbours.weight, "r": lambda: ours.own.weight},
        ),
        results(
            theirs,
            *(given.x, given.edge_index),
            names={"w": lambda: theirs.lin_l.weight, "r": lambda: theirs.lin_r.weight},
        ),
        1e-12,
    )


@pytest.mark.parametrize("given", [inputs(), with_an_isolated_node()], ids=["whole", "isolated"])
def test_gat_is_pygs(given):
    ours, theirs = drawn(AttentionConv(5, 4)), GATConv(5, 4, bias=False).double()
    theirs.lin.weight.data = ours.map.weight.data.clone()
    theirs.att_src.data = ours.source.data.clone().view(1, 1, 4)
    theirs.att_dst.data = ours.target.data.clone().view(1, 1, 4)
    found = results(
        ours,
        *(given.x, given),
        names={"w": lambda: ours.map.weight, "s": lambda: ours.source, "t": lambda: ours.target},
    )
    wanted = results(
        theirs,
        *(given.x, given.edge_index),
        names={
            "w": lambda: theirs.lin.weight,
            "s": lambda: theirs.att_src,
            "t": lambda: theirs.att_dst,
        },
    )
    wanted["s"], wanted["t"] = wanted["s"].view(-1), wanted["t"].view(-1)
    assert_same(found, wanted, 1e-12)


def test_gin_is_pygs():
    given = inputs()
    ours = drawn(GINLayer(5, 4, train_epsilon=True))
    mlp = nn.Sequential(ours.first, ours.inner, nn.ReLU(), ours.second)
    theirs = GINConv(mlp, eps=float(ours.epsilon.detach())).double().eval()
    wanted = F.relu(ours.outer(theirs(given.x, given.edge_index)))
    assert_same({"h": ours(given.x, given)}, {"h": wanted}, 1e-10)


def test_gin_has_the_numbers_of_the_public_code():
    """Two layers of the authors' code (MIT licence) in training, see reference_graph."""
    given = reference_graph()
    model = GIN(5, hidden_channels=4, num_layers=2, train_epsilon=True, outputs="last").double()
    parts = [f"{part}.{kind}" for part in PARTS for kind in ("weight", "bias")]
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            layer.epsilon.copy_(wave(2, start=3.0, scale=0.6)[number])
            weights = dict(layer.named_parameters())
            for place, name in enumerate(parts, start=8 * number):
                weights[name].copy_(wave(*weights[name].shape, start=4.0 + place, scale=0.6))
    states = model.train()(given)
    wanted = [
        [0.0, 0.5112183496883079, 0.6683082033303387, 0.5097624483872105],
        [0.7414031289958902, 0.3090975322813091, 0.19952582822230816, 1.0196875829571532],
    ]
    assert_close(states[[0, 5]], wanted, 1e-10)
    states.square().sum().backward()
    gradient = [
        -0.1520673360738558,
        0.02575936302378342,
        0.19147103119018716,
        0.26713088157045534,
        0.21715490431297424,
    ]
    assert_close(model.layers[0].first.weight.grad[0], gradient, 1e-10)


def test_epsilon_is_learned_only_if_wanted():
    for wanted in (True, False):
        model = GIN(5, hidden_channels=4, train_epsilon=wanted).double()
        assert model.layers[0].epsilon.requires_grad == wanted


def test_all_layers_side_by_side():
    given = inputs()
    torch.manual_seed(0)
    last = drawn(GIN(5, hidden_channels=4, num_layers=3, outputs="last"))
    every = drawn(GIN(5, hidden_channels=4, num_layers=3))
    assert (last.out_channels, every.out_channels) == (4, 12)
    assert torch.equal(every(given)[:, 8:], last(given))


def dense_adjacency(edge_index: torch.Tensor, nodes: int) -> torch.Tensor:
    """Rows hear, columns speak; degrees count what is heard, the node itself included."""
    A = torch.eye(nodes).double()
    A[edge_index[1], edge_index[0]] = 1
    scale = A.sum(1).rsqrt()
    return scale[:, None] * A * scale[None, :]


def test_the_adjacency_is_normalised_and_kept():
    given = inputs()
    adjacency = normalised_adjacency(given)
    dense = adjacency.to_dense().double()
    torch.testing.assert_close(dense, dense_adjacency(given.edge_index, 9), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dense, dense.t())
    assert normalised_adjacency(given) is adjacency


def test_rows_of_the_adjacency_hear_and_columns_speak():
    """A path 2 -> 1 -> 0, as a sample around node 0 has it: nothing ever reaches node 2."""
    x, _, u = random_graph(0, nodes=3, edges=0)
    given = GraphInputs.build(x, torch.tensor([[1, 2], [0, 1]]), u)
    adjacency = normalised_adjacency(given).to_dense().double()
    wanted = dense_adjacency(given.edge_index, 3)
    torch.testing.assert_close(adjacency, wanted, rtol=1e-12, atol=1e-12)
    assert adjacency.nonzero().tolist() == [[0, 0], [0, 1], [1, 1], [1, 2], [2, 2]]


def by_hand(model: ClassicGCN, given: GraphInputs, norm, *, residual=True, signature=False):
    adjacency, x = dense_adjacency(given.edge_index, given.x.size(0)), given.x
    states = []
    for number, (conv, plain) in enumerate(zip(model.convs, model.residuals, strict=True)):
        z = adjacency @ x @ conv.lin.weight.t() + conv.bias
        if residual:
            z = z + x @ plain.weight.t() + plain.bias
        if signature and number == 0:
            z = z + given.signature @ model.signature.weight.t()
        x = F.relu(norm(z, model.norms[number]))
        states.append(x)
    return states


def layer_norm(z, module):
    return F.layer_norm(z, z.shape[-1:], module.weight, module.bias)


def batch_norm(z, module):
    return (z - module.running_mean) / (module.running_var + module.eps).sqrt() * (
        module.weight
    ) + module.bias


def test_classic_gcn_by_hand():
    given = inputs()
    for options, norm, details in (
        ({}, layer_norm, {}),
        ({"norm": "none", "residual": False}, lambda z, _: z, {"residual": False}),
        ({"norm": "batch", "num_layers": 3}, batch_norm, {}),
        ({"use_signature": True}, layer_norm, {"signature": True}),
    ):
        model = build(**options)
        states = by_hand(model, given, norm, **details)
        assert_same({"h": model(given)}, {"h": states[-1]}, 1e-12)
        every = build(**options, outputs="all")
        assert every.out_channels == 6 * len(states)
        assert_same({"h": every(given)}, {"h": torch.cat(states, dim=-1)}, 1e-12)


def test_one_layer_of_both_is_the_same_network_without_extras():
    given = inputs()
    plain, classic = build(PlainGCN, num_layers=1), build(num_layers=1, norm="none", residual=False)
    classic.convs[0].lin.weight.data = plain.gcn.convs[0].lin.weight.data
    classic.convs[0].bias.data = plain.gcn.convs[0].bias.data
    assert_same({"h": classic(given)}, {"h": F.relu(plain(given))}, 1e-12)


def test_sampled_batches_train_the_seeds_on_what_they_hear():
    """One hop of all neighbours: the sum is the whole graph's, the degrees are the sample's."""
    x, edge_index, u = random_graph()
    sampler = NeighbourSampler(edge_index, 9, [-1], batch_size=3, seed=1)
    model = build(num_layers=1)
    for batch in sampler.batches(epoch=0):
        given = GraphInputs.build(x[batch.n_id], batch.edge_index, u[batch.n_id])
        (wanted,) = by_hand(model, given, layer_norm)
        assert_same({"h": model(given)}, {"h": wanted}, 1e-12)


SHARED_RANGES = (
    ({"num_layers": 0}, "'num_layers'"),
    ({"hidden_channels": 0}, "'hidden_channels'"),
    ({"dropout": 1.0}, "'dropout'"),
    ({"feature_dropout": -0.1}, "'feature_dropout'"),
    ({"outputs": "al"}, "'outputs'.*Did you mean 'all'"),
)


class ClassicCase(MethodTestCase):
    options = {"hidden_channels": 6}
    variants = ({}, {"norm": "batch", "outputs": "all", "use_signature": True})
    refused = (*SHARED_RANGES, ({"norm": "bach"}, "'norm'.*Did you mean 'batch'"))


class TestClassicGCN(ClassicCase):
    method = "gcn-classic"


class TestClassicSAGE(ClassicCase):
    method = "sage-classic"


class TestClassicGAT(ClassicCase):
    method = "gat-classic"


class TestGIN(MethodTestCase):
    method = "gin"
    options = {"hidden_channels": 6}
    untrained = {
        f"encoder.layers.*.{name}.bias": "a batch normalisation takes it away again"
        for name in ("first", "second")
    }
    variants = ({}, {"train_epsilon": True, "outputs": "last"})
    refused = SHARED_RANGES

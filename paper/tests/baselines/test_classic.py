"""GraphSAGE and GAT in the classic recipe, and GIN, compute what PyG's layers do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GINConv, SAGEConv

from geof.errors import ConfigError
from geof.methods.interface import GraphInputs
from geof.testing import assert_permutation_equivariant, assert_same
from geof_paper.baselines import GIN, ClassicGAT, ClassicSAGE
from geof_paper.baselines.classic import AttentionConv, MeanConv
from geof_paper.baselines.gin import GINLayer
from paper.tests.baselines.test_gcn import graph, inputs


def drawn(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    module = module.double()
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape).double())
    return module.eval()


def results(module, *arguments, names):
    output = module(*arguments)
    output.cos().sum().backward()
    return {"output": output} | {name: get().grad for name, get in names.items()}


def with_an_isolated_node() -> GraphInputs:
    x, edge_index, u = graph()
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


@pytest.mark.parametrize("kind", [ClassicSAGE, ClassicGAT, GIN])
def test_symmetric_under_renumbering(kind):
    options = {} if kind is GIN else {"signature_channels": 3}
    model = drawn(kind(in_channels=5, hidden_channels=6, **options))
    for seed in range(3):
        assert_permutation_equivariant(
            lambda x, edges, u: model(GraphInputs.build(x, edges, u)), *graph(seed), tolerance=1e-9
        )


@pytest.mark.parametrize("kind", [ClassicSAGE, ClassicGAT, GIN])
@pytest.mark.parametrize(
    "options", [{"num_layers": 0}, {"hidden_channels": 0}, {"dropout": 1.0}, {"outputs": "al"}]
)
def test_ranges(kind, options):
    more = {} if kind is GIN else {"signature_channels": 3}
    with pytest.raises(ConfigError, match=next(iter(options))):
        kind(in_channels=5, **more, **options)

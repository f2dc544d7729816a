"""The compared networks compute what their equations say."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn.models import GCN
from torch_geometric.utils import to_undirected

from geof.data.batching import NeighbourSampler
from geof.errors import ConfigError
from geof.methods.gcn import PlainGCN
from geof.methods.interface import GraphInputs
from geof.nn.sparse import SparseLinear
from geof.testing import assert_permutation_equivariant, assert_same
from geof_paper.baselines import ClassicGCN
from geof_paper.baselines.sparse import normalised_adjacency
from tests.graphs import random_sample


def graph(seed: int = 0, **sizes):
    x, edge_index, u = random_sample(seed, **sizes)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    return x, to_undirected(edge_index), u


def inputs(seed: int = 0) -> GraphInputs:
    return GraphInputs.build(*graph(seed))


def build(kind=ClassicGCN, **options):
    torch.manual_seed(0)
    model = kind(5, 3, **{"hidden_channels": 6, **options}).double()
    for parameter in model.parameters():  # biases start at zero, normalisations at one
        parameter.data.copy_(torch.randn(parameter.shape).double())
    return model.eval()


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


def test_messages_of_directed_edges_go_from_source_to_target():
    """A path 2 -> 1 -> 0, as a sample around node 0 has it: nothing ever reaches node 2."""
    x, _, u = random_sample(0, nodes=3, edges=0)
    given = GraphInputs.build(x, torch.tensor([[1, 2], [0, 1]]), u)
    adjacency = normalised_adjacency(given).to_dense().double()
    wanted = dense_adjacency(given.edge_index, 3)
    torch.testing.assert_close(adjacency, wanted, rtol=1e-12, atol=1e-12)
    assert adjacency.nonzero().tolist() == [[0, 0], [0, 1], [1, 1], [1, 2], [2, 2]]
    for model in (build(PlainGCN, num_layers=2), build(num_layers=2)):
        before = model(given)
        nudged = x.clone()
        nudged[0] += 1
        after = model(GraphInputs.build(nudged, given.edge_index, u))
        assert torch.equal(after[1:], before[1:])
        nudged = x.clone()
        nudged[2] += 1
        after = model(GraphInputs.build(nudged, given.edge_index, u))
        assert not torch.equal(after[0], before[0])


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


def test_input_scaling_and_dropout():
    given = inputs()
    scaled = GraphInputs.build(
        F.normalize(given.x, dim=-1) * 5**0.5, given.edge_index, given.signature
    )
    assert_same({"h": build(scale_features=True)(given)}, {"h": build()(scaled)}, 1e-12)
    for options in ({"dropout": 0.5}, {"dropout": 0.0, "feature_dropout": 0.5}):
        model = build(**options)
        assert torch.equal(model(given), build(dropout=0.0)(given))
        model.train()
        assert not torch.equal(model(given), model(given))
    model = build(dropout=0.0).train()
    assert torch.equal(model(given), model(given))


@pytest.mark.parametrize("kind", [ClassicGCN, PlainGCN])
def test_sparse_features_give_the_same(kind):
    x, edge_index, u = graph()
    x = torch.where(x > 0.2, x, 0.0)
    model = build(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its CSR support is in beta
        sparse = GraphInputs.build(x.to_sparse_csr(), edge_index, u)
        results = []
        for given in (sparse, GraphInputs.build(x, edge_index, u)):
            model.zero_grad()
            output = model(given)
            output.square().sum().backward()
            results.append({"h": output} | {n: p.grad.clone() for n, p in model.named_parameters()})
    assert_same(results[0], results[1], 1e-12)


@pytest.mark.parametrize("options", [{}, {"norm": "batch", "outputs": "all"}], ids=str)
@pytest.mark.parametrize("kind", [ClassicGCN, PlainGCN])
def test_symmetric_under_renumbering(kind, options):
    model = build(kind, **(options if kind is ClassicGCN else {}))
    for seed in range(3):
        assert_permutation_equivariant(
            lambda x, edges, u: model(GraphInputs.build(x, edges, u)), *graph(seed), tolerance=1e-12
        )


def test_plain_gcn_is_pygs():
    given, model = inputs(), build(PlainGCN, num_layers=3, dropout=0.5)
    theirs = GCN(5, 6, 3, dropout=0.5).double()
    theirs.load_state_dict(model.gcn.state_dict())
    theirs.eval()
    assert model.out_channels == 6
    assert torch.equal(model(given), theirs(given.x, given.edge_index))
    outputs = []
    for network, arguments in ((model, (given,)), (theirs, (given.x, given.edge_index))):
        torch.manual_seed(4)
        outputs.append(network.train()(*arguments))
    assert torch.equal(*outputs)


def test_one_layer_of_both_is_the_same_network_without_extras():
    given = inputs()
    plain, classic = build(PlainGCN, num_layers=1), build(num_layers=1, norm="none", residual=False)
    classic.convs[0].lin.weight.data = plain.gcn.convs[0].lin.weight.data
    classic.convs[0].bias.data = plain.gcn.convs[0].bias.data
    assert_same({"h": classic(given)}, {"h": F.relu(plain(given))}, 1e-12)


def test_sampled_batches_train_the_seeds_on_what_they_hear():
    """One hop of all neighbours: the sum is the whole graph's, the degrees are the sample's."""
    x, edge_index, u = graph()
    sampler = NeighbourSampler(edge_index, 9, [-1], batch_size=3, seed=1)
    model = build(num_layers=1)
    for batch in sampler.batches(epoch=0):
        given = GraphInputs.build(x[batch.n_id], batch.edge_index, u[batch.n_id])
        (wanted,) = by_hand(model, given, layer_norm)
        assert_same({"h": model(given)}, {"h": wanted}, 1e-12)


def test_a_linear_layer_takes_sparse_rows():
    x, _, _ = graph()
    for bias in (True, False):
        layer = SparseLinear(5, 4, bias=bias).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sparse = layer(x.to_sparse_csr())
        assert_same({"y": sparse}, {"y": F.linear(x, *layer.parameters())}, 1e-12)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ClassicGCN, {"norm": "bach"}, "'norm'.*Did you mean 'batch'"),
        (ClassicGCN, {"outputs": "al"}, "'outputs'.*Did you mean 'all'"),
        (ClassicGCN, {"num_layers": 0}, "'num_layers'"),
        (ClassicGCN, {"dropout": 1.0}, "'dropout'"),
        (ClassicGCN, {"feature_dropout": -0.1}, "'feature_dropout'"),
        (ClassicGCN, {"hidden_channels": 0}, "'hidden_channels'"),
        (PlainGCN, {"num_layers": 0}, "'num_layers'"),
        (PlainGCN, {"dropout": 2}, "'dropout'"),
        (PlainGCN, {"hidden_channels": 0}, "'hidden_channels'"),
    ],
)
def test_ranges(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(5, 3, **options)

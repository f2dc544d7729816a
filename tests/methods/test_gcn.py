"""GCN as usually written is PyG's own network, and takes sparse features."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch_geometric.nn.models import GCN

from geof.methods.gcn import PlainGCN
from geof.methods.interface import GraphInputs
from geof.nn.inputs import SparseLinear
from geof.testing import (
    MethodTestCase,
    assert_same,
    draw_parameters,
    random_graph,
    without_csr_warnings,
)


def test_plain_gcn_is_pygs():
    given = GraphInputs.build(*random_graph())
    torch.manual_seed(0)
    ours = PlainGCN(5, 3, hidden_channels=6, num_layers=3, dropout=0.5).double()
    draw_parameters(ours, spread=1.0)
    theirs = GCN(5, 6, 3, dropout=0.5).double()
    theirs.load_state_dict(ours.gcn.state_dict())
    theirs.eval()
    assert ours.out_channels == 6
    assert torch.equal(ours(given), theirs(given.x, given.edge_index))
    outputs = []
    for network, arguments in ((ours, (given,)), (theirs, (given.x, given.edge_index))):
        torch.manual_seed(4)
        outputs.append(network.train()(*arguments))
    assert torch.equal(*outputs)


def test_a_linear_layer_takes_sparse_rows():
    x, _, _ = random_graph()
    for bias in (True, False):
        layer = SparseLinear(5, 4, bias=bias).double()
        with without_csr_warnings():
            sparse = layer(x.to_sparse_csr())
        assert_same({"y": sparse}, {"y": F.linear(x, *layer.parameters())}, 1e-12)


class TestGCN(MethodTestCase):
    method = "gcn"
    options = {"hidden_channels": 6}
    variants = ({}, {"num_layers": 3})
    exact_edge_order = False  # PyG adds messages in the order in which edges are given
    refused = (
        ({"num_layers": 0}, "'num_layers'"),
        ({"dropout": 2}, "'dropout'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
    )

from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import degree

from geof.data import covariance_graph, digits_graph, random_node_split
from geof.errors import ConfigError


def test_digits_are_real_and_undirected():
    graph = digits_graph()
    assert (graph.num_nodes, graph.num_features, int(graph.y.max()) + 1) == (1797, 64, 10)
    assert graph.is_undirected()
    assert not graph.has_self_loops()
    assert int(degree(graph.edge_index[0], 1797).min()) >= 8
    assert float(graph.x.min()) == 0
    assert float(graph.x.max()) == 1


def test_covariance_classes_share_means_and_variances():
    graph = covariance_graph(centres=50, pairs=3, channels=5, seed=2)
    centres = 50
    for i in range(centres):
        leaves = graph.edge_index[0][graph.edge_index[1] == i]
        offset = graph.x[leaves] - graph.x[i]
        assert len(leaves) == 6
        torch.testing.assert_close(offset.mean(0), torch.zeros(5), atol=1e-6, rtol=0)
        torch.testing.assert_close(offset[:, 0].square(), offset[:, 1].square())
        sign = 1 if graph.y[i] == 0 else -1
        assert float((offset[:, 0] * offset[:, 1]).sum()) * sign > 0
    assert int(graph.y[:centres].sum()) == 25
    assert torch.equal(graph.y >= 0, graph.centre_mask)


def test_splits_are_disjoint_complete_and_pinned():
    split = random_node_split(100, seed=3)
    parts = torch.cat([split.train, split.validation, split.test])
    assert torch.equal(parts.sort().values, torch.arange(100))
    assert (len(split.train), len(split.validation), len(split.test)) == (60, 20, 20)
    # The hash is part of published results: it must not change between releases or machines.
    assert split.hash == "b9daa78435d1f46f"
    assert split.hash != random_node_split(100, seed=4).hash


def test_splits_of_a_subset():
    nodes = torch.arange(100) % 2 == 0
    split = random_node_split(100, 0, nodes=nodes)
    assert all(nodes[part].all() for part in (split.train, split.validation, split.test))


@pytest.mark.parametrize(
    "call",
    [
        lambda: random_node_split(100, 0, train=0.9, validation=0.2),
        lambda: random_node_split(2, 0),
        lambda: covariance_graph(channels=1),
        lambda: digits_graph(neighbours=0),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(ConfigError, match="Expected"):
        call()

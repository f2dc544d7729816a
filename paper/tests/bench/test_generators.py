"""Generated graphs: the sizes asked for, the skew asked for, the same every time."""

from __future__ import annotations

import pytest
import torch

from geof.errors import ConfigError
from geof.nn.inputs import without_csr_warnings
from geof_paper.bench.generators import molecules, skewed_edges, sparse_rows


def degrees(edge_index, nodes):
    return torch.bincount(edge_index[0], minlength=nodes).double()


def test_a_skewed_graph_is_simple_undirected_sorted_and_of_the_exact_size():
    edges = skewed_edges(500, 6_000, 2.0)
    assert edges.shape == (2, 6_000)
    assert edges.min() >= 0
    assert edges.max() < 500
    assert (edges[0] != edges[1]).all()
    key = edges[0] * 500 + edges[1]
    assert (key[1:] > key[:-1]).all()
    assert torch.equal((edges[1] * 500 + edges[0]).sort().values, key)


def test_equal_seeds_give_equal_graphs():
    assert torch.equal(skewed_edges(300, 2_000, 1.5, seed=3), skewed_edges(300, 2_000, 1.5, seed=3))
    assert not torch.equal(skewed_edges(300, 2_000, 1.5), skewed_edges(300, 2_000, 1.5, seed=3))


@pytest.mark.parametrize("wanted", [0.5, 1.0, 2.0])
def test_degrees_vary_as_asked(wanted):
    degree = degrees(skewed_edges(20_000, 400_000, wanted), 20_000)
    assert float(degree.std() / degree.mean()) == pytest.approx(wanted, rel=0.2)


def test_a_skewed_graph_has_hubs_and_an_even_one_has_none():
    hubs, even = (degrees(skewed_edges(10_000, 200_000, v), 10_000) for v in (2.0, 0.0))
    assert hubs.max() > 20 * hubs.mean()
    assert even.max() < 3 * even.mean()


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="even number of edges"):
        skewed_edges(100, 11, 1.0)
    with pytest.raises(ConfigError, match="at most half"):
        skewed_edges(10, 80, 1.0)
    with pytest.raises(ConfigError, match="six nodes per graph"):
        molecules(10, 50, 100, 4, 2, 0.5)
    with pytest.raises(ConfigError, match="even number of edges from 180"):
        molecules(10, 100, 100, 4, 2, 0.5)


def test_molecules_have_the_exact_sizes_and_stay_connected():
    graphs = molecules(40, 600, 1_300, features=7, classes=2, variation=0.5)
    assert (len(graphs), graphs.num_nodes, graphs.num_edges) == (40, 600, 1_300)
    assert set(graphs.labels.tolist()) == {0, 1}
    for graph in graphs:
        assert graph.num_nodes >= 6
        assert graph.x.shape == (graph.num_nodes, 7)
        assert (graph.x.sum(1) == 1).all()
        assert graph.is_undirected()
        assert not graph.has_self_loops()
        assert reachable(graph) == graph.num_nodes
    degree = torch.cat([degrees(graph.edge_index, graph.num_nodes) for graph in graphs])
    assert degree.max() <= 8


def reachable(graph) -> int:
    seen = torch.zeros(graph.num_nodes, dtype=torch.bool)
    seen[0] = True
    for _ in range(graph.num_nodes):
        seen[graph.edge_index[1][seen[graph.edge_index[0]]]] = True
    return int(seen.sum())


@pytest.mark.parametrize("density", [0.001, 0.1, 0.35, 1.0])
def test_sparse_rows_have_the_density_and_sum_to_one(density):
    with without_csr_warnings():
        x = sparse_rows(50, 200, density)
    filled = max(1, round(200 * density))
    assert x.values().numel() == 50 * filled
    assert torch.equal((x.to_dense() != 0).sum(1), torch.full((50,), filled))  # no repeats
    assert x.to_dense().sum(1).allclose(torch.ones(50))

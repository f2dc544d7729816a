"""Locally linear weights: node by node as the equations say, batched, sparse, kept with graphs."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_geometric.utils import to_undirected

from geof.kernels.neighbourhood import Cache
from geof.methods.interface import GraphInputs
from geof.testing import assert_same
from geof_paper.baselines import lle
from geof_paper.baselines.lle import as_convex, lle_weights, ridge_weights


def graph(seed: int, nodes: int = 30, edges: int = 60, channels: int = 7) -> GraphInputs:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    edge_index = torch.randint(0, nodes - 2, (2, edges), generator=generator)  # two are isolated
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
    return GraphInputs.build(x, edge_index, torch.zeros(nodes, 1))


def matrix(inputs: GraphInputs, weights: torch.Tensor) -> torch.Tensor:
    edges, nodes = inputs.edges, inputs.edges.num_nodes
    W = torch.zeros(nodes, nodes, dtype=torch.float64)
    W[edges.target, edges.source] = weights
    return W


def by_hand(inputs: GraphInputs, ridge: float, binarise: bool) -> torch.Tensor:
    """One node at a time, with an inverse."""
    x = (inputs.x > 0).double() if binarise else inputs.x
    nodes = len(x)
    W = torch.zeros(nodes, nodes, dtype=torch.float64)
    for i in range(nodes):
        around = inputs.edge_index[0, inputs.edge_index[1] == i].unique()
        if len(around) == 0:
            continue
        X = x[around]
        w = torch.linalg.inv(X @ X.t() + ridge * torch.eye(len(X)).double()) @ X @ x[i]
        w = torch.where(w > 1e-8, w, 0.0)
        W[i, around] = w / w.sum() if w.sum() > 0 else 1 / len(w)
    return W


@pytest.mark.parametrize("binarise", [True, False])
@pytest.mark.parametrize("channels", [2, 7, 40])
def test_weights_node_by_node(channels, binarise):
    """With two features most nodes have more neighbours than features."""
    for seed in range(3):
        given = graph(seed, channels=channels)
        W = matrix(given, lle_weights(given, ridge=0.01, binarise=binarise))
        assert_same({"W": W}, {"W": by_hand(given, 0.01, binarise)}, 1e-10)
        has = torch.bincount(given.edge_index[1], minlength=30) > 0
        torch.testing.assert_close(W.sum(1), has.double())
        assert not W.diagonal().any()
        assert not W[-1].any()


def test_both_forms_of_the_solution_agree():
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    around = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    wide = torch.cat([around, torch.zeros(3, 9, 20).double()], dim=-1)
    padded = torch.cat([own, torch.zeros(3, 20).double()], dim=-1)
    narrow = ridge_weights(own, around, 0.01)  # F x F
    torch.testing.assert_close(ridge_weights(padded, wide, 0.01), narrow, rtol=1e-9, atol=1e-9)


def test_no_matrix_is_larger_than_neighbours_or_features_demand(monkeypatch):
    shapes, plain = [], torch.linalg.cholesky
    monkeypatch.setattr(torch.linalg, "cholesky", lambda A: shapes.append(A.size(-1)) or plain(A))
    for channels in (3, 50):
        lle_weights(graph(0, channels=channels), ridge=0.01, binarise=False)
        assert max(shapes) == (3 if channels == 3 else 9)
        shapes.clear()


def test_negative_weights_are_clipped_and_none_left_means_equal():
    given = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 0.0, -3.0], [1e-12, 1.0, 0.0]]).double()
    third = [1 / 3, 1 / 3, 1 / 3]
    assert as_convex(given).tolist() == [[0.25, 0.0, 0.75], third, [0.0, 1.0, 0.0]]


def test_one_hot_features_of_singular_gram_matrices():
    """Five equal neighbours share the weight; one of another kind gets exactly none."""
    x = torch.eye(2)[torch.tensor([0, 0, 0, 0, 0, 0, 1])]
    star = torch.stack([torch.arange(1, 7), torch.zeros(6, dtype=torch.long)])
    given = GraphInputs.build(x, to_undirected(star), torch.zeros(7, 1))
    W = matrix(given, lle_weights(given, ridge=0.01, binarise=True))
    torch.testing.assert_close(W[0, 1:6], torch.full((5,), 0.2).double())
    assert W[0, 6] == 0.0
    assert W[6, 0] == 1.0  # nothing explains it: equal weights


def test_pieces_and_sparse_rows_change_nothing(monkeypatch):
    given = graph(0)
    x = torch.where(given.x > 0.2, given.x, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its CSR support is in beta
        sparse = x.to_sparse_csr()
    for binarise in (True, False):
        wanted = lle._solve(x, given.edges, 0.01, binarise)
        assert torch.equal(lle._solve(sparse, given.edges, 0.01, binarise), wanted)
        with monkeypatch.context() as patch:
            patch.setattr(lle, "ENTRIES", 40)  # a node at a time, no dense copy
            for features in (x, sparse):
                assert torch.equal(lle._solve(features, given.edges, 0.01, binarise), wanted)


def together(graphs: list[GraphInputs], caches: list[Cache]) -> GraphInputs:
    sizes = [graph.x.size(0) for graph in graphs]
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return GraphInputs.build(
        torch.cat([graph.x for graph in graphs]),
        torch.cat([g.edge_index + start for g, start in zip(graphs, starts, strict=False)], dim=1),
        torch.zeros(sum(sizes), 1),
        torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes)),
        len(graphs),
        caches=caches,
    )


def test_a_graph_is_solved_once_whatever_batches_it_is_in(monkeypatch):
    graphs = [graph(seed, nodes=8 + seed, edges=12) for seed in range(5)]
    alone = [lle_weights(one, ridge=0.01, binarise=False) for one in graphs]
    caches = [Cache() for _ in graphs]
    for order in ([0, 1, 2], [3, 4], [4, 2, 0], [1, 3, 0, 2, 4]):
        batch = together([graphs[i] for i in order], [caches[i] for i in order])
        if order[0] == 4:  # all have been seen
            monkeypatch.setattr(lle, "_solve", None)
        weights = lle_weights(batch, ridge=0.01, binarise=False)
        # Edges of a graph come in the same order alone and in a batch: the same bits, one by one.
        assert torch.equal(weights, torch.cat([alone[i] for i in order]))
        assert lle_weights(batch, ridge=0.01, binarise=False) is weights


def test_other_settings_have_other_weights():
    given = graph(0)
    first = lle_weights(given, ridge=0.01, binarise=False)
    assert not torch.equal(lle_weights(given, ridge=1.0, binarise=False), first)
    assert not torch.equal(lle_weights(given, ridge=0.01, binarise=True), first)
    assert lle_weights(given, ridge=0.01, binarise=False) is first


def test_directed_edges_weigh_what_the_target_hears():
    """A sample around node 0: 2 -> 1 -> 0. Node 2 hears nobody."""
    given = GraphInputs.build(
        torch.rand(3, 4).double(), torch.tensor([[1, 2], [0, 1]]), torch.zeros(3, 1)
    )
    W = matrix(given, lle_weights(given, ridge=0.01, binarise=True))
    assert W.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_graphs_without_edges_and_single_nodes():
    for nodes in (1, 3):
        none = torch.empty(2, 0, dtype=torch.long)
        given = GraphInputs.build(torch.rand(nodes, 4), none, torch.zeros(nodes, 1))
        assert lle_weights(given, ridge=0.01, binarise=True).tolist() == [0.0] * nodes

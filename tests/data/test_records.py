"""Edges and features as every reader makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from geof.data.records import sparse_features, undirected, undirected_edges


def test_undirected_removes_loops_and_repeats_and_sorts():
    source, target = np.array([2, 0, 2, 1, 2]), np.array([0, 1, 0, 1, 1])
    edges, place = undirected(source, target, 3)
    assert edges.tolist() == [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    assert place.tolist() == [1, 0, 1, 4, 0, 4]


def test_an_edge_given_in_both_directions_keeps_its_own_place():
    edges, place = undirected(np.array([1, 0]), np.array([0, 1]), 2)
    assert edges.tolist() == [[0, 1], [1, 0]]
    assert place.tolist() == [1, 0]


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))
        )
    )
)
def test_edges_become_what_pyg_would_make_of_them(drawn):
    n, pairs = drawn
    given_edges = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    edges, changed = undirected_edges(given_edges, n)
    expected = coalesce(to_undirected(remove_self_loops(given_edges)[0], num_nodes=n))
    assert torch.equal(edges, expected)
    assert edges.dtype == torch.long
    loops = sum(a == b for a, b in pairs)
    once = {pair for pair in pairs if pair[0] != pair[1]}
    assert changed["self-loops removed"] == loops
    assert changed["repeated edges merged"] == len(pairs) - loops - len(once)
    one_way = sum((b, a) not in once for a, b in once)
    assert changed["edges given in one direction taken as undirected"] == one_way
    both, counts = undirected_edges(given_edges, n, directed=False)
    assert torch.equal(both, expected)
    assert counts["repeated edges merged"] == len(pairs) - loops - expected.size(1) // 2


def test_sparse_features_have_long_indices_that_are_checked():
    row_pointer, column = torch.tensor([0, 1, 2]).int(), torch.tensor([2, 0]).int()
    x = sparse_features(row_pointer, column, torch.ones(2), (2, 3))
    assert x.to_dense().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert x.crow_indices().dtype == x.col_indices().dtype == torch.long
    with pytest.raises(RuntimeError, match="col_indices"):
        sparse_features(row_pointer, column, torch.ones(2), (2, 2))

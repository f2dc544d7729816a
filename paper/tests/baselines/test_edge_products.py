"""Sparse products over edges equal gathering rows, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import softmax

from geof.kernels import Neighbourhoods
from geof.methods.interface import GraphInputs
from geof.testing import assert_same
from geof_paper.baselines.edge_products import (
    EdgePattern,
    edge_dots,
    neighbourhood_softmax,
    weighted_sum,
)
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import (
    adjacency,
    mean_adjacency,
    neighbour_mean,
    normalised_adjacency,
)
from tests.graphs import random_sample


def edges(seed: int) -> Neighbourhoods:
    """Return directed edges; node 7 is alone."""
    _, edge_index, _ = random_sample(seed, nodes=9, edges=20)
    return Neighbourhoods.from_edge_index(edge_index[:, (edge_index != 7).all(0)], 9)


def with_gradients(function, *arguments):
    arguments = [argument.clone().requires_grad_() for argument in arguments]
    value = function(*arguments)
    (value * torch.arange(value.numel()).double().view(value.shape).cos()).sum().backward()
    return {"value": value} | {str(i): a.grad for i, a in enumerate(arguments)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("width", [1, 5])
def test_both_products_equal_gathered_rows(seed, width):
    given = edges(seed)
    torch.manual_seed(seed)
    weight = torch.randn(len(given.source)).double()
    a, b = torch.randn(2, 9, width).double()
    assert_same(
        with_gradients(lambda w, x: weighted_sum(given, w, x), weight, a),
        with_gradients(lambda w, x: given.sum(w[:, None] * x[given.source]), weight, a),
        1e-12,
    )
    assert_same(
        with_gradients(lambda a, b: edge_dots(given, a, b), a, b),
        with_gradients(lambda a, b: (a[given.target] * b[given.source]).sum(-1), a, b),
        1e-12,
    )


def test_softmax_over_neighbourhoods_is_pygs_and_survives_large_scores():
    given = edges(0)
    torch.manual_seed(0)
    score = torch.randn(len(given.source)).double()
    assert_same(
        with_gradients(lambda s: neighbourhood_softmax(given, s), score),
        with_gradients(lambda s: softmax(s, given.target), score),
        1e-12,
    )
    result = with_gradients(lambda s: neighbourhood_softmax(given, s), 1e4 * score)
    assert all(bool(value.isfinite().all()) for value in result.values())


def test_float32_and_rows_that_are_not_contiguous():
    given = edges(0)
    torch.manual_seed(0)
    a, b = torch.randn(4, 9).t(), torch.randn(9, 8)[:, ::2]
    wanted = (a[given.target] * b[given.source]).sum(-1)
    torch.testing.assert_close(edge_dots(given, a, b), wanted)


def test_the_pattern_is_made_once():
    given = edges(0)
    weighted_sum(given, torch.ones(len(given.source)), torch.ones(9, 1))
    pattern = EdgePattern.of(given)
    assert len(given.cache.items()) == 1
    edge_dots(given, torch.ones(9, 1), torch.ones(9, 1))
    assert EdgePattern.of(given) is pattern


@pytest.mark.parametrize("kind", [adjacency, mean_adjacency, neighbour_mean, normalised_adjacency])
def test_products_with_a_graphs_matrix(kind):
    """Directed edges: the gradient goes the other way."""
    x, edge_index, u = random_sample(2, nodes=9, edges=20)
    loops = edge_index[0] == edge_index[1]
    edge_index = edge_index[:, ~loops].unique(dim=1)
    inputs = GraphInputs.build(x, edge_index, u)
    dense = torch.zeros(9, 9).double()
    dense[edge_index[1], edge_index[0]] = 1
    if kind in (mean_adjacency, normalised_adjacency):
        dense += torch.eye(9)
    degree = dense.sum(1).clamp_min(1)
    if kind in (mean_adjacency, neighbour_mean):
        dense = dense / degree[:, None]
    elif kind is normalised_adjacency:
        dense = dense / (degree[:, None] * degree[None, :]).sqrt()
    assert_same(
        with_gradients(lambda x: graph_product(inputs, kind, x), x),
        with_gradients(lambda x: dense @ x, x),
        1e-12,
    )

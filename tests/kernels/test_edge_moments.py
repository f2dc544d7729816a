"""The factored form's operator on its own."""

from __future__ import annotations

import pytest
import torch

from geof.errors import ConfigError
from geof.kernels import Neighbourhoods, factored, resolve_backend, segments


@pytest.fixture
def inputs(random_state):
    draw = random_state(1)
    edge_index = torch.tensor([[0, 1, 2, 3, 1, 4, 4], [1, 0, 1, 1, 2, 1, 1]])
    edges = Neighbourhoods.from_edge_index(edge_index, 6, static_shapes=True)
    return draw.normal(6, 2, 3), draw.normal(6, 2, 3), edges


@pytest.mark.parametrize("second", [True, False])
def test_gradients_of_all_outputs(inputs, second):
    h, y, edges = inputs

    def run(h, y):
        moments = factored.edge_moments(h, y, edges, 2.0, second=second)
        return moments.weight, moments.first, moments.second

    assert torch.autograd.gradcheck(run, (h.requires_grad_(), y.requires_grad_()))


def test_operator_is_registered_soundly(inputs):
    h, y, edges = inputs
    torch.library.opcheck(
        torch.ops.geof.edge_moments.default,
        (
            h.requires_grad_(),
            y.requires_grad_(),
            edges.source,
            edges.target,
            edges.active,
            2.0,
            True,
        ),
    )
    assert factored.edge_moments(h, y, edges, 2.0, second=False).second.numel() == 0


def test_pieces_do_not_change_the_sums(inputs, monkeypatch):
    h, y, edges = inputs
    whole = factored.edge_moments(h, y, edges, 2.0, second=True)
    for size in ("CACHED", "SHARED"):
        monkeypatch.setattr(segments, size, 1)
    for got, wanted in zip(
        factored.edge_moments(h, y, edges, 2.0, second=True), whole, strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13)


def test_hub_weights_are_a_distribution(random_state):
    """A hub with thousands of neighbours, across many pieces."""
    nodes = 5000
    edge_index = torch.stack([torch.arange(1, nodes), torch.zeros(nodes - 1, dtype=torch.long)])
    edges = Neighbourhoods.from_edge_index(edge_index, nodes)
    h = random_state(0).normal(nodes, 4, 8)
    moments = factored.edge_moments(h, h, edges, 50.0, second=True)
    torch.testing.assert_close(edges.sum(moments.weight), torch.ones(nodes).double())
    weight = torch.softmax(-(h[0] - h).square().sum((-2, -1)) / 50.0, 0)
    torch.testing.assert_close(moments.first[0], torch.einsum("n,nbm->bm", weight, h))
    residual = h - h[0]
    torch.testing.assert_close(
        moments.second[0], torch.einsum("n,nbr,nbs->brs", weight, residual, residual)
    )


def test_unknown_backend_names_the_valid_ones():
    with pytest.raises(ConfigError, match=r"(?s)'torhc'.*'auto'.*'reference', 'torch'.*'torch'\?"):
        resolve_backend("torhc", 4)


def test_bits_do_not_depend_on_the_number_of_threads(random_state):
    draw = random_state(0)
    edge_index = torch.randint(0, 300, (2, 9000), generator=draw.generator)
    edges = Neighbourhoods.from_edge_index(edge_index, 300)
    h, y = (draw.normal(300, 4, 8).float().requires_grad_() for _ in range(2))
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            moments = factored.edge_moments(h, y, edges, 30.0, second=True)
            loss = sum((value * value.detach()).sum() for value in moments)
            results.append([*moments, *torch.autograd.grad(loss, (h, y))])
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))

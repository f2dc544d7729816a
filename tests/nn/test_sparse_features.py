"""Sparse features: the products of dense ones, and what is remembered between passes."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from geof import GeoF
from geof.nn import inputs as module
from geof.nn.inputs import Columns, Remembered, SparseLinear, without_csr_warnings
from geof.nn.refinement import drop_features
from tests.graphs import random_sample


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with without_csr_warnings():
        yield


def words(seed: int, rows: int = 12, columns: int = 7) -> Tensor:
    """Return a matrix with empty rows and columns."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    drawn = drawn * (torch.rand(rows, columns, generator=generator) < 0.3)
    drawn[3] = drawn[:, 2] = 0
    return drawn


def gradients(layer: SparseLinear, x: Tensor) -> list[Tensor]:
    layer.zero_grad()
    out = layer(x)
    out.backward(torch.arange(out.numel(), dtype=out.dtype).view_as(out))
    return [out.detach(), *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_dense_features(bias):
    layer = SparseLinear(7, 4, bias=bias).double()
    for seed in (0, 1, 0):  # other features, then the first ones again
        x = words(seed)
        wanted = gradients(layer, x)
        for layout in (x.to_sparse_csr(), x.to_sparse_coo()):
            for got, value in zip(gradients(layer, layout), wanted, strict=True):
                torch.testing.assert_close(got, value)


def test_columns_are_those_of_the_transpose():
    x = words(0).to_sparse_csr()
    torch.testing.assert_close(Columns.of(x).transposed(x).to_dense(), x.to_dense().T)


def test_dropped_entries_are_looked_up_not_sorted_again(monkeypatch):
    x, layer = words(0).to_sparse_csr(), SparseLinear(7, 4).double()
    made = []
    original = Columns.of
    monkeypatch.setattr(module.Columns, "of", lambda x: made.append(x) or original(x))
    torch.manual_seed(0)
    for _ in range(3):
        dropped = drop_features(x, 0.5, training=True)
        wanted = gradients(layer, dropped.to_dense())
        for got, value in zip(gradients(layer, dropped), wanted, strict=True):
            torch.testing.assert_close(got, value)
    assert len(made) == 1
    layer(words(1).to_sparse_csr())
    assert len(made) == 2


def test_features_with_a_gradient_of_their_own():
    x, layer = words(0), SparseLinear(7, 4).double()
    sparse = x.to_sparse_csr().requires_grad_()
    layer(sparse).sum().backward()
    dense = x.clone().requires_grad_()
    layer(dense).sum().backward()
    got = sparse.grad.to_dense()
    torch.testing.assert_close(got[x != 0], dense.grad[x != 0])


def test_rows_are_scaled_anew_when_the_features_change():
    x, edges, u = random_sample(0)
    torch.manual_seed(0)
    model = GeoF(5, 8, signature_channels=3, blocks=2, scale_features=True).double()
    first = model(x, edges, u)
    assert torch.equal(model(x, edges, u), first)
    changed = x.clone()
    changed[0] += 1
    other = model(changed, edges, u)
    assert not torch.equal(other, first)
    x[0] += 1  # in place: the same tensor with other entries
    assert torch.equal(model(x, edges, u), other)


def test_what_is_remembered_is_neither_copied_nor_saved():
    layer = SparseLinear(7, 4).double()
    gradients(layer, words(0).to_sparse_csr())
    assert layer._columns._held is not None
    assert copy.deepcopy(layer)._columns._held is None
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)._columns._held is None
    assert "_columns" not in layer.state_dict()


def test_a_value_is_made_once_for_a_key():
    remembered: Remembered[int] = Remembered()
    made = []

    def build() -> int:
        made.append(None)
        return len(made)

    tensor = torch.zeros(1)
    assert [remembered.of(tensor, key, build) for key in (0, 0, 1, 1, 0)] == [1, 1, 2, 2, 3]

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geof import GeoF
from geof.errors import ConfigError, DataError, DeviceError, DtypeError, ShapeError
from geof.kernels import BACKENDS, EdgeTerms, Neighbourhoods, check_edge_index
from geof.kernels.neighbourhood import NeighbourIndex
from geof.testing import assert_same, values_and_gradients
from tests.graphs import random_sample


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 1000))
def test_closed_neighbourhoods_are_sets(nodes, edges, seed):
    edge_index = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
    built = Neighbourhoods.from_edge_index(edge_index, nodes)
    wanted = {(int(t), int(s)) for s, t in edge_index.t()} | {(i, i) for i in range(nodes)}
    got = list(zip(built.target.tolist(), built.source.tolist(), strict=True))
    assert got == sorted(wanted)


@given(st.integers(1, 8), st.integers(0, 30), st.integers(0, 1000))
def test_static_shapes_mark_what_the_others_drop(nodes, edges, seed):
    edge_index = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
    compact = Neighbourhoods.from_edge_index(edge_index, nodes)
    static = Neighbourhoods.from_edge_index(edge_index, nodes, static_shapes=True)
    assert static.source.numel() == edges + nodes
    assert torch.equal(static.edge_index[:, static.active], compact.edge_index)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_inactive_edges_carry_nothing(backend):
    """Repeats that stay in the list while compiling change no value and no gradient."""
    x, edge_index, u = random_sample(0, edges=40)
    torch.manual_seed(0)
    model = GeoF(5, 8, signature_channels=3, blocks=2, temperature=3.0, backend=backend).double()
    compact, static = (
        Neighbourhoods.from_edge_index(edge_index, len(x), static_shapes=choice)
        for choice in (False, True)
    )
    assert not static.active.all()
    assert_same(
        values_and_gradients(model, x, static, u), values_and_gradients(model, x, compact, u), 1e-12
    )


@pytest.mark.parametrize(
    ("edge_index", "error", "message"),
    [
        (torch.tensor([[5], [0]]), DataError, "from 0 to 2"),
        (torch.tensor([[0], [-1]]), DataError, "from -1"),
        (torch.tensor([[0.0], [1.0]]), DtypeError, "int64"),
        (torch.tensor([0, 1]), ShapeError, "num_edges"),
    ],
)
def test_bad_edges_are_refused(edge_index, error, message):
    for check in (Neighbourhoods.from_edge_index, NeighbourIndex.from_edge_index, check_edge_index):
        with pytest.raises(error, match=message):
            check(edge_index, 3)


def test_sound_edges_pass_the_check():
    for edges, nodes in (([[0, 2], [2, 2]], 3), ([[], []], 0), ([[], []], 4)):
        assert check_edge_index(torch.tensor(edges, dtype=torch.long), nodes) is None


LOOPS = torch.arange(4)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        *[
            ((LOOPS.to(dtype), LOOPS.to(dtype), 4), DtypeError, "'source'.*int64")
            for dtype in (torch.int32, torch.uint8, torch.float32)
        ],
        ((LOOPS, LOOPS.int(), 4), DtypeError, "'target'.*int64.*got torch.int32"),
        ((LOOPS.tolist(), LOOPS, 4), DtypeError, "'source'.*got list"),
        ((LOOPS, LOOPS[:3], 4), ShapeError, r"'target'.*one entry per edge.*\(got \(3,\)\)"),
        ((LOOPS[None], LOOPS[None], 4), ShapeError, r"'source'.*\(got \(1, 4\)\)"),
        ((LOOPS, LOOPS.to("meta"), 4), DeviceError, "'target' on cpu.*got meta"),
        ((LOOPS, LOOPS, 4, LOOPS > 0, None, LOOPS[:2]), ShapeError, "'origin'"),
        ((LOOPS, LOOPS, 4, LOOPS), DtypeError, "'active'.*bool"),
        ((LOOPS, LOOPS, 4, (LOOPS > 0)[:2]), ShapeError, "'active'"),
        ((LOOPS, LOOPS, 3), DataError, "from 0 to 2.*got.*to 3"),
        ((LOOPS - 1, LOOPS, 4), DataError, "from -1"),
        ((LOOPS, LOOPS.flip(0), 4), DataError, "sorted by target"),
        ((LOOPS, LOOPS, -1), ConfigError, "num_nodes"),
    ],
)
def test_neighbourhoods_made_by_hand_are_looked_at(given, error, message):
    with pytest.raises(error, match=message):
        Neighbourhoods(*given)


@pytest.mark.parametrize(
    ("terms", "error", "message"),
    [
        (EdgeTerms(torch.zeros(3)), ShapeError, "terms.bias"),
        (EdgeTerms(torch.zeros(4), LOOPS, torch.zeros(4, 2, 2)), DtypeError, "terms.row.*int32"),
        (EdgeTerms(torch.zeros(4), LOOPS.int(), torch.zeros(4)), ShapeError, "terms.table"),
    ],
)
def test_terms_are_looked_at(terms, error, message):
    with pytest.raises(error, match=message):
        Neighbourhoods.from_edge_index(torch.empty(2, 0, dtype=torch.long), 4).carrying(terms)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_a_mask_of_any_strides_hides_the_same_edges(backend):
    x, edge_index, u = random_sample(0, edges=40)
    edges = Neighbourhoods.from_edge_index(edge_index, len(x), static_shapes=True)
    strewn = edges.active.repeat_interleave(3)[::3]
    assert not strewn.is_contiguous()
    model = GeoF(5, 8, signature_channels=3, blocks=2, backend=backend).double()
    other = Neighbourhoods(edges.source, edges.target, len(x), strewn)
    torch.testing.assert_close(model(x, other, u), model(x, edges, u), rtol=0, atol=0)


@pytest.mark.parametrize("origin", [False, True])
def test_neighbourhoods_of_inference_mode_serve_training(origin):
    with torch.inference_mode():
        edges = Neighbourhoods.from_edge_index(torch.tensor([[0], [1]]), 2, origin=origin)
        remade = Neighbourhoods.from_edge_index(edges.edge_index[:, :1].clone(), 2)
    assert not edges.source.is_inference()
    assert not remade.target.is_inference()


def test_sum_runs_over_targets():
    edges = Neighbourhoods.from_edge_index(torch.tensor([[0, 2], [1, 1]]), 3)
    values = torch.arange(5.0)  # 0->0, 0->1, 1->1, 2->1, 2->2
    assert edges.sum(values).tolist() == [0.0, 6.0, 4.0]


def test_no_nodes():
    edges = Neighbourhoods.from_edge_index(torch.empty(2, 0, dtype=torch.long), 0)
    assert edges.edge_index.shape == (2, 0)
    assert edges.sum(torch.empty(0, 4)).shape == (0, 4)


def test_to_keeps_everything():
    edges = Neighbourhoods.from_edge_index(torch.tensor([[0], [1]]), 2, static_shapes=True)
    moved = edges.to("cpu")
    assert torch.equal(moved.edge_index, edges.edge_index)
    assert torch.equal(moved.active, edges.active)

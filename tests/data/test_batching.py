"""Sampled batches are honest subgraphs; pieces cover the graph and stay small."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
import torch
import torch_geometric.typing

from geof.data import batching
from geof.data.batching import NeighbourSampler, pyg_lib_available
from geof.draws import raw_stream
from geof.errors import ConfigError, DataError, DtypeError, ShapeError
from geof.kernels import neighbourhood
from geof.kernels.library import find_library
from geof.kernels.neighbourhood import NeighbourIndex, pieces_of
from geof.kernels.sampling import native_sample


def random_edges(seed, nodes, edges):
    """Return directed edges with repeats and self-loops."""
    return torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(seed))


def in_neighbours(edge_index, nodes):
    """Return the sets that an index must hold, by plain loops."""
    found = {node: set() for node in range(nodes)}
    for source, target in edge_index.t().tolist():
        if source != target:
            found[target].add(source)
    return found


def by_target(edge_index, names):
    """Return the sources of every target, named by ``names``, as lists."""
    found = {}
    for source, target in names[edge_index].t().tolist():
        found.setdefault(target, []).append(source)
    return found


@pytest.fixture
def in_numpy(monkeypatch):
    """Do without the compiled sampler."""
    monkeypatch.setattr(batching, "native_sample", lambda *_, **__: None)


@pytest.mark.parametrize("seed", range(5))
def test_the_index_holds_every_in_neighbour_once(seed):
    edges = random_edges(seed, 20, 60)
    index = NeighbourIndex.from_edge_index(edges, 20)
    wanted = in_neighbours(edges, 20)
    for node in range(20):
        got = index.source[index.pointer[node] : index.pointer[node + 1]].tolist()
        assert got == sorted(wanted[node])


@pytest.mark.parametrize("fanouts", [[3], [2, 3], [1, -1, 2], [-1, -1], [50, 50]])
@pytest.mark.parametrize("seed", range(4))
def test_batches_are_honest_subgraphs(seed, fanouts):
    edges = random_edges(seed, 60, 200)
    wanted = in_neighbours(edges, 60)
    sampler = NeighbourSampler(edges, 60, fanouts, batch_size=7, seed=seed)
    assert len(sampler) == 9
    seeds = []
    for batch in sampler.batches(epoch=1):
        seeds.append(batch.n_id[: batch.batch_size])
        assert len(batch.n_id.unique()) == batch.num_nodes == len(batch.n_id)
        assert_honest(batch, wanted, fanouts)
    assert [len(part) for part in seeds] == [7] * 8 + [4]
    assert torch.equal(torch.cat(seeds).sort().values, torch.arange(60))


def assert_honest(batch, wanted, fanouts):
    """Walk the batch hop by hop: each node met has its fanout of true, distinct neighbours."""
    drawn = by_target(batch.edge_index, batch.n_id)
    frontier = set(batch.n_id[: batch.batch_size].tolist())
    met = set(frontier)
    for fanout in fanouts:
        following = set()
        for node in frontier:
            sources = drawn.pop(node, [])
            size = len(wanted[node]) if fanout == -1 else min(fanout, len(wanted[node]))
            assert len(sources) == len(set(sources)) == size
            assert set(sources) <= wanted[node]
            following |= set(sources) - met
        met |= following
        frontier = following
    assert not drawn  # nodes of the last hop receive nothing
    assert met == set(batch.n_id.tolist())


def test_a_batch_depends_on_seed_epoch_and_number_alone():
    edges = random_edges(0, 60, 400)

    def sampler(seed):
        return NeighbourSampler(edges, 60, [3, 3], batch_size=16, seed=seed)

    first = list(sampler(5).batches(2))
    resumed = list(sampler(5).batches(2, start=2))
    assert_same_batches(first[2:], resumed)
    reordered = edges[:, torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    assert_same_batches(
        first, NeighbourSampler(reordered, 60, [3, 3], batch_size=16, seed=5).batches(2)
    )
    alone = sampler(5).sample(first[3].n_id[: first[3].batch_size], epoch=2, number=3)
    assert_same_batches([first[3]], [alone])
    for other in (sampler(6).batches(2), sampler(5).batches(3)):
        assert not torch.equal(first[0].n_id, next(other).n_id)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_threads_draw_the_same_batches_in_the_same_order(monkeypatch, workers, compiled):
    if not compiled:
        monkeypatch.setattr(batching, "native_sample", lambda *_, **__: None)
    sampler = NeighbourSampler(random_edges(0, 60, 400), 60, [3, 3], batch_size=4, seed=5)
    assert_same_batches(sampler.batches(2, 1), sampler.batches(2, 1, workers=workers))


def test_threads_end_with_whoever_asked(monkeypatch):
    sampler = NeighbourSampler(random_edges(0, 60, 400), 60, [3, 3], batch_size=1)
    made, grow = [], sampler._grow
    monkeypatch.setattr(sampler, "_grow", lambda *given: made.append(0) or grow(*given))
    batches = sampler.batches(0, workers=2)
    next(batches)
    batches.close()
    assert len(made) <= 7  # what was asked for, two of each thread, and one each in its hands
    assert not [t for t in threading.enumerate() if t.name.startswith("geof-sampler")]


def test_an_error_of_a_thread_is_raised_where_its_batch_is_asked_for(monkeypatch):
    sampler = NeighbourSampler(random_edges(0, 60, 400), 60, [3, 3], batch_size=20)
    grow = sampler._grow

    def fails(seeds, bits):
        if 59 in seeds:
            raise DataError("here")
        return grow(seeds, bits)

    monkeypatch.setattr(sampler, "_grow", fails)
    sampler.shuffle = False
    batches = sampler.batches(0, workers=1)
    assert [next(batches).batch_size for _ in range(2)] == [20, 20]
    with pytest.raises(DataError, match="here"):
        next(batches)


def assert_same_batches(some, others):
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one.n_id, other.n_id)
        assert torch.equal(one.edge_index, other.edge_index)
        assert one.batch_size == other.batch_size


@pytest.mark.parametrize("fanouts", [[3], [2, 3], [1, -1, 2], [-1, -1], [50, 256], [300, 2]])
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_and_plain_draws_are_the_same(monkeypatch, fanouts, threads):
    edges = torch.cat([random_edges(5, 80, 900), hub(80)], dim=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for ids in (False, True):
            given = NeighbourSampler(edges, 80, fanouts, batch_size=9, seed=2, edge_ids=ids)
            compiled = list(given.batches(1))
            monkeypatch.setattr(batching, "native_sample", lambda *_, **__: None)
            assert_same_batches(compiled, given.batches(1))
            if ids:
                plain = given.batches(1)
                assert all(
                    torch.equal(a.e_id, b.e_id) for a, b in zip(compiled, plain, strict=True)
                )
            monkeypatch.undo()
    finally:
        torch.set_num_threads(before)


def hub(nodes):
    """Return edges from every node to node 0."""
    return torch.stack([torch.arange(nodes), torch.zeros(nodes, dtype=torch.long)])


@pytest.mark.skipif(find_library().library is None, reason="the kernels are not built")
def test_the_kernel_refuses_an_index_that_points_outside():
    wrong = NeighbourIndex(np.array([0, 1, 2]), np.array([1, 7]))
    with pytest.raises(DataError, match="below the number of nodes"):
        native_sample(wrong, np.array([0, 1]), [1], raw_stream(0))
    beyond = NeighbourIndex(np.array([0, 1, 9]), np.array([1, 0]))
    with pytest.raises(DataError, match="below the number of nodes"):
        native_sample(beyond, np.array([1]), [-1], raw_stream(0))
    with pytest.raises(DataError, match="below the number of nodes"):
        native_sample(sampler().index, np.array([10]), [1], raw_stream(0))
    wanted = list(sampler().batches(0))  # and nothing of it is remembered
    assert_same_batches(wanted, sampler().batches(0))


@pytest.mark.usefixtures("in_numpy")
def test_pinned_batch_in_numpy():
    test_pinned_batch()


def test_pinned_batch():
    sampler = NeighbourSampler(random_ring(), 12, [2, 1], batch_size=4, seed=0)
    batch = next(sampler.batches(0))
    assert batch.n_id.tolist() == [9, 7, 10, 2, 4, 5, 1, 8, 6, 11]
    assert batch.edge_index.tolist() == [
        [8, 4, 5, 6, 7, 8, 1, 9, 6, 4, 7, 5, 4, 7],
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    ]


def random_ring():
    nodes = torch.arange(12)
    return torch.cat([torch.stack([nodes, (nodes + k) % 12]) for k in (1, 2, 3, 5)], dim=1)


def test_every_subset_of_neighbours_is_equally_likely():
    spokes = torch.stack([torch.arange(1, 7), torch.zeros(6, dtype=torch.long)])
    index = NeighbourIndex.from_edge_index(spokes, 7)
    bits, trials = raw_stream(0), 20_000
    source, owner = index.sample(np.zeros(trials, np.int64), 3, bits)
    subsets = Counter(tuple(row) for row in np.sort(source[np.argsort(owner)].reshape(-1, 3)))
    assert len(subsets) == 20
    chi_square = sum((count - trials / 20) ** 2 / (trials / 20) for count in subsets.values())
    assert chi_square < 19 + 4 * np.sqrt(38)


def test_isolated_nodes_and_graphs_without_edges():
    none = torch.empty(2, 0, dtype=torch.long)
    (batch,) = NeighbourSampler(none, 3, [4, 4], batch_size=5, shuffle=False).batches(0)
    assert (batch.n_id.tolist(), batch.edge_index.shape) == ([0, 1, 2], (2, 0))
    assert batch.edge_index.dtype == torch.long
    assert list(NeighbourSampler(none, 0, [1], batch_size=5).batches(0)) == []
    loop = torch.tensor([[0, 1, 1], [0, 0, 0]])
    batch = NeighbourSampler(loop, 2, [1], batch_size=1).sample(torch.tensor([0]))
    assert batch.n_id[batch.edge_index].tolist() == [[1], [0]]  # the self-loop uses up no draw


def test_seeds_can_be_a_mask_and_keep_their_order():
    edges = random_edges(0, 20, 60)
    mask = torch.arange(20) % 5 == 0
    sampler = NeighbourSampler(edges, 20, [2], batch_size=3, nodes=mask, shuffle=False)
    assert [b.n_id[: b.batch_size].tolist() for b in sampler.batches(0)] == [[0, 5, 10], [15]]
    assert sampler.sample(torch.tensor([9, 2])).n_id[:2].tolist() == [9, 2]


@pytest.mark.usefixtures("in_numpy")
def test_numbering_does_not_trust_memory_it_has_not_written(monkeypatch):
    """Rooms that look as if their nodes had been met must not be believed."""
    edges = random_edges(3, 60, 200)
    expected = list(NeighbourSampler(edges, 60, [3, 3], batch_size=7).batches(0))
    empty = np.empty

    for rubbish in (0, 3, -1, 10**15):
        monkeypatch.setattr(np, "empty", lambda *a, r=rubbish, **k: full(empty(*a, **k), r))
        assert_same_batches(expected, NeighbourSampler(edges, 60, [3, 3], batch_size=7).batches(0))


def full(array, value):
    if array.dtype == np.int64:
        array.fill(value)
    return array


@pytest.mark.parametrize("piece_size", [1, 7, 40, 10_000])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_cover_the_graph_and_are_closed(seed, piece_size):
    edges = random_edges(seed, 50, 150)
    wanted = in_neighbours(edges, 50)
    covered = []
    for piece in pieces_of(NeighbourIndex.from_edge_index(edges, 50), piece_size):
        targets = range(50)[piece.targets]
        covered += targets
        assert piece.nodes[piece.rows].tolist() == list(targets)
        assert torch.equal(piece.nodes, piece.nodes.unique())  # ascending, once each
        found = by_target(piece.edge_index, piece.nodes)
        assert all(found.get(node, []) == sorted(wanted[node]) for node in targets)
        assert set(found) <= set(targets)
        size = len(targets) + piece.edge_index.size(1)
        assert size <= piece_size or len(targets) == 1
        assert len(piece.nodes) <= size
    assert covered == list(range(50))


def test_pieces_are_as_large_as_allowed():
    pieces = list(pieces_of(NeighbourIndex.from_edge_index(random_ring(), 12), 15))
    assert [piece.targets for piece in pieces] == [slice(i, i + 3) for i in range(0, 12, 3)]


@pytest.mark.parametrize("fanout", [50, 10**7, 2**63, 10**30])
def test_a_fanout_above_every_degree_takes_all_at_once(fanout):
    """However far above: what is drawn costs time, not what is asked for."""
    edges = random_edges(0, 20, 60)
    given = NeighbourSampler(edges, 20, [fanout, fanout], batch_size=20)
    every = NeighbourSampler(edges, 20, [-1, -1], batch_size=20)
    (got,), (wanted,) = given.batches(0), every.batches(0)
    assert torch.equal(got.n_id, wanted.n_id)
    assert torch.equal(got.edge_index, wanted.edge_index)


def test_many_draws_of_a_hub_are_those_of_a_few_at_a_time(monkeypatch):
    bounds = np.array([700, 300, 10**6])
    wanted = neighbourhood._distinct_below(bounds, 200, raw_stream(0))
    monkeypatch.setattr(neighbourhood, "FEW", 100)
    got = neighbourhood._distinct_below(bounds, 200, raw_stream(0))
    assert (got == wanted).all()
    assert all(
        len(set(column)) == 200 and max(column) < b for column, b in zip(got.T, bounds, strict=True)
    )


def test_pyg_lib_is_only_reported():
    assert pyg_lib_available() == torch_geometric.typing.WITH_PYG_LIB


EDGES = random_edges(0, 10, 30)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: NeighbourSampler(EDGES, 10, [], batch_size=1), ConfigError, "'fanouts'"),
        (lambda: NeighbourSampler(EDGES, 10, [2, 0], batch_size=1), ConfigError, r"\[2, 0\]"),
        (lambda: NeighbourSampler(EDGES, 10, [1], batch_size=0), ConfigError, "'batch_size'"),
        (lambda: NeighbourSampler(EDGES, 5, [1], batch_size=1), DataError, "from 0 to 4"),
        (lambda: NeighbourSampler(EDGES.int(), 10, [1], batch_size=1), DtypeError, "int64"),
        (lambda: NeighbourSampler(EDGES.t(), 10, [1], batch_size=1), ShapeError, "(2, num_edges)"),
        (lambda: sampler().sample(torch.tensor([1, 1])), DataError, "every seed node once"),
        (lambda: sampler().sample(torch.tensor([10])), DataError, "indices below 10"),
        (lambda: sampler().sample(torch.tensor([-1])), DataError, "from 0 to 9"),
        (lambda: sampler().sample(torch.tensor([0.5])), DataError, "indices below 10"),
        (lambda: sampler().sample(torch.tensor([[1]])), DataError, "one dimension"),
        (lambda: sampler().sample([1]), DataError, "got list"),
        (
            lambda: NeighbourSampler(EDGES, 10, 2, batch_size=1),
            ConfigError,
            r"'fanouts'.*\(got 2\)",
        ),
        (lambda: NeighbourSampler(EDGES, 10, ["all"], batch_size=1), ConfigError, "'fanouts'"),
        (lambda: NeighbourSampler(EDGES, 10, [1.5], batch_size=1), ConfigError, "'fanouts'"),
        (lambda: next(sampler().batches(-1)), ConfigError, "'epoch'"),
        (lambda: sampler().batches(0, workers=-1), ConfigError, "'workers'"),
        (lambda: next(pieces_of(sampler().index, 0)), ConfigError, "'piece_size'"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def sampler():
    return NeighbourSampler(EDGES, 10, [1], batch_size=1)

"""Link splits: nothing held out can be seen, in either direction, by any road."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.utils import to_undirected

from geof.data.link_splits import LeakError, LinkSplit, check_no_leak, random_link_split
from geof.data.splits import SEEDS, DatasetIdentity
from geof.errors import ConfigError, DataError, DtypeError, ShapeError

HELD_OUT = ("validation", "validation_negatives", "test", "test_negatives")


def pairs(edge_index):
    """Return the unordered pairs as Python sets, by another road than the code's."""
    return {frozenset(edge) for edge in edge_index.t().tolist()}


def random_graph(rng, nodes=(12, 40), density=(0.25, 0.5)):
    """Return edges with self-loops, repeats and mixed directions, their order random."""
    n = int(rng.integers(*nodes))
    upper = np.stack(np.triu_indices(n, 1))
    kept = upper[:, rng.random(upper.shape[1]) < rng.uniform(*density)]
    flipped = np.where(rng.random(kept.shape[1]) < 0.5, kept, kept[::-1])
    again = flipped[::-1, : kept.shape[1] // 3]
    loops = np.tile(rng.integers(0, n, 2), (2, 1))
    edges = np.concatenate([flipped, again, loops], axis=1)
    return torch.from_numpy(edges[:, rng.permutation(edges.shape[1])]), n


def ring(n=40):
    nodes = torch.arange(n)
    return torch.cat([torch.stack([nodes, (nodes + k) % n]) for k in (1, 2)], dim=1)


def test_two_hundred_random_graphs_leak_nothing():
    rng = np.random.default_rng(0)
    for _ in range(200):
        edges, n = random_graph(rng)
        split = random_link_split(edges, n, int(rng.integers(0, 2**40)))
        true = {pair for pair in pairs(edges) if len(pair) == 2}
        train, message = pairs(split.train), pairs(split.message_edges)
        held_out = {name: pairs(getattr(split, name)) for name in HELD_OUT}

        # The parts cover the edges and do not overlap.
        assert train | held_out["validation"] | held_out["test"] == true
        sets = [train, *held_out.values()]
        assert sum(map(len, sets)) == len(set().union(*sets))
        assert len(train) == round(0.8 * len(true))
        assert len(held_out["validation"]) == round(0.05 * len(true))

        # Messages, signatures and degrees: training edges, in both directions, once each.
        assert message == train
        assert split.message_edges.size(1) == 2 * len(train)
        assert torch.equal(to_undirected(split.message_edges), split.message_edges)

        # Negatives: as many as positives, of two nodes, never a true edge.
        for part in ("validation", "test"):
            negatives = held_out[f"{part}_negatives"]
            assert len(negatives) == len(held_out[part]) == getattr(split, part).size(1)
            assert all(len(pair) == 2 for pair in negatives)
            assert not negatives & true
        check_no_leak(split, split.message_edges, split.message_edges, edges)


def test_training_negatives_tell_nothing_about_what_is_held_out():
    """They are the same whatever was held out, for 200 graphs: so their labels cannot reveal it."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        edges, n = random_graph(rng)
        split = random_link_split(edges, n, int(rng.integers(0, 2**40)))
        swapped = replace(
            split,
            validation=split.validation_negatives,
            validation_negatives=split.validation,
            test=split.test_negatives,
            test_negatives=split.test,
        )
        drawn = split.training_negatives(3)
        assert torch.equal(drawn, swapped.training_negatives(3))
        assert drawn.size(1) == split.train.size(1) == len(pairs(drawn))
        assert not pairs(drawn) & pairs(split.train)
        assert bool((drawn[0] < drawn[1]).all())


def test_training_negatives_include_held_out_edges_as_often_as_any_other_pair():
    split = random_link_split(ring(12), 12, 0)
    epochs = 3000
    seen = Counter(
        pair for epoch in range(epochs) for pair in pairs(split.training_negatives(epoch))
    )
    free = 12 * 11 // 2 - split.train.size(1)
    expected = epochs * split.train.size(1) / free
    assert len(seen) == free
    assert pairs(split.test) < set(seen)
    deviation = np.sqrt(expected * (1 - split.train.size(1) / free))
    assert max(abs(count - expected) for count in seen.values()) < 4.5 * deviation


def test_training_negatives_are_redrawn_each_epoch_and_repeat_after_a_restart():
    split = random_link_split(ring(), 40, 5)
    drawn = [split.training_negatives(epoch) for epoch in range(3)]
    assert not torch.equal(drawn[0], drawn[1])
    resumed = random_link_split(ring(), 40, 5)
    assert torch.equal(resumed.training_negatives(2), drawn[2])
    other = replace(split, seed=6)
    assert not torch.equal(other.training_negatives(2), drawn[2])


@pytest.mark.parametrize("nodes", [9, 30], ids=["listed", "rejected"])
def test_held_out_negatives_are_uniform_among_the_pairs_without_an_edge(nodes):
    seen, seeds = Counter(), 1000
    for seed in range(seeds):
        split = random_link_split(ring(9), nodes, seed, train=0.5, validation=0.25)
        seen.update(pairs(split.validation_negatives) | pairs(split.test_negatives))
    free = nodes * (nodes - 1) // 2 - 18
    drawn = 9 / free  # chance of a pair in one split; no return, so its count varies less
    assert len(seen) == free
    chi_square = sum((count - seeds * drawn) ** 2 for count in seen.values()) / (seeds * drawn)
    assert abs(chi_square / (1 - drawn) - free) < 4 * np.sqrt(2 * free)


def test_the_hash_does_not_depend_on_how_edges_are_listed():
    rng = np.random.default_rng(2)
    for _ in range(200):
        edges, n = random_graph(rng)
        split = random_link_split(edges, n, 4)
        shuffled = edges[:, torch.from_numpy(rng.permutation(edges.size(1)))].flip(0)
        for listed in (edges, shuffled, to_undirected(edges), torch.cat([edges, edges], dim=1)):
            assert random_link_split(listed, n, 4).hash == split.hash
        assert random_link_split(edges, n, 5).hash != split.hash
        assert random_link_split(edges, n + 1, 4).hash != split.hash


# Part of published results: these must not change between releases, machines or NumPy versions.
def test_pinned_hashes():
    assert [random_link_split(ring(), 40, seed).hash for seed in SEEDS[:3]] == [
        "062b5d96aeda5906",
        "6bcad228e659fa2b",
        "3810f12ab8a0dba7",
    ]
    split = random_link_split(ring(12), 12, 0)  # so dense that free pairs are listed
    assert split.hash == "24ef29018ae083bf"
    assert split.validation.tolist() == [[2], [3]]
    assert split.validation_negatives.tolist() == [[5], [10]]
    assert split.training_negatives(1)[:, :4].tolist() == [[0, 0, 0, 0], [1, 3, 4, 8]]
    sparse = random_link_split(ring(), 400, 0).training_negatives(1)
    assert sparse[:, :4].tolist() == [[1, 6, 10, 19], [171, 66, 103, 379]]


def test_names_say_how():
    assert random_link_split(ring(), 40, 3).name == "links 0.8/0.05/0.15 seed 3"


def leaks():
    """Return one run for every kind of leak: what is wrong, and what the message must say."""
    split = random_link_split(ring(), 40, 0)
    message = split.message_edges

    def forward(part):
        return getattr(split, part)[:, :1]

    def first(part):
        low, high = forward(part).flatten().tolist()
        return low, high

    cases = {}
    for part in ("validation", "test"):
        low, high = first(part)
        one_way = torch.cat([message, forward(part)], dim=1)
        reverse = torch.cat([message, forward(part).flip(0)], dim=1)
        for role in ("message", "signature"):
            says = f"no {part} edge among the {role} edges, but "
            cases[f"{part} {role} forward"] = ({}, {role: one_way}, says + f"{low} -> {high} ")
            cases[f"{part} {role} reverse"] = ({}, {role: reverse}, says + f"{high} -> {low} ")
        trained = torch.cat([split.train, forward(part)], dim=1)
        says = rf"'{part}' to share no pair with the training edges, but \({low}, {high}\)"
        cases[f"{part} trained"] = ({"train": trained}, {}, says)
    low, high = first("validation")
    true_negative = torch.cat([split.test_negatives[:, 1:], forward("train")], dim=1)
    says = "'test_negatives' to share no pair with the training edges"
    cases["negative trained"] = ({"test_negatives": true_negative}, {}, says)
    for part in ("validation", "test"):
        edges = torch.cat([ring(), forward(f"{part}_negatives").flip(0)], dim=1)
        says = f"'{part}_negatives' to share no pair with the true edges"
        cases[f"{part} negative true"] = ({}, {"all": edges}, says)
    shared = torch.cat([split.test, forward("validation")], dim=1)
    says = rf"'validation' to share no pair with 'test', but \({low}, {high}\)"
    cases["shared positive"] = ({"test": shared}, {}, says)
    shared = torch.cat([split.test_negatives, forward("validation_negatives").flip(0)], dim=1)
    says = "'validation_negatives' to share no pair with 'test_negatives'"
    cases["shared negative"] = ({"test_negatives": shared}, {}, says)
    stranger = torch.cat([message, forward("test_negatives"), forward("test_negatives").flip(0)], 1)
    for role in ("message", "signature"):
        says = f"only training edges among the {role} edges"
        cases[f"{role} stranger"] = ({}, {role: stranger}, says)
    start, end = message[:, 0].tolist()
    says = f"both directions of every message edge, but {start} -> {end} is missing"
    cases["one direction"] = ({}, {"message": message[:, 1:]}, says)
    return split, cases


SPLIT, LEAKS = leaks()


@pytest.mark.parametrize("kind", LEAKS)
def test_every_kind_of_leak_is_refused_and_named(kind):
    changed, inputs, says = LEAKS[kind]
    message = SPLIT.message_edges
    roles = {"message": message, "signature": message, "all": ring(), **inputs}
    with pytest.raises(LeakError, match=f"Expected {says}|{says}"):
        check_no_leak(replace(SPLIT, **changed), roles["message"], roles["signature"], roles["all"])


def test_a_clean_run_may_have_self_loops_and_fewer_signature_edges():
    loops = torch.arange(40).expand(2, -1)
    message = torch.cat([SPLIT.message_edges, loops], dim=1)
    check_no_leak(SPLIT, message, SPLIT.train[:, :5], to_undirected(ring()))


def test_a_split_of_another_graph_is_refused():
    message = SPLIT.message_edges
    extra = torch.cat([ring(), torch.tensor([[0], [20]])], dim=1)
    without_negatives = replace(SPLIT, test_negatives=torch.tensor([[0], [10]]))
    for edges in (extra, ring()[:, 1:]):
        with pytest.raises(DataError, match="The split belongs to another graph"):
            check_no_leak(without_negatives, message, message, edges)


@pytest.mark.parametrize("shares", [(0.8, 0.0), (0.8, 0.2), (0.0, 0.5), (0.8, -0.1)])
def test_a_part_without_a_share_is_refused(shares):
    with pytest.raises(ConfigError, match="positive shares that leave a rest for test"):
        random_link_split(ring(), 40, 0, train=shares[0], validation=shares[1])


def test_saved_and_loaded(tmp_path):
    identity = DatasetIdentity("ring", "abc", 40)
    SPLIT.save(tmp_path / "split.npz", identity)
    loaded = LinkSplit.load(tmp_path / "split.npz", identity)
    assert (loaded.hash, loaded.name, loaded.seed) == (SPLIT.hash, SPLIT.name, SPLIT.seed)
    assert torch.equal(loaded.message_edges, SPLIT.message_edges)
    assert torch.equal(loaded.training_negatives(9), SPLIT.training_negatives(9))
    for other in (("ring", "abd", 40), ("rung", "abc", 40), ("ring", "abc", 41)):
        with pytest.raises(DataError, match="made for other data"):
            LinkSplit.load(tmp_path / "split.npz", DatasetIdentity(*other))
    with pytest.raises(DataError, match="41 nodes"):
        SPLIT.save(tmp_path / "other.npz", DatasetIdentity("ring", "abc", 41))
    assert [path.name for path in tmp_path.iterdir()] == ["split.npz"]


def complete(n):
    return torch.from_numpy(np.stack(np.triu_indices(n, 1)))


def test_a_dense_graph_may_need_its_very_last_free_pair():
    everything = complete(12)
    edges = everything[:, 22:]  # 44 edges leave 22 pairs, and the held-out half wants them all
    split = random_link_split(edges, 12, 0, train=0.5, validation=0.25)
    negatives = pairs(split.validation_negatives) | pairs(split.test_negatives)
    assert negatives == pairs(everything[:, :22])
    with pytest.raises(DataError, match=r"at least 23 pairs without .*got 21"):
        random_link_split(everything[:, 21:], 12, 0, train=0.5, validation=0.25)


def test_a_graph_without_enough_training_negatives_is_refused_before_training():
    with pytest.raises(DataError, match="too dense"):
        random_link_split(complete(12)[:, 14:], 12, 0)  # 42 to train on, 24 other pairs


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: random_link_split(ring(5), 5, 0), DataError, r"three parts .*got 10 undirected"),
        (lambda: random_link_split(ring()[:, :0], 40, 0), DataError, "got 0 undirected"),
        (lambda: random_link_split(ring(), 39, 0), DataError, "from 0 to 38"),
        (lambda: random_link_split(-ring(), 40, 0), DataError, "from 0 to 39"),
        (lambda: random_link_split(ring().int(), 40, 0), DtypeError, "int64"),
        (lambda: random_link_split(ring().t(), 40, 0), ShapeError, r"\(2, k\)"),
        (lambda: random_link_split(ring(), 40, -1), ConfigError, "'seed'"),
        (lambda: random_link_split(ring(), 4 * 10**9, 0), DataError, "3e9 nodes"),
        (lambda: SPLIT.training_negatives(-1), ConfigError, "'epoch'"),
        (lambda: replace(SPLIT, test=SPLIT.test[:, :0]), DataError, "at least one pair"),
        (lambda: replace(SPLIT, test=torch.zeros(2, 1).long()), DataError, "'test'"),
        (lambda: replace(SPLIT, test=SPLIT.message_edges), DataError, "once in one direction"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()

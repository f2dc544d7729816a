"""Splits of nodes and graphs: disjoint, covering, stratified, stored, the same everywhere."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import (
    SEEDS,
    DatasetIdentity,
    GraphSplit,
    NodeSplit,
    random_node_split,
    stratified_folds,
)
from geof.draws import sorted_unique
from geof.errors import ConfigError, DataError, DtypeError, GeofError, ShapeError

IDENTITY = DatasetIdentity("toy", "c0ffee", 50)
LABELS = torch.arange(50) % 3


def parts(split):
    return split.train, split.validation, split.test


def assert_partition(split, size):
    assert torch.equal(torch.cat(parts(split)).sort().values, torch.arange(size))
    assert all(len(part) for part in parts(split))


def test_two_hundred_random_pools_are_split_without_overlap():
    rng = np.random.default_rng(0)
    for trial in range(200):
        n = int(rng.integers(5, 80))
        labels = torch.from_numpy(rng.integers(0, int(rng.integers(1, 6)), n))
        seed = int(rng.integers(0, 2**40))
        for stratify in (None, labels):
            split = random_node_split(n, seed, stratify=stratify)
            assert_partition(split, n)
            again = random_node_split(n, seed, stratify=stratify)
            assert split.hash == again.hash, trial
            assert len(split.train) == round(0.6 * n)
            assert len(split.validation) == round(0.2 * n)


def test_two_hundred_random_sets_are_dealt_evenly():
    rng = np.random.default_rng(1)
    for _ in range(200):
        folds, classes = int(rng.integers(3, 11)), int(rng.integers(1, 5))
        counts = rng.integers(folds, folds + 30, classes)
        labels = torch.from_numpy(rng.permutation(np.repeat(np.arange(classes), counts)))
        splits = stratified_folds(labels, int(rng.integers(0, 2**40)), folds)
        assert len(splits) == folds
        for split, following in zip(splits, splits[1:] + splits[:1], strict=True):
            assert_partition(split, len(labels))
            assert torch.equal(split.validation, following.test)
        assert_even([split.test for split in splits], labels)


def assert_even(tests, labels):
    assert torch.equal(torch.cat(tests).sort().values, torch.arange(len(labels)))
    sizes = [len(test) for test in tests]
    assert max(sizes) - min(sizes) <= 1
    for label in labels.unique():
        per_fold = [int((labels[test] == label).sum()) for test in tests]
        assert max(per_fold) - min(per_fold) <= 1


def test_stratified_nodes_keep_the_proportions_of_every_class():
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([7, 50, 33, 110]))
    for seed in SEEDS:
        split = random_node_split(200, seed, stratify=labels)
        for label in range(4):
            members = labels == label
            for part, share in zip(parts(split), (0.6, 0.2, 0.2), strict=True):
                assert abs(int(members[part].sum()) - share * int(members.sum())) <= 1


def test_a_random_split_does_not_look_at_labels_and_its_seeds_differ():
    assert len({random_node_split(50, seed).hash for seed in SEEDS}) == len(SEEDS) == 10
    stratified = random_node_split(50, 0, stratify=LABELS)
    assert stratified.hash != random_node_split(50, 0).hash
    assert stratified.name == "stratified 0.6/0.2/0.2 seed 0"


def test_every_class_is_shuffled_and_every_member_tests_once():
    labels = torch.zeros(40, dtype=torch.long)
    one, other = stratified_folds(labels, 0, 4), stratified_folds(labels, 1, 4)
    assert {split.hash for split in one}.isdisjoint(split.hash for split in other)
    assert not torch.equal(one[0].test, torch.arange(0, 40, 4))


# Part of published results: these must not change between releases, machines or NumPy versions.
def test_pinned_hashes():
    assert random_node_split(50, 0).hash == "ab4b62db36a1c588"
    assert random_node_split(50, 7, stratify=LABELS).hash == "bd3ca76e7ed6eb3d"
    folds = stratified_folds(LABELS, 0, 10)
    assert [folds[0].hash, folds[9].hash] == ["5dc908594cd36d6e", "fda0c2972452e9cc"]


def test_pinned_indices():
    fold = stratified_folds(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), 0, 4)
    assert [split.test.tolist() for split in fold] == [[5, 6], [4, 7], [1, 2], [0, 3]]


def test_the_hash_does_not_depend_on_the_order_given():
    nodes = torch.tensor([4, 8, 15, 16, 23, 42])
    reordered = torch.cat([nodes.flip(0), nodes[:2]])
    assert random_node_split(50, 3, nodes=nodes).hash == (
        random_node_split(50, 3, nodes=reordered).hash
    )
    one = NodeSplit.fixed([3, 1], [0], [2], size=4, name="given")
    other = NodeSplit.fixed([1, 3], [0], [2], size=4, name="given")
    assert one.hash == other.hash
    assert one.train.tolist() == [1, 3]


@pytest.mark.parametrize("kind", [NodeSplit, GraphSplit])
def test_saved_and_loaded(kind, tmp_path):
    split = kind.fixed([9, 3], [0], torch.tensor([2]), size=50, name="scaffold, Ünicode")
    split.save(tmp_path / "new" / "split.npz", IDENTITY)
    loaded = kind.load(str(tmp_path / "new" / "split.npz"), IDENTITY)
    assert type(loaded) is kind
    assert (loaded.hash, loaded.name) == (split.hash, split.name)
    assert all(torch.equal(a, b) for a, b in zip(parts(loaded), parts(split), strict=True))
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["split.npz"]


@pytest.mark.parametrize(
    ("identity", "fact"),
    [
        (DatasetIdentity("other", "c0ffee", 50), "dataset 'other'"),
        (DatasetIdentity("toy", "decaf", 50), "content_hash 'decaf'"),
        (DatasetIdentity("toy", "c0ffee", 51), "size 51"),
    ],
)
def test_a_split_of_other_data_is_refused(identity, fact, tmp_path):
    path = tmp_path / "split.npz"
    random_node_split(50, 0).save(path, IDENTITY)
    with pytest.raises(DataError, match=f"to have {fact}.*draw the split again"):
        NodeSplit.load(path, identity)
    with pytest.raises(DataError, match="kind 'graph'"):
        GraphSplit.load(path, IDENTITY)


def rewrite(path, **changes):
    """Rewrite a split file with some entries changed."""
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(arrays["header"].tobytes())
    header.update({name: changes.pop(name) for name in list(changes) if name in header})
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    arrays.update(changes)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"hash": "0" * 16},
        {"train": np.array([1, 2])},
        {"train": np.array([0.5])},
        {"test": np.array([50])},
        {"train": np.array([[1], [2]])},
        {"header": np.array([1.0])},
    ],
)
def test_a_changed_file_is_refused(changes, tmp_path):
    path = tmp_path / "split.npz"
    NodeSplit.fixed([9, 3], [0], [2], size=50, name="given").save(path, IDENTITY)
    rewrite(path, **changes)
    with pytest.raises((DataError, ShapeError), match="Expected"):
        NodeSplit.load(path, IDENTITY)


def npy_bytes():
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"", pickle.dumps({"train": [1]}), npy_bytes(), None])
def test_what_is_not_a_split_file_is_refused(content, tmp_path):
    path = tmp_path / "split.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="split file"):
        NodeSplit.load(path, IDENTITY)


def test_damage_anywhere_is_refused_or_harmless(tmp_path):
    path = tmp_path / "split.npz"
    split = random_node_split(50, 0)
    split.save(path, IDENTITY)
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), 11):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        for damaged in (bytes(flipped), content[:place]):
            path.write_bytes(damaged)
            try:  # a zip has fields nobody reads
                assert NodeSplit.load(path, IDENTITY).hash == split.hash
            except GeofError:
                refused += 1
    assert refused > len(content) / 11


def test_a_split_that_does_not_fit_is_not_saved(tmp_path):
    with pytest.raises(DataError, match="Expected a split of 50 nodes"):
        random_node_split(60, 0).save(tmp_path / "split.npz", IDENTITY)
    assert list(tmp_path.iterdir()) == []


def test_identities_come_from_loaded_data():
    graph = NodeGraph("g", Data(x=torch.zeros(4, 1)), ("a",), content_hash="h")
    graphs = GraphSet("s", [Data(), Data()], ("a",), content_hash="h")
    assert DatasetIdentity.of(graph) == DatasetIdentity("g", "h", 4)
    assert DatasetIdentity.of(graphs) == DatasetIdentity("s", "h", 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fixed([1, 2], [2], [3]), DataError, "node 2 comes again"),
        (lambda: fixed([1, 1], [2], [3]), DataError, "node 1 comes again"),
        (lambda: fixed([-1], [2], [3]), DataError, "from 0 in 'train'"),
        (lambda: fixed([1], [2], [50]), DataError, "split of 50 nodes"),
        (lambda: fixed([1], [], [3]), ShapeError, "'validation'"),
        (lambda: fixed([1], [2.0], [3]), DtypeError, "'validation'"),
        (lambda: stratified_folds(LABELS, 0, 17), DataError, "class 2 with 16"),
        (lambda: stratified_folds(LABELS - 1, 0), DataError, "lowest label -1"),
        (lambda: stratified_folds(LABELS[:0], 0), DataError, "got none"),
        (lambda: stratified_folds(LABELS.float(), 0), DtypeError, "integers"),
        (lambda: stratified_folds(LABELS, 0, 2), ConfigError, "'folds'"),
        (lambda: stratified_folds(LABELS, -1), ConfigError, "'seed'"),
        (lambda: random_node_split(50, 0, stratify=LABELS - 1), DataError, "unlabelled"),
        (lambda: random_node_split(50, 0, stratify=LABELS[1:]), ShapeError, r"\(50,\)"),
        (lambda: random_node_split(50, 0, nodes=torch.tensor([50])), DataError, "below 50"),
        (lambda: random_node_split(50, 0, validation=0.0), ConfigError, "positive shares"),
        (lambda: random_node_split(50, 0, train=0.8), ConfigError, "rest for test"),
        (lambda: random_node_split(50, 0, train=float("nan")), ConfigError, "positive shares"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def fixed(train, validation, test):
    return NodeSplit.fixed(train, validation, test, size=50, name="given")


def test_sorted_unique_is_numpys_unique():
    for values in ([], [3], [2, 2, 1, 5, 1]):
        array = np.array(values, np.int64)
        assert np.array_equal(sorted_unique(array), np.unique(array))

"""Single graphs: Planetoid's pickles through the allow-list, and plain archives."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from geof.data.catalogue import CATALOGUE, RawFile
from geof.data.node_graphs import load_node_graph, read_array_pickle
from geof.errors import DataError

REAL = os.environ.get("GEOF_DATA", "")
needs_files = pytest.mark.skipif(not REAL, reason="GEOF_DATA does not name the raw files")


def without_checksums(name: str):
    benchmark = CATALOGUE[name]
    files = tuple(RawFile(file.path) for file in benchmark.files)
    return dataclasses.replace(benchmark, files=files)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOF_CACHE", str(tmp_path / "cache"))


def planetoid_parts() -> dict[str, object]:
    """Seven nodes; nodes 3 to 6 are test nodes, node 5 is in no file but the graph."""
    features = np.array([[1, 0, 1], [0, 2, 0], [0, 0, 0], [1, 1, 2], [0, 0, 4], [3, 0, 1]])
    labels = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 0, 1]]
    graph = defaultdict(list, {0: [1, 1, 0], 1: [0, 2], 2: [1], 3: [6], 4: [], 5: [], 6: [4]})
    matrix = sparse.csr_matrix(features.astype(np.float32))
    return {
        "x": matrix[:2],
        "y": labels[:2],
        "allx": matrix[:3],
        "ally": labels[:3],
        "tx": matrix[3:],
        "ty": labels[3:],
        "graph": graph,
        "test.index": "4\n6\n3\n",
    }


def write_planetoid(root: Path, **changes: object) -> Path:
    folder = root / "CiteSeer" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for part, value in {**planetoid_parts(), **changes}.items():
        content = value.encode() if isinstance(value, str) else pickle.dumps(value, protocol=4)
        (folder / f"ind.citeseer.{part}").write_bytes(content)
    return folder


def load_planetoid(root: Path, **options):
    return load_node_graph(without_checksums("CiteSeer"), root, **options)


def archive_parts(dense: bool = False) -> dict[str, np.ndarray]:
    adjacency = sparse.csr_matrix(np.array([[1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0] * 4]))
    features = np.zeros((4, 10), dtype=np.float32)
    features[:, 0] = [2, 1, 0, 5]
    features[1, 3] = 3
    features = sparse.csr_matrix(features + (1 if dense else 0))
    parts = {"labels": np.array([0, 2, 1, 1]), "class_names": np.array(["a", "b", "c"])}
    for prefix, matrix in (("adj", adjacency), ("attr", features)):
        for name in ("data", "indices", "indptr", "shape"):
            parts[f"{prefix}_{name}"] = np.asarray(getattr(matrix, name))
    return parts


def write_archive(root: Path, **changes: np.ndarray) -> Path:
    path = root / "CS" / "raw" / "ms_academic_cs.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{**archive_parts(), **changes})
    return path


def load_archive(root: Path, **options):
    return load_node_graph(CATALOGUE["CS"], root, **options)


# Planetoid ------------------------------------------------------------------------------------


def test_test_rows_go_to_their_indices_and_gaps_stay_unlabelled(tmp_path):
    write_planetoid(tmp_path)
    loaded = load_planetoid(tmp_path, row_normalise=False)
    x = loaded.graph.x.to_dense()
    assert x[4].tolist() == [1, 1, 2]
    assert x[6].tolist() == [0, 0, 4]
    assert x[3].tolist() == [3, 0, 1]
    assert x[5].tolist() == [0, 0, 0]
    assert loaded.graph.y.tolist() == [0, 1, 0, 1, 1, -1, 0]
    assert loaded.graph.edge_index.tolist() == [[0, 1, 1, 2, 3, 4, 6, 6], [1, 0, 2, 1, 6, 6, 3, 4]]
    assert loaded.class_names == ("0", "1")
    assert loaded.notes[0].startswith("1 nodes have neither features nor a label")


def test_rows_sum_to_one_and_zero_rows_stay(tmp_path):
    write_planetoid(tmp_path)
    total = load_planetoid(tmp_path).graph.x.to_dense().sum(1)
    assert total.tolist() == [1, 1, 0, 1, 1, 0, 1]


def test_a_row_without_a_class_is_unlabelled(tmp_path):
    labels = planetoid_parts()["ally"].copy()
    labels[1] = 0
    write_planetoid(tmp_path, ally=labels)
    assert load_planetoid(tmp_path).graph.y.tolist() == [0, -1, 0, 1, 1, -1, 0]


def test_rows_that_do_not_sum_to_a_positive_number_stay(tmp_path):
    matrix = sparse.csr_matrix(np.array([[1, 0, -1], [0, -2, 0], [2, 0, 2]], dtype=np.float32))
    write_planetoid(tmp_path, allx=matrix)
    x = load_planetoid(tmp_path).graph.x.to_dense()
    assert x[:3].tolist() == [[1, 0, -1], [0, -2, 0], [0.5, 0, 0.5]]


def test_python_2_names_are_understood(tmp_path):
    path = tmp_path / "graph"
    path.write_bytes(b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntRI0\n(lI1\nasI1\n(lI0\nas.")
    assert read_array_pickle(path) == {0: [1], 1: [0]}


class Malicious:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("part", ["allx", "tx", "ally", "ty", "graph"])
def test_a_malicious_pickle_is_refused_before_it_runs(tmp_path, part):
    marker = tmp_path / "marker"
    write_planetoid(tmp_path, **{part: Malicious(os.mkdir, str(marker))})
    with pytest.raises(DataError, match=r"Expected only arrays.*mkdir.*Do not use this file"):
        load_planetoid(tmp_path)
    assert not marker.exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "reference",
    ["builtins eval", "builtins getattr", "numpy load", "numpy ndarray.tofile", "os system"],
)
def test_names_near_the_allowed_ones_are_refused(tmp_path, reference):
    module, name = (part.encode() for part in reference.split())
    content = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(p)]) + p for p in (module, name))
    path = tmp_path / "file"
    path.write_bytes(content + b"\x93.")
    with pytest.raises(DataError, match="a reference to"):
        read_array_pickle(path)


def test_a_matrix_with_planted_attributes_is_taken_apart(tmp_path):
    planted = planetoid_parts()["allx"]
    planted.tocoo = "planted"
    planted.sum = "planted"
    write_planetoid(tmp_path, allx=planted)
    assert load_planetoid(tmp_path).graph.num_nodes == 7


def out_of_range_matrix():
    matrix = planetoid_parts()["allx"].copy()
    matrix.indices[0] = 99
    return matrix


BROKEN = {
    "column out of range": ({"allx": out_of_range_matrix()}, "allx"),
    "objects": ({"ally": np.array([[None, 1]] * 3)}, "not a matrix of one-hot labels"),
    "another type": ({"tx": [1, 2]}, "a list instead of a csr_matrix"),
    "no dictionary": ({"graph": [[1], [0]]}, "not a dictionary of lists"),
    "text as a neighbour": ({"graph": {0: ["a"]}}, "graph"),
    "neighbour out of range": ({"graph": {0: [77]}}, r"every node.*\[0, 7\).*got 77"),
    "negative neighbour": ({"graph": {0: [-1]}}, r"got -1 at position 0"),
    "test index among the others": ({"test.index": "1\n6\n3\n"}, "test.index"),
    "repeated test index": ({"test.index": "4\n4\n3\n"}, "distinct test indices"),
    "too few test indices": ({"test.index": "4\n6\n"}, "belong together"),
    "text for an index": ({"test.index": "4\nsix\n3\n"}, "test.index"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_planetoid_files_are_named(tmp_path, changes, message):
    write_planetoid(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        load_planetoid(tmp_path)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("size", [0, 1, 40, 200])
def test_a_truncated_pickle_is_named(tmp_path, size):
    path = write_planetoid(tmp_path) / "ind.citeseer.allx"
    os.truncate(path, size)
    with pytest.raises(DataError, match=r"ind\.citeseer\.allx"):
        load_planetoid(tmp_path)


# Archives -------------------------------------------------------------------------------------


def test_an_archive_is_loaded_sparse(tmp_path):
    write_archive(tmp_path)
    loaded = load_archive(tmp_path)
    assert loaded.graph.x.layout == torch.sparse_csr
    assert loaded.graph.x.to_dense()[1].tolist() == [0.25, 0, 0, 0.75, *[0] * 6]
    assert loaded.graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert loaded.graph.y.tolist() == [0, 2, 1, 1]
    assert loaded.class_names == ("a", "b", "c")
    assert loaded.graph.num_features == 10


def test_mostly_nonzero_features_are_dense(tmp_path):
    write_archive(tmp_path, **archive_parts(dense=True))
    assert load_archive(tmp_path).graph.x.layout == torch.strided


def test_columns_stored_in_any_order_give_the_same(tmp_path):
    write_archive(tmp_path)
    expected = load_archive(tmp_path)
    parts = archive_parts()
    row = slice(*parts["attr_indptr"][1:3])
    for name in ("attr_indices", "attr_data"):
        parts[name][row] = parts[name][row][::-1].copy()
    write_archive(tmp_path, **parts)
    loaded = load_archive(tmp_path)
    assert loaded.content_hash == expected.content_hash
    assert torch.equal(loaded.graph.x.to_dense(), expected.graph.x.to_dense())


def test_class_names_that_are_a_pickle_are_not_read(tmp_path):
    write_archive(tmp_path, class_names=np.array(["a", "b", "c"], dtype=object))
    assert load_archive(tmp_path).class_names == ("0", "1", "2")


def test_labels_that_are_a_pickle_are_refused(tmp_path):
    write_archive(tmp_path, labels=np.array([0, 1, 1, None], dtype=object))
    with pytest.raises(DataError, match=r"ms_academic_cs\.npz.*allow_pickle=False"):
        load_archive(tmp_path)


def test_normalising_is_part_of_the_key_and_of_the_hash(tmp_path):
    write_archive(tmp_path)
    normalised, plain = (load_archive(tmp_path, row_normalise=r) for r in (True, False))
    assert plain.graph.x.to_dense()[1].tolist()[:4] == [1, 0, 0, 3]
    assert normalised.content_hash != plain.content_hash
    again = load_archive(tmp_path, row_normalise=False)
    assert torch.equal(again.graph.x.to_dense(), plain.graph.x.to_dense())


def test_the_cache_gives_what_the_files_give(tmp_path):
    write_archive(tmp_path)
    direct = load_archive(tmp_path, cache=False)
    assert not (tmp_path / "cache").exists()
    for _ in range(2):
        loaded = load_archive(tmp_path)
        assert torch.equal(loaded.graph.x.to_dense(), direct.graph.x.to_dense())
        assert torch.equal(loaded.graph.edge_index, direct.graph.edge_index)
        assert (loaded.class_names, loaded.content_hash) == (
            direct.class_names,
            direct.content_hash,
        )


def test_changed_raw_files_are_noticed(tmp_path):
    write_archive(tmp_path)
    load_archive(tmp_path)
    write_archive(tmp_path, labels=np.array([0, 1, 1, 0]))
    assert load_archive(tmp_path).graph.y.tolist() == [0, 1, 1, 0]


BROKEN_ARCHIVES = {
    "neighbour out of range": {"adj_indices": np.array([0, 9, 2, 1], dtype=np.int32)},
    "negative neighbour": {"adj_indices": np.array([0, -1, 2, 1], dtype=np.int32)},
    "pointer past the end": {"adj_indptr": np.array([0, 2, 3, 4, 400], dtype=np.int32)},
    "features of another graph": {"attr_shape": np.array([5, 10])},
    "label for each but one": {"labels": np.array([0, 1, 1])},
    "negative label": {"labels": np.array([0, -2, 1, 1])},
    "labels that are numbers": {"labels": np.array([0.5, 1, 1, 1])},
    "not a number": {"attr_data": np.array([np.nan, 1, 3, 5], dtype=np.float32)},
}


@pytest.mark.parametrize("changes", BROKEN_ARCHIVES.values(), ids=BROKEN_ARCHIVES)
def test_broken_archives_are_refused(tmp_path, changes):
    write_archive(tmp_path, **changes)
    with pytest.raises(DataError, match=r"(ms_academic_cs\.npz|finite features)"):
        load_archive(tmp_path)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_archive_is_named(tmp_path, share):
    path = write_archive(tmp_path)
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.raises(DataError, match=r"ms_academic_cs\.npz.*Fetch it again"):
        load_archive(tmp_path)


def test_a_missing_array_is_named(tmp_path):
    path = write_archive(tmp_path)
    np.savez(path, labels=np.zeros(4, dtype=np.int64))
    with pytest.raises(DataError, match="adj_data"):
        load_archive(tmp_path)


# The real files -------------------------------------------------------------------------------


@needs_files
@pytest.mark.parametrize("name", [n for n, b in CATALOGUE.items() if b.is_node_graph])
def test_real_graphs_are_clean(name):
    loaded = load_node_graph(CATALOGUE[name], Path(REAL))
    graph = loaded.graph
    assert not graph.has_self_loops()
    assert graph.is_undirected()
    assert graph.is_coalesced()
    assert int(graph.y.max()) + 1 == loaded.num_classes
    total = graph.x.to_dense().sum(1)
    assert bool((torch.isclose(total, torch.ones(())) | (total == 0)).all())


@needs_files
def test_real_citeseer_has_fifteen_nodes_without_features_and_label():
    graph = load_node_graph(CATALOGUE["CiteSeer"], Path(REAL)).graph
    unlabelled = (graph.y < 0).nonzero().view(-1)
    assert len(unlabelled) == 15
    # Often called isolated; they are not.
    assert bool(torch.isin(unlabelled, graph.edge_index).all())
    assert graph.x.to_dense()[unlabelled].sum() == 0


@needs_files
@pytest.mark.parametrize(("name", "sparse_x"), [("PubMed", True), ("Photo", False)])
def test_real_graphs_equal_those_of_pyg(name, sparse_x, tmp_path):
    from torch_geometric.io import read_npz, read_planetoid_data
    from torch_geometric.utils import coalesce

    benchmark = CATALOGUE[name]
    if name == "PubMed":
        expected = read_planetoid_data(str(Path(REAL) / "PubMed" / "raw"), "pubmed")
    else:
        expected = read_npz(str(Path(REAL) / benchmark.files[0].path), to_undirected=True)
    loaded = load_node_graph(benchmark, Path(REAL), row_normalise=False)
    assert (loaded.graph.x.layout == torch.sparse_csr) == sparse_x
    assert torch.equal(loaded.graph.x.to_dense(), expected.x.to_dense())
    assert torch.equal(loaded.graph.edge_index, coalesce(expected.edge_index))
    assert torch.equal(loaded.graph.y, expected.y)

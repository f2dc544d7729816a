"""Sets of graphs: TUDataset's text, SMILES, OGB's tables."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.metadata
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

from geof.data import graph_sets
from geof.data.catalogue import CATALOGUE
from geof.data.graph_sets import load_graph_set, scaffold_split
from geof.data.molecules import ATOM_SIZES
from geof.errors import DataError

REAL = os.environ.get("GEOF_DATA", "")
needs_files = pytest.mark.skipif(not REAL, reason="GEOF_DATA does not name the raw files")
has_rdkit = importlib.util.find_spec("rdkit") is not None
needs_rdkit = pytest.mark.skipif(not has_rdkit, reason="RDKit is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOF_CACHE", str(tmp_path / "cache"))


# TUDataset ------------------------------------------------------------------------------------

TU = {
    # Two graphs, a triangle with a self-loop and a repeat, and a single edge given once.
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n1, 3\n3, 1\n1, 1\n1, 2\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "1\n-1\n",
    "node_labels": "3\n4\n6\n3\n3\n",
    "edge_labels": "1\n1\n2\n2\n3\n3\n1\n9\n2\n",
}


def write_tu(root: Path, name: str, **changes: str | None) -> None:
    folder = root / name / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in {**TU, **changes}.items():
        if text is not None:
            (folder / f"{name}_{part}.txt").write_text(text)


def load_tu(root: Path, name: str = "Mutagenicity", **options):
    benchmark = CATALOGUE[name]
    files = tuple(dataclasses.replace(file, sha256=None) for file in benchmark.files)
    return load_graph_set(dataclasses.replace(benchmark, files=files), root, **options)


def test_tu_graphs_are_cut_out_with_their_labels(tmp_path):
    write_tu(tmp_path, "Mutagenicity")
    loaded = load_tu(tmp_path)
    first, second = loaded.graphs
    assert first.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    assert first.edge_attr.tolist() == [[0], [2], [0], [1], [2], [1]]
    assert first.x.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    assert second.edge_index.tolist() == [[0, 1], [1, 0]]
    assert second.edge_attr.tolist() == [[1], [1]]
    assert [graph.y.tolist() for graph in loaded.graphs] == [[1], [0]]
    assert first.x.dtype == torch.float32
    assert first.edge_attr.dtype == first.edge_index.dtype == torch.int64


def test_class_names_are_the_sorted_raw_labels_unless_the_catalogue_names_them(tmp_path):
    write_tu(tmp_path, "NCI1")
    assert load_tu(tmp_path, "NCI1").class_names == ("-1", "1")
    write_tu(tmp_path, "Mutagenicity")
    assert load_tu(tmp_path).class_names == ("mutagen", "nonmutagen")


def test_the_sequence_behaves_like_a_list(tmp_path):
    write_tu(tmp_path, "NCI1")
    graphs = load_tu(tmp_path, "NCI1").graphs
    assert len(graphs) == len(list(graphs)) == 2
    assert graphs[-1].num_nodes == graphs[1].num_nodes == 2
    assert [graph.num_nodes for graph in graphs[::-1]] == [2, 3]
    for index in (2, -3):
        with pytest.raises(IndexError):
            graphs[index]
    (batch,) = DataLoader(graphs, batch_size=2)
    assert batch.num_graphs == 2
    assert batch.y.tolist() == graphs.labels.tolist() == [1, 0]


def test_graphs_from_the_cache_equal_those_from_the_files(tmp_path):
    write_tu(tmp_path, "Mutagenicity")
    direct = load_tu(tmp_path, cache=False)
    assert not (tmp_path / "cache").exists()
    for loaded in (load_tu(tmp_path), load_tu(tmp_path)):
        assert loaded.content_hash == direct.content_hash
        for graph, other in zip(loaded.graphs, direct.graphs, strict=True):
            for key in ("x", "edge_index", "edge_attr", "y"):
                assert torch.equal(graph[key], other[key])


def test_a_graph_without_nodes_in_the_middle_is_kept(tmp_path):
    write_tu(tmp_path, "NCI1", graph_indicator="1\n1\n1\n3\n3\n", graph_labels="0\n1\n0\n")
    assert [graph.num_nodes for graph in load_tu(tmp_path, "NCI1").graphs] == [3, 0, 2]


def test_real_valued_attributes_are_used_where_their_checksum_matches(tmp_path):
    attributes = "0.5, 1.5\n" * 5
    write_tu(tmp_path, "FRANKENSTEIN", node_labels=None, node_attributes=attributes)
    loaded = load_frankenstein(tmp_path, hashlib.sha256(attributes.encode()).hexdigest())
    assert loaded.graphs[1].x.tolist() == [[0.5, 1.5]] * 2
    assert loaded.notes == ()


@pytest.mark.parametrize(("text", "said"), [(None, "is missing"), ("1, 2\n" * 5, "SHA-256")])
def test_without_sound_attributes_degrees_are_used_and_said(tmp_path, text, said):
    write_tu(tmp_path, "FRANKENSTEIN", node_labels=None, node_attributes=text)
    loaded = load_frankenstein(tmp_path, "0" * 64)
    assert loaded.graphs[0].x.tolist() == [[0, 0, 1]] * 3
    assert loaded.graphs[1].x.tolist() == [[0, 1, 0]] * 2
    (note,) = loaded.notes
    assert note.startswith("FALLBACK")
    assert said in note
    assert "one-hot degrees instead of FRANKENSTEIN's 780 attributes" in note


def load_frankenstein(root: Path, sha256: str):
    benchmark = CATALOGUE["FRANKENSTEIN"]
    files = tuple(
        dataclasses.replace(file, sha256=sha256 if file.optional else None)
        for file in benchmark.files
    )
    return load_graph_set(dataclasses.replace(benchmark, files=files), root)


BROKEN_TU = {
    "node out of range": ({"A": "1, 9\n"}, r"_A\.txt.*got 8"),
    "node zero": ({"A": "0, 1\n"}, r"_A\.txt.*got -1 at position 0"),
    "edge between graphs": ({"A": "1, 2\n3, 4\n"}, r"line 2 of .*_A\.txt"),
    "broken row": ({"A": "1, 2\n2\n"}, r"_A\.txt.*row 2"),
    "text": ({"A": "1, 2\n2, x\n"}, r"_A\.txt.*' x'"),
    "three columns": ({"A": "1, 2, 3\n"}, r"Expected 2 columns"),
    "graph out of range": ({"graph_indicator": "1\n1\n1\n2\n7\n"}, "graph_indicator"),
    "graphs mixed": ({"graph_indicator": "1\n2\n1\n2\n2\n"}, "ascending"),
    "too few node labels": ({"node_labels": "1\n2\n"}, "Expected 5 lines .*node_labels"),
    "too few edge labels": ({"edge_labels": "1\n2\n"}, "Expected 9 lines .*edge_labels"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN_TU.values(), ids=BROKEN_TU)
def test_broken_tu_files_are_named(tmp_path, changes, message):
    write_tu(tmp_path, "Mutagenicity", **changes)
    with pytest.raises(DataError, match=message):
        load_tu(tmp_path)
    assert not (tmp_path / "cache").exists()


# Molecules ------------------------------------------------------------------------------------


def write_bbbp(root: Path, *rows: str) -> Path:
    path = root / "bbbp" / "raw" / "BBBP.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\r\n".join(["num,name,p_np,smiles", *rows, ""]), newline="")
    return path


@needs_rdkit
def test_molecules_are_loaded_and_the_unparsable_named_by_row(tmp_path):
    write_bbbp(tmp_path, "1,a,1,CO", '2,"b, c",0,c1cccc1', "3,d,0,C", "4,e,1,broken")
    loaded = load_graph_set(CATALOGUE["BBBP"], tmp_path)
    alcohol, methane = loaded.graphs
    assert alcohol.x.shape == (2, sum(ATOM_SIZES))
    assert alcohol.x.sum(1).tolist() == [9, 9]
    assert alcohol.x[:, :8].argmax(1).tolist() == [5, 7]
    assert alcohol.edge_index.tolist() == [[0, 1], [1, 0]]
    assert alcohol.edge_attr.tolist() == [[0, 0, 0]] * 2
    assert methane.edge_index.shape == (2, 0)
    assert methane.edge_attr.shape == (0, 3)
    assert [graph.y.item() for graph in loaded.graphs] == [1, 0]
    assert loaded.graph_ids == ("0", "2")
    assert loaded.notes[0].startswith("2 of 4 SMILES cannot be parsed")
    assert "rows 1, 3 (from 0" in loaded.notes[0]


@needs_rdkit
def test_another_rdkit_gives_another_cache_entry(tmp_path, monkeypatch):
    write_bbbp(tmp_path, "1,a,1,CO")
    load_graph_set(CATALOGUE["BBBP"], tmp_path)
    monkeypatch.setattr(graph_sets, "rdkit_version", lambda: "1999.1")
    load_graph_set(CATALOGUE["BBBP"], tmp_path)
    assert len(list((tmp_path / "cache" / "BBBP").iterdir())) == 2


@needs_rdkit
@pytest.mark.parametrize(
    "row", ["2,b,maybe,C", "2,b,1", "2,b,1,C,extra", "2,b,1,"], ids=lambda row: row
)
def test_a_broken_row_is_given_with_file_and_line(tmp_path, row):
    write_bbbp(tmp_path, "1,a,1,C", row)
    with pytest.raises(DataError, match=r"BBBP\.csv', line 3"):
        load_graph_set(CATALOGUE["BBBP"], tmp_path)


@needs_rdkit
def test_a_file_without_molecules_is_refused(tmp_path):
    write_bbbp(tmp_path)
    with pytest.raises(DataError, match="Expected molecules in"):
        load_graph_set(CATALOGUE["BBBP"], tmp_path)


def test_without_rdkit_the_remedy_is_named(tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    write_bbbp(tmp_path, "1,a,1,C")
    with pytest.raises(DataError, match="pip install rdkit"):
        load_graph_set(CATALOGUE["BBBP"], tmp_path)


# OGB ------------------------------------------------------------------------------------------

OGB = {
    "raw/num-node-list": "3\n1\n2\n",
    "raw/num-edge-list": "2\n0\n1\n",
    "raw/graph-label": "0\n1\n0\n",
    "raw/edge": "0,1\n2,1\n1,0\n",
    "raw/edge-feat": "0,0,0\n1,2,0\n3,0,1\n",
    "raw/node-feat": "5,0,4,5,3,0,2,0,0\n" * 5 + "118,4,11,11,9,5,5,1,1\n",
    "split/scaffold/train": "2\n",
    "split/scaffold/valid": "0\n",
    "split/scaffold/test": "1\n",
}


def write_ogb(root: Path, changes: dict[str, str] | None = None) -> Path:
    folder = root / "ogbg_molhiv"
    for part, text in {**OGB, **(changes or {})}.items():
        path = folder / f"{part}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    return folder


def load_ogb(root: Path):
    return load_graph_set(CATALOGUE["ogbg-molhiv"], root)


def test_ogb_tables_are_loaded_in_their_order(tmp_path):
    write_ogb(tmp_path)
    loaded = load_ogb(tmp_path)
    assert [graph.num_nodes for graph in loaded.graphs] == [3, 1, 2]
    assert loaded.graphs[0].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert loaded.graphs[0].edge_attr.tolist() == [[0, 0, 0]] * 2 + [[1, 2, 0]] * 2
    assert loaded.graphs[1].num_edges == 0
    assert loaded.graphs[2].edge_attr.tolist() == [[3, 0, 1]] * 2
    assert loaded.graphs.labels.tolist() == [0, 1, 0]
    last = np.cumsum(ATOM_SIZES) - 1
    assert loaded.graphs[2].x[1].nonzero().view(-1).tolist() == last.tolist()


def test_the_scaffold_split_is_read(tmp_path):
    write_ogb(tmp_path)
    split = scaffold_split(tmp_path)
    assert {part: index.tolist() for part, index in split.items()} == {
        "train": [2],
        "valid": [0],
        "test": [1],
    }


@pytest.mark.parametrize("test", ["0\n", "3\n"], ids=["a graph twice", "a graph that is not"])
def test_a_split_that_does_not_partition_is_refused(tmp_path, test):
    write_ogb(tmp_path, {"split/scaffold/test": test})
    with pytest.raises(DataError, match="each of the 3 graphs once"):
        scaffold_split(tmp_path)


BROKEN_OGB = {
    "atom of the next molecule": ({"raw/edge": "0,1\n3,1\n1,0\n"}, "atom within its molecule"),
    "negative atom": ({"raw/edge": "0,1\n2,-1\n1,0\n"}, "atom within its molecule"),
    "too few edges": ({"raw/edge": "0,1\n2,1\n"}, r"Expected 3 rows in .*edge\.csv\.gz"),
    "too few atoms": ({"raw/node-feat": "5,0,4,5,3,0,2,0,0\n"}, "Expected 6 rows"),
    "eight columns": ({"raw/node-feat": "5,0,4,5,3,0,2,0\n" * 6}, "Expected 9 columns"),
    "code out of range": ({"raw/edge-feat": "0,0,0\n1,6,0\n3,0,1\n"}, "code in column 1"),
    "label out of range": ({"raw/graph-label": "0\n2\n0\n"}, "label in"),
    "too few labels": ({"raw/graph-label": "0\n1\n"}, "Expected 3 rows"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN_OGB.values(), ids=BROKEN_OGB)
def test_broken_ogb_tables_are_named(tmp_path, changes, message):
    write_ogb(tmp_path, changes)
    with pytest.raises(DataError, match=message):
        load_ogb(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_truncated_table_is_named(tmp_path):
    path = write_ogb(tmp_path) / "raw" / "node-feat.csv.gz"
    os.truncate(path, path.stat().st_size - 12)
    with pytest.raises(DataError, match=r"node-feat\.csv\.gz.*Fetch it again"):
        load_ogb(tmp_path)


def test_a_missing_table_is_named(tmp_path):
    (write_ogb(tmp_path) / "raw" / "edge.csv.gz").unlink()
    with pytest.raises(DataError, match=r"edge\.csv\.gz.*nothing there.*geof data fetch"):
        load_ogb(tmp_path)


# The real files -------------------------------------------------------------------------------


@needs_files
@pytest.mark.parametrize(
    "name",
    ["PROTEINS", *(pytest.param(n, marks=pytest.mark.slow) for n in ("NCI1", "Mutagenicity"))],
)
def test_real_tu_sets_equal_those_of_pyg(name):
    from torch_geometric.io import read_tu_data

    expected, slices, _ = read_tu_data(str(Path(REAL) / name / "raw"), name)
    graphs = load_graph_set(CATALOGUE[name], Path(REAL)).graphs
    assert graphs.labels.tolist() == expected.y.tolist()
    pieces = [graphs[i] for i in range(0, len(graphs), 7)]
    for graph, i in zip(pieces, range(0, len(graphs), 7), strict=True):
        nodes = slice(int(slices["x"][i]), int(slices["x"][i + 1]))
        edges = slice(int(slices["edge_index"][i]), int(slices["edge_index"][i + 1]))
        # PyG keeps real-valued attributes in the first columns until it drops them.
        assert torch.equal(graph.x, expected.x[nodes, -graph.num_features :])
        assert torch.equal(graph.edge_index, expected.edge_index[:, edges])
        if "edge_attr" in graph:
            assert torch.equal(graph.edge_attr[:, 0], expected.edge_attr[edges].argmax(1))


@needs_files
@needs_rdkit
@pytest.mark.slow
def test_real_bbbp_names_its_eleven_unparsable_rows():
    loaded = load_graph_set(CATALOGUE["BBBP"], Path(REAL))
    assert len(loaded.graphs) + 11 == 2_050
    assert "rows 59, 61, 391, 614, 642, 645, 646, 647, 648, 649, 685" in loaded.notes[0]
    assert loaded.graphs.labels.bincount().tolist() == [479, 1_560]


@needs_files
@pytest.mark.slow
def test_real_molhiv_and_its_split():
    loaded = load_graph_set(CATALOGUE["ogbg-molhiv"], Path(REAL))
    split = scaffold_split(REAL)
    assert [len(split[part]) for part in ("train", "valid", "test")] == [32_901, 4_113, 4_113]
    positives = [int(loaded.graphs.labels[split[part]].sum()) for part in split]
    assert positives == [1_232, 81, 130]
    assert sum(graph.num_nodes for graph in loaded.graphs) == loaded.graphs.num_nodes

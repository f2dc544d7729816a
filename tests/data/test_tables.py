"""Node and edge tables: round trips, new data, and bad input with its place."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geof.data.columns import ColumnEncoder
from geof.data.files import read_table
from geof.data.tables import encode_new_graph, encode_new_nodes, read_node_table, read_pairs
from geof.errors import ConfigError, DataError, ShapeError

NODES = """id,age,town,species
ann,1,Ulm,cat
Bé,2,Bern,dog
"c,d",3,Ulm,cat
日本,6,Bern,
eve,8,Ulm,dog
"""
EDGES = 'source,target\nann,Bé\nBé,"c,d"\n日本,ann\n'
ONE_WAY = (
    "3 edges given in one direction taken as undirected. Keep the direction with directed=True "
    "(--directed)."
)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "edges.csv", EDGES)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def read(folder, **options):
    options = {"label": "species", **options}
    return read_node_table(folder / "nodes.csv", folder / "edges.csv", **options)


def parquet(path: Path, **columns) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def test_a_graph_with_text_identifiers(folder):
    graph, encoder = read(folder)
    assert graph.name == "nodes"
    assert graph.node_ids == ("ann", "Bé", "c,d", "日本", "eve")
    assert graph.class_names == ("cat", "dog")
    assert graph.graph.y.tolist() == [0, 1, 0, -1, 1]
    assert graph.graph.edge_index.tolist() == [[0, 0, 1, 1, 2, 3], [1, 3, 0, 2, 1, 0]]
    assert graph.graph.x.shape == (5, 3)
    assert encoder.id_column == "id"
    assert graph.notes == ("1 of 5 without a label.", ONE_WAY)


def test_readers_write_nothing(folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    read(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_the_hash_follows_the_content_and_not_the_order_of_edges(folder):
    first = read(folder)[0].content_hash
    write(folder / "edges.csv", 'source,target\nann,日本\nann,Bé\n"c,d",Bé\n')
    assert read(folder)[0].content_hash == first
    write(folder / "edges.csv", "source,target\nann,eve\n")
    assert read(folder)[0].content_hash != first
    write(folder / "edges.csv", EDGES)
    for old, new in (("Ulm,cat", "Ulm,dog"), ("eve,8", "eve,9"), ("cat", "cow")):
        write(folder / "nodes.csv", NODES.replace(old, new))
        assert read(folder)[0].content_hash != first


def test_repeats_and_self_loops_are_counted(folder):
    write(folder / "edges.csv", EDGES + "Bé,ann\nann,Bé\neve,eve\n")
    graph, _ = read(folder)
    assert graph.graph.num_edges == 6
    said = ("1 self-loops removed.", "2 repeated edges merged.", ONE_WAY.replace("3", "2"))
    assert graph.notes[1:] == said


def test_one_node_and_no_edges(tmp_path):
    write(tmp_path / "nodes.csv", "name,age\nonly,3\n")
    write(tmp_path / "edges.csv", "a,b\n")
    graph, _ = read(tmp_path, label=None)
    assert graph.node_ids == ("only",)
    assert graph.graph.edge_index.shape == (2, 0)
    assert graph.graph.edge_index.dtype == torch.long
    assert graph.graph.x.tolist() == [[0]]
    assert graph.graph.y.tolist() == [-1]
    assert graph.class_names == ()
    assert graph.notes == ("Column 'age' is constant and gives zeros.",)


def test_columns_can_be_named(folder):
    write(folder / "nodes.csv", NODES.replace("id,", "key,").replace("species", "id"))
    write(folder / "edges.csv", "u,v,w\n1,ann,Bé\n")
    options = {"id_column": "key", "label": "id", "source": "v", "target": "w"}
    with pytest.raises(DataError, match=r"edges.csv' \(got 'u'\): the model does not use.*ignore"):
        read(folder, **options)
    graph, _ = read(folder, **options, edge_columns="ignore")
    assert graph.graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert "Edge columns ignored on request: 'u'." in graph.notes


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"source": "fro"}, "edge column 'fro' in .*edges.csv'.*'source', 'target'"),
        ({"source": "target"}, "two different edge columns"),
        ({"id_column": "species"}, "different columns of .*nodes.csv"),
        ({"id_column": "ids"}, "identifier column 'ids' in .*nodes.csv.*mean 'id'"),
        ({"label": "specis"}, "label column 'specis' in .*nodes.csv.*mean 'species'"),
        ({"edge_columns": "drop"}, "Unknown edge_columns='drop'"),
    ],
)
def test_wrong_columns_are_refused(folder, columns, message):
    with pytest.raises((DataError, ConfigError), match=message):
        read(folder, **columns)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (NODES + "ann,1,Ulm,cat\n", r"'ann' at '.*nodes.csv', line 2, and again at .*, line 7\)"),
        (NODES + ",1,Ulm,cat\n", r"got none at '.*nodes.csv', line 7\)"),
        (NODES + "x,1,Ulm\n", r"4 fields as in the header \(got 3 at '.*nodes.csv', line 7\)"),
        (NODES + "x,1,Ulm,cat,9\n", r"\(got 5 at '.*nodes.csv', line 7\)"),
        (NODES + '"x,1,Ulm,cat\n\n', r"unexpected end.*nodes.csv', line 7\).*quotes"),
        (NODES + '"x"y,1,Ulm,cat\n', r"nodes.csv', line 7\).*quotes"),
        (NODES + "x,nan,Ulm,cat\n", r"'age' \(got 'nan' at '.*nodes.csv', line 7\)"),
        (NODES + "x,,Ulm,cat\n", r"'age' \(got an empty cell at '.*nodes.csv', line 7\)"),
        (NODES + "x,1,Ulm,cow\n", r"got one in 'cow' at '.*nodes.csv', line 7\).*allow_singletons"),
        ("", "got an empty file"),
        ("id,age,species\n", "labels in column 'species'"),
        (NODES.replace("age", ""), "name for column 2"),
        (NODES.replace("age", "town"), "got 'town' twice"),
    ],
)
def test_broken_nodes_are_refused_with_file_and_line(folder, nodes, message):
    write(folder / "nodes.csv", nodes)
    with pytest.raises(DataError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (EDGES + "ann,Zoe\n", r"'target' \(got 'Zoe' at '.*edges.csv', line 5, which no node has"),
        (EDGES + "ann, eve\n", r"got ' eve' at '.*edges.csv', line 5.*spaces around"),
        (EDGES + ",eve\n", r"'source' \(got '' at '.*edges.csv', line 5"),
        (EDGES + "ann\n", r"2 fields as in the header \(got 1 at '.*edges.csv', line 5\)"),
        ("ann,Bé\nBé,eve\n", "header in .*edges.csv' .got an edge, 'ann' to 'Bé'"),
        ("source;target\nann;eve\n", r"two columns of identifiers.*got \['source;target'\]"),
    ],
)
def test_broken_edges_are_refused_with_file_and_line(folder, edges, message):
    write(folder / "edges.csv", edges)
    with pytest.raises(DataError, match=message):
        read(folder)


def test_lines_are_counted_through_quoted_newlines_and_blank_lines(folder):
    write(folder / "nodes.csv", NODES + '\n"two\nlines",1,"a\n\nb",cat\r\n\r\nx,y,z\r\n')
    with pytest.raises(DataError, match=r"\(got 3 at '.*nodes.csv', line 13\)"):
        read(folder)
    write(folder / "nodes.csv", NODES + '"two\nlines",1,Ulm,cat\n"two\nlines",1,Ulm,cat\n')
    with pytest.raises(DataError, match=r"', line 7, and again at .*, line 9\)"):
        read(folder)


def test_a_single_member_is_allowed_on_request(folder):
    write(folder / "nodes.csv", NODES + "x,1,Ulm,cow\n")
    graph, _ = read(folder, allow_singletons=True)
    assert graph.class_names == ("cat", "cow", "dog")


def test_a_mark_before_the_header_and_other_encodings(folder):
    (folder / "nodes.csv").write_bytes(b"\xef\xbb\xbf" + NODES.encode())
    assert next(iter(read_table(folder / "nodes.csv").columns)) == "id"
    (folder / "nodes.csv").write_bytes(NODES.replace("日本", "x").encode("latin-1"))
    with pytest.raises(DataError, match=r"UTF-8 at '.*nodes.csv', line 3"):
        read(folder)


def test_a_missing_parquet_file(folder):
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"read '.*missing\.parquet', but No such file"):
        read_table(folder / "missing.parquet")


def test_files_that_are_none(folder):
    with pytest.raises(DataError, match=r"read '.*missing\.csv', but No such file"):
        read_table(folder / "missing.csv")
    (folder / "folder.csv").mkdir()
    with pytest.raises(DataError, match="but Is a directory"):
        read_table(folder / "folder.csv")
    with pytest.raises(DataError, match=r"\.csv, \.tsv or \.parquet file .*nodes.xlsx"):
        read_table(folder / "nodes.xlsx")


def test_tabs(tmp_path):
    write(tmp_path / "t.tsv", "a\tb\n1,5\t2\n")
    assert read_table(tmp_path / "t.tsv").columns == {"a": ("1,5",), "b": ("2",)}


identifiers = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
    | st.text(",\"\n\r;\t 'é", min_size=1, max_size=6),
    min_size=2,
    max_size=8,
    unique=True,
)


@given(identifiers, st.data())
def test_any_identifier_survives_a_csv_round_trip(tmp_path_factory, names, data):
    folder = tmp_path_factory.mktemp("csv")
    ends = st.sampled_from(names)
    pairs = data.draw(st.lists(st.tuples(ends, ends), max_size=10))
    for name, header, rows in (
        ("nodes.csv", ("key", "age"), [(name, i) for i, name in enumerate(names)]),
        ("edges.csv", ("from node", "to node"), pairs),
    ):
        with open(folder / name, "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([header, *rows])
    graph, _ = read(folder, label=None)
    assert graph.node_ids == tuple(names)
    edges = graph.graph.edge_index.t().tolist()
    assert {frozenset((names[a], names[b])) for a, b in edges} == {
        frozenset(pair) for pair in pairs if pair[0] != pair[1]
    }
    rows = read_pairs(folder / "edges.csv", graph.node_ids).t().tolist()
    assert [(names[a], names[b]) for a, b in rows] == pairs


# New data -------------------------------------------------------------------------------------


def test_a_new_graph_goes_through_the_same_columns(folder):
    _, encoder = read(folder)
    encoder = ColumnEncoder.from_json(encoder.to_json())
    nodes = write(folder / "new.csv", "id,town,age\nann,Oslo,4\nz,Ulm,6\n")
    edges = write(folder / "new_edges.csv", "source,target\nz,ann\n")
    new = encode_new_graph(nodes, edges, encoder)
    assert new.node_ids == ("ann", "z")
    assert new.class_names == ("cat", "dog")
    assert new.graph.y.tolist() == [-1, -1]
    assert new.graph.x[:, 1:].tolist() == [[0, 0], [0, 1]]
    assert new.graph.x[0, 0] == 0  # the mean of the training ages is 4
    assert new.graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert any("1 unseen categories" in note for note in new.notes)


def test_a_new_graph_may_have_labels_and_single_members(folder):
    _, encoder = read(folder)
    nodes = write(folder / "new.csv", "id,town,age,species\nann,Ulm,4,dog\n")
    edges = write(folder / "new_edges.csv", "source,target\n")
    assert encode_new_graph(nodes, edges, encoder).graph.y.tolist() == [1]
    write(nodes, "id,town,species\nann,Ulm,dog\n")
    with pytest.raises(DataError, match=r"new.csv' \(lacks 'age'\)"):
        encode_new_graph(nodes, edges, encoder)
    write(nodes, "id,town,age,size\nann,Ulm,1,1\n")
    with pytest.raises(DataError, match=r"new.csv' \(got also 'size'\)"):
        encode_new_graph(nodes, edges, encoder)
    write(nodes, "town,age\nUlm,1\n")
    with pytest.raises(DataError, match=r"identifier column 'id' in .*new.csv"):
        encode_new_graph(nodes, edges, encoder)
    write(nodes, "id,town,age\n")
    with pytest.raises(DataError, match=r"at least one row in .*new.csv"):
        encode_new_graph(nodes, edges, encoder)


def test_unseen_nodes_follow_the_known_ones(folder):
    graph, encoder = read(folder)
    nodes = write(folder / "new.csv", "id,town,age\nzoe,Ulm,4\nyan,Bern,1\n")
    edges = write(folder / "new_edges.csv", "source,target\nzoe,ann\neve,yan\nBé,ann\n")
    new = encode_new_nodes(graph, nodes, edges, encoder)
    assert new.node_ids == (*graph.node_ids, "zoe", "yan")
    assert torch.equal(new.graph.x[:5], graph.graph.x)
    assert torch.equal(new.graph.x[5:], encoder.encode(read_table(nodes)))
    assert new.graph.y.tolist() == [*graph.graph.y.tolist(), -1, -1]
    old = set(map(tuple, graph.graph.edge_index.t().tolist()))
    assert set(map(tuple, new.graph.edge_index.t().tolist())) == old | {
        (0, 5),
        (5, 0),
        (4, 6),
        (6, 4),
    }
    assert "2 new nodes after 5 known ones." in new.notes
    assert "1 repeated edges merged." in new.notes
    assert new.content_hash != graph.content_hash


def test_unseen_nodes_must_be_new_and_fit_the_graph(folder):
    graph, encoder = read(folder)
    edges = write(folder / "new_edges.csv", "source,target\n")
    nodes = write(folder / "new.csv", "id,town,age\nzoe,Ulm,4\neve,Bern,1\n")
    with pytest.raises(DataError, match=r"\(got 'eve', a known node, at '.*new.csv', line 3\)"):
        encode_new_nodes(graph, nodes, edges, encoder)
    write(nodes, "id,town,age\nzoe,Ulm,4\n")
    _, other = read(folder, drop=["town"])
    with pytest.raises(ShapeError, match=r"encoder of this graph, 3 features.* 1 and"):
        encode_new_nodes(graph, nodes, edges, other)


def test_pairs_keep_their_order_direction_and_repeats(folder):
    graph, _ = read(folder)
    path = write(folder / "pairs.csv", 'a,b\neve,ann\nann,eve\neve,ann\n"c,d",eve\n')
    pairs = read_pairs(path, graph.node_ids)
    assert pairs.tolist() == [[4, 0, 4, 2], [0, 4, 0, 4]]
    write(path, "a,b\nann,nobody\n")
    with pytest.raises(DataError, match=r"'b' \(got 'nobody' at '.*pairs.csv', line 2"):
        read_pairs(path, graph.node_ids)
    write(path, "a,b\n")
    assert read_pairs(path, graph.node_ids).shape == (2, 0)
    write(path, "a,b,score\nann,eve,1\n")
    with pytest.raises(DataError, match="'score'"):
        read_pairs(path, graph.node_ids)
    assert read_pairs(path, graph.node_ids, edge_columns="ignore").tolist() == [[0], [4]]


# Parquet --------------------------------------------------------------------------------------


def test_parquet_gives_the_graph_that_csv_gives(folder):
    expected, _ = read(folder)
    nodes = parquet(
        folder / "nodes.parquet",
        id=["ann", "Bé", "c,d", "日本", "eve"],
        age=[1.0, 2.0, 3.0, 6.0, 8.0],
        town=["Ulm", "Bern", "Ulm", "Bern", "Ulm"],
        species=["cat", "dog", "cat", None, "dog"],
    )
    edges = parquet(
        folder / "edges.parquet", source=["ann", "Bé", "日本"], target=["Bé", "c,d", "ann"]
    )
    graph, _ = read_node_table(nodes, edges, label="species")
    assert graph.content_hash == expected.content_hash
    assert graph.node_ids == expected.node_ids
    assert graph.notes == expected.notes


def test_parquet_types_decide_the_kind(folder):
    pa = pytest.importorskip("pyarrow")
    nodes = parquet(
        folder / "n.parquet",
        id=[7, 8],
        code=["1", "2"],
        flag=[True, False],
        void=pa.array([None, None], pa.float64()),
        group=pa.array(["a", "b"]).dictionary_encode(),
        small=pa.array([0.5, 1.5], pa.float32()),
    )
    edges = parquet(folder / "e.parquet", source=[7], target=[8])
    graph, encoder = read_node_table(nodes, edges, label=None)
    assert graph.node_ids == ("7", "8")
    assert encoder.feature_names == ("code=1", "code=2", "flag", "group=a", "group=b", "small")
    assert graph.graph.x.tolist() == [[1, 0, 1, 1, 0, -1], [0, 1, 0, 0, 1, 1]]
    assert any("'void' is empty" in note for note in graph.notes)


def test_bad_parquet_is_refused_with_its_row(folder):
    pa = pytest.importorskip("pyarrow")
    edges = parquet(folder / "e.parquet", source=["a"], target=["z"])
    path = parquet(folder / "n.parquet", id=["a", "b"], age=[1.0, float("nan")])
    with pytest.raises(DataError, match=r"'age' \(got 'nan' at '.*n.parquet', row 2\)"):
        read_node_table(path, edges, label=None)
    path = parquet(folder / "n.parquet", id=["a", "b"], age=[1.0, None])
    with pytest.raises(DataError, match=r"'age' \(got an empty cell at '.*n.parquet', row 2\)"):
        read_node_table(path, edges, label=None)
    with pytest.raises(DataError, match=r"'target' \(got 'z' at '.*e.parquet', row 1"):
        read_node_table(path, edges, label=None, missing="mean")
    path = parquet(folder / "n.parquet", id=["a"], vector=pa.array([[1.0, 2.0]]))
    with pytest.raises(DataError, match=r"'vector' of '.*n.parquet' \(got type list<.*drop="):
        read_node_table(path, edges, label=None)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"whole Parquet file at '.*n.parquet'"):
        read_node_table(path, edges, label=None)


def test_parquet_without_pyarrow_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        read_table(folder / "nodes.parquet")


# The page -------------------------------------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"


def run_examples(molecules: bool, capsys) -> dict[str, object]:
    """Run the page's code, require it to print what its comments say, and return its names."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    chosen = [block for block in blocks if ("read_molecules" in block) == molecules]
    names: dict[str, object] = {"Path": Path}
    for block in chosen:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    said = re.findall(r"^print\(.*\)  # (.*)$", "".join(chosen), flags=re.MULTILINE)
    assert said
    for line, comment in zip(printed, said, strict=True):
        assert comment.startswith(line) or line.startswith(comment.removesuffix("...")), line
    return names


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("networkx")
    monkeypatch.chdir(tmp_path)
    names = run_examples(False, capsys)
    assert names["other"].node_ids == ("fay",)
    assert names["pairs"].tolist() == [[0, 1], [4, 3]]
    assert names["karate"].class_names == ("Mr. Hi", "Officer")
    assert names["one"].node_ids == ("a", "b")
    assert len(names["several"].graphs) == 4


def test_the_molecules_of_the_page_are_read(tmp_path, monkeypatch, capsys):
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    names = run_examples(True, capsys)
    assert [int(graph.y) for graph in names["drugs"].graphs] == [0, 1, 0, 1]
    assert [int(graph.y) for graph in names["new"].graphs] == [-1] * 4

"""Numbers and several yes-or-no targets, from cells and arrays; direction; types of nodes."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from geof.data.columns import ColumnEncoder
from geof.data.files import Table
from geof.data.formats import from_networkx, from_npz, from_pyg, from_pyg_list, to_npz
from geof.data.tables import encode_new_graph, encode_new_nodes, read_node_table
from geof.data.targets import column_facts, labelled
from geof.errors import ConfigError, DataError, DtypeError, ShapeError

ARROWS = torch.tensor([[0, 1, 2], [1, 2, 1]])  # 0 to 1 has no way back


def table(**columns: str) -> Table:
    cells = {name: text.split(",") for name, text in columns.items()}
    return Table("t.csv", cells, range(2, 2 + len(next(iter(cells.values())))))


def same(found, expected) -> bool:
    return torch.equal(
        torch.nan_to_num(found, -99.0), torch.nan_to_num(torch.tensor(expected).double(), -99.0)
    )


# What columns hold ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ("0,1,1,0", "classes"),
        ("1.0,2.0,2.0,1.0", "classes"),
        ("red,blue,red,", "classes"),
        ("0.5,1,,2", "regression"),
        ("-3,1e-2,4,5", "regression"),
        ("0.5,1.5,2.5,oops", "regression"),
        ("a,b,0.5,c", "classes"),
    ],
)
def test_one_column_is_numbers_when_some_are_not_whole(cells, kind):
    facts, notes = column_facts(table(y=cells), ["y"])
    assert facts.kind == kind
    assert bool(notes) == (kind == "regression")


def test_several_columns_are_yes_or_no_or_numbers():
    both = table(a="0,1,,true", b="1,,0,0", c="1,2,3,4")
    assert column_facts(both, ["a", "b"])[0].kind == "binary"
    assert column_facts(both, ["a", "b", "c"])[0].kind == "regression"
    facts, notes = column_facts(both, ["a", "b"], "regression")
    assert (facts.kind, notes) == ("regression", [])
    with pytest.raises(ConfigError, match="one label column for target_kind='classes'"):
        column_facts(both, ["a", "b"], "classes")
    with pytest.raises(ConfigError, match="Unknown target_kind='number'"):
        column_facts(both, ["a"], "number")


def test_targets_have_gaps_and_the_schema_remembers_them():
    read = table(a="0.5,,3", b="1,2,", x="1,2,3")
    encoder = ColumnEncoder.fit(read, label=["a", "b"])
    assert encoder.feature_names == ("x",)
    y = encoder.encode_labels(read)
    assert same(y, [[0.5, 1], [math.nan, 2], [3, math.nan]])
    assert ColumnEncoder.from_json(encoder.to_json()) == encoder
    assert encoder.encode(table(x="1,2")).shape == (2, 1)
    assert bool(encoder.encode_labels(table(x="1,2")).isnan().all())
    assert labelled(encoder.encode_labels(table(a=",1", b=",", x="1,2"))).tolist() == [False, True]


@pytest.mark.parametrize(
    ("cells", "kind", "message"),
    [
        ("red,1,2", "regression", "finite number in column 'y', a regression target .got 'red' at"),
        ("inf,1,2", "regression", "got 'inf' at 't.csv', line 2"),
        ("nan,1,2", "regression", "got 'nan' at 't.csv', line 2"),
        ("0,1,2", "binary", "0 or 1 in column 'y', a binary target .got '2' at 't.csv', line 4"),
        ("yes,1,0", "binary", "--target-kind classes"),
    ],
)
def test_a_cell_that_is_no_such_target_is_refused_with_its_place(cells, kind, message):
    read = table(y=cells, x="1,2,3")
    encoder = ColumnEncoder.fit(read, label="y", target_kind=kind)
    with pytest.raises(DataError, match=message):
        encoder.encode_labels(read)


def test_tables_give_targets_in_their_unit(tmp_path):
    (tmp_path / "n.csv").write_text("id,x,price,part\na,1,100.5,train\nb,2,,test\nc,3,7,val\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\nc,b\n")
    files = tmp_path / "n.csv", tmp_path / "e.csv"
    graph, encoder = read_node_table(*files, label="price", aside=["part"])
    assert (graph.targets.kind, graph.targets.names) == ("regression", ("price",))
    assert graph.class_names == ()
    assert same(graph.graph.y, [[100.5], [math.nan], [7.0]])
    assert graph.aside == {"part": ("train", "test", "val")}
    assert encoder.feature_names == ("x",)
    assert "numbers that are not whole" in graph.notes[0]
    assert any("1 of 3 targets are missing" in note for note in graph.notes)


def test_amounts_as_classes_are_refused_with_the_way_out(tmp_path):
    (tmp_path / "n.csv").write_text("id,x,count\na,1,10\nb,2,11\nc,3,12\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    with pytest.raises(DataError, match="--target-kind regression"):
        read_node_table(tmp_path / "n.csv", tmp_path / "e.csv", label="count")
    graph, _ = read_node_table(
        tmp_path / "n.csv", tmp_path / "e.csv", label="count", target_kind="regression"
    )
    assert graph.graph.y.flatten().tolist() == [10, 11, 12]
    (tmp_path / "n.csv").write_text("id,x,a,b\na,1,0.5,\nb,2,1,\nc,3,12,\n")
    with pytest.raises(DataError, match="values of the target 'b'"):
        read_node_table(tmp_path / "n.csv", tmp_path / "e.csv", label=["a", "b"])


# Arrays ---------------------------------------------------------------------------------------


def pyg(y, **more) -> Data:
    return Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y, **more)


def test_arrays_of_floats_are_numbers_and_whole_ones_classes():
    graph = from_pyg(pyg(torch.tensor([0.5, math.nan, -2.0])))
    assert (graph.targets.kind, graph.num_outputs) == ("regression", 1)
    assert same(graph.graph.y, [[0.5], [math.nan], [-2.0]])
    assert from_pyg(pyg(torch.tensor([1.0, 1.0, math.nan]))).targets.kind == "classes"
    whole = from_pyg(pyg(torch.tensor([3, 7, 9])), target_kind="regression")
    assert whole.graph.y.flatten().tolist() == [3, 7, 9]
    several = from_pyg(pyg(torch.tensor([[0, 1], [1, -1], [1, 0]])))
    assert (several.targets.kind, several.targets.names) == ("binary", ("target_0", "target_1"))
    assert same(several.graph.y, [[0, 1], [1, math.nan], [1, 0]])
    assert from_pyg(pyg(torch.rand(3, 2))).targets.kind == "regression"


@pytest.mark.parametrize(
    ("y", "kind", "error", "message"),
    [
        (torch.tensor([0.5, math.inf, 1]), None, DataError, "finite numbers as regression"),
        (torch.tensor([0, 2, 1]), "binary", DataError, "0 and 1 as binary targets"),
        (torch.rand(2, 2), "regression", DataError, "for each of 3 rows"),
    ],
)
def test_arrays_that_are_no_targets(y, kind, error, message):
    with pytest.raises(error, match=message):
        from_pyg(pyg(y), target_kind=kind)


def test_text_is_no_number(tmp_path):
    words = np.array(["a", "b", "a"])
    np.savez(tmp_path / "g.npz", x=np.eye(3), edge_index=np.array([[0], [1]]), y=words)
    with pytest.raises(DtypeError, match="numbers as regression targets"):
        from_npz(tmp_path / "g.npz", target_kind="regression")
    club = nx.Graph([("a", "b")])
    nx.set_node_attributes(club, {"a": "x", "b": 0.5}, "y")
    with pytest.raises(DataError, match="text or 0, 1"):
        from_networkx(club, features=[], label="y")


def test_networkx_numbers():
    club = nx.Graph([("a", "b"), ("b", "c")])
    nx.set_node_attributes(club, {"a": 0.5, "b": 2}, "y")
    graph = from_networkx(club, features=[], label="y")
    assert (graph.targets.kind, graph.targets.names) == ("regression", ("y",))
    assert same(graph.graph.y, [[0.5], [2.0], [math.nan]])


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("y", [torch.tensor([1.5, math.nan, 3]), torch.tensor([0, 0, 0])])
def test_npz_keeps_targets_and_direction(y, directed, tmp_path):
    graph = from_pyg(Data(x=torch.eye(3), edge_index=ARROWS, y=y), directed=directed)
    to_npz(graph, tmp_path / "g.npz")
    again = from_npz(tmp_path / "g.npz")
    assert again.content_hash == graph.content_hash
    assert (again.targets, again.directed) == (graph.targets, directed)


def test_npz_columns_a_split_goes_by(tmp_path):
    np.savez(
        tmp_path / "g.npz",
        x=np.eye(3),
        edge_index=np.array([[0], [1]]),
        part=np.array(["train", "test", "val"]),
        short=np.zeros(2),
    )
    assert from_npz(tmp_path / "g.npz", aside=["part"]).aside == {"part": ("train", "test", "val")}
    with pytest.raises(DataError, match=r"the key 'prt'.*Did you mean 'part'"):
        from_npz(tmp_path / "g.npz", aside=["prt"])
    with pytest.raises(ShapeError, match="3 entries under 'short'"):
        from_npz(tmp_path / "g.npz", aside=["short"])


def test_sets_of_graphs_have_targets():
    some = [pyg(torch.tensor([[i + 0.5, math.nan if i else 1.0]])) for i in range(3)]
    read = from_pyg_list(some)
    assert read.targets.kind == "regression"
    assert read.num_outputs == 2
    assert [tuple(g.y.shape) for g in read.graphs] == [(1, 2)] * 3
    read = from_pyg_list([pyg(torch.tensor([0.5])), pyg(None)])
    assert math.isnan(float(read.graphs[1].y))
    with pytest.raises(ShapeError, match=r"'y' of graph 1 .got 1"):
        from_pyg_list([pyg(torch.rand(1, 2)), pyg(torch.rand(1))])


def test_the_kind_of_targets_is_part_of_the_content():
    y = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    hashes = {from_pyg(pyg(y), target_kind=k).content_hash for k in ("binary", "regression")}
    assert len(hashes) == 2


# Direction and types --------------------------------------------------------------------------


def test_edges_in_one_direction_are_noticed_and_kept_when_asked(tmp_path):
    data = Data(x=torch.eye(3), edge_index=ARROWS)
    both = from_pyg(data)
    assert both.graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert any(note.startswith("1 edges given in one direction") for note in both.notes)
    kept = from_pyg(data, directed=True)
    assert kept.graph.edge_index.tolist() == [[0, 1, 2], [1, 2, 1]]
    assert kept.directed
    assert "3 edges keep their direction." in kept.notes
    assert from_pyg_list([data], directed=True).graphs[0].edge_index.tolist() == ARROWS.tolist()
    arrows = nx.DiGraph([("a", "b"), ("b", "b"), ("b", "c"), ("c", "b")])
    read = from_networkx(arrows, features=[], directed=True)
    assert read.graph.edge_index.tolist() == ARROWS.tolist()
    assert "1 self-loops removed." in read.notes
    assert not from_networkx(nx.Graph(arrows), features=[], directed=True).directed
    (tmp_path / "n.csv").write_text("id,x\na,1\nb,2\nc,3\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\nc,b\n")
    files = tmp_path / "n.csv", tmp_path / "e.csv"
    graph, encoder = read_node_table(*files, label=None, directed=True)
    assert graph.graph.edge_index.tolist() == ARROWS.tolist()
    assert not any("one direction" in note for note in graph.notes)
    assert any(
        note.startswith("1 edges given in one direction")
        for note in read_node_table(*files, label=None)[0].notes
    )
    other = encode_new_graph(*files, encoder, directed=True)
    assert other.graph.edge_index.tolist() == ARROWS.tolist()
    (tmp_path / "n.csv").write_text("id,x\nd,4\n")
    (tmp_path / "e.csv").write_text("source,target\nd,a\n")
    larger = encode_new_nodes(graph, *files, encoder)
    assert larger.graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 2, 1, 0]]


def test_heterogeneous_graphs_are_refused_with_what_to_do(tmp_path):
    several = HeteroData()
    several["a"].x, several["b"].x = torch.eye(2), torch.eye(2)
    several["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(
        DtypeError, match=r"HeteroData with 2 types of nodes and 1 of edges.*to_homo"
    ):
        from_pyg(several)
    types = torch.tensor([0, 0, 1])
    with pytest.raises(DataError, match=r"2 values of 'node_type'.*one 0/1 column per type"):
        from_pyg(pyg(None, node_type=types))
    with pytest.raises(DataError, match=r"2 values of 'edge_type'.*Keep one type of edges"):
        from_pyg(pyg(None, edge_type=torch.tensor([0, 1])))
    assert from_pyg(pyg(None, node_type=torch.zeros(3))).graph.num_nodes == 3
    np.savez(
        tmp_path / "g.npz", x=np.eye(3), edge_index=np.array([[0], [1]]), node_type=types.numpy()
    )
    with pytest.raises(DataError, match="heterogeneous graphs are not supported"):
        from_npz(tmp_path / "g.npz")

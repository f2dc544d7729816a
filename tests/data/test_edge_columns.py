"""Weights and attributes of edges from tables, npz files and PyG graphs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch_geometric.data import Data

from geof.data.columns import ColumnEncoder
from geof.data.formats import from_npz, from_pyg, from_pyg_list, to_npz
from geof.data.molecules import in_ring, read_molecules
from geof.data.records import EdgeSizes, GraphSet, NodeGraph
from geof.data.sources import DataConfig, notes_of, with_edges
from geof.data.tables import encode_new_graph, encode_new_nodes, read_node_table
from geof.errors import ConfigError, DataError, DtypeError, ShapeError

NODES = "id,age,kind\na,1,x\nb,2,y\nc,3,x\nd,4,y\n"
EDGES = (
    "source,target,w,bond,length,charge\n"
    "a,b,0.5,single,1.5,0\n"
    "c,b,2,double,2.5,1\n"
    "d,c,0,single,0.5,1\n"
)
COLUMNS = {"edge_weight": "w", "edge_attr": ("bond", "length", "charge")}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    return tmp_path


def read(folder, **options):
    return read_node_table(folder / "nodes.csv", folder / "edges.csv", label="kind", **options)


def test_columns_of_a_table(folder):
    data, encoder = read(folder, **COLUMNS)
    graph = data.graph
    assert graph.edge_index.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    assert graph.edge_weight.tolist() == [0.5, 0.5, 2, 2, 0, 0]
    # Categories in the order of the columns, then standardised numbers.
    assert data.edge_sizes == EdgeSizes((2, 2), 1)
    assert graph.edge_attr[:, :2].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [1, 1], [1, 1]]
    torch.testing.assert_close(
        graph.edge_attr[::2, 2], torch.tensor([0.0, 1.0, -1.0]) * (3 / 2) ** 0.5
    )
    everything, _ = read(folder, edge_weight="w", edge_columns="use")
    assert torch.equal(everything.graph.edge_attr, graph.edge_attr)
    again = ColumnEncoder.from_json(encoder.to_json())
    assert again == encoder
    same = encode_new_graph(folder / "nodes.csv", folder / "edges.csv", again)
    assert same.content_hash == data.content_hash


def test_words_alone_are_whole_numbers(folder):
    data, _ = read(folder, edge_attr=["bond"], edge_columns="ignore")
    assert data.graph.edge_attr.dtype == torch.long
    assert data.edge_sizes == EdgeSizes((2,))
    assert "edge_weight" not in data.graph
    assert "Edge columns ignored on request: 'charge', 'length', 'w'." in data.notes


def test_without_them_nothing_changes(folder):
    data, encoder = read(folder, edge_columns="ignore")
    assert data.edge_sizes is None
    assert "edges" not in json.loads(encoder.to_json())
    assert not {"edge_weight", "edge_attr"} & {*data.graph.to_dict()}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (("0.5,single", "-0.5,single"), COLUMNS, r"'w' \(got '-0.5' at .*edges.csv', line 2"),
        (("0.5,single", "inf,single"), COLUMNS, r"'w' \(got 'inf' at .*line 2"),
        (("0.5,single", ",single"), COLUMNS, r"'w' \(got an empty cell at .*line 2"),
        (("0.5,single", "much,single"), COLUMNS, r"'w' \(got 'much' at .*line 2"),
        (("1.5,0", "nan,0"), COLUMNS, r"'length' \(got 'nan' at .*line 2"),
        (("", ""), {"edge_attr": ["bnod"]}, r"edge column 'bnod'.*mean 'bond'"),
        (("", ""), {"edge_weight": "weight"}, r"column of edge weights 'weight'"),
        (("", ""), {"edge_attr": ["source"], "edge_columns": "ignore"}, r"columns of their own"),
        (("", ""), {"edge_attr": ["bond"]}, r"got 'charge', 'length', 'w'.*'use'.*'ignore'"),
        (("d,c,0", "b,a,0"), COLUMNS, r"'edge_weight' 0.0 at edge 2, \(0, 1\), and 0.5 before"),
    ],
)
def test_what_cannot_be_used_is_refused(folder, change, options, message):
    (folder / "edges.csv").write_text(EDGES.replace(*change))
    with pytest.raises((DataError, ConfigError), match=message):
        read(folder, **options)


def test_the_same_edge_twice_with_the_same_content_is_one(folder):
    (folder / "edges.csv").write_text(EDGES + "b,a,0.5,single,1.5,0\n")
    data, _ = read(folder, **COLUMNS)
    assert data.graph.edge_weight.tolist() == [0.5, 0.5, 2, 2, 0, 0]


def test_new_tables_go_through_the_schema(folder):
    data, encoder = read(folder, **COLUMNS)
    nodes, edges = folder / "new.csv", folder / "new_edges.csv"
    nodes.write_text("id,age\nz,5\n")
    edges.write_text("source,target,w,bond,length,charge\nz,a,3,double,1.5,1\n")
    grown = encode_new_nodes(data, nodes, edges, encoder)
    assert grown.edge_sizes == data.edge_sizes
    place = (grown.graph.edge_index == torch.tensor([[4], [0]])).all(0)
    assert grown.graph.edge_weight[place].tolist() == [3]
    assert grown.graph.edge_attr[place].tolist() == [[0, 1, 0]]
    assert grown.graph.edge_weight.sum() == data.graph.edge_weight.sum() + 6
    edges.write_text("source,target,w,bond,length,charge\nz,a,3,triple,1.5,1\n")
    with pytest.raises(DataError, match=r"'bond' \(got 'triple' at .*line 2, which the training"):
        encode_new_nodes(data, nodes, edges, encoder)
    edges.write_text("source,target,w,length,charge\nz,a,3,1.5,1\n")
    with pytest.raises(DataError, match="edge column of the training table 'bond'"):
        encode_new_nodes(data, nodes, edges, encoder)


# --- npz and PyG --------------------------------------------------------------------------------

X = np.arange(8, dtype=np.float32).reshape(4, 2)
PAIRS = np.array([[0, 2, 1, 3], [1, 1, 2, 2]])
WEIGHT = np.array([1.0, 2.0, 3.0, 4.0])
CODES = np.array([[0, 1], [2, 0], [1, 1], [0, 0]])
# 0-1, 1-0, 1-2, 2-1, 2-3, 3-2: what is given in both directions keeps both.
WEIGHTS = [1, 1, 3, 2, 4, 4]


def test_npz_there_and_back(tmp_path):
    path = tmp_path / "graph.npz"
    np.savez(path, x=X, edge_index=PAIRS, edge_weight=WEIGHT, edge_attr=CODES)
    with pytest.raises(DataError, match=r"got 'edge_attr', 'edge_weight'.*'use'"):
        from_npz(path)
    data = from_npz(path, edge_columns="use")
    assert data.graph.edge_weight.tolist() == WEIGHTS
    assert data.graph.edge_attr.tolist() == [[0, 1], [0, 1], [1, 1], [2, 0], [0, 0], [0, 0]]
    assert data.edge_sizes == EdgeSizes((3, 2))
    to_npz(data, tmp_path / "again.npz")
    again = from_npz(tmp_path / "again.npz", edge_columns="use")
    assert (again.content_hash, again.edge_sizes) == (data.content_hash, data.edge_sizes)
    mixed = np.concatenate([CODES, WEIGHT[:, None]], 1)
    np.savez(path, x=X, edge_index=PAIRS, edge_attr=mixed, edge_categories=np.array([3, 2]))
    data = from_npz(path, edge_columns="use")
    assert data.edge_sizes == EdgeSizes((3, 2), 1)
    to_npz(data, tmp_path / "again.npz")
    again = from_npz(tmp_path / "again.npz", edge_columns="use")
    assert (again.content_hash, again.edge_sizes) == (data.content_hash, data.edge_sizes)


def test_values_of_an_adjacency_matrix_are_weights(tmp_path):
    matrix = csr_matrix((WEIGHT, PAIRS), shape=(4, 4))
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "g.npz", x=X, **{f"adj_{k}": np.asarray(v) for k, v in parts.items()})
    data = from_npz(tmp_path / "g.npz", edge_columns="use")
    assert data.graph.edge_weight.tolist() == WEIGHTS
    assert data.edge_sizes == EdgeSizes()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"edge_weight": WEIGHT[:3]}, ShapeError, r"\(4, columns\).*got \(3,\)"),
        ({"edge_weight": CODES}, ShapeError, "one weight per edge.*got 2"),
        ({"edge_weight": -WEIGHT}, DataError, "at least 0.*got -1 at edge 0"),
        ({"edge_weight": WEIGHT * np.nan}, DataError, "finite.*edge 0, and 4"),
        ({"edge_attr": WEIGHT * np.inf}, DataError, "finite"),
        ({"edge_attr": CODES - 1}, DataError, r"categories 0, 1.*got \[-1, 0\] at edge 0"),
        ({"edge_attr": CODES[None]}, ShapeError, r"got \(1, 4, 2\)"),
        ({"edge_attr": WEIGHT + 1j}, DtypeError, "real numbers"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, given, error, message):
    np.savez(tmp_path / "g.npz", x=X, edge_index=PAIRS, **given)
    with pytest.raises(error, match=message):
        from_npz(tmp_path / "g.npz", edge_columns="use")
    tensors = {name: torch.from_numpy(value) for name, value in given.items()}
    data = Data(x=torch.from_numpy(X), edge_index=torch.from_numpy(PAIRS), **tensors)
    with pytest.raises(error, match=message):
        from_pyg(data, edge_columns="use")


def pyg(**more) -> Data:
    return Data(x=torch.from_numpy(X), edge_index=torch.from_numpy(PAIRS), **more)


def test_pyg_gives_what_npz_gives(tmp_path):
    np.savez(tmp_path / "g.npz", x=X, edge_index=PAIRS, edge_weight=WEIGHT, edge_attr=CODES)
    weight, codes = torch.from_numpy(WEIGHT), torch.from_numpy(CODES)
    data = from_pyg(pyg(edge_weight=weight[:, None], edge_attr=codes), edge_columns="use")
    assert data.content_hash == from_npz(tmp_path / "g.npz", edge_columns="use").content_hash
    numbers = from_pyg(pyg(edge_attr=weight), edge_columns="use")
    assert numbers.edge_sizes == EdgeSizes((), 1)
    assert from_pyg(pyg(), edge_columns="use").edge_sizes is None
    truth = from_pyg(pyg(edge_attr=weight > 2), edge_columns="use")
    assert truth.edge_sizes == EdgeSizes((2,))


def test_edges_that_keep_their_direction_keep_what_they_carry(folder):
    weight = torch.from_numpy(WEIGHT)
    data = from_pyg(pyg(edge_weight=weight), edge_columns="use", directed=True)
    assert data.graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 2, 1, 2]]
    assert data.graph.edge_weight.tolist() == [1, 3, 2, 4]
    graphs = [pyg(edge_weight=weight, y=torch.tensor(i % 2)) for i in range(4)]
    several = from_pyg_list(graphs, edge_columns="use", directed=True)
    assert several.graphs[3].edge_weight.tolist() == [1, 3, 2, 4]
    # In a table a, b and b, a are then two edges.
    (folder / "edges.csv").write_text(EDGES + "b,a,7,double,1.5,0\n")
    table, _ = read(folder, **COLUMNS, directed=True)
    assert table.graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 1, 2]]
    assert table.graph.edge_weight.tolist() == [0.5, 7, 2, 0]


def test_a_list_of_graphs_has_common_sizes():
    codes = torch.from_numpy(CODES)
    graphs = [pyg(edge_attr=codes, y=torch.tensor(i % 2)) for i in range(4)]
    graphs[1].edge_attr = codes + 3
    data = from_pyg_list(graphs, edge_columns="use")
    assert data.edge_sizes == EdgeSizes((6, 5))
    assert data.graphs[1].edge_attr.shape == (6, 2)
    del graphs[2].edge_attr
    with pytest.raises(DataError, match=r"same kinds.*\(2, 0, False\) in graph 0, None in graph 2"):
        from_pyg_list(graphs, edge_columns="use")


def test_bonds_and_labels_are_used_on_request():
    graphs = [pyg(edge_attr=torch.from_numpy(CODES), y=torch.tensor([0]))]
    data = GraphSet("Mutagenicity", graphs, ("a",))
    assert with_edges(data, DataConfig(dataset="Mutagenicity")) is data
    assert "not used" in notes_of(data)[-1]
    used = with_edges(data, DataConfig(dataset="Mutagenicity", edge_columns="use"))
    assert used.edge_sizes == EdgeSizes((3, 2))
    assert notes_of(used) == ()
    bonds = with_edges(data, DataConfig(dataset="BBBP", edge_columns="use"))
    assert bonds.edge_sizes == EdgeSizes((3, 2))  # by name, a TU set
    own = with_edges(data, DataConfig(molecules="m.csv", edge_columns="use"))
    assert own.edge_sizes == EdgeSizes((5, 6, 2, 2))
    assert own.graphs[0].edge_attr.shape == (4, 3)
    assert data.graphs[0].edge_attr.shape == (4, 2)
    for none in (GraphSet("g", [pyg()], ("a",)), NodeGraph("n", pyg(), ("a",))):
        with pytest.raises(DataError, match="Expected edge attributes in"):
            with_edges(none, DataConfig(dataset="CiteSeer", edge_columns="use"))


def test_rings():
    nx = pytest.importorskip("networkx")
    for seed in range(30):
        graph = nx.gnm_random_graph(25, 8 + seed, seed=seed)
        pairs = torch.tensor(list(graph.edges)).t()
        edge_index = torch.cat([pairs, pairs.flip(0)], 1)
        bridges = {frozenset(bridge) for bridge in nx.bridges(graph)}
        wanted = [frozenset(edge) not in bridges for edge in edge_index.t().tolist()]
        assert in_ring(edge_index, 25).tolist() == wanted
    assert in_ring(torch.empty(2, 0, dtype=torch.long), 3).tolist() == []


def test_rings_of_molecules(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "m.csv").write_text("smiles\nC1CC1C\nCC\n")
    config = DataConfig(molecules=tmp_path / "m.csv", edge_columns="use")
    plain = read_molecules(tmp_path / "m.csv")
    used = with_edges(plain, config)
    assert used.content_hash == plain.content_hash
    ring = {
        tuple(edge): code
        for edge, code in zip(
            used.graphs[0].edge_index.t().tolist(),
            used.graphs[0].edge_attr[:, 3].tolist(),
            strict=True,
        )
    }
    assert (ring[0, 1], ring[0, 2], ring[2, 3], ring[3, 2]) == (1, 1, 0, 0)
    assert used.graphs[1].edge_attr.tolist() == [[0, 0, 0, 0]] * 2

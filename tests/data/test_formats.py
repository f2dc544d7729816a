"""Arrays, NetworkX and PyG: one form for all, and bad input refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch_geometric.data import Data, HeteroData

from geof.data.formats import from_networkx, from_npz, from_pyg, from_pyg_list, to_npz
from geof.errors import ConfigError, DataError, DtypeError, ShapeError

X = np.array([[1, 0], [0, 0.5], [0, 2], [0, 0]])
EDGES = np.array([[0, 1, 2, 2], [1, 0, 2, 1]])
Y = np.array([0, 1, 1, 0])
BOTH = [[0, 1, 1, 2], [1, 0, 2, 1]]


def save(path, **arrays):
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def sparse(prefix, matrix):
    matrix = csr_matrix(matrix)
    parts = (matrix.data, matrix.indices, matrix.indptr, matrix.shape)
    names = [f"{prefix}_{part}" for part in ("data", "indices", "indptr", "shape")]
    return dict(zip(names, parts, strict=True))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "graph.npz"


@pytest.mark.parametrize("edges", [{"edge_index": EDGES}, "adj"])
@pytest.mark.parametrize("features", [{"x": X}, "attr"])
@pytest.mark.parametrize("key", ["y", "labels"])
def test_npz_in_every_layout_gives_the_same_graph(path, edges, features, key):
    adjacency = csr_matrix((np.ones(4), (EDGES[0], EDGES[1])), shape=(4, 4))
    edges = sparse("adj", adjacency) if edges == "adj" else edges
    features = sparse("attr", X) if features == "attr" else features
    graph = from_npz(save(path, **edges, **features, **{key: Y}))
    assert graph.name == "graph"
    assert torch.equal(graph.graph.x.to_dense(), torch.from_numpy(X).float())
    assert (graph.graph.x.layout == torch.sparse_csr) == ("x" not in features)
    assert graph.graph.edge_index.tolist() == BOTH
    assert graph.graph.y.tolist() == [0, 1, 1, 0]
    assert graph.class_names == ("0", "1")
    assert graph.notes == (
        "1 self-loops removed.",
        "1 edges given in one direction taken as undirected. Keep the direction with directed=True "
        "(--directed).",
    )


def test_npz_labels_are_text_numbers_or_named(path):
    text = np.array(["b", "", "b", "Ä"])
    graph = from_npz(save(path, x=X, edge_index=EDGES, y=text), allow_singletons=True)
    assert (graph.class_names, graph.graph.y.tolist()) == (("b", "Ä"), [0, -1, 0, 1])
    gaps = from_npz(save(path, x=X, edge_index=EDGES, y=np.array([7, 3, 7, 3])))
    assert (gaps.class_names, gaps.graph.y.tolist()) == (("3", "7"), [1, 0, 1, 0])
    names = np.array(["z", "a"])
    named = from_npz(save(path, x=X, edge_index=EDGES, y=Y, class_names=names))
    assert (named.class_names, named.graph.y.tolist()) == (("z", "a"), [0, 1, 1, 0])
    later = from_npz(path, class_names=("a", "x", "z"))
    assert (later.class_names, later.graph.y.tolist()) == (("a", "x", "z"), [2, 0, 0, 2])
    unlabelled = from_npz(save(path, x=X, edge_index=EDGES))
    assert (unlabelled.class_names, unlabelled.graph.y.tolist()) == ((), [-1] * 4)


def same(first, second):
    assert torch.equal(first.graph.x.to_dense(), second.graph.x.to_dense())
    assert first.graph.x.layout == second.graph.x.layout
    assert torch.equal(first.graph.edge_index, second.graph.edge_index)
    assert torch.equal(first.graph.y, second.graph.y)
    assert first.class_names == second.class_names
    assert first.node_ids == second.node_ids
    assert first.content_hash == second.content_hash


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_npz_round_trip(path, layout):
    features = {"x": X} if layout == "dense" else sparse("attr", X)
    ids = np.array(["a", "b,c", "日本", "d\n"])
    names = np.array(["z", "a", "unused"])
    first = from_npz(save(path, **features, edge_index=EDGES, y=Y, node_ids=ids, class_names=names))
    to_npz(first, path)
    same(from_npz(path), first)


def test_names_of_features_are_kept_and_change_no_number(path):
    base = {"x": X, "edge_index": EDGES, "y": Y}
    plain = from_npz(save(path, **base))
    assert plain.feature_names is None
    named = from_npz(save(path, **base, feature_names=np.array(["height", "weight <kg>"])))
    assert named.feature_names == ("height", "weight <kg>")
    assert named.content_hash == plain.content_hash
    assert named.notes == plain.notes
    to_npz(named, path)
    assert from_npz(path).feature_names == named.feature_names
    with pytest.raises(ShapeError, match="Expected 2 entries under 'feature_names'"):
        from_npz(save(path, **base, feature_names=np.array(["height"])))


def test_npz_round_trip_of_one_node_without_edges_and_labels(path):
    first = from_pyg(Data(x=torch.ones(1, 1), edge_index=torch.empty(2, 0).long()))
    to_npz(first, path)
    same(from_npz(path), first)
    to_npz(replace(first, node_ids=("ä",)), path)
    assert from_npz(path).node_ids == ("ä",)
    assert [p.name for p in path.parent.iterdir()] == ["graph.npz"]
    with pytest.raises(DataError, match="null character"):
        to_npz(replace(first, node_ids=("a\0",)), path)


def test_the_hash_follows_features_edges_labels_and_names(path):
    base = {"x": X, "edge_index": EDGES, "y": Y}
    changes = [
        {},
        {"x": X + np.eye(4, 2)},
        {"edge_index": EDGES[:, :2]},
        {"y": 1 - Y},
        {"class_names": np.array(["a", "b"])},
        {"x": None, **sparse("attr", X)},
    ]
    hashes = [from_npz(save(path, **base | change)).content_hash for change in changes]
    assert len(set(hashes)) == len(changes)
    flipped = from_npz(save(path, **base | {"edge_index": EDGES[::-1, ::-1]}))
    assert flipped.content_hash == hashes[0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": None}, DataError, r"'x' or all of 'attr_data'.*graph.npz' \(lacks 'x', 'attr_data'"),
        ({"edge_index": None}, DataError, "'edge_index' or all of 'adj_data'.*has 'x', 'y'"),
        ({"x": X * np.nan}, DataError, r"graph.npz' \(got nan at node 0, column 0\)"),
        ({"x": X * 1e300}, DataError, "got inf at node 0, column 0"),
        ({"x": X.astype(str)}, DtypeError, "Expected numbers as features"),
        ({"x": X[:, 0]}, ShapeError, "features of shape"),
        ({"x": X[:0]}, ShapeError, "features of shape"),
        ({"edge_index": EDGES + 2}, DataError, r"nodes 0 to 3 \(got \(4, 4\) at position 2\)"),
        ({"edge_index": EDGES - 1}, DataError, r"got \(-1, 0\) at position 0"),
        ({"edge_index": EDGES.T}, ShapeError, r"shape \(2, E\)"),
        ({"edge_index": np.array(1)}, ShapeError, r"shape \(2, E\)"),
        ({"edge_index": EDGES / 2}, DtypeError, "whole numbers in 'edge_index'"),
        ({"y": Y[:2]}, ShapeError, "Expected 4 labels"),
        ({"y": Y - 2.0}, DataError, "labels, -1 for none .got -2.0"),
        ({"y": Y - 3}, DataError, "got -3"),
        ({"y": 2 * Y - 1}, DataError, "only -1 and 1"),
        ({"y": np.array([0, 1, 1, 1])}, DataError, "got one in '0'.*allow_singletons"),
        ({"y": 2 * Y, "class_names": np.array(["a", "b"])}, DataError, "index the 2 'class_names'"),
        ({"node_ids": np.array(list("abca"))}, DataError, "got 'a' 2 times"),
        ({"node_ids": np.array(list("abc"))}, ShapeError, "Expected 4 node identifiers"),
        ({"node_ids": np.array(7)}, ShapeError, r"a list under 'node_ids' .got shape \(\)"),
        ({"node_names": np.eye(2)}, ShapeError, "a list under 'node_names'"),
        ({"class_names": np.array("a")}, ShapeError, "a list under 'class_names'"),
        ({"target_names": np.array("a")}, ShapeError, "a list under 'target_names'"),
        ({"edge_weight": np.ones(4)}, DataError, r"graph.npz' \(got 'edge_weight'\).*'ignore'"),
        ({"x": np.array([{}, {}])}, DataError, "got objects under 'x'.*dtype=str"),
        ({"x": None, **sparse("attr", X), "attr_indices": np.array([9, 9, 9])}, DataError, "CSR"),
        (
            {"x": None, **sparse("attr", X), "attr_data": np.array(["a"])},
            DtypeError,
            "real numbers",
        ),
    ],
)
def test_npz_that_cannot_be_used(path, change, error, message):
    save(path, **{"x": X, "edge_index": EDGES, "y": Y, **change})
    with pytest.raises(error, match=message):
        from_npz(path)


def test_npz_weights_and_other_keys_are_never_passed_over_in_silence(path):
    weights = csr_matrix((np.arange(1, 5), (EDGES[0], EDGES[1])), shape=(4, 4))
    save(path, x=X, **sparse("adj", weights), comment=np.array("hello"))
    with pytest.raises(DataError, match="got 'adj_data'"):
        from_npz(path)
    notes = from_npz(path, edge_columns="ignore").notes
    assert notes[:2] == (
        "Edge columns ignored on request: 'adj_data'.",
        "Keys not used: 'comment'.",
    )
    with pytest.raises(ConfigError, match="Unknown edge_columns='drop'"):
        from_npz(path, edge_columns="drop")


def test_npz_files_that_are_broken(path):
    with pytest.raises(DataError, match="No such file"):
        from_npz(path)
    save(path, x=np.random.default_rng(0).normal(size=(100, 10)), edge_index=EDGES)
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"whole .npz file of plain arrays at '.*graph.npz'"):
            from_npz(path)
    path.write_bytes(whole[:2000] + b"????" + whole[2004:])
    with pytest.raises(DataError, match="CRC"):
        from_npz(path)
    with path.open("wb") as stream:
        np.save(stream, X)
    with pytest.raises(DataError, match=r"whole \.npz file"):
        from_npz(path)
    with pytest.raises(DataError, match="directory"):
        from_npz(path.parent)


def test_networkx_round_trip_keeps_names():
    nx = pytest.importorskip("networkx")
    graph = nx.Graph()
    graph.add_node("é", size=1, flag=True, vector=[1.0, 2.0], kind="a")
    graph.add_node(7, size=np.float32(2.5), flag=False, vector=np.zeros(2), kind="b")
    graph.add_node(("x", 1), size=0, flag=False, vector=torch.ones(2), kind=None)
    graph.add_edges_from([("é", 7), (7, ("x", 1)), (7, 7)])
    read = from_networkx(
        graph, features=["size", "vector"], label="kind", allow_singletons=True, name="mine"
    )
    assert read.name == "mine"
    assert read.node_ids == ("é", "7", "('x', 1)")
    assert read.feature_names == ("size", "vector[0]", "vector[1]")
    assert read.graph.x.tolist() == [[1, 1, 2], [2.5, 0, 0], [0, 1, 1]]
    assert read.graph.edge_index.tolist() == BOTH
    assert read.graph.y.tolist() == [0, 1, -1]
    assert read.class_names == ("a", "b")
    assert read.notes == (
        "Node attributes not used: 'flag'.",
        "1 of 3 without a label.",
        "1 self-loops removed.",
    )
    later = from_networkx(graph, features=["size"], label="kind", class_names=("b", "c", "a"))
    assert later.graph.y.tolist() == [2, 0, -1]


def test_networkx_small_and_directed():
    nx = pytest.importorskip("networkx")
    single = nx.Graph()
    single.add_node("only")
    read = from_networkx(single, features=[])
    assert read.graph.x.tolist() == [[1]]
    assert read.graph.edge_index.shape == (2, 0)
    assert read.notes == ("No features given: every node has the constant 1.",)
    arrows = nx.MultiDiGraph([("a", "b"), ("a", "b"), ("b", "c"), ("c", "b")])
    notes = from_networkx(arrows, features=[]).notes
    assert any(n.startswith("1 edges given in one direction taken as undirected.") for n in notes)
    assert "1 repeated edges merged." in notes
    with pytest.raises(ShapeError, match="features of shape"):
        from_networkx(nx.Graph(), features=[])


def test_networkx_that_cannot_be_used():
    nx = pytest.importorskip("networkx")
    graph = nx.Graph([("a", "b", {"weight": 2.0})])
    graph.add_node("a", size=1, vector=[1, 2])
    graph.add_node("b", vector=[1])
    with pytest.raises(DataError, match=r"NetworkX graph .got 'weight'"):
        from_networkx(graph, features=[])
    options = {"edge_columns": "ignore"}
    assert "'weight'" in from_networkx(graph, features=[], **options).notes[0]
    with pytest.raises(DataError, match=r"attribute 'sise'.*mean 'size'"):
        from_networkx(graph, features=["sise"], **options)
    with pytest.raises(DataError, match=r"'size' of node 'b' .got None.*read_node_table"):
        from_networkx(graph, features=["size"], **options)
    with pytest.raises(ShapeError, match=r"2 numbers in attribute 'vector' of node 'b' .got 1"):
        from_networkx(graph, features=["vector"], **options)
    graph.nodes["b"]["size"] = "1"
    with pytest.raises(DataError, match=r"of node 'b' .got '1'"):
        from_networkx(graph, features=["size"], **options)
    with pytest.raises(DataError, match="got '1' 2 times"):
        from_networkx(nx.Graph([(1, "1")]), features=[])


def test_pyg_graph():
    data = Data(
        x=torch.from_numpy(X),
        edge_index=torch.from_numpy(EDGES),
        y=torch.tensor([[1], [0], [0], [1]]),
    )
    data.train_mask = torch.ones(4).bool()
    graph = from_pyg(data, node_ids=list("abcd"))
    assert graph.graph.x.dtype == torch.float32
    assert graph.graph.edge_index.tolist() == BOTH
    assert graph.graph.y.tolist() == [1, 0, 0, 1]
    assert graph.node_ids == ("a", "b", "c", "d")
    assert graph.notes[0] == "Attributes not used: 'train_mask'."
    assert torch.equal(data.edge_index, torch.from_numpy(EDGES))  # the caller's graph is untouched
    assert from_pyg(graph.graph).content_hash == graph.content_hash
    coo = Data(x=data.x.to_sparse(), edge_index=data.edge_index)
    assert from_pyg(coo).graph.x.layout == torch.sparse_csr


def test_pyg_that_cannot_be_used():
    edge_index = torch.from_numpy(EDGES)
    for name in ("edge_attr", "edge_weight"):
        data = Data(x=torch.ones(4, 1), edge_index=edge_index, **{name: torch.ones(4)})
        with pytest.raises(DataError, match=f"got '{name}'.*edge_columns='ignore'"):
            from_pyg(data)
        assert from_pyg(data, edge_columns="ignore").graph.num_edge_features == 0
    with pytest.raises(DtypeError, match="got HeteroData"):
        from_pyg(HeteroData())
    with pytest.raises(DataError, match="Expected 'edge_index' in the graph"):
        from_pyg(Data(x=torch.ones(1, 1)))
    with pytest.raises(DataError, match="got nan at node 0"):
        from_pyg(
            Data(
                x=torch.ones(4, 1).sparse_mask(torch.eye(4, 1).to_sparse()) * torch.nan,
                edge_index=edge_index,
            )
        )
    assert from_pyg(Data(edge_index=edge_index, num_nodes=4)).graph.x.tolist() == [[1]] * 4


def molecule(label=None, width=1, **extra):
    y = {} if label is None else {"y": torch.tensor([label])}
    return Data(x=torch.ones(3, width), edge_index=torch.tensor([[0, 1], [1, 0]]), **y, **extra)


def test_pyg_list():
    graphs = [molecule(1), molecule(0.0), molecule(), molecule(1), molecule(0)]
    graphs[3].y = 1  # PyG allows a plain number, too
    graphs[0].edge_index = torch.tensor([[1, 0, 2], [0, 1, 2]])
    read = from_pyg_list(graphs, graph_ids=list("abcde"))
    assert [graph.y.tolist() for graph in read.graphs] == [[1], [0], [-1], [1], [0]]
    assert all(graph.y.dtype == torch.long for graph in read.graphs)
    assert read.graphs[0].edge_index.tolist() == [[0, 1], [1, 0]]
    assert read.class_names == ("0", "1")
    assert read.graph_ids == ("a", "b", "c", "d", "e")
    assert read.notes == ("1 self-loops removed.", "1 of 5 without a label.")
    assert from_pyg_list(read.graphs).content_hash == read.content_hash
    assert from_pyg_list(reversed(read.graphs)).content_hash != read.content_hash
    new = from_pyg_list([molecule(1)], class_names=("0", "1", "2"))
    assert new.graphs[0].y.tolist() == [1]


@pytest.mark.parametrize(
    ("graphs", "error", "message"),
    [
        ([], DataError, "at least one graph"),
        ([molecule(0), molecule(0, width=2)], ShapeError, "Expected 1 features .*got 2 in graph 1"),
        ([molecule(0), molecule([0, 1])], ShapeError, "'y' of graph 1 .got 2"),
        ([molecule(0), molecule(1), molecule(1)], DataError, "got one in '0'"),
        ([molecule(0, edge_attr=torch.ones(2))], DataError, "graph 0 .got 'edge_attr'"),
        (
            [molecule(0), Data(x=torch.ones(0, 1), edge_index=torch.empty(2, 0))],
            ShapeError,
            "graph 1",
        ),
    ],
)
def test_pyg_lists_that_cannot_be_used(graphs, error, message):
    with pytest.raises(error, match=message):
        from_pyg_list(graphs)


@pytest.mark.skipif("GEOF_DATA" not in os.environ, reason="GEOF_DATA does not name raw files")
def test_a_public_npz_file_is_read_as_it_is(tmp_path):
    raw = Path(os.environ["GEOF_DATA"]) / "Photo" / "raw" / "amazon_electronics_photo.npz"
    if not raw.exists():
        pytest.skip(f"{raw.name} is not below GEOF_DATA")
    graph = from_npz(raw)
    assert graph.graph.x.shape == (7650, 745)
    assert graph.graph.edge_index.shape == (2, 238162)
    assert graph.num_classes == 8
    to_npz(graph, tmp_path / "photo.npz")
    same(from_npz(tmp_path / "photo.npz"), graph)

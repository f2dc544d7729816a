"""Graphs that took no part in choosing a default: generated, or shipped inside installed packages.

Nothing here may be used to choose one: that is what makes the study of them worth reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from geof.data.records import GraphSet, NodeGraph, graph_set, node_graph, undirected_edges
from geof.data.sources import standardised
from geof.draws import Integers
from geof.methods.interface import TaskKind

Numbers: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Unseen:
    """A graph or a set of graphs.

    Attributes:
        name: What rows and tables call it.
        about: What it is, in a few words.
        make: Draws or reads it, the same every time.
        task: Node or graph.
        metric: What judges it, if not accuracy.
    """

    name: str
    about: str
    make: Callable[[], NodeGraph | GraphSet]
    task: TaskKind = "node"
    metric: str | None = None


# Tables that ship inside packages, as graphs of nearest rows ------------------------------------


def wine() -> NodeGraph:
    """Return scikit-learn's wines: 13 measurements, three growers."""
    from sklearn.datasets import load_wine

    return nearest_rows("wine", *load_wine(return_X_y=True))


def breast_cancer() -> NodeGraph:
    """Return scikit-learn's tumours: 30 measurements, benign or not."""
    from sklearn.datasets import load_breast_cancer

    return nearest_rows("breast-cancer", *load_breast_cancer(return_X_y=True))


def digits() -> NodeGraph:
    """Return 1,000 of scikit-learn's digits of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(y))[:1000]
    return nearest_rows("digits-1000", x[chosen], y[chosen])


def voters() -> NodeGraph:
    """Return the voters of statsmodels' American election study of 1996: Clinton or Dole."""
    from statsmodels.datasets import anes96

    table = anes96.load_pandas().data
    return nearest_rows("anes96", table.drop(columns="vote").to_numpy(), table["vote"].to_numpy())


def nearest_rows(name: str, x: Numbers, y: Numbers, neighbours: int = 6) -> NodeGraph:
    """Return a graph that joins every row with its nearest, columns standardised."""
    from sklearn.neighbors import kneighbors_graph
    from sklearn.preprocessing import StandardScaler

    joined = kneighbors_graph(StandardScaler().fit_transform(x), neighbours).tocoo()
    return _nodes(name, x, np.stack([joined.row, joined.col]), y)


# Generated graphs -------------------------------------------------------------------------------


def blocks(homophily: float, seed: int = 11) -> NodeGraph:
    """Return five classes of 240 nodes with Gaussian features; edges prefer particular classes.

    Of the edges that leave a class three in four lead to the next one.
    """
    rng = np.random.default_rng(seed)
    classes, nodes, edges = 5, 1200, 4800
    y = np.arange(nodes) % classes
    x = 0.35 * rng.normal(size=(classes, 16))[y] + rng.normal(size=(nodes, 16))
    source = rng.integers(nodes, size=edges)
    away = np.where(rng.random(edges) < 0.75, 1, rng.integers(2, classes, size=edges))
    step = np.where(rng.random(edges) < homophily, 0, away)
    target = classes * rng.integers(nodes // classes, size=edges) + (y[source] + step) % classes
    return _nodes(f"blocks-{homophily}", x, np.stack([source, target]), y)


def mines(side: int = 40, seed: int = 12) -> NodeGraph:
    """Return a board with a mine on every fifth field; half the counts of mines are hidden."""
    import networkx as nx

    rng = np.random.default_rng(seed)
    board = nx.convert_node_labels_to_integers(nx.strong_product(*[nx.path_graph(side)] * 2))
    mine = (rng.random(side * side) < 0.2).astype(np.int64)
    counts = nx.to_scipy_sparse_array(board, format="csr") @ mine
    hidden = rng.random(side * side) < 0.5
    x = np.column_stack([np.eye(9)[counts] * ~hidden[:, None], hidden])
    return _nodes("mines", x, _ends(board), mine)


def degrees(seed: int = 13) -> NodeGraph:
    """Return a graph with constant features whose label is a third of the range of degrees."""
    rng = np.random.default_rng(seed)
    nodes, edges = 1200, 4200
    wanted = rng.lognormal(0.0, 0.6, nodes)
    ends = rng.choice(nodes, size=(2, edges), p=wanted / wanted.sum())
    both, _ = undirected_edges(torch.from_numpy(ends), nodes)
    degree = np.bincount(both[0].numpy(), minlength=nodes)
    y = np.searchsorted(np.quantile(degree, [1 / 3, 2 / 3]), degree)
    return _nodes("degrees", np.ones((nodes, 1)), both.numpy(), y, standardise=False)


# Sets of graphs ---------------------------------------------------------------------------------


def families(count: int = 300, seed: int = 14) -> GraphSet:
    """Return graphs drawn after Erdos and Renyi, Watts and Strogatz, Barabasi and Albert.

    All have 20 to 40 nodes and, for n nodes, 2n - 4 edges, and constant features.
    """
    import networkx as nx

    rng = np.random.default_rng(seed)

    def one(kind: int) -> Data:
        n, draw = int(rng.integers(20, 41)), int(rng.integers(2**31))
        if kind == 0:
            graph = nx.gnm_random_graph(n, 2 * n - 4, seed=draw)
        elif kind == 1:
            graph = nx.watts_strogatz_graph(n, 4, 0.3, seed=draw)
            edges = list(graph.edges)
            graph.remove_edges_from(edges[i] for i in rng.permutation(len(edges))[:4])
        else:
            graph = nx.barabasi_albert_graph(n, 2, seed=draw)
        return _graph(np.ones((n, 1)), _ends(graph))

    kinds = np.arange(count) % 3
    return _set("families", [one(int(kind)) for kind in kinds], kinds)


def motifs(count: int = 300, seed: int = 15) -> GraphSet:
    """Return trees with some more edges and one house or one cycle of five hung on them."""
    import networkx as nx

    rng = np.random.default_rng(seed)

    def one(house: int) -> Data:
        n = int(rng.integers(15, 31))
        graph = nx.barabasi_albert_graph(n, 1, seed=int(rng.integers(2**31)))
        graph.add_edges_from(rng.integers(n, size=(int(rng.integers(5)), 2)).tolist())
        graph.add_edges_from((n + i, n + (i + 1) % 5) for i in range(5))
        if house:
            graph.add_edge(n, n + 2)
        graph.add_edge(int(rng.integers(n)), n + int(rng.integers(5)))
        return _graph(np.ones((n + 5, 1)), _ends(graph))

    kinds = np.arange(count) % 2
    return _set("motifs", [one(int(kind)) for kind in kinds], kinds)


def meetings(count: int = 300, seed: int = 16) -> GraphSet:
    """Return random graphs of four kinds of nodes; the label is how often two kinds meet."""
    rng = np.random.default_rng(seed)
    graphs, labels = [], []
    for _ in range(count):
        n = int(rng.integers(20, 41))
        kind, ends = rng.integers(4, size=n), rng.integers(n, size=(2, 3 * n // 2))
        graph = _graph(np.eye(4)[kind], ends)
        first, second = kind[graph.edge_index.numpy()]
        labels.append(int(((first == 0) & (second == 1)).sum()))
        graphs.append(graph)
    thirds = np.quantile(labels, [1 / 3, 2 / 3])
    return _set("meetings", graphs, np.searchsorted(thirds, labels))


def molecules(count: int = 500, seed: int = 17) -> GraphSet:
    """Return 500 of the molecules of CHEMBL2321810 that RDKit ships; active above the median."""
    from rdkit import RDConfig

    from geof.data.molecules import molecule_graph

    folder = Path(RDConfig.RDContribDir) / "FreeWilson" / "data"
    named = [line.split() for line in (folder / "CHEMBL2321810.smi").read_text().splitlines()]
    lines = (folder / "CHEMBL2321810_act.csv").read_text().splitlines()[1:]
    active = {name: float(value) for name, value in (line.split(",") for line in lines)}
    known = [(smiles, active[name]) for smiles, name in named if name in active]
    chosen = [known[i] for i in np.random.default_rng(seed).permutation(len(known))[:count]]
    read = [(molecule_graph(smiles), value) for smiles, value in chosen]
    graphs = [graph for graph, _ in read if graph is not None]
    values = np.array([value for graph, value in read if graph is not None])
    return _set("chembl-nav", graphs, values > np.median(values))


UNSEEN = (
    Unseen("wine", "178 rows of a table, 6 nearest neighbours", wine),
    Unseen("breast-cancer", "569 rows, likewise", breast_cancer),
    Unseen("digits-1000", "1,000 rows, likewise", digits),
    Unseen("anes96", "944 rows, likewise", voters),
    Unseen("blocks-0.1", "1,200 nodes, homophily 0.1", partial(blocks, 0.1)),
    Unseen("blocks-0.5", "1,200 nodes, homophily 0.5", partial(blocks, 0.5)),
    Unseen("blocks-0.9", "1,200 nodes, homophily 0.9", partial(blocks, 0.9)),
    Unseen("mines", "board of 40 x 40, half the counts hidden", mines, metric="roc_auc"),
    Unseen("degrees", "1,200 nodes, label: degree, constant features", degrees),
    Unseen("families", "300 graphs, ER, WS or BA of equal density", families, "graph"),
    Unseen("motifs", "300 graphs, a house or a cycle of five", motifs, "graph"),
    Unseen("meetings", "300 graphs, how often two kinds meet", meetings, "graph"),
    Unseen("chembl-nav", "500 molecules, active or not", molecules, "graph"),
)
"""Nine graphs and four sets of graphs."""


def _nodes(
    name: str, x: Numbers, ends: Integers, y: Numbers, *, standardise: bool = True
) -> NodeGraph:
    """Return a record, columns standardised as those of one's own data are."""
    labels, names = _classes(y)
    features = torch.from_numpy(np.asarray(x, dtype=np.float32))
    edges = torch.from_numpy(ends.astype(np.int64))
    made = node_graph(name, features, edges, labels, names, None, (), directed=False)
    if not standardise:  # a constant would become 0, from which no sum over neighbours learns
        return made
    record = standardised(made).data
    assert isinstance(record, NodeGraph)
    return record


def _set(name: str, graphs: list[Data], y: Numbers) -> GraphSet:
    labels, names = _classes(y)
    return graph_set(name, graphs, labels, names, None, ())


def _graph(x: Numbers, ends: Integers) -> Data:
    edges, _ = undirected_edges(torch.from_numpy(ends.astype(np.int64)), len(x), directed=False)
    return Data(x=torch.from_numpy(x.astype(np.float32)), edge_index=edges)


def _classes(y: Numbers) -> tuple[Tensor, tuple[str, ...]]:
    """Return indices of classes in sorted order, and their names."""
    values, index = np.unique(np.asarray(y).astype(np.int64), return_inverse=True)
    return torch.from_numpy(index.astype(np.int64)), tuple(map(str, values.tolist()))


def _ends(graph: Any) -> Integers:
    """Return the edges of a networkx graph whose nodes are 0, 1, ..."""
    ends: Integers = np.array(graph.edges, dtype=np.int64).reshape(-1, 2).T
    return ends

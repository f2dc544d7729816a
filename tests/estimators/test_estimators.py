"""Estimators keep scikit-learn's contract and read what people have graphs in."""

from __future__ import annotations

import pickle

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from torch_geometric.data import Data, HeteroData

from geof import (
    GeoFGraphClassifier,
    GeoFGraphRegressor,
    GeoFLinkPredictor,
    GeoFNodeClassifier,
    GeoFNodeRegressor,
)
from geof.data.formats import from_pyg
from geof.errors import ConfigError, DataError, DtypeError, GeofError, ShapeError
from geof.estimators import NotFittedError
from geof.estimators.inputs import Reading, read_graph

ALL = (
    GeoFGraphClassifier,
    GeoFGraphRegressor,
    GeoFLinkPredictor,
    GeoFNodeClassifier,
    GeoFNodeRegressor,
)
QUICK = {"epochs": 2, "settings": {"options.hidden_channels": 16, "options.blocks": 4}}
N = 40


def two_groups() -> Data:
    """Return a graph of two groups whose features tell them apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 2
    draw = torch.rand(N, N, generator=generator)
    linked = (draw < torch.where(y[:, None] == y, 0.3, 0.02)).triu(1)
    edges = linked.nonzero().t()
    x = torch.randn(N, 3, generator=generator) + 3 * y[:, None]
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=y)


GRAPH = two_groups()
NODES, Y = np.arange(N), GRAPH.y.numpy()


def rings_and_paths(count: int = 24) -> tuple[list[Data], np.ndarray]:
    """Return small graphs that are rings or paths."""
    graphs, y = [], []
    for i in range(count):
        size = 4 + i % 3
        made = nx.cycle_graph(size) if i % 2 else nx.path_graph(size)
        edges = torch.tensor(list(made.edges)).t()
        x = torch.ones(size, 2) * torch.tensor([1.0, 100.0 * size])
        graphs.append(Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1)))
        y.append(i % 2)
    return graphs, np.array(y)


GRAPHS, KINDS = rings_and_paths()


def reading() -> Reading:
    return Reading({"directed": False, "edge_columns": "refuse"})


class TestContract:
    """The checks of scikit-learn that ask nothing of matrices of features."""

    @pytest.mark.parametrize("kind", ALL)
    @pytest.mark.parametrize(
        "check",
        [
            "check_estimator_cloneable",
            "check_estimator_repr",
            "check_get_params_invariance",
            "check_mixin_order",
            "check_no_attributes_set_in_init",
            "check_parameters_default_constructible",
            "check_set_params",
        ],
    )
    def test_checks_of_scikit_learn(self, kind, check):
        function = getattr(estimator_checks, check, None)
        if function is None:
            pytest.skip(f"this scikit-learn has no {check}")
        function(kind.__name__, kind())

    @pytest.mark.parametrize("kind", ALL)
    def test_before_fit_there_is_nothing_to_predict(self, kind):
        with pytest.raises(NotFittedError, match="before 'fit'") as caught:
            kind().predict([0])
        assert isinstance(caught.value, SklearnNotFittedError | GeofError)

    def test_options_are_parameters_too(self):
        model = GeoFNodeClassifier().set_params(weight_decay=0.0, **{"options.steps": 3})
        assert model.settings == {"weight_decay": 0.0, "options.steps": 3}
        with pytest.raises(ConfigError, match="Did you mean 'epochs'"):
            model.set_params(epoch=3)
        with pytest.raises(ConfigError, match=r"options\.step"):
            clone(model).set_params(**{"options.step": 3}).fit(GRAPH)

    def test_clones_share_the_graph_and_nothing_that_was_learned(self):
        model = GeoFNodeClassifier(graph=GRAPH, **QUICK).fit(NODES, Y)
        copy = clone(model)
        assert copy.graph is GRAPH
        assert copy.settings == model.settings
        assert not hasattr(copy, "run_")

    def test_the_callers_random_numbers_stay(self):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        GeoFNodeClassifier(**QUICK).fit(GRAPH)
        assert torch.equal(torch.rand(3), expected)

    def test_same_seed_same_bits(self):
        one, other, third = (
            GeoFNodeClassifier(random_state=seed, **QUICK).fit(GRAPH).predict_proba()
            for seed in (1, 1, 2)
        )
        assert np.array_equal(one, other)
        assert not np.array_equal(one, third)


class TestNodes:
    def test_labels_of_some_nodes_are_enough(self):
        model = GeoFNodeClassifier(epochs=10).fit(
            NODES[:24], np.array(["a", "b"])[Y[:24]], graph=GRAPH
        )
        assert model.classes_.tolist() == ["a", "b"]
        assert model.predict(NODES[24:]).dtype.kind == "U"
        assert model.predict_proba(NODES[24:]).sum(1) == pytest.approx(1)
        assert model.score(NODES[24:], np.array(["a", "b"])[Y[24:]]) > 0.8
        assert model.predict().shape == (N,)

    def test_labels_outside_x_are_never_seen(self):
        other = GRAPH.clone()
        other.y[30:] = 1 - other.y[30:]
        one, two = (
            GeoFNodeClassifier(graph=graph, **QUICK).fit(NODES[:30], Y[:30]).predict_proba()
            for graph in (GRAPH, other)
        )
        assert np.array_equal(one, two)

    def test_it_can_be_searched_and_piped(self):
        search = GridSearchCV(
            GeoFNodeClassifier(graph=GRAPH, **QUICK), {"options.steps": [1, 2]}, cv=2
        )
        search.fit(NODES, Y)
        assert (
            search.best_estimator_.config_.options["steps"] == search.best_params_["options.steps"]
        )
        pipe = Pipeline([("same", FunctionTransformer()), ("geof", search.estimator)])
        pipe.set_params(geof__epochs=2).fit(NODES, Y)
        assert pipe.predict(NODES).shape == (N,)

    def test_it_can_be_pickled(self):
        model = GeoFNodeClassifier(graph=GRAPH, **QUICK).fit(NODES, Y)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict_proba(NODES), model.predict_proba(NODES))

    def test_masks_of_a_graph_are_heeded(self):
        graph = GRAPH.clone()
        graph.train_mask, graph.val_mask = torch.arange(N) < 20, torch.arange(N) >= 35
        model = GeoFNodeClassifier(**QUICK).fit(graph)
        assert model.result_.split == "train_mask and val_mask"

    def test_held_out_nodes_may_be_given(self):
        held = (NODES[30:], Y[30:])
        model = GeoFNodeClassifier(graph=GRAPH, **QUICK).fit(NODES[:30], Y[:30], validation=held)
        assert model.result_.split == "given"
        with pytest.raises(ConfigError, match=r"pair \(X, y\)"):
            model.fit(NODES[:30], Y[:30], validation=[1])

    def test_numbers_come_back_in_their_unit(self):
        y = 1000 + 50.0 * GRAPH.x[:, 0].numpy()
        model = GeoFNodeRegressor(graph=GRAPH, epochs=20, learning_rate=0.05).fit(NODES, y)
        assert model.predict(NODES).shape == (N,)
        assert model.score(NODES, y) > 0.3
        several = GeoFNodeRegressor(graph=GRAPH, **QUICK).fit(NODES, np.stack([y, -y], axis=1))
        assert several.predict(NODES[:5]).shape == (5, 2)

    def test_several_yes_or_no_labels(self):
        y = np.stack([Y, 1 - Y, np.ones(N)], axis=1)
        y[0, 0] = np.nan
        model = GeoFNodeClassifier(graph=GRAPH, **QUICK).fit(NODES, y)
        assert model.predict(NODES).shape == model.predict_proba(NODES).shape == (N, 3)
        assert set(np.unique(model.predict(NODES))) <= {0, 1}

    def test_a_graph_unseen_can_be_predicted(self):
        model = GeoFNodeClassifier(**QUICK).fit(GRAPH)
        half = GRAPH.subgraph(torch.arange(N) < 20)
        assert model.predict(half).shape == (20,)


class TestForms:
    """The same graph in every form gives the same answer."""

    def answer(self, graph, nodes=NODES, **more) -> np.ndarray:
        return GeoFNodeClassifier(graph=graph, **QUICK, **more).fit(nodes, Y).predict_proba(nodes)

    def test_arrays_tensors_and_sparse_matrices(self):
        expected = self.answer(GRAPH)
        x, edges = GRAPH.x.numpy(), GRAPH.edge_index.numpy()
        matrix = csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(N, N))
        for form in ((x, edges), (GRAPH.x, GRAPH.edge_index), (x, matrix), (x, matrix.toarray())):
            assert np.array_equal(self.answer(form), expected)
        assert (
            read_graph((csr_array(x > 0), edges), reading()).graph.graph.x.layout
            == torch.sparse_csr
        )
        plain = {"preset": "paper"}  # which does not standardise
        assert np.array_equal(self.answer(from_pyg(GRAPH), **plain), self.answer(GRAPH, **plain))

    def test_networkx_by_the_names_of_nodes(self):
        graph = nx.Graph()
        for node in NODES:
            graph.add_node(f"n{node}", x=GRAPH.x[node].tolist(), y="ab"[Y[node]])
        graph.add_edges_from((f"n{u}", f"n{v}") for u, v in GRAPH.edge_index.t().tolist())
        names = np.array([f"n{node}" for node in NODES])
        assert np.array_equal(self.answer(graph, names), self.answer(GRAPH))
        assert GeoFNodeClassifier(**QUICK).fit(graph).classes_.tolist() == ["a", "b"]

    def test_data_frames_with_words_and_a_label(self):
        nodes = pd.DataFrame(GRAPH.x.numpy(), columns=["a", "b", "c"])
        nodes.insert(0, "id", [f"n{node}" for node in NODES])
        nodes["town"], nodes["kind"] = np.array(["Ulm", "Bern"])[NODES % 2], Y
        edges = pd.DataFrame(GRAPH.edge_index.t().numpy()[:, :2], columns=["source", "target"])
        edges = "n" + edges.astype(str)
        model = GeoFNodeClassifier(label="kind", **QUICK).fit((nodes, edges))
        assert model.n_features_in_ == 5
        assert model.predict(["n3", "n7"]).shape == (2,)
        new = (nodes[:10].drop(columns="kind"), edges[:0])
        assert model.predict(new).shape == (10,)
        with pytest.raises(DataError, match="Did you mean 'kind'"):
            GeoFNodeClassifier(label="kid", **QUICK).fit((nodes, edges))

    def test_weights_are_refused_used_or_ignored(self):
        matrix = nx.to_scipy_sparse_array(nx.path_graph(N)) * 2.0
        with pytest.raises(DataError, match="edge_columns='use'"):
            self.answer((GRAPH.x.numpy(), matrix))
        for policy in ("use", "ignore"):
            self.answer((GRAPH.x.numpy(), matrix), edge_columns=policy)

    @pytest.mark.parametrize(
        ("graph", "nodes", "error", "words"),
        [
            (None, NODES, ConfigError, r"GeoFNodeClassifier\(graph="),
            (GRAPH, NODES + 1, DataError, "0 to 39"),
            (GRAPH, np.ones((N, 3)), ShapeError, "one index or identifier each"),
            (GRAPH, np.array(["a"] * N), DtypeError, "node indices"),
            (GRAPH, np.zeros(N, int), DataError, "once"),
            (GRAPH, NODES < 50, DtypeError, "flatnonzero"),
            ("graph.csv", NODES, DtypeError, "PyG Data"),
            (HeteroData(), NODES, DtypeError, "got HeteroData"),
            ((GRAPH.x.numpy(), GRAPH.edge_index.t().numpy()), NODES, ShapeError, "Transpose"),
        ],
    )
    def test_what_cannot_be_used_is_said(self, graph, nodes, error, words):
        with pytest.raises(error, match=words):
            GeoFNodeClassifier(graph=graph, **QUICK).fit(nodes, Y)

    @pytest.mark.parametrize(
        ("y", "error", "words"),
        [
            (Y[:5], ShapeError, "row for each of 40"),
            (np.zeros(N), DataError, "two classes"),
            (np.linspace(0, 1, N), DataError, "regressor"),
            (np.where(NODES < 3, np.nan, Y), DataError, "class for every row"),
            (None, DataError, "labels 'y'"),
        ],
    )
    def test_labels_that_cannot_be_used(self, y, error, words):
        with pytest.raises(error, match=words):
            GeoFNodeClassifier(graph=GRAPH, **QUICK).fit(NODES, y)


class TestGraphs:
    def test_cross_validation_cuts_the_list(self):
        scores = cross_val_score(GeoFGraphClassifier(**QUICK), GRAPHS, KINDS, cv=3)
        assert scores.shape == (3,)

    def test_it_learns(self):
        marks = zip(GRAPHS, KINDS, strict=True)
        marked = [Data(x=g.x + 300 * k, edge_index=g.edge_index) for g, k in marks]
        model = GeoFGraphClassifier(epochs=15, learning_rate=0.02).fit(marked, KINDS)
        assert model.score(marked, KINDS) > 0.8

    def test_forms_of_graphs(self):
        arrays = [(g.x.numpy(), g.edge_index.numpy()) for g in GRAPHS]
        graphs = []
        for data in GRAPHS:
            made = nx.Graph(data.edge_index.t().tolist())
            nx.set_node_attributes(made, {i: data.x[i].tolist() for i in made}, "x")
            graphs.append(nx.Graph(made))
        answers = [
            GeoFGraphClassifier(**QUICK).fit(form, KINDS).predict_proba(form)
            for form in (GRAPHS, arrays)
        ]
        assert np.array_equal(*answers)
        assert GeoFGraphClassifier(**QUICK).fit(graphs, KINDS).predict(graphs[:4]).shape == (4,)

    def test_smiles(self):
        pytest.importorskip("rdkit")
        smiles = ["CCO", "c1ccccc1", "CCN", "c1ccncc1", "CCC", "C1CCCCC1"] * 3
        model = GeoFGraphClassifier(**QUICK).fit(smiles, ["chain", "ring"] * 9)
        assert model.predict(["CCCl"]).shape == (1,)
        with pytest.raises(DataError, match="graph 1"):
            model.predict(["C", "no molecule"])

    def test_numbers_and_labels_of_the_graphs_themselves(self):
        labelled = [g.clone() for g in GRAPHS]
        for graph, kind in zip(labelled, KINDS, strict=True):
            graph.y = torch.tensor([float(kind) + 0.5, float(graph.num_nodes)])
        model = GeoFGraphRegressor(**QUICK).fit(labelled)
        assert model.predict(GRAPHS[:3]).shape == (3, 2)
        held = (GRAPHS[:4], np.ones((4, 2)))
        model.fit(labelled, np.ones((24, 2)) * KINDS[:, None], validation=held)
        assert model.result_.split == "given"

    def test_the_callers_graphs_stay_as_they_are(self):
        graphs = [g.clone() for g in GRAPHS]
        GeoFGraphClassifier(**QUICK).fit(graphs, KINDS)
        assert all(
            torch.equal(a.x, b.x) and "y" not in a for a, b in zip(graphs, GRAPHS, strict=True)
        )

    def test_what_cannot_be_used_is_said(self):
        with pytest.raises(DtypeError, match="into a list"):
            GeoFGraphClassifier(**QUICK).fit(GRAPHS[0], [1])
        with pytest.raises(DtypeError, match="graph 1"):
            GeoFGraphClassifier(**QUICK).fit([GRAPHS[0], 3], [0, 1])
        with pytest.raises(DataError, match="graph 0 has none"):
            GeoFGraphClassifier(**QUICK).fit(GRAPHS)


class TestLinks:
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        linked = GRAPH.edge_index[:, GRAPH.edge_index[0] < GRAPH.edge_index[1]].t().numpy()[::3]
        there = {tuple(edge) for edge in GRAPH.edge_index.t().tolist()}
        free = [(u, v) for u in range(N) for v in range(u) if (u, v) not in there][: len(linked)]
        return np.concatenate([linked, free]), np.repeat([1, 0], len(linked))

    def rest(self) -> Data:
        """Return the graph without the pairs."""
        taken = {frozenset(pair) for pair in self.pairs()[0].tolist()}
        keep = torch.tensor([frozenset(e) not in taken for e in GRAPH.edge_index.t().tolist()])
        return Data(x=GRAPH.x, edge_index=GRAPH.edge_index[:, keep])

    def test_all_edges_of_a_graph(self):
        model = GeoFLinkPredictor(**QUICK).fit(GRAPH)
        same = [[0, 2], [1, 3], [4, 8]]
        assert model.predict_proba(same).shape == (3, 2)
        assert model.predict_proba(same).sum(1) == pytest.approx(1)
        assert set(model.predict(same)) <= {0, 1}

    def test_pairs_can_be_cross_validated(self):
        pairs, y = self.pairs()
        model = GeoFLinkPredictor(graph=self.rest(), **QUICK)
        scores = cross_val_score(model, pairs, y, cv=2, scoring="roc_auc")
        assert scores.shape == (2,)

    def test_what_is_held_out_cannot_be_looked_up(self):
        pairs, y = self.pairs()
        with pytest.raises(DataError, match="held out would be seen"):
            GeoFLinkPredictor(graph=GRAPH, **QUICK).fit(pairs, y)

    def test_given_negatives_train(self):
        pairs, y = self.pairs()
        model = GeoFLinkPredictor(graph=self.rest(), **QUICK)
        _, split = model._with_pairs(read_graph(self.rest(), model._reading()), pairs, y, 0)
        seen = {frozenset(p) for p in split.training_negatives(1).t().tolist()}
        given = {frozenset(p) for p in pairs[y == 0].tolist()}
        held = {frozenset(p) for p in split.validation_negatives.t().tolist()}
        assert given - held <= seen
        assert split.training_negatives(1).shape == split.train.shape
        assert held & given

    def test_labels_must_be_links_or_none(self):
        pairs, y = self.pairs()
        for wrong in (y * 2, np.where(y, "yes", "no")):
            with pytest.raises(DataError, match="1 for linked pairs"):
                GeoFLinkPredictor(graph=self.rest(), **QUICK).fit(pairs, wrong)
        with pytest.raises(ShapeError, match="pairs of nodes"):
            GeoFLinkPredictor(graph=self.rest(), **QUICK).fit(pairs[:, 0], y)

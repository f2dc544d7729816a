"""Links between the nodes of one graph."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from torch import Tensor

from geof.data.link_splits import FittingLinks, fitting_links, pair_codes
from geof.data.records import NodeGraph, node_graph
from geof.errors import ConfigError, DataError
from geof.estimators.base import label_rows
from geof.estimators.inputs import Known, pair_rows, read_graph
from geof.estimators.nodes import GraphEstimator
from geof.training.predict import predict_pairs
from geof.training.tasks import LinkTask


class GeoFLinkPredictor(ClassifierMixin, GraphEstimator):  # type: ignore[misc]  # no types
    """Tell pairs of nodes that are linked from pairs that are not.

    ``fit(graph)`` learns from all edges of a graph. ``fit(pairs, y, graph=...)`` learns from pairs
    with labels beside the edges of the graph; they must not be among these, or what
    cross-validation holds out could be looked up. Pairs labelled 0 are negatives of training before
    drawn ones.
    Predictions see the graph's edges and the linked pairs. Parameters: those of
    :class:`~geof.estimators.base.GeoFEstimator`, ``graph`` and ``label``, a column that is no
    feature.

    Attributes:
        classes_: 0 and 1.
        run_: The trained :class:`~geof.training.predict.Run`.
        config_: The :class:`~geof.training.config.RunConfig`, with what the data chose.
        history_: A record per epoch.

    >>> from geof.data import digits_graph
    >>> model = GeoFLinkPredictor(epochs=2).fit(digits_graph())
    >>> model.predict_proba([[0, 1], [5, 9]]).shape
    (2, 2)
    """

    _task = "link"
    _known: NodeGraph

    def fit(self, X: Any, y: Any = None, *, graph: Any = None) -> Self:
        """Learn from a graph's edges, or from pairs beside them.

        Args:
            X: The graph; or pairs of nodes ``(P, 2)``, by index or identifier.
            y: 1 for linked pairs, 0 for others (default: all are linked).
            graph: The graph, unless ``X`` or the parameter is.

        Raises:
            GeofError: What was expected, what came, what to do.
        """
        source, config = self._source(X, graph), self._config()
        if self.directed:
            raise ConfigError(
                "Expected directed=False: a link joins two nodes either way (got True)."
            )
        known = read_graph(source, self._reading())
        share, seed = self.validation_fraction, config.seed
        if X is source:
            if y is not None:
                raise ConfigError("Expected no 'y' beside a graph, whose edges are the links.")
            data, edges = known.graph, known.graph.graph.edge_index
            split = fitting_links(edges, data.graph.num_nodes, seed, validation=share)
        else:
            data, split = self._with_pairs(known, X, y, seed)
        config = self._adapted(config, data)
        task = LinkTask(
            data, split, signature=config.signature, training=config.training, seed=config.seed
        )
        self._train(config, task)
        self._known, self.classes_ = data, np.array([0, 1])
        self.n_features_in_ = int(data.graph.x.size(1))
        return self

    def _with_pairs(
        self, known: Known, X: Any, y: Any, seed: int
    ) -> tuple[NodeGraph, FittingLinks]:
        """Return the graph with the linked pairs among its edges, and what is held out of them."""
        graph = known.graph
        if graph.edge_sizes is not None:
            raise ConfigError(
                "Expected edges that carry nothing beside pairs, which carry nothing either (got "
                "edge_columns='use'). Use 'ignore', or fit to the graph alone."
            )
        pairs = pair_rows(graph, X)
        linked = _linked(y, pairs.size(1))
        positive, negative = pairs[:, linked], pairs[:, ~linked]
        _refuse_known(graph, positive)
        if not positive.size(1):
            raise DataError("Expected linked pairs, with label 1, in 'X' (got none).")
        edges = torch.cat([graph.graph.edge_index, positive, positive.flip(0)], dim=1)
        ids, x = graph.node_ids, graph.graph.x
        data = node_graph(graph.name, x, edges, graph.graph.y, (), ids, graph.notes)
        split = fitting_links(
            data.graph.edge_index,
            int(data.graph.num_nodes or 0),
            seed,
            validation=self.validation_fraction,
            candidates=positive,
            negatives=negative,
        )
        return data, split

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probabilities of no link and of a link for pairs ``(P, 2)`` of nodes."""
        self._require_fitted()
        pairs = pair_rows(self._known, X)
        link = predict_pairs(self.run_, self._known, pairs).probability[:, 0].double().numpy()
        return np.stack([1 - link, link], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return 1 for pairs that are rather linked than not, 0 for the others."""
        return (self.predict_proba(X)[:, 1] >= 0.5).astype(np.int64)

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return what ranks pairs: the probability of a link."""
        found: NDArray[Any] = self.predict_proba(X)[:, 1]
        return found


def _linked(y: Any, count: int) -> Tensor:
    if y is None:
        return torch.ones(count, dtype=torch.bool)
    values = label_rows(y, count)
    if values.ndim != 1 or not np.isin(values, (0, 1)).all():
        raise DataError(
            "Expected 'y' to be 1 for linked pairs and 0 for others (got "
            f"{np.unique(values)[:5].tolist()})."
        )
    return torch.from_numpy(values.astype(bool))


def _refuse_known(graph: NodeGraph, positive: Tensor) -> None:
    """Raise if linked pairs are among the edges messages run along."""
    count = int(graph.graph.num_nodes or 0)
    there = pair_codes("edge_index", graph.graph.edge_index, count)
    common = np.intersect1d(there, pair_codes("X", positive, count))
    if len(common):
        pair = divmod(int(common[0]), count)
        raise DataError(
            f"Expected linked pairs that are no edges of the graph (got {pair} and "
            f"{len(common) - 1} others): what is held out would be seen. Leave the pairs out of "
            "the graph's edges, or fit to the graph alone."
        )

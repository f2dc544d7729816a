"""Classes and numbers of whole graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from geof.data.columns import ArrayEncoder
from geof.data.records import GraphSet
from geof.data.splits import FittingSplit
from geof.estimators.base import GeoFEstimator, Targets, require_share
from geof.estimators.inputs import Reading, graph_labels, read_graphs, standardised_set
from geof.training.predict import predict_graphs
from geof.training.tasks import GraphTask


class GraphSetEstimator(GeoFEstimator):
    """Base of the two estimators of graphs."""

    _task = "graph"
    _targets: Targets
    _encoder: ArrayEncoder | None

    def fit(self, X: Any, y: Any = None, *, validation: Any = None) -> Self:
        """Learn from labelled graphs.

        Args:
            X: A sequence of graphs: PyG ``Data``, NetworkX, pairs of arrays (features, edges), or
                SMILES.
            y: A label each; without, those the PyG graphs have.
            validation: Graphs and labels ``(X, y)`` that choose the epoch (default: a share of
                those given).

        Raises:
            GeofError: What was expected, what came, what to do.
        """
        config = self._config()
        if y is None:
            y = graph_labels(X)
        data = read_graphs(X, self._reading())
        targets = self._encode(y, len(data.graphs))
        if validation is None:
            split = targets.split(self.validation_fraction, config.seed)
        else:
            require_share(validation)
            held = read_graphs(validation[0], self._reading())
            more = targets.with_rows(validation[1], len(held.graphs))
            first, count = len(data.graphs), len(data.graphs) + len(held.graphs)
            split = FittingSplit.of(torch.arange(first), torch.arange(first, count))
            data = replace(data, graphs=[*data.graphs, *held.graphs])
            targets = replace(targets, y=torch.cat([targets.y, more.y]))
        self._encoder = self._fitted_encoder(data)
        if self._encoder is not None:
            data = standardised_set(data, self._encoder)
        data = _with_targets(data, targets)
        config = self._adapted(config, data)
        task = GraphTask(
            data,
            split,
            training=config.training,
            seed=config.seed,
            signature=config.signature,
        )
        self._train(config, task)
        self._targets = targets
        self.n_features_in_ = int(data.graphs[0].x.size(1))
        return self

    def _encode(self, y: Any, count: int) -> Targets:
        raise NotImplementedError

    def _reading(self) -> Reading:
        options = {"directed": self.directed, "edge_columns": self.edge_columns}
        return Reading(options, None, self._standardises)  # type: ignore[arg-type]

    def _fitted_encoder(self, data: GraphSet) -> ArrayEncoder | None:
        """Return what columns of numbers go through; ``None`` where all stay as they are."""
        if not self._standardises:
            return None
        encoder = ArrayEncoder.fit(torch.cat([graph.x for graph in data.graphs]))
        unchanged = set(encoder.mean) <= {0.0} and set(encoder.scale) <= {1.0}
        return None if unchanged else encoder

    def _values_of(self, X: Any) -> NDArray[Any]:
        self._require_fitted()
        data = read_graphs(X, self._reading(), self._encoder)
        found: NDArray[Any] = predict_graphs(self.run_, data).probability.numpy()
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """Return a prediction per graph, as ``y`` was given."""
        values = self._values_of(X)
        return self._targets.said(values)


class GeoFGraphClassifier(ClassifierMixin, GraphSetEstimator):  # type: ignore[misc]  # no types
    """Classify graphs, or give each several yes-or-no labels.

    ``X`` is a list of graphs, which cross-validation cuts as it does rows. Parameters: those of
    :class:`~geof.estimators.base.GeoFEstimator`; a label of several columns of zeros and ones is
    several targets.

    Attributes:
        classes_: The classes, sorted.
        run_: The trained :class:`~geof.training.predict.Run`.
        config_: The :class:`~geof.training.config.RunConfig`, with what the data chose.
        history_: A record per epoch.
        notes_: What was merged or left out of the graphs.

    >>> import numpy as np
    >>> ring = np.array([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
    >>> path = ring[:, [0, 1, 3, 4]]
    >>> graphs = [(np.ones((3, 1)), ring), (np.ones((3, 1)), path)] * 8
    >>> model = GeoFGraphClassifier(epochs=2).fit(graphs, ["ring", "path"] * 8)
    >>> model.classes_.tolist(), model.predict_proba(graphs[:2]).shape
    (['path', 'ring'], (2, 2))
    """

    def _encode(self, y: Any, count: int) -> Targets:
        targets = Targets.classified(y, count)
        self.classes_ = targets.classes
        return targets

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of every class, in the order of ``classes_``."""
        return self._values_of(X)


class GeoFGraphRegressor(RegressorMixin, GraphSetEstimator):  # type: ignore[misc]  # no types
    """Predict numbers of graphs, one or several each; see :class:`GeoFGraphClassifier`.

    Targets are standardised inside; predictions are in their unit. ``score`` is :math:`R^2`.
    """

    def _encode(self, y: Any, count: int) -> Targets:
        return Targets.numeric(y, count)


def _with_targets(data: GraphSet, targets: Targets) -> GraphSet:
    for graph, row in zip(data.graphs, targets.y, strict=True):
        graph.y = row.reshape(1, -1) if targets.facts.kind != "classes" else row.reshape(1)
    return replace(data, class_names=targets.class_names, targets=targets.facts)

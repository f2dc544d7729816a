"""Classes and numbers of the nodes of one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from torch import Tensor
from torch_geometric.data import Data

from geof.data.records import EdgeColumns, NodeGraph
from geof.data.splits import FittingSplit
from geof.errors import ConfigError, DataError
from geof.estimators.base import GeoFEstimator, Targets, require_share
from geof.estimators.inputs import Known, Reading, is_graph, labels_of, node_rows, read_graph
from geof.training.callbacks import Callback
from geof.training.predict import predict_nodes
from geof.training.tasks import NodeTask


class GraphEstimator(GeoFEstimator):
    """Base of the estimators that learn from one graph; see :class:`GeoFEstimator`.

    Args:
        graph: The graph, where ``fit`` is given nodes or pairs alone, as in cross-validation;
            clones share it.
        label: The column of a data frame of nodes, or the attribute of NetworkX nodes, to predict.
    """

    def __init__(
        self,
        *,
        graph: Any = None,
        label: str | Sequence[str] | None = None,
        method: str = "geof",
        preset: str | None = None,
        epochs: int | None = None,
        patience: int | None = None,
        learning_rate: float | None = None,
        metric: str | None = None,
        settings: Mapping[str, Any] | None = None,
        validation_fraction: float = 0.2,
        random_state: Any = 0,
        device: str | None = None,
        directed: bool = False,
        edge_columns: EdgeColumns = "refuse",
        callbacks: Sequence[Callback] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            method=method,
            preset=preset,
            epochs=epochs,
            patience=patience,
            learning_rate=learning_rate,
            metric=metric,
            settings=settings,
            validation_fraction=validation_fraction,
            random_state=random_state,
            device=device,
            directed=directed,
            edge_columns=edge_columns,
            callbacks=callbacks,
            verbose=verbose,
        )
        self.graph = graph
        self.label = label

    def _reading(self) -> Reading:
        options = {"directed": self.directed, "edge_columns": self.edge_columns}
        return Reading(options, self.label, self._standardises)  # type: ignore[arg-type]

    def _source(self, X: Any, graph: Any) -> Any:
        """Return the graph to learn from: ``X`` itself, the argument, or the parameter."""
        if is_graph(X):
            if graph is not None:
                raise ConfigError("Expected the graph as 'X' or as graph= (got both).")
            return X
        source = self.graph if graph is None else graph
        if source is None:
            raise ConfigError(
                "Expected a graph: as 'X', as fit(X, y, graph=...), or, for cross-validation, as "
                f"{type(self).__name__}(graph=...) (got none)."
            )
        return source


class NodeEstimator(GraphEstimator):
    """Base of the two estimators of nodes."""

    _task = "node"
    _targets: Targets
    _values: NDArray[Any]

    def fit(self, X: Any, y: Any = None, *, graph: Any = None, validation: Any = None) -> Self:
        """Learn from labelled nodes of a graph; messages pass along all its edges.

        Args:
            X: Nodes by index, or by identifier where the graph has any; or the graph itself.
            y: Their labels; without, those the graph has.
            graph: The graph, unless ``X`` or the parameter is.
            validation: Nodes and labels ``(X, y)`` that choose the epoch (default: a share of those
                given, or ``val_mask`` of a PyG graph given as ``X``).

        Raises:
            GeofError: What was expected, what came, what to do.
        """
        source, reading, config = self._source(X, graph), self._reading(), self._config()
        known = read_graph(source, reading)
        rows, values = self._labelled(X, y, source, known)
        targets = self._encode(values, len(rows))
        rows, targets, split = self._parts(rows, targets, known, source, X, y, validation, config)
        data = _with_targets(known.graph, rows, targets)
        config = self._adapted(config, data)
        task = NodeTask(
            data,
            split,
            signature=config.signature,
            training=config.training,
            seed=config.seed,
        )
        self._train(config, task)
        self._targets, self._known = targets, known
        self._values = predict_nodes(self.run_, known.graph).probability.numpy()
        self.n_features_in_ = int(known.graph.graph.x.size(1))
        return self

    def _encode(self, y: Any, count: int) -> Targets:
        raise NotImplementedError

    def _labelled(self, X: Any, y: Any, source: Any, known: Known) -> tuple[Tensor, Any]:
        """Return the rows that train or validate, and their labels."""
        if X is source and y is None:
            places, values = labels_of(source, self._reading())
            return torch.from_numpy(places), values
        if X is source:
            return torch.arange(int(known.graph.graph.num_nodes or 0)), y
        rows = node_rows(known.graph, X)
        if y is None:
            raise DataError("Expected labels 'y' of the nodes in 'X' (got none).")
        if len(rows.unique()) < len(rows):
            raise DataError("Expected every node once in 'X' (got one again).")
        return rows, y

    def _parts(
        self,
        rows: Tensor,
        targets: Targets,
        known: Known,
        source: Any,
        X: Any,
        y: Any,
        validation: Any,
        config: Any,
    ) -> tuple[Tensor, Targets, FittingSplit]:
        """Return all rows with a label, their targets, and which of them train."""
        if validation is not None:
            require_share(validation)
            held = node_rows(known.graph, validation[0], "validation")
            more = targets.with_rows(validation[1], len(held))
            both = replace(targets, y=torch.cat([targets.y, more.y]))
            return torch.cat([rows, held]), both, FittingSplit.of(rows, held)
        masks = _masks(source) if X is source and y is None else None
        if masks is not None:
            train, held = (rows[mask[rows]] for mask in masks)
            return rows, targets, FittingSplit.of(train, held, "train_mask and val_mask")
        drawn = targets.split(self.validation_fraction, config.seed)
        split = FittingSplit.of(rows[drawn.train], rows[drawn.validation], drawn.name)
        return rows, targets, split

    def _values_of(self, X: Any) -> NDArray[Any]:
        """Return probabilities or numbers of nodes of the graph, or of all nodes of another."""
        self._require_fitted()
        if X is None:
            return self._values
        if is_graph(X):
            known = read_graph(X, self._reading(), self._known.schema)
            found: NDArray[Any] = predict_nodes(self.run_, known.graph).probability.numpy()
            return found
        chosen: NDArray[Any] = self._values[node_rows(self._known.graph, X).numpy()]
        return chosen

    def predict(self, X: Any = None) -> NDArray[Any]:
        """Return predictions as ``y`` was given.

        Args:
            X: Nodes of the graph of ``fit`` (default: all), or another graph, all of whose nodes
                are predicted.
        """
        return self._targets_fitted().said(self._values_of(X))

    def _targets_fitted(self) -> Targets:
        self._require_fitted()
        return self._targets


class GeoFNodeClassifier(ClassifierMixin, NodeEstimator):  # type: ignore[misc]  # no types
    """Classify nodes of a graph, or give each several yes-or-no labels.

    The graph is known as a whole; ``X`` says which of its nodes train. So cross-validation holds
    labels out, not nodes. Parameters: those of :class:`~geof.estimators.base.GeoFEstimator`,
    ``graph`` and ``label``.

    Attributes:
        classes_: The classes, sorted.
        run_: The trained :class:`~geof.training.predict.Run`, for embeddings and more.
        config_: The :class:`~geof.training.config.RunConfig`, with what the data chose.
        history_: A record per epoch.
        notes_: What was merged or left out of the graph.

    >>> import numpy as np
    >>> from geof.data import digits_graph
    >>> digits = digits_graph()
    >>> nodes, y = np.arange(200), digits.y[:200].numpy()
    >>> model = GeoFNodeClassifier(graph=digits, epochs=5).fit(nodes, y)
    >>> model.predict(nodes[:3]).shape, model.predict_proba(nodes[:3]).shape
    ((3,), (3, 10))
    """

    def _encode(self, y: Any, count: int) -> Targets:
        targets = Targets.classified(y, count)
        self.classes_ = targets.classes
        return targets

    def predict_proba(self, X: Any = None) -> NDArray[Any]:
        """Return the probability of every class, in the order of ``classes_``."""
        return self._values_of(X)


class GeoFNodeRegressor(RegressorMixin, NodeEstimator):  # type: ignore[misc]  # no types
    """Predict numbers of nodes of a graph, one or several each; see :class:`GeoFNodeClassifier`.

    Targets are standardised inside; predictions are in their unit. ``score`` is :math:`R^2`.
    """

    def _encode(self, y: Any, count: int) -> Targets:
        return Targets.numeric(y, count)


def _with_targets(graph: NodeGraph, rows: Tensor, targets: Targets) -> NodeGraph:
    """Return a graph with the labels of some rows; the others have none."""
    own = targets.y
    missing = -1 if targets.facts.kind == "classes" else np.nan
    y = own.new_full((int(graph.graph.num_nodes or 0), *own.shape[1:]), missing)
    y[rows] = own
    data = copy(graph.graph)
    data.y = y
    return replace(graph, graph=data, class_names=targets.class_names, targets=targets.facts)


def _masks(source: Any) -> tuple[Tensor, Tensor] | None:
    """Return the masks of training and validation that a PyG graph has, one of each."""
    if not isinstance(source, Data):
        return None
    masks = source.get("train_mask"), source.get("val_mask")
    if any(mask is None or mask.dim() != 1 or mask.dtype != torch.bool for mask in masks):
        return None
    return masks

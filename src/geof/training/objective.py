"""What the outputs of a network mean for nodes and graphs: their loss, their units, their metrics.

Numbers to predict are standardised with mean and deviation of the *training* rows; the network
learns the standardised ones, and predictions and metrics are given back in the original unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.data.records import GraphSet, NodeGraph
from geof.data.targets import TargetKind
from geof.errors import ConfigError, DataError
from geof.training.metrics import (
    METRICS,
    Metric,
    binary_metric,
    class_metric,
    graph_loss,
    mean_over_targets,
    metric_named,
    number_metric,
)
from geof.training.stages import ClassWeights

DEFAULT_METRIC: dict[TargetKind, str] = {
    "classes": "accuracy",
    "binary": "roc_auc",
    "regression": "rmse",
}
"""What chooses the epoch unless told otherwise."""

_REPORTED: dict[TargetKind, tuple[str, ...]] = {
    "classes": ("accuracy",),
    "binary": ("roc_auc", "average_precision", "accuracy"),
    "regression": ("rmse", "mae", "r2"),
}


@dataclass(frozen=True)
class Objective:
    """How outputs become a loss, predictions and metrics.

    Attributes:
        kind: What is predicted.
        names: Of the classes, or of the targets.
        mean: Of each numeric target among the training rows.
        scale: Their deviation; 1 where all are alike.
        weights: Of each class in the loss, or of the positive label of each binary target.
    """

    kind: TargetKind
    names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def fit(
        cls,
        data: NodeGraph | GraphSet,
        y: Tensor,
        train: Tensor,
        class_weights: ClassWeights | None = None,
    ) -> Objective:
        """Return the objective of data; what depends on values depends on training rows alone.

        Args:
            data: What says which classes or targets there are.
            y: The labels or targets of all rows.
            train: The training rows.
            class_weights: ``"balanced"``, or a weight for each class.

        Raises:
            ConfigError: For class weights that do not fit.
            DataError: If a target has no value in the training part.
        """
        kind, known = data.targets.kind, y[train]
        names = data.class_names if kind == "classes" else data.targets.names
        if kind == "classes":
            weights = _weights(
                class_weights, names, "class", lambda: _balanced_classes(known, len(names))
            )
            return cls(kind, names, weights=weights)
        for name, column in zip(names, known.t(), strict=True):
            if bool(column.isnan().all()):
                raise DataError(
                    f"Expected values of the target {name!r} in the training part (got none). Take "
                    "another split, or do not name it as a label."
                )
        if kind == "binary":
            weights = _weights(class_weights, names, "target", lambda: _balanced_positives(known))
            return cls(kind, names, weights=weights)
        if class_weights is not None:
            raise ConfigError(
                f"Expected no 'class_weights' for regression (got {class_weights!r}). Leave it out."
            )
        mean = known.nanmean(0)
        scale = (known - mean).square().nanmean(0).sqrt()
        scale = torch.where(scale > 1e-12 * mean.abs(), scale, torch.ones_like(scale))
        return cls(kind, names, tuple(mean.tolist()), tuple(scale.tolist()))

    def record(self) -> dict[str, Any]:
        """Return what a run must remember to be applied; nothing for classes."""
        return {} if self.kind == "classes" else {"targets": asdict(self)}

    @classmethod
    def recorded(cls, about: Mapping[str, Any], class_names: Sequence[str]) -> Objective:
        """Return the objective of a run from what its checkpoint says."""
        stored = about.get("targets")
        if stored is None:
            return cls("classes", tuple(class_names))
        lists = ("names", "mean", "scale", "weights")
        return cls(stored["kind"], *(tuple(stored[name]) for name in lists))

    # Loss and predictions ---------------------------------------------------------------------

    def aims(self, y: Tensor) -> Tensor:
        """Return what the network should give: classes, or float32 targets, standardised."""
        if self.kind == "classes":
            return y
        if self.kind == "regression":
            y = (y - y.new_tensor(self.mean)) / y.new_tensor(self.scale)
        return y.float()

    def loss(self, outputs: Tensor, aims: Tensor) -> Tensor:
        """Return the loss: cross-entropy, Eqs. (13) and (14), or the mean over known targets.

        Args:
            outputs: ``(R, C)`` or ``(R, T)``.
            aims: What :meth:`aims` gives for these rows.
        """
        weights = outputs.new_tensor(self.weights) if self.weights else None
        if self.kind == "classes":
            return graph_loss(outputs, aims, weights)
        known = ~aims.isnan()
        aims = torch.where(known, aims, 0.0).to(outputs.dtype)
        if self.kind == "regression":
            each = F.mse_loss(outputs, aims, reduction="none")
        else:
            each = F.binary_cross_entropy_with_logits(
                outputs, aims, pos_weight=weights, reduction="none"
            )
        return (each * known).sum() / known.sum()

    def mass(self, aims: Tensor) -> float:
        """Return what :meth:`loss` divides by: rows, their weights, or known targets."""
        if self.kind != "classes":
            return float((~aims.isnan()).sum())
        if not self.weights:
            return float(len(aims))
        return float(torch.tensor(self.weights, dtype=torch.float64)[aims.cpu()].sum())

    def values(self, outputs: Tensor) -> Tensor:
        """Return probabilities, or numbers in their original unit (float64)."""
        if self.kind == "classes":
            return outputs.softmax(-1)
        if self.kind == "binary":
            return outputs.sigmoid()
        wide = outputs.double()
        return wide * wide.new_tensor(self.scale) + wide.new_tensor(self.mean)

    # Metrics ----------------------------------------------------------------------------------

    def metric(self, name: str | None, default: str | None = None) -> Metric:
        """Return the metric that chooses the epoch.

        Args:
            name: As asked for; the default if not.
            default: That of a benchmark, instead of the kind's own.

        Raises:
            ConfigError: If it cannot judge such targets.
        """
        metric = metric_named(name or default or DEFAULT_METRIC[self.kind])
        require_metric(metric, self.kind)
        ranks = metric.name in ("roc_auc", "average_precision")
        if ranks and self.kind == "classes" and len(self.names) != 2:
            raise DataError(
                f"Expected two classes for metric '{metric.name}' (got {len(self.names)}). Use "
                "'accuracy', 'balanced_accuracy' or 'macro_f1'."
            )
        return metric

    def reported(self, *more: str) -> tuple[str, ...]:
        """Return the names of the metrics of a whole report, ``more`` among them."""
        return tuple(dict.fromkeys([*_REPORTED[self.kind], *more]))

    def metrics(
        self, outputs: Tensor, y: Tensor, metric: str, more: Sequence[str] = ()
    ) -> dict[str, float]:
        """Return metrics of rows by name; with ``more``, also those of each of several targets.

        Args:
            outputs: Of the network, ``(R, C)`` or ``(R, T)``.
            y: Labels or targets as the data have them.
            metric: That which must be there. Of several targets it is the mean, as OGB takes it.
            more: Those that inform; one that is not defined on these rows is left out.

        Raises:
            DataError: If the metric is not defined on these rows.
        """
        found: dict[str, float] = {}
        own: dict[str, float] = {}
        for name in more or [metric]:
            if self.kind == "classes":
                if name == metric or _can_rank(name, y):
                    found[name] = class_metric(name, outputs, y)
                continue
            if self.kind == "binary":
                each = binary_metric(name, outputs, y)
            else:
                each = number_metric(name, self.values(outputs), y)
            if name == metric or not all(map(math.isnan, each)):
                found[name] = mean_over_targets(name, each)
            if more and len(each) > 1:
                own |= {f"{name}/{t}": v for t, v in zip(self.names, each, strict=True) if v == v}
        return found | own

    def share(self, outputs: Tensor, y: Tensor) -> float:
        """Return how good training rows are met in percent, more is better: accuracy, or R2."""
        name = "r2" if self.kind == "regression" else "accuracy"
        value = self.metrics(outputs, y, name)[name]
        return 100.0 * value if name == "r2" else value


def require_metric(metric: Metric, kind: str) -> None:
    """Raise ``ConfigError`` if a metric cannot judge such predictions."""
    if kind not in metric.of:
        fitting = [name for name, other in METRICS.items() if kind in other.of]
        more = ", hits@K" if kind == "link" else ""
        raise ConfigError(
            f"Expected 'metric' to judge {kind if kind != 'link' else 'links'}: one of "
            f"{', '.join(fitting)}{more} (got {metric.name!r})."
        )


def _can_rank(name: str, labels: Tensor) -> bool:
    """Return whether a metric of two classes is defined: ranking takes both of them."""
    return name not in ("roc_auc", "average_precision") or len(labels.unique()) > 1


def _balanced_classes(labels: Tensor, count: int) -> Tensor:
    """Return a weight for every class, 1 on average over the training rows."""
    counts = torch.bincount(labels, minlength=count).clamp(min=1)
    return len(labels) / (count * counts.double())


def _balanced_positives(y: Tensor) -> Tensor:
    """Return a weight for the positive label of every target."""
    positive, negative = (y == 1).sum(0).clamp(min=1), (y == 0).sum(0).clamp(min=1)
    return negative.double() / positive


def _weights(
    asked: ClassWeights | None, names: Sequence[str], what: str, balanced: Callable[[], Tensor]
) -> tuple[float, ...]:
    """Return the weights asked for, one for each class or target; none for all alike."""
    if asked is None or asked == "none":
        return ()
    if asked == "balanced":
        return tuple(balanced().tolist())
    if len(asked) != len(names):
        raise ConfigError(
            f"Expected 'class_weights' to hold a weight for each {what}, {', '.join(names)} (got "
            f"{len(asked)}). Give {len(names)}, or 'balanced'."
        )
    return tuple(asked)

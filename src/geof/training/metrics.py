"""Losses and metrics of the tasks (paper, section 3.5), metrics also by their names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.data.targets import TargetKind
from geof.errors import ConfigError, DataError, NonFiniteError, nearest


def node_loss(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy over the labelled nodes, Eq. (13).

    Args:
        logits: ``(n, C)``.
        labels: ``(n,)`` int64.
        mask: The training nodes, boolean ``(n,)`` or indices.

    Raises:
        DataError: If the mask selects no node.
    """
    chosen = labels[mask]
    if chosen.numel() == 0:
        raise DataError("Expected 'mask' to select at least one labelled node (got none).")
    return graph_loss(logits[mask], chosen)


def graph_loss(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Cross-entropy over a batch of graphs, Eq. (14): ``(G, C)`` against ``(G,)``.

    Args:
        logits: ``(G, C)``.
        labels: ``(G,)`` int64.
        weight: Of each class, ``(C,)``; all alike if not given.
    """
    return F.cross_entropy(logits, labels, weight=weight)


def link_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Binary cross-entropy over positive and sampled negative pairs, Eq. (15).

    Args:
        positive: Logits of the training edges.
        negative: Logits of the sampled non-edges.
    """
    logits = torch.cat([positive, negative])
    labels = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
    return F.binary_cross_entropy_with_logits(logits, labels)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of rows whose largest logit is the label's, in percent.

    Raises:
        DataError: If there are no rows.
    """
    if labels.numel() == 0:
        raise DataError("Expected at least one labelled row to score (got none).")
    return 100.0 * float((logits.argmax(-1) == labels).double().mean())


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of ``scores`` for label 1 against 0, in percent.

    Raises:
        DataError: If only one of the two labels is present, where the area is undefined.
        NonFiniteError: If a score is not finite.
    """
    from sklearn.metrics import roc_auc_score

    if not bool(scores.isfinite().all()):
        raise NonFiniteError("Expected finite scores to rank (some are NaN or infinite).")
    if not 0 < int(labels.sum()) < labels.numel():
        raise DataError(
            f"Expected both labels for ROC-AUC (got {int(labels.sum())} positive of "
            f"{labels.numel()})."
        )
    return 100.0 * float(roc_auc_score(labels.numpy(), scores.detach().double().numpy()))


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """Average precision of ``scores`` for label 1 against 0, in percent.

    Raises:
        DataError: If no label is 1.
        NonFiniteError: If a score is not finite.
    """
    from sklearn.metrics import average_precision_score

    if not bool(scores.isfinite().all()):
        raise NonFiniteError("Expected finite scores to rank (some are NaN or infinite).")
    if not int(labels.sum()):
        raise DataError("Expected a positive label for average precision (got none).")
    ranked = scores.detach().double().numpy()
    return 100.0 * float(average_precision_score(labels.numpy(), ranked))


HITS_AT = (20, 50, 100)
"""The K of the Hits@K that link prediction reports."""


def link_auc(positive: Tensor, negative: Tensor) -> float:
    """ROC-AUC of positive against negative pairs by their logits, in percent."""
    labels = torch.arange(len(positive) + len(negative)) < len(positive)
    return roc_auc(torch.cat([positive, negative]), labels)


def link_metric(name: str, positive: Tensor, negative: Tensor) -> float:
    """Return one metric of positive and negative pairs by their logits, in percent."""
    if name == "roc_auc":
        return link_auc(positive, negative)
    at = (int(name.partition("@")[2]),) if name.startswith("hits@") else ()
    return link_metrics(positive, negative, at)[name]


def link_metrics(
    positive: Tensor, negative: Tensor, hits_at: Sequence[int] = HITS_AT
) -> dict[str, float]:
    """Score positive and negative pairs by their logits, in percent.

    Args:
        positive: Logits of pairs that are linked.
        negative: Logits of pairs that are not.
        hits_at: The K of Hits@K.

    Returns:
        ``roc_auc``, ``average_precision``, ``hits@K`` (share of positives above the K-th highest
        negative, as OGB defines it; 100 when there are fewer than K negatives) and ``mrr`` (mean
        reciprocal rank of each positive among all negatives, ties counted half).
    """
    from sklearn.metrics import average_precision_score

    scores = torch.cat([positive, negative]).detach().double()
    labels = torch.cat([torch.ones(len(positive)), torch.zeros(len(negative))]).long()
    ranked = negative.detach().double().sort().values
    above = len(ranked) - torch.searchsorted(ranked, scores[: len(positive)], right=True)
    not_below = len(ranked) - torch.searchsorted(ranked, scores[: len(positive)], right=False)
    metrics = {
        "roc_auc": link_auc(positive, negative),
        "average_precision": 100.0 * float(average_precision_score(labels.numpy(), scores.numpy())),
        "mrr": 100.0 * float((1 / (1 + (above + not_below) / 2)).mean()),
    }
    for k in hits_at:
        beaten = scores[: len(positive)] > ranked[-k] if len(ranked) >= k else torch.ones(1)
        metrics[f"hits@{k}"] = 100.0 * float(beaten.double().mean())
    return metrics


# Metrics by name ------------------------------------------------------------------------------

Graded: TypeAlias = TargetKind | Literal["link"]


@dataclass(frozen=True)
class Metric:
    """A number that judges predictions.

    Attributes:
        name: As options and results have it.
        of: The kinds of targets it can judge.
        lower: Whether less is better.
        percent: Whether it is given in percent, otherwise in the target's own unit.
    """

    name: str
    of: tuple[Graded, ...]
    lower: bool = False
    percent: bool = True

    @property
    def sign(self) -> int:
        """What it is multiplied with so that more is better."""
        return -1 if self.lower else 1

    @property
    def selection(self) -> str:
        """How an epoch is chosen by it, in words."""
        first = "lowest" if self.lower else "highest"
        return f"{first} validation metric, then lowest validation loss, then earliest epoch"

    def shown(self, value: float, digits: int = 2) -> str:
        """Return a value as text, with its unit."""
        return f"{value:.{digits}f} %" if self.percent else f"{value:.4g}"


_RANKED: tuple[Graded, ...] = ("classes", "binary", "link")
METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", ("classes", "binary")),
        Metric("balanced_accuracy", ("classes", "binary")),
        Metric("macro_f1", ("classes", "binary")),
        Metric("roc_auc", _RANKED),
        Metric("average_precision", _RANKED),
        Metric("mrr", ("link",)),
        Metric("rmse", ("regression",), lower=True, percent=False),
        Metric("mae", ("regression",), lower=True, percent=False),
        Metric("r2", ("regression",), percent=False),
    )
}
"""Every metric but Hits@K, which has one for each K."""


def metric_named(name: str) -> Metric:
    """Return a metric.

    Raises:
        ConfigError: If there is none of that name, naming the nearest.
    """
    if re.fullmatch(r"hits@[1-9][0-9]{0,8}", name):
        return Metric(name, ("link",))
    own = name.partition("/")[0]  # of one of several targets
    if own not in METRICS:
        raise ConfigError(f"Unknown metric {name!r}. " + nearest(name, [*METRICS, "hits@20"]))
    return METRICS[own]


def class_metric(name: str, logits: Tensor, labels: Tensor) -> float:
    """Return a metric of class logits ``(R, C)`` against class indices ``(R,)``, in percent.

    Ranking metrics take the second of two classes for the positive one.
    """
    if name == "accuracy":
        return accuracy(logits, labels)
    if name in ("roc_auc", "average_precision"):
        rank = roc_auc if name == "roc_auc" else average_precision
        return rank(logits[:, 1] - logits[:, 0], labels)
    return _decided(name, labels.numpy(), logits.argmax(-1).numpy())


def binary_metric(name: str, logits: Tensor, y: Tensor) -> list[float]:
    """Return a metric of every yes-or-no target: logits ``(R, T)`` against 0, 1 and NaN.

    A target without both labels among the rows cannot be ranked and gives NaN.
    """
    found = []
    for score, truth in zip(logits.t(), y.t(), strict=True):
        known = ~truth.isnan()
        label, score = truth[known].long(), score[known]
        if name in ("roc_auc", "average_precision"):
            both = 0 < int(label.sum()) < label.numel()
            rank = roc_auc if name == "roc_auc" else average_precision
            found.append(rank(score, label) if both else math.nan)
        elif not len(label):
            found.append(math.nan)
        elif name == "accuracy":
            found.append(100.0 * float(((score > 0) == label).double().mean()))
        else:
            found.append(_decided(name, label.numpy(), (score > 0).long().numpy(), binary=True))
    return found


def number_metric(name: str, values: Tensor, y: Tensor) -> list[float]:
    """Return a metric of every numeric target: values ``(R, T)`` against numbers and NaN.

    R2 of fewer than two rows, or of rows that are all alike, is not defined and gives NaN.
    """
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    if not bool(values.isfinite().all()):
        raise NonFiniteError("Expected finite predictions to score (some are NaN or infinite).")
    found = []
    for value, truth in zip(values.detach().double().t(), y.double().t(), strict=True):
        known = ~truth.isnan()
        given, wanted = value[known].numpy(), truth[known].numpy()
        if not len(wanted) or (name == "r2" and (wanted == wanted[0]).all()):
            found.append(math.nan)
        elif name == "rmse":
            found.append(math.sqrt(mean_squared_error(wanted, given)))
        else:
            judge = mean_absolute_error if name == "mae" else r2_score
            found.append(float(judge(wanted, given)))
    return found


def mean_over_targets(name: str, values: Sequence[float]) -> float:
    """Return the mean over the targets for which a metric is defined.

    Raises:
        DataError: If it is defined for none.
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        raise DataError(
            f"Expected a target for which '{name}' is defined on these rows (got none: both labels,"
            " or at least two different numbers, must be there). Choose another metric or split."
        )
    return sum(known) / len(known)


def _decided(name: str, labels: Any, chosen: Any, *, binary: bool = False) -> float:
    """Return balanced accuracy or F1 of decisions, in percent; of F1, classes alike or label 1."""
    from sklearn.metrics import f1_score, recall_score

    if name == "balanced_accuracy":  # recall of the classes that are there
        present = sorted(set(labels.tolist()))
        recall = recall_score(labels, chosen, labels=present, average="macro", zero_division=0)
        return 100.0 * float(recall)
    average = "binary" if binary else "macro"
    return 100.0 * float(f1_score(labels, chosen, average=average, zero_division=0))

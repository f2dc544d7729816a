"""Losses and metrics of the three tasks (paper, section 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.errors import DataError, NonFiniteError


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
    return F.cross_entropy(logits[mask], chosen)


def graph_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over a batch of graphs, Eq. (14): ``(G, C)`` against ``(G,)``."""
    return F.cross_entropy(logits, labels)


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


HITS_AT = (20, 50, 100)
"""The K of the Hits@K that link prediction reports."""


def link_auc(positive: Tensor, negative: Tensor) -> float:
    """ROC-AUC of positive against negative pairs by their logits, in percent."""
    labels = torch.arange(len(positive) + len(negative)) < len(positive)
    return roc_auc(torch.cat([positive, negative]), labels)


def link_metrics(positive: Tensor, negative: Tensor) -> dict[str, float]:
    """Score positive and negative pairs by their logits, in percent.

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
    for k in HITS_AT:
        beaten = scores[: len(positive)] > ranked[-k] if len(ranked) >= k else torch.ones(1)
        metrics[f"hits@{k}"] = 100.0 * float(beaten.double().mean())
    return metrics

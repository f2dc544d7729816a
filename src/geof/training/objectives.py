"""Losses and metrics of the three tasks (paper, section 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.errors import DataError


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

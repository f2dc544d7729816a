from __future__ import annotations

import pytest
import torch

from geof.errors import DataError
from geof.training import accuracy, graph_loss, link_loss, link_metrics, node_loss, roc_auc


def test_objectives_are_the_equations(random_state):
    """Eqs. (13) to (15) written out."""
    logits, labels = random_state(0).normal(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    mask = torch.tensor([True, False, True, True, False, False])
    p = torch.softmax(logits, -1)
    chosen = -torch.log(p[torch.arange(6), labels])
    torch.testing.assert_close(node_loss(logits, labels, mask), chosen[mask].mean())
    torch.testing.assert_close(graph_loss(logits, labels), chosen.mean())
    yes, no = logits[:2, 0], logits[2:, 0]
    wanted = torch.cat([-torch.sigmoid(yes).log(), -(1 - torch.sigmoid(no)).log()]).mean()
    torch.testing.assert_close(link_loss(yes, no), wanted)


def test_nothing_to_score_is_an_error():
    logits, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(DataError, match="'mask'"):
        node_loss(logits, labels, torch.zeros(3, dtype=torch.bool))
    with pytest.raises(DataError, match="at least one"):
        accuracy(logits[:0], labels[:0])
    with pytest.raises(DataError, match="both labels"):
        roc_auc(logits[:, 0], labels)


def test_roc_auc_counts_ordered_pairs(random_state):
    scores, labels = random_state(0).normal(40), (torch.arange(40) % 3 == 0).long()
    yes, no = scores[labels == 1], scores[labels == 0]
    share = (yes[:, None] > no[None, :]).double().mean()
    assert roc_auc(scores, labels) == pytest.approx(100 * float(share))


def test_link_metrics_by_hand():
    positive = torch.tensor([3.0, 1.0, 0.5])
    negative = torch.tensor([2.0, 0.5, 0.0, -1.0] + [-2.0] * 96)
    metrics = link_metrics(positive, negative)
    # Ranks among the negatives: first; second; third with one tie, counted half.
    assert metrics["mrr"] == pytest.approx(100 * (1 + 1 / 2 + 1 / 2.5) / 3)
    # The 20th best negative is -2: all positives beat it.
    assert metrics["hits@20"] == metrics["hits@100"] == 100
    assert metrics["roc_auc"] == pytest.approx(100 * (100 + 99 + 98.5) / 300)
    few = link_metrics(positive, negative[:4])
    assert few["hits@20"] == 100
    hard = link_metrics(positive, torch.full((30,), 2.0))
    assert hard["hits@20"] == pytest.approx(100 / 3)

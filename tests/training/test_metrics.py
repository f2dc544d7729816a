from __future__ import annotations

import math

import pytest
import sklearn.metrics as sk
import torch

from geof.errors import ConfigError, DataError, NonFiniteError
from geof.training import accuracy, graph_loss, link_loss, link_metrics, node_loss, roc_auc
from geof.training.metrics import (
    METRICS,
    binary_metric,
    class_metric,
    link_metric,
    mean_over_targets,
    metric_named,
    number_metric,
)


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


# By name --------------------------------------------------------------------------------------


def test_every_metric_knows_its_direction_and_unit():
    assert {name for name, metric in METRICS.items() if metric.lower} == {"rmse", "mae"}
    assert {name for name, metric in METRICS.items() if not metric.percent} == {"rmse", "mae", "r2"}
    assert metric_named("hits@7").of == ("link",)
    assert metric_named("rmse/price").lower
    assert metric_named("accuracy").shown(12.345) == "12.35 %"
    assert metric_named("rmse").shown(1234.567) == "1235"
    assert metric_named("mae").selection.startswith("lowest validation metric")
    for wrong in ("hits@0", "hits@", "rsme", ""):
        with pytest.raises(ConfigError, match="Unknown metric"):
            metric_named(wrong)


def test_class_metrics_are_those_of_scikit_learn():
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50) % 2  # class 2 is predicted and never true
    chosen = logits.argmax(-1)
    recalls = [float((chosen[labels == c] == c).double().mean()) for c in (0, 1)]
    assert class_metric("balanced_accuracy", logits, labels) == pytest.approx(50 * sum(recalls))
    f1 = sk.f1_score(labels, chosen, average="macro")
    assert class_metric("macro_f1", logits, labels) == pytest.approx(100 * f1)
    two = logits[:, :2]
    expected = 100 * sk.average_precision_score(labels, two[:, 1] - two[:, 0])
    assert class_metric("average_precision", two, labels) == pytest.approx(expected)
    with pytest.raises(DataError, match="positive label for average precision"):
        class_metric("average_precision", two, labels * 0)


def test_binary_metrics_leave_gaps_and_single_labels_out():
    logits = torch.tensor([[1.0, 2.0, 0.1], [-1.0, -3.0, 0.2], [2.0, 1.0, 0.3], [-2.0, 5.0, 0.4]])
    nan = math.nan
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, nan, 1.0], [0.0, 1.0, nan], [nan, 1.0, nan]])
    found = binary_metric("roc_auc", logits, y)
    assert found[:2] == [50.0, 50.0]
    assert math.isnan(found[2])
    assert mean_over_targets("roc_auc", found) == 50.0
    assert binary_metric("accuracy", logits, y) == pytest.approx([200 / 3, 200 / 3, 100])
    with pytest.raises(DataError, match="for which 'roc_auc' is defined"):
        mean_over_targets("roc_auc", [nan])


def test_numbers_are_judged_where_they_are_known():
    values = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 0.0]])
    y = torch.tensor([[1.0, 10.0], [4.0, 10.0], [3.0, math.nan]])
    assert number_metric("mae", values, y) == pytest.approx([2 / 3, 5])
    assert number_metric("rmse", values, y) == pytest.approx([math.sqrt(4 / 3), math.sqrt(50)])
    r2 = number_metric("r2", values, y)
    assert r2[0] == pytest.approx(sk.r2_score(y[:, 0], values[:, 0]))
    assert math.isnan(r2[1])
    with pytest.raises(NonFiniteError, match="finite predictions"):
        number_metric("mae", values / 0, y)


def test_any_k_of_hits():
    positive, negative = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0, -1.0])
    assert link_metric("hits@1", positive, negative) == 50
    assert link_metric("hits@2", positive, negative) == 100
    assert link_metric("mrr", positive, negative) == link_metrics(positive, negative)["mrr"]

"""Scores against scikit-learn's and against their definitions; maps that come out the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
)

from geof.report.drawing import plane
from geof.report.scores import BINS, CURVE_POINTS, class_scores, link_scores, target_scores
from geof.training.metrics import class_metric
from geof.training.objective import Objective


def draws(rows: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), label] += 1
    return logits.softmax(-1), label


def test_confusion_and_classes():
    chance, label = draws(200, 3)
    found = class_scores(chance, label, ["a", "b", "c"])
    said = chance.argmax(1)
    assert found["confusion"] == confusion_matrix(label, said).tolist()
    wanted = precision_recall_fscore_support(label, said)
    for name, values in zip(("precision", "recall", "f1", "count"), wanted, strict=True):
        assert [one[name] for one in found["per_class"]] == pytest.approx(values.tolist())
    assert found["accuracy"] == pytest.approx(float((said == label).double().mean()))
    assert "ranking" not in found


def test_macro_averages_are_those_of_scikit_learn_and_of_the_metric():
    chance, label = draws(60, 5)
    label[label == 3] = 2  # never occurs; may be predicted
    chance[:, 4] = 0  # never predicted
    found = class_scores(chance, label, list("abcde"))["macro"]
    wanted = precision_recall_fscore_support(
        label, chance.argmax(1), average="macro", zero_division=0
    )
    assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx(wanted[:3])
    assert 100 * found["f1"] == pytest.approx(class_metric("macro_f1", chance.log(), label))
    assert found["count"] == 60
    nothing = class_scores(chance[:0], label[:0], list("abcde"))["macro"]
    assert nothing == {"precision": None, "recall": None, "f1": None, "count": 0}


def test_several_targets_have_a_mean_where_one_makes_sense():
    y = torch.tensor([[0.0, 1.0], [1.0, float("nan")], [0.0, 0.0], [1.0, 1.0]])
    chance = torch.tensor([[0.1, 0.8], [0.7, 0.5], [0.6, 0.1], [0.8, 0.3]])
    table = target_scores(chance, y, Objective("binary", ("a", "b")))["targets"]
    first, second = ([float(cell.split()[0]) for cell in row[2:]] for row in table["rows"])
    assert table["mean"][:2] == ["Macro average", "7"]
    for shown, one, two in zip(table["mean"][2:], first, second, strict=True):
        assert float(shown.split()[0]) == pytest.approx((one + two) / 2, abs=0.01)
    numbers = Objective("regression", ("a", "b"))
    assert target_scores(chance, y, numbers)["targets"]["mean"][2:4] == ["\u2013"] * 2
    alone = target_scores(chance[:, :1], y[:, :1], Objective("binary", ("a",)))["targets"]
    assert "mean" not in alone


def test_a_class_that_never_occurs_has_no_recall():
    found = class_scores(torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([0]), ["a", "b", "c"])
    assert found["per_class"][2] == {"precision": None, "recall": None, "f1": None, "count": 0}


def test_ranking_of_two_classes_and_of_links():
    chance, label = draws(3000, 2)
    score = chance[:, 1]
    for found, positive in (
        (class_scores(chance, label, ["no", "yes"])["ranking"], "yes"),
        (link_scores(score, label)["ranking"], "link"),
    ):
        assert found["positive"] == positive
        assert found["roc_auc"] == pytest.approx(roc_auc_score(label, score.double()))
        wanted = average_precision_score(label, score.double())
        assert found["average_precision"] == pytest.approx(wanted)
        roc = found["roc"]
        assert roc["of"] > CURVE_POINTS >= len(roc["points"])
        assert roc["points"][0] == [0, 0]
        assert roc["points"][-1] == [1, 1]
        assert found["pr"]["points"][-1][0] == 1  # all are found at last
        x, y = np.array(roc["points"]).T
        assert np.trapezoid(y, x) == pytest.approx(found["roc_auc"], abs=5e-3)


def test_no_ranking_of_one_kind_alone():
    assert link_scores(torch.rand(5), torch.ones(5))["ranking"] is None


def test_calibration():
    chance, label = draws(500, 4)
    found = class_scores(chance, label, list("abcd"))["calibration"]
    confidence, right = chance.double().max(1).values.numpy(), (chance.argmax(1) == label).numpy()
    error = 0.0
    for i, one in enumerate(found["bins"]):
        inside = (confidence >= i / BINS) & (confidence < (i + 1) / BINS)
        assert one["count"] == inside.sum()
        if one["count"]:
            assert one["confidence"] == pytest.approx(confidence[inside].mean())
            assert one["right"] == pytest.approx(right[inside].mean())
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert found["error"] == pytest.approx(error)
    sure = link_scores(torch.ones(4), torch.tensor([1, 1, 1, 0]))["calibration"]
    assert sure["bins"][-1]["count"] == 4
    assert sure["error"] == pytest.approx(0.25)


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_a_map_comes_out_the_same_and_fits(method):
    vectors = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    once, again = plane(vectors, method), plane(vectors, method)
    assert once == again
    assert ("t-SNE" in once["how"]) == (method == "tsne")
    places = np.array(once["positions"])
    assert places.shape == (40, 2)
    assert places.min() >= 0
    assert places.max() <= 1
    assert np.ptp(places, axis=0).max() == pytest.approx(1, abs=1e-3)


def test_principal_components_keep_the_distances_of_a_plane():
    flat = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double()
    vectors = flat @ torch.linalg.qr(torch.randn(5, 5).double())[0][:2]
    places = torch.tensor(plane(vectors, "pca")["positions"]).double()
    assert "100%" in plane(vectors, "pca")["how"]
    ratio = torch.pdist(places) / torch.pdist(flat)
    assert float(ratio.max() / ratio.min()) == pytest.approx(1, abs=0.05)


def test_few_or_equal_points_have_a_map_too():
    assert "too few points" in plane(torch.randn(3, 4))["how"]
    assert plane(torch.ones(3, 4))["positions"] == [[0.5, 0.5]] * 3
    assert len(plane(torch.randn(2, 1))["positions"]) == 2

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
from geof.report.scores import BINS, CURVE_POINTS, class_scores, link_scores


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

"""What a part's probabilities say: confusion, ranking curves, calibration, every class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from geof.report.html import short
from geof.training.metrics import binary_metric, metric_named, number_metric
from geof.training.objective import Objective

BINS = 10
"""Bins of equal width of the reliability diagram."""

CURVE_POINTS = 400
"""Points a ranking curve is drawn through; areas are those of the whole curve."""


def class_scores(probability: Tensor, label: Tensor, class_names: Sequence[str]) -> dict[str, Any]:
    """Return the scores of a node or graph run.

    Args:
        probability: ``(R, C)``.
        label: ``(R,)``, in ``0 .. C - 1``.
        class_names: ``C`` names.
    """
    chances, truth = _array(probability), label.cpu().numpy()
    chosen = chances.argmax(1)
    counts = confusion(truth, chosen, len(class_names))
    found: dict[str, Any] = {
        "rows": len(truth),
        "classes": list(class_names),
        "confusion": counts.tolist(),
        "per_class": per_class(counts),
        "macro": macro_average(counts),
        "accuracy": float((chosen == truth).mean()) if len(truth) else None,
    }
    if len(class_names) == 2:
        found["ranking"] = ranking(chances[:, 1], truth == 1, class_names[1])
    found["calibration"] = calibration(chances.max(1), chosen == truth)
    found["calibration"]["of"] = (
        "the probability of the predicted class against how often it is right"
    )
    return found


def target_scores(values: Tensor, y: Tensor, objective: Objective) -> dict[str, Any]:
    """Return the scores of every target of a run that predicts numbers or several yes-or-no's.

    Args:
        values: ``(R, T)``, numbers in their unit, or probabilities.
        y: ``(R, T)``, NaN where a target is missing.
        objective: What the targets are.
    """
    binary = objective.kind == "binary"
    names = ("roc_auc", "average_precision", "accuracy") if binary else ("rmse", "mae", "r2")
    judge = binary_metric if binary else number_metric
    given = values - 0.5 if binary else values  # above zero is yes, as logits are
    columns = [judge(name, given, y) for name in names]
    known = (~y.isnan()).sum(0).tolist()
    rows = [
        [
            name,
            str(known[i]),
            *(_shown(metric, c[i]) for metric, c in zip(names, columns, strict=True)),
        ]
        for i, name in enumerate(objective.names)
    ]
    table: dict[str, Any] = {"heading": ["Target", "Known", *names], "rows": rows}
    if len(rows) > 1:  # numbers of different units have no mean but that of R²
        meant = [_mean_shown(m, c, binary) for m, c in zip(names, columns, strict=True)]
        table["mean"] = ["Macro average", str(sum(known)), *meant]
    return {"rows": len(y), "targets": table}


def _mean_shown(metric: str, values: Sequence[float], binary: bool) -> str:
    """Return the mean over the targets a metric is defined for, where one makes sense."""
    defined = [value for value in values if value == value]
    if not defined or not (binary or metric == "r2"):
        return "\u2013"
    return metric_named(metric).shown(sum(defined) / len(defined))


def _shown(metric: str, value: float) -> str:
    return "not defined" if value != value else metric_named(metric).shown(value)


def link_scores(probability: Tensor, label: Tensor) -> dict[str, Any]:
    """Return the scores of a link run: probabilities and labels of pairs, ``(P,)`` each."""
    chances, truth = _array(probability), label.cpu().numpy() == 1
    found: dict[str, Any] = {"rows": len(truth), "ranking": ranking(chances, truth, "link")}
    found["calibration"] = calibration(chances, truth)
    found["calibration"]["of"] = (
        "the probability of a link against how often there is one among the pairs of this part "
        "(as many pairs without a link as with one, which no real graph has)"
    )
    return found


def confusion(truth: NDArray[Any], chosen: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Return counts ``(C, C)``: a row per true class, a column per predicted one."""
    from sklearn.metrics import confusion_matrix

    if not len(truth):  # which scikit-learn refuses
        return np.zeros((classes, classes), dtype=np.int64)
    counts: NDArray[np.int64] = confusion_matrix(truth, chosen, labels=range(classes))
    return counts


def per_class(counts: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and number of rows per class; ``None`` where undefined."""
    rows = []
    for i in range(len(counts)):
        hits, true, said = int(counts[i, i]), int(counts[i].sum()), int(counts[:, i].sum())
        rows.append(
            {
                "precision": hits / said if said else None,
                "recall": hits / true if true else None,
                "f1": 2 * hits / (true + said) if true + said else None,
                "count": true,
            }
        )
    return rows


def macro_average(counts: NDArray[np.int64]) -> dict[str, Any]:
    """Return the mean over the classes that occur or are predicted, undefined values as 0.

    F1 is then the metric ``macro_f1``, and scikit-learn's.
    """
    rows = [
        row
        for row, said in zip(per_class(counts), counts.sum(0), strict=True)
        if row["count"] or said
    ]
    means = {
        name: sum(row[name] or 0.0 for row in rows) / len(rows) if rows else None
        for name in ("precision", "recall", "f1")
    }
    return {**means, "count": int(counts.sum())}


def ranking(score: NDArray[Any], truth: NDArray[Any], positive: str) -> dict[str, Any] | None:
    """Return the ROC and precision-recall curves, ``None`` unless both kinds occur."""
    if truth.all() or not truth.any():
        return None
    from sklearn.metrics import (
        average_precision_score,
        precision_recall_curve,
        roc_auc_score,
        roc_curve,
    )

    false, true, _ = roc_curve(truth, score)
    precision, recall, _ = precision_recall_curve(truth, score)
    return {
        "positive": positive,
        "share": float(truth.mean()),
        "roc_auc": float(roc_auc_score(truth, score)),
        "average_precision": float(average_precision_score(truth, score)),
        "roc": _curve(false, true),
        "pr": _curve(recall[::-1], precision[::-1]),
    }


def calibration(confidence: NDArray[Any], right: NDArray[Any]) -> dict[str, Any]:
    """Return the reliability diagram and the expected calibration error.

    The error is the mean over rows of the distance between a bin's mean confidence and how often
    its rows are right.
    """
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins: list[dict[str, Any]] = []
    error = 0.0
    for number in range(BINS):
        inside = place == number
        count = int(inside.sum())
        if not count:
            bins.append({"count": 0, "confidence": None, "right": None})
            continue
        sure, share = float(confidence[inside].mean()), float(right[inside].mean())
        bins.append({"count": count, "confidence": sure, "right": share})
        error += count / len(confidence) * abs(sure - share)
    return {"bins": bins, "error": error if len(confidence) else None}


def _curve(x: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    """Return the points to draw and how many there are: ends kept, evenly spaced between."""
    kept = np.arange(len(x))
    if len(x) > CURVE_POINTS:
        kept = np.unique(np.linspace(0, len(x) - 1, CURVE_POINTS).round().astype(int))
    return {"points": short(np.stack([x[kept], y[kept]], 1)), "of": len(x)}


def _array(probability: Tensor) -> NDArray[np.float64]:
    values: NDArray[np.float64] = probability.detach().cpu().double().numpy()
    return values

"""Everything about a run, collected into plain values for one page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geof.errors import DataError
from geof.machine import machine, noted_machine
from geof.report.html import short
from geof.report.run_views import Wanted, run_views
from geof.training import Task
from geof.training.metrics import metric_named
from geof.training.predict import AnyPart, Run
from geof.training.run_folder import read_config, read_result
from geof.version import __version__

TASKS = {
    "node": "node classification",
    "link": "link prediction",
    "graph": "graph classification",
}
METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "roc_auc": "ROC-AUC",
    "average_precision": "average precision",
    "mrr": "MRR",
    **{f"hits@{k}": f"Hits@{k}" for k in (20, 50, 100)},
}


def run_page(
    folder: Path,
    run: Run | None,
    task: Task | None,
    *,
    missing: Sequence[str] = (),
    wanted: Wanted | None = None,
) -> dict[str, Any]:
    """Collect what a page shows of a run.

    Args:
        folder: The run folder.
        run: The run opened, ``None`` if it has no checkpoint (yet).
        task: From :func:`~geof.training.predict.stored_task`, ``None`` without the data.
        missing: What is missing and why, in sentences.
        wanted: What to include.

    Raises:
        ConfigError: If an identifier asked for is unknown.
        DataError: If the folder is no run.
    """
    config, result = read_config(folder), read_result(folder, whole=True)
    asked = config["run"]
    named = isinstance(asked, Mapping) and isinstance(asked.get("method"), str)
    if not named or asked.get("task") not in TASKS:
        raise DataError(
            f"Expected '{folder / 'config.json'}' to describe a run of 'geof train' (it names no "
            "method and task). Check the path."
        )
    reports, cut = read_metrics(folder)
    missing = [*missing, *_unread(result, run), *cut]
    part: AnyPart = (
        "test" if result is not None and result.get("test") is not None else "validation"
    )
    views: dict[str, Any] = {}
    if run is not None and task is not None:
        views = run_views(run, task, part, wanted or Wanted())
    elif not missing:
        missing.append("Scores, map and geometry: the run was not applied to its data.")
    if views and views["map"] is None:
        missing.append("The map: the states are not all finite.")
    if views and views["geometry"] is None:
        missing.append(f"The geometry of nodes: '{asked['method']}' keeps none; only GeoF does.")
    return {
        "kind": "run",
        "title": f"{config.get('dataset')}: {_task(config)} with {asked['method']}",
        "finished": result is not None,
        "missing": missing,
        "headline": _headline(config, result, run, reports),
        "facts": _facts(config, result, run),
        "versions": config.get("versions") or {},
        "machine": noted_machine(folder),
        "made": {"geof": __version__, **machine()},
        "task": asked["task"],
        "config": {k: v for k, v in sorted(asked.items()) if k != "data"},
        "changes": config.get("changes") or [],
        "notes": list(config.get("notes") or []),
        "curves": _curves(reports, result, run, asked["task"]),
        "part": part,
        "part_note": _part_note(part, result, run),
        **views,
    }


def read_metrics(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the epochs of ``metrics.jsonl`` and a sentence about lines that cannot be read."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return [], ["Training curves: there is no metrics.jsonl."]
    reports, bad = [], 0
    for line in path.read_text(errors="replace").splitlines():
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):  # a line cut short by a kill
            report = None
        if isinstance(report, dict) and isinstance(report.get("epoch"), int):
            reports.append(report)
        else:
            bad += 1
    return reports, [f"{bad} line(s) of metrics.jsonl that cannot be read."] if bad else []


def _unread(result: Mapping[str, Any] | None, run: Run | None) -> list[str]:
    if result is None:
        shown = "" if run is None else f" What is shown is epoch {run.epoch}, its best so far."
        return ["The result: the run is not finished." + shown]
    if result.get("test") is None:
        return ["The test part: this run was not to read it, so the page does not read it either."]
    return []


def _headline(
    config: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    run: Run | None,
    reports: Sequence[Mapping[str, Any]],
) -> list[dict[str, str]]:
    found = []
    if result is not None:
        metric = METRICS.get(result["metric"], result["metric"])
        shown = metric_named(result["metric"]).shown
        if result.get("test") is not None:
            found.append(("Test " + metric, shown(result["test"])))
        found.append(("Validation " + metric, shown(result["validation"])))
        found.append(("Chosen epoch", f"{result['best_epoch']} of {result['epochs']}"))
        found.append(("Parameters", f"{result['parameters']:,}"))
        return [{"label": label, "value": value} for label, value in found]
    planned = (config["run"].get("training") or {}).get("epochs")
    last = reports[-1]["epoch"] if reports else 0
    found.append(("Not finished", f"epoch {last} of {planned}"))
    if run is not None:
        if run.about.get("validation") is not None:
            value, unit = run.about["validation"], " %"
            if run.objective.kind == "regression":
                unit = ""
            found.append(("Best validation so far", f"{value:.2f}{unit}"))
        found.append(("At epoch", str(run.epoch)))
    return [{"label": label, "value": value} for label, value in found]


def _facts(
    config: Mapping[str, Any], result: Mapping[str, Any] | None, run: Run | None
) -> list[list[str]]:
    asked = config["run"]
    facts = [
        ("Dataset", config.get("dataset")),
        ("Content hash", config.get("content_hash")),
        ("Task", _task(config)),
        ("Method", asked["method"]),
        ("Revision", config.get("revision")),
        ("Preset", asked.get("preset")),
        ("Split", config.get("split")),
        ("Split hash", config.get("split_hash")),
        ("Seed", config.get("seed")),
        ("Epoch chosen by", config.get("selection")),
    ]
    if result is None and run is not None:
        facts.append(("Parameters", f"{sum(p.numel() for p in run.network.parameters()):,}"))
    if result is not None:
        facts += [
            (f"Test {METRICS.get(name, name)}", metric_named(name).shown(value))
            for name, value in result["metrics"].items()
        ]
        facts.append(("Time", _time(result)))
        if result.get("peak_rss_bytes"):
            facts.append(("Peak memory", f"{result['peak_rss_bytes'] / 1e9:.2f} GB"))
    return [[name, str(value)] for name, value in facts if value is not None]


def _task(config: Mapping[str, Any]) -> str:
    """Return what the run is for, in words."""
    kind = (config.get("targets") or {}).get("kind")
    name = TASKS[config["run"]["task"]]
    if kind == "binary":
        return name + " of yes-or-no targets"
    return name.replace("classification", "regression") if kind == "regression" else name


def _time(result: Mapping[str, Any]) -> str:
    each, count = result["seconds_per_epoch"], result["epochs"]
    return f"{each:.3g} s an epoch, {each * count:,.0f} s in all"


def _part_note(part: str, result: Mapping[str, Any] | None, run: Run | None) -> str:
    epoch = result["best_epoch"] if result is not None else (run.epoch if run is not None else "?")
    if part == "test":
        return f"The test part, read at epoch {epoch}, which validation chose."
    why = "the run is not finished" if result is None else "the run was not to read its test part"
    return f"The validation part, at epoch {epoch}; {why}. It chose the epoch, so it flatters."


def _curves(
    reports: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any] | None,
    run: Run | None,
    task: str,
) -> dict[str, Any] | None:
    """Return every number of ``metrics.jsonl`` as a series over epochs."""
    if not reports:
        return None
    names = dict.fromkeys(name for report in reports for name in report if name != "epoch")
    series = {
        name: short([_number(report.get(name)) for report in reports])
        for name in names
        if any(_number(report.get(name)) is not None for report in reports)
    }
    best = result["best_epoch"] if result is not None else (run.epoch if run is not None else None)
    metric = result["metric"] if result is not None else ("roc_auc" if task == "link" else None)
    return {
        "epochs": [report["epoch"] for report in reports],
        "series": series,
        "best": best or None,
        "metric": METRICS.get(metric, metric) if metric else "metric",
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

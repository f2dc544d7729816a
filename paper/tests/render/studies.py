"""Folders of results as the other commands write them, with names that try to be markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from geof_paper.grid.cells import Row
from geof_paper.grid.records import RecordedRun, results_file, to_line
from tests.report.runs import HOSTILE


def recorded_runs(row: Row, tests: list[float], **more: Any) -> list[RecordedRun]:
    """Return a run per test score."""
    return [
        RecordedRun(
            **{
                "row": row,
                "split": str(i),
                "revision": 1,
                "options": row.options,
                "split_hash": f"hash{i}",
                "seed": i,
                "metric": "accuracy",
                "validation": value + 1,
                "test": value,
                "metrics": {"accuracy": value},
                "best_epoch": 3,
                "epochs": 9,
                "seconds_per_epoch": 0.5,
                "peak_rss_bytes": 10**9,
                "parameters": 1234,
                "selection": "highest validation metric",
                "versions": {"geof": "1"},
                "machine": {"processor": HOSTILE[0], "cores": 2},
                **more,
            }
        )
        for i, value in enumerate(tests)
    ]


def write_records(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tuned = Row("node", "CiteSeer", "geof", "tuned")
    changed = Row("node", "Photo", "geof", "tuned", ("options.steps=9",))
    runs = [
        *recorded_runs(tuned, [76.0, 77.0, 78.0], notes=[HOSTILE[1]]),
        *recorded_runs(Row("node", "CiteSeer", "geof", "paper"), [60.0]),
        *recorded_runs(Row("link", "CiteSeer", "gcn", "plain"), [81.0, 82.0], stale=HOSTILE[2]),
        *recorded_runs(changed, [95.0, 95.4]),
    ]
    for task in ("node", "link"):
        lines = [to_line(run) + "\n" for run in runs if run.row.task == task]
        results_file(folder, task).write_text("".join(lines))
    return folder


def cell(mean: float | None, **more) -> dict:
    plain = {"deviation": 0.5, "count": 3, "of": 10, "paper": 77.7, "paper_deviation": 1.2}
    return {"mean": mean, **plain, "marked": False, "note": "", **more}


def write_studies(folder: Path) -> Path:
    whole = folder / "depth"
    whole.mkdir(parents=True)
    rows = [{"label": HOSTILE[0], "cells": [cell(76.5, marked=True), cell(None, note=HOSTILE[1])]}]
    table = {"title": "Depth", "columns": ["L = 1", HOSTILE[2]], "rows": rows}
    (whole / "table.json").write_text(json.dumps(table))
    (whole / "figure.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">'
        "<script>top.document.title='pwned'</script><rect width='40' height='20'/></svg>"
    )
    about = {"name": "depth", "title": f"Depth {HOSTILE[3]}", "text": f"First.\n\n{HOSTILE[0]}"}
    about |= {"command": "geof reproduce depth", "versions": {"geof": "1"}, "machine": {"cores": 2}}
    (whole / "study.json").write_text(json.dumps({**about, "missing": ["PubMed: not run"]}))
    bare = folder / "bare"
    bare.mkdir()
    (bare / "table.json").write_text(json.dumps(table))
    return folder

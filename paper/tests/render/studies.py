"""Folders of results as the other commands write them, with names that try to be markup."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from geof_paper.grid.records import Record, summarise
from tests.report.runs import HOSTILE


def record(task: str, dataset: str, encoder: str, preset: str, tests: list[float], **more) -> dict:
    entries = [
        {
            "split": str(i),
            "split_hash": f"hash{i}",
            "seed": i,
            "validation": value + 1,
            "test": value,
            "metrics": {"accuracy": value},
            "best_epoch": 3,
            "epochs": 9,
            "seconds_per_epoch": 0.5,
            "peak_rss_bytes": 10**9,
        }
        for i, value in enumerate(tests)
    ]
    changes = more.pop("changes", [])
    row = {"task": task, "dataset": dataset, "encoder": encoder, "preset": preset}
    return asdict(
        Record(
            row={**row, "changes": changes},
            metric="accuracy",
            splits=entries,
            summary=summarise(entries),
            settings={"epochs": 9, "model": {"steps": 2}},
            command=f"geof results run --tasks {task}",
            selection="highest validation metric",
            versions={"geof": "1"},
            machine={"processor": HOSTILE[0], "cores": 2},
            parameters=1234,
            **more,
        )
    )


def write_records(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        record("node", "CiteSeer", "geof", "tuned", [76.0, 77.0, 78.0], notes=[HOSTILE[1]]),
        record("node", "CiteSeer", "geof", "paper", [60.0]),
        record("link", "CiteSeer", "gcn", "plain", [81.0, 82.0]),
        record("node", "Photo", "geof", "tuned", [95.0, 95.4], changes=["model.steps=9"]),
    ]
    for i, row in enumerate(rows):
        (folder / f"{i}.json").write_text(json.dumps(row))
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

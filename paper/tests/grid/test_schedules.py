"""Schedules of the compared methods end by themselves, or their presets say why they do not."""

from __future__ import annotations

import re

import pytest

from geof.methods.registry import get_method, load_preset
from geof_paper.commands.folders import results_folder
from geof_paper.grid.cells import BENCHMARKS, Row
from geof_paper.grid.records import recorded
from geof_paper.grid.search_plans import COMPARED_METHODS

ROWS = [
    Row(task, dataset, method, COMPARED_METHODS.preset(method, task))
    for method in COMPARED_METHODS.methods
    for task, dataset in BENCHMARKS
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_schedule_ends_by_patience_or_says_why_not(row):
    preset = load_preset(row.method, row.preset, row.task, row.dataset)
    if preset.get("patience") is not None:
        assert preset["patience"] < preset["epochs"]
        return
    presets = get_method(row.method).presets
    assert presets is not None
    text = (presets / row.preset / f"{row.task}.yaml").read_text()
    sections = re.split(r"^(\S+):.*\n", text, flags=re.MULTILINE)
    named = dict(zip(sections[1::2], sections[2::2], strict=True))
    said = named["all"] + named.get(row.dataset, "")
    assert "  patience: null # " in said, f"neither patience nor a reason in {row.name}"
    # A fixed number of epochs is for what is recorded with it and as good as its preset.
    record = recorded(row, results_folder())
    assert record is None or not record.stale, "stale anyway: let it end by patience"

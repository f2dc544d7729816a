"""The declared search: fair, resumable, and the presets say what it found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from geof.cli import main
from geof.errors import ConfigError
from geof.io import read_yaml
from geof.methods.registry import get_method, load_preset
from geof_paper.commands.folders import results_folder
from geof_paper.grid import search as study
from geof_paper.grid.cells import BENCHMARKS
from geof_paper.grid.search import (
    BUDGETS,
    GROUPS,
    METHODS,
    PRESET,
    TRIALS,
    Search,
    TrialRow,
    best_trials,
    markdown,
    read_trials,
    record_trials,
    searches,
    with_found,
)


def row(trial: int, validation: float | None, method: str = "geof", **values) -> TrialRow:
    values = {"learning_rate": 0.01, "options.steps": 2, "schedule": "constant"} | values
    budget = {"epochs": 150, "patience": 40}
    return TrialRow("node", "CiteSeer", method, trial, values, validation, {}, 1.0, 1, budget)


def test_every_benchmark_has_one_leader():
    led = [(task, name) for (task, first), rest in GROUPS.items() for name in (first, *rest)]
    assert sorted(led) == sorted(BENCHMARKS)


@pytest.mark.parametrize("search", searches(), ids=lambda search: search.name)
def test_every_space_can_be_searched(search, tmp_path):
    made = search.study(tmp_path)
    assert made.order.trials == TRIALS
    assert made.space.dimensions
    recorded = [row for row in read_trials(RECORDED) if row.search[:2] == search.benchmark]
    if not any(row.method == search.method for row in recorded):  # the preset is where it begins
        made.space.point_of(search.base)


RECORDED = results_folder() / "search.jsonl"


def test_rivals_have_the_same_space_and_budget():
    for task in ("node", "link", "graph"):
        trees = [read_yaml(study.SEARCHES / m / f"{task}.yaml") for m in METHODS]
        assert all(tree == trees[1] for tree in trees[1:])
        assert trees[0]["training"] == trees[1]["training"]
        shared = trees[0]["space"].keys() & trees[1]["space"].keys()
        common = {"learning_rate", "weight_decay", "schedule", "edge_dropout", "weight_averaging"}
        assert common | {"options.dropout", "options.hidden_channels"} <= shared


def test_the_best_mean_wins_and_of_equals_the_first():
    rows = [row(n, value) for n, value in enumerate([70.0, None, 72.0, 71.0, 72.0, 1.0, 2.0, 3.0])]
    ((best, count),) = best_trials(rows)
    assert (best.trial, count) == (2, 8)
    assert not list(best_trials(rows[:-1]))  # a search that goes on has found nothing


def test_recorded_trials_take_the_place_of_those_before(tmp_path):
    file = tmp_path / "search.jsonl"
    record_trials(file, [row(0, 70.0), row(0, 60.0, "gcn-classic")])
    both = record_trials(file, [row(0, 70.0), row(1, 71.0)])
    assert [(r.method, r.trial) for r in both] == [("geof", 0), ("geof", 1), ("gcn-classic", 0)]
    assert read_trials(file) == both


PRESET_TEXT = """# Why this preset is.
all:
  epochs: 60 # enough
  options:
    steps: 2 # the paper's
CiteSeer:
  epochs: 30 # few
  learning_rate: 0.005 # tried
  options:
    scale_features: true # words
    steps: 1 # tried
CS:
  epochs: 40 # large
"""


def test_a_preset_takes_over_what_was_found_and_keeps_the_rest():
    best = row(3, 77.123, learning_rate=0.02, **{"options.steps": 3, "readout.dropout": 0.5})
    text = with_found(PRESET_TEXT, "CiteSeer", best, 8)
    file = {"all", "CiteSeer", "CS"}
    assert text.startswith(PRESET_TEXT[: PRESET_TEXT.index("CiteSeer")])
    assert text.endswith("CS:\n  epochs: 40 # large\n")
    assert "    scale_features: true # words\n" in text
    assert "learning_rate: 0.02 # search on CiteSeer: best of 8, validation 77.12\n" in text
    tree = _parsed(text)
    assert tree.keys() == file
    epochs, patience = BUDGETS["node"]
    assert tree["CiteSeer"] == {
        "epochs": epochs,
        "patience": patience,
        "learning_rate": 0.02,
        "schedule": "constant",
        "options": {"scale_features": True, "steps": 3},
        "readout": {"dropout": 0.5},
    }
    again = with_found(text, "CiteSeer", best, 8)
    assert _parsed(again) == tree
    new = with_found(PRESET_TEXT, "Photo", replace(best, values={"schedule": "cosine"}), 8)
    assert _parsed(new)["Photo"] == {"schedule": "cosine", "epochs": 200, "patience": patience}


def _parsed(text: str) -> dict:
    import yaml

    return yaml.safe_load(text)


def test_presets_are_what_the_recorded_searches_found():
    """A value nobody searched for cannot slip in afterwards."""
    for best, _ in best_trials(read_trials(RECORDED)):
        task, leader, method = best.search
        if get_method(method).revision != best.revision:
            continue
        for dataset in (leader, *GROUPS[task, leader]):
            preset = load_preset(method, PRESET, task, dataset)
            for key, value in best.values.items():
                section, _, name = key.rpartition(".")
                found = (preset.get(section) or {}) if section else preset
                assert found.get(name) == value, (best.search, dataset, key)


def test_only_leaders_are_searched():
    assert [s.name for s in searches(["node"], ["Photo"], ["geof"])] == ["node-Photo-geof"]
    with pytest.raises(ConfigError, match="that lead a group"):
        searches(None, ["Computers"])


def test_a_search_by_command(tiny, tmp_path, capsys, monkeypatch):
    own = load_preset("geof", PRESET, "node", "CiteSeer")["learning_rate"]
    short = {"training": {"epochs": 1}, "space": {"learning_rate": [own, 0.5]}}
    monkeypatch.setattr(Search, "declared", short)
    monkeypatch.setattr(study, "TRIALS", 2)
    words = ["reproduce", "search", "--tasks", "node", "--datasets", "CiteSeer"]
    words += ["--methods", "geof", "--workers", "1"]
    words += ["--work", str(tmp_path / "w"), "--results", str(tmp_path / "r")]
    assert main(words) == 0
    said = capsys.readouterr().out
    rows = read_trials(tmp_path / "r" / "search.jsonl")
    assert [r.trial for r in rows] == [0, 1]
    assert rows[0].values == {"learning_rate": own}
    assert markdown(rows) in said
    folder = Path(tmp_path / "w" / "search" / "node-CiteSeer-geof")
    assert folder.is_dir()
    before = (folder / "summary.csv").read_bytes()
    assert main(words) == 0  # nothing is trained twice
    assert (folder / "summary.csv").read_bytes() == before

"""The declared searches: fair, resumable, and the presets say what they found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from geof.cli import main
from geof.errors import ConfigError
from geof.io import read_yaml
from geof.methods import registry
from geof.methods.registry import get_method, load_preset
from geof.training.config import RunConfig
from geof_paper.commands.folders import results_folder
from geof_paper.grid import search as study
from geof_paper.grid.cells import BENCHMARKS, Row, config_of
from geof_paper.grid.matched import HOSTS, write_matched
from geof_paper.grid.preset_text import sections
from geof_paper.grid.search import (
    Search,
    TrialRow,
    best_trials,
    changes,
    is_complete,
    markdown,
    read_trials,
    record_trials,
    searches,
    with_found,
    write_presets,
)
from geof_paper.grid.search_plans import COMPARED_METHODS, PLANS, RIVALS, plan_of
from geof_paper.studies.compared import COMPARED


def row(trial: int, validation: float | None, method: str = "geof", **values) -> TrialRow:
    values = {"learning_rate": 0.01, "options.steps": 2, "schedule": "constant"} | values
    budget = {"epochs": 150, "patience": 40}
    return TrialRow("node", "CiteSeer", method, trial, values, validation, {}, 1.0, 1, budget)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_benchmark_has_one_leader(plan):
    led = [(task, name) for (task, first), rest in plan.groups.items() for name in (first, *rest)]
    assert sorted(led) == sorted(BENCHMARKS)


def test_every_method_of_the_comparison_is_in_one_search():
    searched = [method for plan in PLANS.values() for method in plan.methods]
    assert sorted(searched) == sorted({compared.method for compared in COMPARED})
    assert plan_of("gcn") is COMPARED_METHODS
    with pytest.raises(ConfigError, match="declared search"):
        plan_of("gcm")


@pytest.mark.parametrize("search", searches(), ids=lambda search: search.name)
def test_every_space_can_be_searched(search, tmp_path):
    made = search.study(tmp_path)
    assert made.order.trials == search.plan.trials
    assert made.order.splits == search.plan.splits
    assert made.space.dimensions
    recorded = [row for row in read_trials(RECORDED) if row.search[:2] == search.benchmark]
    if not any(row.method == search.method for row in recorded):  # the preset is where it begins
        made.space.point_of(search.base)


RECORDED = results_folder() / "search.jsonl"


def test_rivals_have_the_same_space_and_budget():
    for task in ("node", "link", "graph"):
        trees = [read_yaml(study.SEARCHES / m / f"{task}.yaml") for m in RIVALS.methods]
        assert all(tree == trees[1] for tree in trees[1:])
        assert trees[0]["training"] == trees[1]["training"]
        shared = trees[0]["space"].keys() & trees[1]["space"].keys()
        common = {"learning_rate", "weight_decay", "schedule", "edge_dropout", "weight_averaging"}
        assert common | {"options.dropout", "options.hidden_channels"} <= shared


def test_compared_methods_have_the_same_budget_and_small_spaces():
    for task in ("node", "link", "graph"):
        trees = [read_yaml(study.SEARCHES / m / f"{task}.yaml") for m in COMPARED_METHODS.methods]
        assert all(tree["training"] == trees[0]["training"] for tree in trees)
        for tree in trees:
            assert "learning_rate" in tree["space"]
            assert any("dropout" in key for key in tree["space"])
            assert 3 <= len(tree["space"]) <= 6


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
    text = with_found(PRESET_TEXT, "CiteSeer", best, 8, best.values)
    file = {"all", "CiteSeer", "CS"}
    assert text.startswith(PRESET_TEXT[: PRESET_TEXT.index("CiteSeer")])
    assert text.endswith("CS:\n  epochs: 40 # large\n")
    assert "    scale_features: true # words\n" in text
    assert "learning_rate: 0.02 # search on CiteSeer: best of 8, validation 77.12\n" in text
    tree = _parsed(text)
    assert tree.keys() == file
    epochs, patience = RIVALS.budget(("node", "CiteSeer"))
    assert tree["CiteSeer"] == {
        "epochs": epochs,
        "patience": patience,
        "learning_rate": 0.02,
        "schedule": "constant",
        "options": {"scale_features": True, "steps": 3},
        "readout": {"dropout": 0.5},
    }
    again = with_found(text, "CiteSeer", best, 8, best.values)
    assert _parsed(again) == tree
    cosine = replace(best, values={"schedule": "cosine"})
    new = with_found(PRESET_TEXT, "Photo", cosine, 8, cosine.values)
    assert _parsed(new)["Photo"] == {"schedule": "cosine", "epochs": 200, "patience": patience}


def _parsed(text: str) -> dict:
    import yaml

    return yaml.safe_load(text)


def test_presets_are_what_the_recorded_searches_found():
    """A value nobody searched for cannot slip in afterwards."""
    rows = read_trials(RECORDED)
    for best, _ in best_trials(rows):
        task, leader, method = best.search
        changed = changes(best, rows)
        if get_method(method).revision != best.revision:
            continue
        plan = PLANS[best.plan]
        for dataset in (leader, *plan.groups[task, leader]):
            preset = load_preset(method, plan.preset(method, task), task, dataset)
            found = best.values if dataset == leader or not plan.only_changes else changed
            for key, value in found.items():
                section, _, name = key.rpartition(".")
                own = (preset.get(section) or {}) if section else preset
                default = RunConfig(method=method, task=task).tree()
                usual = (default.get(section) or {}) if section else default
                assert own.get(name, usual.get(name)) == value, (best.search, dataset, key)


def test_only_leaders_are_searched():
    assert [s.name for s in searches(["node"], ["Photo"], ["geof"])] == ["node-Photo-geof"]
    assert len(searches(plan="compared")) == 17 * 6
    with pytest.raises(ConfigError, match="that lead a group"):
        searches(None, ["Computers"])
    with pytest.raises(ConfigError, match="hgcn"):
        searches(None, None, ["geof"], plan="compared")


def found(trial: int, validation: float, **values) -> TrialRow:
    """Return a trial of the small search."""
    values = {"learning_rate": 0.01, "options.dropout": 0.2} | values
    budget = {"epochs": 120, "patience": 30}
    return TrialRow(
        *("node", "CiteSeer", "hgcn", trial, values, validation, {}, 1.0, 1, budget),
        plan="compared",
    )


HGCN_TEXT = """# Why.
all:
  epochs: 200 # cut
  options:
    dropout: 0.2 # published
CiteSeer:
  options:
    dropout: 0.3 # tried
PubMed:
  epochs: 900 # many
  patience: 90 # few
  options:
    dropout: 0.4 # published for PubMed
"""


@pytest.fixture
def presets(tmp_path, monkeypatch):
    """Return the file of HGCN's preset for nodes, in a folder of its own."""
    file = tmp_path / "published" / "node.yaml"
    file.parent.mkdir()
    file.write_text(HGCN_TEXT)
    own = replace(get_method("hgcn"), presets=tmp_path)
    monkeypatch.setattr(study, "get_method", {"hgcn": own}.__getitem__)
    return file


def test_followers_take_over_only_what_a_small_search_changed(presets):
    changed = [found(0, 70.0), found(1, 72.0, learning_rate=0.02), found(2, 69.0), found(3, 71.0)]
    assert write_presets(changed) == [presets]
    tree = _parsed(presets.read_text())
    for dataset, dropout in {"CiteSeer": 0.3, "PubMed": 0.4, "CS": None, "Physics": None}.items():
        assert tree[dataset]["learning_rate"] == 0.02
        assert tree[dataset].get("options", {}).get("dropout") == dropout
        budget = COMPARED_METHODS.budget(("node", dataset))
        own = (900, 90) if dataset == "PubMed" else budget  # which ends by patience already
        assert (tree[dataset]["epochs"], tree[dataset]["patience"]) == own
    assert tree["all"] == _parsed(HGCN_TEXT)["all"]


def test_a_preset_that_no_trial_beats_stays_as_it_is(presets):
    kept = [found(0, 73.0), found(1, 72.0, learning_rate=0.02), found(2, 69.0), found(3, 71.0)]
    assert write_presets(kept) == []
    assert presets.read_text() == HGCN_TEXT


def test_the_two_searches_share_a_file_and_earlier_lines_stay_valid(tmp_path):
    file = tmp_path / "search.jsonl"
    both = record_trials(file, [row(0, 70.0), *(found(n, 70.0 + n) for n in range(4))])
    assert [r.plan for r in both] == ["rivals", *["compared"] * 4]
    (hgcn,) = searches(["node"], ["CiteSeer"], ["hgcn"])
    (geof,) = searches(["node"], ["CiteSeer"], ["geof"])
    assert is_complete(hgcn, both)  # four are enough here
    assert not is_complete(geof, both)
    earlier = file.read_text().replace(', "plan": "rivals"', "")
    assert earlier != file.read_text()
    file.write_text(earlier)
    assert read_trials(file) == both


def test_the_cost_of_a_search_comes_from_recorded_epochs():
    (search,) = searches(["node"], ["CiteSeer"], ["sparrow"])
    seconds = search.longest_seconds(results_folder())
    budget = search.declared["training"]["epochs"] + search.base.pretraining.epochs
    assert seconds is not None
    assert 0.01 < seconds / (4 * budget) < 10  # an epoch takes about 0.1 s
    assert replace(search, method="d-gcn").longest_seconds(Path("nowhere")) is None


@pytest.mark.parametrize(("method", "key"), [("geof", "learning_rate"), ("hgcn", "learning_rate")])
def test_a_search_by_command(method, key, tiny, tmp_path, capsys, monkeypatch):
    plan = plan_of(method)
    own = load_preset(method, plan.preset(method, "node"), "node", "CiteSeer")[key]
    short = {"training": {"epochs": 1}, "space": {key: [own, 0.5]}, "fixed": {}}
    monkeypatch.setattr(Search, "declared", short)
    monkeypatch.setitem(PLANS, plan.name, replace(plan, trials=2))
    words = ["reproduce", "search", "--plan", plan.name, "--tasks", "node", "--datasets"]
    words += ["CiteSeer", "--methods", method, "--workers", "1"]
    words += ["--work", str(tmp_path / "w"), "--results", str(tmp_path / "r")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"no times of node-CiteSeer-{method}" in said
    rows = read_trials(tmp_path / "r" / "search.jsonl")
    assert [r.trial for r in rows] == [0, 1]
    assert {r.plan for r in rows} == {plan.name}
    assert {tuple(r.splits) for r in rows} == {plan.splits}
    assert rows[0].values == {key: own}
    assert markdown(rows) in said
    folder = Path(tmp_path / "w" / "search" / f"node-CiteSeer-{method}")
    assert folder.is_dir()
    before = (folder / "summary.csv").read_bytes()
    assert main(words) == 0  # nothing is trained twice
    assert (folder / "summary.csv").read_bytes() == before


def test_what_every_trial_has_stands_in_the_preset():
    search = next(s for s in searches() if s.name == "link-PubMed-geof")
    assert search.base.options["controller_channels"] == 8
    found = replace(row(0, 90.0), fixed=search.declared["fixed"])
    text = with_found("all:\n  epochs: 9 # x\n", "PubMed", found, 8, {})
    assert "  options:\n    controller_channels: 8 # of all trials\n" in text


def test_controls_follow_geof(tmp_path, monkeypatch):
    """Written anew, the controls' presets of a searched benchmark load as those that ship."""
    shipped = {host: load_preset(host, "matched", "node", "CiteSeer") for host in HOSTS}
    for host in HOSTS:
        method = get_method(host)
        shutil.copytree(method.presets, tmp_path / host)
        monkeypatch.setitem(registry._METHODS, host, replace(method, presets=tmp_path / host))
        file = tmp_path / host / "matched" / "node.yaml"
        before, _, after = sections(file.read_text(), "CiteSeer")
        file.write_text(before + after)
        assert load_preset(host, "matched", "node", "CiteSeer") != shipped[host]
    assert len(write_matched([("node", "CiteSeer")])) == len(HOSTS)
    for host in HOSTS:
        assert load_preset(host, "matched", "node", "CiteSeer") == shipped[host]


def test_bonds_are_searched_where_they_may_matter():
    key = "data.edge_columns"
    spaces = {s.benchmark[1]: s.declared["space"] for s in searches(["graph"], None, ["geof"])}
    assert {name for name, space in spaces.items() if key in space} == {"ogbg-molhiv"}
    assert not any(isinstance(value, dict) for space in spaces.values() for value in space.values())


def test_a_preset_says_whether_bonds_are_used(tmp_path, monkeypatch):
    best = replace(row(1, 90.0), task="graph", dataset="BBBP", training={"epochs": 40})
    values = {"learning_rate": 0.01, "data.edge_columns": "use"}
    geof = get_method("geof")
    shutil.copytree(geof.presets, tmp_path / "presets")
    file = tmp_path / "presets" / "tuned" / "graph.yaml"
    file.write_text(with_found(file.read_text(), "BBBP", best, 8, values))
    monkeypatch.setitem(registry._METHODS, "geof", replace(geof, presets=tmp_path / "presets"))
    found = Row("graph", "BBBP", "geof", "tuned")
    assert found.config("0").data.edge_columns == "use"
    assert found.options["data"] == {"edge_columns": "use"}
    assert config_of("geof", "graph", "BBBP", found.options).data.edge_columns == "use"
    assert "data" not in Row("graph", "PROTEINS", "geof", "tuned").options

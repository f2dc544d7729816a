"""Rows are found by what decides their runs, and so are the folders of their cells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geof.data.catalogue import CATALOGUE
from geof.errors import ConfigError
from geof.methods import registry
from geof_paper.grid.cells import (
    BENCHMARKS,
    Cell,
    Row,
    changed_options,
    choose_rows,
    config_of,
)
from geof_paper.grid.declared import STUDIES, choose_benchmarks
from geof_paper.studies.compared import COMPARED

TASKS = ("node", "link", "graph")


def row(*changes: str, method="geof", preset="paper", study: str | None = None) -> Row:
    return Row("node", "CiteSeer", method, preset, changes, study)


def test_a_further_dataset_is_run_when_named_and_not_the_papers(monkeypatch):
    monkeypatch.setitem(CATALOGUE, "Ring", replace(CATALOGUE["CiteSeer"], name="Ring"))
    assert "Ring" not in {r.dataset for r in choose_rows(None, None, None)}
    rows = choose_rows(None, ["Ring", "NCI1"], [("geof", "tuned")])
    assert [r.benchmark for r in rows] == [("node", "Ring"), ("link", "Ring"), ("graph", "NCI1")]
    assert choose_benchmarks(STUDIES["ablation"], ["Ring"]) == (("node", "Ring"),)


def test_the_papers_eighteen_benchmarks():
    assert len(BENCHMARKS) == 18
    assert len(choose_rows(None, None, None)) == 18 * len(COMPARED)
    assert [r.dataset for r in choose_rows(["link"], ["Photo"], [("geof", "tuned")])] == ["Photo"]
    with pytest.raises(ConfigError, match="Did you mean 'Photo'"):
        choose_rows(None, ["Phoot"], None)
    with pytest.raises(ConfigError, match="at least one row"):
        choose_rows(["graph"], ["Photo"], None)
    with pytest.raises(ConfigError, match="Did you mean 'tuned'"):
        choose_rows(None, None, [("geof", "tunde")])
    with pytest.raises(ConfigError, match="Did you mean 'epochs'"):
        choose_rows(None, None, [("geof", "tuned")], ("epoch=3",))


def test_a_folder_is_named_by_what_is_in_it(tmp_path):
    cell = Cell(row(), "0")
    assert cell.folder(tmp_path) == Cell(row(), "0").folder(tmp_path)
    others = [Cell(row(), "1"), Cell(row("epochs=3"), "0"), Cell(row(preset="tuned"), "0")]
    assert len({c.folder(tmp_path) for c in [cell, *others]}) == 4


def test_a_changed_preset_is_another_cell(tmp_path, monkeypatch):
    before = Cell(row(), "0").folder(tmp_path)
    monkeypatch.setattr("geof.training.config.load_preset", lambda *_: {"epochs": 7})
    assert Cell(row(), "0").folder(tmp_path) != before


def test_a_raised_revision_is_another_cell(tmp_path, monkeypatch):
    before = Cell(row(), "0")
    folder, code = before.folder(tmp_path), before.code()
    raised = replace(registry.get_method("geof"), revision=2)
    monkeypatch.setitem(registry._METHODS, "geof", raised)
    after = Cell(row(), "0")
    assert (before.revision, after.revision) == (2, 2)
    assert after.folder(tmp_path) != folder
    assert after.code() != code


def test_trying_out_options_and_a_study_are_different_cells(tmp_path):
    tried, declared = row("options.evolution=frozen"), row("options.evolution=frozen", study="s")
    assert Cell(tried, "0").folder(tmp_path) != Cell(declared, "0").folder(tmp_path)
    assert [r.config("0").read_test for r in (row(), tried, declared)] == [True, False, True]


def test_a_config_says_all_that_decides_a_run():
    config = row("options.steps=3", "seed=7").config("4")
    assert (config.method, config.task, config.preset, config.split) == (
        *("geof", "node", "paper", "4"),
    )
    assert config.data.dataset == "CiteSeer"
    assert config.options["steps"] == 3
    assert (config.seed, row().config("4").seed) == (7, 4)


def test_earlier_names_of_options_are_the_same_row():
    assert row("model.steps=3") == row("options.steps=3")
    assert row("model.steps=3").name == "node-CiteSeer-geof-paper+options.steps=3"


def test_a_method_has_the_preset_of_the_task():
    rows = {(r.task, r.method): r.preset for r in choose_rows(None, None, None)}
    assert [rows[task, "hgcn"] for task in TASKS] == ["published", "published", "adapted"]
    assert [rows[task, "spdgnn"] for task in TASKS] == ["adapted"] * 3
    with pytest.raises(ConfigError, match=r"graph task \(got 'published', .*Valid: 'adapted'"):
        choose_rows(None, None, [("hgcn", "published")])


@pytest.mark.parametrize("compared", COMPARED, ids=lambda c: f"{c.method}:{c.preset}")
def test_options_that_differ_from_the_defaults_give_the_config_again(compared):
    for task, dataset in (("node", "CiteSeer"), ("link", "Photo"), ("graph", "BBBP")):
        given = Row(task, dataset, compared.method, compared.preset_for(task)).config("3")
        options = changed_options(given)
        again = config_of(compared.method, task, dataset, options)
        assert replace(again, preset=given.preset, split="3") == given
        assert changed_options(again) == options


def test_an_option_that_is_off_and_usually_on_is_kept():
    options = row("weight_decay=0", "options.atlas_initialisation=false", "epochs=200").options
    assert options["weight_decay"] == 0
    assert options["options"]["atlas_initialisation"] is False
    assert "epochs" not in options  # two hundred is what it is anyway


def test_the_seed_and_the_split_are_not_among_the_options():
    assert changed_options(row().config("0")) == changed_options(row().config("9"))
    assert changed_options(row("seed=3").config("0"))["seed"] == 3  # unless one is chosen

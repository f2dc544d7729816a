"""Cells are found again by their content, run once, recorded, and shown beside the paper."""

from __future__ import annotations

import json

import pytest
import torch

from geof.cli import main
from geof.errors import ConfigError
from geof.training import NodeTask
from geof_paper.grid.cells import METHODS, SETTINGS, Cell, Row, choose_rows
from geof_paper.grid.grid import Grid, order
from geof_paper.grid.records import read_records, record_row, summarise
from geof_paper.grid.worker import train_cells
from geof_paper.render.results_markdown import render_page
from geof_paper.studies.compared import COMPARED
from geof_paper.studies.printed import printed

SMALL = ("epochs=2", "model.hidden_channels=8", "model.blocks=2", "signature.walk_length=3")


def row(*changes: str, task="node", encoder="geof", preset="paper") -> Row:
    return Row(task, "CiteSeer", encoder, preset, changes)


def run(tmp_path, rows, splits=("0", "1")) -> list[str]:
    said: list[str] = []
    grid = Grid(order(rows, splits), tmp_path / "work", tmp_path / "results")
    train_cells(grid, say=said.append)
    return said


def test_the_papers_eighteen_settings():
    assert len(SETTINGS) == 18
    assert len(choose_rows(None, None, None)) == 18 * len(METHODS)
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
    monkeypatch.setattr("geof_paper.grid.cells.load_preset", lambda *_: {"epochs": 7})
    assert Cell(row(), "0").folder(tmp_path) != before


def test_finished_cells_are_not_run_again(tiny, tmp_path):
    assert len(run(tmp_path, [row(*SMALL)])) == 2
    assert run(tmp_path, [row(*SMALL)]) == []
    assert tiny == ["CiteSeer"]  # read once for both splits, not at all the second time


def test_an_ablation_does_not_read_the_test_part(tiny, tmp_path, monkeypatch):
    def evaluate(self, network, part):
        assert part == "validation"
        return original(self, network, part)

    original = NodeTask.evaluate
    monkeypatch.setattr("geof.training.tasks.NodeTask.evaluate", evaluate)
    run(tmp_path, [row(*SMALL)])
    (record,) = read_records(tmp_path / "results")
    assert all(entry["test"] is None for entry in record.splits)
    assert "test_mean" not in record.summary


def test_a_results_file_says_how_it_was_made(tiny, tmp_path, monkeypatch):
    small = {"epochs": 2, "model": {"hidden_channels": 8, "blocks": 2}}
    monkeypatch.setattr("geof_paper.grid.cells.load_preset", lambda *_: small)
    run(tmp_path, [row()])
    (record,) = read_records(tmp_path / "results")
    tests = [entry["test"] for entry in record.splits]
    assert record.summary["test_mean"] == pytest.approx(sum(tests) / 2)
    assert record.summary["splits"] == 2
    assert len({entry["split_hash"] for entry in record.splits}) == 2
    assert [entry["seed"] for entry in record.splits] == [0, 1]
    assert record.settings["epochs"] == 2
    assert record.settings["model"]["hidden_channels"] == 8
    assert "--splits 0-1" in record.command
    assert record.versions["torch"] == torch.__version__
    page = render_page([record], "Remarks.")
    assert f"{record.summary['test_mean']:.2f} ± {record.summary['test_deviation']:.2f}" in page
    assert "(2 of 10)" in page
    assert "77.7 ± 1.2" in page  # the paper's
    assert "not run" in page
    assert page.index("Remarks.") < page.index("## Node")


def test_splits_run_on_another_day_stay_in_the_row(tiny, tmp_path):
    run(tmp_path, [row(*SMALL)], splits=("4",))
    run(tmp_path, [row(*SMALL)], splits=("1",))
    (record,) = read_records(tmp_path / "results")
    assert [entry["split"] for entry in record.splits] == ["1", "4"]
    assert "--splits 1,4" in record.command


def test_splits_of_another_machine_stay_if_they_were_made_alike(tiny, tmp_path, monkeypatch):
    run(tmp_path, [row(*SMALL)], splits=("0", "4"))
    (before,) = read_records(tmp_path / "results")
    (tmp_path / "work").rename(tmp_path / "elsewhere")
    run(tmp_path, [row(*SMALL)], splits=("1",))
    (record,) = read_records(tmp_path / "results")
    assert [entry["split"] for entry in record.splits] == ["0", "1", "4"]
    assert [record.splits[0], record.splits[2]] == before.splits
    assert record.summary["splits"] == 3
    (tmp_path / "work").rename(tmp_path / "elsewhere too")
    monkeypatch.setattr("geof_paper.grid.cells.load_preset", lambda *_: {"weight_decay": 0.1})
    run(tmp_path, [row(*SMALL)], splits=("2",))
    (record,) = read_records(tmp_path / "results")
    assert [entry["split"] for entry in record.splits] == ["2"]


def test_failures_are_shown(tiny, tmp_path, monkeypatch):
    preset = {"epochs": 2, "learning_rate": 1e30, "model": {"hidden_channels": 8, "blocks": 2}}
    monkeypatch.setattr("geof_paper.grid.cells.load_preset", lambda *_: preset)
    said = run(tmp_path, [row()])
    assert "not finite" in said[0] or "finite" in said[0]
    work = tmp_path / "work"
    cell = Cell(row(), "0")
    assert json.loads((cell.folder(work) / "failure.json").read_text())["epoch"] >= 1
    assert run(tmp_path, [row()]) == []  # not tried again with the same settings


def test_a_cell_in_other_hands_is_passed_over(tiny, tmp_path):
    from geof.training.run_folder import locked

    cell = Cell(row(*SMALL), "0")
    with locked(cell.folder(tmp_path / "work")):
        assert len(run(tmp_path, [row(*SMALL)])) == 1
    assert len(run(tmp_path, [row(*SMALL)])) == 1


def test_summary_of_known_numbers():
    entries = [{"test": t, "validation": 1.0} for t in (1.0, 3.0)]
    summary = summarise(entries)
    assert summary["test_mean"] == 2.0
    assert summary["test_deviation"] == pytest.approx(2**0.5)
    assert summary["validation_deviation"] == 0.0


def test_printed_numbers():
    assert printed("node", "CiteSeer").mean == 77.7
    assert printed("link", "Computers").mean == 98.0
    assert printed("graph", "ogbg-molhiv").mean == 82.9
    assert printed("node", "CiteSeer", "Nobody") is None
    assert printed("node", "CiteSeer", None) is None
    assert printed("node", "Photo", "GIN w/ SO").mean == 93.6
    assert printed("graph", "BBBP", "ARGNN w/ SO").mean == 91.9
    assert printed("link", "Photo", "GIN w/ SO") is None
    for method in COMPARED:
        if method.printed is not None:
            assert printed("node", "CiteSeer", method.printed) is not None, method


def test_command_line(tiny, tmp_path, capsys):
    out = ["--work", str(tmp_path / "w"), "--results", str(tmp_path / "r")]
    words = ["--tasks", "node", "--datasets", "CiteSeer", "--methods", "geof:paper"]
    assert main(["results", "run", *words, "--splits", "0", *out, *SMALL]) == 0
    assert "split 0: validation" in capsys.readouterr().out
    page = tmp_path / "page.md"
    results = ["--results", str(tmp_path / "r")]
    assert main(["results", "render", *results, "--out", str(page)]) == 0
    assert "What each addition is worth" in page.read_text()
    assert main(["results", "render", "--results", str(tmp_path / "none")]) == 1
    assert main(["results", "run", *words, "--budget", "0s", "--splits", "3", *out, *SMALL]) == 0
    assert "1 of 1 cells are not finished" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["results", "run", "--splits", "a"])


def test_the_machine_is_the_one_the_run_ended_on(tiny, tmp_path):
    run(tmp_path, [row(*SMALL)], splits=("0",))
    (record,) = read_records(tmp_path / "results")
    assert record.machine["cores"] >= 1
    note = Cell(row(*SMALL), "0").folder(tmp_path / "work") / "machine.json"
    note.write_text('{"processor": "another"}')
    record_row(row(*SMALL), tmp_path / "work", tmp_path / "results")
    (record,) = read_records(tmp_path / "results")
    assert record.machine == {"processor": "another"}

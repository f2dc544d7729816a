"""A grid is run once, whatever happens to it, and says what it lacks."""

from __future__ import annotations

import json

import pytest

from geof_paper.grid.cells import Cell, Row
from geof_paper.grid.grid import Grid, order
from geof_paper.grid.records import read_record, record_path
from geof_paper.grid.worker import train_cells
from geof_paper.studies.declared import FULL, STUDIES, Line, choose_lines, choose_settings

NODE = ("node", "CiteSeer")


@pytest.fixture
def grid(tiny, small_presets, tmp_path):
    rows = [Row("node", "CiteSeer", "geof", "tuned"), _frozen()]
    return Grid(order(rows, ("0", "1")), tmp_path / "work", tmp_path / "results")


def _frozen() -> Row:
    return Row("node", "CiteSeer", "geof", "tuned", ("model.evolution=frozen",), "ablation")


def run(grid: Grid, **options) -> tuple[int, list[str]]:
    said: list[str] = []
    return train_cells(grid, say=said.append, **options), said


def records(grid: Grid) -> dict[str, list[dict]]:
    """Return every row's scores; times differ from run to run."""
    return {
        row.name: [
            {k: e[k] for k in ("split", "test", "validation", "best_epoch", "split_hash")}
            for e in read_record(record_path(row, grid.results)).splits
        ]
        for row in grid.rows
    }


def test_lines_of_a_study_read_the_test_part_and_lie_apart(grid):
    assert run(grid)[0] == 0
    assert record_path(_frozen(), grid.results).parent.name == "studies"
    assert all(e["test"] is not None for entries in records(grid).values() for e in entries)


def test_trying_out_settings_and_a_study_are_different_cells(grid):
    tried = Row("node", "CiteSeer", "geof", "tuned", ("model.evolution=frozen",))
    assert Cell(tried, "0").folder(grid.work) != Cell(_frozen(), "0").folder(grid.work)


def test_a_recorded_cell_is_not_run_again_though_its_folder_is_gone(grid):
    run(grid)
    grid.work.rename(grid.work.with_name("elsewhere"))
    assert grid.missing() == []
    assert run(grid) == (0, [])


def test_other_code_makes_other_cells(grid, monkeypatch):
    run(grid)
    before = records(grid)
    monkeypatch.setattr("geof_paper.grid.cells.code_digest", lambda encoder: "other")
    monkeypatch.setattr("geof_paper.grid.records.code_digest", lambda encoder: "other")
    assert sum(len(entry.splits) for entry in grid.missing()) == 4
    failed, said = run(grid)
    assert (failed, len(said)) == (0, 4)
    assert records(grid) == before
    assert {e["code"] for e in read_record(record_path(_frozen(), grid.results)).splits} == {
        "other"
    }


def test_changes_that_change_nothing_are_the_plain_row(small_presets):
    study = STUDIES["sensitivity"]
    own = study.row(Line("B = 2", changes=("model.blocks=2",)), NODE, "tuned")
    assert own == Row("node", "CiteSeer", "geof", "tuned")
    other = study.row(Line("B = 4", changes=("model.blocks=4",)), NODE, "tuned")
    assert (other.changes, other.study) == (("model.blocks=4",), "sensitivity")
    assert other.command("0-9") == "geof reproduce sensitivity --datasets CiteSeer --splits 0-9"


def test_studies_are_the_papers():
    assert [s[1] for s in STUDIES["feedback"].settings] == ["Photo", "CS", "Mutagenicity", "NCI1"]
    assert STUDIES["feedback"].printed(FULL, ("graph", "NCI1")).mean == 83.0
    assert STUDIES["feedback"].printed(STUDIES["feedback"].lines[1], ("graph", "NCI1")).mean == 80.4
    assert len(STUDIES["node-link"].settings) == 12
    printed = [line.printed for line in STUDIES["graph"].lines]
    assert len({name for name in printed if name}) == 15
    for study in STUDIES.values():
        rows = [study.row(line, s, "tuned") for line in study.lines for s in study.settings]
        for row in rows:
            row.plan("0")  # every line is possible


def test_lines_and_settings_are_chosen_by_name():
    study = STUDIES["node-link"]
    assert choose_settings(study, ["Photo"]) == (("node", "Photo"), ("link", "Photo"))
    assert choose_settings(STUDIES["ablation"], ["CiteSeer"]) == (("node", "CiteSeer"),)
    assert choose_settings(STUDIES["ablation"], ["PROTEINS"]) == (("graph", "PROTEINS"),)
    assert [line.label for line in choose_lines(study, ["geof"])] == ["GeoF paper", "GeoF tuned"]
    assert [line.label for line in choose_lines(study, ["geof:paper"])] == ["GeoF paper"]
    with pytest.raises(Exception, match="Did you mean 'Photo'"):
        choose_settings(study, ["Phoot"])
    with pytest.raises(Exception, match="Did you mean 'hgcn'"):
        choose_lines(study, ["hgc"])

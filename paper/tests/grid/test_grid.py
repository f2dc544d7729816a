"""A grid knows what is done, what is stale and what it lacks."""

from __future__ import annotations

from dataclasses import replace

from geof.methods import registry
from geof_paper.grid.grid import Grid, order
from geof_paper.grid.records import read_runs, recorded
from paper.tests.grid.grids import FROZEN, PLAIN, run, scores
from paper.tests.stand_ins import stand_in


def test_variants_of_a_study_read_the_test_part(grid):
    assert run(grid)[0] == 0
    assert len(scores(grid)) == 4
    assert all(run.test is not None for run in read_runs(grid.results))
    assert recorded(FROZEN, grid.results).row.study == "ablation"


def test_a_recorded_cell_is_not_run_again_though_its_folder_is_gone(grid):
    run(grid)
    grid.work.rename(grid.work.with_name("elsewhere"))
    assert grid.missing() == []
    assert run(grid) == (0, [])


def test_a_run_on_other_data_does_not_count(grid):
    run(grid)
    cell, data = grid.cells[0], stand_in("CiteSeer")
    assert grid.is_done(cell)
    assert grid.is_done(cell, data)
    assert not grid.is_done(cell, replace(data, content_hash="other"))


def test_a_raised_revision_makes_other_cells(grid, monkeypatch):
    run(grid)
    before = scores(grid)
    raised = replace(registry.get_method("geof"), revision=2)
    monkeypatch.setitem(registry._METHODS, "geof", raised)
    monkeypatch.setattr("geof_paper.grid.records.vouched_revision", lambda method, task: 2)
    fresh = Grid(order([replace(PLAIN), replace(FROZEN)], ("0", "1")), grid.work, grid.results)
    assert sum(len(entry.splits) for entry in fresh.missing()) == 4
    failed, said = run(fresh)
    assert (failed, len(said)) == (0, 4)
    assert scores(fresh) == before
    assert {run.revision for run in read_runs(grid.results)} == {2}


def test_what_is_missing_is_told_row_by_row(grid):
    run(Grid(grid.cells[:3], grid.work, grid.results))
    (missing,) = grid.missing()
    assert (missing.row, missing.splits) == (FROZEN, ("1",))
    assert "splits 1, about 0 s" in str(missing)
    wider = Grid(order([FROZEN, PLAIN], ("0", "1", "2")), grid.work, grid.results)
    assert [(m.row, m.splits) for m in wider.missing()] == [
        (FROZEN, ("1", "2")),
        (PLAIN, ("2",)),
    ]


def test_a_grid_records_what_lies_in_folders(grid):
    run(grid)
    text = (grid.results / "node.jsonl").read_text()
    (grid.results / "node.jsonl").unlink()
    Grid(grid.cells[:1], grid.work, grid.results).record()  # all splits of its row
    assert {run.row for run in read_runs(grid.results)} == {PLAIN}
    assert [run.split for run in read_runs(grid.results)] == ["0", "1"]
    grid.record()
    assert (grid.results / "node.jsonl").read_text() == text


def test_a_recorded_run_counts_only_with_what_is_to_be_measured(grid):
    run(grid)
    measured = replace(grid, measure="depth")
    assert measured.unmeasured() == list(grid.cells)
    grid.work.rename(grid.work.with_name("elsewhere"))
    cell = grid.cells[0]
    assert grid.is_done(cell)
    assert not measured.is_done(cell)
    assert measured.unmeasured() == []  # nothing is trained here
    assert len(run(measured)[1]) == 4
    assert measured.is_done(cell)
    assert len(read_runs(grid.results)[0].measures["depth"]["geometry_change"]) == 2

"""A grid is run once, whatever happens to it, and says what it lacks."""

from __future__ import annotations

import json

import pytest

from geof.errors import DataError, StoppedError
from geof_paper.grid import worker as runner
from geof_paper.grid.cells import Cell, Row
from geof_paper.grid.grid import Grid, order
from geof_paper.grid.records import read_record, record_path
from geof_paper.grid.worker import Worker
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
    worker = Worker(
        grid.work, say=said.append, seconds=grid.seconds, is_done=grid.is_done, **options
    )
    return worker.run(grid.cells, grid.finish), said


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


def test_a_stopped_grid_goes_on_to_the_same_records(grid, tmp_path):
    run(grid)
    whole = records(grid)
    again = Grid(grid.cells, tmp_path / "work 2", tmp_path / "results 2")
    asked = iter([False, True])  # before the first cell, and after its first epoch
    failed, said = run(again, should_stop=lambda: next(asked, True))
    assert (failed, said) == (0, [])
    assert sum(len(entry.splits) for entry in again.missing()) == 4
    run(again)
    assert records(again) == whole


def test_a_failure_is_recorded_and_the_grid_goes_on(grid, monkeypatch):
    original = runner.run_experiment

    def failing(experiment, out, watch):
        if "frozen" in str(out) and "split-0" in str(out):
            out.mkdir(parents=True)
            raise MemoryError("no room")
        return original(experiment, out=out, watch=watch)

    monkeypatch.setattr(runner, "run_experiment", failing)
    failed, said = run(grid)
    assert failed == 1
    assert any("failed: no room" in line for line in said)
    (missing,) = grid.missing()
    assert missing.failed == (("0", "MemoryError: no room"),)
    assert "split 0 failed: MemoryError: no room" in str(missing)
    assert run(grid)[1] == []  # not tried again by itself
    monkeypatch.setattr(runner, "run_experiment", original)
    assert len(run(grid, retry=True)[1]) == 1
    assert grid.missing() == []


def test_a_dataset_that_is_not_there_does_not_stop_the_others(grid, monkeypatch, tmp_path):
    load = runner.load

    def partial(name, data_root=None):
        if name == "PubMed":
            raise DataError("Expected PubMed.")
        return load(name)

    monkeypatch.setattr(runner, "load", partial)
    rows = [Row("node", "PubMed", "geof", "tuned"), *grid.rows]
    wider = Grid(order(rows, ("0",)), grid.work, grid.results)
    failed, said = run(wider)
    assert failed == 1
    assert said[0] == "PubMed: Expected PubMed."
    assert [entry.row.dataset for entry in wider.missing()] == ["PubMed"]


def test_a_budget_leaves_out_what_does_not_fit(grid, monkeypatch):
    run(Grid(grid.cells[:2], grid.work, grid.results))
    path = record_path(_frozen(), grid.results)
    record = json.loads(path.read_text())
    record["splits"][0]["seconds_per_epoch"] = 1000.0  # two epochs of them
    path.write_text(json.dumps(record))
    monkeypatch.setattr(runner.time, "monotonic", lambda: 0.0)
    run(grid, deadline=1500.0)
    (missing,) = grid.missing()
    assert missing.row == _frozen()
    assert str(missing).endswith("splits 1, about 33 min")


def test_stopping_is_not_a_failure(grid, monkeypatch):
    def stopped(experiment, out, watch):
        raise StoppedError("Stopped.")

    monkeypatch.setattr(runner, "run_experiment", stopped)
    assert run(grid) == (0, [])


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

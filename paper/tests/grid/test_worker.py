"""Cells are run once, whatever happens: stopped, failed, killed, in other hands, out of time."""

from __future__ import annotations

import json
import pickle

from geof.data import sources
from geof.errors import DataError, GeofError, StoppedError
from geof.executor import Outcome, WorkerLostError
from geof.training import Trainer, trials
from geof.training.run_folder import locked
from geof_paper.grid import worker
from geof_paper.grid.cells import Row
from geof_paper.grid.grid import Grid, order
from geof_paper.grid.records import read_failures, read_runs, results_file
from geof_paper.grid.worker import CellTrainer
from geof_paper.studies.measures import MEASURES
from paper.tests.grid.grids import FROZEN, run, scores


def test_a_stopped_grid_goes_on_to_the_same_scores(grid, tmp_path):
    run(grid)
    whole = scores(grid)
    again = Grid(grid.cells, tmp_path / "work 2", tmp_path / "results 2")
    asked = iter([False, True])  # before the first cell, and after its first epoch
    failed, said = run(again, should_stop=lambda: next(asked, True))
    assert (failed, said) == (0, [])
    assert sum(len(entry.splits) for entry in again.missing()) == 4
    run(again)
    assert scores(again) == whole


def test_a_failure_is_recorded_and_the_grid_goes_on(grid, monkeypatch):
    original = Trainer.fit

    def failing(self):
        if "frozen" in str(self.out) and "split-0" in str(self.out):
            self.out.mkdir(parents=True)
            raise MemoryError("no room")
        return original(self)

    monkeypatch.setattr(Trainer, "fit", failing)
    failed, said = run(grid)
    assert failed == 1
    assert any("failed: no room" in line for line in said)
    (missing,) = grid.missing()
    assert missing.failed == (("0", "MemoryError: no room"),)
    assert "split 0 failed: MemoryError: no room" in str(missing)
    (recorded,) = read_failures(grid.results)
    assert (recorded.row, recorded.split) == (FROZEN, "0")
    assert run(grid)[1] == []  # not tried again by itself
    monkeypatch.setattr(Trainer, "fit", original)
    assert len(run(grid, retry=True)[1]) == 1
    assert grid.missing() == []
    assert read_failures(grid.results) == []


def test_another_failure_takes_the_place_of_the_first(grid, monkeypatch):
    errors = iter([MemoryError("no room"), *[OSError("no disk")] * 3, GeofError("no luck")])

    def failing(self):
        raise next(errors)

    monkeypatch.setattr(Trainer, "fit", failing)
    run(grid)
    run(Grid(grid.cells[:1], grid.work, grid.results), retry=True)
    assert grid.failure(grid.cells[0]) == "GeofError: no luck"
    assert grid.failure(grid.cells[1]) == "OSError: no disk"


def test_a_dataset_that_is_not_there_does_not_stop_the_others(grid, monkeypatch, tmp_path):
    load = sources.load

    def partial(name, **how):
        if name == "PubMed":
            raise DataError("Expected PubMed.")
        return load(name)

    monkeypatch.setattr(sources, "load", partial)
    rows = [Row("node", "PubMed", "geof", "tuned"), *grid.rows]
    wider = Grid(order(rows, ("0",)), grid.work, grid.results)
    failed, said = run(wider)
    assert failed == 1
    assert said[0] == "PubMed: Expected PubMed."
    assert [entry.row.dataset for entry in wider.missing()] == ["PubMed"]


def test_a_dataset_that_is_not_there_is_said_once_and_counted_for_every_cell(grid, monkeypatch):
    def absent(name, **how):
        raise DataError("Expected CiteSeer.")

    monkeypatch.setattr(sources, "load", absent)
    assert run(grid) == (4, ["CiteSeer: Expected CiteSeer."])
    assert not any(entry.failed for entry in grid.missing())  # not a failure of theirs


def test_a_budget_leaves_out_what_does_not_fit(grid, monkeypatch):
    run(Grid(grid.cells[:2], grid.work, grid.results))
    path = results_file(grid.results, "node")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("study"):
            line["seconds_per_epoch"] = 1000.0  # two epochs of them
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(worker.time, "monotonic", lambda: 0.0)
    run(grid, budget=1500.0)
    (missing,) = grid.missing()
    assert missing.row == FROZEN
    assert str(missing).endswith("splits 1, about 33 min")
    run(Grid(grid.cells, grid.work / "other", grid.results / "other"), budget=0.0)
    assert not (grid.work / "other").exists()  # over before anything is begun


def test_stopping_is_not_a_failure(grid, monkeypatch):
    def stopped(self):
        raise StoppedError("Stopped.")

    monkeypatch.setattr(Trainer, "fit", stopped)
    assert run(grid) == (0, [])


class Losing:
    """An executor whose workers die over some cells."""

    def run(self, function, jobs, *, should_stop=lambda: False):
        for cell in jobs:
            error = WorkerLostError("Its process was killed.") if cell.split == "0" else None
            yield cell, Outcome(None if error else function(cell, should_stop), error)


def test_a_lost_worker_is_a_failure_of_its_cell(grid):
    failed, said = run(grid, executor=Losing())
    assert failed == 2
    assert said[0].endswith("split 0 failed: Its process was killed.")
    assert {m.failed for m in grid.missing()} == {
        (("0", "WorkerLostError: Its process was killed."),)
    }


def test_a_cell_that_another_process_has_is_tried_once_more_and_left(grid, monkeypatch):
    monkeypatch.setattr(worker, "_PATIENCE_SECONDS", 0.0)
    first = grid.cells[0]
    with locked(first.folder(grid.work)):
        failed, said = run(grid)
        assert (failed, len(said)) == (0, 3)
        assert [entry.splits for entry in grid.missing()] == [("0",)]
    held = locked(first.folder(grid.work))
    held.__enter__()
    real = Trainer.fit

    def releasing(self):
        try:
            return real(self)
        finally:
            if "split-0" in str(self.out):  # when it has been found locked
                held.__exit__(None, None, None)

    monkeypatch.setattr(Trainer, "fit", releasing)
    failed, said = run(grid)
    assert (failed, len(said)) == (0, 1)
    assert grid.missing() == []


def test_every_cell_is_recorded_when_it_ends(grid):
    counts = []
    run(grid, should_stop=lambda: counts.append(len(read_runs(grid.results))) or False)
    assert sorted(set(counts)) == [0, 1, 2, 3, 4]


def test_what_ended_unrecorded_is_not_run_again(grid, monkeypatch):
    monkeypatch.setattr(worker, "record_cells", lambda *_: None)  # the parent was killed
    assert len(run(grid)[1]) == 4
    monkeypatch.undo()
    monkeypatch.setattr(Trainer, "fit", None)
    assert not read_runs(grid.results)
    assert run(grid) == (0, [])
    grid.record()
    assert len(read_runs(grid.results)) == 4


def test_data_and_tasks_are_kept_from_cell_to_cell(grid, tiny, monkeypatch):
    built = []
    real = trials.build_task
    monkeypatch.setattr(
        trials, "build_task", lambda config, data: built.append(config.split) or real(config, data)
    )
    run(grid)
    assert tiny == ["CiteSeer"]
    assert built == ["0", "1"]


def test_a_worker_gets_no_data_with_its_copy(grid):
    trainer = CellTrainer(grid)
    trainer(grid.cells[0], lambda: False)
    copy = pickle.loads(pickle.dumps(trainer))
    assert not copy.runner._data
    assert not copy.runner._tasks
    assert copy.grid == grid


def test_cells_trained_before_are_measured(grid, monkeypatch):
    run(Grid(grid.cells[:3], grid.work, grid.results))
    measured = []
    monkeypatch.setitem(MEASURES, "depth", lambda run, data: measured.append(run) or {"found": 1})
    study = Grid(grid.cells, grid.work, grid.results, "depth")
    failed, said = run(study, budget=0.0)
    assert (failed, said, len(measured)) == (0, [], 3)  # training would take time
    failed, said = run(study)
    assert (failed, len(said), len(measured)) == (0, 1, 4)
    assert {run.measures["depth"]["found"] for run in read_runs(grid.results)} == {1}
    assert run(study) == (0, [])
    assert len(measured) == 4


def test_a_measure_that_fails_is_told_and_the_others_go_on(grid, monkeypatch):
    def fails_once(run, data, first=[]):  # noqa: B006
        if not first:
            first.append(run)
            raise GeofError("no measure")
        return {}

    monkeypatch.setitem(MEASURES, "depth", fails_once)
    study = Grid(grid.cells, grid.work, grid.results, "depth")
    failed, said = run(study)
    assert failed == 1
    assert said[1].endswith("split 0, measured: no measure")
    assert len(said) == 5
    assert len(read_runs(grid.results)) == 4
    assert run(study) == (0, [])
    assert study.unmeasured() == []

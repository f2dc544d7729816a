"""Recorded runs: complete, in one order, valid as long as their numbers are those of today."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import fields, replace

import pytest
import torch

from geof.errors import DataError
from geof.methods import registry
from geof.training import NodeTask
from geof_paper.grid.cells import Cell, Row
from geof_paper.grid.grid import Grid, order
from geof_paper.grid.records import (
    FailedRun,
    Record,
    RecordedRun,
    expected_seconds,
    failed_splits,
    read_failures,
    read_records,
    read_runs,
    record_cells,
    recorded,
    recorded_run,
    results_file,
    stale_reasons,
    to_line,
)
from geof_paper.grid.worker import train_cells
from geof_paper.render.results_markdown import render_page

SMALL = ("epochs=2", "options.hidden_channels=8", "options.blocks=2", "signature.walk_length=3")


def row(*changes: str, task="node", method="geof", preset="paper", study=None) -> Row:
    return Row(task, "CiteSeer", method, preset, changes, study)


def run(tmp_path, rows, splits=("0", "1")) -> list[str]:
    said: list[str] = []
    grid = Grid(order(rows, splits), tmp_path / "work", tmp_path / "results")
    train_cells(grid, say=said.append)
    return said


def made(test: float | None = 70.0, split: str = "0", **more) -> RecordedRun:
    """Return a run as it might have been recorded."""
    about = {"row": row(preset="tuned"), "split": split, "revision": 1, "seed": int(split)}
    about |= {"split_hash": f"hash{split}", "metric": "accuracy", "validation": 71.0}
    about |= {"test": test, "metrics": {} if test is None else {"accuracy": test}}
    about |= {"best_epoch": 3, "epochs": 9, "parameters": 12, "seconds_per_epoch": 0.5}
    about |= {"peak_rss_bytes": 10**9, "selection": "highest", "versions": {"geof": "1"}}
    about |= {"machine": {"processor": "p", "cores": 2}, **more}
    if "options" not in about:
        about["options"] = about["row"].options
    return RecordedRun(**about)


def write(folder, *runs: RecordedRun | FailedRun) -> None:
    folder.mkdir(exist_ok=True)
    for task in ("node", "link", "graph"):
        lines = [to_line(r) + "\n" for r in runs if r.row.task == task]
        results_file(folder, task).write_text("".join(lines))


def test_finished_cells_are_not_run_again(tiny, tmp_path):
    assert len(run(tmp_path, [row(*SMALL)])) == 2
    assert run(tmp_path, [row(*SMALL)]) == []
    assert tiny == ["CiteSeer"]  # read once for both splits, not at all the second time


def test_options_tried_out_do_not_read_the_test_part(tiny, tmp_path, monkeypatch):
    def evaluate(self, network, part, *, brief=False):
        assert part == "validation"
        return original(self, network, part, brief=brief)

    original = NodeTask.evaluate
    monkeypatch.setattr("geof.training.tasks.NodeTask.evaluate", evaluate)
    run(tmp_path, [row(*SMALL)])
    (record,) = read_records(tmp_path / "results")
    assert all(run.test is None for run in record.runs)
    assert record.test is None


def test_a_line_says_how_a_run_was_made(tiny, tmp_path, monkeypatch):
    small = {"epochs": 2, "options": {"hidden_channels": 8, "blocks": 2}}
    monkeypatch.setattr("geof.training.config.load_preset", lambda *_: small)
    run(tmp_path, [row()])
    (record,) = read_records(tmp_path / "results")
    tests = [r.test for r in record.runs]
    assert record.test.mean == pytest.approx(sum(tests) / 2)
    assert record.test.number == 2
    assert len({r.split_hash for r in record.runs}) == 2
    assert [r.seed for r in record.runs] == [0, 1]
    first = record.first
    assert (first.revision, first.content_hash, first.stale) == (1, "c", None)
    assert first.options["epochs"] == 2
    assert first.options["options"]["hidden_channels"] == 8
    assert "--splits 0-1" in record.command
    assert record.versions["torch"] == torch.__version__
    assert stale_reasons(record.runs) == [None, None]
    page = render_page([record], "Remarks.")
    assert f"{record.test.mean:.2f} ± {record.test.deviation:.2f}" in page
    assert "(2 of 10" in page
    assert "77.7 ± 1.2" in page  # the paper's
    assert "not run" in page
    assert "stale" not in page
    assert page.index("Remarks.") < page.index("## Node")


def test_rows_whose_best_epoch_is_among_the_last_say_so():
    page = render_page([Record(row(preset="tuned"), (made(), made(best_epoch=9, split="1")))])
    assert "(2 of 10, 1 late)" in page
    assert [made(best_epoch=n, epochs=100).is_late for n in (95, 96)] == [False, True]


def test_splits_run_on_another_day_stay_in_the_row(tiny, tmp_path):
    run(tmp_path, [row(*SMALL)], splits=("4",))
    run(tmp_path, [row(*SMALL)], splits=("1",))
    (record,) = read_records(tmp_path / "results")
    assert [r.split for r in record.runs] == ["1", "4"]
    assert "--splits 1,4" in record.command


def test_splits_of_another_machine_stay_and_those_of_other_options_are_stale(
    tiny, tmp_path, monkeypatch
):
    run(tmp_path, [row(*SMALL)], splits=("0", "4"))
    (before,) = read_records(tmp_path / "results")
    (tmp_path / "work").rename(tmp_path / "elsewhere")
    run(tmp_path, [row(*SMALL)], splits=("1",))
    (record,) = read_records(tmp_path / "results")
    assert [r.split for r in record.runs] == ["0", "1", "4"]
    assert (record.runs[0], record.runs[2]) == before.runs
    (tmp_path / "work").rename(tmp_path / "elsewhere too")
    monkeypatch.setattr("geof.training.config.load_preset", lambda *_: {"weight_decay": 0.1})
    run(tmp_path, [row(*SMALL)], splits=("2",))
    (record,) = read_records(tmp_path / "results")
    assert [r.split for r in record.runs] == ["2"]
    reasons = stale_reasons(read_runs(tmp_path / "results"))
    assert [reason is None for reason in reasons] == [False, False, True, False]
    assert reasons[0] == "made with other options than preset 'paper' has"


def test_failures_are_recorded_and_shown(tiny, tmp_path, monkeypatch):
    preset = {"epochs": 2, "learning_rate": 1e30, "options": {"hidden_channels": 8, "blocks": 2}}
    monkeypatch.setattr("geof.training.config.load_preset", lambda *_: preset)
    said = run(tmp_path, [row()])
    assert "not finite" in said[0] or "finite" in said[0]
    work, results = tmp_path / "work", tmp_path / "results"
    failure = json.loads((Cell(row(), "0").folder(work) / "failure.json").read_text())
    assert failure["epoch"] >= 1
    assert run(tmp_path, [row()]) == []  # not tried again with the same options
    assert read_runs(results) == []
    failures = read_failures(results)
    assert [(f.row, f.split) for f in failures] == [(row(), "0"), (row(), "1")]
    assert failures[0].failure == failure
    assert failed_splits(row(), results) == ["0", "1"]
    page = render_page([], "", failures)
    assert f"node CiteSeer geof paper, split 0: epoch {failure['epoch']}, " in page
    monkeypatch.undo()
    assert failed_splits(row(), results) == []  # with other options


def test_the_machine_is_the_one_the_run_ended_on(tiny, tmp_path):
    run(tmp_path, [row(*SMALL)], splits=("0",))
    (record,) = read_records(tmp_path / "results")
    assert record.machine["cores"] >= 1
    cell = Cell(row(*SMALL), "0")
    (cell.folder(tmp_path / "work") / "machine.json").write_text('{"processor": "another"}')
    record_cells([cell], tmp_path / "work", tmp_path / "results")
    (record,) = read_records(tmp_path / "results")
    assert record.machine == {"processor": "another"}


def test_summary_of_known_numbers():
    record = Record(row(), (made(1.0), made(3.0, "1")))
    assert record.test.mean == 2.0
    assert record.test.deviation == pytest.approx(2**0.5)
    assert Record(row(), (made(), made(split="1"))).validation.deviation == 0.0
    alone = Record(row(), (made(5.0, "3"),))
    assert (alone.test.mean, alone.test.deviation) == (5.0, None)
    assert alone.command.endswith("--splits 3")


def test_versions_that_differ_stand_side_by_side():
    record = Record(row(), (made(), made(split="1", versions={"geof": "2"})))
    assert record.versions == {"geof": "1, 2"}
    assert record.machine == {"processor": "p", "cores": 2}


def test_a_line_holds_everything_and_nothing_empty(tmp_path):
    whole = made(
        content_hash="abc",
        notes=["a note"],
        measures={"depth": {"geometry_change": [0.1, 0.2]}},
        legacy_code="0123",
        stale="a reason",
    )
    failed = FailedRun(row=row(), split="1", revision=1, failure={"error": "E: no", "epoch": 2})
    tried = made(None, row=row("epochs=3"))
    for given in (whole, made(), tried):
        assert {f.name for f in fields(given)} >= json.loads(to_line(given)).keys() - {
            *("task", "dataset", "method", "preset", "changes", "study")
        }
    write(tmp_path, whole, made(row=row(task="link")), tried)
    assert read_runs(tmp_path) == [whole, tried, made(row=row(task="link"))]
    assert read_failures(tmp_path) == []
    write(tmp_path, failed)
    assert read_failures(tmp_path) == [failed]
    assert "notes" not in to_line(made())
    assert "test" not in json.loads(to_line(tried))


def test_a_damaged_line_is_named(tmp_path):
    write(tmp_path, made())
    path = results_file(tmp_path, "node")
    for bad in ("{}", "not JSON", '["a"]', to_line(made()).replace('"seed"', '"sed"')):
        path.write_text(to_line(made()) + "\n" + bad + "\n")
        with pytest.raises(DataError, match=r"line 2 of '.*node\.jsonl'"):
            read_runs(tmp_path)


def test_files_are_in_one_order_whatever_came_first(tiny, tmp_path):
    rows = [row(*SMALL, study="s"), row(*SMALL), row("epochs=2", method="gcn", preset="plain")]
    cells = list(order(rows, ("1", "0")))
    train_cells(Grid(tuple(cells), tmp_path / "work", tmp_path / "results"))
    path = results_file(tmp_path / "results", "node")
    text = path.read_text()
    keys = [
        (d["method"], d.get("study", ""), d["split"]) for d in map(json.loads, text.splitlines())
    ]
    assert keys == sorted(keys)
    assert len(keys) == 6
    for again in (cells, cells[::-1]):
        path.unlink()
        for cell in again:
            record_cells([cell], tmp_path / "work", tmp_path / "results")
        assert path.read_text() == text
    changed = path.stat().st_mtime_ns
    record_cells(cells, tmp_path / "work", tmp_path / "results")
    assert path.stat().st_mtime_ns == changed  # nothing new, nothing written


def test_a_study_and_options_tried_out_are_different_lines(tmp_path):
    tried, declared = row("epochs=3"), row("epochs=3", study="ablation")
    write(tmp_path, made(1.0, row=tried), made(2.0, row=declared))
    assert recorded(tried, tmp_path).first.test == 1.0
    assert recorded(declared, tmp_path).first.test == 2.0
    # Another study with the same variant has the same runs.
    assert recorded(replace(declared, study="feedback"), tmp_path).first.test == 2.0
    assert [record.row for record in read_records(tmp_path)] == [tried]


def _record_one(number: int, folder) -> None:
    cell = Cell(Row("node", "CiteSeer", "geof", "paper", SMALL), str(number))
    record_cells([cell], folder / "work", folder / "results")


def test_several_processes_record_at_once(tiny, tmp_path):
    run(tmp_path, [row(*SMALL)], splits=tuple("012345"))
    path = results_file(tmp_path / "results", "node")
    text = path.read_text()
    path.unlink()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_record_one, args=(n, tmp_path)) for n in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert path.read_text() == text


def test_what_was_measured_elsewhere_on_the_same_network_stays(tiny, tmp_path):
    run(tmp_path, [row(*SMALL)], splits=("0",))
    results = tmp_path / "results"
    (before,) = read_runs(results)
    write(results, replace(before, measures={"theory": {"a": 1}}))
    cell = Cell(row(*SMALL), "0")
    measured = cell.folder(tmp_path / "work") / "measures" / "depth.json"
    measured.parent.mkdir()
    measured.write_text('{"b": 2}')
    record_cells([cell], tmp_path / "work", results)
    assert read_runs(results)[0].measures == {"theory": {"a": 1}, "depth": {"b": 2}}
    write(results, replace(before, validation=0.0, measures={"theory": {"a": 1}}))
    record_cells([cell], tmp_path / "work", results)
    assert read_runs(results)[0].measures == {"depth": {"b": 2}}  # of another network


def test_a_failure_does_not_replace_a_run(tiny, tmp_path):
    run(tmp_path, [row(*SMALL)], splits=("0",))
    before = read_runs(tmp_path / "results")
    folder = Cell(row(*SMALL), "0").folder(tmp_path / "work")
    (folder / "result.json").unlink()
    (folder / "failure.json").write_text('{"error": "E: no"}')
    record_cells([Cell(row(*SMALL), "0")], tmp_path / "work", tmp_path / "results")
    assert read_runs(tmp_path / "results") == before
    assert read_failures(tmp_path / "results") == []


def with_revision(monkeypatch, revision: int) -> None:
    raised = replace(registry.get_method("geof"), revision=revision)
    monkeypatch.setitem(registry._METHODS, "geof", raised)


def test_a_raised_revision_makes_runs_stale(monkeypatch):
    assert stale_reasons([made()]) == [None]
    with_revision(monkeypatch, 2)
    monkeypatch.setattr("geof_paper.grid.records.vouched_revision", lambda method, task: 2)
    assert stale_reasons([made(), made(revision=2)]) == [
        "made by revision 1 of 'geof', which has 2",
        None,
    ]


def test_no_canary_no_validity(monkeypatch):
    with_revision(monkeypatch, 2)  # and nobody stored its canaries
    (reason,) = stale_reasons([made(revision=2)])
    assert reason == "no stored canary vouches for revision 2 of 'geof'"


def test_what_was_found_stale_stays_stale():
    assert stale_reasons([made(stale="made by an earlier source")]) == ["made by an earlier source"]


def test_runs_of_a_method_that_is_not_here_are_stale(tmp_path):
    other = made(row=Row("node", "CiteSeer", "nobody", "none"), options={})
    (reason,) = stale_reasons([other])
    assert "Expected a known method" in reason
    write(tmp_path, other)
    (record,) = read_records(tmp_path)  # and are shown
    assert record.stale == {"0": reason}


def test_a_run_counts_for_a_cell_if_everything_agrees(tmp_path, monkeypatch):
    cell = Cell(row(preset="tuned"), "0")
    write(tmp_path, made(content_hash="abc"))
    found = read_runs(tmp_path)[0]
    assert recorded_run(cell, tmp_path) == found
    assert recorded_run(cell, tmp_path, "abc") == found
    assert recorded_run(cell, tmp_path, "other data") is None
    assert recorded_run(Cell(row(preset="tuned"), "1"), tmp_path) is None
    assert recorded_run(Cell(row(preset="paper"), "0"), tmp_path) is None
    write(tmp_path, made())
    assert recorded_run(cell, tmp_path, "any data") is not None  # it was not noted
    write(tmp_path, made(options={"epochs": 7}))
    assert recorded_run(cell, tmp_path) is None
    assert recorded(cell.row, tmp_path) is None
    write(tmp_path, made(stale="why"))
    assert recorded_run(cell, tmp_path) is None
    assert recorded(cell.row, tmp_path).stale == {"0": "why"}
    write(tmp_path, made())
    with_revision(monkeypatch, 2)
    assert recorded_run(Cell(row(preset="tuned"), "0"), tmp_path) is None


def test_stale_rows_are_marked_on_the_page(tmp_path):
    write(tmp_path, made(70.0), made(72.0, "1", stale="made by an earlier source"))
    page = render_page(read_records(tmp_path))
    assert "71.00 ± 1.41 (2 of 10, 1 stale)" in page
    assert "- node CiteSeer geof tuned, split 1: made by an earlier source" in page


def test_expected_times(tmp_path):
    assert expected_seconds(row(preset="tuned"), tmp_path) is None
    write(tmp_path, made(), made(split="1", seconds_per_epoch=1.5, stale="why"))
    assert expected_seconds(row(preset="tuned"), tmp_path) == pytest.approx(9.0)

"""Every table and figure by one command: written in full, continued, and honest about gaps."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from geof.cli import main
from geof.methods import registry
from geof.training import Trainer
from geof_paper.commands.grid import _executor
from geof_paper.commands.reproduce import COMPUTED, TRAINED
from geof_paper.grid.declared import STUDIES
from tests.processes import marked, wait_for

FILES = {"table.csv", "table.json", "table.md", "table.tex", "study.json"}
FIGURE = {"figure.svg", "figure.png"}


@pytest.fixture
def reproduce(tiny, small_presets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: main(["reproduce", *words])


def read(folder: str) -> dict[str, dict[str, dict]]:
    """Return a table's cells by line and column."""
    table = json.loads(Path("reproduced", folder, "table.json").read_text())
    return {
        row["label"]: dict(zip(table["columns"], row["cells"], strict=True))
        for row in table["rows"]
    }


def about(folder: str) -> dict:
    return json.loads(Path("reproduced", folder, "study.json").read_text())


def recorded(changes: str = "") -> list[dict]:
    """Return the recorded runs of GeoF on CiteSeer's nodes with these changes."""
    lines = map(json.loads, Path("results/node.jsonl").read_text().splitlines())
    chosen = [line for line in lines if " ".join(line.get("changes", [])) == changes]
    assert {(line["dataset"], line["method"]) for line in chosen} == {("CiteSeer", "geof")}
    return chosen


def mean_test(runs: list[dict]) -> float:
    return sum(run["test"] for run in runs) / len(runs)


def test_all_studies_are_commands():
    assert set(TRAINED) == set(STUDIES)


def test_an_ablation_from_nothing_to_its_files(reproduce, capsys):
    assert reproduce("ablation", "--datasets", "CiteSeer", "--splits", "0-1") == 0
    out = capsys.readouterr().out
    assert "What each part is worth: reproduced/ablation" in out
    assert {p.name for p in Path("reproduced/ablation").iterdir()} == FILES | FIGURE
    table = read("ablation")
    assert list(table) == ["full", "w/o SA", "w/o AI", "w/o GT", "w/o SF", "w/o GE"]
    frozen = recorded("options.evolution=frozen")
    assert {run["study"] for run in frozen} == {"ablation"}
    cell = table["w/o GE"]["CiteSeer"]
    assert cell["mean"] == pytest.approx(mean_test(frozen))
    assert (cell["count"], cell["of"]) == (2, 2)
    assert table["full"]["CiteSeer"]["paper"] == 77.7
    differences = read("ablation-differences")
    wanted = mean_test(frozen) - mean_test(recorded())
    assert differences["w/o GE"]["CiteSeer"]["mean"] == pytest.approx(wanted)
    study = about("ablation")
    assert study["command"] == "geof reproduce ablation --datasets CiteSeer --splits 0,1"
    assert study["missing"] == []
    assert study["versions"]["torch"]
    rows = csv.DictReader(Path("reproduced/ablation/table.csv").read_text().splitlines())
    assert len(list(rows)) == 6


def test_nothing_is_run_twice_and_nothing_with_no_run(reproduce, capsys, monkeypatch):
    words = ("feedback", "--datasets", "CiteSeer", "--splits", "0")
    assert reproduce(*words, "--no-run") == 0
    assert "4 of 4 cells are not finished" in capsys.readouterr().out
    assert read("feedback")["full"]["CiteSeer"]["mean"] is None
    assert not Path("runs").exists()
    assert reproduce(*words) == 0
    first = Path("reproduced/feedback/table.csv").read_text()

    def never(*arguments, **options):
        raise AssertionError("run again")

    monkeypatch.setattr(Trainer, "fit", never)
    assert reproduce(*words) == 0
    assert Path("reproduced/feedback/table.csv").read_text() == first


def test_failures_are_in_the_table(reproduce, monkeypatch, capsys):
    original = Trainer.fit

    def failing(self):
        if "one-shot" in str(self.out):
            raise MemoryError("no room")
        return original(self)

    monkeypatch.setattr(Trainer, "fit", failing)
    assert reproduce("feedback", "--datasets", "CiteSeer", "--splits", "0-1") == 1
    cell = read("feedback")["one-shot"]["CiteSeer"]
    assert (cell["mean"], cell["note"]) == (None, "failed: split 0, 1")
    assert read("feedback")["full"]["CiteSeer"]["count"] == 2
    assert "failed: split 0, 1" in Path("reproduced/feedback/table.md").read_text()
    assert "MemoryError: no room" in capsys.readouterr().out
    assert "MemoryError: no room" in about("feedback")["missing"][0]
    monkeypatch.setattr(Trainer, "fit", original)
    assert reproduce("feedback", "--datasets", "CiteSeer", "--splits", "0-1", "--retry-failed") == 0
    assert read("feedback")["one-shot"]["CiteSeer"]["count"] == 2


def test_stale_runs_are_shown_said_and_run_again(reproduce, monkeypatch, capsys):
    words = ("feedback", "--datasets", "CiteSeer", "--splits", "0")
    assert reproduce(*words) == 0
    assert "stale" not in about("feedback")["text"]
    raised = replace(registry.get_method("geof"), revision=2)
    monkeypatch.setitem(registry._METHODS, "geof", raised)
    monkeypatch.setattr("geof_paper.grid.records.vouched_revision", lambda method, task: 2)
    assert reproduce(*words, "--no-run") == 0
    cell = read("feedback")["full"]["CiteSeer"]
    assert (cell["count"], cell["note"]) == (1, "stale: split 0")
    assert (
        "4 of 4 runs are stale and are run again by the command: 4 made by revision 1 of 'geof', "
        "which has 2."
    ) in about("feedback")["text"]
    assert "4 of 4 cells are not finished" in capsys.readouterr().out
    assert about("feedback")["missing"] == []  # they are there
    assert reproduce(*words) == 0
    assert "stale" not in about("feedback")["text"]
    assert {run["revision"] for run in recorded()} == {2}


def test_tables_without_figures(reproduce, capsys):
    assert reproduce("aggregate", "--from", "paper", "--no-figures") == 0
    assert {p.name for p in Path("reproduced/aggregate-paper").iterdir()} == FILES
    assert reproduce("visualise", "--no-run") == 0  # its figure needs run folders
    assert "The figure needs run folders that are not here." in capsys.readouterr().out


def test_the_command_of_a_part_of_a_study_is_that_parts(reproduce):
    words = ("--methods", "w/o SA,w/o GE", "--datasets", "CiteSeer", "--splits", "0")
    assert reproduce("ablation", *words, "--no-run", "--no-figures") == 0
    command = about("ablation")["command"]
    assert command == (
        "geof reproduce ablation --methods 'w/o SA,w/o GE' --datasets CiteSeer --splits 0"
    )
    before = Path("reproduced/ablation/study.json").read_text()
    again = [*shlex.split(command)[2:], "--no-run", "--no-figures"]
    assert reproduce(*again) == 0
    assert Path("reproduced/ablation/study.json").read_text() == before


def test_sensitivity_has_two_tables_and_figures_and_the_page_one(reproduce, monkeypatch, capsys):
    small = {"epochs": 1, "options": {"hidden_channels": 64, "controller_channels": 4}}
    monkeypatch.setattr("geof.training.config.load_preset", lambda *_: small)
    assert reproduce("sensitivity", "--datasets", "CiteSeer", "--splits", "0") == 0
    assert list(read("sensitivity-blocks")) == [f"B = {b}" for b in (4, 8, 16, 32, 64)]
    assert list(read("sensitivity-prototypes")) == [f"K = {k}" for k in (4, 8, 16, 32, 64)]
    for name in ("sensitivity-blocks", "sensitivity-prototypes"):
        assert {p.name for p in Path("reproduced", name).iterdir()} == FILES | FIGURE
    assert reproduce("page", "--page", "docs/all.md") == 0
    figure, page = Path("docs/all/sensitivity-blocks.svg"), Path("docs/all.md")
    assert list(figure.parent.iterdir()) == [figure]
    assert "prototypes.svg" not in page.read_text()
    # A heavy figure is left out, and one that cannot be drawn here stays.
    figure.write_text("earlier")
    Path("reproduced/sensitivity-blocks/figure.svg").write_text("x" * 200_000)
    assert reproduce("page", "--page", "docs/all.md") == 0
    assert "figure.svg is left out: it has more than 150 kB" in capsys.readouterr().out
    assert figure.read_text() == "earlier"
    assert "](all/sensitivity-blocks.svg)" in page.read_text()


def test_depth_and_stability_show_what_was_measured(reproduce):
    assert reproduce("depth", "--datasets", "CiteSeer", "--splits", "0,1") == 0
    table = read("depth")
    assert list(table) == [f"L = {depth}" for depth in range(1, 9)]
    change = table["L = 8"]["CiteSeer: D_Z(L)"]
    deepest = recorded("options.steps=8")
    measured = [run["measures"]["depth"]["geometry_change"] for run in deepest]
    assert [len(values) for values in measured] == [8, 8]
    assert change["mean"] == pytest.approx(sum(values[-1] for values in measured) / 2)
    assert reproduce("stability", "--datasets", "CiteSeer", "--splits", "0,1") == 0
    assert next(iter(read("stability"))) == "sigma = 0.01"
    assert "R_state changes by" in about("stability")["text"]
    for name in ("depth", "stability"):
        assert {p.name for p in Path("reproduced", name).iterdir()} == FILES | FIGURE
    # A fresh clone has the records and no run folders: the same tables come from them.
    Path("runs").rename("elsewhere")
    before = Path("reproduced/depth/table.csv").read_text()
    assert reproduce("depth", "--datasets", "CiteSeer", "--splits", "0,1", "--no-run") == 0
    assert Path("reproduced/depth/table.csv").read_text() == before


def test_theory_and_maps(reproduce):
    assert reproduce("theory", "--splits", "0") == 0
    rows = read("theory-CiteSeer")
    assert len(rows) == 4
    assert all(cells["observed"]["mean"] <= cells["bound"]["mean"] for cells in rows.values())
    assert "iteration converges on" in about("theory-CiteSeer")["text"]
    assert reproduce("visualise", "--methods", "geof") == 0
    assert list(read("visualise-CiteSeer")) == ["GeoF", "GeoF, correction off"]
    for name in ("visualise-CiteSeer", "visualise-CiteSeer-correction"):
        assert {p.name for p in Path("reproduced", name).iterdir()} >= FIGURE


def test_one_page_of_all(reproduce, capsys):
    assert reproduce("page") == 1
    assert "Expected tables of 'geof reproduce'" in capsys.readouterr().err
    assert reproduce("aggregate", "--from", "paper") == 0
    assert reproduce("feedback", "--datasets", "CiteSeer", "--splits", "0", "--no-run") == 0
    Path("remarks.md").write_text("What was found.")
    assert reproduce("page", "--page", "docs/all.md", "--remarks", "remarks.md") == 0
    page = Path("docs/all.md").read_text()
    order = ["What was found.", "own tables", "](all/aggregate-paper.svg)"]
    order += ["## Statistics and schedules", "`geof reproduce feedback", "Not run: 4"]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert [path.name for path in Path("docs/all").iterdir()] == ["aggregate-paper.svg"]


def test_comparisons_take_both_tasks(reproduce):
    words = ("--datasets", "CiteSeer", "--models", "geof:tuned,gcn:plain", "--splits", "0")
    assert reproduce("node-link", *words) == 0
    table = read("node-link")
    assert list(table) == ["GeoF tuned", "GCN, usual"]
    assert list(table["GeoF tuned"]) == ["CiteSeer", "CiteSeer link"]
    assert reproduce("graph", "--datasets", "BBBP", "--models", "gcn", "--splits", "0") == 0
    assert list(read("graph")["GCN, usual"]) == ["BBBP (ROC-AUC)"]


def test_the_papers_own_tables_give_its_aggregates(reproduce):
    assert reproduce("aggregate", "--from", "paper") == 0
    table = read("aggregate-paper")
    assert table["GCN"]["p (Holm)"]["mean"] == 2.91e-15
    assert table["WaveGC"]["avg. rank"]["mean"] == 4.4
    text = about("aggregate-paper")["text"]
    assert "chi-square 169.2 with 14 degrees of freedom" in text
    assert "103 of 103 numbers agree" in text


def test_aggregates_of_our_rows(reproduce, capsys):
    words = ("--methods", "geof:tuned,gcn", "--splits", "0")
    for dataset in ("CiteSeer", "Photo"):
        assert reproduce("node-link", "--datasets", dataset, *words) == 0
    assert reproduce("aggregate", "--methods", "gcn") == 0
    assert "4 of 18 benchmarks were used" in about("aggregate")["text"]
    assert list(read("aggregate")) == ["GeoF", "GCN"]
    assert reproduce("aggregate", "--methods", "gcn,hgcn") == 1  # named, and without rows
    assert "Expected" in capsys.readouterr().err
    assert reproduce("aggregate") == 0
    assert list(read("aggregate")) == ["GeoF", "GCN"]
    left = "Methods left out for want of rows: GCN, tuned recipe, GraphSAGE, tuned recipe"
    assert left in about("aggregate")["text"]


def test_efficiency_from_rows_of_the_benchmark(reproduce, capsys):
    row = {
        "method": "gcn",
        "dataset": "NCI1",
        "status": "ok",
        "reason": None,
        "seconds_per_epoch": 2.0,
        "graphs": 10,
        "graphs_per_epoch": 5,
        "peak_rss_bytes": 5 * 10**8,
        "machine": {"cpu": "c"},
    }
    Path("rows.json").write_text(json.dumps([row]))
    assert reproduce("efficiency", "--bench", "rows.json") == 0
    assert read("efficiency-time")["GCN"]["NCI1"]["mean"] == 4.0
    assert read("efficiency-memory")["GCN"]["NCI1"]["mean"] == 0.5
    assert read("efficiency-time")["GeoF"]["NCI1"]["paper"] == 0.4391
    assert len(about("efficiency-time")["missing"]) == 35
    row["model"] = row.pop("method")  # as it was called before
    Path("rows.json").write_text(json.dumps([row]))
    assert reproduce("efficiency", "--bench", "rows.json") == 0
    assert read("efficiency-time")["GCN"]["NCI1"]["mean"] == 4.0
    assert "ours on a processor" in about("efficiency-time")["text"]
    gpu = {
        "device": "cuda:0",
        "peak_device_bytes": 2 * 10**9,
        "machine": {"device_model": "Abacus"},
    }
    Path("rows.json").write_text(json.dumps([{**row, **gpu}]))
    assert reproduce("efficiency", "--bench", "rows.json") == 0
    assert read("efficiency-memory")["GCN"]["NCI1"]["mean"] == 2.0
    assert "ours on Abacus" in about("efficiency-memory")["text"]
    for content in ("[]", '[{"method": "gcn"}]', "{}", "no"):
        Path("rows.json").write_text(content)
        assert reproduce("efficiency", "--bench", "rows.json") == 1
        assert "Run: geof bench --methods paper --json rows.json" in capsys.readouterr().err
    assert reproduce("efficiency", "--bench", "none.json") == 1
    assert "Run: geof bench --methods paper" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ablation", "--datasets", "Citeseer"), "Did you mean 'CiteSeer'"),
        (("ablation", "--methods", "w/o SFF"), "Did you mean 'w/o SF'"),
        (("stability", "--datasets", "PROTEINS", "--splits", "0"), "node classification"),
    ],
)
def test_what_cannot_be_done_is_said(reproduce, capsys, words, expected):
    assert reproduce(*words) == 1
    said = capsys.readouterr()
    assert expected in said.err + said.out


def test_names(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "everything"])
    said = capsys.readouterr().err
    assert all(name in said for name in (*TRAINED, *COMPUTED))


REAL = pytest.mark.skipif("GEOF_DATA" not in os.environ, reason="needs GEOF_DATA")
GRID = ("second-order", "--datasets", "CiteSeer", "--methods", "gcn", "--splits", "0-1")

MARK = "GEOF_TEST_GRID"
"""In the environment of a grid's process and its workers."""


PROGRAM = ("-m", "geof.cli")
SLOWLY = str(Path(__file__).with_name("slow_epochs.py"))
"""A GCN is done on CiteSeer before a second worker has begun."""


def start(folder: Path, *words: str, program: Sequence[str] = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, "reproduce", *GRID, *words],
        cwd=folder,
        # Ray lets its workers give way to everything else unless told.
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0", MARK: str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_epochs(folder: Path, least: int, runs: int = 1) -> None:
    def is_so() -> bool:
        going = [
            path
            for path in folder.glob("runs/results/*/*/metrics.jsonl")
            if not (path.parent / "result.json").exists()
        ]
        return sum(path.read_text().count("\n") >= least for path in going) >= runs

    wait_for(is_so, 120)


def test_a_grid_takes_a_process_per_core_unless_told(monkeypatch):
    made = []
    monkeypatch.setattr("geof.processes.cores", lambda: 3)
    monkeypatch.setattr("geof.processes.Processes", made.append)
    for workers in (None, 2):
        with _executor(Namespace(ray=None, workers=workers), None):
            pass
    assert made == [3, 2]


@REAL
@pytest.mark.slow
def test_a_killed_grid_ends_with_the_same_table_and_leaves_no_process(tmp_path, monkeypatch):
    """One grid is ended in three ways, one after the other, each time further on.

    It is finished in this process: one that imports everything would tell no more.
    """
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    for path in (whole, folder):
        path.mkdir()
    epochs = 0
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        process = start(folder, "--workers", "2", program=[SLOWLY])
        wait_for_epochs(folder, least=epochs + 3, runs=2)
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        if number != signal.SIGKILL:
            assert process.returncode == 130
            assert "2 of 2 cells are not finished" in said
            assert marked(f"{MARK}={folder}") == []
        wait_for(lambda: not marked(f"{MARK}={folder}"), 5)
        for path in folder.glob("runs/results/*/*"):
            assert (path / "training_state.safetensors").exists()
            epochs = max(epochs, (path / "metrics.jsonl").read_text().count("\n"))
        assert not (folder / "reproduced").exists()
    for path in (whole, folder):
        monkeypatch.chdir(path)
        assert main(["reproduce", *GRID]) == 0
    for name in ("table.csv", "table.json", "table.md", "table.tex"):
        path = Path("reproduced/second-order", name)
        assert (folder / path).read_bytes() == (whole / path).read_bytes()


@REAL
@pytest.mark.slow
def test_a_grid_on_ray_survives_a_killed_worker(tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray")
    process = start(tmp_path, "--ray", "--workers", "2")
    wait_for_epochs(tmp_path, least=3)
    os.kill(_a_ray_worker(), signal.SIGKILL)
    out = process.communicate(timeout=400)[0]
    assert process.returncode == 0, out
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    # Every cell is there: only the table is written.
    assert main(["reproduce", *GRID, "--out", "again"]) == 0
    told = capsys.readouterr()
    assert "split" not in (told.out + told.err).replace("splits", "")
    path = Path("second-order/table.csv")
    assert (tmp_path / "again" / path).read_bytes() == (tmp_path / "reproduced" / path).read_bytes()


@REAL
@pytest.mark.slow
def test_a_grid_on_ray_saves_when_it_is_asked_to_end(tmp_path):
    pytest.importorskip("ray")
    process = start(tmp_path, "--ray", "--workers", "2")
    wait_for_epochs(tmp_path, least=3, runs=2)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    assert "2 of 2 cells are not finished" in said
    assert len(list(tmp_path.glob("runs/results/*/*/training_state.safetensors"))) == 2
    wait_for(lambda: not marked(f"{MARK}={tmp_path}"), 15)


def _a_ray_worker() -> int:
    """Return the process of a task of ours that Ray runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            name = path.read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::_train"):
            return int(path.parent.name)
    raise AssertionError("no worker of Ray is training")

"""``geof results``: run, list, show, and check what vouches for it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from geof.cli import main
from geof.methods import registry
from geof.training import canary
from geof_paper.commands.folders import results_folder
from geof_paper.grid.cells import Row
from geof_paper.grid.records import stale_reasons
from paper.tests.render.studies import recorded_runs, write_records

RESULTS = Path(__file__).parents[2] / "results"
SMALL = ("epochs=2", "options.hidden_channels=8", "options.blocks=2", "signature.walk_length=3")
COLUMNS = (
    *("task", "dataset", "method", "preset", "options_changed", "split", "validation", "test"),
    *("best_epoch", "epochs", "seconds_per_epoch", "revision", "stale"),
)


def test_run_and_render(tiny, tmp_path, capsys):
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
    with pytest.raises(SystemExit):
        main(["results", "run", "--methods", "geof"])
    assert "expected METHOD:PRESET" in capsys.readouterr().err


def listed(capsys, *words: str) -> list[dict]:
    assert main(["results", "list", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_recorded_run_is_a_flat_row(tmp_path, capsys):
    folder = ("--results", str(write_records(tmp_path)))
    rows = listed(capsys, *folder)
    assert len(rows) == 8
    assert all(tuple(row) == COLUMNS for row in rows)
    first = rows[0]
    assert [first[name] for name in COLUMNS[:6]] == ["node", "CiteSeer", "geof", "tuned", "", "0"]
    assert (first["validation"], first["test"], first["stale"]) == (77.0, 76.0, False)
    changed = [row for row in rows if row["dataset"] == "Photo"]
    assert {row["options_changed"] for row in changed} == {"options.steps=9"}
    assert [row["task"] for row in listed(capsys, *folder, "--stale")] == ["link", "link"]
    assert len(listed(capsys, *folder, "--task", "node", "--dataset", "CiteSeer,Photo")) == 6
    assert len(listed(capsys, *folder, "--method", "gcn")) == 2
    assert listed(capsys, *folder, "--method", "nobody") == []
    assert main(["results", "list", *folder, "--method", "nobody"]) == 0
    assert capsys.readouterr().out == "no recorded runs\n"


def test_the_list_for_people(tmp_path, capsys):
    assert main(["results", "list", "--results", str(write_records(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(COLUMNS)
    assert len(lines) == 1 + 8 + 1
    assert [line.endswith("stale") for line in lines[1:9]].count(True) == 2
    assert lines[-1].startswith("2 stale: ")


def test_the_recorded_runs_of_this_project(capsys):
    rows = listed(capsys, "--results", str(RESULTS))
    assert len(rows) >= 1234
    assert {row["method"] for row in rows} >= {"geof", "gcn", "hgcn", "argnn-so"}
    for path in RESULTS.glob("*.jsonl"):
        assert path.stat().st_size < 900_000, path.name


def test_records_are_looked_for_in_the_repository_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert results_folder() == Path("results")
    Path("paper/results").mkdir(parents=True)
    assert results_folder() == Path("paper/results")


@pytest.fixture
def gcn(monkeypatch, tmp_path):
    """One canary of gcn, in a file that may be written."""
    copy = tmp_path / "canaries.json"
    shutil.copy(canary.canary_file("gcn"), copy)
    monkeypatch.setattr(canary, "canary_file", lambda method: copy)
    monkeypatch.setattr(canary, "canaries", lambda method: ["plain node"])
    return copy


def test_canaries_are_checked_and_written_by_a_command(gcn, monkeypatch, capsys):
    command = ["results", "canaries", "--methods", "gcn"]
    assert main(command) == 0
    assert capsys.readouterr().out == "gcn: as stored\n"
    before = gcn.read_text()
    monkeypatch.setattr(canary, "sing", _louder(canary.sing))
    for words in (command, [*command, "--write"]):
        assert main(words) == 1
        assert "'plain node' by 1.0e-03" in capsys.readouterr().out
    assert gcn.read_text() == before
    raised = replace(registry.get_method("gcn"), revision=2)
    monkeypatch.setitem(registry._METHODS, "gcn", raised)
    assert main([*command, "--write"]) == 0
    assert "gcn: written to" in capsys.readouterr().out
    stored = json.loads(gcn.read_text())["gcn"]
    assert (stored["revision"], list(stored["canaries"])) == (2, ["plain node"])
    assert main(command) == 0
    reason = "made by revision 1 of 'gcn', which has 2"
    assert stale_reasons(recorded_runs(Row("node", "CiteSeer", "gcn", "plain"), [1.0])) == [reason]


def _louder(sing):
    def changed(method, name):
        numbers = sing(method, name)
        return {**numbers, "loss": [loss + 1e-3 * max(1, loss) for loss in numbers["loss"]]}

    return changed

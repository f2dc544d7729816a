"""The life of a run: interrupted, gone on with, finished, opened again."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from geof.cli import main
from geof.errors import DataError
from geof.training import save_checkpoint
from geof.training.predict import Run
from tests.cli.conftest import PLAIN, QUICK, SMALL, write_tables

LONG = [*PLAIN, "epochs=80", "options.dropout=0.3", *SMALL]
FILES = {
    "config.json",
    "split.npz",
    "metrics.jsonl",
    "machine.json",
    "result.json",
}
FILES |= {"checkpoint.safetensors", ".lock"}


@pytest.fixture(scope="module")
def stopped(geof, tmp_path_factory) -> SimpleNamespace:
    """A long run stopped with Ctrl-C, and what others were told while it was at work."""
    folder = tmp_path_factory.mktemp("stopped")
    tables = [*write_tables(folder), "--label", "kind"]
    command = ["train", *tables, "--out", "the run", "--quiet", *LONG]
    started = freeze_at_work(geof.start(*command, folder=folder), folder / "the run")
    second = geof(*command, folder=folder)
    early = geof("predict", "the run", "--out", "p.csv", folder=folder)
    started.signal(signal.SIGINT)
    started.signal(signal.SIGCONT)
    done = started.wait()
    return SimpleNamespace(folder=folder, tables=tables, done=done, second=second, early=early)


def freeze_at_work(started, run: Path):
    """Let a run go on for some epochs and then hold it, so that nothing depends on luck."""
    end = time.monotonic() + 60
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 5:
        assert time.monotonic() < end, started.wait().err
        time.sleep(0.005)
    started.signal(signal.SIGSTOP)
    return started


def test_ctrl_c_saves_and_says_how_to_go_on(stopped):
    assert stopped.done.code == 130
    assert "finishing this epoch" in stopped.done.err
    assert "Go on with: geof train --resume 'the run'" in stopped.done.err
    assert not (stopped.folder / "the run" / "result.json").exists()


def test_a_folder_in_use_is_refused(stopped):
    assert stopped.second.code == 1
    assert "another run is at work there" in stopped.second.err


def test_a_run_without_a_checkpoint_says_how_to_go_on(stopped):
    assert stopped.early.code == 1
    assert "not finished" in stopped.early.err
    assert "geof train --resume 'the run'" in stopped.early.err


def test_going_on_gives_the_bits_of_a_run_that_was_not_stopped(stopped, geof):
    words = shlex.split(stopped.done.err.split("Go on with: ")[1].splitlines()[0])
    resumed = geof(*words[1:], "--json", folder=stopped.folder)
    assert resumed.code == 0, resumed.err
    assert "Going on after epoch" in resumed.err
    straight = geof("train", *stopped.tables, "--out", "b", "--quiet", *LONG, folder=stopped.folder)
    assert straight.code == 0, straight.err
    one, other = stopped.folder / "the run", stopped.folder / "b"
    for name in FILES - {"result.json"}:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert result_of(one) == result_of(other)
    assert {path.name for path in one.iterdir()} == FILES
    again = geof("train", "--resume", "the run", "epochs=81", folder=stopped.folder)
    assert again.code == 1
    assert "training.epochs: 80 there, 81 now" in again.err


def result_of(run: Path) -> dict:
    measured = ("seconds_per_epoch", "peak_rss_bytes")
    result = json.loads((run / "result.json").read_text())
    return {name: value for name, value in result.items() if name not in measured}


def test_a_second_signal_stops_at_once(geof, tmp_path):
    command = ["train", *write_tables(tmp_path), "--label", "kind", "--out", "run", *LONG]
    started = freeze_at_work(geof.start(*command, folder=tmp_path), tmp_path / "run")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        started.signal(number)
    done = started.wait()
    assert done.code == 130
    assert "Stopped at once. Go on with: geof train --resume run" in done.err
    assert "Traceback" not in done.err


def test_a_finished_run_prints_its_result_again(node_run, geof):
    before = {path: path.read_bytes() for path in node_run.iterdir()}
    done = geof("train", "--resume", node_run, "--json")
    assert done.code == 0
    stored = json.loads((node_run / "result.json").read_text())
    assert json.loads(done.out) == {**stored, "folder": str(node_run)}
    assert "finished already" in done.err
    assert {path: path.read_bytes() for path in node_run.iterdir()} == before


def test_other_options_are_refused_unless_allowed(tables, tmp_path, capsys):
    run = tmp_path / "run"
    command = ["train", *tables, "--label", "kind", "--out", str(run)]
    assert main([*command, *QUICK, "learning_rate=1e30"]) == 1
    assert "Epoch" in capsys.readouterr().err
    assert main([*command, *QUICK]) == 1
    assert "--allow-changes" in capsys.readouterr().err
    assert main([*command, "--allow-changes", *QUICK]) == 0
    assert "training.learning_rate: 1e+30 there, 0.01 now" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--out", "--config"])
def test_resume_takes_its_config_from_the_run(flag, node_run, tmp_path, capsys):
    assert main(["train", "--resume", str(node_run), flag, str(tmp_path / "x")]) == 1
    assert "(got both)" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err


def test_predictions_are_equal_in_a_new_process(any_run, geof, tmp_path):
    more = []
    if "link" in str(any_run):
        (tmp_path / "pairs.csv").write_text("source,target\nü 3,ü 7\nü 1,ü 2\n")
        more = ["--pairs", str(tmp_path / "pairs.csv")]
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    assert main(["predict", str(any_run), "--out", str(here), *more]) == 0
    done = geof("predict", any_run, "--out", there, "--json", *more)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["rows"] == len(here.read_text().splitlines()) - 1
    assert sum(summary["predictions"].values()) == summary["rows"]
    assert here.read_bytes() == there.read_bytes()


def test_a_checkpoint_alone_is_enough(node_run, tmp_path, capsys):
    alone = shutil.copy(node_run / "checkpoint.safetensors", tmp_path / "mine.safetensors")
    run = Run.open(alone)
    assert run.finished
    assert run.class_names == ("a", "b")
    assert run.epoch == json.loads((node_run / "result.json").read_text())["best_epoch"]
    assert main(["predict", str(alone), "--out", str(tmp_path / "p.csv")]) == 1
    assert "one of --dataset, --nodes, --molecules, --npz" in capsys.readouterr().err
    tables = [node_run.parent / name for name in ("nodes.csv", "edges.csv")]
    source = ["--nodes", str(tables[0]), "--edges", str(tables[1])]
    assert main(["predict", str(alone), *source, "--out", str(tmp_path / "p.csv")]) == 0
    assert main(["predict", str(node_run), "--out", str(tmp_path / "q.csv")]) == 0
    with (tmp_path / "p.csv").open() as mine, (tmp_path / "q.csv").open() as other:
        rows, whole = list(csv.DictReader(mine)), list(csv.DictReader(other))
    # The split is in the folder, not in the checkpoint.
    assert {row.pop("part") for row in whole} <= {"train", "validation", "test", ""}
    assert rows == whole


def test_an_unfinished_run_opens_with_a_note(node_run, tmp_path, capsys):
    copy = shutil.copytree(node_run, tmp_path / "run")
    (copy / "result.json").unlink()
    assert not Run.open(copy).finished
    assert not Run.open(copy / "checkpoint.safetensors").finished
    assert main(["evaluate", str(copy), "--json"]) == 0
    said = capsys.readouterr()
    assert "is not finished" in said.err
    assert f"geof train --resume {copy}" in said.err
    assert json.loads(said.out)["part"] == "test"


def test_what_is_not_a_run_is_refused(node_run, tmp_path):
    with pytest.raises(DataError, match=r"Expected a run folder .*\(there is nothing"):
        Run.open(tmp_path / "none")
    with pytest.raises(DataError, match=r"there is no checkpoint\.safetensors"):
        Run.open(tmp_path)
    other = tmp_path / "other.safetensors"
    save_checkpoint(other, torch.nn.Linear(2, 2))
    with pytest.raises(DataError, match=r"to be a checkpoint of 'geof train'.*'network'"):
        Run.open(other)
    content = bytearray((node_run / "checkpoint.safetensors").read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        Run.open(other)
    other.write_text("not a checkpoint")
    with pytest.raises(DataError, match="safetensors checkpoint"):
        Run.open(other)

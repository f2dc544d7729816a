"""Attacks on files and streams: a sentence and an exit code, never a traceback, nothing left."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import geof.cli
from geof.cli import main
from geof.training import trainer
from tests.cli.conftest import QUICK

DEEP = "[" * 100_000


def refused(words: list[str], capsys, *parts: str) -> str:
    """Run a command that must end with one sentence; return it."""
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("geof: Expected")
    assert "Traceback" not in said
    for part in parts:
        assert part in said
    return said


@pytest.fixture
def run(node_run, tmp_path) -> Path:
    """Return a copy of a finished run, to be damaged."""
    return Path(shutil.copytree(node_run, tmp_path / "run"))


def damaged(path: Path, **entries: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize("text", [DEEP, "3", "[]", "null", '"text"', "{", ""], ids=lambda t: t[:5])
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_files_of_a_run_that_are_something_else(run, tables, capsys, text, name):
    (run / name).write_text(text)
    refused(["report", str(run), "--out", str(run / "page.html")], capsys, "run")
    refused(["train", *tables, "--label", "kind", "--out", str(run), *QUICK], capsys)


@pytest.mark.parametrize(
    "entries",
    [
        {"validation": "high"},
        {"metrics": [1, 2]},
        {"metrics": {"accuracy": {}}},
        {"best_epoch": None},
        {"metric": 7},
        {"test": []},
    ],
    ids=str,
)
def test_entries_of_a_result_of_another_kind(run, tables, capsys, entries):
    damaged(run / "result.json", **entries)
    wanted = f"{next(iter(entries))}"
    page = ["report", str(run), "--out", str(run / "page.html")]
    refused(page, capsys, "result.json", wanted)
    train = ["train", *tables, "--label", "kind", "--out", str(run), *QUICK]
    refused(train, capsys, "result.json", wanted)


def test_a_result_with_entries_missing_or_too_many(run, tables, capsys):
    train = ["train", *tables, "--label", "kind", "--out", str(run), *QUICK]
    damaged(run / "result.json", invented=1)
    refused(train, capsys, "invented")
    (run / "result.json").write_text("{}")
    refused(train, capsys, "result of a run")
    refused(["report", str(run), "--out", str(run / "page.html")], capsys, "best_epoch")


@pytest.mark.parametrize("section", [3, [], {"training": 3}, {"training": {}, "task": "node"}])
def test_a_config_of_another_shape(run, capsys, section):
    damaged(run / "config.json", run=section)
    refused(["report", str(run), "--out", str(run / "page.html")], capsys, "config.json")


@pytest.mark.parametrize("text", ["a: " + "[" * 500, "epochs: " + "9" * 5000, "{" * 500])
def test_option_files_nobody_can_read(tables, tmp_path, capsys, text):
    (tmp_path / "options.yaml").write_text(text)
    words = ["train", *tables, "--label", "kind", "--config", str(tmp_path / "options.yaml")]
    refused([*words, "--out", str(tmp_path / "run"), *QUICK], capsys, "options.yaml")
    word = text.replace(": ", "=", 1)
    refused(["train", *tables, "--label", "kind", *QUICK, word], capsys)


@pytest.mark.parametrize("seed", ["1" + "0" * 29, "9" * 5000, "-1", "1.5"])
def test_seeds_that_are_none(tables, tmp_path, capsys, seed):
    words = ["train", *tables, "--label", "kind", "--out", str(tmp_path / "run"), *QUICK]
    refused([*words, f"seed={seed}"], capsys, "seed")
    assert not (tmp_path / "run").exists()


def test_a_folder_whose_name_is_too_long(tables, tmp_path, capsys):
    long = tmp_path / ("x" * 300)
    words = ["train", *tables, "--label", "kind", *QUICK, "--out", str(long)]
    refused(words, capsys, "File name too long")


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs symbolic links")
def test_a_lock_that_points_elsewhere(tables, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "run" / ".lock").symlink_to(elsewhere)
    words = ["train", *tables, "--label", "kind", "--out", str(tmp_path / "run"), *QUICK]
    refused(words, capsys, "to lock it")
    assert elsewhere.read_text() == "mine"


def test_a_disk_that_is_read_only(tables, tmp_path, monkeypatch, capsys):
    whole = os.open

    def read_only(path, flags, *rest, **more):
        if str(path).startswith(str(tmp_path / "run")) and flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return whole(path, flags, *rest, **more)

    monkeypatch.setattr("os.open", read_only)
    words = ["train", *tables, "--label", "kind", "--out", str(tmp_path / "run"), *QUICK]
    refused(words, capsys, "Read-only file system")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_memory_that_is_not_there(tables, tmp_path, monkeypatch, capsys, error):
    def out_of_memory(*_):
        raise error

    monkeypatch.setattr(trainer.Trainer, "_train", out_of_memory)
    words = ["train", *tables, "--label", "kind", "--out", str(tmp_path / "run"), *QUICK]
    refused(words, capsys, "more memory", "batch_size")


def test_an_error_that_nobody_foresaw_keeps_its_traceback(monkeypatch):
    def wrong(words):
        raise RuntimeError("something else")

    monkeypatch.setattr(geof.cli, "_run", wrong)
    with pytest.raises(RuntimeError, match="something else"):
        main(["data", "list"])


class Closed(io.StringIO):
    """An output that nobody reads any more, or that is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EPIPE, 141), (errno.ENOSPC, 1)], ids=["head", "full"]
)
def test_an_output_that_takes_nothing(number, code, monkeypatch, capsys):
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr("sys.stdout", Closed(error))
    assert main(["data", "list", "--markdown"]) == code
    said = capsys.readouterr().err
    assert ("No space left" in said) == (code == 1)
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("geof data list | head -1", 141, ""),
        ("geof --help | true", 141, ""),
        ("geof data list > /dev/full", 1, "No space left on device"),
    ],
)
def test_the_real_streams(command, code, said):
    line = command.replace("geof", f"{sys.executable} -m geof.cli", 1)
    bash = ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(bash, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code or (code == 141 and done.returncode == 0)  # all was read
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert said in done.stderr


def test_a_folder_that_is_removed_while_the_run_works(tables, tmp_path, monkeypatch, capsys):
    run, whole = tmp_path / "run", trainer.Trainer._epoch

    def epoch(self, number):
        if number == 2:
            shutil.rmtree(run)
        return whole(self, number)

    monkeypatch.setattr(trainer.Trainer, "_epoch", epoch)
    words = ["train", *tables, "--label", "kind", "--out", str(run), *QUICK]
    refused(words, capsys, "removed or replaced", "Run the command again")
    assert not run.exists()


def test_a_folder_that_is_removed_at_the_very_end(tables, tmp_path, monkeypatch, capsys):
    run, whole = tmp_path / "run", trainer.write_json

    def write(path, content):
        if path.name == "result.json":
            shutil.rmtree(run)
        whole(path, content)

    monkeypatch.setattr(trainer, "write_json", write)
    words = ["train", *tables, "--label", "kind", "--out", str(run), *QUICK]
    refused(words, capsys, "removed or replaced")


FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\tx", "plain", "a=b"]


@pytest.mark.parametrize("safe", [False, True])
def test_identifiers_that_are_formulas(run, tmp_path, safe):
    nodes, edges = tmp_path / "new.csv", tmp_path / "new edges.csv"
    with nodes.open("w", newline="") as file:
        rows = [[name, "31", "Paris"] for name in FORMULAS]
        csv.writer(file).writerows([["name", "age", "city"], *rows])
    with edges.open("w", newline="") as file:
        csv.writer(file).writerows([["source", "target"], ["plain", "a=b"]])
    given = ["--nodes", str(nodes), "--edges", str(edges)]
    given += ["--for-spreadsheets"] if safe else []
    for command in ("predict", "embed"):
        out = tmp_path / f"{command}.csv"
        assert main([command, str(run), *given, "--out", str(out)]) == 0
        with out.open(newline="") as file:
            found = list(csv.DictReader(file))
        wanted = [f"'{n}" if safe and n[0] in "=+-@\t" else n for n in FORMULAS]
        assert [row["id"] for row in found] == wanted
        numbers = [value for row in found for key, value in row.items() if key[:7] == "channel"]
        assert all(float(value) is not None for value in numbers)  # minus signs stay


@pytest.mark.skipif(sys.platform == "win32", reason="needs a umask")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_follow_the_umask(tables, tmp_path, mask):
    before = os.umask(mask)
    try:
        run = tmp_path / "run"
        assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK]) == 0
    finally:
        os.umask(before)
    files = [path for path in run.iterdir() if path.name != ".lock"]
    assert len(files) > 4
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_folder(tables, tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    run = tmp_path / "run"
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK]) == 0
    assert main(["predict", str(run), *tables, "--out", str(tmp_path / "p.csv")]) == 0
    assert main(["report", str(run), *tables, "--out", str(tmp_path / "page.html")]) == 0
    monkeypatch.undo()
    assert list(place.iterdir()) == []
    assert not [
        path for path in run.iterdir() if path.name.startswith(".") and path.name != ".lock"
    ]

"""The command line as a user meets it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from geof import cli
from geof.cli import demo
from tests.cli.conftest import QUICK, write_tables


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "geof.cli", *arguments], capture_output=True, text=True, check=False
    )


def test_help_and_version_import_nothing_heavy():
    assert "demo" in run("--help").stdout
    assert run("--version").stdout.startswith("geof 0.")
    code = """if True:
        import contextlib, io, sys, geof.cli
        parser = geof.cli.build_parser()
        commands = next(a.choices for a in parser._actions if a.dest == "command")
        for name in commands:
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
                geof.cli.main([name, "--help"])
        print(sorted({"torch", "numpy", "rich", "yaml"} & sys.modules.keys()), *commands)
    """
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.startswith("[] ")
    assert {"train", "evaluate", "predict", "embed"} <= set(loaded.stdout.split())


def test_usage_errors_exit_with_two():
    assert run().returncode == 2
    assert run("demo", "--splits", "0").returncode == 2
    assert "expected an integer >= 1" in run("demo", "--splits", "0").stderr
    assert run("evaluate").returncode == 2
    assert "invalid choice: 'tests'" in run("evaluate", "run", "--part", "tests").stderr


def test_refusals_exit_with_one(geof, tmp_path):
    done = geof("evaluate", tmp_path / "none")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("geof: Expected a run folder")
    assert geof("evaluate", tmp_path, "--part", "tests").code == 2


@pytest.mark.slow
def test_from_training_to_embedding_as_typed_in_a_shell(tmp_path):
    """The commands as a shell starts them, everything imported anew each time."""
    tables = [*write_tables(tmp_path), "--label", "kind"]
    out = str(tmp_path / "run")
    assert run("train", *tables, "--out", out, *QUICK).returncode == 0
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    done = run("evaluate", out, "--json")
    assert json.loads(done.stdout)["metrics"] == stored["metrics"]
    for command in ("predict", "embed"):
        file = tmp_path / f"{command}.csv"
        assert run(command, out, "--out", str(file)).returncode == 0
        assert len(file.read_text().splitlines()) == 61


@pytest.mark.parametrize("words", [["bench", "--quick"], ["reproduce", "ablation"], ["results"]])
def test_commands_of_geof_paper_say_where_they_are_to_be_had(words, monkeypatch, capsys):
    monkeypatch.setattr(cli, "entry_points", lambda group: {})
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert f"got {words[0]!r}, which is part of geof-paper" in said
    assert "pip install ./paper" in said


@pytest.fixture
def short_demo(monkeypatch):
    short = [dataclasses.replace(c, epochs=2) for c in demo.ENTRIES]
    monkeypatch.setattr(demo, "ENTRIES", short)


def test_demo_writes_runs_and_a_table(short_demo, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["demo", "--splits", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Test accuracy" in text
    assert str(out) in text.replace("\n", "")
    rows = json.loads((out / "summary.json").read_text())
    assert [(row["dataset"], row["title"]) for row in rows] == [
        ("digits", "GCN"),
        ("digits", "GeoF"),
        ("covariance", "GCN"),
        ("covariance", "GeoF w/o SF"),
        ("covariance", "GeoF"),
    ]
    folders = [path for path in out.iterdir() if path.is_dir()]
    assert len(folders) == 5
    config = json.loads((out / "covariance-geof-w-o-sf-split0" / "config.json").read_text())
    assert config["run"]["options"]["feedback"] == "none"
    # A second run into the same folder is refused and changes nothing.
    before = (out / "summary.json").read_bytes()
    assert cli.main(["demo", "--out", str(out)]) == 1
    assert "new or empty folder" in capsys.readouterr().err
    assert (out / "summary.json").read_bytes() == before


def test_interrupt_exits_with_130(short_demo, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", interrupt)
    assert cli.main(["demo", "--quiet", "--out", str(tmp_path / "out")]) == 130
    assert "interrupted" in capsys.readouterr().err

"""Methods by name: the library's own, those of packages, those of a single file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from geof.errors import ConfigError, DataError
from geof.methods import registry
from geof.methods.registry import (
    Method,
    get_method,
    load_plugin,
    method_names,
    register,
    unregister,
)
from tests.cli.conftest import write_molecules, write_tables

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_method"


class Other(nn.Module):
    """Nothing but a class."""


def test_the_librarys_own_come_first():
    assert method_names()[:2] == ["geof", "gcn"]
    assert get_method("gcn").presets.is_dir()


def test_a_name_belongs_to_one_method():
    register(Method("twice", Other))
    try:
        register(Method("twice", Other, revision=2))  # the same class, imported again
        assert get_method("twice").revision == 2
        with pytest.raises(ConfigError, match=r"a new name.*'twice'.*Choose another"):
            register(Method("twice", nn.Linear))
    finally:
        unregister("twice")
    with pytest.raises(ConfigError, match=r"Expected a known method \(got 'twice'\).*--plugin"):
        get_method("twice")


@pytest.fixture
def alone(monkeypatch):
    """The library as it is where no other package brings methods."""
    monkeypatch.setattr(registry, "_entry_points", dict)
    before = dict(registry._METHODS)
    for name in before.keys() - {"geof", "gcn"}:
        unregister(name)
    yield
    registry._METHODS.update(before)


def test_what_is_part_of_geof_paper_says_so(alone):
    assert method_names() == ["geof", "gcn"]
    with pytest.raises(ConfigError, match=r"'hgcn'.*part of geof-paper.*pip install \./paper"):
        get_method("hgcn")


def test_every_method_of_geof_paper_is_known_here():
    pytest.importorskip("geof_paper")
    from geof.plugins import METHODS, PAPER_METHODS, entry_points

    ours = {n for n, e in entry_points(METHODS).items() if e.value.startswith("geof_paper.")}
    assert set(PAPER_METHODS) == ours


def test_an_entry_point_that_fails_or_registers_nothing(monkeypatch):
    from importlib.metadata import EntryPoint

    entries = {
        "absent": EntryPoint("absent", "no_such_module", "geof.methods"),
        "silent": EntryPoint("silent", "geof.version", "geof.methods"),
    }
    monkeypatch.setattr(registry, "_entry_points", lambda: entries)
    with pytest.raises(ConfigError, match=r"import method 'absent' from 'no_such_module'"):
        get_method("absent")
    with pytest.raises(ConfigError, match=r"module of method 'silent' to register it"):
        get_method("silent")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "to register a method"),
        ("import no_such_module\n", r"Expected to import .*ModuleNotFoundError"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_a_plugin_that_is_none(text, message, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_plugin(file)
    with pytest.raises(DataError, match=r"a Python file at .*none\.py"):
        load_plugin(tmp_path / "none.py")


def command(*words: str | Path, folder: Path, path: Path) -> str:
    """Run a command in a fresh process and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "geof.cli", *map(str, words)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_single_file_trains_resumes_and_predicts(geof, tmp_path):
    """Each command in a process that has not heard of the method."""
    plugin = ["--plugin", EXAMPLE / "single_file.py"]
    tables = [*write_tables(tmp_path), "--label", "kind"]
    words = ["--method", "mine", "--out", "run", "--quiet", "epochs=3", "options.width=8"]
    assert geof("train", *plugin, *tables, *words, folder=tmp_path).code == 0
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (about["run"]["method"], about["run"]["options"]) == ("mine", {"width": 8})
    again = geof("train", *plugin, "--resume", "run", "--json", folder=tmp_path)
    assert json.loads(again.out)["method"] == "mine"
    assert geof("predict", "run", *plugin, "--out", "p.csv", folder=tmp_path).code == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 61


def test_a_run_does_not_bring_its_plugin_along(tmp_path, capsys):
    """A run folder may come from anybody: it must not name code to import."""
    from geof.cli import main

    tables = [*write_tables(tmp_path), "--label", "kind"]
    plugin = ["--plugin", str(EXAMPLE / "single_file.py")]
    run = str(tmp_path / "run")
    words = ["--method", "mine", "--out", run, "--quiet", "epochs=1"]
    try:
        assert main(["train", *plugin, *tables, *words]) == 0
    finally:
        unregister("mine")
    assert main(["predict", run, "--out", str(tmp_path / "p.csv")]) == 1
    assert "(got 'mine')" in capsys.readouterr().err
    assert "single_file" not in (tmp_path / "run" / "config.json").read_text()


@pytest.mark.slow  # an installation and four processes that import torch
def test_an_installed_package_trains_on_the_three_tasks(tmp_path):
    """With its presets, found through its entry point in a fresh process."""
    pytest.importorskip("hatchling")
    target = tmp_path / "site"
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    install = [sys.executable, "-m", "pip", "install", *flags, str(EXAMPLE)]
    subprocess.run(install, check=True, capture_output=True)
    common = ["--method", "neighbour-mean", "--quiet", "epochs=2", "--json"]
    tables = [*write_tables(tmp_path), "--label", "kind"]
    for source, task in (
        (tables, "node"),
        ([*tables, "--task", "link"], "link"),
        ([*write_molecules(tmp_path), "--label", "active"], "graph"),
    ):
        told = command("train", *source, *common, "--out", task, folder=tmp_path, path=target)
        result = json.loads(told)
        assert (result["method"], result["preset"], result["task"]) == (
            *("neighbour-mean", "default", task),
        )
    shown = command(
        "train", *tables, "--method", "neighbour-mean", "--show", folder=tmp_path, path=target
    )
    assert "dropout: 0.3" in shown

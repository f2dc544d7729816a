"""A process killed before any of its deeds, and started again: the bits of one left in peace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import geof.training
from geof.cli import main
from geof.data.cache import Entry, load_or_build
from geof.training import trials
from tests.faults.benchmarks import DATA_COMMANDS, data_command
from tests.faults.conftest import WORDS
from tests.faults.harness import FULL, committing, contents, dying, forked, number_of_deeds
from tests.faults.studies import sweep


def points(total: int) -> range:
    """Return the deeds to die before: all of them, or every seventh from the last."""
    return range(total) if FULL or total < 7 else range(total - 1, -1, -7)


def survives(
    make: Callable[[Path], Callable[[], Any]], tmp_path: Path, tried, *more: Callable[..., None]
) -> None:
    """Kill what ``make(folder)`` returns at every point, do it again, compare what is there."""
    whole, warm = tmp_path / "whole", tmp_path / "warm"
    for folder in (whole, warm):
        folder.mkdir()
    make(warm)()  # what this process has imported its children need not
    total = number_of_deeds(make(whole), *more)
    assert total > 0
    wanted = contents(whole)
    assert wanted
    for last in points(total):
        folder = tmp_path / f"killed {last}"
        folder.mkdir()
        assert dying(make(folder), last, *more).code == -9
        ended = forked(make(folder))
        assert ended.code == 0, (last, ended.said)
        found = contents(folder)
        assert sorted(found) == sorted(wanted), last
        assert found == wanted, last
        tried()


def saving_always(action: Callable[[], Any]) -> Any:
    """Act with states saved after every epoch instead of every ten seconds."""
    eager, modules = functools.partial(trials.Watch, save_seconds=0.0), (geof.training, trials)
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "Watch", eager)
        return action()


@pytest.mark.parametrize("kind", ["node", "link", "graph"])
def test_a_run(kind, sources, tmp_path, tried):
    def make(folder: Path) -> Callable[[], Any]:
        words = ["train", *sources[kind], *WORDS, "--out", str(folder / "run")]
        return lambda: saving_always(lambda: main(words))

    survives(make, tmp_path, tried)


def test_a_sweep(tmp_path, tried):
    pytest.importorskip("optuna", reason="the extra geof[sweep] is not installed")

    def make(folder: Path) -> Callable[[], Any]:
        return lambda: main(sweep(tmp_path, folder / "study"))

    survives(make, tmp_path, tried, committing)


@pytest.mark.parametrize("command", ["predict", "embed", "report"])
def test_what_applies_a_run(command, finished_runs, sources, tmp_path, tried):
    suffix = {"predict": "csv", "embed": "npz", "report": "html"}[command]

    def make(folder: Path) -> Callable[[], Any]:
        words = [command, str(finished_runs["node"]), "--out", str(folder / f"out.{suffix}")]
        return lambda: main(words + ([] if command == "report" else ["--force"]))

    survives(make, tmp_path, tried)


@pytest.mark.parametrize("command", DATA_COMMANDS)
def test_benchmarks(command, benchmark_root, tmp_path, tried):
    survives(lambda folder: data_command(command, benchmark_root, folder), tmp_path, tried)


def test_an_entry_of_the_cache(tmp_path, tried):
    def make(folder: Path) -> Callable[[], Any]:
        entry = Entry({"x": torch.arange(12.0)}, {"name": "ü"})
        return lambda: load_or_build("kind", "key", lambda: entry, folder) and 0

    survives(make, tmp_path, tried)


def test_a_damaged_entry_of_the_cache(tmp_path, tried):
    """Its repair sets the old one aside first."""

    def make(folder: Path) -> Callable[[], Any]:
        place = folder / "kind" / "key"
        if not folder.joinpath("kind").exists():
            place.mkdir(parents=True)
            (place / "entry.json").write_text("{")
        entry = Entry({"x": torch.arange(12.0)}, {"name": "ü"})
        return lambda: load_or_build("kind", "key", lambda: entry, folder) and 0

    survives(make, tmp_path, tried)

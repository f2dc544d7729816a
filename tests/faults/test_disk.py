"""No room, no permission, a clock that jumps, two processes at once: a sentence, nothing half."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from geof.cli import main
from geof.data.cache import Entry, load_or_build
from tests.faults.benchmarks import DATA_COMMANDS, data_command
from tests.faults.conftest import WORDS
from tests.faults.harness import (
    FULL,
    contents,
    forked,
    number_of_deeds,
    refused_after,
    started,
)
from tests.faults.studies import sweep

COMMANDS = ["train", "predict", "embed", "report", "sweep", "cache", *DATA_COMMANDS]
NOBODY = 65534


def command(
    name: str, out: Path, sources: dict[str, list[str]], runs: dict[str, Path], spare: Path
) -> Callable[[], Any]:
    """Return what writes into the folder ``out``."""
    run = str(runs["node"])
    words = {
        "train": ["train", *sources["node"], *WORDS, "--out", str(out / "run")],
        "predict": ["predict", run, "--force", "--out", str(out / "p.csv")],
        "embed": ["embed", run, "--force", "--out", str(out / "e.npz")],
        "report": ["report", run, "--out", str(out / "r.html")],
        "sweep": sweep(spare, out / "study"),
    }
    if name == "cache":
        entry = Entry({"x": torch.arange(12.0)}, {"name": "ü"})
        return lambda: load_or_build("kind", "key", lambda: entry, out) and 0
    return lambda: main(words[name])


@pytest.fixture
def make(sources, finished_runs, benchmark_root, tmp_path):
    """Return what makes a command for a folder."""

    def made(name: str, out: Path) -> Callable[[], Any]:
        if name == "sweep":
            pytest.importorskip("optuna", reason="the extra geof[sweep] is not installed")
        out.mkdir(exist_ok=True)
        if name in DATA_COMMANDS:
            return data_command(name, benchmark_root, out)
        return command(name, out, sources, finished_runs, tmp_path)

    return made


def told(ended: Any) -> None:
    """Require a sentence and no traceback."""
    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said
    assert "Expected" in ended.said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_is_full_from_some_moment_on(name, make, tmp_path, tried):
    fills_up(lambda folder: make(name, folder), tmp_path, tried)


def fills_up(make: Callable[[Path], Callable[[], Any]], tmp_path: Path, tried) -> None:
    """Let the disk be full at every point; room is made, and the command ends as if nothing was."""
    for name in ("warm", "whole"):
        (tmp_path / name).mkdir()
    make(tmp_path / "warm")()
    total = number_of_deeds(make(tmp_path / "whole"))
    wanted = contents(tmp_path / "whole")
    for room in range(total) if FULL or total < 7 else range(total - 1, -1, -7):
        folder = tmp_path / f"full {room}"
        folder.mkdir()
        action = make(folder)

        def full(action=action, room=room) -> Any:
            with refused_after(room):
                return action()

        ended = forked(full)
        if ended.code != 0:  # it may have ended with what it could not tidy up
            told(ended)
        again = forked(action)
        assert again.code == 0, (room, again.said)
        assert contents(folder) == wanted, room
        tried()


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """Return a file system of its own with room for next to nothing."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k,nr_inodes=64", "none", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_small_disk(name, make, small_disk, tried):
    """The system itself refuses; what is left over from a run may stay, to go on with."""
    (small_disk / "ballast").write_bytes(bytes(16_000))
    ended = forked(make(name, small_disk / "out"))
    if ended.code != 0:
        told(ended)
    left = [path.name for path in (small_disk / "out").rglob(".*") if "lock" not in path.name]
    assert left == []
    tried()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_that_may_only_be_read(name, make, tmp_path, tried):
    out = tmp_path / "out"
    action = make(name, out)
    out.chmod(0o555)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == "root" and folder != Path(folder.anchor):
            folder.chmod(folder.stat().st_mode | 0o055)

    def as_nobody() -> Any:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.environ["HOME"] = str(out)
        return action()

    told(forked(as_nobody))
    assert list(out.iterdir()) == []
    tried()


@pytest.mark.parametrize("kind", ["node", "link", "graph"])
def test_a_clock_that_jumps_back(kind, sources, tmp_path, tried):
    words = ["train", *sources[kind], *WORDS, "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0

    def jumping() -> Any:
        whole, calls = time.time, 0

        def back() -> float:
            nonlocal calls
            calls += 1
            return whole() - 3600.0 * calls

        time.time = back  # type: ignore[assignment]
        return main([*words, str(tmp_path / "run")])

    ended = forked(jumping)
    assert ended.code == 0, ended.said
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    tried()


@pytest.mark.parametrize("name", ["train", "sweep", "cache", "predict"])
def test_two_processes_on_one_folder(name, make, tmp_path, tried):
    """One does the work, the other waits, is told, or does the same."""
    make(name, tmp_path / "whole")()
    wanted = contents(tmp_path / "whole")
    for turn in range(3 if not FULL else 12):
        out = tmp_path / f"out {turn}"
        both = [started(make(name, out)) for _ in "ab"]
        ended = [wait(120.0) for wait in both]
        codes = sorted(e.code for e in ended)
        assert codes in ([0, 0], [0, 1]), [e.said for e in ended]
        if codes == [0, 1]:
            (refused,) = [e for e in ended if e.code]
            assert "Expected nobody else" in refused.said
        assert contents(out) == wanted
        tried()

"""``--device`` of every command that trains or applies a run: there, or refused in words."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from geof.cli import main
from tests.cli.conftest import QUICK

SPACE = "learning_rate: [0.1, 0.01]\n"
NEEDS_OPTUNA = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="the extra geof[sweep] is not installed"
)
COMMANDS = [
    *("train", "predict", "embed", "evaluate"),
    pytest.param("sweep", marks=NEEDS_OPTUNA),
]


@pytest.fixture
def no_gpu(monkeypatch):
    """Let there be the CPU alone, also where there is more."""
    monkeypatch.setattr("geof.devices.available_devices", lambda: ["cpu"])


@pytest.fixture
def words(tables, node_run, tmp_path):
    """Return a command line by the name of its command; what it writes is called ``made``."""
    made, space = str(tmp_path / "made"), tmp_path / "space.yaml"
    space.write_text(SPACE)
    search = ["--sampler", "grid", "--workers", "1", "--splits", "0"]
    return {
        "train": ["train", *tables, "--label", "kind", "--out", made, *QUICK],
        "sweep": ["sweep", str(space), *tables, "--label", "kind", "--out", made, *search, *QUICK],
        "predict": ["predict", str(node_run), "--out", f"{made}.csv"],
        "embed": ["embed", str(node_run), "--out", f"{made}.npz"],
        "evaluate": ["evaluate", str(node_run), "--json"],
    }


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, and the folders as files of nothing."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_the_cpu_is_accepted(command, words, tmp_path, capsys):
    assert main([*words[command], "--device", "cpu"]) == 0
    if command == "evaluate":
        assert json.loads(capsys.readouterr().out)["part"] == "test"
    else:
        assert list(tmp_path.glob("made*"))
    if command == "train":
        assert json.loads((tmp_path / "made" / "result.json").read_text())["epochs"] == 4


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "Expected device 'cuda' to be here (there is 'cpu'). Take one of these"),
        ("cuda:1", "Expected device 'cuda:1' to be here (there is 'cpu')"),
        ("gpu", "Expected 'device' to be auto, cpu, cuda, mps or xpu"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_there_is_refused_and_nothing_is_written(
    command, device, message, words, node_run, tmp_path, no_gpu, capsys
):
    before, run = contents(tmp_path), contents(node_run)
    assert main([*words[command], "--device", device]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("geof: Expected")
    assert message in told.err
    assert told.err.count("\n") == 1, "one sentence after the other, no traceback"
    assert told.out == ""
    assert contents(tmp_path) == before
    assert contents(node_run) == run


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_a_file_that_was_to_be_replaced_stays(command, words, tmp_path, no_gpu):
    out = Path(words[command][-1])
    out.write_text("earlier")
    assert main([*words[command], "--force", "--device", "cuda"]) == 1
    assert out.read_text() == "earlier"


@pytest.mark.parametrize("command", ["train", pytest.param("sweep", marks=NEEDS_OPTUNA)])
def test_what_is_gone_on_with_is_left_as_it_was(command, words, tmp_path, no_gpu, capsys):
    assert main(words[command]) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    assert main([command, "--resume", str(tmp_path / "made"), "--device", "cuda"]) == 1
    assert "Expected device 'cuda' to be here" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_the_option_among_the_words_is_refused_alike(words, tmp_path, no_gpu, capsys):
    assert main([*words["train"], "device=cuda"]) == 1
    assert "Expected device 'cuda' to be here" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()

"""Several processes train one run: equal to one process, killed and gone on with, refused in words.

Each rank is a command of its own, as torchrun starts them; torchrun itself is in the slow suite.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from geof.cli import main
from geof.training.checkpoint import read_tensors
from tests.cli.commands import Commands, Done, Started
from tests.cli.test_kill import Metrics, remains, source
from tests.faults.harness import FULL
from tests.processes import marked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")

RANK = """
import functools, json, os, sys
os.environ.update(json.loads(sys.argv[1]))
import geof.training, geof.training.distributed
from geof.cli import main
geof.training.Watch = functools.partial(geof.training.Watch, save_seconds=0, step_seconds=0)
geof.training.distributed.MEETING_SECONDS = float(sys.argv[2])
sys.exit(main(sys.argv[3:]))
"""

# Dropout draws its entries per rank: all else is equal to one process.
PLAIN = ["options.dropout=0", "options.feature_dropout=0", "readout.dropout=0", "epochs=3"]
ODD = [*PLAIN, "edge_dropout=0.2", "weight_averaging=0.5", "class_weights=balanced"]
GRAPH = [*ODD, "readout.batch_norm=true", "readout.pool=sum", "evaluate_every=2"]
LINK = [*PLAIN, "edge_dropout=0.2", "batch_size=25", "fanouts=[3,3]"]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    geof: Commands, *words: str | Path, count: int = 2, port: int = 0, meeting: float = 30
) -> list[Started]:
    """Start ranks with the same words; a list of lists gives each its own."""
    port = port or free_port()
    given = words if isinstance(words[0], list) else [list(words)] * count
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [
        geof.python(RANK, json.dumps({**there, "RANK": str(rank)}), str(meeting), *own)
        for rank, own in enumerate(given)
    ]


def train(geof: Commands, *words: str | Path, **how) -> list[Done]:
    return [rank.wait() for rank in start(geof, *words, **how)]


def numbers(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(line).items() if v is not None} for line in lines]


@pytest.mark.parametrize(
    ("kind", "more", "count"),
    [
        ("graph", GRAPH, 2),
        pytest.param("graph", [*PLAIN, "options.normalise=layer"], 3, marks=pytest.mark.slow),
        # Fewer graphs than ranks in the last batch of an epoch.
        pytest.param("graph", [*GRAPH, "batch_size=11"], 3, marks=pytest.mark.slow),
        pytest.param("node, sampled", ODD, 2, marks=pytest.mark.slow),
        pytest.param("node, sampled", [*ODD, "batch_size=17"], 3, marks=pytest.mark.slow),
        pytest.param("link", LINK, 2, marks=pytest.mark.slow),
        pytest.param("link", [*LINK, "options.normalise=none"], 3, marks=pytest.mark.slow),
    ],
)
def test_several_processes_are_equal_to_one(kind, more, count, geof, tmp_path):
    words = ["train", *source(kind, tmp_path), *more, "--out"]
    one, several = tmp_path / "one", tmp_path / "several"
    assert geof(*words, one).code == 0
    done = train(geof, *words, several, count=count)
    # torch was there before the command could ask it for silence.
    said = [[line for line in rank.err.splitlines() if "reducer" not in line] for rank in done]
    assert ([rank.code for rank in done], said) == ([0] * count, [[]] * count)
    assert all(rank.out == "" for rank in done[1:])
    for wanted, found in zip(numbers(one), numbers(several), strict=True):
        for name in wanted.keys() | found.keys():
            near = 1e-3 if name == "validation_loss" else 1e-4
            assert found[name] == pytest.approx(wanted[name], rel=near, abs=1e-5)
    wanted, _ = read_tensors(one / "checkpoint.safetensors")
    found, _ = read_tensors(several / "checkpoint.safetensors")
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        # What shifts all rows before a normalisation has no gradient: Adam steps on its rounding.
        shifts = "feature_lift" in name or "running_mean" in name
        near = 5e-3 if shifts and "options.normalise" not in str(more) else 1e-4
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=near)
    results = [json.loads((run / "result.json").read_text()) for run in (one, several)]
    assert results[0]["split_hash"] == results[1]["split_hash"]
    assert results[0]["best_epoch"] == results[1]["best_epoch"]
    assert results[1]["test"] == pytest.approx(results[0]["test"], abs=1e-3)
    assert (one / "split.npz").read_bytes() == (several / "split.npz").read_bytes()
    assert json.loads((several / "config.json").read_text())["processes"] == count
    # Finished, the same command gives the result again.
    assert [rank.code for rank in train(geof, *words, several, count=count)] == [0] * count


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "victim"),
    # Each kind once; make test-faults has both victims of each.
    [("graph", 1), ("node, sampled", 0), ("link", 1)]
    + FULL * [("graph", 0), ("node, sampled", 1), ("link", 0)],
)
def test_a_killed_process_ends_the_run_which_goes_on_to_the_same_bits(kind, victim, geof, tmp_path):
    sampled = ["batch_size=25", "fanouts=[3,3]"] if kind == "link" else []
    words = ["train", *source(kind, tmp_path), "epochs=30", *sampled, "--out"]
    assert [rank.code for rank in train(geof, *words, tmp_path / "whole")] == [0, 0]
    run = tmp_path / "run"
    metrics = Metrics(run)
    ranks = start(geof, *words, run)
    metrics.wait_for(2)
    ranks[victim].signal(signal.SIGKILL)
    killed = time.monotonic()
    assert ranks[victim].wait().code == -signal.SIGKILL
    left = ranks[1 - victim].wait()
    assert time.monotonic() - killed < 60
    assert left.code == 1
    assert f"geof (rank {1 - victim}): Expected all 2 processes" in left.err
    assert f"rank {victim} ended without a word" in left.err
    assert "Run the same command again" in left.err
    assert not (run / "result.json").exists()
    assert [rank.code for rank in train(geof, *words, run)] == [0, 0]
    assert remains(run) == remains(tmp_path / "whole")


@pytest.mark.slow
def test_one_process_asked_to_stop_stops_all(geof, tmp_path):
    words = ["train", *source("graph", tmp_path), "epochs=200", "--out", tmp_path / "run"]
    metrics = Metrics(tmp_path / "run")
    ranks = start(geof, *words)
    metrics.wait_for(2)
    ranks[1].signal(signal.SIGINT)
    done = [rank.wait() for rank in ranks]
    assert [rank.code for rank in done] == [130, 130]
    assert "the state is saved" in done[0].err
    assert "torchrun ... -m geof train --resume" in done[0].err
    assert (tmp_path / "run" / "training_state.safetensors").exists()


@pytest.mark.slow
def test_processes_that_were_asked_for_different_things_refuse(geof, tmp_path):
    words = ["train", *source("graph", tmp_path), "--out", str(tmp_path / "run")]
    done = train(geof, [*words], [*words, "learning_rate=0.02"])
    table = tmp_path / "molecules.csv"
    other = tmp_path / "other.csv"
    other.write_text(table.read_text().replace("CCCN", "CCCS"))
    done += train(geof, words, [str(other) if word == str(table) else word for word in words])
    for rank, said in zip(done, 2 * ["training.learning_rate"] + 2 * ["content_hash"], strict=True):
        assert rank.code == 1
        assert "rank 1 differs" in rank.err
        assert said in rank.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_error_of_one_process_is_told_to_all(geof, tmp_path):
    words = ["train", *source("graph", tmp_path), "--out", str(tmp_path / "run")]
    gone = [str(tmp_path / "none.csv") if word.endswith(".csv") else word for word in words]
    first, second = train(geof, words, gone)
    assert (first.code, second.code) == (1, 1)
    assert "none.csv" in second.err
    assert "but rank 1 failed: " in first.err
    assert "none.csv" in first.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "link"])
def test_a_whole_graph_is_refused(kind, geof, tmp_path):
    words = ["train", *source(kind, tmp_path), "--out", tmp_path / "run"]
    for rank in train(geof, *words):
        assert rank.code == 1
        assert "batch_size=1024 fanouts=[10,10]" in rank.err


@pytest.mark.slow
def test_a_port_in_use_is_named_by_all(geof, tmp_path):
    words = ["train", *source("graph", tmp_path), "--out", tmp_path / "run"]
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        first, second = train(geof, *words, port=port, meeting=3)
    assert (first.code, second.code) == (1, 1)
    assert f"Expected 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) to be free" in first.err
    assert f"to meet at 127.0.0.1:{port}" in second.err


@pytest.mark.slow
def test_a_process_that_never_comes_is_not_waited_for(geof, tmp_path):
    words = ["train", *source("graph", tmp_path), "--out", str(tmp_path / "run")]
    (alone,) = train(geof, words, count=2, meeting=3)
    assert alone.code == 1
    assert "Expected 2 processes to meet" in alone.err


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "0"}, "no WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2"}, "no RANK, MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}, "no MASTER_PORT"),
        ({"RANK": "two", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}, "'two'"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}, "got 2"),
    ],
)
def test_an_incomplete_environment_is_refused(environment, said, monkeypatch, capsys, tmp_path):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--dataset", "digits", "--out", str(tmp_path / "run")]) == 1
    assert said in capsys.readouterr().err


def test_other_commands_are_not_for_several_processes(monkeypatch, capsys):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")):
        monkeypatch.setenv(name, value)
    assert main(["data", "list"]) == 1
    assert "geof (rank 1): Expected 'geof train'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
def test_torchrun_starts_all_and_ends_all(tmp_path):
    words = [*source("node, sampled", tmp_path), "--out", str(tmp_path / "run"), "--json"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, "-m", "geof", "train", *words, "epochs=100"]
    mark = {"GEOF_TEST": str(tmp_path)}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    how["env"] = {**os.environ, "OMP_NUM_THREADS": "1", **mark}
    first = subprocess.Popen(command, **how)
    Metrics(tmp_path / "run").wait_for(3)
    (victim,) = set(marked(f"GEOF_TEST={tmp_path}")) & set(marked("RANK=1"))
    os.kill(victim, signal.SIGKILL)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "geof (rank 0): Expected all 2 processes" in said
    assert "rank 1 ended without a word" in said
    again = subprocess.run(command, **how, check=True)
    assert json.loads(again.stdout)["epochs"] == 100
    assert "reducer.cpp" not in again.stderr

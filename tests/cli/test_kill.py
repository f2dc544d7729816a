"""SIGKILL at random moments: the same command again gives the bits of a run left in peace."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geof.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")

EPOCHS = 8
WORDS = [
    *("--preset", "none", "--quiet", f"epochs={EPOCHS}", "schedule=cosine", "clip=1.0"),
    *("options.hidden_channels=8", "options.blocks=2", "options.controller_channels=8"),
    *("options.dropout=0.3", "options.feature_dropout=0.2", "options.normalise=batch"),
    *("options.outputs=all", "signature.walk_length=3", "readout.dropout=0.2"),
]
KINDS = ["node", "link", "graph", "node, sampled"]

# Commands are forked from a process that has imported everything and computed nothing. They save
# their state after every epoch instead of every ten seconds.
SERVER = """
import functools, json, os, sys
import geof.cli.train, geof.training.predict, sklearn.metrics
from geof.cli import main

geof.training.Watch = functools.partial(geof.training.Watch, save_seconds=0)
for line in sys.stdin:
    process = os.fork()
    if process == 0:
        nowhere, code = os.open(os.devnull, os.O_RDWR), 1
        for stream in range(3):
            os.dup2(nowhere, stream)
        try:
            code = main(json.loads(line))
        finally:
            os._exit(code)
    print(process, flush=True)
    sys.stdin.readline()  # the number stays the command's until it is asked for
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class Server:
    """Runs one command at a time in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def start(self, *arguments: str | Path) -> int:
        """Start a command and return its process's number."""
        print(json.dumps([str(word) for word in arguments]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def end(self) -> int:
        """Wait for the command and return its exit code, negative after a signal."""
        print(file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def run(self, *arguments: str | Path) -> int:
        self.start(*arguments)
        return self.end()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def source(kind: str, folder: Path) -> list[str]:
    """Write the data; return what names it, and the settings."""
    draw = random.Random(0)
    if kind == "graph":
        pytest.importorskip("rdkit")
        table = folder / "molecules.csv"
        rows = [f"{'C' * (1 + i % 5)}{'O' if i % 2 else 'N'},{i % 2}" for i in range(30)]
        table.write_text("smiles,active\n" + "\n".join(rows) + "\n")
        return ["--molecules", str(table), "--label", "active", *WORDS, "batch_size=9"]
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    rows = [f"n{i},{draw.gauss(i % 2, 0.5):.3f},{'ab'[i % 2]}" for i in range(60)]
    nodes.write_text("id,size,kind\n" + "\n".join(rows) + "\n")
    pairs = {tuple(sorted(draw.sample(range(60), 2))) for _ in range(150)}
    edges.write_text("source,target\n" + "".join(f"n{a},n{b}\n" for a, b in sorted(pairs)))
    sampling = ["batch_size=18", "fanouts=[3,3]"] if "sampled" in kind else []
    task = ["--task", kind.partition(",")[0]]
    named = ["--nodes", str(nodes), "--edges", str(edges), "--label", "kind", *task]
    return [*named, *WORDS, *sampling]


class Metrics:
    """Follows a run's epochs; what an earlier process wrote does not count."""

    def __init__(self, run: Path) -> None:
        self.path, self.result = run / "metrics.jsonl", run / "result.json"
        self.old = self._identity()

    def _identity(self) -> int | None:
        return self.path.stat().st_ino if self.path.exists() else None

    def wait_for(self, epoch: int) -> None:
        deadline = time.monotonic() + 60
        # A process begins with a new file, holding the epochs of the state it found; one that finds
        # a finished run, killed only on its way out, begins nothing.
        while not self.result.exists() and (
            self._identity() == self.old or self.path.read_bytes().count(b"\n") < epoch
        ):
            assert time.monotonic() < deadline
            time.sleep(0.001)


def killed(server: Server, arguments: list[str], run: Path, draw: random.Random) -> bool:
    """Start a command and kill it at a random moment; return whether it was still at work."""
    metrics, epoch = Metrics(run), draw.randrange(-1, EPOCHS)
    process = server.start(*arguments)
    if epoch >= 0:
        metrics.wait_for(epoch)
    time.sleep(draw.uniform(0, 0.03))
    os.kill(process, signal.SIGKILL)
    return server.end() == -signal.SIGKILL


def remains(run: Path) -> dict[str, object]:
    result = json.loads((run / "result.json").read_text())
    del result["seconds_per_epoch"], result["peak_rss_bytes"]
    names = ("checkpoint.safetensors", "metrics.jsonl", "config.json", "split.npz")
    return {"result": result, **{name: (run / name).read_bytes() for name in names}}


@pytest.mark.parametrize(
    ("kind", "moments"),
    [(kind, 2) for kind in ("node", "link", "graph")]
    + [pytest.param(kind, 20, marks=pytest.mark.slow) for kind in KINDS],
)
def test_killed_runs_end_with_the_same_bits(kind, moments, server, tmp_path):
    flags, draw = ["train", *source(kind, tmp_path), "--out"], random.Random(kind)
    assert server.run(*flags, tmp_path / "whole") == 0
    whole, kills, runs = remains(tmp_path / "whole"), 0, 0
    while kills < moments:
        run = tmp_path / f"run {runs}"
        while kills < moments and killed(server, [*flags, run], run, draw):
            kills += 1
        assert server.run(*flags, run) == 0
        assert remains(run) == whole
        assert not list(run.glob("training_state*"))
        runs += 1


def test_another_process_is_kept_out_until_the_first_is_dead(server, tmp_path, capsys):
    run = tmp_path / "run"
    arguments = ["train", *source("node", tmp_path), "--out", str(run)]
    metrics = Metrics(run)
    process = server.start(*arguments)
    metrics.wait_for(1)
    os.kill(process, signal.SIGSTOP)
    before = (run / "metrics.jsonl").read_bytes()
    assert main(arguments) == 1
    assert "another run is at work there" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before
    os.kill(process, signal.SIGKILL)
    assert server.end() == -signal.SIGKILL
    assert not (run / "result.json").exists()
    assert main(arguments) == 0

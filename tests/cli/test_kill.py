"""SIGKILL at random moments: the same command again gives the bits of a run left in peace."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from geof.cli import main
from tests.cli.commands import Commands, Started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")

EPOCHS = 8
WORDS = [
    *("--preset", "none", "--quiet", f"epochs={EPOCHS}", "schedule=cosine", "clip=1.0"),
    *("options.hidden_channels=8", "options.blocks=2", "options.controller_channels=8"),
    *("options.dropout=0.3", "options.feature_dropout=0.2", "options.normalise=batch"),
    *("options.outputs=all", "signature.walk_length=3", "readout.dropout=0.2"),
]
KINDS = ["node", "link", "graph", "node, sampled"]


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


def started(geof: Commands, arguments: list[str | Path]) -> Started:
    """Start a command that saves its state after every epoch instead of every ten seconds."""
    return geof.start(*arguments, save_seconds=0)


def finished(geof: Commands, arguments: list[str | Path]) -> bool:
    return started(geof, arguments).wait().code == 0


def killed(geof: Commands, arguments: list[str | Path], run: Path, draw: random.Random) -> bool:
    """Start a command and kill it at a random moment; return whether it was still at work."""
    metrics, epoch = Metrics(run), draw.randrange(-1, EPOCHS)
    command = started(geof, arguments)
    if epoch >= 0:
        metrics.wait_for(epoch)
    time.sleep(draw.uniform(0, 0.03))
    command.signal(signal.SIGKILL)
    return command.wait().code == -signal.SIGKILL


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
def test_killed_runs_end_with_the_same_bits(kind, moments, geof, tmp_path):
    flags, draw = ["train", *source(kind, tmp_path), "--out"], random.Random(kind)
    assert finished(geof, [*flags, tmp_path / "whole"])
    whole, kills, runs = remains(tmp_path / "whole"), 0, 0
    while kills < moments:
        run = tmp_path / f"run {runs}"
        while kills < moments and killed(geof, [*flags, run], run, draw):
            kills += 1
        assert finished(geof, [*flags, run])
        assert remains(run) == whole
        assert not list(run.glob("training_state*"))
        runs += 1


def test_another_process_is_kept_out_until_the_first_is_dead(geof, tmp_path, capsys):
    run = tmp_path / "run"
    arguments = ["train", *source("node", tmp_path), "--out", str(run)]
    metrics = Metrics(run)
    command = started(geof, arguments)
    metrics.wait_for(1)
    command.signal(signal.SIGSTOP)
    before = (run / "metrics.jsonl").read_bytes()
    assert main(arguments) == 1
    assert "another run is at work there" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before
    command.signal(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL
    assert not (run / "result.json").exists()
    assert main(arguments) == 0

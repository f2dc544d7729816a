"""Small data of every kind, and runs trained on them."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from geof.cli import main

# Presets change with what was measured; the tests do not.
PLAIN = ["--preset", "none"]
SMALL = ["options.hidden_channels=8", "options.blocks=2", "options.controller_channels=8"]
LOUD = [*PLAIN, "epochs=4", *SMALL]
QUICK = ["--quiet", *LOUD]


@pytest.fixture
def tables(tmp_path) -> list[str]:
    """Nodes 'ü 0', 'ü 1', ... whose label shows in the age; random edges."""
    return write_tables(tmp_path)


def write_tables(folder: Path) -> list[str]:
    draw = random.Random(0)
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    rows = [["name", "age", "city", "kind"]]
    for i in range(60):
        kind = "ab"[i % 2]
        rows.append([f"ü {i}", f"{draw.gauss(30 + 10 * (i % 2), 4):.2f}", "Oslo,Nord", kind])
    rows[5][2] = "Paris"
    with nodes.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with edges.open("w", newline="") as file:
        pairs = [draw.sample(range(60), 2) for _ in range(150)]
        csv.writer(file).writerows(
            [["source", "target"], *([f"ü {a}", f"ü {b}"] for a, b in pairs)]
        )
    return ["--nodes", str(nodes), "--edges", str(edges)]


def write_molecules(folder: Path) -> list[str]:
    pytest.importorskip("rdkit")
    table = folder / "molecules.csv"
    lines = [f"{'C' * (1 + i % 7)}{'O' if i % 2 else 'N'},{i % 2},mol{i}" for i in range(40)]
    lines[7] = lines[7].replace(",1,", ",,")  # no label: in no part of the split
    table.write_text("smiles,active,name\n" + "\n".join(lines) + "\n")
    return ["--molecules", str(table), "--id", "name"]


@pytest.fixture(scope="session")
def node_run(tmp_path_factory) -> Path:
    """A finished run of the node task; not to be changed."""
    folder = tmp_path_factory.mktemp("node")
    return train(folder, [*write_tables(folder), "--label", "kind"])


@pytest.fixture(scope="session")
def link_run(tmp_path_factory) -> Path:
    """A finished run of the link task; not to be changed."""
    folder = tmp_path_factory.mktemp("link")
    return train(folder, [*write_tables(folder), "--label", "kind", "--task", "link"])


@pytest.fixture(scope="session")
def graph_run(tmp_path_factory) -> Path:
    """A finished run of the graph task, its readout not the simplest; not to be changed."""
    folder = tmp_path_factory.mktemp("graph")
    words = ["readout.batch_norm=true", "readout.pool=sum", "batch_size=7"]
    return train(folder, [*write_molecules(folder), "--label", "active"], *words)


def train(folder: Path, flags: Sequence[str], *words: str) -> Path:
    run = folder / "run"
    assert main(["train", *flags, "--out", str(run), *QUICK, *words]) == 0
    return run


@pytest.fixture(params=["node_run", "link_run", "graph_run"])
def any_run(request) -> Path:
    """Return each of the three in turn."""
    run: Path = request.getfixturevalue(request.param)
    return run

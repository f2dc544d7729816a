"""Tiny runs of every task on data whose names try to be markup."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from geof.cli import main
from tests.cli.conftest import QUICK, write_molecules

HOSTILE = (
    "</script><script>document.title='pwned'</script>",
    '"><img src=x onerror="document.title=\'pwned\'">',
    "it's & {{script}} <!-- <b>bold</b>",
    "🦉 שלום \u202e evil \u2028 line",
)
"""Names that would run or break the page if they became markup."""

COLUMN = "<style>*{display:none}</style>"


def name(i: int) -> str:
    return f"{HOSTILE[i % len(HOSTILE)]} {i}"


def write_hostile_tables(folder: Path, nodes: int = 48) -> list[str]:
    """Two classes that show in a column, on a graph with more edges within than between them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [[name(i), f"{draw.gauss(i % 2, 0.7):.3f}", HOSTILE[i % 2]] for i in range(nodes)]
        csv.writer(file).writerows([["name", COLUMN, "kind"], *rows])
    pairs = set()
    while len(pairs) < 3 * nodes:
        a, b = draw.sample(range(nodes), 2)
        if a % 2 == b % 2 or draw.random() < 0.2:
            pairs.add((min(a, b), max(a, b)))
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        edges = [[name(a), name(b)] for a, b in sorted(pairs)]
        csv.writer(file).writerows([["source", "target"], *edges])
    tables = ["--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv")]
    return [*tables, "--label", "kind"]


def node_run(folder: Path) -> Path:
    return train(folder, write_hostile_tables(folder))


def link_run(folder: Path) -> Path:
    return train(folder, [*write_hostile_tables(folder), "--task", "link"])


def graph_run(folder: Path) -> Path:
    pytest.importorskip("rdkit")
    folder.mkdir(parents=True, exist_ok=True)
    return train(folder, [*write_molecules(folder), "--label", "active"], "batch_size=8")


def gcn_run(folder: Path) -> Path:
    run = folder / "run"
    flags = [*write_hostile_tables(folder), "--method", "gcn", "--out", str(run)]
    words = ["--quiet", "--preset", "none", "epochs=2", "options.hidden_channels=8"]
    assert main(["train", *flags, *words]) == 0
    return run


RUNS = {"node": node_run, "link": link_run, "graph": graph_run, "gcn": gcn_run}


def train(folder: Path, flags: list[str], *words: str) -> Path:
    run = folder / "run"
    assert main(["train", *flags, "--out", str(run), *QUICK, *words]) == 0
    return run


def report(run: Path, *flags: str) -> Path:
    """Write a run's page beside it and return it."""
    assert main(["report", str(run), "--force", *flags]) == 0
    return run / "report.html"

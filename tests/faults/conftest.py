"""Small data of every kind, and how often each promise was tried."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from geof.cli import main
from tests.cli.conftest import write_molecules, write_tables
from tests.faults.benchmarks import small_benchmark

TRIED: Counter[str] = Counter()
WORDS = [
    *("--quiet", "--preset", "none", "epochs=2", "signature.walk_length=3"),
    *("options.hidden_channels=8", "options.blocks=2", "options.controller_channels=8"),
    *("options.dropout=0.3", "options.normalise=batch", "weight_averaging=0.6"),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here belongs to the campaign; its short form is part of the slow suite."""
    for item in items:
        if "faults" in Path(item.fspath).parts:
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.slow)
            if not hasattr(os, "fork"):
                item.add_marker(pytest.mark.skip(reason=f"needs fork (got {sys.platform})"))


@pytest.fixture
def tried(request):
    """Return what counts tries of the test's promise, shown at the end."""

    def count(number: int = 1) -> None:
        TRIED[request.node.nodeid.rpartition("/")[2]] += number

    return count


def pytest_terminal_summary(terminalreporter) -> None:
    """Say how many tries each promise had."""
    if TRIED:
        terminalreporter.section("tries")
        for name, number in TRIED.items():
            terminalreporter.write_line(f"{number:>9,} {name}")
        TRIED.clear()  # the paper's tests say it too, where they run alone


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> dict[str, list[str]]:
    """Return what names the data of each task."""
    folder = tmp_path_factory.mktemp("sources")
    tables = write_tables(folder)
    graphs = [*write_molecules(folder), "--label", "active", "batch_size=20"]
    return {
        "node": [*tables, "--label", "kind"],
        "link": [*tables, "--label", "kind", "--task", "link"],
        "graph": graphs,
    }


@pytest.fixture(scope="session")
def finished_runs(sources, tmp_path_factory) -> dict[str, Path]:
    """Return a finished run of each task; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    for kind, source in sources.items():
        assert main(["train", *source, *WORDS, "--out", str(folder / kind)]) == 0
    return {kind: folder / kind for kind in sources}


@pytest.fixture
def benchmark_root(tmp_path_factory, monkeypatch) -> Path:
    """Return the raw files of a benchmark that is small while a test runs."""
    monkeypatch.setenv("GEOF_CACHE", os.environ.get("GEOF_CACHE", ""))  # commands change it
    return small_benchmark(tmp_path_factory.mktemp("benchmark"), monkeypatch)

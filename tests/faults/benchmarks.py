"""A benchmark of four nodes to fetch, load and split, and the commands that do so."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geof.cli import main
from geof.data.catalogue import CATALOGUE, RawFile, Statistics
from tests.data.test_catalogue import TU, digest

DATA_COMMANDS = ["fetch", "prepare", "splits"]
COUNT = 20


def many_graphs() -> dict[str, str]:
    """Return the files of twenty graphs, enough for ten folds."""
    pairs = [f"{2 * i + 1}, {2 * i + 2}\n{2 * i + 2}, {2 * i + 1}\n" for i in range(COUNT)]
    return {
        "A": "".join(pairs),
        "graph_indicator": "".join(f"{i + 1}\n" * 2 for i in range(COUNT)),
        "graph_labels": "".join(f"{i % 2}\n" for i in range(COUNT)),
        "node_labels": "".join(f"{i % 3}\n" for i in range(2 * COUNT)),
    }


def small_benchmark(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Let NCI1 be small; return a data root that has it, beside the archive it comes from."""
    parts = many_graphs()
    assert parts.keys() == TU.keys()
    archive, root = folder / "upstream.zip", folder / "root"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for part, text in parts.items():
            content.writestr(f"NCI1/NCI1_{part}.txt", text)
    files = {f"NCI1/raw/NCI1_{part}.txt": text for part, text in parts.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    facts = dataclasses.replace(
        CATALOGUE["NCI1"],
        files=tuple(RawFile(name, digest(text)) for name, text in files.items()),
        urls=(archive.as_uri(),),
        expected=Statistics(COUNT, 2 * COUNT, 2 * COUNT, 3, 2),
    )
    patch.setitem(CATALOGUE, "NCI1", facts)
    return root


def data_command(name: str, root: Path, out: Path) -> Callable[[], Any]:
    """Return a command of ``geof data`` that writes into the folder ``out``."""
    words = {
        "fetch": ["fetch", "NCI1", "--data-root", str(out / "root")],
        "prepare": ["prepare", "NCI1", "--data-root", str(root)],
        "splits": ["splits", "NCI1", "--data-root", str(root), "--out", str(out / "splits")],
    }[name]

    def run() -> int:
        os.environ["GEOF_CACHE"] = str(out / "cache")
        return main(["data", *words])

    return run

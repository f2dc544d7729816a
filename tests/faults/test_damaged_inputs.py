"""One bit of what a user hands in is wrong: an error of ours or an answer, within five seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from geof.data import catalogue
from geof.data.formats import from_arrays, from_npz
from geof.data.molecules import read_molecules
from geof.data.own_splits import own_split
from geof.data.splits import NodeSplit
from geof.data.tables import read_node_table
from geof.io import dump_yaml, read_yaml
from geof.training import RunConfig
from tests.cli.conftest import write_molecules, write_tables
from tests.faults.harness import tries
from tests.faults.test_bit_flips import flipped
from tests.faults.test_fuzz import answered
from tests.training.toys import node_graph

FLIPS = tries(40, 1000)


def write_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return a small graph as arrays, which also lie in a folder, one file each."""
    draw = np.random.default_rng(0)
    arrays = {
        "x": draw.normal(size=(12, 3)).astype("float32"),
        "edge_index": draw.integers(0, 12, (2, 30)),
        "y": np.arange(12) % 2,
        "node_ids": np.array([f"n{i}" for i in range(12)]),
    }
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays


def write_parquet(folder: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"id": [f"n{i}" for i in range(20)], "size": [0.5 * i for i in range(20)]}
    table = arrow.table({**columns, "kind": ["a", "b"] * 10})
    parquet.write_table(table, folder / "nodes.parquet")
    return folder / "nodes.parquet"


Case = tuple[Path, Callable[[], Any]]


def case(name: str, folder: Path) -> Case:
    """Return a file that a user hands in, and what reads it."""
    if name in ("nodes.csv", "edges.csv"):
        write_tables(folder)
        nodes, edges = folder / "nodes.csv", folder / "edges.csv"
        return folder / name, lambda: read_node_table(nodes, edges, label="kind")
    if name == "molecules.csv":
        write_molecules(folder)
        return folder / name, lambda: read_molecules(folder / name, label="active")
    if name == "nodes.parquet":
        path = write_parquet(folder)
        edges = folder / "edges.csv"
        edges.write_text("source,target\n" + "".join(f"n{i},n{i + 1}\n" for i in range(19)))
        return path, lambda: read_node_table(path, edges, label="kind")
    if name == "graph.npz":
        np.savez_compressed(folder / name, **write_arrays(folder / "arrays"))
        return folder / name, lambda: from_npz(folder / name)
    if name.endswith(".npy"):
        write_arrays(folder / "arrays")
        return folder / "arrays" / name, lambda: from_arrays(folder / "arrays")
    if name == "options.yaml":
        content = {"epochs": 3, "learning_rate": 0.01, "options": {"steps": 2, "dropout": 0.1}}
        (folder / name).write_text(dump_yaml(content))
        return folder / name, lambda: RunConfig.parse(read_yaml(folder / name))
    parts = {"train": list(range(20)), "validation": [20, 21, 22], "test": [30, 31]}
    (folder / name).write_text(json.dumps(parts))
    rows = torch.ones(40, dtype=torch.bool)
    return folder / name, lambda: own_split(
        str(folder / name), node_graph(), rows, NodeSplit, (0.6, 0.2)
    )


@pytest.mark.parametrize(
    "name",
    [
        *("nodes.csv", "edges.csv", "molecules.csv", "nodes.parquet", "graph.npz"),
        *("x.npy", "edge_index.npy", "y.npy", "node_ids.npy", "options.yaml", "split.json"),
    ],
)
def test_what_a_user_hands_in(name, tmp_path, tried):
    path, read = case(name, tmp_path)
    assert read() is not None
    for count, _ in enumerate(flipped(path, FLIPS)):
        answered(read, f"{name}, flip {count}")
        tried()


@pytest.mark.parametrize("part", ["A", "graph_indicator", "graph_labels", "node_labels"])
def test_raw_files_of_a_benchmark(part, benchmark_root, tried):
    """Their checksum is known: every flip is refused."""
    path = benchmark_root / "NCI1" / "raw" / f"NCI1_{part}.txt"

    def read() -> Any:
        return catalogue.load("NCI1", data_root=benchmark_root, cache=False)

    assert read() is not None
    for _ in flipped(path, FLIPS):
        assert answered(read, path.name) is None
        tried()

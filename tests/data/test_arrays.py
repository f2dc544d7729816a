"""A folder of mapped arrays is the graph its .npz file would be, without copies of the features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from geof.cli import main
from geof.data.formats import from_arrays, from_npz
from geof.errors import DataError, DtypeError


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return {
        "x": random.standard_normal((40, 6)).astype(np.float32),
        "edge_index": random.integers(0, 40, (2, 120)),
        "y": np.arange(40) % 2,
        "node_ids": np.array([f"n{i}" for i in range(40)]),
    }


@pytest.fixture
def folder(tmp_path, arrays):
    (tmp_path / "graph").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "graph" / f"{name}.npy", array)
    return tmp_path / "graph"


def test_the_graph_is_that_of_an_npz_file(folder, arrays, tmp_path):
    np.savez(tmp_path / "graph.npz", **arrays)
    mapped, loaded = from_arrays(folder), from_npz(tmp_path / "graph.npz")
    assert mapped.content_hash == loaded.content_hash
    assert mapped.node_ids == loaded.node_ids
    assert mapped.name == loaded.name == "graph"
    assert torch.equal(mapped.graph.edge_index, loaded.graph.edge_index)


def test_features_are_mapped_and_the_file_is_left_alone(folder, arrays):
    x = from_arrays(folder).graph.x
    maps = Path("/proc/self/maps").read_text().splitlines()
    inside = [line for line in maps if line.endswith("x.npy")]
    bounds = [[int(end, 16) for end in line.split()[0].split("-")] for line in inside]
    assert any(low <= x.data_ptr() < high for low, high in bounds)
    x[0] = 0
    assert np.array_equal(np.load(folder / "x.npy"), arrays["x"])


def test_other_numbers_are_converted(folder, arrays):
    np.save(folder / "x.npy", arrays["x"].astype(np.float64))
    assert np.array_equal(from_arrays(folder).graph.x.numpy(), arrays["x"])


@pytest.mark.parametrize("name", ["x", "edge_index", "y"])
@pytest.mark.parametrize("kept", [0, 5, 60, 300])
def test_a_file_shorter_than_its_header_is_named(folder, name, kept):
    path = folder / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=rf"{name}\.npy'.*as long as its header says"):
        from_arrays(folder)


def test_what_is_missing_or_cannot_be_read_is_named(folder, tmp_path):
    np.save(folder / "y.npy", np.array([{}] * 40), allow_pickle=True)
    with pytest.raises(DataError, match=r"y\.npy'"):
        from_arrays(folder)
    (folder / "x.npy").unlink()
    with pytest.raises(DataError, match=r"'x\.npy' in the folder.*'edge_index'"):
        from_arrays(folder)
    with pytest.raises(DataError, match=r"has no \.npy file"):
        from_arrays(tmp_path / "nowhere")


def test_values_are_checked_as_those_of_an_npz_file(folder, arrays):
    np.save(folder / "edge_index.npy", arrays["edge_index"].astype(float))
    with pytest.raises(DtypeError, match="whole numbers in 'edge_index'"):
        from_arrays(folder)
    np.save(folder / "edge_index.npy", arrays["edge_index"])
    arrays["x"][3, 1] = np.nan
    np.save(folder / "x.npy", arrays["x"])
    with pytest.raises(DataError, match="node 3, column 1"):
        from_arrays(folder)


@pytest.mark.slow
def test_train_and_predict(folder, tmp_path, capsys):
    run, small = str(tmp_path / "run"), ["epochs=1", "batch_size=8", "fanouts=[2,2]"]
    assert main(["train", "--arrays", str(folder), "--out", run, *small]) == 0
    out = tmp_path / "out.csv"
    words = ["predict", run, "--arrays", str(folder), "--piece-size", "20", "--out", str(out)]
    assert main(words) == 0, capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 41

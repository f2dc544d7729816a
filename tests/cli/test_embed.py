"""``geof embed``: the vectors that the readouts get, under the user's own names."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

from geof.cli import main
from geof.geometry import frame_from_coordinates
from geof.training.predict import Run
from tests.cli.conftest import PLAIN, train, write_tables


def embed(run, out, *more) -> dict[str, np.ndarray]:
    assert main(["embed", str(run), "--out", str(out), *more]) == 0
    with np.load(out) as arrays:
        return dict(arrays)


def predictions(run, out, *more) -> list[dict[str, str]]:
    assert main(["predict", str(run), "--out", str(out), *more]) == 0
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_nodes(node_run, tmp_path):
    found = embed(node_run, tmp_path / "e.npz")
    assert found["ids"].tolist() == [f"ü {i}" for i in range(60)]
    logits = Run.open(node_run).network.readout(torch.from_numpy(found["vectors"]))
    rows = predictions(node_run, tmp_path / "p.csv")
    wanted = torch.tensor([float(row["probability_b"]) for row in rows])
    torch.testing.assert_close(logits.softmax(-1)[:, 1].detach(), wanted)


def test_geometry(node_run, tmp_path):
    found = embed(node_run, tmp_path / "e.npz")
    assert found["coordinates"].shape == (60, 2, 10)
    frames = frame_from_coordinates(torch.from_numpy(found["coordinates"]))
    wanted = torch.linalg.slogdet(frames).logabsdet.sum(-1)
    torch.testing.assert_close(torch.from_numpy(found["log_determinant"]), wanted)


def test_nodes_of_a_link_run(link_run, tmp_path):
    found = embed(link_run, tmp_path / "e.npz")
    (tmp_path / "pairs.csv").write_text("source,target\nü 3,ü 7\nü 1,ü 2\n")
    readout = Run.open(link_run).network.readout
    logits = readout(torch.from_numpy(found["vectors"]), torch.tensor([[3, 1], [7, 2]]))
    rows = predictions(link_run, tmp_path / "p.csv", "--pairs", str(tmp_path / "pairs.csv"))
    wanted = torch.tensor([float(row["probability_link"]) for row in rows])
    torch.testing.assert_close(logits.sigmoid().detach(), wanted)


def test_graphs(graph_run, tmp_path):
    found = embed(graph_run, tmp_path / "e.npz")
    assert found["ids"].tolist() == [f"mol{i}" for i in range(40)]
    logits = Run.open(graph_run).network.readout.mlp(torch.from_numpy(found["vectors"]))
    rows = predictions(graph_run, tmp_path / "p.csv")
    wanted = torch.tensor([float(row["probability_1"]) for row in rows])
    torch.testing.assert_close(logits.softmax(-1)[:, 1].detach(), wanted)
    atoms = np.bincount(found["graph_of_node"])
    assert atoms.tolist() == [2 + i % 7 for i in range(40)]
    assert found["log_determinant"].shape == (atoms.sum(),)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_hold_the_same_vectors(suffix, node_run, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    found = embed(node_run, tmp_path / "e.npz")
    out = tmp_path / f"e{suffix}"
    assert main(["embed", str(node_run), "--out", str(out)]) == 0
    if suffix == ".csv":
        with out.open(newline="") as file:
            header, *rows = csv.reader(file)
    else:
        from pyarrow import parquet

        table = parquet.read_table(out)
        header = table.column_names
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert header == ["id", *(f"channel_{i}" for i in range(8))]
    assert [row[0] for row in rows] == found["ids"].tolist()
    assert np.array([row[1:] for row in rows], np.float32).tolist() == found["vectors"].tolist()


def test_other_encoders_have_no_geometry(tmp_path):
    run = tmp_path / "run"
    flags = [*write_tables(tmp_path), "--label", "kind", "--model", "gcn", "--out", str(run)]
    assert main(["train", *flags, "--quiet", *PLAIN, "epochs=2", "model.hidden_channels=8"]) == 0
    assert set(embed(run, tmp_path / "e.npz")) == {"ids", "vectors"}


def test_all_steps_are_as_wide_as_they_say(tmp_path, capsys):
    tables = [*write_tables(tmp_path), "--label", "kind"]
    run = train(tmp_path, tables, "model.outputs=all", "model.steps=2")
    capsys.readouterr()
    assert main(["embed", str(run), "--out", str(tmp_path / "e.npz"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["channels"], summary["of"]) == (60, 24, "nodes")


def test_another_graph_is_embedded_in_its_place(node_run, tmp_path):
    (tmp_path / "n.csv").write_text("name,age,city\nx,31,Paris\ny,44,Rome\n")
    (tmp_path / "e.csv").write_text("source,target\nx,y\n")
    source = ["--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv")]
    assert embed(node_run, tmp_path / "e.npz", *source)["ids"].tolist() == ["x", "y"]


def test_a_file_that_is_there_stays_unless_forced(node_run, tmp_path, capsys):
    out = tmp_path / "e.npz"
    out.write_text("mine")
    assert main(["embed", str(node_run), "--out", str(out)]) == 1
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert len(embed(node_run, out, "--force")["ids"]) == 60
    assert main(["embed", str(node_run), "--out", str(tmp_path / "e.txt")]) == 1
    assert "end in .csv, .parquet or .npz" in capsys.readouterr().err

"""Train on your own tables, predict with your own identifiers."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest

from geof.cli import main

QUICK = ["--quiet", "epochs=4", "model.hidden_channels=8", "model.blocks=2"]


@pytest.fixture
def tables(tmp_path):
    """Nodes 'ü 0', 'ü 1', ... whose label shows in the age; random edges."""
    random.seed(0)
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    rows = [["name", "age", "city", "kind"]]
    for i in range(60):
        kind = "ab"[i % 2]
        rows.append([f"ü {i}", f"{random.gauss(30 + 10 * (i % 2), 4):.2f}", "Oslo,Nord", kind])
    rows[5][2] = "Paris"
    with nodes.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with edges.open("w", newline="") as file:
        pairs = [random.sample(range(60), 2) for _ in range(150)]
        csv.writer(file).writerows(
            [["source", "target"], *([f"ü {a}", f"ü {b}"] for a, b in pairs)]
        )
    return ["--nodes", str(nodes), "--edges", str(edges)]


def read(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_nodes_from_table_to_table(tables, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "predictions.csv"
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK]) == 0
    result = json.loads((run / "result.json").read_text())
    assert f"test {result['test']:.2f} %" in capsys.readouterr().out
    assert main(["predict", str(run), *tables, "--out", str(out)]) == 0
    rows = read(out)
    assert [row["id"] for row in rows] == [f"ü {i}" for i in range(60)]
    for row in rows:
        assert float(row["probability_a"]) + float(row["probability_b"]) == pytest.approx(1)
        best = max("ab", key=lambda name: float(row[f"probability_{name}"]))
        assert row["prediction"] == best


def test_a_new_graph_goes_through_the_stored_schema(tables, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK]) == 0
    nodes, edges = tmp_path / "new.csv", tmp_path / "new_edges.csv"
    nodes.write_text("name,age,city\nx,31,Paris\ny,44,Rome\n")
    edges.write_text("source,target\nx,y\n")
    new = ["--nodes", str(nodes), "--edges", str(edges), "--out", str(tmp_path / "new_out.csv")]
    assert main(["predict", str(run), *new]) == 0
    assert [row["id"] for row in read(tmp_path / "new_out.csv")] == ["x", "y"]
    nodes.write_text("name,city\nx,Paris\ny,Oslo\n")
    capsys.readouterr()
    assert main(["predict", str(run), *new]) == 1
    assert "age" in capsys.readouterr().err


def test_links_from_table_to_table(tables, tmp_path):
    run, out = tmp_path / "run", tmp_path / "links.csv"
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("source,target\nü 3,ü 7\nü 7,ü 3\nü 1,ü 2\n")
    label = ["--label", "kind"]
    assert main(["train", *tables, *label, "--task", "link", "--out", str(run), *QUICK]) == 0
    assert json.loads((run / "result.json").read_text())["metric"] == "roc_auc"
    assert main(["predict", str(run), *tables, "--pairs", str(pairs), "--out", str(out)]) == 0
    rows = read(out)
    assert (rows[0]["source"], rows[0]["target"]) == ("ü 3", "ü 7")
    assert rows[0]["probability_link"] == rows[1]["probability_link"]


def test_molecules_from_table_to_table(tmp_path):
    pytest.importorskip("rdkit")
    table, run, out = tmp_path / "m.csv", tmp_path / "run", tmp_path / "out.parquet"
    lines = [f"{'C' * (1 + i % 7)}{'O' if i % 2 else 'N'},{i % 2},mol{i}" for i in range(40)]
    lines[7] = lines[7].replace(",1,", ",,")  # no label: in no part of the split
    table.write_text("smiles,active,name\n" + "\n".join(lines) + "\n")
    source = ["--molecules", str(table), "--id", "name"]
    assert main(["train", *source, "--label", "active", "--out", str(run), *QUICK]) == 0
    # The column of identifiers is remembered.
    assert main(["predict", str(run), "--molecules", str(table), "--out", str(out)]) == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(out).column("id").to_pylist() == [f"mol{i}" for i in range(40)]


def test_one_graph_as_npz(tmp_path):
    generator = np.random.default_rng(0)
    edges = generator.integers(0, 40, (2, 90))
    x = generator.normal(size=(40, 5)).astype("float32")
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges, y=(x[:, 0] > 0).astype("int64"))
    source = ["--npz", str(tmp_path / "g.npz")]
    assert main(["train", *source, "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert main(["predict", str(tmp_path / "run"), *source, "--out", str(tmp_path / "p.csv")]) == 0
    assert len(read(tmp_path / "p.csv")) == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one of --dataset, --nodes, --molecules, --npz (got none)"),
        (["--nodes", "n.csv", "--dataset", "CiteSeer"], "got --dataset and --nodes"),
        (["--nodes", "n.csv"], "'--edges FILE' beside '--nodes'"),
        (["--dataset", "CitySeer"], "Did you mean 'CiteSeer'"),
        (["--nodes", "n.csv", "--edges", "e.csv"], "'--label COLUMN'"),
        (["--dataset", "CiteSeer", "epoch=3"], "Did you mean 'epochs'"),
        (["--dataset", "CiteSeer", "epochs"], "KEY=VALUE (got 'epochs')"),
        (["--dataset", "CiteSeer", "epochs=0"], "'epochs' to be an integer >= 1"),
        (["--dataset", "CiteSeer", "learning_rate=abc"], "'learning_rate' to be a finite number"),
        (["--dataset", "CiteSeer", "seed=abc"], "'seed' to be an integer"),
        (["--dataset", "CiteSeer", "signature.walk=3"], "'signature.walk'"),
        (["--npz", "g.npz", "--label", "kind"], "no '--label' beside '--npz'"),
        (["--dataset", "CiteSeer", "--drop", "x"], "no '--drop' beside '--dataset'"),
    ],
)
def test_train_refuses(arguments, message, tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "run"), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.temprature=3", "Did you mean 'temperature'"),
        ("model.temperature=abc", "'temperature' to be a finite number"),
        ("model.in_channels=3", "Unknown option 'model.in_channels'"),
        ("model.structure_aware=no", "'structure_aware' to be True or False"),
    ],
)
def test_bad_model_options_are_named_and_leave_nothing(word, message, tables, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *tables, "--label", "kind", "--out", str(run), "--quiet", word]) == 1
    assert message in capsys.readouterr().err
    assert not run.exists()


def test_switches_mean_what_they_say(tables, tmp_path):
    """Python's False, JSON's false and the default: two different networks."""

    def checkpoint(name: str, *words: str) -> bytes:
        run = tmp_path / name
        assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK, *words]) == 0
        return (run / "checkpoint.safetensors").read_bytes()

    full = checkpoint("a", "model.structure_aware=True")
    assert full == checkpoint("b")
    without = checkpoint("c", "model.structure_aware=False")
    assert without == checkpoint("d", "model.structure_aware=false") != full


def test_an_unfinished_run_may_be_started_again(tables, tmp_path, capsys):
    run = tmp_path / "run"
    command = ["train", *tables, "--label", "kind", "--out", str(run), *QUICK]
    assert main([*command, "learning_rate=1e30"]) == 1
    assert "Epoch" in capsys.readouterr().err
    assert main(command) == 0
    assert main(command) == 1  # finished now


def test_predictions_are_those_the_recorded_number_was_measured_on(tables, tmp_path):
    run, out = tmp_path / "run", tmp_path / "p.csv"
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK]) == 0
    for more in ([], ["--piece-size", "7"]):
        assert main(["predict", str(run), *tables, "--out", str(out), *more]) == 0
        with np.load(run / "split.npz") as split:
            test = split["test"]
        rows = read(out)
        right = [rows[i]["prediction"] == "ab"[i % 2] for i in test]
        recorded = json.loads((run / "result.json").read_text())["test"]
        assert 100 * sum(right) / len(right) == pytest.approx(recorded)


def test_the_run_folder_remembers_what_was_not_said(tables, tmp_path):
    run = tmp_path / "run"
    words = ["signature.walk_length=5", "signature.degree=log"]
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK, *words]) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["network"]["options"]["temperature"] == 1.0
    assert config["network"]["options"]["log_scale_bounds"] == [-5.0, 5.0]
    assert (config["signature"]["walk_length"], config["signature"]["degree"]) == (5, "log")
    assert main(["predict", str(run), *tables, "--out", str(tmp_path / "p.csv")]) == 0


def test_estimated_signatures_can_be_asked_for(tables, tmp_path):
    run = tmp_path / "run"
    words = ["signature.method=estimate", "signature.probes=16"]
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK, *words]) == 0
    assert json.loads((run / "config.json").read_text())["signature"]["probes"] == 16


def test_a_folder_with_something_in_it_is_refused(tables, tmp_path, capsys):
    assert main(["train", *tables, "--label", "kind", "--out", str(tmp_path), *QUICK]) == 1
    assert "new or empty folder" in capsys.readouterr().err


def test_edge_weights_are_refused_unless_ignored(tables, tmp_path, capsys):
    edges = tmp_path / "weighted.csv"
    edges.write_text("source,target,weight\nü 0,ü 1,0.5\nü 1,ü 2,0.25\n")
    base = ["train", *tables[:2], "--edges", str(edges), "--label", "kind", *QUICK]
    assert main([*base, "--out", str(tmp_path / "a")]) == 1
    assert "weight" in capsys.readouterr().err
    assert main([*base, "--edge-columns", "ignore", "--out", str(tmp_path / "b")]) == 0
    assert "weight" in capsys.readouterr().out  # a note says so


def test_predict_refuses_what_is_not_a_run(tables, tmp_path, capsys):
    assert main(["predict", str(tmp_path), *tables, "--out", str(tmp_path / "p.csv")]) == 1
    assert "Expected a run folder" in capsys.readouterr().err
    assert main(["predict", str(tmp_path), *tables, "--out", str(tmp_path / "p.txt")]) == 1
    assert "end in .csv or .parquet" in capsys.readouterr().err


def test_predicting_the_wrong_task_is_refused(tables, tmp_path, capsys):
    run, pairs = tmp_path / "run", tmp_path / "pairs.csv"
    pairs.write_text("source,target\nü 3,ü 7\n")
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK]) == 0
    out = str(tmp_path / "p.csv")
    assert main(["predict", str(run), *tables, "--pairs", str(pairs), "--out", out]) == 1
    assert "takes a run of the link task" in capsys.readouterr().err

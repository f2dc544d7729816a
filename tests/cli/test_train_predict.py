"""Train on your own tables, predict with your own identifiers."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from geof.cli import main
from tests.cli.conftest import QUICK


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
    assert main(["predict", str(run), *new, "--force"]) == 1
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


def test_molecules_from_table_to_table(graph_run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table, out = graph_run.parent / "molecules.csv", tmp_path / "out.parquet"
    # The column of identifiers is remembered.
    assert main(["predict", str(graph_run), "--molecules", str(table), "--out", str(out)]) == 0
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
        ([], "exactly one of --dataset, --nodes, --molecules, --npz, --arrays (got none)"),
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
        ("options.temprature=3", "Did you mean 'temperature'"),
        ("options.temperature=abc", "'options.temperature' to be a finite number"),
        ("options.in_channels=3", "Unknown option 'options.in_channels'"),
        ("model.in_channels=3", "Unknown option 'options.in_channels'"),
        ("options.structure_aware=no", "'options.structure_aware' to be True or False"),
        ("options.signature_features=off", "'options.signature_features' to be True or False"),
        ("options.scale_features=no", "'options.scale_features' to be True or False"),
    ],
)
def test_bad_method_options_are_named_and_leave_nothing(word, message, tables, tmp_path, capsys):
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

    full = checkpoint("a", "options.structure_aware=True")
    assert full == checkpoint("b")
    without = checkpoint("c", "options.structure_aware=False")
    assert without == checkpoint("d", "model.structure_aware=false") != full


def test_predictions_are_those_the_recorded_number_was_measured_on(tables, tmp_path):
    run, out = tmp_path / "run", tmp_path / "p.csv"
    assert main(["train", *tables, "--label", "kind", "--out", str(run), *QUICK]) == 0
    for more in ([], ["--piece-size", "7"]):
        assert main(["predict", str(run), *tables, "--out", str(out), "--force", *more]) == 0
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
    assert config["run"]["options"]["temperature"] == 1.0
    assert config["run"]["options"]["log_scale_bounds"] == [-5.0, 5.0]
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


def test_without_a_source_the_runs_own_data_are_predicted(node_run, tmp_path, capsys):
    nodes, edges = (str(node_run.parent / name) for name in ("nodes.csv", "edges.csv"))
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    assert main(["predict", str(node_run), "--out", str(a)]) == 0
    source = ["--nodes", nodes, "--edges", edges]
    assert main(["predict", str(node_run), *source, "--out", str(b)]) == 0
    assert a.read_bytes() == b.read_bytes()


def test_a_file_that_is_there_stays_unless_forced(node_run, tmp_path, capsys):
    out = tmp_path / "p.csv"
    out.write_text("mine")
    assert main(["predict", str(node_run), "--out", str(out)]) == 1
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["predict", str(node_run), "--out", str(out), "--force"]) == 0
    assert len(read(out)) == 60


def test_a_table_of_pairs_has_its_own_column_names(tables, tmp_path):
    edges, pairs, run = (tmp_path / name for name in ("edges.csv", "pairs.csv", "run"))
    edges.write_text(edges.read_text().replace("source,target", "from,to"))
    pairs.write_text("a,b\nü 3,ü 7\n")
    ends = ["--source", "from", "--target", "to", "--label", "kind", "--task", "link"]
    assert main(["train", *tables, *ends, "--out", str(run), *QUICK]) == 0
    out = tmp_path / "p.csv"
    assert main(["predict", str(run), "--pairs", str(pairs), "--out", str(out)]) == 0
    assert (read(out)[0]["source"], read(out)[0]["target"]) == ("ü 3", "ü 7")


def test_identifiers_may_stand_in_another_column(tables, node_run, tmp_path):
    nodes, out = tmp_path / "nodes.csv", tmp_path / "p.csv"
    nodes.write_text(nodes.read_text().replace("name,", "who,", 1))
    assert main(["predict", str(node_run), *tables, "--id", "who", "--out", str(out)]) == 0
    assert read(out)[0]["id"] == "ü 0"


def test_edge_columns_of_the_runs_own_data_stay_ignored(tables, tmp_path):
    edges = tmp_path / "edges.csv"
    lines = edges.read_text().splitlines()
    edges.write_text("\n".join([lines[0] + ",w", *(line + ",1" for line in lines[1:])]) + "\n")
    run = tmp_path / "run"
    flags = [*tables, "--label", "kind", "--edge-columns", "ignore", "--out", str(run)]
    assert main(["train", *flags, *QUICK]) == 0
    assert main(["predict", str(run), "--out", str(tmp_path / "p.csv")]) == 0


def test_an_unlabelled_graph_for_links_as_npz(tmp_path, capsys):
    generator = np.random.default_rng(0)
    edges = generator.integers(0, 40, (2, 90))
    x = generator.normal(size=(40, 5)).astype("float32")
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges)
    run = tmp_path / "run"
    source = ["--npz", str(tmp_path / "g.npz"), "--task", "link"]
    assert main(["train", *source, "--out", str(run), *QUICK]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json"]) == 0
    recorded = json.loads((run / "result.json").read_text())
    assert json.loads(capsys.readouterr().out)["metrics"] == recorded["metrics"]

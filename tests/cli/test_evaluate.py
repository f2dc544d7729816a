"""``geof evaluate``: a run's metrics on its own split, and on nothing else."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from geof.cli import main
from geof.data.tables import encode_new_graph
from geof.training import link_metrics
from geof.training.predict import Run, evaluate_part, stored_task


def test_the_test_part_gives_the_recorded_metrics_in_a_new_process(any_run, geof):
    done = geof("evaluate", any_run, "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    recorded = json.loads((any_run / "result.json").read_text())
    assert answer["part"] == "test"
    assert answer["metrics"] == recorded["metrics"]
    assert set(answer) == {"part", "metrics", "loss"}


def test_the_validation_part_gives_what_chose_the_epoch(any_run, capsys):
    assert main(["evaluate", str(any_run), "--part", "validation", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    recorded = json.loads((any_run / "result.json").read_text())
    assert answer["metrics"][recorded["metric"]] == recorded["validation"]
    lines = [json.loads(line) for line in (any_run / "metrics.jsonl").read_text().splitlines()]
    assert answer["loss"] == lines[recorded["best_epoch"] - 1]["validation_loss"]


def test_a_table_for_people(node_run, capsys):
    assert main(["evaluate", str(node_run)]) == 0
    text = capsys.readouterr().out
    recorded = json.loads((node_run / "result.json").read_text())
    assert "accuracy" in text
    assert f"{recorded['test']:.2f} %" in text
    assert "loss" in text


def test_the_training_part_of_nodes(node_run, capsys):
    assert main(["evaluate", str(node_run), "--part", "train", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    run = Run.open(node_run)
    task = stored_task(run, own_tables(run))
    with np.load(node_run / "split.npz") as split:
        train = torch.from_numpy(split["train"])
    with torch.no_grad():
        right = run.network(task.inputs)[train].argmax(-1) == task.data.graph.y[train]
    assert answer["metrics"]["accuracy"] == pytest.approx(100 * float(right.float().mean()))


def test_the_training_part_of_links(link_run):
    run = Run.open(link_run)
    data = own_tables(run)
    task = stored_task(run, data)
    positive, negative = task.split.train, task.split.training_negatives(0)
    with torch.no_grad():
        logits = run.network(task.inputs, torch.cat([positive, negative], dim=1))
    wanted = link_metrics(logits[: positive.size(1)], logits[positive.size(1) :])
    assert evaluate_part(run, data, "train").metrics == wanted


def test_the_training_part_of_graphs(graph_run, capsys):
    assert main(["evaluate", str(graph_run), "--part", "train", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["metrics"]) == {"accuracy", "roc_auc"}


def own_tables(run: Run):
    folder = run.folder.parent
    return encode_new_graph(folder / "nodes.csv", folder / "edges.csv", run.schema)


@pytest.mark.parametrize("table", ["nodes.csv", "edges.csv"])
def test_other_data_are_refused(table, node_run, tmp_path, capsys):
    for name in ("nodes.csv", "edges.csv"):
        shutil.copy(node_run.parent / name, tmp_path)
    lines = (tmp_path / table).read_text().splitlines()
    changed = lines[3].replace("Oslo,Nord", "Paris") if table == "nodes.csv" else "ü 1,ü 2"
    assert changed != lines[3]
    (tmp_path / table).write_text("\n".join([*lines[:3], changed, *lines[4:]]) + "\n")
    source = ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv")]
    assert main(["evaluate", str(node_run), *source]) == 1
    assert "the data that" in capsys.readouterr().err


def test_the_same_data_under_another_name_are_accepted(any_run, tmp_path, capsys):
    assert main(["evaluate", str(any_run), "--json"]) == 0
    before = capsys.readouterr().out
    source = []
    for flag, name in (("nodes", "nodes"), ("edges", "edges"), ("molecules", "molecules")):
        if (any_run.parent / f"{name}.csv").exists():
            moved = shutil.copy(any_run.parent / f"{name}.csv", tmp_path / f"moved {name}.csv")
            source += [f"--{flag}", str(moved)]
    assert main(["evaluate", str(any_run), *source, "--json"]) == 0
    assert capsys.readouterr().out == before


def test_another_runs_split_is_refused(node_run, link_run, tmp_path, capsys):
    copy = shutil.copytree(node_run, tmp_path / "run")
    shutil.copy(link_run / "split.npz", copy)
    assert main(["evaluate", str(copy)]) == 1
    assert "kind 'node' (got 'link')" in capsys.readouterr().err
    (copy / "split.npz").unlink()
    assert main(["evaluate", str(copy)]) == 1
    assert "a split file" in capsys.readouterr().err


def test_the_wrong_kind_of_data_is_refused(node_run, graph_run, capsys):
    nodes, edges = (str(node_run.parent / f"{name}.csv") for name in ("nodes", "edges"))
    assert main(["evaluate", str(graph_run), "--nodes", nodes, "--edges", edges]) == 1
    assert "trained on tables" in capsys.readouterr().err
    molecules = str(graph_run.parent / "molecules.csv")
    assert main(["evaluate", str(node_run), "--molecules", molecules]) == 1
    assert "Expected" in capsys.readouterr().err

"""What a run's page holds, and what it must not read."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from geof.cli import build_parser, main
from geof.cli.report import _own_data
from geof.data.molecules import ATOM_FIELDS
from geof.errors import ConfigError, DataError
from geof.report import run_views as views_module
from geof.report.drawing import positions
from geof.report.run_page import read_metrics, run_page
from geof.report.run_views import Wanted
from geof.training.predict import Run, evaluate_part, part_predictions, stored_task
from tests.cli.conftest import QUICK
from tests.report.runs import COLUMN, name


def opened(folder):
    run = Run.open(folder)
    data = _own_data(build_parser().parse_args(["report", str(folder)]), run)
    return run, data, stored_task(run, data)


def page_of(folder, **wanted):
    run, _, task = opened(folder)
    # Principal components, as t-SNE takes its time; it has tests of its own.
    return run_page(folder, run, task, wanted=Wanted(**{"map": "pca", **wanted}))


@pytest.mark.parametrize("kind", ["node", "link", "graph"])
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_part_predictions_are_those_that_are_scored(kind, part, runs):
    run, data, _ = opened(runs(kind))
    chance, label, rows = part_predictions(run, data, part)
    scored = evaluate_part(run, data, part)
    if kind == "link":
        from sklearn.metrics import roc_auc_score

        assert rows.shape == (2, len(chance))
        got, wanted = roc_auc_score(label, chance.double()), scored.metrics["roc_auc"]
    else:
        assert len(rows) == len(chance)
        got = float((chance.argmax(1) == label).double().mean())
        wanted = scored.metrics["accuracy"]
    assert 100 * got == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("kind", ["node", "link", "graph"])
def test_the_page_tells_what_the_folder_holds(kind, runs):
    page = page_of(runs(kind))
    result = json.loads((runs(kind) / "result.json").read_text())
    assert page["finished"]
    assert page["missing"] == []
    assert page["part"] == "test"
    assert page["headline"][0]["value"] == f"{result['test']:.2f} %"
    facts = dict(page["facts"])
    assert facts["Split hash"] == result["split_hash"]
    assert facts["Seed"] == str(result["seed"])
    assert page["curves"]["best"] == result["best_epoch"]
    assert page["curves"]["epochs"] == [1, 2, 3, 4]
    assert set(page["curves"]["series"]) >= {"loss", "validation", "validation_loss"}
    assert page["versions"]["geof"]
    if kind == "link":
        assert 100 * page["scores"]["ranking"]["roc_auc"] == pytest.approx(result["test"], abs=1e-4)
    else:
        assert 100 * page["scores"]["accuracy"] == pytest.approx(result["test"], abs=1e-4)
    assert page["scores"]["rows"] > 0
    assert len(page["map"]["items"]) == len(page["map"]["positions"])


def test_all_nodes_of_a_small_graph(runs):
    page = page_of(runs("node"))
    assert page["map"]["which"] == "All 48 nodes."
    assert [node["node"] for node in page["geometry"]["scopes"][0]["nodes"]] == list(range(48))
    assert page["names"]["5"][0] == name(5)
    _, _, task = opened(runs("node"))
    for part in ("train", "validation", "test"):
        inside = {int(key) for key, entry in page["names"].items() if entry[4] == part}
        assert inside == set(getattr(task.split, part).tolist())
    assert list(page["geometry"]["features"].values()) == [COLUMN]


def test_features_of_arrays_and_of_atoms_have_their_names(runs, tmp_path):
    arrays = tmp_path / "graph.npz"
    y = np.arange(40) % 2
    ring = np.stack([np.arange(40), (np.arange(40) + 2) % 40])
    x = np.random.default_rng(0).normal(size=(40, 2)) + y[:, None]
    np.savez(arrays, x=x, edge_index=ring, y=y, feature_names=np.array([COLUMN, "weight"]))
    assert main(["train", "--npz", str(arrays), "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert page_of(tmp_path / "run")["geometry"]["features"] == {"0": COLUMN, "1": "weight"}
    atoms = page_of(runs("graph"))["geometry"]["features"].values()
    assert atoms
    assert all(name.split()[0] in {*" ".join(ATOM_FIELDS).split()} for name in atoms)


def test_a_sample_of_a_large_graph_is_said_and_holds_what_was_asked_for(runs, monkeypatch):
    monkeypatch.setattr(views_module, "NODES", 6)
    _, _, task = opened(runs("node"))
    train = int(task.split.train[0])
    page = page_of(runs("node"), nodes=(name(train),))
    test = set(task.split.test.tolist())
    count = len(test)
    assert page["map"]["which"] == (
        f"A sample of 6 of the {count} nodes of the test part (seed 0), and 1 asked for."
    )
    shown = {node["node"] for node in page["geometry"]["scopes"][0]["nodes"]}
    assert shown == set(page["map"]["items"])
    assert len(shown) == 7
    assert shown - {train} < test
    assert page["first"] == train
    listed = {
        other for node in page["geometry"]["scopes"][0]["nodes"] for other in node["neighbours"]
    }
    assert {str(other) for other in listed} <= set(page["names"])
    assert page_of(runs("node"), nodes=(name(train),))["map"]["items"] == page["map"]["items"]


def test_unknown_identifiers_are_refused(runs):
    with pytest.raises(ConfigError, match="name a node of the data"):
        page_of(runs("node"), nodes=("nobody",))
    with pytest.raises(ConfigError, match="Use --node"):
        page_of(runs("node"), graphs=("0",))
    with pytest.raises(ConfigError, match="--graph ID instead"):
        page_of(runs("graph"), nodes=("0",))


def test_links_are_looked_at_along_training_edges_alone(runs):
    run, _, task = opened(runs("link"))
    page = page_of(runs("link"))
    held = torch.cat([task.split.validation, task.split.test], dim=1).t().tolist()
    hidden = {tuple(sorted(pair)) for pair in held}
    heard = {
        tuple(sorted((node["node"], other)))
        for node in page["geometry"]["scopes"][0]["nodes"]
        for other in node["neighbours"]
        if other != node["node"]
    }
    assert heard
    assert not heard & hidden
    geof = run.network.encoder.geof
    with torch.no_grad():
        inputs = task.inputs
        state = geof.evolve(inputs.x, inputs.edges, inputs.signature, trajectory=True)
    wanted = [float(trace.geometry_change) for trace in state.trajectory]
    assert page["geometry"]["scopes"][0]["change"] == pytest.approx(wanted, rel=1e-3)


def test_graphs_are_drawn_with_their_nodes(runs, monkeypatch):
    _, data, task = opened(runs("graph"))
    page = page_of(runs("graph"))
    test = task.split.test.tolist()
    assert page["map"]["items"] == sorted(test)
    assert {scope["key"] for scope in page["geometry"]["scopes"]} == set(test)
    for scope in page["geometry"]["scopes"]:
        graph = data.graphs[scope["key"]]
        assert len(scope["layout"]) == len(scope["nodes"]) == graph.num_nodes
        assert 2 * len(scope["edges"]) == graph.edge_index.size(1)
    monkeypatch.setattr(views_module, "GRAPHS", 1)
    train = int(task.split.train[0])
    asked = page_of(runs("graph"), graphs=(data.graph_ids[train],))
    keys = [scope["key"] for scope in asked["geometry"]["scopes"]]
    assert keys[0] == train
    assert len(keys) == 2
    assert asked["geometry"]["which"].startswith(f"A sample of 1 of the {len(test)} graphs")
    assert asked["geometry"]["which"].endswith("and 1 asked for.")
    assert asked["names"][str(train)][2] is None  # a training graph: its prediction is not shown


def test_there_is_always_one_graph_to_look_at(runs, monkeypatch):
    monkeypatch.setattr(views_module, "NODES", 1)
    _, data, task = opened(runs("graph"))
    (scope,) = page_of(runs("graph"))["geometry"]["scopes"]
    sizes = [int(data.graphs[graph].num_nodes) for graph in task.split.test.tolist()]
    assert len(scope["nodes"]) == min(sizes)


def test_places_of_nodes_with_and_without_networkx(monkeypatch):
    ring = [(i, (i + 1) % 6) for i in range(6)]
    for count, edges in ((6, ring), (6, ring[:2]), (1, [])):
        places, how = positions(count, edges)
        assert len(places) == count
        assert "springs" in how
        assert all(-0.01 <= value <= 1.01 for place in places for value in place)
    monkeypatch.setitem(sys.modules, "networkx", None)
    places, how = positions(4, [])
    assert "circle" in how
    assert places[0] == [1.0, 0.5]


def test_other_models_have_a_map_and_no_geometry(runs):
    page = page_of(runs("gcn"))
    assert page["geometry"] is None
    assert len(page["map"]["items"]) == 48
    assert "only GeoF does" in page["missing"][0]


def test_a_run_that_is_not_finished_says_so_and_leaves_the_test_part_alone(runs, tmp_path):
    folder = shutil.copytree(runs("node"), tmp_path / "run")
    (folder / "result.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 5, "lo')
    page = page_of(folder)
    assert not page["finished"]
    assert page["part"] == "validation"
    assert "not finished" in page["missing"][0]
    assert "1 line(s) of metrics.jsonl" in page["missing"][1]
    _, _, task = opened(folder)
    assert page["scores"]["rows"] == len(task.split.validation)
    alone = run_page(folder, None, None, missing=["no checkpoint"])
    assert alone["curves"]["epochs"] == [1, 2, 3, 4]
    assert "scores" not in alone


def test_a_run_that_was_not_to_read_the_test_part_stays_unread(runs, tmp_path):
    folder = shutil.copytree(runs("node"), tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "test": None, "metrics": {}}))
    page = page_of(folder)
    assert page["part"] == "validation"
    assert "does not read it either" in page["missing"][0]
    assert "flatters" in page["part_note"]


def test_a_folder_that_describes_no_network_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"dataset": "x"}')
    with pytest.raises(DataError, match="describe a run"):
        run_page(tmp_path, None, None)
    assert read_metrics(tmp_path)[0] == []

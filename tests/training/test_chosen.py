"""Options chosen by the data: what is measured, what is laid over what, what is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from geof.cli import main
from geof.data.formats import from_npz, from_pyg
from geof.data.records import node_graph
from geof.data.sources import standardised
from geof.estimators import GeoFNodeClassifier
from geof.methods.geof import choose
from geof.methods.interface import DataFacts
from geof.methods.registry import default_preset
from geof.training import RunConfig, Trainer, adapted, build_task, facts_of
from geof.training.chosen import are_words, column_variance
from geof.training.predict import Run, predict_nodes

N = 40


def drawn(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def words(n: int = N, channels: int = 64) -> torch.Tensor:
    return torch.from_numpy((drawn().random((n, channels)) < 0.1).astype(np.float32))


def numbers(n: int = N) -> torch.Tensor:
    return torch.from_numpy(drawn(1).integers(-8, 9, (n, 4)).astype(np.float32) / 4)


def ring(x: torch.Tensor):
    source = torch.arange(len(x))
    edges = torch.stack([source, (source + 1) % len(x)])
    return node_graph("ring", x, edges, torch.arange(len(x)) % 2, ("a", "b"), None, [])


def facts(**changed) -> DataFacts:
    plain = {"task": "node", "words": False, "constant": False, "channels": 8, "graphs": 1}
    return DataFacts(**{**plain, "nodes": 100, "edges": 200, "examples": 100, **changed})


def test_words_are_told_from_numbers_and_few_columns():
    assert are_words(words())
    assert are_words(words().to_sparse_csr())
    assert not are_words(-words())
    assert not are_words(numbers())
    assert not are_words(words(channels=8)), "eight columns are no vocabulary"
    assert not are_words(torch.ones(5, 64))


def test_facts_hold_sizes_and_no_label():
    graph = ring(words())
    found = facts_of(graph, "node")
    variance = pytest.approx(float(words().var(0, correction=0).mean()))
    assert found == facts(words=True, channels=64, nodes=N, edges=N, examples=N, variance=variance)
    assert facts_of(ring(torch.ones(N, 2)), "node").constant
    assert not facts_of(ring(words().to_sparse_csr()), "node").constant
    graph.graph.y = graph.graph.y.flip(0)
    assert facts_of(graph, "node") == found
    graph.graph.y[:10] = -1
    assert facts_of(graph, "node").examples == N - 10
    assert facts_of(graph, "link").examples == N


def test_words_are_scaled_and_dropped_and_numbers_are_not():
    chosen = {choice.key: choice.value for choice in choose(facts(words=True))}
    assert chosen == {"options.scale_features": True, "options.feature_dropout": 0.5}
    assert choose(facts()) == []
    constant = choose(facts(constant=True))
    assert [(choice.key, choice.value) for choice in constant] == [
        ("options.signature_features", True)
    ]
    large = {choice.key: choice.value for choice in choose(facts(examples=50_000))}
    assert large["epochs"] < RunConfig.parse({"preset": "auto"}).training.epochs


def test_rows_of_small_features_are_scaled():
    (chosen,) = choose(facts(variance=1e-5))
    assert (chosen.key, chosen.value) == ("options.scale_features", True)
    assert "1e-05" in chosen.reason
    assert choose(facts(variance=0.002)) == []
    assert choose(facts(variance=1e-5, task="graph")) == []
    assert [c.key for c in choose(facts(variance=0.0, constant=True))] == [
        "options.signature_features"
    ]


@pytest.mark.parametrize("layout", ["strided", "csr", "coo"])
def test_the_variance_of_columns_is_that_of_the_dense_matrix(layout):
    x = words() * torch.linspace(-1, 2, 64)
    stored = {"strided": x, "csr": x.to_sparse_csr(), "coo": x.to_sparse_coo()}[layout]
    assert column_variance(stored) == pytest.approx(float(x.var(0, correction=0).mean()), rel=1e-5)


def test_what_was_given_stands_over_what_is_chosen():
    layers = {"preset": "auto"}, {"options": {"feature_dropout": 0.3}}
    config = adapted(RunConfig.parse(*layers), ring(words()))
    assert config.options["scale_features"] is True
    assert config.options["feature_dropout"] == 0.3
    assert list(config.chosen) == ["options.scale_features"]
    assert "64 columns" in config.chosen["options.scale_features"]


def test_only_auto_is_adapted_and_only_once():
    tuned = RunConfig.parse({"preset": "tuned"})
    assert adapted(tuned, ring(words())) is tuned
    config = adapted(RunConfig.parse({"preset": "auto"}), ring(words()))
    assert adapted(config, ring(words())) is config
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config


def test_own_data_get_auto_and_benchmarks_what_was_tuned_for_them():
    assert RunConfig.parse({"data": {"npz": "g.npz"}}).preset == "auto"
    assert RunConfig.parse({"data": {"nodes": "n.csv", "edges": "e.csv"}}).preset == "auto"
    assert RunConfig.parse({"data": {"dataset": "CiteSeer"}}).preset == "tuned"
    assert RunConfig.parse({"data": {"npz": "g.npz"}, "method": "gcn"}).preset == "plain"
    assert default_preset("gcn", own_data=True) == "plain"


# The same graph from a table and from arrays -----------------------------------------------------


@pytest.fixture
def both(tmp_path) -> Path:
    """A graph with columns of numbers, marks and counts as a pair of tables and as arrays."""
    draw = drawn(2)
    marks = (draw.random((N, 3)) < 0.4).astype(float)
    counts = draw.poisson(0.3, (N, 2)).astype(float)
    x = np.concatenate([numbers().numpy().astype(float), marks, counts], axis=1)
    label = (x[:, 0] + x[:, 4] > 0.5).astype(int)
    edges = np.stack([np.arange(N), (np.arange(N) + 1) % N])
    rows = ["id," + ",".join(f"c{k}" for k in range(x.shape[1])) + ",kind"]
    rows += [f"{i:02d}," + ",".join(map(repr, map(float, x[i]))) + f",{label[i]}" for i in range(N)]
    (tmp_path / "nodes.csv").write_text("\n".join(rows) + "\n")
    pairs = "\n".join(f"{a:02d},{b:02d}" for a, b in edges.T)
    (tmp_path / "edges.csv").write_text("source,target\n" + pairs + "\n")
    np.savez(tmp_path / "graph.npz", x=x, edge_index=edges, y=label)
    return tmp_path


def train(folder: Path, name: str, *words: str) -> dict:
    out = folder / name
    assert main(["train", *words, "--out", str(out), "--quiet", "epochs=4"]) == 0
    return json.loads((out / "result.json").read_text()) | {
        "config": json.loads((out / "config.json").read_text())
    }


def pyg_graph(folder: Path) -> Data:
    arrays = np.load(folder / "graph.npz")
    return Data(
        x=torch.from_numpy(arrays["x"]).float(),
        edge_index=torch.from_numpy(arrays["edge_index"]),
        y=torch.from_numpy(arrays["y"]),
    )


def test_a_table_arrays_and_a_pyg_graph_give_the_same_numbers(both, capsys):
    tables = ("--nodes", str(both / "nodes.csv"), "--edges", str(both / "edges.csv"))
    table = train(both, "table", *tables, "--label", "kind")
    arrays = train(both, "arrays", "--npz", str(both / "graph.npz"))
    assert "4 of 9 columns are numbers and were standardised" in capsys.readouterr().out
    data = standardised(from_pyg(pyg_graph(both))).data  # as docs/own-data.md says
    config = adapted(RunConfig.parse({"preset": "auto", "epochs": 4}), data)
    trainer = Trainer(config, build_task(config, data))
    made = trainer.fit()
    for key in ("validation", "test", "best_epoch"):
        assert table[key] == arrays[key] == getattr(made, key), key
    assert arrays["config"]["run"]["data"]["standardise"] is True
    # Few nodes make equal scores likely; equal bits only come of equal features.
    runs = Run.open(both / "table"), Run.open(both / "arrays"), Run.of(trainer)
    first, *others = (predict_nodes(run, data).probability.numpy() for run in runs)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_an_estimator_on_a_pyg_graph_predicts_what_a_run_on_arrays_does(both):
    train(both, "arrays", "--npz", str(both / "graph.npz"))
    run, data = Run.open(both / "arrays"), standardised(from_npz(both / "graph.npz")).data
    split = build_task(run.config, data).split
    graph = pyg_graph(both)
    for name, rows in (("train_mask", split.train), ("val_mask", split.validation)):
        graph[name] = torch.zeros(N, dtype=torch.bool).index_fill(0, rows, True)
    estimator = GeoFNodeClassifier(epochs=4, random_state=0).fit(graph)
    wanted = predict_nodes(run, data).probability.numpy()
    np.testing.assert_array_equal(estimator.predict_proba(np.arange(N)), wanted)


def test_predictions_go_through_what_training_did(both):
    train(both, "arrays", "--npz", str(both / "graph.npz"))
    shifted = dict(np.load(both / "graph.npz"))
    shifted["x"] = shifted["x"][::-1][: N // 2]  # another sample: its own statistics differ
    shifted["edge_index"] = np.stack([np.arange(N // 2 - 1), np.arange(1, N // 2)])
    del shifted["y"]
    np.savez(both / "other.npz", **shifted)
    run = Run.open(both / "arrays")
    whole = from_npz(both / "graph.npz").graph.x.flip(0)[: N // 2]
    encoded = run.schema.encode(from_npz(both / "other.npz", allow_singletons=True).graph.x)
    torch.testing.assert_close(encoded, run.schema.encode(whole), rtol=0, atol=0)
    assert float(encoded[:, :4].mean().abs()) > 1e-3, "not its own mean"
    words = ["predict", str(both / "arrays"), "--npz", str(both / "other.npz")]
    assert main([*words, "--out", str(both / "p.csv")]) == 0
    assert len((both / "p.csv").read_text().splitlines()) == N // 2 + 1

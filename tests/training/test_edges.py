"""What edges carry, through the three tasks, the sampler and a run folder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from geof.cli import main
from geof.data.batching import NeighbourSampler
from geof.data.link_splits import random_link_split
from geof.data.records import EdgeSizes, GraphSet, NodeGraph
from geof.data.sources import SignatureConfig
from geof.data.splits import GraphSplit, random_node_split
from geof.errors import DataError
from geof.training.network import Network, diagnose
from geof.training.predict import Run, predict_graphs, predict_nodes
from geof.training.stages import TrainingConfig
from geof.training.tasks import GraphTask, LinkTask, NodeTask
from tests.cli.conftest import QUICK, write_molecules, write_tables
from tests.training.toys import config_of, fit, graph_set, node_graph

SIZES = EdgeSizes((3,), 1)
SIGNATURE = {"signature": SignatureConfig(3)}


def carrying(graph, seed: int) -> None:
    """Give every undirected edge a weight, a category and a number."""
    source, target = graph.edge_index
    key = torch.minimum(source, target) * 1000 + torch.maximum(source, target) + seed
    graph.edge_weight = (key * 37 % 11).float() / 5
    numbers = torch.stack([key % 3, (key * 17 % 7) - 3], 1)
    graph.edge_attr = numbers.float()


def some_graph() -> NodeGraph:
    data = node_graph()
    carrying(data.graph, 0)
    return replace(data, edge_sizes=SIZES)


def some_graphs() -> GraphSet:
    data = graph_set()
    for seed, graph in enumerate(data.graphs):
        carrying(graph, seed)
    return replace(data, edge_sizes=SIZES)


def some_node_task(**options) -> NodeTask:
    return NodeTask(some_graph(), random_node_split(40, 0), **SIGNATURE, **options)


def some_link_task(data: NodeGraph | None = None, **options) -> LinkTask:
    data = data or some_graph()
    split = random_link_split(data.graph.edge_index, 40, 0)
    return LinkTask(data, split, **SIGNATURE, **options)


def some_graph_task() -> GraphTask:
    part = torch.arange(30)
    split = GraphSplit(part[:18], part[18:24], part[24:], "fixed")
    training = TrainingConfig(batch_size=7)
    return GraphTask(some_graphs(), split, training=training, **SIGNATURE)


TASKS = {"node": some_node_task, "link": some_link_task, "graph": some_graph_task}


@pytest.mark.parametrize("kind", TASKS)
def test_geof_learns_from_them(kind):
    task = TASKS[kind]()
    assert (task.shape.edge_categories, task.shape.edge_channels) == ((3,), 1)
    network, result = fit(task, TrainingConfig(epochs=3, learning_rate=0.05, batch_size=None))
    encoder = network.encoder.geof.edge_encoder
    assert all(parameter.abs().sum() > 0 for parameter in encoder.parameters())
    assert 0 <= result.validation <= 100
    inputs = next(task.training_inputs(0))
    assert "parameter" not in str(diagnose(network, inputs, "nothing"))


@pytest.mark.parametrize("kind", TASKS)
def test_a_method_that_knows_nothing_of_edges_ignores_them(kind):
    task = TASKS[kind]()
    fit(task, TrainingConfig(epochs=1, batch_size=None), method="gcn", options={})


def random_network(task) -> Network:
    torch.manual_seed(0)
    network = Network(config_of(task), task.shape).eval()
    for parameter in network.encoder.geof.edge_encoder.parameters():
        torch.nn.init.normal_(parameter)
    return network


def test_a_batch_of_graphs_gives_what_each_gives_alone():
    task = some_graph_task()
    network = random_network(task)
    chosen = torch.tensor([5, 0, 17])
    with torch.no_grad():
        together = network(task.inputs_of(chosen))
        alone = [network(task.inputs_of(torch.tensor([i]))) for i in chosen.tolist()]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_samples_with_all_neighbours_give_what_the_graph_gives():
    task = some_node_task(training=TrainingConfig(batch_size=6, fanouts=(-1, -1)))
    network = random_network(task)
    with torch.no_grad():
        whole = network(task.inputs)
        for batch in task.sampling.sampler.batches(0):
            part = network(task.sampling.inputs(batch))[: batch.batch_size]
            torch.testing.assert_close(
                part, whole[batch.n_id[: batch.batch_size]], rtol=1e-4, atol=1e-4
            )


def test_a_sample_names_its_edges():
    graph = node_graph().graph
    order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(0))
    given = torch.cat([graph.edge_index[:, order], torch.tensor([[3], [3]])], 1)
    options = {"batch_size": 5, "seed": 1}
    sampler = NeighbourSampler(given, 40, [3, 2], edge_ids=True, **options)
    plain = NeighbourSampler(given, 40, [3, 2], **options)
    for batch, same in zip(sampler.batches(0), plain.batches(0), strict=True):
        assert torch.equal(batch.edge_index, same.edge_index)  # the draws are the same
        assert same.e_id is None
        assert torch.equal(batch.n_id[batch.edge_index], given[:, batch.e_id])


def by_pair(task: LinkTask) -> dict[tuple[int, int], list[float]]:
    graph = task.data.graph
    pairs = [(u, v) for u, v in graph.edge_index.t().tolist()]
    return dict(zip(pairs, graph.edge_attr.tolist(), strict=True))


@pytest.mark.parametrize("training", [None, TrainingConfig(hidden_edges=0.3)])
def test_held_out_edges_take_what_they_carry_with_them(training):
    task = some_link_task(training=training)
    known = by_pair(task)
    for inputs in (task.inputs, *task.training_inputs(0)):
        pairs = [tuple(pair) for pair in inputs.edge_index.t().tolist()]
        assert inputs.edge_attr.tolist() == [known[pair] for pair in pairs]
        assert inputs.edge_weight.shape == (len(pairs),)
        assert len(pairs) < task.data.graph.num_edges


def test_what_held_out_edges_carry_reaches_nothing():
    def scores(data: NodeGraph) -> list[Tensor]:
        task = some_link_task(data)
        network = random_network(task)
        with torch.no_grad():
            return [network.encode(task.inputs).states, task.inputs.edge_weight]

    data, other = some_graph(), some_graph()
    seen = {tuple(pair) for pair in some_link_task().inputs.edge_index.t().tolist()}
    pairs = [tuple(pair) for pair in data.graph.edge_index.t().tolist()]
    held = torch.tensor([pair not in seen for pair in pairs])
    assert 0 < held.sum() < len(held)
    other.graph.edge_weight[held] += 5
    other.graph.edge_attr[held, 1] += 100
    for one, two in zip(scores(data), scores(other), strict=True):
        assert torch.equal(one, two)


def weighted_tables(folder) -> list[str]:
    flags = write_tables(folder)
    edges = folder / "edges.csv"
    lines = edges.read_text().splitlines()
    unique = {frozenset(line.split(",")): line for line in lines[1:]}
    rows = [f"{line},{i % 5},{'ab'[i % 2]},{i * 0.7:.1f}" for i, line in enumerate(unique.values())]
    edges.write_text("\n".join([lines[0] + ",w,kind,length", *rows]) + "\n")
    columns = ["--edge-weight", "w", "--edge-attr", "kind", "--edge-attr", "length"]
    return [*flags, *columns, "--label", "kind"]


def test_from_tables_to_predictions(tmp_path, capsys):
    run = tmp_path / "run"
    flags = weighted_tables(tmp_path)
    assert main(["train", *flags, "--out", str(run), *QUICK]) == 0
    opened = Run.open(run)
    assert opened.schema.edges.names == ("w", "kind", "length")
    assert list(opened.shape.edge_categories) == [2]
    assert opened.shape.edge_channels == 1
    a, b, c = (tmp_path / name for name in ("a.csv", "b.csv", "c.csv"))
    assert main(["predict", str(run), "--out", str(a)]) == 0
    assert main(["predict", str(run), *flags[:4], "--out", str(b)]) == 0
    assert a.read_bytes() == b.read_bytes()
    assert main(["predict", str(run), "--piece-size", "30", "--out", str(c)]) == 0
    assert main(["evaluate", str(run), "--json"]) == 0
    assert main(["embed", str(run), "--out", str(tmp_path / "e.npz")]) == 0
    assert main(["report", str(run)]) == 0
    capsys.readouterr()
    edges = tmp_path / "edges.csv"
    lines = edges.read_text().splitlines()
    edges.write_text("\n".join([*lines[:3], lines[3].replace(",a,", ",z,").replace(",b,", ",z,")]))
    assert main(["predict", str(run), *flags[:4], "--out", str(tmp_path / "d.csv")]) == 1
    assert "known category in edge column 'kind' (got 'z'" in capsys.readouterr().err
    edges.write_text("source,target\nü 0,ü 1\n")
    assert main(["predict", str(run), *flags[:4], "--out", str(tmp_path / "d.csv")]) == 1
    assert "edge column of the training table 'w'" in capsys.readouterr().err
    other = replace(some_graph(), edge_sizes=None)
    other.graph.x = torch.zeros(40, opened.shape.in_channels)
    with pytest.raises(DataError, match=r"1 categories and 1 numbers.*got 0 categories and 0"):
        predict_nodes(opened, other)


def test_bonds_of_molecules(tmp_path, capsys):
    flags = [*write_molecules(tmp_path), "--label", "active", "--folds", "4"]
    on, off = tmp_path / "on", tmp_path / "off"
    assert main(["train", *flags, "--edge-columns", "use", "--out", str(on), *QUICK]) == 0
    assert main(["train", *flags, "--out", str(off), *QUICK]) == 0
    assert list(Run.open(on).shape.edge_categories) == [5, 6, 2, 2]
    assert list(Run.open(off).shape.edge_categories) == []
    out = tmp_path / "p.csv"
    assert main(["predict", str(on), "--out", str(out)]) == 0
    assert main(["predict", str(on), *flags[:4], "--out", str(out), "--force"]) == 0
    assert main(["evaluate", str(on), "--json"]) == 0
    with pytest.raises(DataError, match="--edge-columns use"):
        predict_graphs(
            Run.open(on),
            replace(
                some_graphs(),
                edge_sizes=None,
                graphs=[
                    graph.clone().update(
                        {"x": torch.zeros(graph.num_nodes, Run.open(on).shape.in_channels)}
                    )
                    for graph in some_graphs().graphs
                ],
            ),
        )

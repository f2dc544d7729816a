"""What a step sees: packed batches are PyG's, samples of everything are the whole graph."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_geometric.data import Batch, Data

from geof.data.batching import PackedGraphs, select_rows
from geof.data.sources import SignatureConfig
from geof.errors import ConfigError, DataError
from geof.kernels import Neighbourhoods
from geof.methods.interface import Outputs
from geof.signature import structural_signature
from geof.training import GraphTask, TrainingConfig
from tests.graphs import random_sample
from tests.training.toys import graph_set, graph_task, link_task, network_of, node_task


def odd_graphs() -> list[Data]:
    """Graphs of many sizes, some without edges, one of a single node."""
    sizes = [(5, 9), (1, 0), (7, 20), (3, 0), (4, 12)]
    samples = [random_sample(i, nodes=n, edges=e) for i, (n, e) in enumerate(sizes)]
    return [Data(x=x, edge_index=edges) for x, edges, _ in samples]


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4], [3], [4, 0, 1], [2, 2], [1, 3]])
def test_a_packed_batch_is_pygs(chosen):
    graphs = odd_graphs()
    packed = PackedGraphs.pack(graphs)
    assert len(packed) == 5
    marks = torch.arange(len(packed.x)).unsqueeze(1).double()  # which node of all is this?
    ours = packed.batch(torch.tensor(chosen), marks)
    theirs = Batch.from_data_list([graphs[i] for i in chosen])
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.edge_index, theirs.edge_index)
    assert torch.equal(ours.batch, theirs.batch)
    assert ours.num_graphs == len(chosen)
    assert torch.equal(packed.x[ours.signature.long().flatten()], theirs.x)


def unsorted_graphs(*, repeats: bool) -> list[Data]:
    """Graphs with self-loops, isolated nodes, no edges, no nodes; edges carry something."""
    graphs = []
    for number, (nodes, edges) in enumerate([(6, 11), (1, 0), (0, 0), (9, 30), (4, 0), (1, 1)]):
        given = torch.Generator().manual_seed(number)
        index = torch.randint(0, max(nodes, 1), (2, edges), generator=given)
        if not repeats:  # each pair once, in no order
            index = index.unique(dim=1)
            index = index[:, torch.randperm(index.size(1), generator=given)]
        graph = Data(x=torch.rand(nodes, 3, generator=given), edge_index=index)
        graph.edge_weight = torch.rand(index.size(1), generator=given)
        graph.edge_attr = torch.randint(0, 5, (index.size(1), 2), generator=given)
        graphs.append(graph)
    return graphs


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4, 5], [3], [2], [5, 3, 0, 3], [4, 1, 2], []])
def test_the_neighbourhoods_of_a_batch_are_those_that_sorting_it_gives(chosen, edges):
    packed = PackedGraphs.pack(unsorted_graphs(repeats=not edges), edges=edges)
    batch = packed.batch(torch.tensor(chosen, dtype=torch.long), torch.zeros(len(packed.x), 1))
    sorted_again = Neighbourhoods.from_edge_index(batch.edge_index, len(batch.x), origin=edges)
    for name in ("source", "target", "origin"):
        ours, wanted = getattr(batch.edges, name), getattr(sorted_again, name)
        assert (ours is None) is (wanted is None), name
        assert wanted is None or (torch.equal(ours, wanted) and ours.dtype == wanted.dtype), name
        assert ours is None or ours.is_contiguous(), name
    for name in ("num_nodes", "num_given", "active", "terms"):
        assert getattr(batch.edges, name) == getattr(sorted_again, name), name


def test_an_edge_out_of_its_graph_is_refused():
    """Beside the others its target exists: it is a node of the next graph."""
    graphs = unsorted_graphs(repeats=True)
    graphs[3].edge_index[1, 4] = 9
    with pytest.raises(DataError, match=r"graph 3 to hold node indices from 0 to 8 \(got .*9\]"):
        PackedGraphs.pack(graphs)
    with pytest.raises(DataError, match="a second time"):
        PackedGraphs.pack(unsorted_graphs(repeats=True), edges=True)


@pytest.mark.parametrize("degree", ["max", "log"])
def test_packed_signatures_are_those_of_each_graph(degree):
    graphs = graph_set(8).graphs
    packed = PackedGraphs.pack(graphs)
    settings = SignatureConfig(walk_length=4, degree=degree)
    together = packed.sign(settings).values
    alone = [
        structural_signature(g.edge_index, g.num_nodes, walk_length=4, degree=degree).values
        for g in graphs
    ]
    torch.testing.assert_close(together, torch.cat(alone))
    theirs = Batch.from_data_list(list(graphs))
    same = structural_signature(
        theirs.edge_index, theirs.num_nodes, walk_length=4, degree=degree, batch=theirs.batch
    )
    assert torch.equal(together, same.values)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4, 1, 1, 5], [2], []])
def test_selected_rows_are_those_of_indexing(rows):
    x, _, _ = random_sample(0, nodes=6)
    x[x < 0.3] = 0
    x[2] = 0  # a row without entries
    rows = torch.tensor(rows, dtype=torch.long)
    assert torch.equal(select_rows(x, rows), x[rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its CSR support is in beta
        sparse = select_rows(x.to_sparse_csr(), rows)
    assert sparse.layout == torch.sparse_csr
    assert torch.equal(sparse.to_dense(), x[rows])


class Spy:
    """Stands in for a network and remembers how many graphs each batch had."""

    def __init__(self):
        self.sizes: list[int] = []

    def outputs(self, inputs, pairs=None):
        return Outputs(self(inputs, pairs))

    def __call__(self, inputs, pairs=None):
        self.sizes.append(inputs.num_graphs)
        return torch.zeros(inputs.num_graphs, 2)


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(17, [18]), (6, [6, 6, 6]), (7, [7, 7, 4]), (18, [18]), (64, [18])]
)
def test_a_graph_left_over_joins_the_batch_before(batch_size, sizes):
    spy = Spy()
    task = graph_task(training=TrainingConfig(batch_size=batch_size))
    assert len(list(task.losses(spy, 1))) == len(sizes)
    assert spy.sizes == sizes


def test_evaluation_takes_every_graph_in_its_place():
    spy = Spy()
    graph_task(training=TrainingConfig(batch_size=5)).evaluate(spy, "validation")
    assert spy.sizes == [5, 1]


def whole_and_sampled(make, batch_size, **more):
    """Return the same untrained network's loss on the whole graph and on complete samples."""
    whole = make()
    sampled = make(training=TrainingConfig(batch_size=batch_size, fanouts=(-1, -1)), **more)
    options = {"hidden_channels": 8, "blocks": 2, "steps": 2}
    network = network_of(whole, TrainingConfig(), options=options).double()
    for task in (whole, sampled):
        inputs = task.inputs
        object.__setattr__(inputs, "x", inputs.x.double())
        object.__setattr__(inputs, "signature", inputs.signature.double())
    with torch.no_grad():
        return list(whole.losses(network, 3)), list(sampled.losses(network, 3)), sampled


@pytest.mark.parametrize("batch_size", [5, 24, 100])
def test_complete_neighbourhoods_of_nodes_give_the_whole_graphs_loss(batch_size):
    (whole,), parts, task = whole_and_sampled(node_task, batch_size)
    count = len(task.split.train)
    assert len(parts) == -(-count // batch_size)
    sizes = [min(batch_size, count - i) for i in range(0, count, batch_size)]
    mean = sum(loss * size for loss, size in zip(parts, sizes, strict=True)) / count
    torch.testing.assert_close(mean, whole)


@pytest.mark.parametrize("batch_size", [5, 1000])
def test_complete_neighbourhoods_of_pairs_give_the_whole_graphs_loss(batch_size):
    (whole,), parts, task = whole_and_sampled(link_task, batch_size)
    count = task.split.train.size(1)
    sizes = [min(batch_size, count - i) for i in range(0, count, batch_size)]
    mean = sum(loss * size for loss, size in zip(parts, sizes, strict=True)) / count
    torch.testing.assert_close(mean, whole)


@pytest.mark.parametrize("make", [node_task, link_task])
def test_each_epoch_has_samples_of_its_own_and_each_seed_too(make):
    batches = TrainingConfig(batch_size=8, fanouts=(2, 2))

    def losses(seed: int, epoch: int) -> list[float]:
        task = make(training=batches, seed=seed)
        network = network_of(task, TrainingConfig(), options={"blocks": 2})
        return [loss.item() for loss in task.losses(network, epoch)]

    assert losses(0, 1) == losses(0, 1)
    assert losses(0, 1) != losses(0, 2)
    assert losses(0, 1) != losses(1, 1)


@pytest.mark.parametrize("make", [node_task, link_task])
def test_sampling_is_recorded_and_evaluation_sees_the_whole_graph(make):
    sampled, whole = make(training=TrainingConfig(batch_size=8, fanouts=(2, 2)), seed=5), make()
    wanted = {"batch_size": 8, "fanouts": [2, 2], "order_seed": 5}
    assert wanted.items() <= sampled.record().items()
    assert not wanted.keys() & whole.record().keys()
    network = network_of(whole, TrainingConfig(), options={"blocks": 2})
    network.eval()
    with torch.no_grad():
        assert sampled.evaluate(network, "test") == whole.evaluate(network, "test")


@pytest.mark.parametrize("make", [node_task, link_task])
def test_a_batch_size_alone_means_nothing_for_one_graph(make):
    with pytest.raises(ConfigError, match="'fanouts' beside 'batch_size'"):
        make(training=TrainingConfig(batch_size=8))
    with pytest.raises(ConfigError, match="fanouts"):
        make(training=TrainingConfig(batch_size=8, fanouts=(0, 2)))
    assert make(training=TrainingConfig()).sampling is None


def test_graphs_are_never_sampled():
    with pytest.raises(ConfigError, match=r"no 'fanouts' for graph classification.*\[3, 3\]"):
        graph_task(training=TrainingConfig(batch_size=8, fanouts=(3, 3)))
    task = graph_task()
    assert task.record() == {"batch_size": 7, "order_seed": 0}
    default = GraphTask(graph_set(), task.split, signature=SignatureConfig(3))
    assert default.record()["batch_size"] == 64

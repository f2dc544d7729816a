"""What every registered method must do, whatever it is: learn, come back, survive odd graphs."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.catalogue import CATALOGUE
from geof.data.records import GraphSet, NodeGraph
from geof.data.signatures import SignatureConfig
from geof.errors import StoppedError
from geof.methods.interface import Encoding, GraphInputs, HasPretext
from geof.methods.presets import default_preset, load_preset
from geof.methods.registry import encoder_options
from geof.testing import assert_permutation_equivariant
from geof.training import ENCODERS, Experiment, Plan, TrainSettings, Watch, fit, run_experiment
from geof.training.predict import Run
from geof.training.settings import PretrainSettings
from geof.yaml_files import merge
from geof_paper.bench import memory
from geof_paper.grid.cells import BENCHMARKS
from geof_paper.studies.compared import COMPARED
from paper.tests.baselines.test_gcn import graph
from tests.training.toys import TASKS, graph_set, node_graph

METHODS = sorted(ENCODERS)
EVERY_TASK = pytest.mark.parametrize(
    "task", ["node", *(pytest.param(task, marks=pytest.mark.slow) for task in ("link", "graph"))]
)


def pretraining(name: str, task: str) -> PretrainSettings:
    """Return two epochs of the stage before the task's for methods that have one."""
    network = Experiment(TASKS[task](), TrainSettings(), encoder=name).build()
    if not isinstance(network.encoder, HasPretext):
        return PretrainSettings()
    return PretrainSettings(epochs=2, freeze=any(True for _ in network.readout.parameters()))


def build(name: str, task: str = "node", **more):
    experiment = Experiment(TASKS[task](), TrainSettings(), encoder=name, **more)
    return experiment, experiment.build()


def inductive(name: str) -> dict[str, str]:
    """Return options under which nothing is tied to the very graph it was built for."""
    options = encoder_options(name, {})
    tied = {"points": "features", "edge_weights": "features"}
    return {key: value for key, value in tied.items() if key in options}


def test_every_compared_method_is_registered_with_its_preset():
    assert {method.encoder for method in COMPARED} == set(ENCODERS)
    for method in COMPARED:
        for task in TASKS:
            assert load_preset(method.encoder, method.preset, task), method


@pytest.mark.parametrize("name", METHODS)
def test_symmetric_under_renumbering(name):
    _, network = build(name, options=inductive(name))
    encoder = network.double().eval().encoder

    def states(x, edge_index, signature):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Encoding.of(encoder(GraphInputs.build(x, edge_index, signature))).states

    for seed in (1, 2):
        x, edge_index, _ = graph(seed, nodes=12, edges=40)
        task = TASKS["node"]()
        u = torch.rand(12, task.signature.values.size(1), dtype=torch.float64)
        assert x.size(1) == task.in_channels
        with torch.no_grad():
            assert_permutation_equivariant(states, x, edge_index, u, tolerance=1e-8)


ODD = {
    "no edges": (4, []),
    "an isolated node": (4, [(0, 1), (1, 2)]),
    "a leaf": (3, [(0, 1), (1, 2)]),
    "one node": (1, []),
    "twins": (4, [(0, 1), (2, 3)]),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_finite_on_odd_graphs(name, case):
    """Float32, in training mode, with coincident and with zero features."""
    nodes, edges = ODD[case]
    experiment, network = build(name, options=inductive(name))
    width, signature = experiment.task.in_channels, experiment.task.signature.values.size(1)
    pairs = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
    edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
    for x in (torch.ones(nodes, width), torch.zeros(nodes, width), torch.eye(nodes, width)):
        inputs = GraphInputs.build(x, edge_index, torch.rand(nodes, signature))
        network.train().zero_grad()
        outputs = network.outputs(inputs)
        labels = torch.arange(nodes) % 2
        outputs.loss(lambda z, y=labels: torch.nn.functional.cross_entropy(z, y)).backward()
        if isinstance(network.encoder, HasPretext):
            loss = network.encoder.pretext_loss(inputs)
            assert bool(loss.isfinite())
            if loss.requires_grad:  # a node alone has nothing to be told from
                loss.backward()
        assert bool(outputs.prediction.isfinite().all())
        for parameter, value in network.named_parameters():
            assert value.grad is None or bool(value.grad.isfinite().all()), parameter


@EVERY_TASK
@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_opened_again_with_the_same_answers(name, task, tmp_path):
    given = TASKS[task]()
    network, result = fit(
        given,
        TrainSettings(epochs=2),
        out=tmp_path / "run",
        encoder=name,
        pretraining=pretraining(name, task),
    )
    again = Run.open(tmp_path / "run")
    with torch.no_grad():
        assert given.evaluate(again.network.eval(), "test") == given.evaluate(network, "test")
    assert result.metrics == given.evaluate(network, "test").metrics
    assert result.epochs == 2 + pretraining(name, task).epochs


@EVERY_TASK
@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_run_goes_on_to_the_same_bits(name, task, tmp_path):
    settings, stage = TrainSettings(epochs=3, learning_rate=0.02), pretraining(name, task)
    options = {"encoder": name, "pretraining": stage}
    whole, _ = fit(TASKS[task](), settings, **options)
    stops = range(1, stage.epochs + 3)
    for stop in stops:
        seen = []
        watch = Watch(
            on_epoch=seen.append, should_stop=lambda s=stop, r=seen: len(r) == 1, save_seconds=0
        )
        if stop == stops[-1]:
            watch = Watch()
        try:
            resumed, _ = fit(TASKS[task](), settings, out=tmp_path, watch=watch, **options)
        except StoppedError:
            torch.rand(7)  # another process's random numbers
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", METHODS)
def test_overfits_a_tiny_set(name, task):
    """The training part, scored like the test part, is learned to at least 90 percent."""
    given = TASKS[task]()
    for rate, epochs in ((0.01, 120), (0.001, 200), (0.02, 300)):  # some want other steps
        settings = TrainSettings(
            epochs=epochs, learning_rate=rate, weight_decay=0.0, evaluate_every=epochs
        )
        network, _ = fit(given, settings, encoder=name)
        view = given.view(network, 1)
        with torch.no_grad():
            score = view.score(network.eval().encode(view.inputs))
        if score >= 90.0:
            return
    pytest.fail(f"{name} learns a tiny {task} task to {score:.0f} percent only")


def stand_in(name: str) -> NodeGraph | GraphSet:
    """Return a small dataset with a benchmark's features, classes and kind of graphs."""
    benchmark = CATALOGUE[name]
    facts = benchmark.expected
    generator = torch.Generator().manual_seed(0)
    classes = tuple(map(str, range(facts.classes)))
    if not benchmark.is_node_graph:
        graphs = []
        for i in range(24):
            nodes = 3 + i % 9
            edges = to_undirected(torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)]))
            codes = torch.randint(facts.features, (nodes,), generator=generator)
            x = torch.nn.functional.one_hot(codes, facts.features).float()
            graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([i % facts.classes])))
        return GraphSet(name, graphs, classes)
    nodes, degree = 240, max(2, min(60, round(facts.edges / facts.nodes)))
    edges = torch.randint(nodes, (2, nodes * degree), generator=generator)
    x = (torch.rand(nodes, facts.features, generator=generator) < 0.02).float()
    x = x / x.sum(1, keepdim=True).clamp_min(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its CSR support is in beta
        x = x.to_sparse_csr()
    y = torch.arange(nodes) % facts.classes
    edges = to_undirected(edges[:, edges[0] != edges[1]])
    return NodeGraph(name, Data(x=x, edge_index=edges, y=y), classes)


@pytest.mark.slow
@pytest.mark.parametrize("setting", BENCHMARKS, ids="-".join)
@pytest.mark.parametrize("name", METHODS)
def test_two_epochs_with_every_benchmarks_shape(name, setting):
    """True feature widths, sparse where the benchmark's are, its classes and the shipped preset."""
    task, dataset = setting
    preset = default_preset(name)
    tree = load_preset(name, preset, task, dataset)
    stage = {"pretraining": {"epochs": 2}} if "pretraining" in tree else {}
    tree = merge(tree, {"epochs": 2, "evaluate_every": 1, "patience": None, **stage})
    plan = Plan.from_tree(tree, task=task, encoder=name, preset=preset, folds=3)
    _, result = run_experiment(plan.experiment(plan.build_task(stand_in(dataset))))
    assert 0 <= result.test <= 100


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_memory_grows_with_the_edges_and_not_with_their_square(name):
    """Four times the nodes and edges: an n x n matrix would ask for sixteen times the memory."""
    if not memory.Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux's /proc")
    needed = [_peak_of_a_step(name, nodes) for nodes in (2_000, 8_000)]
    assert needed[1] < 6.5 * max(needed[0], 2**24)


def _peak_of_a_step(name: str, nodes: int) -> int:
    torch.manual_seed(0)
    edges = torch.randint(nodes, (2, 5 * nodes))
    edges = to_undirected(edges[:, edges[0] != edges[1]])
    data = Data(x=torch.randn(nodes, 16), edge_index=edges, y=torch.arange(nodes) % 3)
    plan = Plan.from_tree(
        {"epochs": 1, "model": inductive(name)}, task="node", encoder=name, preset="none"
    )
    task = plan.build_task(NodeGraph("large", data, ("a", "b", "c")))
    network = plan.experiment(task).build().train()
    if isinstance(network.encoder, HasPretext):
        next(task.pretext_losses(network, 1)).backward()  # what is made once is made
    next(task.losses(network, 1)).backward()
    gc.collect()
    memory.release_freed()
    memory.reset_peak()
    before = memory.resident_bytes()
    if isinstance(network.encoder, HasPretext):
        next(task.pretext_losses(network, 1)).backward()
    next(task.losses(network, 1)).backward()
    return memory.peak_bytes() - before


def test_the_toys_have_what_the_methods_ask_for():
    assert TASKS["node"]().num_nodes == 40
    assert TASKS["link"]().num_edges < node_graph().graph.edge_index.size(1)
    assert TASKS["graph"]().num_nodes is None
    assert len(graph_set().graphs) == 30
    assert SignatureConfig().walk_length > 3

"""Every registered method has its checks, trains in every benchmark's shape, and needs no n x n."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.catalogue import CATALOGUE
from geof.data.records import GraphSet, NodeGraph
from geof.methods.interface import HasPretext
from geof.methods.registry import default_preset, load_preset, method_names, method_options
from geof.testing import without_csr_warnings
from geof.training import Network, RunConfig, Trainer, build_task
from geof_paper.bench import memory
from geof_paper.grid.cells import BENCHMARKS
from geof_paper.studies.compared import COMPARED

METHODS = sorted(method_names())
ROOT = Path(__file__).parents[3]
TESTS = ("paper/tests/baselines", "tests/methods")


def inductive(name: str) -> dict[str, str]:
    """Return options under which nothing is tied to the very graph it was built for."""
    options = method_options(name, {})
    tied = {"points": "features", "edge_weights": "features"}
    return {key: value for key, value in tied.items() if key in options}


def test_every_compared_method_is_registered_with_its_preset():
    assert {compared.method for compared in COMPARED} == set(METHODS)
    for compared in COMPARED:
        for task in ("node", "link", "graph"):
            assert load_preset(compared.method, compared.preset_for(task), task), compared


def test_a_row_has_the_default_preset_of_its_method():
    """So that `geof train` and `geof bench` show what the tables show."""
    for compared in COMPARED:
        for task in ("node", "link", "graph"):
            if compared.method != "geof":
                assert default_preset(compared.method, task) == compared.preset_for(task)


def test_every_method_has_a_test_case():
    """A class that pytest collects derives from the case and names the method."""
    found = []
    for path in (path for folder in TESTS for path in (ROOT / folder).glob("test_*.py")):
        cases = {"MethodTestCase"}
        for kind in ast.parse(path.read_text()).body:
            bases = {ast.unparse(base) for base in getattr(kind, "bases", ())}
            if not bases & cases:
                continue
            cases.add(kind.name)
            if kind.name.startswith("Test"):
                found += [
                    part.value.value
                    for part in kind.body
                    if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "method"
                ]
    assert sorted(found) == METHODS


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
    with without_csr_warnings():
        x = x.to_sparse_csr()
    y = torch.arange(nodes) % facts.classes
    edges = to_undirected(edges[:, edges[0] != edges[1]])
    return NodeGraph(name, Data(x=x, edge_index=edges, y=y), classes)


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS, ids="-".join)
@pytest.mark.parametrize("name", METHODS)
def test_two_epochs_with_every_benchmarks_shape(name, benchmark):
    """True feature widths, sparse where the benchmark's are, its classes and the shipped preset."""
    task, dataset = benchmark
    about = {"method": name, "task": task, "data": {"dataset": dataset}, "folds": 3}
    short = {"epochs": 2, "evaluate_every": 1, "patience": None}
    if "pretraining" in load_preset(name, default_preset(name, task), task, dataset):
        short["pretraining"] = {"epochs": 2}
    config = RunConfig.parse(about, short)
    result = Trainer(config, build_task(config, stand_in(dataset))).fit()
    assert 0 <= result.test <= 100


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_memory_grows_with_the_edges_and_not_with_their_square(name):
    """Four times the nodes and edges: an n x n matrix would ask for sixteen times the memory."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux's /proc")
    needed = [_peak_of_a_step(name, nodes) for nodes in (2_000, 8_000)]
    assert needed[1] < 6.5 * max(needed[0], 2**24)


def _peak_of_a_step(name: str, nodes: int) -> int:
    torch.manual_seed(0)
    edges = torch.randint(nodes, (2, 5 * nodes))
    edges = to_undirected(edges[:, edges[0] != edges[1]])
    data = Data(x=torch.randn(nodes, 16), edge_index=edges, y=torch.arange(nodes) % 3)
    config = RunConfig(method=name, options=inductive(name))
    task = build_task(config, NodeGraph("large", data, ("a", "b", "c")))
    network = Network(config, task.shape).train()

    def step() -> None:
        if isinstance(network.encoder, HasPretext):
            next(task.pretext_losses(network, 1)).backward()
        next(task.losses(network, 1)).backward()

    step()  # what is made once is made
    gc.collect()
    memory.release_freed()
    memory.reset_peak()
    before = memory.resident_bytes()
    step()
    return memory.peak_bytes() - before

"""Every registered method has its checks, trains in every benchmark's shape, and needs no n x n."""

from __future__ import annotations

import ast
import gc
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof import GeoF
from geof.data.catalogue import CATALOGUE
from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError
from geof.methods.interface import HasPretext
from geof.methods.registry import (
    READOUTS,
    default_preset,
    get_method,
    load_preset,
    method_names,
    method_options,
)
from geof.options import arguments
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


def booleans_of(function) -> list[str]:
    """Return the options that are true or false."""
    own = arguments(function)
    return [name for name, option in own.items() if bool in (option.hint, *get_args(option.hint))]


def owners_of_booleans() -> list[tuple[str, str, type, str]]:
    """Return method, section, class and name of every option that is true or false."""
    found = []
    for name in METHODS:
        method = get_method(name)
        shown = method.documented or method.build
        found += [(name, "options", shown, option) for option in booleans_of(shown)]
        for task, shared in READOUTS.items():
            readout = method.readouts.get(task, shared)
            found += [(name, f"readout {task}", readout, option) for option in booleans_of(readout)]
    return found


NOT_BOOLEAN = ("off", "no", "on", "true", "", 0, 1, 0.0, [])


@pytest.mark.parametrize(
    ("method", "section", "kind", "name"),
    owners_of_booleans(),
    ids=lambda v: getattr(v, "__name__", v),
)
def test_booleans_are_booleans(method, section, kind, name):
    """A config and a class refuse whatever else could be taken for true or false."""
    section, _, task = section.partition(" ")
    for value in NOT_BOOLEAN:
        tree = {"method": method, "preset": "none", "task": task or "node", section: {name: value}}
        with pytest.raises(ConfigError, match=rf"'{section}.{name}' to be .*True or False"):
            RunConfig.parse({"data": {"dataset": "Cora"}}, tree)
        sizes = (4,) if section == "readout" and task != "link" else ()
        with pytest.raises(ConfigError, match=rf"'{name}' to be .*True or False"):
            kind(4, *sizes, **{"signature_channels": 2} if kind is GeoF else {}, **{name: value})


def test_there_are_booleans_to_look_at():
    names = {name for *_, name in owners_of_booleans()}
    assert {"recompute", "scale_features", "signature_features", "batch_norm"} <= names


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
    with memory.every_byte_counted():
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

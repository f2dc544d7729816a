"""Small data under the names of benchmarks, for grids that need no files."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.catalogue import CATALOGUE
from geof.data.records import GraphSet, NodeGraph

SMALL_PRESET = {
    "epochs": 2,
    "learning_rate": 0.01,
    "options": {"hidden_channels": 8, "blocks": 2, "controller_channels": 4},
    "signature": {"walk_length": 3},
}
SMALL_BASELINE = {"epochs": 2, "options": {"hidden_channels": 8}, "signature": {"walk_length": 3}}


def small_graph(name: str) -> NodeGraph:
    """Return a graph of sixty nodes whose class is the sign of a feature."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=generator)
    edges = torch.randint(60, (2, 160), generator=generator)
    edges = to_undirected(edges[:, edges[0] != edges[1]], num_nodes=60)
    y = (x[:, 0] > 0).long()
    return NodeGraph(name, Data(x=x, edge_index=edges, y=y), ("a", "b"), content_hash="c")


def small_set(name: str) -> GraphSet:
    """Return sixty paths and cycles, told apart by their class."""
    graphs = []
    for number in range(60):
        nodes, cycle = 4 + number % 3, number % 2
        path = torch.arange(nodes - 1)
        edges = torch.stack([path, path + 1])
        if cycle:
            edges = torch.cat([edges, torch.tensor([[nodes - 1], [0]])], dim=1)
        graphs.append(
            Data(x=torch.ones(nodes, 2), edge_index=to_undirected(edges), y=torch.tensor([cycle]))
        )
    return GraphSet(name, tuple(graphs), ("path", "cycle"), content_hash="g")


def stand_in(name: str) -> NodeGraph | GraphSet:
    """Return small data of the benchmark's kind."""
    return (small_set if "graph classification" in CATALOGUE[name].tasks else small_graph)(name)


@pytest.fixture
def tiny(monkeypatch):
    """Small data in place of every benchmark; the list of what was loaded."""
    loads: list[str] = []

    def load(name, data_root=None, row_normalise=True):
        loads.append(name)
        return stand_in(name)

    monkeypatch.setattr("geof.data.sources.load", load)
    monkeypatch.setattr("geof_paper.render.maps.load", load)
    return loads


@pytest.fixture
def small_presets(monkeypatch):
    """Small options in place of every preset."""

    def load_preset(method, preset, task, dataset=None):
        if preset == "none":  # what the defaults of the code are is asked once and kept
            return {}
        return SMALL_PRESET if method == "geof" else SMALL_BASELINE

    for module in ("geof.training.config", "geof_paper.grid.declared"):
        monkeypatch.setattr(f"{module}.load_preset", load_preset, raising=False)

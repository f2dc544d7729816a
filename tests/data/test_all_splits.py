"""The ten splits of all eighteen benchmarks, the same on every machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data import catalogue, provision
from geof.data.link_splits import LinkSplit
from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import DatasetIdentity, GraphSplit, NodeSplit
from tests.graphs import random_sample

PUBLISHED = Path(__file__).parents[2] / "docs" / "splits.json"


def toy(name: str, **_) -> NodeGraph | GraphSet:
    x, edge_index, _ = random_sample(0, nodes=60, edges=150, dtype=torch.float32)
    if name == "NCI1":
        graphs = [
            Data(x=x[:2], edge_index=edge_index[:, :0], y=torch.tensor([i % 2])) for i in range(40)
        ]
        return GraphSet(name, graphs, ("0", "1"), content_hash="c")
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
    y = torch.arange(60) % 3
    y[:5] = -1
    return NodeGraph(name, Data(x=x, edge_index=edge_index, y=y), ("a", "b", "c"), content_hash="c")


def test_what_is_written_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "load", toy)
    rows = provision.write_splits(["CiteSeer", "NCI1"], tmp_path)
    assert [row["hash"] for row in json.loads((tmp_path / "splits.json").read_text())] == [
        row.hash for row in rows
    ]
    kinds = {"node": NodeSplit, "link": LinkSplit, "graph": GraphSplit}
    assert {(row.dataset, row.task) for row in rows} == {
        ("CiteSeer", "node"),
        ("CiteSeer", "link"),
        ("NCI1", "graph"),
    }
    for row in rows:
        identity = DatasetIdentity.of(toy(row.dataset))
        assert kinds[row.task].load(tmp_path / row.file, identity).hash == row.hash
    assert len({row.hash for row in rows}) == 30


def test_the_published_index_has_all_eighteen_benchmarks():
    index = json.loads(PUBLISHED.read_text())
    wanted = {
        f"{name}/{task}"
        for name, benchmark in catalogue.CATALOGUE.items()
        for task in (("node", "link") if benchmark.is_node_graph else ("graph",))
    }
    assert index.keys() == wanted
    assert all(len(set(hashes)) == 10 for hashes in index.values())


@pytest.mark.slow
@pytest.mark.skipif("GEOF_DATA" not in os.environ, reason="GEOF_DATA names no raw files")
@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_the_published_hashes_are_those_of_this_machine(name, tmp_path):
    index = json.loads(PUBLISHED.read_text())
    for row in provision.write_splits([name], tmp_path):
        assert index[f"{name}/{row.task}"][row.number] == row.hash

"""Tiny tasks, and settings under which everything a run must remember matters."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.link_splits import random_link_split
from geof.data.records import GraphSet, NodeGraph
from geof.data.sources import SignatureConfig
from geof.data.splits import GraphSplit, random_node_split
from geof.training import (
    GraphTask,
    LinkTask,
    Network,
    NodeTask,
    Result,
    RunConfig,
    Task,
    Trainer,
    TrainingConfig,
)
from tests.graphs import random_sample

SAMPLED = TrainingConfig(batch_size=9, fanouts=(2, 2))

# Dropout asks for the random state, batch normalisation for buffers, Adam for its moments.
FRAGILE: dict[str, Any] = {
    "hidden_channels": 8,
    "blocks": 2,
    "controller_channels": 8,
    "normalise": "batch",
    "feed_forward": 1,
    "dropout": 0.3,
    "feature_dropout": 0.2,
    "outputs": "all",
}


def config_of(task: Task, training: TrainingConfig | None = None, **more) -> RunConfig:
    """Return the config of a task with options of its own."""
    return RunConfig(task=task.kind, training=training or TrainingConfig(), **more)


def network_of(task: Task, training: TrainingConfig | None = None, **more) -> Network:
    """Return an untrained network, its parameters drawn from the seed."""
    return Trainer(config_of(task, training, **more), task).network


def fit(
    task: Task,
    training: TrainingConfig,
    *,
    out=None,
    watch=None,
    allow_changes=False,
    **more,
) -> tuple[Network, Result]:
    """Train; ``more`` are fields of the config."""
    config = config_of(task, training, **more)
    trainer = Trainer(config, task, out=out, watch=watch, allow_changes=allow_changes)
    return trainer.network, trainer.fit()


def node_graph(labels: torch.Tensor | None = None, nodes: int = 40, edges: int = 70) -> NodeGraph:
    x, edge_index, _ = random_sample(0, nodes=nodes, edges=edges, dtype=torch.float32)
    y = (x[:, 0] > 0).long() if labels is None else labels
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
    return NodeGraph("toy", Data(x=x, edge_index=edge_index, y=y), ("no", "yes"))


def graph_set(count: int = 30) -> GraphSet:
    graphs = []
    for i in range(count):
        x, edge_index, _ = random_sample(i, nodes=4 + i % 3, edges=6, dtype=torch.float32)
        edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]])
        graphs.append(Data(x=x + i % 2, edge_index=edge_index, y=torch.tensor([i % 2])))
    return GraphSet("toys", graphs, ("no", "yes"))


def node_task(labels: torch.Tensor | None = None, **options) -> NodeTask:
    options = {"signature": SignatureConfig(3), **options}
    return NodeTask(node_graph(labels), random_node_split(40, 0), **options)


def link_task(**options) -> LinkTask:
    data = node_graph()
    split = random_link_split(data.graph.edge_index, 40, 0)
    return LinkTask(data, split, **{"signature": SignatureConfig(3), **options})


def graph_task(**options) -> GraphTask:
    part = torch.arange(30)
    split = GraphSplit(part[:18], part[18:24], part[24:], "fixed")
    options = {"training": TrainingConfig(batch_size=7), "signature": SignatureConfig(3), **options}
    return GraphTask(graph_set(), split, **options)


TASKS = {"node": node_task, "link": link_task, "graph": graph_task}
SAMPLED_TASKS = {
    "node, sampled": lambda: node_task(training=SAMPLED),
    "link, sampled": lambda: link_task(training=SAMPLED),
}

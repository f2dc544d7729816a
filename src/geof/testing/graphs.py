"""Small random graphs and tasks to check methods on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.link_splits import random_link_split
from geof.data.records import GraphSet, NodeGraph
from geof.data.sources import SignatureConfig
from geof.data.splits import GraphSplit, random_node_split
from geof.methods.interface import GraphInputs, TaskKind
from geof.training.config import TrainingConfig
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Task

Sample: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Features ``(n, F)``, edges ``(2, E)`` and signatures ``(n, q)``."""

M = TypeVar("M", bound=nn.Module)


def random_graph(
    seed: int = 0,
    *,
    nodes: int = 9,
    edges: int = 24,
    channels: int = 5,
    signature: int = 3,
    dtype: torch.dtype = torch.float64,
) -> Sample:
    """Return an undirected graph without self-loops; equal seeds give equal graphs.

    Args:
        seed: Of all draws.
        nodes: How many.
        edges: Pairs to draw; repeats and loops fall away.
        channels: Width of the features.
        signature: Width of the signatures.
        dtype: Of both.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    edge_index = torch.randint(0, nodes, (2, edges), generator=generator)
    u = torch.rand(nodes, signature, generator=generator, dtype=torch.float64)
    edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]], num_nodes=nodes)
    return x.to(dtype), edge_index, u.to(dtype)


def side_by_side(graphs: Sequence[Sample], order: Tensor | None = None) -> GraphInputs:
    """Return a batch of graphs.

    Args:
        graphs: Its graphs.
        order: A permutation of all their nodes, in which the batch has them.
    """
    sizes = torch.tensor([len(x) for x, _, _ in graphs])
    first = sizes.cumsum(0) - sizes
    x, u = (torch.cat(values) for values in zip(*((x, u) for x, _, u in graphs), strict=True))
    edge_index = torch.cat([e + f for (_, e, _), f in zip(graphs, first, strict=True)], dim=1)
    batch = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
    if order is not None:
        x, u, batch, edge_index = x[order], u[order], batch[order], order.argsort()[edge_index]
    return GraphInputs.build(x, edge_index, u, batch, len(graphs))


def draw_parameters(
    module: M, spread: float = 0.5, except_for: Sequence[str] = (), *, statistics: bool = True
) -> M:
    """Draw every parameter anew and return the module, in evaluation mode.

    Biases start at zero, scales at one and gates open, where many a mistake cannot be seen. Means
    and variances of batch normalisations are drawn, too, all from torch's generator: seed it.

    Args:
        module: Whose.
        spread: Standard deviation.
        except_for: Parameters whose names contain one of these stay as they are.
        statistics: Whether means and variances are drawn.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not any(part in name for part in except_for):
                parameter.copy_(spread * torch.randn(parameter.shape))
        for part in module.modules():
            if statistics and isinstance(part, nn.BatchNorm1d) and part.running_mean is not None:
                assert part.running_var is not None
                part.running_mean.copy_(spread * torch.randn(part.running_mean.shape))
                part.running_var.copy_(1 + torch.randn(part.running_var.shape).square())
    return module.eval()


def tiny_graph(labels: Tensor | None = None) -> NodeGraph:
    """Return a graph of forty nodes, by default labelled with the sign of their first feature."""
    x, edge_index, _ = random_graph(0, nodes=40, edges=70, dtype=torch.float32)
    y = (x[:, 0] > 0).long() if labels is None else labels
    return NodeGraph("tiny", Data(x=x, edge_index=edge_index, y=y), ("no", "yes"))


def tiny_set(count: int = 30) -> GraphSet:
    """Return graphs of four to six nodes whose features tell their class."""
    graphs = []
    for i in range(count):
        x, edge_index, _ = random_graph(i, nodes=4 + i % 3, edges=6, dtype=torch.float32)
        graphs.append(Data(x=x + i % 2, edge_index=edge_index, y=torch.tensor([i % 2])))
    return GraphSet("tiny", graphs, ("no", "yes"))


def tiny_task(kind: TaskKind, **more: Any) -> Task:
    """Return a task that trains in seconds: 40 nodes, the links between them, or 30 graphs.

    Args:
        kind: Node, link or graph.
        **more: Arguments of the task, such as ``training``.
    """
    more = {"signature": SignatureConfig(3), **more}
    if kind == "graph":
        part = torch.arange(30)
        split = GraphSplit(part[:18], part[18:24], part[24:], "fixed")
        return GraphTask(tiny_set(), split, **{"training": TrainingConfig(batch_size=7), **more})
    data = tiny_graph()
    if kind == "link":
        return LinkTask(data, random_link_split(data.graph.edge_index, 40, 0), **more)
    return NodeTask(data, random_node_split(40, 0), **more)

"""Options that follow from the data: what is measured, and how it is laid below what was given.

Labels play no part, so the choice is the same for every split.
"""

from __future__ import annotations

import torch
from torch import Tensor

from geof.data.records import GraphSet, NodeGraph
from geof.data.targets import labelled
from geof.methods.interface import DataFacts, TaskKind
from geof.methods.registry import AUTO, get_method
from geof.training.config import RunConfig
from geof.training.tasks import graph_label

WORDS = 0.25
"""Rows with at most this share of entries that are not zero may be words."""

FEW_COLUMNS = 32
"""Fewer columns than this are no vocabulary."""


def adapted(config: RunConfig, data: NodeGraph | GraphSet) -> RunConfig:
    """Return a config with what its method chooses by the data, for the preset ``auto``."""
    choose = get_method(config.method).choose
    if config.preset != AUTO or choose is None or config.chosen:
        return config
    return config.chosen_by(choose(facts_of(data, config.task)))


def facts_of(data: NodeGraph | GraphSet, task: TaskKind) -> DataFacts:
    """Return what options may be chosen by."""
    graphs = data.graphs if isinstance(data, GraphSet) else [data.graph]
    edges = sum(int(graph.edge_index.size(1)) for graph in graphs) // 2
    if task == "link":
        examples = edges
    elif isinstance(data, GraphSet):
        examples = int(labelled(torch.cat([graph_label(graph.y) for graph in graphs])).sum())
    else:
        examples = int(labelled(data.graph.y).sum())
    first = graphs[0].x[:1] if graphs[0].x.layout == torch.strided else graphs[0].x
    return DataFacts(
        task,
        words=not isinstance(data, GraphSet) and are_words(data.graph.x),
        constant=all(_same_rows(graph.x, first) for graph in graphs),
        channels=int(graphs[0].x.size(1)),
        graphs=len(graphs),
        nodes=sum(int(graph.num_nodes) for graph in graphs),
        edges=edges,
        examples=examples,
        variance=1.0 if isinstance(data, GraphSet) else column_variance(data.graph.x),
    )


def _same_rows(x: Tensor, row: Tensor) -> bool:
    return x.layout == torch.strided and bool((x == row).all())


def column_variance(x: Tensor) -> float:
    """Return the mean variance of the columns."""
    if x.layout == torch.strided:
        return float(x.var(0, correction=0).mean())
    csr = x.to_sparse_csr()
    values, columns = csr.values().double(), csr.col_indices()
    means = values.new_zeros(x.size(1)).index_add_(0, columns, values) / x.size(0)
    return float(values.square().sum() / x.numel() - means.square().mean())


def are_words(x: Tensor) -> bool:
    """Return whether rows look like words of a text: non-negative and mostly zero."""
    entries = x.values() if x.layout != torch.strided else x
    if x.size(1) < FEW_COLUMNS or not entries.numel() or bool((entries < 0).any()):
        return False
    return int(entries.count_nonzero()) <= WORDS * x.size(0) * x.size(1)

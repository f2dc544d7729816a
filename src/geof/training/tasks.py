"""The three tasks under one contract: losses to step on, and scores of a held-out part.

A task knows its data, its split and its protocol (60/20/20 of nodes, 80/5/15 of edges, folds of
graphs); it knows nothing of the model beyond :class:`~geof.training.networks.Network`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from geof.config import require_positive
from geof.data.draws import raw_permutation, raw_stream
from geof.data.link_splits import LinkSplit, check_no_leak
from geof.data.records import GraphSet, NodeGraph
from geof.data.split_files import DatasetIdentity
from geof.data.splits import IndexSplit
from geof.errors import DataError
from geof.model.graph_inputs import GraphInputs
from geof.signature import SignatureSettings, StructuralSignature, kept_signature
from geof.training.networks import Network, TaskKind
from geof.training.objectives import (
    accuracy,
    graph_loss,
    link_loss,
    link_metrics,
    node_loss,
    roc_auc,
)

Part: TypeAlias = Literal["validation", "test"]


@dataclass(frozen=True)
class Scores:
    """How a network does on a held-out part.

    Attributes:
        metrics: By name, in percent; the task's own metric is among them.
        loss: The task's loss on that part.
    """

    metrics: dict[str, float]
    loss: float


class Task(ABC):
    """What the training loop needs to know.

    Attributes:
        data: What is learned from.
        split: What trains, validates and tests.
        kind: Node, link or graph.
        metric: The metric that chooses the epoch.
        dataset: Name of the data.
        split_name: How the split was made.
        split_hash: The split's hash.
        in_channels: Width of the features.
        num_classes: Number of classes.
        signature: The structural signatures and how they were made.
    """

    data: NodeGraph | GraphSet
    split: IndexSplit | LinkSplit
    kind: TaskKind
    metric: str
    dataset: str
    split_name: str
    split_hash: str
    in_channels: int
    num_classes: int
    signature: StructuralSignature

    def record(self) -> dict[str, Any]:
        """Return what else of the protocol a run must remember."""
        return {}

    def save_split(self, path: Path) -> None:
        """Write the split to a file that fits this data only."""
        self.split.save(path, DatasetIdentity.of(self.data))

    @abstractmethod
    def losses(self, network: Network, epoch: int) -> Iterator[Tensor]:
        """Yield the loss of each optimiser step of an epoch."""

    @abstractmethod
    def evaluate(self, network: Network, part: Part) -> Scores:
        """Score a held-out part."""


class NodeTask(Task):
    """Node classification on one graph, full batch.

    Args:
        data: The graph.
        split: Which nodes train, validate and test; all labelled.
        signature: How to compute the structural signatures.
    """

    data: NodeGraph
    split: IndexSplit
    kind = "node"
    metric = "accuracy"

    def __init__(
        self, data: NodeGraph, split: IndexSplit, *, signature: SignatureSettings | None = None
    ) -> None:
        self.data = data
        self.split = split
        graph = data.graph
        chosen = torch.cat([split.train, split.validation, split.test])
        if int(chosen.max()) >= graph.num_nodes or bool((graph.y[chosen] < 0).any()):
            raise DataError(
                f"Expected every node of split '{split.name}' to be a labelled node of "
                f"'{data.name}'. Make the split from the labelled nodes alone."
            )
        self.signature = kept_signature(graph.edge_index, graph.num_nodes, signature)
        self.inputs = GraphInputs.build(graph.x, graph.edge_index, self.signature.values)
        self.dataset, self.split_name, self.split_hash = data.name, split.name, split.hash
        self.in_channels, self.num_classes = int(graph.x.size(1)), data.num_classes

    def losses(self, network: Network, epoch: int) -> Iterator[Tensor]:
        """Yield the one loss of a full-batch epoch, Eq. (13)."""
        yield node_loss(network(self.inputs), self.data.graph.y, self.split.train)

    def evaluate(self, network: Network, part: Part) -> Scores:
        """Return accuracy and loss on the part's nodes."""
        nodes = self.split.validation if part == "validation" else self.split.test
        logits, labels = network(self.inputs), self.data.graph.y
        score = {"accuracy": accuracy(logits[nodes], labels[nodes])}
        return Scores(score, node_loss(logits, labels, nodes).item())


class LinkTask(Task):
    """Link prediction on one graph: messages and signatures from training edges only.

    The leak check runs here, before anything can be trained.

    Args:
        data: The graph.
        split: Which pairs train, validate and test.
        signature: How to compute the structural signatures.
    """

    data: NodeGraph
    split: LinkSplit
    kind = "link"
    metric = "roc_auc"
    num_classes = 2

    def __init__(
        self, data: NodeGraph, split: LinkSplit, *, signature: SignatureSettings | None = None
    ) -> None:
        self.data = data
        self.split = split
        graph, edge_index = data.graph, split.message_edges
        check_no_leak(split, edge_index, edge_index, graph.edge_index)
        self.leak_checked = True
        self.signature = kept_signature(edge_index, graph.num_nodes, signature)
        self.inputs = GraphInputs.build(graph.x, edge_index, self.signature.values)
        self.dataset, self.split_name, self.split_hash = data.name, split.name, split.hash
        self.in_channels = int(graph.x.size(1))

    def losses(self, network: Network, epoch: int) -> Iterator[Tensor]:
        """Yield the one loss of an epoch, with negatives of its own, Eq. (15)."""
        yield self._loss(network, self.split.train, self.split.training_negatives(epoch))[0]

    def evaluate(self, network: Network, part: Part) -> Scores:
        """Return ROC-AUC, average precision, Hits@K, MRR and loss on the part's pairs."""
        split = self.split
        pairs = (split.validation, split.validation_negatives)
        if part == "test":
            pairs = (split.test, split.test_negatives)
        loss, positive, negative = self._loss(network, *pairs)
        return Scores(link_metrics(positive, negative), loss.item())

    def _loss(
        self, network: Network, positive: Tensor, negative: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = network(self.inputs, torch.cat([positive, negative], dim=1))
        yes, no = logits[: positive.size(1)], logits[positive.size(1) :]
        return link_loss(yes, no), yes, no


class GraphTask(Task):
    """Graph classification in batches of graphs.

    Args:
        data: The graphs.
        split: Which graphs train, validate and test.
        metric: ``"accuracy"``, or ``"roc_auc"`` for two classes.
        batch_size: Graphs per optimiser step.
        seed: Seed of the order in which graphs are seen; each epoch has its own order.
        signature: How to compute the structural signatures.
    """

    data: GraphSet
    split: IndexSplit
    kind = "graph"

    def __init__(
        self,
        data: GraphSet,
        split: IndexSplit,
        *,
        metric: Literal["accuracy", "roc_auc"] = "accuracy",
        batch_size: int = 64,
        seed: int = 0,
        signature: SignatureSettings | None = None,
    ) -> None:
        require_positive("batch_size", batch_size)
        if metric == "roc_auc" and data.num_classes != 2:
            raise DataError(
                f"Expected two classes for metric 'roc_auc' (got {data.num_classes}). Use "
                "'accuracy'."
            )
        self.data, self.split, self.metric = data, split, metric
        self.batch_size, self.seed = batch_size, seed
        self.dataset, self.split_name, self.split_hash = data.name, split.name, split.hash
        self.in_channels, self.num_classes = int(data.graphs[0].x.size(1)), data.num_classes
        self.signature, self._graphs = sign_graphs(data.graphs, signature)

    def record(self) -> dict[str, Any]:
        """Return batch size and the seed of the order."""
        return {"batch_size": self.batch_size, "order_seed": self.seed}

    def losses(self, network: Network, epoch: int) -> Iterator[Tensor]:
        """Yield the loss of each batch, Eq. (14), in an order that depends on seed and epoch."""
        order = raw_permutation(raw_stream(self.seed, epoch), len(self.split.train))
        for inputs, labels in self._batches(self.split.train[torch.from_numpy(order)]):
            yield graph_loss(network(inputs), labels)

    def evaluate(self, network: Network, part: Part) -> Scores:
        """Return accuracy (and ROC-AUC for two classes) and loss on the part's graphs."""
        chosen = self.split.validation if part == "validation" else self.split.test
        pairs = [(network(inputs), labels) for inputs, labels in self._batches(chosen)]
        logits, labels = (torch.cat(values) for values in zip(*pairs, strict=True))
        metrics = {"accuracy": accuracy(logits, labels)}
        if self.num_classes == 2:
            metrics["roc_auc"] = roc_auc(logits[:, 1] - logits[:, 0], labels)
        return Scores(metrics, graph_loss(logits, labels).item())

    def _batches(self, chosen: Tensor) -> Iterator[tuple[GraphInputs, Tensor]]:
        for piece in chosen.split(self.batch_size):
            batch = Batch.from_data_list([self._graphs[int(i)] for i in piece])
            yield batch_inputs(batch), batch.y


def sign_graphs(
    graphs: Sequence[Data], settings: SignatureSettings | None = None
) -> tuple[StructuralSignature, list[Data]]:
    """Return the signatures of all graphs, one after another, and each graph with its own."""
    graphs = list(graphs)  # a packed set makes each graph anew whenever it is asked for
    sizes = torch.tensor([graph.num_nodes for graph in graphs])
    offsets = sizes.cumsum(0) - sizes
    edges = [graph.edge_index + o for graph, o in zip(graphs, offsets, strict=True)]
    signature = kept_signature(
        torch.cat(edges, dim=1),
        int(sizes.sum()),
        settings,
        batch=torch.repeat_interleave(torch.arange(len(sizes)), sizes),
    )
    own = signature.values.split(sizes.tolist())
    signed = [
        Data(x=graph.x, edge_index=graph.edge_index, y=graph.y, signature=values)
        for graph, values in zip(graphs, own, strict=True)
    ]
    return signature, signed


def batch_inputs(batch: Batch) -> GraphInputs:
    """Return a PyG batch with signatures as the encoders want it."""
    return GraphInputs.build(
        batch.x, batch.edge_index, batch.signature, batch.batch, batch.num_graphs
    )

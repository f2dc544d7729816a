"""The three tasks behind one interface: losses to step on, and scores of a held-out part.

A task knows its data, its split and its protocol (60/20/20 of nodes, 80/5/15 of edges, folds of
graphs); it knows nothing of the model beyond :class:`~geof.training.network.Network`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from geof.data.batching import NeighbourBatch, NeighbourSampler, PackedGraphs, select_rows
from geof.data.catalogue import CATALOGUE
from geof.data.graph_sets import scaffold_split
from geof.data.link_splits import LinkSplit, check_no_leak, random_link_split
from geof.data.own_splits import own_split
from geof.data.records import (
    EdgeSizes,
    GraphSet,
    NodeGraph,
    carried_by,
    carried_on,
    undirected_edges,
)
from geof.data.sources import SignatureConfig, cached_signature
from geof.data.splits import (
    DatasetIdentity,
    GraphSplit,
    IndexSplit,
    NodeSplit,
    random_node_split,
    stratified_folds,
)
from geof.data.targets import labelled
from geof.draws import pair_numbers, raw_permutation, raw_stream
from geof.errors import ConfigError, DataError
from geof.methods.interface import (
    Encoding,
    GraphInputs,
    HasPretext,
    InputShape,
    TaskKind,
    TrainingView,
)
from geof.signature import StructuralSignature
from geof.training.config import RunConfig
from geof.training.metrics import link_loss, link_metric, link_metrics, metric_named, roc_auc
from geof.training.network import Network
from geof.training.objective import DEFAULT_METRIC, Objective, require_metric
from geof.training.ranks import ALONE, Ranks, Share, ranks_of
from geof.training.stages import TrainingConfig

Part: TypeAlias = Literal["validation", "test"]

SEEN_BY_TASKS = (
    *("batch_size", "fanouts", "hidden_edges", "edge_dropout"),
    *("metric", "class_weights"),
)
"""The training options a task reads: runs that agree in them can share one, wherever it is."""

_DROPPED = 2  # the random stream of dropped edges; the sampler has 0 and 1


@dataclass(frozen=True)
class Scores:
    """How a network does on a held-out part.

    Attributes:
        metrics: By name, in percent but for those of numbers; the task's own is among them.
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
        shape: Sizes a method may ask for.
        signature: The structural signatures and how they were made.
        objective: What outputs mean; ``None`` for links.
        asked_metric: The metric, where it is not the task's default.
        seed: Of orders, samples and dropped edges.
        edge_dropout: Share of the edges a training step does not see.
        steps_per_epoch: How many optimiser steps an epoch takes.
        device: Where steps and scores are computed. Splits, labels and samplers stay on the CPU.
    """

    data: NodeGraph | GraphSet
    split: IndexSplit | LinkSplit
    kind: TaskKind
    metric: str
    dataset: str
    split_name: str
    split_hash: str
    shape: InputShape
    signature: StructuralSignature
    objective: Objective | None = None
    asked_metric: str | None = None
    seed: int = 0
    edge_dropout: float | None = None
    steps_per_epoch: int = 1
    device: torch.device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        """Move, once, what steps and scores read to a device."""
        if device != self.device:
            self.device = device
            self._move()

    @abstractmethod
    def _move(self) -> None:
        """Put features, edges, signatures and targets on the device."""

    def _there(self, rows: Tensor) -> Tensor:
        """Return rows of the split on the device, moved the first time they are asked for."""
        if rows.device == self.device:
            return rows
        held = self.__dict__.setdefault("_moved", {})
        key = id(rows), str(self.device)
        if key not in held:
            held[key] = rows, rows.to(self.device)  # both: the number must not be given again
        moved: Tensor = held[key][1]
        return moved

    @property
    def divides(self) -> bool:
        """Whether several processes can divide a step among them."""
        return False

    def record(self) -> dict[str, Any]:
        """Return what else of the protocol a run must remember."""
        return {} if self.asked_metric is None else {"metric": self.asked_metric}

    def save_split(self, path: Path) -> None:
        """Write the split to a file that fits this data only."""
        self.split.save(path, DatasetIdentity.of(self.data))

    @abstractmethod
    def losses(self, network: Network, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield the loss of each optimiser step of an epoch, but for the first ``start``."""

    @abstractmethod
    def training_inputs(self, epoch: int) -> Iterator[GraphInputs]:
        """Yield what each optimiser step of an epoch sees of the training data."""

    def pretext_losses(self, network: Network, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield the method's pretext loss of each step of an epoch, from inputs without labels."""
        encoder = network.encoder
        assert isinstance(encoder, HasPretext)
        for inputs in islice(self.training_inputs(epoch), start, None):
            with network.autocast():
                loss = encoder.pretext_loss(inputs)
            yield loss

    def thinned(
        self, inputs: GraphInputs, epoch: int, number: int = 0, names: Tensor | None = None
    ) -> GraphInputs:
        """Return what a step sees of its inputs: some edges are dropped, if that is wanted.

        Args:
            inputs: What there is.
            epoch: The epoch.
            number: Of the step in it, from 0.
            names: The nodes' numbers in the step's whole batch, if these inputs are a part of it.
        """
        if self.edge_dropout is None:
            return inputs
        edges = inputs.edge_index.cpu()
        first, second = (edges if names is None else names[edges]).numpy()
        draws = pair_numbers(first, second, self.seed, _DROPPED, epoch, number)
        kept = torch.from_numpy(draws >= self.edge_dropout)
        return inputs.with_edges(kept.to(inputs.edge_index.device))

    @abstractmethod
    def view(self, network: Network, epoch: int) -> TrainingView:
        """Return what a method may look at after an epoch."""

    @abstractmethod
    def evaluate(self, network: Network, part: Part, *, brief: bool = False) -> Scores:
        """Score a held-out part, or with ``brief`` by the task's own metric alone."""


class NodeTask(Task):
    """Classes or numbers of nodes of one graph, full batch or on sampled neighbourhoods.

    Args:
        data: The graph.
        split: Which nodes train, validate and test; all labelled.
        signature: How to compute the structural signatures.
        training: What a step sees: batch size, fanouts, hidden edges.
        seed: Seed of the samples.
    """

    data: NodeGraph
    split: IndexSplit
    kind = "node"
    objective: Objective

    def __init__(
        self,
        data: NodeGraph,
        split: IndexSplit,
        *,
        signature: SignatureConfig | None = None,
        training: TrainingConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.data = data
        self.split = split
        self.seed = seed
        self.edge_dropout = None if training is None else training.edge_dropout
        graph = data.graph
        chosen = torch.cat([split.train, split.validation, split.test])
        if int(chosen.max()) >= graph.num_nodes or not bool(labelled(graph.y[chosen]).all()):
            raise DataError(
                f"Expected every node of split '{split.name}' to be a labelled node of "
                f"'{data.name}'. Make the split from the labelled nodes alone."
            )
        weights = None if training is None else training.class_weights
        self.objective = Objective.fit(data, graph.y, split.train, weights)
        self.asked_metric = None if training is None else training.metric
        self.metric = self.objective.metric(self.asked_metric).name
        self.aims = self.objective.aims(graph.y)
        self.signature = node_signature(data, signature)
        self.inputs = GraphInputs.build(
            graph.x, graph.edge_index, self.signature.values, **carried_by(data)
        )
        self.dataset, self.split_name, self.split_hash = data.name, split.name, split.hash
        self.shape = _shape_of(self.inputs, data.num_outputs, data.edge_sizes)
        self.sampling = _Sampling.wanted(self.inputs, training, seed, nodes=split.train)
        self.steps_per_epoch = _steps(self.sampling, len(split.train))

    def _move(self) -> None:
        self.inputs, self.aims = self.inputs.to(self.device), self.aims.to(self.device)
        if self.sampling is not None:
            self.sampling = replace(self.sampling, whole=self.inputs)

    @property
    def divides(self) -> bool:
        """Whether neighbourhoods are sampled."""
        return self.sampling is not None

    def record(self) -> dict[str, Any]:
        """Return how neighbourhoods are sampled, and the metric if it was asked for."""
        sampling = {} if self.sampling is None else self.sampling.record()
        return {**sampling, **super().record()}

    def losses(self, network: Network, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield the one loss of a full-batch epoch, Eq. (13), or one per sampled batch."""
        ranks = ranks_of(network)
        for inputs, rows, nodes, share in islice(self._steps(epoch, ranks), start, None):
            aims = self.aims[rows][nodes]
            loss = partial(self._loss, aims=aims, nodes=nodes)
            yield ranks.loss(network, loss, share, partial(self.objective.mass, aims), inputs)

    def _loss(self, outputs: Tensor, aims: Tensor, nodes: Tensor) -> Tensor:
        return self.objective.loss(outputs[nodes], aims)

    def training_inputs(self, epoch: int) -> Iterator[GraphInputs]:
        """Yield the whole graph, or the samples."""
        return (inputs for inputs, *_ in self._steps(epoch))

    def view(self, network: Network, epoch: int) -> TrainingView:
        """Return the graph (or the epoch's first sample) and the accuracy on training nodes."""
        inputs, rows, nodes, _ = next(self._steps(epoch))
        known = rows if isinstance(rows, slice) else rows.cpu()
        y = self.data.graph.y[known][nodes.cpu()]

        def score(encoding: Encoding) -> float:
            return self.objective.share(_read(network, encoding, inputs)[nodes].cpu(), y)

        return TrainingView(epoch, inputs, score)

    def _steps(
        self, epoch: int, ranks: Ranks = ALONE
    ) -> Iterator[tuple[GraphInputs, Tensor | slice, Tensor, Share]]:
        """Yield inputs, which of the graph's nodes they are, and which of those train."""
        train = self.split.train
        if self.sampling is None:
            share = ranks.share(len(train))
            yield self.thinned(self.inputs, epoch), slice(None), self._there(train), share
            return
        for number, whole in enumerate(self.sampling.sampler.batches(epoch, workers=1)):
            ranks.begin(self.seed, epoch, number)
            share = ranks.share(whole.batch_size)
            drawn, share = ranks.around(whole, share.of(torch.arange(whole.batch_size)), share)
            batch = drawn.to(self.device)
            inputs = self.thinned(self.sampling.inputs(batch), epoch, number, share.names)
            yield inputs, batch.n_id, torch.arange(batch.batch_size, device=self.device), share

    def evaluate(self, network: Network, part: Part, *, brief: bool = False) -> Scores:
        """Return metrics and loss on the part's nodes."""
        nodes = self.split.validation if part == "validation" else self.split.test
        rows, objective = self._there(nodes), self.objective
        outputs = network(self.inputs)[rows]
        more = () if brief else objective.reported(self.metric)
        metrics = objective.metrics(outputs.cpu(), self.data.graph.y[nodes], self.metric, more)
        return Scores(metrics, objective.loss(outputs, self.aims[rows]).item())


class LinkTask(Task):
    """Link prediction on one graph: messages and signatures from training edges only.

    The leak check runs here, before anything can be trained.

    Args:
        data: The graph.
        split: Which pairs train, validate and test.
        signature: How to compute the structural signatures.
        training: What a step sees: batch size, fanouts, hidden edges.
        seed: Seed of the samples.
    """

    data: NodeGraph
    split: LinkSplit
    kind = "link"
    metric = "roc_auc"

    def __init__(
        self,
        data: NodeGraph,
        split: LinkSplit,
        *,
        signature: SignatureConfig | None = None,
        training: TrainingConfig | None = None,
        seed: int = 0,
    ) -> None:
        if data.directed:
            raise ConfigError(
                "Expected edges without direction for the link task (got '--directed'): a link "
                "joins two nodes either way. Leave '--directed' out."
            )
        self.data = data
        self.split = split
        self.asked_metric = None if training is None else training.metric
        metric = metric_named(self.asked_metric or self.metric)
        require_metric(metric, "link")
        self.metric = metric.name
        graph, edge_index = data.graph, split.message_edges
        check_no_leak(split, edge_index, edge_index, graph.edge_index)
        self.leak_checked = True
        self.signature = cached_signature(edge_index, graph.num_nodes, signature)
        self.inputs = GraphInputs.build(
            graph.x, edge_index, self.signature.values, **carried_by(data, edge_index)
        )
        self.dataset, self.split_name, self.split_hash = data.name, split.name, split.hash
        self.shape = _shape_of(self.inputs, 2, data.edge_sizes)
        self.seed = seed
        self.hidden_edges = None if training is None else training.hidden_edges
        self.edge_dropout = None if training is None else training.edge_dropout
        self.sampling = _Sampling.wanted(self.inputs, training, seed)
        self.steps_per_epoch = _steps(self.sampling, split.train.size(1))

    def _move(self) -> None:
        self.inputs = self.inputs.to(self.device)
        if self.sampling is not None:
            self.sampling = replace(self.sampling, whole=self.inputs)

    @property
    def divides(self) -> bool:
        """Whether neighbourhoods are sampled."""
        return self.sampling is not None

    def record(self) -> dict[str, Any]:
        """Return that the leak check ran, and how edges and neighbourhoods are drawn."""
        sampling = {} if self.sampling is None else self.sampling.record()
        hidden = {} if self.hidden_edges is None else {"hidden_edges": self.hidden_edges}
        return {"leak_checked": self.leak_checked, **sampling, **hidden, **super().record()}

    def losses(self, network: Network, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield the losses of an epoch, with negatives of its own, Eq. (15)."""
        ranks = ranks_of(network)
        for inputs, pairs, share in islice(self._steps(epoch, ranks), start, None):
            yield ranks.loss(network, _halves_loss, share, partial(len, pairs[0]), inputs, pairs)

    def training_inputs(self, epoch: int) -> Iterator[GraphInputs]:
        """Yield the training graph, what is left of it without hidden edges, or the samples."""
        return (inputs for inputs, *_ in self._steps(epoch))

    def view(self, network: Network, epoch: int) -> TrainingView:
        """Return what the epoch's first step saw and the ROC-AUC on its pairs."""
        inputs, pairs, _ = next(self._steps(epoch))

        def score(encoding: Encoding) -> float:
            logits = _read(network, encoding, inputs, pairs).cpu()
            return roc_auc(logits, torch.arange(len(logits)) < len(logits) // 2)

        return TrainingView(epoch, inputs, score)

    def _steps(
        self, epoch: int, ranks: Ranks = ALONE
    ) -> Iterator[tuple[GraphInputs, Tensor, Share]]:
        """Yield inputs and pairs, positive ones first, then as many negative ones."""
        positive, negative = self.split.train, self.split.training_negatives(epoch)
        whole = ranks.share(positive.size(1))
        if self.hidden_edges is None and self.sampling is None:
            pairs = torch.cat([self._there(positive), negative.to(self.device)], dim=1)
            yield self.thinned(self.inputs, epoch), pairs, whole
            return
        order = torch.from_numpy(raw_permutation(raw_stream(self.seed, epoch), positive.size(1)))
        if self.hidden_edges is not None:
            # What is asked for is not among the edges this epoch's messages run along.
            count = max(round(self.hidden_edges * len(order)), 1)
            seen, chosen = positive[:, order[count:]], order[:count]
            both = torch.cat([seen, seen.flip(0)], dim=1)
            carried = carried_on(carried_by(self.data, both), self.device)
            inputs = GraphInputs.build(
                self.inputs.x, both.to(self.device), self.inputs.signature, **carried
            )
            pairs = torch.cat([positive[:, chosen], negative[:, chosen]], dim=1)
            yield self.thinned(inputs, epoch), pairs.to(self.device), whole
            return
        assert self.sampling is not None
        for number, chosen in enumerate(order.split(self.sampling.sampler.batch_size)):
            ranks.begin(self.seed, epoch, number)
            pairs = torch.cat([positive[:, chosen], negative[:, chosen]], dim=1)
            nodes, local = pairs.unique(return_inverse=True)
            drawn = self.sampling.sampler.sample(nodes, epoch=epoch, number=number)
            share = ranks.share(len(chosen))
            if share.total != share.stop - share.start:
                own = torch.cat([share.of(half) for half in local.chunk(2, dim=1)], dim=1)
                seeds, local = own.unique(return_inverse=True)
                drawn, share = ranks.around(drawn, seeds, share)
            batch = drawn.to(self.device)
            inputs = self.thinned(self.sampling.inputs(batch), epoch, number, share.names)
            yield inputs, local.to(self.device), share

    def evaluate(self, network: Network, part: Part, *, brief: bool = False) -> Scores:
        """Return ROC-AUC, average precision, Hits@K, MRR and loss on the part's pairs."""
        split = self.split
        pairs = (split.validation, split.validation_negatives)
        if part == "test":
            pairs = (split.test, split.test_negatives)
        logits = network(self.inputs, torch.cat([self._there(p) for p in pairs], dim=1)).cpu()
        positive, negative = logits[: pairs[0].size(1)], logits[pairs[0].size(1) :]
        metrics = {} if brief else link_metrics(positive, negative)
        if self.metric not in metrics:
            metrics[self.metric] = link_metric(self.metric, positive, negative)
        return Scores(metrics, link_loss(positive, negative).item())


class GraphTask(Task):
    """Classes or numbers of graphs, in batches of graphs.

    Args:
        data: The graphs.
        split: Which graphs train, validate and test.
        metric: What chooses the epoch unless ``training.metric`` says otherwise (default: that of
            the kind of targets).
        training: What a step sees: batch size, fanouts, hidden edges.
        seed: Seed of the order in which graphs are seen; each epoch has its own order.
        signature: How to compute the structural signatures.
    """

    data: GraphSet
    split: IndexSplit
    kind = "graph"
    objective: Objective

    def __init__(
        self,
        data: GraphSet,
        split: IndexSplit,
        *,
        metric: str | None = None,
        training: TrainingConfig | None = None,
        seed: int = 0,
        signature: SignatureConfig | None = None,
    ) -> None:
        training = training or TrainingConfig()
        if training.fanouts is not None:
            raise ConfigError(
                "Expected no 'fanouts' for graph classification, whose batches are whole graphs "
                f"(got {list(training.fanouts)})."
            )
        self.data, self.split = data, split
        self.labels = torch.cat([graph_label(graph.y) for graph in data.graphs])
        self.objective = Objective.fit(data, self.labels, split.train, training.class_weights)
        self.asked_metric = training.metric
        self.metric = self.objective.metric(self.asked_metric, metric).name
        self.aims = self.objective.aims(self.labels)
        self.batch_size, self.seed = training.batch_size or GRAPHS_PER_STEP, seed
        self.edge_dropout = training.edge_dropout
        self.dataset, self.split_name, self.split_hash = data.name, split.name, split.hash
        self._graphs = PackedGraphs.pack(data.graphs, edges=data.edge_sizes is not None)
        self.signature = self._graphs.sign(signature, directed=data.directed)
        self._signature = self.signature.values
        widths = int(data.graphs[0].x.size(1)), int(self.signature.values.size(1))
        self.shape = InputShape(*widths, data.num_outputs, **_edge_shape(data.edge_sizes))
        self.steps_per_epoch = len(self._pieces(1))

    def _move(self) -> None:
        self._graphs = self._graphs.to(self.device)
        self._signature, self.aims = self._signature.to(self.device), self.aims.to(self.device)

    @property
    def divides(self) -> bool:
        """Yes: graphs are apart from each other."""
        return True

    def record(self) -> dict[str, Any]:
        """Return batch size and the seed of the order, and the metric if it was asked for."""
        return {"batch_size": self.batch_size, "order_seed": self.seed, **super().record()}

    def losses(self, network: Network, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield the loss of each batch, Eq. (14), in an order that depends on seed and epoch."""
        ranks = ranks_of(network)
        for inputs, own, share in islice(self._steps(epoch, ranks), start, None):
            aims = self.aims[own.to(self.device)]
            loss = partial(self.objective.loss, aims=aims)
            yield ranks.loss(network, loss, share, partial(self.objective.mass, aims), inputs)

    def training_inputs(self, epoch: int) -> Iterator[GraphInputs]:
        """Yield the batches."""
        return (inputs for inputs, *_ in self._steps(epoch))

    def _steps(
        self, epoch: int, ranks: Ranks = ALONE
    ) -> Iterator[tuple[GraphInputs, Tensor, Share]]:
        """Yield inputs and the graphs they are."""
        for number, piece in enumerate(self._pieces(epoch)):
            ranks.begin(self.seed, epoch, number)
            share = ranks.share(len(piece))
            own = share.of(piece)
            inputs = self.inputs_of(own)
            names = None
            if share.start and self.edge_dropout is not None:
                sizes = self._graphs.first_node.cpu().diff()
                names = sizes[piece[: share.start]].sum() + torch.arange(len(inputs.x))
            yield self.thinned(inputs, epoch, number, names), own, share

    def view(self, network: Network, epoch: int) -> TrainingView:
        """Return the epoch's first batch and the accuracy on it."""
        piece = self._pieces(epoch)[0]
        inputs = self.inputs_of(piece)

        def score(encoding: Encoding) -> float:
            outputs = _read(network, encoding, inputs).cpu()
            return self.objective.share(outputs, self.labels[piece])

        return TrainingView(epoch, inputs, score)

    def _pieces(self, epoch: int) -> list[Tensor]:
        """Return which graphs each step of an epoch sees."""
        order = raw_permutation(raw_stream(self.seed, epoch), len(self.split.train))
        pieces = list(self.split.train[torch.from_numpy(order)].split(self.batch_size))
        if len(pieces) > 1 and len(pieces[-1]) == 1 < self.batch_size:
            # One graph alone has no batch statistics.
            pieces[-2:] = [torch.cat(pieces[-2:])]
        return pieces

    def evaluate(self, network: Network, part: Part, *, brief: bool = False) -> Scores:
        """Return metrics (ROC-AUC among them for two classes) and loss on the part's graphs."""
        chosen = self.split.validation if part == "validation" else self.split.test
        pieces = chosen.split(self.batch_size)
        logits = ranks_of(network).each(lambda piece: network(self.inputs_of(piece)), pieces)
        objective = self.objective
        two = objective.kind == "classes" and len(objective.names) == 2
        more = objective.reported(*(["roc_auc"] if two else []), self.metric)
        labels, wanted = self.labels[chosen], () if brief else more
        metrics = objective.metrics(logits.cpu(), labels, self.metric, wanted)
        return Scores(metrics, objective.loss(logits, self.aims[self._there(chosen)]).item())

    def inputs_of(self, chosen: Tensor) -> GraphInputs:
        """Return graphs of the set side by side."""
        return self._graphs.batch(chosen, self._signature)


def build_task(config: RunConfig, data: NodeGraph | GraphSet) -> Task:
    """Return the task of a run on the split its config names.

    Raises:
        ConfigError: If the data cannot serve the task or there is no such split.
    """
    if (config.task == "graph") != isinstance(data, GraphSet):
        own = "graph" if isinstance(data, GraphSet) else "node"
        raise ConfigError(
            f"Expected '--task' to fit the data, {own} or link for one graph and graph for a set "
            f"of graphs (got {config.task!r} for '{data.name}')."
        )
    training, seed, signature = config.training, config.seed, config.signature
    if isinstance(data, GraphSet):
        split = _graph_split(config, data)
        metric = metric_of(data)
        return GraphTask(
            data, split, metric=metric, training=training, seed=seed, signature=signature
        )
    graph = data.graph
    if config.task == "link":
        links = random_link_split(graph.edge_index, graph.num_nodes, _number(config))
        return LinkTask(data, links, signature=signature, training=training, seed=seed)
    if config.split.isdecimal():
        nodes = random_node_split(graph.num_nodes, int(config.split), nodes=labelled(graph.y))
    else:
        nodes = own_split(config.split, data, labelled(graph.y), NodeSplit, NODE_SHARES)
    return NodeTask(data, nodes, signature=signature, training=training, seed=seed)


def metric_of(data: GraphSet) -> str:
    """Return the metric of a set of graphs: a benchmark's own, otherwise that of its targets."""
    ranked = data.name in CATALOGUE and CATALOGUE[data.name].metrics == ("ROC-AUC",)
    return "roc_auc" if ranked else DEFAULT_METRIC[data.targets.kind]


def graph_label(y: Tensor) -> Tensor:
    """Return the label of one graph as a row: ``(1,)``, or ``(1, T)`` for targets."""
    return y.reshape(1, -1) if y.is_floating_point() else y.reshape(-1)[:1]


def node_signature(data: NodeGraph, config: SignatureConfig | None = None) -> StructuralSignature:
    """Return the signatures of a graph's nodes; direction plays no part in them."""
    graph, edges = data.graph, data.graph.edge_index
    if data.directed:
        edges = undirected_edges(edges, graph.num_nodes)[0]
    return cached_signature(edges, graph.num_nodes, config)


def _number(config: RunConfig) -> int:
    if not config.split.isdecimal():
        raise ConfigError(
            f"Expected '--split' to be a number from 0 for the link task (got {config.split!r})."
        )
    return int(config.split)


def _graph_split(config: RunConfig, data: GraphSet) -> GraphSplit:
    """Return a fold of the labelled graphs, stratified by class, or a split of the user's own."""
    labels = torch.cat([graph_label(graph.y) for graph in data.graphs])
    if config.split == "scaffold" and data.name == "ogbg-molhiv":
        parts = scaffold_split(config.data.data_root)
        train, validation, test = parts["train"], parts["valid"], parts["test"]
        return GraphSplit.fixed(
            train, validation, test, size=len(data.graphs), name="OGB scaffold split"
        )
    if not config.split.isdecimal():
        return own_split(config.split, data, labelled(labels), GraphSplit, GRAPH_SHARES)
    chosen, number = labelled(labels).nonzero().flatten(), int(config.split)
    classes = data.targets.kind == "classes"
    strata = labels[chosen] if classes else torch.zeros(len(chosen), dtype=torch.long)
    folds = stratified_folds(strata, 0, config.folds)
    if number >= len(folds):
        raise ConfigError(f"Expected '--split' from 0 to {len(folds) - 1} (got {number}).")
    fold = folds[number]
    name = fold.name if classes else fold.name.replace("stratified", "random")
    return GraphSplit(chosen[fold.train], chosen[fold.validation], chosen[fold.test], name)


def _edge_shape(sizes: EdgeSizes | None) -> dict[str, Any]:
    """Return what of an :class:`InputShape` is about edges."""
    if sizes is None:
        return {}
    return {"edge_categories": sizes.categories, "edge_channels": sizes.channels}


def _shape_of(inputs: GraphInputs, num_classes: int, sizes: EdgeSizes | None) -> InputShape:
    """Return the sizes of the one graph of a task."""
    return InputShape(
        in_channels=int(inputs.x.size(1)),
        signature_channels=int(inputs.signature.size(1)),
        num_classes=num_classes,
        num_nodes=int(inputs.x.size(0)),
        num_edges=int(inputs.edge_index.size(1)),
        **_edge_shape(sizes),
    )


def _halves_loss(logits: Tensor) -> Tensor:
    """Return the loss of pairs whose first half is positive and whose second is not."""
    positive, negative = logits.chunk(2)
    return link_loss(positive, negative)


@torch.no_grad()
def _read(
    network: Network, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None = None
) -> Tensor:
    """Return the logits of an encoding, in evaluation mode."""
    training = network.training
    network.eval()
    try:
        return network.read(encoding, inputs, pairs).prediction
    finally:
        network.train(training)


NODE_SHARES = (0.6, 0.2)
GRAPH_SHARES = (0.8, 0.1)
"""Of training and validation, as the numbered splits have them."""

GRAPHS_PER_STEP = 64
"""Graphs per optimiser step unless told otherwise."""


@dataclass(frozen=True)
class _Sampling:
    """Batches of sampled neighbourhoods from one graph."""

    whole: GraphInputs
    sampler: NeighbourSampler

    @classmethod
    def wanted(
        cls,
        whole: GraphInputs,
        training: TrainingConfig | None,
        seed: int,
        nodes: Tensor | None = None,
    ) -> _Sampling | None:
        """Return the sampling that settings ask for, ``None`` for the whole graph at once."""
        if training is None or training.batch_size is None:
            return None
        if training.fanouts is None:
            raise ConfigError(
                "Expected 'fanouts' beside 'batch_size' for a single graph, such as "
                "fanouts=[10,10], or neither (got none)."
            )
        sampler = NeighbourSampler(
            whole.edge_index,
            whole.x.size(0),
            training.fanouts,
            batch_size=training.batch_size,
            seed=seed,
            nodes=nodes,
            edge_ids=whole.edge_weight is not None or whole.edge_attr is not None,
        )
        return cls(whole, sampler)

    def record(self) -> dict[str, Any]:
        """Return what a run must remember."""
        sampler = self.sampler
        return {
            "batch_size": sampler.batch_size,
            "fanouts": list(sampler.fanouts),
            "order_seed": sampler.seed,
        }

    def inputs(self, batch: NeighbourBatch) -> GraphInputs:
        """Return a sampled batch as the encoders want it."""
        whole = self.whole
        weight, attributes = (
            None if values is None or batch.e_id is None else values[batch.e_id]
            for values in (whole.edge_weight, whole.edge_attr)
        )
        return GraphInputs.build(
            select_rows(whole.x, batch.n_id),
            batch.edge_index,
            whole.signature[batch.n_id],
            edge_weight=weight,
            edge_attr=attributes,
        )


def _steps(sampling: _Sampling | None, examples: int) -> int:
    """Return how many batches an epoch has."""
    return 1 if sampling is None else math.ceil(examples / sampling.sampler.batch_size)

"""What a method is to the engine.

Every method is an encoder: a module with ``out_channels`` whose ``forward`` takes
:class:`~geof.methods.interface.GraphInputs` and returns node states ``(n, out_channels)`` in a
Euclidean chart. That is enough to train it on all three tasks with the shared readouts. A method
that has more of its own says so by what it returns and by the methods it has:

- a loss of its own: return an :class:`Encoding` with a ``penalty``;
- a decoder of its own: register a readout, which gets the whole :class:`Encoding` (whatever the
  encoder put into ``context`` too) and may return :class:`Outputs` with several graded terms;
- a pre-training stage: :class:`HasPretext`;
- something to do between epochs: :class:`HasEpochEnd`. What it learns there belongs into buffers,
  so that a resumed run goes on with the same bits.

Arguments a method needs for its construction it names in its signature, see :data:`GIVEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from geof.kernels import Neighbourhoods
from geof.kernels.neighbourhood import Cache, T

TaskKind: TypeAlias = Literal["node", "link", "graph"]


@dataclass(frozen=True)
class InputShape:
    """Sizes the engine tells a method that asks for them by name.

    Attributes:
        in_channels: Width of the features.
        signature_channels: Width of the signatures.
        num_classes: Number of classes, or of targets to predict; not read for links.
        num_nodes: Of the one graph of a node or link task, ``None`` for sets of graphs.
        num_edges: Columns of the ``edge_index`` its messages run along, likewise.
        edge_categories: Sizes of the first columns of ``edge_attr``, which hold codes.
        edge_channels: How many columns of numbers follow.
    """

    in_channels: int
    signature_channels: int
    num_classes: int
    num_nodes: int | None = None
    num_edges: int | None = None
    edge_categories: tuple[int, ...] = ()
    edge_channels: int = 0


@dataclass(frozen=True)
class DataFacts:
    """What a method may choose its options by: features and sizes, no label.

    Attributes:
        task: Node, link or graph.
        words: Whether features are words of a text: non-negative, most of a row zero.
        constant: Whether all nodes have the same features.
        channels: Width of the features.
        graphs: How many.
        nodes: Of all graphs together.
        edges: Undirected, likewise.
        examples: What there is to learn from: labelled nodes, edges, or labelled graphs.
        variance: Of the columns of the features, their mean; of one graph alone.
    """

    task: TaskKind
    words: bool
    constant: bool
    channels: int
    graphs: int
    nodes: int
    edges: int
    examples: int
    variance: float = 1.0


class Choice(NamedTuple):
    """An option chosen by the data.

    Attributes:
        key: Its name, such as ``options.dropout``.
        value: What was chosen.
        reason: Why, in terms of the data.
    """

    key: str
    value: Any
    reason: str


GIVEN = (*(field.name for field in fields(InputShape)), "task", "feature_channels")
"""What the engine gives a method or a readout that asks for it by name; all other arguments are
options. A readout's ``in_channels`` are the states', its ``feature_channels`` the features'."""


@dataclass(frozen=True)
class GraphInputs:
    """One graph, or a batch of graphs side by side.

    Attributes:
        x: ``(n, F)`` features, dense or sparse CSR.
        edge_index: ``(2, E)``, no self-loops; both directions of every edge, unless the user asked
            for directed ones: messages run from the first row to the second.
        edges: The same, closed and sorted for GeoF.
        signature: ``(n, q)``.
        batch: ``(n,)``, the graph of each node, or ``None`` for a single graph.
        num_graphs: How many graphs.
        caches: One per graph, for what a method derives from its edges and features once; they live
            as long as the data do, whatever batches the graph appears in.
        edge_weight: ``(E,)`` in the order of ``edge_index``, at least 0; ``None`` for none.
        edge_attr: ``(E, columns)`` likewise: codes of categories, then numbers.
    """

    x: Tensor
    edge_index: Tensor
    edges: Neighbourhoods
    signature: Tensor
    batch: Tensor | None = None
    num_graphs: int = 1
    caches: tuple[Cache, ...] = ()
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None

    @classmethod
    def build(
        cls,
        x: Tensor,
        edge_index: Tensor,
        signature: Tensor,
        batch: Tensor | None = None,
        num_graphs: int = 1,
        caches: Sequence[Cache] | None = None,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edges: Neighbourhoods | None = None,
    ) -> GraphInputs:
        """Prepare the neighbourhoods, unless they are given as ``edges``.

        Signatures and edge weights take the features' dtype.
        """
        if edges is None:
            carrying = edge_weight is not None or edge_attr is not None
            edges = Neighbourhoods.from_edge_index(edge_index, x.size(0), origin=carrying)
        if caches is None:
            caches = [Cache() for _ in range(num_graphs)]
        return cls(
            x,
            edge_index,
            edges,
            signature.to(x.dtype),
            batch,
            num_graphs,
            tuple(caches),
            None if edge_weight is None else edge_weight.to(x.dtype),
            edge_attr,
        )

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return what ``build`` made of this graph or batch the first time it was asked for."""
        return self.edges.cached(key, build)

    def to(self, device: torch.device) -> GraphInputs:
        """Return the same on a device; what was derived from it elsewhere is derived anew there."""
        if self.x.device == device and self.edge_index.device == device:
            return self
        batch, weight, attributes = self.batch, self.edge_weight, self.edge_attr
        return replace(
            self,
            x=self.x.to(device),
            edge_index=self.edge_index.to(device),
            edges=self.edges.to(device),
            signature=self.signature.to(device),
            batch=None if batch is None else batch.to(device),
            caches=tuple(Cache() for _ in self.caches),
            edge_weight=None if weight is None else weight.to(device),
            edge_attr=None if attributes is None else attributes.to(device),
        )

    def with_edges(self, kept: Tensor) -> GraphInputs:
        """Return the same nodes with the edges ``kept``, a mask over ``edge_index``, alone."""
        weight, attributes = self.edge_weight, self.edge_attr
        return GraphInputs.build(
            self.x,
            self.edge_index[:, kept],
            self.signature,
            self.batch,
            self.num_graphs,
            edge_weight=None if weight is None else weight[kept],
            edge_attr=None if attributes is None else attributes[kept],
        )


@dataclass(frozen=True)
class Encoding:
    """What an encoder makes of a graph.

    Attributes:
        states: ``(n, out_channels)``, in a Euclidean chart.
        penalty: The method's own loss, a scalar added to the task's; ``None`` for none.
        context: For the method's own readout.
    """

    states: Tensor
    penalty: Tensor | None = None
    context: Any = None

    @classmethod
    def of(cls, value: Tensor | Encoding) -> Encoding:
        """Return an encoding, bare states without penalty and context."""
        return value if isinstance(value, Encoding) else cls(value)


@dataclass(frozen=True)
class Outputs:
    """What a readout makes of an encoding.

    Attributes:
        prediction: The logits that are scored.
        graded: Weights and logits, each of which the task's loss grades; ``None`` grades the
            prediction alone.
        penalty: The method's own loss, a scalar; ``None`` for none.
    """

    prediction: Tensor
    graded: Sequence[tuple[Tensor | float, Tensor]] | None = None
    penalty: Tensor | None = None

    def loss(self, task_loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the weighted sum of the task's loss over all graded logits, and the penalty."""
        if self.graded is None:
            total = task_loss(self.prediction)
        else:
            first, *rest = [weight * task_loss(logits) for weight, logits in self.graded]
            total = sum(rest, start=first)
        return total if self.penalty is None else total + self.penalty


@runtime_checkable
class HasPretext(Protocol):
    """A method that is trained without labels first (``pretraining.epochs``)."""

    def pretext_loss(self, inputs: GraphInputs) -> Tensor:
        """Return the scalar loss of the pretext task; it sees no label."""
        ...


@dataclass(frozen=True)
class TrainingView:
    """What a method may look at between epochs: training data only.

    Attributes:
        epoch: The epoch that has just ended, from 1.
        inputs: The graph with the edges messages run along, or a batch of training graphs.
        score: Returns the training metric in percent that the current readout reaches with an
            encoding of ``inputs``; no gradient, evaluation mode.
    """

    epoch: int
    inputs: GraphInputs
    score: Callable[[Encoding], float]


@runtime_checkable
class HasEpochEnd(Protocol):
    """A method that does something after every epoch of the task's training."""

    def end_epoch(self, view: TrainingView) -> None:
        """Look at the training data and change buffers."""
        ...

"""The entries of equal width and depth, under one training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import global_mean_pool
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.models import GAT, GCN
from torch_geometric.utils import to_torch_csr_tensor

from geof.methods.geof import GeoFEncoder
from geof.methods.interface import GraphInputs
from geof.nn.inputs import SparseLinear, without_csr_warnings
from geof.training.trainer import FUSED
from geof_paper.bench.catalogue import EDGES, Entry
from geof_paper.bench.problems import EDGE_CATEGORIES, SIGNATURE_CHANNELS, Piece, Problem

WIDTH = 64
DEPTH = 2
HEADS = 8
BLOCKS = 8
BLOCK_SIZE = WIDTH // BLOCKS
LEARNING_RATE = 1e-3

Prepare: TypeAlias = Callable[[Piece], tuple[Any, ...]]
"""Makes of a piece what a network is called with."""


def as_edge_index(piece: Piece) -> tuple[Tensor, Tensor]:
    """Return features and edges, as PyG's networks are usually called."""
    return piece.x, piece.edge_index


def as_csr(piece: Piece) -> tuple[Tensor, Tensor]:
    """Return features and the normalised adjacency with self-loops, Kipf and Welling's operator."""
    nodes = piece.x.size(0)
    edge_index, weight = gcn_norm(piece.edge_index, num_nodes=nodes)
    with without_csr_warnings():
        # Undirected graphs: the transpose PyG asks for is the matrix itself.
        return piece.x, to_torch_csr_tensor(edge_index, weight, size=(nodes, nodes))


def as_inputs(piece: Piece) -> tuple[GraphInputs]:
    """Return the piece as methods get it, with closed, sorted neighbourhoods."""
    return (
        GraphInputs.build(piece.x, piece.edge_index, piece.signature, edge_attr=piece.edge_attr),
    )


@dataclass(frozen=True)
class EqualWidth:
    """A network of two layers or steps of width 64, without dropout.

    Attributes:
        module: Returns node states ``(n, WIDTH)``.
        prepare: What it is called with.
    """

    module: nn.Module
    prepare: Prepare

    @classmethod
    def build(cls, entry: Entry, in_channels: int, *, sparse: bool, **options: Any) -> EqualWidth:
        """Return the network of an entry; ``options`` are GeoF's that differ from the bench's."""
        if entry.backend is not None:
            own = {"hidden_channels": WIDTH, "blocks": BLOCKS, "steps": DEPTH, **options}
            carried = EDGE_CATEGORIES if entry.method == EDGES else ()
            geof = GeoFEncoder(
                in_channels, SIGNATURE_CHANNELS, carried, backend=entry.backend, **own
            )
            return cls(geof, as_inputs)
        prepare: Prepare = as_edge_index
        if entry.method == "gat":
            module = GAT(in_channels, WIDTH, num_layers=DEPTH, heads=HEADS)
        elif entry.method == "gcn-csr":
            module = GCN(in_channels, WIDTH, num_layers=DEPTH, normalize=False)
            prepare = as_csr
        else:
            module = GCN(in_channels, WIDTH, num_layers=DEPTH)
        if sparse:  # the first product by the very call GeoF makes
            first: Any = module.convs[0]
            first.lin = SparseLinear(first.lin.in_channels, first.lin.out_channels, bias=False)
        return cls(module, prepare)


class Training:
    """An entry on a problem, ready for epochs.

    What depends on the graph alone (GeoF's neighbourhoods, the CSR adjacency) is made here for a
    graph in full batch, and anew inside the epoch for mini-batches, which in real training are
    other ones in every epoch.

    Args:
        entry: Who.
        problem: On what, and where: the network is put on its device.
        **options: GeoF's that differ from the bench's.
    """

    def __init__(self, entry: Entry, problem: Problem, **options: Any) -> None:
        torch.manual_seed(0)
        facts = problem.facts
        if entry.method == EDGES:
            problem = replace(problem, pieces=tuple(p.with_edge_attr() for p in problem.pieces))
        self.problem = problem
        sparse = facts.inputs == "sparse"
        self.network = EqualWidth.build(entry, facts.features, sparse=sparse, **options)
        self.head = nn.Linear(WIDTH, facts.classes)
        # Drawn on the CPU and moved, as in geof train: all devices start alike.
        modules = [module.to(problem.device) for module in (self.network.module, self.head)]
        parameters = [parameter for module in modules for parameter in module.parameters()]
        fused = problem.device.type in FUSED
        self.optimiser = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=fused)
        self._prepared = self.network.prepare(problem.pieces[0]) if problem.is_static else None

    def epoch(self) -> float:
        """Take one optimiser step per piece and return the last loss."""
        loss = torch.zeros(())
        for piece in self.problem.pieces:
            loss = self.loss(piece, self.prepared(piece))
            self.descend(loss)
        return loss.item()

    def prepared(self, piece: Piece) -> tuple[Any, ...]:
        """Return what the network is called with; a graph in full batch has it already."""
        return self._prepared or self.network.prepare(piece)

    def loss(self, piece: Piece, prepared: tuple[Any, ...]) -> Tensor:
        """Return the loss on a piece: the forward half of a step."""
        self.optimiser.zero_grad()
        return F.cross_entropy(self._logits(piece, prepared), piece.y)

    def descend(self, loss: Tensor) -> None:
        """Take the other half of the step."""
        loss.backward()
        self.optimiser.step()

    def _logits(self, piece: Piece, prepared: tuple[Any, ...]) -> Tensor:
        states = self.network.module(*prepared)
        if piece.batch is not None:
            states = global_mean_pool(states, piece.batch, piece.num_graphs)
        logits: Tensor = self.head(states)
        return logits

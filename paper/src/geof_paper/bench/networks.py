"""The contestants at equal width and depth, under one training step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import global_mean_pool
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.models import GAT, GCN
from torch_geometric.utils import to_torch_csr_tensor

from geof.kernels import Neighbourhoods
from geof.nn import GeoF
from geof_paper.bench.catalogue import Contestant
from geof_paper.bench.problems import SIGNATURE_CHANNELS, Piece, Problem, csr_without_remarks

WIDTH = 64
DEPTH = 2
HEADS = 8
BLOCKS = 8
BLOCK_SIZE = WIDTH // BLOCKS
LEARNING_RATE = 1e-3


class _SparseLinear(nn.Module):
    """The first product of a PyG layer on sparse features, by the very call GeoF makes."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lift = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.sparse.mm(x, self.lift.weight.t())
        return product


class Encoder(nn.Module):
    """PyG's network as usually written: it reads ``edge_index``."""

    def __init__(self, network: nn.Module, *, sparse: bool) -> None:
        super().__init__()
        self.network = network
        if sparse:
            first: Any = network.convs[0]  # type: ignore[index]  # PyG ships no types
            first.lin = _SparseLinear(first.lin.in_channels, first.lin.out_channels)

    def structure(self, piece: Piece) -> Any:
        """Return what the encoder reads the graph from."""
        return piece.edge_index

    def forward(self, piece: Piece, structure: Any) -> Tensor:
        """Return node states ``(n, WIDTH)``."""
        states: Tensor = self.network(piece.x, structure)
        return states


class CsrEncoder(Encoder):
    """The same GCN on a normalised adjacency in CSR form."""

    def structure(self, piece: Piece) -> Any:
        """Return the normalised adjacency with self-loops, Kipf and Welling's operator."""
        nodes = piece.x.size(0)
        edge_index, weight = gcn_norm(piece.edge_index, num_nodes=nodes)
        with csr_without_remarks():
            # Undirected graphs: the transpose PyG asks for is the matrix itself.
            return to_torch_csr_tensor(edge_index, weight, size=(nodes, nodes))


class GeoFEncoder(nn.Module):
    """GeoF with one backend."""

    def __init__(self, in_channels: int, backend: str) -> None:
        super().__init__()
        self.geof = GeoF(
            in_channels,
            WIDTH,
            signature_channels=SIGNATURE_CHANNELS,
            blocks=BLOCKS,
            steps=DEPTH,
            backend=backend,
        )

    def structure(self, piece: Piece) -> Neighbourhoods:
        """Return the closed, sorted neighbourhoods."""
        return Neighbourhoods.from_edge_index(piece.edge_index, piece.x.size(0))

    def forward(self, piece: Piece, structure: Neighbourhoods) -> Tensor:
        """Return the environment states ``(n, WIDTH)``."""
        states: Tensor = self.geof(piece.x, structure, piece.signature)
        return states


def build_encoder(contestant: Contestant, in_channels: int, *, sparse: bool) -> nn.Module:
    """Return the encoder of a contestant: two layers or steps of width 64, no dropout."""
    if contestant.backend is not None:
        return GeoFEncoder(in_channels, contestant.backend)
    if contestant.model == "gat":
        network = GAT(in_channels, WIDTH, num_layers=DEPTH, heads=HEADS)
        return Encoder(network, sparse=sparse)
    if contestant.model == "gcn-csr":
        network = GCN(in_channels, WIDTH, num_layers=DEPTH, normalize=False)
        return CsrEncoder(network, sparse=sparse)
    return Encoder(GCN(in_channels, WIDTH, num_layers=DEPTH), sparse=sparse)


class Training:
    """A contestant on a problem, ready for epochs.

    What depends on the graph alone (GeoF's neighbourhoods, the CSR adjacency) is made here for a
    graph in full batch, and anew inside the epoch for mini-batches, which in real training are
    other ones in every epoch.

    Args:
        contestant: Who.
        problem: On what.
    """

    def __init__(self, contestant: Contestant, problem: Problem) -> None:
        torch.manual_seed(0)
        facts = problem.facts
        self.problem = problem
        self.encoder = build_encoder(contestant, facts.features, sparse=facts.inputs == "sparse")
        self.head = nn.Linear(WIDTH, facts.classes)
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=LEARNING_RATE)
        self._kept = self._structure(problem.pieces[0]) if problem.is_static else None

    def _structure(self, piece: Piece) -> Any:
        return self.encoder.structure(piece)  # type: ignore[operator]  # a method, not a tensor

    def epoch(self) -> float:
        """Take one optimiser step per piece and return the last loss."""
        loss = torch.zeros(())
        for piece in self.problem.pieces:
            structure = self._structure(piece) if self._kept is None else self._kept
            self.optimiser.zero_grad()
            loss = F.cross_entropy(self._logits(piece, structure), piece.y)
            loss.backward()
            self.optimiser.step()
        return loss.item()

    def _logits(self, piece: Piece, structure: Any) -> Tensor:
        states = self.encoder(piece, structure)
        if piece.batch is not None:
            states = global_mean_pool(states, piece.batch, piece.num_graphs)
        logits: Tensor = self.head(states)
        return logits

"""Full-graph inference in pieces: the whole graph's answer in a fraction of its memory."""

from __future__ import annotations

import torch
from torch import Tensor

from geof.kernels import Neighbourhoods
from geof.kernels.neighbourhood import NeighbourIndex, Piece, pieces_of
from geof.nn.geof import GeoF
from geof.nn.inputs import as_neighbourhoods, check_matrix
from geof.nn.trace import CoupledState


@torch.no_grad()
def evolve_in_pieces(
    model: GeoF,
    x: Tensor,
    edge_index: Tensor | Neighbourhoods,
    signature: Tensor,
    *,
    piece_size: int,
) -> Tensor:
    r"""Return the output that ``model.evolve`` gives, computed piece by piece.

    One step changes a node by its own state and its neighbours' alone. So each step is taken piece
    by piece from the complete state before it, and nothing is approximated. Two coupled states
    of the whole graph are held; frames, messages and moments exist for one piece at a time.

    The price is that a node is worked on in every piece where it is a neighbour. Where neighbours
    have nearby numbers that is next to nothing; where they are scattered it can be as many times
    the work as a node has neighbours, and renumbering (``scipy.sparse.csgraph``'s
    ``reverse_cuthill_mckee``) or larger pieces help.

    Sums run in the whole graph's order. Matrix products may still round differently for another
    number of rows, so results agree to the last bits, not always in them.

    Gradients are not recorded.

    Args:
        model: The network.
        x: Node features, ``(n, F)``.
        edge_index: Edges, sources in the first row; or prepared neighbourhoods.
        signature: Structural signatures, ``(n, q)``.
        piece_size: Most neighbours, counting each target as its own, in one piece; see
            :func:`geof.kernels.neighbourhood.pieces_of`.
    """
    check_matrix("x", x, model.in_channels, model.feature_lift.weight.dtype)
    signature = model.checked_signature(signature, x.size(0))
    edges = as_neighbourhoods(edge_index, x.size(0))
    index = NeighbourIndex.from_edge_index(edges.edge_index, x.size(0))
    state = model.initial_state(x, signature)
    every = model.outputs == "all"
    output = state.features.new_empty(x.size(0), model.out_channels)
    environments = output.split(model.hidden_channels, dim=1)
    if every:
        for piece in pieces_of(index, piece_size):
            parts = (part[piece.targets] for part in state)
            environments[0][piece.targets] = model.environment(*parts)
    for number in range(model.steps):
        following = CoupledState(*(torch.empty_like(part) for part in state))
        for piece in pieces_of(index, piece_size):
            targets = _step_of_targets(model, state, signature, piece, number)
            for whole, part in zip(following, targets, strict=True):
                whole[piece.targets] = part
            if every or number == model.steps - 1:
                place = environments[number + 1 if every else 0]
                place[piece.targets] = model.environment(*targets)
        state = following
    return output


def _step_of_targets(
    model: GeoF, state: CoupledState, signature: Tensor, piece: Piece, number: int
) -> CoupledState:
    """Return a piece's targets after one step inside it: their neighbourhoods alone are whole."""
    nodes = piece.nodes.to(signature.device)
    edges = Neighbourhoods.from_edge_index(piece.edge_index.to(nodes.device), len(nodes))
    local = CoupledState(state.features[nodes], state.coordinates[nodes])
    following, _ = model.step(local, edges, signature[nodes], number)
    return model.refined(CoupledState(*(part[piece.rows] for part in following)), number)

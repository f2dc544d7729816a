"""Data that needs no network and no files.

* :func:`digits_graph`: scikit-learn's handwritten digits, joined to their nearest neighbours: real
  data inside a dependency.
* :func:`covariance_graph`: generated; its classes have equal neighbourhood means and differ only in
  the covariance of their neighbours (paper, Proposition 2 (iv)).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.options import require_positive


def digits_graph(neighbours: int = 8) -> Data:
    """Return 1,797 handwritten digits (64 pixels in [0, 1], 10 classes) as a neighbour graph.

    Two digits are joined when either is among the other's ``neighbours`` nearest in pixel space;
    labels play no part in the graph.
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    require_positive("neighbours", neighbours)
    pixels, labels = load_digits(return_X_y=True)
    adjacency = kneighbors_graph(pixels, neighbours).tocoo()
    edge_index = torch.from_numpy(np.stack([adjacency.row, adjacency.col])).long()
    return Data(
        x=torch.from_numpy(pixels / 16).float(),
        edge_index=to_undirected(edge_index, num_nodes=len(pixels)),
        y=torch.from_numpy(labels).long(),
    )


def covariance_graph(
    centres: int = 600, pairs: int = 2, channels: int = 4, spread: float = 0.25, seed: int = 0
) -> Data:
    r"""Return centres whose class shows only in the covariance of their neighbours.

    Each centre has a random state of its own and ``2 * pairs`` leaves, set off from it by
    :math:`\pm s v` (class 0) or :math:`\pm s w` (class 1) with
    :math:`v = (1, 1, 0, \dots)`, :math:`w = (1, -1, 0, \dots)` and a random size :math:`s` per
    pair. The mean of the offsets and every coordinate's variance are the same for both classes; the
    covariance between the first two coordinates has opposite signs.

    Only what Proposition 2 says follows: in one step with uniform weights, and with coordinates
    that no learned map may rotate, a first-order update or a diagonal statistic cannot tell the
    classes apart and the full second moment can. Over two steps any network with a nonlinearity
    can, too.

    Args:
        centres: Number of centres, half of each class; the first nodes of the graph.
        pairs: Leaf pairs per centre.
        channels: Width of the features, at least 2.
        spread: Standard deviation of the centres around (1, 1, ...).
        seed: Seed of all draws.

    Returns:
        A graph with ``x``, ``edge_index``, ``y`` (-1 for leaves) and ``centre_mask``.
    """
    require_positive("centres", centres, least=2)
    require_positive("pairs", pairs)
    require_positive("channels", channels, least=2)
    generator = torch.Generator().manual_seed(seed)
    label = (torch.arange(centres) % 2)[torch.randperm(centres, generator=generator)]
    state = 1 + spread * torch.randn(centres, channels, generator=generator)
    direction = torch.zeros(centres, channels)
    direction[:, 0] = 1
    direction[:, 1] = 1 - 2 * label
    size = 0.5 + torch.rand(centres, pairs, 1, generator=generator)
    offset = size * direction.unsqueeze(1)  # (centres, pairs, channels)
    leaves = state.unsqueeze(1) + torch.cat([offset, -offset], dim=1)
    return _star_forest(state, leaves, label)


def _star_forest(state: Tensor, leaves: Tensor, label: Tensor) -> Data:
    """Join every centre to its own leaves, ``(centres, leaves, channels)``."""
    centres, per_centre, channels = leaves.shape
    centre = torch.arange(centres).repeat_interleave(per_centre)
    leaf = centres + torch.arange(centres * per_centre)
    num_nodes = centres * (1 + per_centre)
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[:centres] = True
    return Data(
        x=torch.cat([state, leaves.reshape(-1, channels)]),
        edge_index=to_undirected(torch.stack([centre, leaf]), num_nodes=num_nodes),
        y=torch.cat([label, label.new_full((num_nodes - centres,), -1)]),
        centre_mask=mask,
    )

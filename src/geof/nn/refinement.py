r"""Normalisation, feed-forward maps and dropout between steps; the paper's model has none of them.

The step itself stays the paper's. Between steps the state is normalised, passed through a small
network of the step's own, and entries are dropped:

.. math::
    \xi^0 \leftarrow \operatorname{Drop}(\operatorname{Norm}(\xi^0)), \qquad
    \xi^l \leftarrow \operatorname{Drop}\big(\operatorname{Norm}_l(\xi^l
    + \operatorname{Drop}(W_{l,2} \operatorname{Drop}(\operatorname{ReLU}(W_{l,1} \xi^l + b_{l,1}))
    + b_{l,2}))\big).

A normalised state has a known scale, :math:`\|\xi_i\|^2 \approx d`, so a temperature chosen once
fits every dataset; without it the energies of Eq. (4) grow with the features. Normalisation over
the nodes also removes what all of them share, which otherwise dominates the first epochs.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geof.nn.settings import Norm
from geof.options import require_number, require_option, require_positive


class Refinement(nn.Module):
    """Normalisation, dropout and feed-forward maps between steps, each optional.

    Args:
        channels: Width of the state.
        steps: Number of steps.
        normalise: Normalisation of the state at the start and after every step: ``"none"``, over
            each node's entries (``"layer"``) or over the nodes (``"batch"``).
        feed_forward: Hidden width of the feed-forward maps in multiples of ``channels``; 0 for
            none.
        dropout: Probability of dropping an entry of the state after a step.
    """

    def __init__(
        self, channels: int, steps: int, *, normalise: Norm, feed_forward: int, dropout: float
    ) -> None:
        super().__init__()
        require_positive("feed_forward", feed_forward, least=0)
        require_number("dropout", dropout, least=0, below=1)
        self.dropout = dropout
        require_option("normalise", normalise, get_args(Norm))
        kind = nn.LayerNorm if normalise == "layer" else NodeNorm
        count = 0 if normalise == "none" else steps + 1
        self.norms = nn.ModuleList(kind(channels) for _ in range(count))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(
                nn.Linear(channels, feed_forward * channels),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(feed_forward * channels, channels),
            )
            for _ in range(steps if feed_forward else 0)
        )

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm | nn.BatchNorm1d):
                module.reset_parameters()

    def start(self, features: Tensor) -> Tensor:
        """Return the state the first step begins with."""
        return self._drop(self._normalised(features, 0))

    def after(self, features: Tensor, step: int) -> Tensor:
        """Return the state after step number ``step``, from 0."""
        if self.feed_forward:
            features = features + self._drop(self.feed_forward[step](features))
        return self._drop(self._normalised(features, step + 1))

    def _normalised(self, features: Tensor, place: int) -> Tensor:
        return self.norms[place](features) if self.norms else features

    def _drop(self, features: Tensor) -> Tensor:
        return F.dropout(features, self.dropout, self.training)


class NodeNorm(nn.BatchNorm1d):
    """Batch normalisation over nodes; a lone node has no variance and takes running averages."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the normalised features."""
        if self.training and features.size(0) == 1:
            alone: Tensor = F.batch_norm(
                features, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
            return alone
        normalised: Tensor = super().forward(features)
        return normalised


def norm_layer(name: Norm, channels: int) -> nn.Module:
    """Return the normalisation of node states that a name means."""
    if name == "layer":
        return nn.LayerNorm(channels)
    return NodeNorm(channels) if name == "batch" else nn.Identity()


def drop_features(x: Tensor, probability: float, *, training: bool) -> Tensor:
    """Return ``x`` with entries dropped; of a sparse matrix, its stored entries."""
    if not training or probability == 0:
        return x
    if x.layout == torch.strided:
        return F.dropout(x, probability)
    if x.layout == torch.sparse_csr:
        values = F.dropout(x.values(), probability)
        return torch.sparse_csr_tensor(
            x.crow_indices(), x.col_indices(), values, x.shape, check_invariants=False
        )
    x = x.coalesce()
    return torch.sparse_coo_tensor(
        x.indices(),
        F.dropout(x.values(), probability),
        x.shape,
        is_coalesced=True,
        check_invariants=False,
    )


def scale_rows(x: Tensor) -> Tensor:
    r"""Return ``x`` with every row scaled to length :math:`\sqrt F`; zero rows stay zero.

    The lift of such rows is of order one whatever the features' own scale, as the normalisation
    that follows and the optimiser's step size want it. Row-normalised words, which sum to one, lift
    to about :math:`10^{-3}`.
    """
    length = x.size(1) ** 0.5
    if x.layout == torch.strided:
        scaled: Tensor = F.normalize(x, dim=-1) * length
        return scaled
    if x.layout != torch.sparse_csr:
        x = x.to_sparse_csr()
    counts = x.crow_indices().diff()
    row = torch.repeat_interleave(torch.arange(x.size(0), device=x.device), counts)
    squares = x.values().new_zeros(x.size(0)).index_add(0, row, x.values().square())
    scale = length / squares.sqrt().clamp_min(1e-12)
    return torch.sparse_csr_tensor(
        x.crow_indices(),
        x.col_indices(),
        x.values() * scale[row],
        x.shape,
        check_invariants=False,
    )

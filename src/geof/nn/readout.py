r"""Task-specific readouts of the environment states :math:`h^L` (paper, section 3.5).

They return logits; :mod:`geof.training.metrics` turns them into losses.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import global_add_pool, global_mean_pool

from geof.errors import DataError
from geof.nn.inputs import check_batch, check_graphs, check_matrix, check_pairs
from geof.nn.settings import Pooling
from geof.options import require_booleans, require_number, require_option, require_positive


def _mlp(
    in_channels: int, hidden_channels: int, out_channels: int, dropout: float
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(in_channels, hidden_channels), nn.ReLU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(hidden_channels, out_channels))


def _first(mlp: nn.Sequential) -> nn.Linear:
    """Return the layer that sets width, dtype and device of what comes in."""
    layer = mlp[0]
    assert isinstance(layer, nn.Linear)
    return layer


def _reset(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.BatchNorm1d):
            layer.reset_parameters()


class NodeReadout(nn.Linear):
    r"""Class logits per node, :math:`s_i = W_o h_i^L + b_o`, Eq. (13).

    Args:
        in_channels: :math:`d`.
        num_classes: :math:`C`.
        dropout: Probability of dropping an entry of the state; the paper has none.
    """

    def __init__(self, in_channels: int, num_classes: int, *, dropout: float = 0.0) -> None:
        require_positive("num_classes", num_classes)
        require_number("dropout", dropout, least=0, below=1)
        super().__init__(in_channels, num_classes)
        self.dropout = dropout

    def forward(self, h: Tensor) -> Tensor:
        """Return the logits."""
        check_matrix("h", h, self.in_features, self.weight)
        return super().forward(F.dropout(h, self.dropout, self.training))


class GraphReadout(nn.Module):
    r"""Class logits per graph: mean pool, then an MLP, Eq. (14).

    Args:
        in_channels: :math:`d`.
        num_classes: :math:`C`.
        hidden_channels: Width of the MLP (default: ``in_channels``).
        pool: ``"mean"`` as in the paper, or ``"sum"``, which also tells the graph's size.
        batch_norm: Normalise the pooled vector over the batch; the paper does not.
        dropout: Probability of dropping an entry inside the MLP; the paper has none.

    Shapes:
        - **input:** :math:`(n, d)`, batch vector :math:`(n)`
        - **output:** :math:`(G, C)`
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        hidden_channels: int | None = None,
        *,
        pool: Pooling = "mean",
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_option("pool", pool, get_args(Pooling))
        require_booleans(batch_norm=batch_norm)
        require_number("dropout", dropout, least=0, below=1)
        self.pool = pool
        self.mlp = _mlp(in_channels, hidden_channels or in_channels, num_classes, dropout)
        self.norm = nn.BatchNorm1d(in_channels) if batch_norm else nn.Identity()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        _reset(self)

    def forward(
        self, h: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> Tensor:
        """Return the logits; without ``batch`` all nodes are one graph."""
        logits: Tensor = self.mlp(self.pooled(h, batch, num_graphs))
        return logits

    def pooled(
        self, h: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> Tensor:
        """Return one vector per graph, as the MLP gets it."""
        first = _first(self.mlp)
        check_matrix("h", h, first.in_features, first.weight)
        if batch is not None:
            check_batch(batch, h.size(0))
            check_graphs(batch, num_graphs)
        pool = global_mean_pool if self.pool == "mean" else global_add_pool
        vectors: Tensor = self.norm(pool(h, batch, num_graphs))
        return vectors


class LinkReadout(nn.Module):
    r"""One logit per candidate pair, the same for :math:`(u, v)` and :math:`(v, u)`, Eq. (15).

    .. math::
        f_{uv} = [h_u \odot h_v \| |h_u - h_v|], \qquad
        \operatorname{logit}_{uv} = \operatorname{MLP}(f_{uv})

    Args:
        in_channels: :math:`d`.
        hidden_channels: Width of the MLP (default: ``in_channels``).
        normalise: Scale every :math:`h_i` to length :math:`\sqrt d` first; the paper does not.
        dropout: Probability of dropping an entry of :math:`h` and inside the MLP; the paper has
            none.

    Shapes:
        - **input:** :math:`(n, d)`, pairs :math:`(2, P)`
        - **output:** :math:`(P)`
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | None = None,
        *,
        normalise: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_booleans(normalise=normalise)
        require_number("dropout", dropout, least=0, below=1)
        self.normalise = normalise
        self.dropout = dropout
        self.mlp = _mlp(2 * in_channels, hidden_channels or in_channels, 1, dropout)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        _reset(self)

    def forward(self, h: Tensor, pairs: Tensor) -> Tensor:
        """Return the logits of ``pairs``."""
        first = _first(self.mlp)
        check_matrix("h", h, first.in_features // 2, first.weight)
        check_pairs(pairs)
        if not torch.compiler.is_compiling() and pairs.numel():
            low, high = (int(value) for value in pairs.aminmax())
            if low < 0 or high >= h.size(0):
                raise DataError(
                    f"Expected 'pairs' to hold node indices from 0 to {h.size(0) - 1} (got "
                    f"indices from {low} to {high})."
                )
        if self.normalise:
            h = F.normalize(h, dim=-1) * h.size(-1) ** 0.5
        h = F.dropout(h, self.dropout, self.training)
        logits: Tensor = self.mlp(pair_features(h, pairs))
        return logits.squeeze(-1)


def pair_features(h: Tensor, pairs: Tensor) -> Tensor:
    r"""Return :math:`f_{uv} = [h_u \odot h_v \| |h_u - h_v|]`, Eq. (15): for either order."""
    # index_select sums its gradient in a fixed order; h[...] does not with several threads.
    u, v = h.index_select(0, pairs[0]), h.index_select(0, pairs[1])
    return torch.cat([u * v, (u - v).abs()], dim=-1)

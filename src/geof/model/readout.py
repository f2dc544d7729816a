r"""Task-specific readouts of the environment states :math:`h^L` (paper, section 3.5).

They return logits; :mod:`geof.training.objectives` turns them into losses.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import global_mean_pool

from geof.config import require_positive
from geof.errors import DataError, ShapeError


def _mlp(in_channels: int, hidden_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_channels, hidden_channels), nn.ReLU(), nn.Linear(hidden_channels, out_channels)
    )


def _reset(mlp: nn.Sequential) -> None:
    for layer in mlp:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


class NodeReadout(nn.Linear):
    r"""Class logits per node, :math:`s_i = W_o h_i^L + b_o`, Eq. (13).

    Args:
        in_channels: :math:`d`.
        num_classes: :math:`C`.
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        require_positive("num_classes", num_classes)
        super().__init__(in_channels, num_classes)


class GraphReadout(nn.Module):
    r"""Class logits per graph: mean pool, then an MLP, Eq. (14).

    Args:
        in_channels: :math:`d`.
        num_classes: :math:`C`.
        hidden_channels: Width of the MLP (default: ``in_channels``).

    Shapes:
        - **input:** :math:`(n, d)`, batch vector :math:`(n)`
        - **output:** :math:`(G, C)`
    """

    def __init__(
        self, in_channels: int, num_classes: int, hidden_channels: int | None = None
    ) -> None:
        super().__init__()
        self.mlp = _mlp(in_channels, hidden_channels or in_channels, num_classes)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        _reset(self.mlp)

    def forward(
        self, h: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> Tensor:
        """Return the logits; without ``batch`` all nodes are one graph."""
        logits: Tensor = self.mlp(global_mean_pool(h, batch, num_graphs))
        return logits


class LinkReadout(nn.Module):
    r"""One logit per candidate pair, the same for :math:`(u, v)` and :math:`(v, u)`, Eq. (15).

    .. math::
        f_{uv} = [h_u \odot h_v \| |h_u - h_v|], \qquad
        \operatorname{logit}_{uv} = \operatorname{MLP}(f_{uv})

    Args:
        in_channels: :math:`d`.
        hidden_channels: Width of the MLP (default: ``in_channels``).

    Shapes:
        - **input:** :math:`(n, d)`, pairs :math:`(2, P)`
        - **output:** :math:`(P)`
    """

    def __init__(self, in_channels: int, hidden_channels: int | None = None) -> None:
        super().__init__()
        self.mlp = _mlp(2 * in_channels, hidden_channels or in_channels, 1)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        _reset(self.mlp)

    def forward(self, h: Tensor, pairs: Tensor) -> Tensor:
        """Return the logits of ``pairs``."""
        if pairs.dim() != 2 or pairs.size(0) != 2:
            raise ShapeError(
                f"Expected 'pairs' to have shape (2, P) (got {tuple(pairs.shape)}). "
                "Sources stand in the first row, as in edge_index."
            )
        if not torch.compiler.is_compiling() and pairs.numel():
            low, high = (int(value) for value in pairs.aminmax())
            if low < 0 or high >= h.size(0):
                raise DataError(
                    f"Expected 'pairs' to hold node indices from 0 to {h.size(0) - 1} (got "
                    f"indices from {low} to {high})."
                )
        u, v = h[pairs[0]], h[pairs[1]]
        logits: Tensor = self.mlp(torch.cat([u * v, (u - v).abs()], dim=-1))
        return logits.squeeze(-1)

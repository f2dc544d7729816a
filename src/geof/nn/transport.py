r"""The parameters of triangular frame transport (paper, section 3.2).

The transport itself, Eqs. (4) to (6), has no parameters and lives in :mod:`geof.kernels`. Here are
the shared message transformation and the feature gate,

.. math::
    \phi(\xi) = W_\phi \xi, \qquad
    r_i = \sigma(W_r [\xi_i \| \bar\xi_i] + b_r), \qquad
    \xi_i' = (1 - r_i) \odot \xi_i + r_i \odot \bar\xi_i
    \qquad \text{(Eq. 7)}.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FrameTransport(nn.Module):
    r"""Transforms messages before the transport and gates the aggregate after it.

    Args:
        channels: :math:`d`.

    Shapes:
        - **message:** :math:`(n, d)` to :math:`(n, d)`
        - **forward:** state :math:`(n, d)`, aggregate :math:`(n, d)` to new state :math:`(n, d)`
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.message = nn.Linear(channels, channels, bias=False)
        self.gate = nn.Linear(2 * channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start the message map at the identity, so that the first step is pure transport."""
        nn.init.eye_(self.message.weight)
        self.gate.reset_parameters()

    def forward(self, xi: Tensor, aggregate: Tensor) -> Tensor:
        """Return the gated state, Eq. (7)."""
        # W_r [xi || agg] without the concatenation.
        own, other = self.gate.weight.split(xi.size(-1), dim=1)
        gate = torch.sigmoid(torch.addmm(F.linear(xi, own, self.gate.bias), aggregate, other.t()))
        return torch.lerp(xi, aggregate, gate)

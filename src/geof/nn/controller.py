r"""Task-guided geometry evolution (paper, section 3.4): the parameters of the correction.

The arithmetic of Eqs. (11) and (12) has no parameters of its own and lives in
:mod:`geof.kernels.interface`.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from geof.kernels import Controller
from geof.kernels.interface import predict_correction
from geof.options import require_positive


class CorrectionController(nn.Module):
    r"""Predicts the correction :math:`\Delta z_{i,b}` from a node's own view of a block.

    .. math::
        q_{i,b} = [(\xi_i)_b \| (\bar\xi_i)_b \| u_i], \quad
        [U, V, d] = W_{\Gamma,2} \operatorname{SiLU}(W_{\Gamma,1} q_{i,b} + b_{\Gamma,1})
        + b_{\Gamma,2}, \quad
        \Delta z_{i,b} = [\operatorname{Svec}_{sl}(U V^\top), d]
        \qquad \text{(Eq. 11)}

    Args:
        block_size: :math:`m`.
        signature_channels: :math:`q`, may be 0.
        hidden_channels: Width of the hidden layer.
        rank: :math:`r`, columns of :math:`U` and :math:`V`.

    Shapes:
        - **input:** state :math:`(n, B, m)`, aggregate :math:`(n, B, m)`, signature :math:`(n, q)`
        - **output:** :math:`(n, B, m(m+1)/2)`

    >>> controller = CorrectionController(4, signature_channels=3, hidden_channels=16, rank=2)
    >>> controller(torch.rand(5, 2, 4), torch.rand(5, 2, 4), torch.rand(5, 3)).shape
    torch.Size([5, 2, 10])
    """

    def __init__(
        self, block_size: int, *, signature_channels: int, hidden_channels: int, rank: int
    ) -> None:
        super().__init__()
        require_positive("controller_channels", hidden_channels)
        require_positive("correction_rank", rank)
        self.block_size = block_size
        self.rank = rank
        self.hidden = nn.Linear(2 * block_size + signature_channels, hidden_channels)
        self.output = nn.Linear(hidden_channels, (2 * rank + 1) * block_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r"""Draw all parameters anew (not zero: :math:`U V^\top` has no gradient there)."""
        self.hidden.reset_parameters()
        self.output.reset_parameters()

    def maps(self, signature: Tensor) -> Controller:
        """Return the maps, the signature's share computed once per node instead of per block."""
        sizes = [2 * self.block_size, signature.size(-1)]
        local, structural = self.hidden.weight.split(sizes, dim=1)
        shared = F.linear(signature, structural, self.hidden.bias)  # (n, hidden)
        return Controller(shared, local, self.output.weight, self.output.bias)

    def forward(self, xi: Tensor, aggregate: Tensor, signature: Tensor) -> Tensor:
        """Return the correction of every block."""
        return predict_correction(xi, aggregate, self.maps(signature))

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"block_size={self.block_size}, rank={self.rank}"

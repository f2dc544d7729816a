r"""The structure-aware prototype atlas (paper, section 3.1, Eq. 3).

.. math::
    \alpha_i = \operatorname{softmax}(W_g u_i + b_g), \qquad
    z_{i,b}^0 = \Pi_{\mathcal Z}\Big(\sum_{k=1}^K \alpha_{ik} z_{k,b}^{proto}\Big).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from geof.geometry import AdmissibleBox, num_coordinates
from geof.kernels.memory import empty
from geof.kernels.native_arguments import is_plain
from geof.options import require_positive

PROTOTYPE_SCALE = 0.1
"""Standard deviation of the prototypes at the start: near the identity frame, yet distinct."""


SUMMED = 256
"""Rows summed at once for the gradient of the prototypes."""


class _Mixture(torch.autograd.Function):
    """A tall product of few columns, on kept memory, its gradient's long sums in pieces."""

    @staticmethod
    def forward(ctx: Any, mixture: Tensor, prototypes: Tensor) -> Tensor:
        ctx.save_for_backward(mixture, prototypes)
        shape = len(mixture), prototypes.size(1)
        return torch.mm(mixture, prototypes, out=empty(mixture, shape))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        mixture, prototypes = ctx.saved_tensors
        whole = len(grad) // SUMMED * SUMMED
        left, right = (part[:whole].unflatten(0, (-1, SUMMED)) for part in (mixture, grad))
        total = torch.bmm(left.mT, right).sum(0) + mixture[whole:].t() @ grad[whole:]
        return grad @ prototypes.t(), total


class _Gate(nn.Linear):
    """A linear layer that may have no input, of which torch would warn."""

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        if self.in_features:
            super().reset_parameters()
        else:
            nn.init.zeros_(self.bias)


class PrototypeAtlas(nn.Module):
    r"""Mixes shared geometric templates by a node's structural signature, Eq. (3).

    Args:
        signature_channels: :math:`q`, the width of a signature; 0 mixes alike at every node.
        prototypes: :math:`K`.
        blocks: :math:`B`.
        block_size: :math:`m`.
        box: The admissible box of the result.

    Shapes:
        - **input:** signature :math:`(n, q)`
        - **output:** coordinates :math:`(n, B, m(m+1)/2)`

    >>> atlas = PrototypeAtlas(3, prototypes=4, blocks=2, block_size=4, box=AdmissibleBox())
    >>> atlas(torch.rand(5, 3)).shape
    torch.Size([5, 2, 10])
    """

    def __init__(
        self,
        signature_channels: int,
        *,
        prototypes: int,
        blocks: int,
        block_size: int,
        box: AdmissibleBox,
    ) -> None:
        super().__init__()
        require_positive("prototypes", prototypes)
        self.box = box
        self.gate = _Gate(signature_channels, prototypes)
        self.prototypes = nn.Parameter(torch.empty(prototypes, blocks, num_coordinates(block_size)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.gate.reset_parameters()
        nn.init.normal_(self.prototypes, std=PROTOTYPE_SCALE)

    def forward(self, signature: Tensor) -> Tensor:
        """Return the initial coordinates."""
        mixture = self.gate(signature).softmax(-1)  # (n, K)
        # Blocks last in memory, as the native kernels want it; the shape is (n, B, t) all the same.
        lanes = self.prototypes.transpose(1, 2)  # (K, t, B)
        flat = lanes.flatten(1)
        mixed: Tensor = _Mixture.apply(mixture, flat) if is_plain(mixture, flat) else mixture @ flat  # type: ignore[no-untyped-call]
        mixed = mixed.unflatten(1, lanes.shape[1:]).transpose(1, 2)
        # A mixture of points well inside the box is inside: nothing to clip, nothing to pass over.
        if not torch.compiler.is_compiling() and self._well_inside():
            return mixed
        return self.box.project(mixed)

    def _well_inside(self) -> bool:
        slack = self.prototypes.detach() * 1e-3
        return all(
            bool(self.box.contains(self.prototypes + sign * slack).all()) for sign in (1, -1)
        )

    def extra_repr(self) -> str:
        """Return the sizes."""
        prototypes, blocks, _ = self.prototypes.shape
        return f"prototypes={prototypes}, blocks={blocks}"

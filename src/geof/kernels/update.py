r"""The update of the geometry (paper, section 3.4), for backends that do not fuse it.

.. math::
    q_{i,b} &= [(\xi_i)_b \| (\bar\xi_i)_b \| u_i], \quad
    [U, V, d] = W_{\Gamma,2} \operatorname{SiLU}(W_{\Gamma,1} q_{i,b} + b_{\Gamma,1})
    + b_{\Gamma,2}, \quad
    \Delta z_{i,b} = [\operatorname{Svec}_{sl}(U V^\top), d]
    \qquad \text{(Eq. 11)} \\
    z_{i,b}' &= \Pi_{\mathcal Z}\big((1 - \lambda) z_{i,b} + \lambda \hat z_{i,b}
               + \gamma \Delta z_{i,b}\big)
    \qquad \text{(Eq. 12)}
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.geometry import AdmissibleBox, strictly_lower_vector


class Controller(NamedTuple):
    r"""The correction network's maps, Eq. (11), with the signatures already taken in.

    Attributes:
        shared: ``(n, H)``, the hidden layer's bias and its share of the signature :math:`u_i`.
        hidden: ``(H, 2m)``, the hidden layer's map of :math:`[\xi_b \| \bar\xi_b]`.
        output: ``((2r + 1) m, H)``.
        bias: ``((2r + 1) m,)``.
    """

    shared: Tensor
    hidden: Tensor
    output: Tensor
    bias: Tensor

    def rank(self, block_size: int) -> int:
        """Return :math:`r`, the columns of U and V."""
        return (len(self.bias) // block_size - 1) // 2


class Evolution(NamedTuple):
    r"""What turns a step's statistics into the next coordinates, Eq. (12).

    Attributes:
        target_mix: :math:`\lambda`.
        correction_strength: :math:`\gamma`.
        box: :math:`\mathcal Z`.
        controller: The correction network, or ``None`` for no correction.
    """

    target_mix: float
    correction_strength: float
    box: AdmissibleBox
    controller: Controller | None


def predict_correction(xi: Tensor, aggregate: Tensor, controller: Controller) -> Tensor:
    r"""Return :math:`\Delta z`, ``(n, B, t)``, Eq. (11).

    Args:
        xi: ``(n, B, m)``, the feature states.
        aggregate: ``(n, B, m)``, :math:`\bar\xi`.
        controller: The correction network.
    """
    m = xi.size(-1)
    r = controller.rank(m)
    hidden = F.linear(torch.cat([xi, aggregate], dim=-1), controller.hidden)
    hidden = F.silu(hidden + controller.shared.unsqueeze(1))
    output = F.linear(hidden, controller.output, controller.bias)
    left, right, log_scale = output.split([m * r, m * r, m], dim=-1)
    low_rank = left.unflatten(-1, (m, r)) @ right.unflatten(-1, (m, r)).mT  # (n, B, m, m)
    return torch.cat([strictly_lower_vector(low_rank), log_scale], dim=-1)


def evolve_coordinates(
    coords: Tensor,
    target: Tensor | None,
    correction: Tensor | None,
    *,
    target_mix: float,
    correction_strength: float,
    box: AdmissibleBox,
) -> Tensor:
    r"""Return the next coordinates, Eq. (12), the projected proximal step of Proposition 3 (i).

    Args:
        coords: ``(n, B, t)``, :math:`z`.
        target: ``(n, B, t)``, :math:`\hat z`, or ``None`` for :math:`\hat z = z` (w/o SF).
        correction: ``(n, B, t)``, :math:`\Delta z`, or ``None`` for zero.
        target_mix: :math:`\lambda`.
        correction_strength: :math:`\gamma`.
        box: :math:`\mathcal Z`.
    """
    mixed = coords if target is None else torch.lerp(coords, target, target_mix)
    if correction is not None:
        mixed = torch.add(mixed, correction, alpha=correction_strength)
    return box.project(mixed)

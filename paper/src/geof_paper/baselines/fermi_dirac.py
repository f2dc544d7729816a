r"""The Fermi-Dirac decoder in a flat chart.

.. math::
    p_{uv} = \frac{1}{e^{(d_{uv}^2 - r) / t} + 1}, \qquad
    \operatorname{logit}_{uv} = \frac{r - d_{uv}^2}{t}, \qquad
    d_{uv}^2 = \|z_u - z_v\|^2

with radius :math:`r` and temperature :math:`t`. Reference: Krioukov et al., "Hyperbolic geometry of
complex networks", Physical Review E 2010, as decoder in Chami et al., "Hyperbolic Graph
Convolutional Neural Networks", NeurIPS 2019. Evidence: the equation and the values 2 and 1 from
source. It has no parameters; where the geometry of a method is flat, its squared distance is the
Euclidean one of the chart.
"""

from __future__ import annotations

from torch import Tensor, nn

from geof.methods.interface import Encoding, GraphInputs
from geof.nn.inputs import check_pairs
from geof.options import Positive, checked


class FermiDiracReadout(nn.Module):
    r"""One logit per pair from the squared Euclidean distance of the states.

    Args:
        in_channels: Width of the states; there is nothing to learn, so it is not read.
        radius: :math:`r`, the squared distance at which an edge is as likely as none.
        temperature: :math:`t > 0`.
    """

    @checked
    def __init__(
        self, in_channels: int, *, radius: float = 2.0, temperature: Positive = 1.0
    ) -> None:
        super().__init__()
        self.radius, self.temperature = radius, temperature

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor) -> Tensor:
        """Return the logits of ``pairs`` ``(2, P)``."""
        check_pairs(pairs)
        states = encoding.states
        # index_select sums its gradient in a fixed order.
        difference = states.index_select(0, pairs[0]) - states.index_select(0, pairs[1])
        return (self.radius - difference.square().sum(-1)) / self.temperature

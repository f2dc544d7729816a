r"""GCN as usually written: PyG's own network.

.. math::
    X' = \operatorname{ReLU}(\hat D^{-1/2} (A + I) \hat D^{-1/2} X W + b)

Reference: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks",
ICLR 2017. Evidence: PyG's implementation; its first product also takes sparse features.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch_geometric.nn.models import GCN

from geof.methods.interface import GraphInputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.options import require_number, require_positive


class PlainGCN(nn.Module):
    """PyG's GCN behind the common interface.

    Args:
        in_channels: Width of the features.
        signature_channels: Not used.
        hidden_channels: Width.
        num_layers: Depth.
        dropout: After every layer but the last.
    """

    def __init__(
        self,
        in_channels: int,
        signature_channels: int,
        *,
        hidden_channels: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        require_positive("hidden_channels", hidden_channels)
        require_positive("num_layers", num_layers)
        require_number("dropout", dropout, least=0, below=1)
        self.gcn = GCN(in_channels, hidden_channels, num_layers, dropout=dropout)
        # The same product, for sparse features without making them dense at every pass.
        self.gcn.convs[0].lin = SparseLinear(in_channels, hidden_channels, bias=False)
        self.out_channels = hidden_channels

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the last layer's states."""
        states: Tensor = self.gcn(inputs.x, inputs.edge_index)
        return states


register(Method("gcn", PlainGCN, presets=Path(__file__).parent / "preset_files" / "gcn"))

"""GeoF in a training loop of your own, as any PyG model.

python examples/pyg_loop.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from geof import AddStructuralSignature, GeoF, NodeReadout
from geof.data import digits_graph, random_node_split


class Classifier(nn.Module):
    """GeoF and a readout of classes."""

    def __init__(self, data: Data, hidden_channels: int, num_classes: int) -> None:
        super().__init__()
        width = data.signature.size(1)
        # Wide bounds and a low temperature are the paper's; these suit most graphs better.
        self.encoder = GeoF(
            data.num_features,
            hidden_channels,
            signature_channels=width,
            temperature=64.0,
            normalise="batch",
        )
        self.readout = NodeReadout(hidden_channels, num_classes, dropout=0.5)

    def forward(self, x: Tensor, edge_index: Tensor, signature: Tensor) -> Tensor:
        """Return the logits of all nodes."""
        return self.readout(self.encoder(x, edge_index, signature))


def main(epochs: int = 30) -> float:
    """Train, and return the share of test nodes that are right."""
    torch.manual_seed(0)
    data = AddStructuralSignature()(digits_graph())
    split = random_node_split(data.num_nodes, 0)
    model = Classifier(data, 64, 10)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(1, epochs + 1):
        model.train()
        optimiser.zero_grad()
        logits = model(data.x, data.edge_index, data.signature)
        loss = F.cross_entropy(logits[split.train], data.y[split.train])
        loss.backward()
        optimiser.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        said = model(data.x, data.edge_index, data.signature).argmax(-1)
    right = (said == data.y)[split.test].float().mean().item()
    print(f"test accuracy {100 * right:.1f} %")
    return right


if __name__ == "__main__":
    main()

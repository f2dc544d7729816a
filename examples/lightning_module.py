"""GeoF as a LightningModule. Lightning is no dependency of geof: pip install lightning.

python examples/lightning_module.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from geof import AddStructuralSignature, GeoF, NodeReadout
from geof.data import digits_graph, random_node_split

if TYPE_CHECKING:
    import lightning


def module_of(data: Data, train: Tensor, validation: Tensor) -> lightning.LightningModule:
    """Return a module that learns the classes of the nodes of one graph."""
    import lightning

    class Nodes(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = GeoF(
                data.num_features,
                64,
                signature_channels=data.signature.size(1),
                temperature=64.0,
                normalise="batch",
            )
            self.readout = NodeReadout(64, int(data.y.max()) + 1)

        def forward(self, graph: Data) -> Tensor:
            return self.readout(self.encoder(graph.x, graph.edge_index, graph.signature))

        def training_step(self, batch: list[Data], number: int) -> Tensor:
            loss = F.cross_entropy(self(batch[0])[train], data.y[train])
            self.log("loss", loss, batch_size=1)
            return loss

        def validation_step(self, batch: list[Data], number: int) -> None:
            right = (self(batch[0]).argmax(-1) == data.y)[validation].float().mean()
            self.log("validation_accuracy", right, batch_size=1)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return Nodes()


def main(epochs: int = 30, **trainer: Any) -> float:
    """Train, and return the share of validation nodes that are right."""
    import lightning

    data = AddStructuralSignature()(digits_graph())
    split = random_node_split(data.num_nodes, 0)
    lightning.seed_everything(0, verbose=False)
    module = module_of(data, split.train, split.validation)
    loader = torch.utils.data.DataLoader([data], batch_size=1, collate_fn=list)
    fitter = lightning.Trainer(max_epochs=epochs, accelerator="cpu", **trainer)
    fitter.fit(module, loader, loader)
    right = fitter.callback_metrics["validation_accuracy"].item()
    print(f"validation accuracy {100 * right:.1f} %")
    return right


if __name__ == "__main__":
    main(logger=False, enable_checkpointing=False)

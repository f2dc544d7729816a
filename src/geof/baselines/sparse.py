"""What several methods need of a graph or of sparse features, derived once and kept with it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_csr_tensor

from geof.model.graph_inputs import GraphInputs


class SparseLinear(nn.Linear):
    """A linear layer that also takes sparse rows, without making them dense."""

    def forward(self, x: Tensor) -> Tensor:
        """Return :math:`x W^T + b`."""
        if x.layout == torch.strided:
            return super().forward(x)
        product: Tensor = torch.sparse.mm(x, self.weight.t())
        return product if self.bias is None else product + self.bias


def normalised_adjacency(inputs: GraphInputs) -> Tensor:
    r"""Return :math:`\hat D^{-1/2} (A + I) \hat D^{-1/2}` in CSR form, ``(n, n)``.

    Rows are targets and degrees count in-neighbours, which matters for sampled neighbourhoods:
    their edges lead towards the seeds only.
    """
    kept, dtype = inputs.edges.kept, inputs.x.dtype
    key = f"normalised_adjacency {dtype}"
    if key not in kept:
        nodes = inputs.x.size(0)
        edge_index, weight = gcn_norm(inputs.edge_index, num_nodes=nodes, dtype=dtype)
        with warnings.catch_warnings():  # torch calls its CSR support a beta
            warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
            kept[key] = to_torch_csr_tensor(edge_index.flip(0), weight, size=(nodes, nodes))
    adjacency: Tensor = kept[key]
    return adjacency

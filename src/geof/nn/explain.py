"""Where PyG's explainers put the mask over a graph's edges."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing


class EdgeMask(MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """The part of a step that ``torch_geometric.explain.Explainer`` knows, without parameters.

    PyG looks for layers of its own and sets a mask on them. Here the mask is a factor on the
    weights of edges before they are normalised, as ``edge_weight`` is; a node always hears itself.
    """

    explain: bool | None = None  # a property there, for layers that build their own messages

    def __init__(self) -> None:
        nn.Module.__init__(self)  # nothing is propagated here: PyG's own would write a template
        self._edge_mask: Tensor | None = None
        self._loop_mask: Tensor | None = None
        self._apply_sigmoid = True

    __setstate__ = nn.Module.__setstate__  # PyG's looks for what its own constructor makes

    def on(self, edge_weight: Tensor | None) -> Tensor | None:
        """Return the weights of the given edges under the mask, if there is one."""
        mask = self._edge_mask
        if self.explain is not True or mask is None:
            return edge_weight
        factor = mask.sigmoid() if self._apply_sigmoid else mask
        return factor if edge_weight is None else edge_weight * factor

    def __repr__(self) -> str:
        return "EdgeMask()"

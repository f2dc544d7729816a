"""GeoF as a method of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from geof.kernels import Neighbourhoods
from geof.methods.interface import GraphInputs
from geof.methods.registry import Method, register
from geof.nn.geof import GeoF


class GeoFEncoder(nn.Module):
    """GeoF behind the common interface: :class:`GraphInputs` to ``(n, out_channels)``."""

    def __init__(
        self,
        in_channels: int,
        signature_channels: int,
        edge_categories: Sequence[int] = (),
        edge_channels: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        if isinstance(options.get("log_scale_bounds"), list):  # as JSON and YAML write a pair
            options["log_scale_bounds"] = tuple(options["log_scale_bounds"])
        self.geof = GeoF(
            in_channels,
            signature_channels=signature_channels,
            edge_categories=edge_categories,
            edge_channels=edge_channels,
            **options,
        )
        self.out_channels = self.geof.out_channels

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the environment states."""
        states: Tensor = self.geof(inputs.x, self.edges_of(inputs), inputs.signature)
        return states

    def edges_of(self, inputs: GraphInputs) -> Neighbourhoods:
        """Return the neighbourhoods, with what the edges carry."""
        weight, attributes = inputs.edge_weight, inputs.edge_attr
        return self.geof.neighbourhoods(inputs.edges, inputs.x.size(0), weight, attributes)


register(
    Method(
        "geof",
        GeoFEncoder,
        documented=GeoF,
        presets=Path(__file__).parent / "preset_files" / "geof",
    )
)

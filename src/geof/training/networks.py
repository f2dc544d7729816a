"""An encoder with the readout of its task, built by name so that a run folder can rebuild it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch_geometric.nn.models import GCN

from geof.errors import ConfigError, nearest
from geof.model import GeoF, GraphReadout, LinkReadout, NodeReadout
from geof.model.graph_inputs import GraphInputs

TaskKind: TypeAlias = Literal["node", "link", "graph"]


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network again.

    Attributes:
        encoder: A key of :data:`ENCODERS`.
        options: The encoder's own arguments.
        task: What the readout is for.
        in_channels: Width of the features.
        signature_channels: Width of the signatures.
        num_classes: Number of classes; not read for links.
    """

    encoder: str
    options: Mapping[str, Any]
    task: TaskKind
    in_channels: int
    signature_channels: int
    num_classes: int

    def as_json(self) -> dict[str, Any]:
        """Return the specification as plain JSON values."""
        return {**asdict(self), "options": dict(self.options)}


def geof_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of :class:`~geof.model.GeoF`, given or by default.

    Raises:
        ConfigError: For an option it does not have, naming the nearest.
    """
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(GeoF).parameters.items()
        if name not in ("in_channels", "signature_channels")
    }
    for name in options:
        if name not in own:
            raise ConfigError(f"Unknown option 'model.{name}' of GeoF. " + nearest(name, own))
    chosen = {**own, **options}
    if isinstance(chosen["log_scale_bounds"], list):  # as JSON writes a pair
        chosen["log_scale_bounds"] = tuple(chosen["log_scale_bounds"])
    return chosen


class GeoFEncoder(nn.Module):
    """GeoF behind the common contract: :class:`GraphInputs` to ``(n, out_channels)``."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.options = geof_options(spec.options)
        self.geof = GeoF(
            spec.in_channels, signature_channels=spec.signature_channels, **self.options
        )
        self.out_channels = self.geof.hidden_channels

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the environment states."""
        states: Tensor = self.geof(inputs.x, inputs.edges, inputs.signature)
        return states


class GcnEncoder(nn.Module):
    """PyG's GCN as usually written, width 64 and dropout 0.5 unless told otherwise."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.options = {"hidden_channels": 64, "num_layers": 2, "dropout": 0.5, **spec.options}
        try:
            self.gcn = GCN(spec.in_channels, **self.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Expected options of PyG's GCN ({error}).") from error
        self.out_channels = int(self.options["hidden_channels"])

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the last layer's states."""
        dense = inputs.x if not inputs.x.is_sparse_csr else inputs.x.to_dense()
        states: Tensor = self.gcn(dense, inputs.edge_index)
        return states


ENCODERS: dict[str, type[GeoFEncoder | GcnEncoder]] = {"geof": GeoFEncoder, "gcn": GcnEncoder}
"""Encoders by name."""


class Network(nn.Module):
    """An encoder and the readout of one task.

    Args:
        spec: What to build.

    Raises:
        ConfigError: If there is no such encoder or an option is not one of its own.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        if spec.encoder not in ENCODERS:
            raise ConfigError(
                f"Expected 'model' to name an encoder (got {spec.encoder!r}). "
                + nearest(spec.encoder, ENCODERS)
            )
        self.encoder = ENCODERS[spec.encoder](spec)
        self.spec = replace(spec, options=self.encoder.options)  # defaults written out
        width = self.encoder.out_channels
        self.readout: nn.Module
        if spec.task == "node":
            self.readout = NodeReadout(width, spec.num_classes)
        elif spec.task == "graph":
            self.readout = GraphReadout(width, spec.num_classes)
        else:
            self.readout = LinkReadout(width)
        self.task = spec.task

    def forward(self, inputs: GraphInputs, pairs: Tensor | None = None) -> Tensor:
        """Return logits: ``(n, C)`` for nodes, ``(G, C)`` for graphs, ``(P,)`` for pairs."""
        states = self.encoder(inputs)
        if self.task == "node":
            logits: Tensor = self.readout(states)
        elif self.task == "graph":
            logits = self.readout(states, inputs.batch, inputs.num_graphs)
        else:
            logits = self.readout(states, pairs)
        return logits

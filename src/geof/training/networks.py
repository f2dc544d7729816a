"""An encoder with the readout of its task, built by name so that a run folder can rebuild it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn

from geof.baselines import ClassicGCN, PlainGCN
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
        readout: The readout's own arguments.
    """

    encoder: str
    options: Mapping[str, Any]
    task: TaskKind
    in_channels: int
    signature_channels: int
    num_classes: int
    readout: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the specification as plain JSON values."""
        return {**asdict(self), "options": dict(self.options), "readout": dict(self.readout)}


class GeoFEncoder(nn.Module):
    """GeoF behind the common contract: :class:`GraphInputs` to ``(n, out_channels)``."""

    def __init__(self, in_channels: int, signature_channels: int, **options: Any) -> None:
        super().__init__()
        if isinstance(options.get("log_scale_bounds"), list):  # as JSON and YAML write a pair
            options["log_scale_bounds"] = tuple(options["log_scale_bounds"])
        self.geof = GeoF(in_channels, signature_channels=signature_channels, **options)
        self.out_channels = self.geof.out_channels

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the environment states."""
        states: Tensor = self.geof(inputs.x, inputs.edges, inputs.signature)
        return states


@dataclass(frozen=True)
class Encoder:
    """How to build an encoder.

    Attributes:
        build: Takes ``in_channels``, ``signature_channels`` and options, returns a module from
            :class:`GraphInputs` to ``(n, out_channels)``.
        documented: What has the options as keyword arguments with defaults.
    """

    build: Callable[..., nn.Module]
    documented: Callable[..., object]


ENCODERS: dict[str, Encoder] = {
    "geof": Encoder(GeoFEncoder, GeoF),
    "gcn": Encoder(PlainGCN, PlainGCN),
    "gcn-classic": Encoder(ClassicGCN, ClassicGCN),
}
"""Encoders by name."""

READOUTS: dict[TaskKind, Callable[..., nn.Module]] = {
    "node": NodeReadout,
    "link": LinkReadout,
    "graph": GraphReadout,
}
"""Readouts by task."""


def encoder_options(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of an encoder, given or by default.

    Raises:
        ConfigError: For an encoder or an option that does not exist, naming the nearest.
    """
    if encoder not in ENCODERS:
        raise ConfigError(
            f"Expected 'model' to name an encoder (got {encoder!r}). " + nearest(encoder, ENCODERS)
        )
    return _with_defaults("model", ENCODERS[encoder].documented, options)


def readout_options(task: TaskKind, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of a task's readout, given or by default.

    Raises:
        ConfigError: For an option it does not have, naming the nearest.
    """
    return _with_defaults("readout", READOUTS[task], options)


def _with_defaults(
    section: str, documented: Callable[..., object], options: Mapping[str, Any]
) -> dict[str, Any]:
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(documented).parameters.items()
        if name not in ("in_channels", "signature_channels", "num_classes")
    }
    for name in options:
        if name not in own:
            raise ConfigError(f"Unknown option '{section}.{name}'. " + nearest(name, own))
    return {**own, **options}


class Network(nn.Module):
    """An encoder and the readout of one task.

    Args:
        spec: What to build.

    Raises:
        ConfigError: If there is no such encoder or an option is not one of its own.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        options = encoder_options(spec.encoder, spec.options)
        readout = readout_options(spec.task, spec.readout)
        build = ENCODERS[spec.encoder].build
        self.encoder = build(spec.in_channels, spec.signature_channels, **options)
        self.spec = replace(spec, options=options, readout=readout)  # defaults written out
        width = self.encoder.out_channels
        sizes = (width,) if spec.task == "link" else (width, spec.num_classes)
        self.readout = READOUTS[spec.task](*sizes, **readout)
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

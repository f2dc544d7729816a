"""An encoder with the readout of its task, built by name so that a run folder can rebuild it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from geof.methods.interface import GIVEN, Encoding, GraphInputs, Outputs, TaskKind
from geof.methods.registry import get_method, method_options, readout_of, readout_options


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
        num_nodes: Of the one graph of a node or link task.
        num_edges: Columns of the ``edge_index`` its messages run along.
    """

    encoder: str
    options: Mapping[str, Any]
    task: TaskKind
    in_channels: int
    signature_channels: int
    num_classes: int
    readout: Mapping[str, Any] = field(default_factory=dict)
    num_nodes: int | None = None
    num_edges: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the specification as plain JSON values."""
        return {**asdict(self), "options": dict(self.options), "readout": dict(self.readout)}


def _named(build: Callable[..., nn.Module], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given values that a function asks for by name."""
    wanted = inspect.signature(build).parameters
    return {name: value for name, value in given.items() if name in wanted}


class Network(nn.Module):
    """An encoder and the readout of one task.

    Args:
        spec: What to build.

    Raises:
        ConfigError: If there is no such encoder or an option is not one of its own.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        options = method_options(spec.encoder, spec.options)
        readout = readout_options(spec.encoder, spec.task, spec.readout)
        self.spec = replace(spec, options=options, readout=readout)  # defaults written out
        given = {name: getattr(spec, name) for name in GIVEN}
        method = get_method(spec.encoder)
        build = method.build
        self.encoder = build(**_named(build, given), **options)
        kind = readout.get("kind", "shared")
        self.has_own_readout = kind == "own"
        make = readout_of(method, spec.task, kind)
        given["in_channels"] = self.encoder.out_channels
        own = {name: value for name, value in readout.items() if name != "kind"}
        self.readout = make(**_named(make, given), **own)
        self.task = spec.task
        self._frozen: object | None = None

    def freeze_encoder(self) -> None:
        """From now on train the readout alone; the encoder is in evaluation mode."""
        self._frozen = object()  # whose encodings are kept with the graph: this encoder's, now
        self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Network:
        """Set the mode of all but a frozen encoder."""
        super().train(mode)
        if self._frozen is not None:
            self.encoder.eval()
        return self

    def forward(self, inputs: GraphInputs, pairs: Tensor | None = None) -> Tensor:
        """Return logits: ``(n, C)`` for nodes, ``(G, C)`` for graphs, ``(P,)`` for pairs."""
        return self.outputs(inputs, pairs).prediction

    def outputs(self, inputs: GraphInputs, pairs: Tensor | None = None) -> Outputs:
        """Return the logits and all that training grades."""
        return self.read(self.encode(inputs), inputs, pairs)

    def encode(self, inputs: GraphInputs) -> Encoding:
        """Return what the encoder makes of the inputs."""
        if self._frozen is None:
            return Encoding.of(self.encoder(inputs))
        with torch.no_grad():
            encoding = inputs.cached(self._frozen, lambda: Encoding.of(self.encoder(inputs)))
        return replace(encoding, penalty=None)

    def read(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
        """Return what the readout makes of an encoding of the inputs."""
        if self.has_own_readout:
            outputs = self.readout(encoding, inputs, pairs)
            if not isinstance(outputs, Outputs):
                outputs = Outputs(outputs)
        elif self.task == "node":
            outputs = Outputs(self.readout(encoding.states))
        elif self.task == "graph":
            outputs = Outputs(self.readout(encoding.states, inputs.batch, inputs.num_graphs))
        else:
            outputs = Outputs(self.readout(encoding.states, pairs))
        if encoding.penalty is None:
            return outputs
        penalty = encoding.penalty
        return replace(
            outputs, penalty=penalty if outputs.penalty is None else outputs.penalty + penalty
        )

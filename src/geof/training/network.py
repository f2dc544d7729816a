"""A method with the readout of its task, built from a config, so that a run can be rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from geof.methods.interface import Encoding, GraphInputs, InputShape, Outputs
from geof.methods.registry import get_method, readout_of
from geof.options import arguments
from geof.training.config import RunConfig


class Network(nn.Module):
    """A method's encoder and the readout of one task.

    Args:
        config: Which method, task, options and readout.
        shape: Sizes of the data.

    Raises:
        ConfigError: If an option has a value the method refuses.
    """

    def __init__(self, config: RunConfig, shape: InputShape) -> None:
        super().__init__()
        self.config, self.shape, self.task = config, shape, config.task
        method = get_method(config.method)
        given = {**asdict(shape), "task": config.task}
        self.encoder = method.build(**_named(method.build, given), **config.options)
        kind = config.readout.get("kind", "shared")
        self.has_own_readout = kind == "own"
        make = readout_of(method, config.task, kind)
        given["in_channels"] = self.encoder.out_channels
        own = {name: value for name, value in config.readout.items() if name != "kind"}
        self.readout = make(**_named(make, given), **own)
        self._frozen: object | None = None

    def freeze_encoder(self) -> None:
        """From now on train the readout alone; the encoder is in evaluation mode."""
        self._frozen = object()  # key of what is cached with a graph: this encoder's, as it is now
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


def _named(build: Callable[..., nn.Module], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given values that a function asks for by name."""
    wanted = arguments(build)
    return {name: value for name, value in given.items() if name in wanted}

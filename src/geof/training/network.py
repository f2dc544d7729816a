"""A method with the readout of its task, built from a config, so that a run can be rebuilt.

Where its numbers stop being finite, a diagnosis says which quantity, at which step, and how many
blocks were rescued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from geof.errors import GeofError
from geof.methods.geof import GeoFEncoder
from geof.methods.interface import Encoding, GraphInputs, InputShape, Outputs
from geof.methods.registry import get_method, readout_of
from geof.nn.inputs import all_finite
from geof.options import arguments
from geof.training.config import RunConfig

if TYPE_CHECKING:
    from geof.training.ranks import Ranks


class Network(nn.Module):
    """A method's encoder and the readout of one task.

    Args:
        config: Which method, task, options and readout.
        shape: Sizes of the data.

    Raises:
        ConfigError: If an option has a value the method refuses.
    """

    ranks: Ranks  # the processes that train it, where there are several

    def __init__(self, config: RunConfig, shape: InputShape) -> None:
        super().__init__()
        self.config, self.shape, self.task = config, shape, config.task
        method = get_method(config.method)
        given = {**asdict(shape), "task": config.task}
        self.encoder = method.build(**_named(method.build, given), **config.options)
        kind = config.readout.get("kind", "shared")
        self.has_own_readout = kind == "own"
        make = readout_of(method, config.task, kind)
        given |= {"in_channels": self.encoder.out_channels, "feature_channels": shape.in_channels}
        own = {name: value for name, value in config.readout.items() if name != "kind"}
        self.readout = make(**_named(make, given), **own)
        self._frozen: object | None = None

    @property
    def lowered(self) -> torch.dtype | None:
        """What dense layers compute in, where it is not the network's own precision."""
        precision = self.config.training.precision
        return None if precision is None else _LOWERED[precision]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which dense layers compute in the config's precision."""
        if self.lowered is None:
            return nullcontext()
        return torch.autocast(next(self.parameters()).device.type, self.lowered)

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
            return self._encoded(inputs)
        with torch.no_grad():
            encoding = inputs.cached(self._frozen, lambda: self._encoded(inputs))
        return replace(encoding, penalty=None)

    def _encoded(self, inputs: GraphInputs) -> Encoding:
        with self.autocast():
            encoding = Encoding.of(self.encoder(inputs))
        if self.lowered is None:
            return encoding
        return replace(encoding, states=encoding.states.to(inputs.signature.dtype))

    def read(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
        """Return what the readout makes of an encoding of the inputs."""
        with self.autocast():
            outputs = self._read(encoding, inputs, pairs)
        if self.lowered is None:
            return outputs
        dtype, graded = inputs.signature.dtype, outputs.graded
        if graded is not None:
            graded = [(weight, logits.to(dtype)) for weight, logits in graded]
        return replace(outputs, prediction=outputs.prediction.to(dtype), graded=graded)

    def _read(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
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


_LOWERED = {"bf16": torch.bfloat16, "float16": torch.float16}


def _named(build: Callable[..., nn.Module], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given values that a function asks for by name."""
    wanted = arguments(build)
    return {name: value for name, value in given.items() if name in wanted}


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        quantity: The first quantity that is not finite.
        step: The recurrent step (from 1) it belongs to, where it belongs to one.
        retried_blocks: Per recurrent step, the blocks whose Cholesky factor needed more than the
            first jitter, as far as steps could be taken.
    """

    quantity: str
    step: int | None
    retried_blocks: tuple[int, ...]

    def __str__(self) -> str:
        where = "" if self.step is None else f" at recurrent step {self.step}"
        steps = ", ".join(map(str, self.retried_blocks)) or "none reached"
        first = self.quantity.rstrip(".")
        return f"First not finite: {first}{where}. Blocks jittered again per step: {steps}."


@torch.no_grad()
def diagnose(network: Network, inputs: GraphInputs | None, symptom: str) -> Diagnosis:
    """Return where numbers stop being finite.

    Args:
        network: As it was when it happened.
        inputs: What it was given last.
        symptom: What was noticed; the answer when nothing before it is found.
    """
    bad = _not_finite(network.named_parameters())
    quantity = f"parameter {bad}" if bad else symptom
    encoder = network.encoder
    if inputs is None or not isinstance(encoder, GeoFEncoder):
        return Diagnosis(quantity, None, ())
    found, step, retried = _walk(encoder, inputs)
    return Diagnosis(quantity if bad or found is None else found, step, retried)


def bad_gradient(network: Network) -> str | None:
    """Return the name of the first parameter whose gradient is not finite."""
    return _not_finite((n, p.grad) for n, p in network.named_parameters() if p.grad is not None)


def _walk(
    encoder: GeoFEncoder, inputs: GraphInputs
) -> tuple[str | None, int | None, tuple[int, ...]]:
    """Take the steps one by one up to the first that is not finite."""
    retried: list[int] = []
    model, edges = encoder.geof, encoder.edges_of(inputs)
    training = model.training
    model.eval()
    try:
        state = model.initial_state(inputs.x, inputs.signature)
        for step in range(model.steps):
            state, trace = model.step(state, edges, inputs.signature, step, trace=True)
            retried.append(int(trace.retried_blocks))
            state = model.refined(state, step)
            for name in ("features", "coordinates"):
                if not all_finite(getattr(state, name)):
                    return name, step + 1, tuple(retried)
    except GeofError as error:
        first_sentence = str(error).split(". ")[0].removeprefix("Expected ")
        return first_sentence, len(retried) + 1, tuple(retried)
    finally:
        model.train(training)
    return None, None, tuple(retried)


def _not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    return next((name for name, value in named if not all_finite(value)), None)

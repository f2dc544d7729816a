"""Why a run stopped being finite: which quantity, at which step, how many blocks were rescued."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from geof.errors import GeofError
from geof.methods.builtin import GeoFEncoder
from geof.methods.interface import GraphInputs
from geof.nn import GeoF
from geof.nn.inputs import all_finite
from geof.training.network import Network


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
    found, step, retried = _walk(encoder.geof, inputs)
    return Diagnosis(quantity if bad or found is None else found, step, retried)


def bad_gradient(network: Network) -> str | None:
    """Return the name of the first parameter whose gradient is not finite."""
    return _not_finite((n, p.grad) for n, p in network.named_parameters() if p.grad is not None)


def _walk(model: GeoF, inputs: GraphInputs) -> tuple[str | None, int | None, tuple[int, ...]]:
    """Take the steps one by one up to the first that is not finite."""
    retried: list[int] = []
    training = model.training
    model.eval()
    try:
        state = model.initial_state(inputs.x, inputs.signature)
        for step in range(model.steps):
            state, trace = model.step(state, inputs.edges, inputs.signature, step, trace=True)
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

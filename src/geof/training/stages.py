"""How the stages of a run are optimised: their options."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from geof.devices import AUTO, require_device_name
from geof.errors import ConfigError
from geof.options import Count, Options, Positive
from geof.training.metrics import metric_named

Optimiser: TypeAlias = Literal["adam", "adamw"]
Schedule: TypeAlias = Literal["constant", "cosine", "step"]
Precision: TypeAlias = Literal["float32", "bf16", "float16"]

ClassWeights: TypeAlias = Literal["none", "balanced"] | tuple[Positive, ...]


UNDECISIVE = ("device",)
"""Training options that say where a run is computed and not what comes out."""


@dataclass(frozen=True)
class TrainingConfig(Options):
    """How to optimise, and what one optimiser step sees."""

    epochs: Annotated[Count, Field(description="Most passes over the training part.")] = 200
    patience: Annotated[
        Count | None,
        Field(description="Stop after so many epochs without a better one on validation."),
    ] = None
    learning_rate: Annotated[
        float, Field(gt=0, description="The highest the schedule reaches.")
    ] = 1e-2
    weight_decay: Annotated[
        float, Field(ge=0, description="An L2 penalty for Adam, decoupled for AdamW.")
    ] = 5e-4
    optimiser: Annotated[Optimiser, Field(description="Adam or AdamW.")] = "adam"
    schedule: Annotated[
        Schedule,
        Field(
            description="Of the learning rate: constant, cosine down to zero over the epochs, or "
            "step."
        ),
    ] = "constant"
    decay_every: Annotated[
        Count | None,
        Field(description="With schedule=step: epochs from one fall of the rate to the next."),
    ] = None
    decay_factor: Annotated[
        float | None,
        Field(gt=0, lt=1, description="With schedule=step: what the rate is multiplied with."),
    ] = None
    warmup: Annotated[
        int, Field(ge=0, description="Epochs over which the rate rises linearly at the start.")
    ] = 0
    clip: Annotated[
        float | None, Field(gt=0, description="Largest norm of all gradients together.")
    ] = None
    evaluate_every: Annotated[
        Count,
        Field(description="Epochs from one look at validation to the next; the last one looks."),
    ] = 1
    deterministic: Annotated[
        bool,
        Field(description="Sum gradients in a fixed order: same command, same machine, same bits."),
    ] = True
    seed: Annotated[
        int | None,
        Field(
            ge=0,
            lt=2**63,  # as far as torch counts
            description="Of initialisation, dropout and order; the split's number if not.",
        ),
    ] = None
    batch_size: Annotated[
        Count | None,
        Field(
            description="Graphs per step (64), or, with fanouts, nodes or training pairs; a single "
            "graph is seen whole without it."
        ),
    ] = None
    fanouts: Annotated[
        tuple[int, ...] | None,
        Field(
            description="Neighbours to draw per node, one number per hop; whole neighbourhoods "
            "without. Evaluation always uses the whole graph."
        ),
    ] = None
    hidden_edges: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Links: share of the training edges that an epoch predicts and hides from "
            "its messages. Without it all are both, as the paper's loss has it; a network that "
            "sees the very edges it is asked about learns to look them up.",
        ),
    ] = None
    edge_dropout: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Share of the edges, both directions together, that a training step leaves "
            "out of the messages; evaluation sees all.",
        ),
    ] = None
    weight_averaging: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Share of the old in a running average of the weights, renewed after every "
            "step; validation and the result use the average.",
        ),
    ] = None
    metric: Annotated[
        str | None,
        Field(
            description="What chooses the epoch: accuracy, balanced_accuracy, macro_f1, roc_auc, "
            "average_precision, mrr, hits@K, rmse, mae or r2, as the task admits."
        ),
    ] = None
    class_weights: Annotated[
        ClassWeights | None,
        Field(
            description="Of the loss: none, balanced (by how rare a class is in the training part) "
            "or one per class; for yes-or-no targets, of the positive label."
        ),
    ] = None
    precision: Annotated[
        Precision | None,
        Field(
            description="Of dense layers: float32 (the network's own, the default), or bf16 or "
            "float16 by torch's autocast. Geometry and losses stay in float32."
        ),
    ] = None
    device: Annotated[
        str | None,
        Field(
            description="Where to compute: auto (a CUDA device where there is one, else the CPU), "
            "cpu, cuda, cuda:1, mps or xpu. It does not decide what a run is."
        ),
    ] = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric is not None:
            metric_named(self.metric)
        if self.class_weights == "none":
            object.__setattr__(self, "class_weights", None)
        if self.precision == "float32":
            object.__setattr__(self, "precision", None)
        if self.device is not None:
            require_device_name(self.device)
        if self.device == AUTO:
            object.__setattr__(self, "device", None)
        steps = (self.decay_every, self.decay_factor)
        if any((value is not None) != (self.schedule == "step") for value in steps):
            raise ConfigError(
                "Expected 'decay_every' and 'decay_factor' with schedule 'step', and neither with "
                f"another (got {self.schedule!r} with {self.decay_every} and {self.decay_factor})."
            )
        if self.fanouts is not None and self.hidden_edges is not None:
            raise ConfigError("Expected 'fanouts' or 'hidden_edges' (got both).")
        if self.fanouts is not None and self.batch_size is None:
            raise ConfigError("Expected 'batch_size' beside 'fanouts' (got none).")

    def learning_rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, from 1: a function of its number alone.

        >>> [round(TrainingConfig(epochs=4, schedule="cosine").learning_rate_at(e), 4)
        ...  for e in (1, 2, 3, 4)]
        [0.01, 0.0085, 0.005, 0.0015]
        """
        rate = self.learning_rate
        if self.warmup:
            rate *= min(1.0, epoch / self.warmup)
        if self.schedule == "cosine":
            rate *= 0.5 * (1.0 + math.cos(math.pi * (epoch - 1) / self.epochs))
        if self.decay_every is not None and self.decay_factor is not None:
            rate *= self.decay_factor ** ((epoch - 1) // self.decay_every)
        return rate

    def looks_at(self, epoch: int) -> bool:
        """Return whether validation is looked at after an epoch."""
        return epoch % self.evaluate_every == 0 or epoch == self.epochs


@dataclass(frozen=True)
class PretrainingConfig(Options):
    """The stage before the task's, for methods that have one: no labels, no look at validation."""

    epochs: Annotated[
        int,
        Field(ge=0, description="How many, counted before those of the task; 0 for no such stage."),
    ] = 0
    learning_rate: Annotated[float, Field(gt=0, description="Constant.")] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, description="Of Adam.")] = 0.0
    freeze: Annotated[
        bool,
        Field(
            description="Whether the method stays as it is afterwards, so that the readout is a "
            "probe, or is trained on with the task."
        ),
    ] = True

    @classmethod
    def _place(cls) -> str:
        return "pretraining."

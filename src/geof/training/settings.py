"""How a run is trained: typed, checked, with the same names in Python, YAML and on the shell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from geof.errors import ConfigError
from geof.options import known_options, require_number, require_option, require_positive

Optimiser: TypeAlias = Literal["adam", "adamw"]
Schedule: TypeAlias = Literal["constant", "cosine", "step"]

SELECTION = "highest validation metric, then lowest validation loss, then earliest epoch"


@dataclass(frozen=True)
class TrainSettings:
    """How to optimise.

    Attributes:
        epochs: Most passes over the training part.
        patience: Stop after this many epochs without a better one on validation; ``None`` for
            never.
        learning_rate: The highest the schedule reaches.
        weight_decay: Of the optimiser: an L2 penalty for Adam, decoupled for AdamW.
        optimiser: ``"adam"`` or ``"adamw"``.
        schedule: ``"constant"``, ``"cosine"`` from the learning rate down to zero over the epochs,
            or ``"step"``.
        decay_every: With ``schedule="step"``: epochs from one fall of the learning rate to the
            next.
        decay_factor: With ``schedule="step"``: what it is multiplied with.
        warmup: Epochs over which the learning rate rises linearly at the start.
        clip: Largest norm of all gradients together; ``None`` for no limit.
        evaluate_every: Epochs from one look at validation to the next; the last epoch always
            looks.
        deterministic: Sum gradients in a fixed order, so that the same command on the same machine
            gives the same bits.
        seed: Seed of initialisation and dropout.
    """

    epochs: int = 200
    patience: int | None = None
    learning_rate: float = 1e-2
    weight_decay: float = 5e-4
    optimiser: Optimiser = "adam"
    schedule: Schedule = "constant"
    decay_every: int | None = None
    decay_factor: float | None = None
    warmup: int = 0
    clip: float | None = None
    evaluate_every: int = 1
    deterministic: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("epochs", self.epochs)
        if self.patience is not None:
            require_positive("patience", self.patience)
        require_number("learning_rate", self.learning_rate, above=0)
        require_number("weight_decay", self.weight_decay, least=0)
        require_option("optimiser", self.optimiser, get_args(Optimiser))
        require_option("schedule", self.schedule, get_args(Schedule))
        self._check_steps()
        require_positive("warmup", self.warmup, least=0)
        if self.clip is not None:
            require_number("clip", self.clip, above=0)
        require_positive("evaluate_every", self.evaluate_every)
        if not isinstance(self.deterministic, bool):
            raise ConfigError(
                f"Expected 'deterministic' to be True or False (got {self.deterministic!r})."
            )
        require_positive("seed", self.seed, least=0)

    def _check_steps(self) -> None:
        given = (self.decay_every, self.decay_factor)
        if (self.schedule == "step") != all(value is not None for value in given) or (
            self.schedule != "step" and any(value is not None for value in given)
        ):
            raise ConfigError(
                "Expected 'decay_every' and 'decay_factor' with schedule 'step', and neither with "
                f"another (got {self.schedule!r} with {self.decay_every} and {self.decay_factor})."
            )
        if self.decay_every is not None and self.decay_factor is not None:
            require_positive("decay_every", self.decay_every)
            require_number("decay_factor", self.decay_factor, above=0, below=1)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> TrainSettings:
        """Build from keywords, refusing an unknown one.

        Raises:
            ConfigError: Naming the nearest valid keyword.
        """
        return cls(**known_options(cls, options))

    def learning_rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, from 1: a function of its number alone.

        >>> [round(TrainSettings(epochs=4, schedule="cosine").learning_rate_at(e), 4)
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
class PretrainSettings:
    """The stage before the task's, for methods that have one: no labels, no look at validation.

    Attributes:
        epochs: How many; 0 for no such stage. They are counted before those of ``epochs``.
        learning_rate: Constant.
        weight_decay: Of Adam.
        freeze: Whether the encoder stays as it is afterwards, so that the readout is a probe, or is
            trained on with the task.
    """

    epochs: int = 0
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    freeze: bool = True

    def __post_init__(self) -> None:
        require_positive("pretraining.epochs", self.epochs, least=0)
        require_number("pretraining.learning_rate", self.learning_rate, above=0)
        require_number("pretraining.weight_decay", self.weight_decay, least=0)
        if not isinstance(self.freeze, bool):
            raise ConfigError(
                f"Expected 'pretraining.freeze' to be True or False (got {self.freeze!r})."
            )

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> PretrainSettings:
        """Build from keywords, refusing an unknown one.

        Raises:
            ConfigError: Naming the nearest valid keyword.
        """
        return cls(**known_options(cls, options, "pretraining."))


@dataclass(frozen=True)
class BatchSettings:
    """What one optimiser step sees.

    Attributes:
        batch_size: Graphs, or, with ``fanouts``, nodes or training pairs per step; ``None`` for
            64 graphs, and for the whole graph where there is only one.
        fanouts: Neighbours to draw per node, one number per hop; ``None`` for whole
            neighbourhoods. Evaluation always uses the whole graph.
        hidden_edges: For links: share of the training edges to predict in an epoch, drawn anew each
            time and hidden from its messages; ``None`` predicts all of them with all of them in the
            messages, as the paper's loss has it. A network that sees the very edges it is asked
            about learns to look them up, and held-out edges cannot be looked up.
    """

    batch_size: int | None = None
    fanouts: tuple[int, ...] | None = None
    hidden_edges: float | None = None

    def __post_init__(self) -> None:
        if self.hidden_edges is not None:
            require_number("hidden_edges", self.hidden_edges, above=0, below=1)
            if self.fanouts is not None:
                raise ConfigError("Expected 'fanouts' or 'hidden_edges' (got both).")
        if self.batch_size is not None:
            require_positive("batch_size", self.batch_size)
        if self.fanouts is not None:
            if not isinstance(self.fanouts, list | tuple):
                raise ConfigError(
                    f"Expected 'fanouts' to be a list such as [10, 10] (got {self.fanouts!r})."
                )
            object.__setattr__(self, "fanouts", tuple(self.fanouts))
            if self.batch_size is None:
                raise ConfigError("Expected 'batch_size' beside 'fanouts' (got none).")

"""GeoF as a method of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from geof.kernels import Neighbourhoods
from geof.methods.interface import Choice, DataFacts, GraphInputs
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


LARGE = 20_000
"""Examples from which an epoch teaches enough for a larger step and less dropout."""


SMALL = 0.001
"""Mean variance of columns below which first states vanish beside what normalisation adds.

An entry of the first state has a third of it. Running averages begin at 1 and come a tenth nearer
per epoch: 66 epochs to 0.001, while validation sees states that are divided by too much.
"""


def choose(facts: DataFacts) -> list[Choice]:
    """Return what follows from the data, for the preset ``auto``."""
    choices: list[Choice] = []
    if facts.words:
        why = f"features are words: non-negative, most of {facts.channels} columns zero in a row"
        choices.append(Choice("options.scale_features", True, why))
        choices.append(Choice("options.feature_dropout", 0.5, why))
    elif facts.variance < SMALL and facts.task != "graph" and not facts.constant:
        why = f"columns vary by {facts.variance:.1g} on average: too little to be normalised"
        choices.append(Choice("options.scale_features", True, why))
    if facts.constant:
        why = "all nodes have the same features: degrees and return probabilities join them"
        choices.append(Choice("options.signature_features", True, why))
    if facts.examples >= LARGE:
        why = f"{facts.examples} examples"
        choices.append(Choice("epochs", 30 if facts.task == "graph" else 100, why))
        if facts.task == "node":
            choices.append(Choice("learning_rate", 0.01, why))
            choices.append(Choice("options.dropout", 0.0, why))
    if facts.task == "graph" and facts.examples >= LARGE // 10:
        choices.append(Choice("learning_rate", 0.003, f"{facts.examples} graphs"))
    return choices


register(
    Method(
        "geof",
        GeoFEncoder,
        documented=GeoF,
        presets=Path(__file__).parent / "preset_files" / "geof",
        choose=choose,
    )
)

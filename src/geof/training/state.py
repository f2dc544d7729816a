"""Everything a run needs to go on as if it had never stopped, in one file and its predecessor."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geof.errors import DataError
from geof.training.checkpoint import load_tensors, read_tensors, write_tensors
from geof.training.network import Network

CURRENT = "training_state.safetensors"
PREVIOUS = "training_state.previous.safetensors"


@dataclass(frozen=True)
class EpochReport:
    """One epoch: number (from 1), mean training loss, validation metric (percent) and loss.

    The last two are ``None`` for an epoch that did not look at validation.
    """

    epoch: int
    loss: float
    validation: float | None
    validation_loss: float | None
    learning_rate: float
    gradient_norm: float

    def line(self) -> str:
        """Return the report as a line of ``metrics.jsonl``."""
        return json.dumps(asdict(self)) + "\n"


@dataclass
class Best:
    """The epoch validation prefers so far."""

    score: tuple[float, float]
    epoch: int
    weights: dict[str, Tensor]


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        reports: One per finished epoch.
        best: The epoch validation prefers, ``None`` before the first look.
        seconds: Time spent so far.
    """

    reports: list[EpochReport] = field(default_factory=list)
    best: Best | None = None
    seconds: float = 0.0

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return len(self.reports)


def save_state(
    folder: Path, progress: Progress, network: Network, optimiser: torch.optim.Optimizer
) -> None:
    """Write the state; the one before stays beside it until the next."""
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    if progress.best is not None:
        tensors |= {f"best/{name}": value for name, value in progress.best.weights.items()}
    for number, values in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{number}/{name}": value for name, value in values.items()}
    tensors["random"] = torch.get_rng_state()
    best = progress.best
    about = {
        "reports": [asdict(report) for report in progress.reports],
        "best": None if best is None else {"score": best.score, "epoch": best.epoch},
        "seconds": progress.seconds,
        "threads": torch.get_num_threads(),
    }
    # The predecessor first: whenever the machine stops, at least one whole state is there.
    fresh = folder / f"{CURRENT}.new"
    write_tensors(fresh, tensors, about)
    if (folder / CURRENT).exists():
        os.replace(folder / CURRENT, folder / PREVIOUS)
    os.replace(fresh, folder / CURRENT)


def load_state(
    folder: Path, network: Network, optimiser_of: Callable[[int], torch.optim.Optimizer]
) -> tuple[Progress, list[str]]:
    """Put the newest sound state into network, optimiser and random generator.

    Args:
        folder: The run folder.
        network: As it was built.
        optimiser_of: Returns the optimiser of an epoch: the stages of a run have one each.

    Returns:
        How far the run was (nothing done when there is no state) and what a user should know.

    Raises:
        DataError: If states are there and none is sound.
    """
    there = [folder / name for name in (CURRENT, PREVIOUS) if (folder / name).exists()]
    notes: list[str] = []
    for path in there:
        try:
            tensors, about = read_tensors(path)
        except DataError as error:
            notes.append(str(error))
            continue
        if notes:
            (folder / CURRENT).unlink()  # or the next save would put it in this one's place
            notes.append(f"Going on from '{path.name}', the state before it.")
        return _restore(path, tensors, about, network, optimiser_of), notes
    if notes:
        raise DataError(
            f"Expected a sound training state in '{folder}': {' '.join(notes)} Name another folder "
            "to start anew."
        )
    return Progress(), notes


def discard_states(folder: Path) -> None:
    """Remove the states of a finished run."""
    for name in (CURRENT, PREVIOUS, f"{CURRENT}.new"):
        (folder / name).unlink(missing_ok=True)


def _restore(
    path: Path,
    tensors: dict[str, Tensor],
    about: dict[str, Any],
    network: Network,
    optimiser_of: Callable[[int], torch.optim.Optimizer],
) -> Progress:
    optimiser = optimiser_of(len(about["reports"]))
    load_tensors(path, _below("network/", tensors), network)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _below("optimiser/", tensors).items():
        number, key = name.split("/")
        moments.setdefault(int(number), {})[key] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": moments, "param_groups": groups})
    # Sums of dense gradients depend on the number of threads in the last bit.
    torch.set_num_threads(int(about["threads"]))
    torch.set_rng_state(tensors["random"])
    best = about["best"]
    return Progress(
        reports=[EpochReport(**report) for report in about["reports"]],
        best=None
        if best is None
        else Best(tuple(best["score"]), best["epoch"], _below("best/", tensors)),
        seconds=about["seconds"],
    )


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}

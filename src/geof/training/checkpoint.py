"""Checkpoints, and the state a run goes on from: safetensors, atomic, sealed, without pickle.

A state is everything a run needs to go on as if it had never stopped, in one file and its
predecessor.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from geof.devices import random_state, set_random_state
from geof.errors import DataError
from geof.io import write_atomically
from geof.training.network import Network
from geof.version import __version__

_HEADER = "geof"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors with a JSON description in the header and a checksum over both.

    Args:
        path: Where to.
        tensors: By name; on any device.
        about: Plain JSON values.
    """
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(about, sort_keys=True, allow_nan=False)
    header = {"version": __version__, "about": text, "seal": _seal(plain, __version__ + text)}
    # One entry: safetensors writes several in an order that changes from process to process.
    write_atomically(path, save(plain, {_HEADER: json.dumps(header, sort_keys=True)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote: the tensors and the description.

    Raises:
        DataError: If the file is missing, truncated, altered or not one of ours.
    """
    try:
        content = path.read_bytes()
        tensors = load(content)
        header = _header(content)
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(
            f"Expected a safetensors checkpoint at '{path}' ({error}). It may be missing, "
            "truncated or not a checkpoint."
        ) from error
    text = header.get("about", "{}")
    if header.get("seal") != _seal(tensors, header.get("version", "") + text):
        raise DataError(
            f"Expected '{path}' as it was written, but its checksum does not fit: it was damaged "
            "or changed. Use a copy."
        )
    about: dict[str, Any] = json.loads(text)
    # Copies: views into the file's bytes may lie at odd addresses.
    return {name: value.clone() for name, value in tensors.items()}, about


def save_checkpoint(path: Path, model: nn.Module, about: Mapping[str, Any] | None = None) -> None:
    """Write a model's parameters with a description of plain JSON values."""
    write_tensors(path, model.state_dict(), about or {})


def load_checkpoint(path: Path, model: nn.Module) -> None:
    """Read parameters written by :func:`save_checkpoint` into ``model``.

    Raises:
        DataError: If the file is missing, damaged, or belongs to another architecture; the model
            is left as it was.
    """
    tensors, _ = read_tensors(path)
    load_tensors(path, tensors, model)


def load_tensors(path: Path, tensors: Mapping[str, Tensor], model: nn.Module) -> None:
    """Put tensors read from ``path`` into a model of the same layout.

    Raises:
        DataError: If names or shapes differ; the model is left as it was.
    """
    _require_same_layout(path, tensors, model.state_dict())
    model.load_state_dict(tensors)


def _seal(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _header(content: bytes) -> dict[str, str]:
    """Return our entry of a safetensors file's header (its length, then JSON)."""
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    header: dict[str, str] = json.loads(metadata.get(_HEADER, "{}"))
    return header


def _require_same_layout(
    path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> None:
    problems = [f"missing {name}" for name in sorted(wanted.keys() - found.keys())]
    problems += [f"unexpected {name}" for name in sorted(found.keys() - wanted.keys())]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, the model {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & found.keys())
        if found[name].shape != wanted[name].shape
    ]
    if problems:
        raise DataError(
            f"Expected '{path}' to fit the model, but {'; '.join(problems)}. Build the model "
            "with the sizes it was trained with (config.json beside the checkpoint has them)."
        )


CPU = torch.device("cpu")

CURRENT = "training_state.safetensors"
PREVIOUS = "training_state.previous.safetensors"


@dataclass(frozen=True)
class EpochReport:
    """One epoch: number (from 1), mean training loss, validation metric (percent) and loss.

    The last two are ``None`` for an epoch that did not look at validation. Blocks that were rescued
    or kept their coordinates (:func:`geof.geometry.feedback_target`) are summed over its passes.
    """

    epoch: int
    loss: float
    validation: float | None
    validation_loss: float | None
    learning_rate: float
    gradient_norm: float
    rescued_blocks: int = 0
    kept_blocks: int = 0

    def line(self) -> str:
        """Return the report as a line of ``metrics.jsonl``, without counts that are zero."""
        values = asdict(self)
        for name in ("rescued_blocks", "kept_blocks"):
            if not values[name]:
                del values[name]
        return json.dumps(values) + "\n"


@dataclass
class Best:
    """The epoch validation prefers so far."""

    score: tuple[float, float]
    epoch: int
    weights: dict[str, Tensor]


@dataclass
class Partial:
    """An epoch that is not finished.

    Attributes:
        losses: Of the optimiser steps taken.
        norms: Of their gradients.
        rescued_blocks: As an epoch's report counts them.
        kept_blocks: Likewise.
        seconds: Time it took so far.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rescued_blocks: int = 0
    kept_blocks: int = 0
    seconds: float = 0.0


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        reports: One per finished epoch.
        best: The epoch validation prefers, ``None`` before the first look.
        seconds: Time spent so far.
        partial: The epoch at work, where a state is saved within it.
    """

    reports: list[EpochReport] = field(default_factory=list)
    best: Best | None = None
    seconds: float = 0.0
    partial: Partial | None = None

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return len(self.reports)


def save_state(
    folder: Path,
    progress: Progress,
    network: Network,
    optimiser: torch.optim.Optimizer,
    average: nn.Module | None = None,
    device: torch.device = CPU,
    scaler: torch.amp.GradScaler | None = None,
) -> None:
    """Write the state; the one before stays beside it until the next.

    It can be read on any device. That of another's random numbers is kept beside the CPU's.
    """
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    if average is not None:
        tensors |= {f"average/{name}": value for name, value in average.state_dict().items()}
    if progress.best is not None:
        tensors |= {f"best/{name}": value for name, value in progress.best.weights.items()}
    for number, values in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{number}/{name}": value for name, value in values.items()}
    tensors["random"] = torch.get_rng_state()
    own = random_state(device)
    if own is not None:
        tensors[f"random/{device.type}"] = own
    best = progress.best
    about: dict[str, Any] = {
        "reports": [asdict(report) for report in progress.reports],
        "best": None if best is None else {"score": best.score, "epoch": best.epoch},
        "seconds": progress.seconds,
        "threads": torch.get_num_threads(),
    }
    if device.type != "cpu":
        about["device"] = str(device)
    if scaler is not None:
        about["scaler"] = scaler.state_dict()
    if progress.partial is not None:
        about["partial"] = asdict(progress.partial)
    # The predecessor first: whenever the machine stops, at least one whole state is there.
    fresh = folder / f"{CURRENT}.new"
    write_tensors(fresh, tensors, about)
    if (folder / CURRENT).exists():
        os.replace(folder / CURRENT, folder / PREVIOUS)
    os.replace(fresh, folder / CURRENT)


def load_state(
    folder: Path,
    network: Network,
    optimiser_of: Callable[[int], torch.optim.Optimizer],
    average: nn.Module | None = None,
    device: torch.device = CPU,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[Progress, list[str]]:
    """Put the newest sound state into network, optimiser and random generator.

    Args:
        folder: The run folder.
        network: As it was built.
        optimiser_of: Returns the optimiser of an epoch: the stages of a run have one each.
        average: Of the network's weights, if one is taken.
        device: Where the network is; the state may have been saved on another one.
        scaler: Of the loss, where gradients are in half precision.

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
        if average is not None:
            load_tensors(path, _below("average/", tensors), average)
        before = about.get("device", "cpu")
        if torch.device(before).type != device.type:
            notes.append(f"Began on {before}, goes on on {device}: the last bits may differ.")
        if scaler is not None and "scaler" in about:
            scaler.load_state_dict(about["scaler"])
        return _restore(path, tensors, about, network, optimiser_of, device), notes
    if notes:
        raise DataError(
            f"Expected a sound training state in '{folder}': {' '.join(notes)} Name another folder "
            "to start anew."
        )
    return Progress(), notes


def newest_state(folder: Path) -> Path | None:
    """Return the file of the newest state, once :func:`load_state` has removed a damaged one."""
    return next((folder / n for n in (CURRENT, PREVIOUS) if (folder / n).exists()), None)


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
    device: torch.device,
) -> Progress:
    partial = about.get("partial")
    optimiser = optimiser_of(len(about["reports"]) + (partial is not None))
    load_tensors(path, _below("network/", tensors), network)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _below("optimiser/", tensors).items():
        number, key = name.split("/")
        moments.setdefault(int(number), {})[key] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": moments, "param_groups": groups})
    # Sums of dense gradients depend on the number of threads in the last bit.
    torch.set_num_threads(int(about["threads"]))
    _restore_random(tensors, network.config.seed, len(about["reports"]), device)
    best = about["best"]
    return Progress(
        reports=[EpochReport(**report) for report in about["reports"]],
        best=None
        if best is None
        else Best(tuple(best["score"]), best["epoch"], _below("best/", tensors)),
        seconds=about["seconds"],
        partial=None if partial is None else Partial(**partial),
    )


def _restore_random(
    tensors: Mapping[str, Tensor], seed: int, epoch: int, device: torch.device
) -> None:
    """Put the random numbers where the state left them; of a device it was not on, begin anew."""
    if device.type != "cpu":
        fresh = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
        torch.manual_seed(int(fresh[0] >> np.uint64(1)))  # of all devices
    torch.set_rng_state(tensors["random"])
    own = tensors.get(f"random/{device.type}")
    if own is not None:
        set_random_state(device, own)


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}

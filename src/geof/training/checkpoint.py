"""Checkpoints in safetensors format: written atomically, read without pickle."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from geof.data.files import write_atomically
from geof.errors import DataError
from geof.version import __version__


def save_checkpoint(path: Path, model: nn.Module, metadata: dict[str, str] | None = None) -> None:
    """Write the parameters in safetensors format, with string ``metadata`` in its header."""
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    header = {"geof_version": __version__, **(metadata or {})}
    write_atomically(path, save(tensors, header))


def load_checkpoint(path: Path, model: nn.Module) -> None:
    """Read parameters written by :func:`save_checkpoint` into ``model``.

    Raises:
        DataError: If the file is missing, truncated, or belongs to another architecture; the
            model is left as it was.
    """
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"Expected a safetensors checkpoint at '{path}' ({error}). It may be missing, "
            "truncated or not a checkpoint."
        ) from error
    _require_same_layout(path, tensors, model.state_dict())
    model.load_state_dict(tensors)


def _require_same_layout(
    path: Path, found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]
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

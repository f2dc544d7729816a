"""Checkpoints in safetensors format: written atomically, sealed, read without pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from geof.errors import DataError
from geof.io import write_atomically
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

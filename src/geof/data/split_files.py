"""Splits on disk: index lists with a header that says what they belong to; no pickle."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.data.records import GraphSet, NodeGraph
from geof.errors import DataError
from geof.io import write_atomically

_FORMAT = 1


@dataclass(frozen=True)
class DatasetIdentity:
    """What a stored split belongs to; checked when it is read again.

    Attributes:
        name: The dataset's name.
        content_hash: The dataset's own hash.
        size: Number of nodes of a graph, or of graphs of a set.
    """

    name: str
    content_hash: str
    size: int

    @classmethod
    def of(cls, data: NodeGraph | GraphSet) -> DatasetIdentity:
        """Return the identity of a loaded dataset."""
        size = len(data.graphs) if isinstance(data, GraphSet) else data.graph.num_nodes
        return cls(data.name, data.content_hash, int(size))


def digest_of(parts: Iterable[NDArray[Any]]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of little-endian int64 lists."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.astype("<i8").tobytes())
        digest.update(b"|")
    return digest.hexdigest()[:16]


def write_split_file(
    path: Path | str,
    facts: Mapping[str, str | int],
    parts: Mapping[str, Tensor],
    identity: DatasetIdentity,
) -> None:
    """Write index tensors with a header that says what they are and what they belong to."""
    header = {
        **facts,
        "format": _FORMAT,
        "dataset": identity.name,
        "content_hash": identity.content_hash,
        "size": identity.size,
    }
    arrays = {name: part.numpy().astype("<i8") for name, part in parts.items()}
    text = json.dumps(header, sort_keys=True).encode()
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    write_atomically(Path(path), buffer.getvalue())


def read_split_file(
    path: Path | str, kind: str, identity: DatasetIdentity, names: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of a split file that fits ``kind`` and ``identity``.

    Raises:
        DataError: If it is missing, damaged, of another format, or made for other data.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = dict(json.loads(archive["header"].tobytes()))
            arrays = {name: archive[name] for name in names}
    except FileNotFoundError as error:
        raise DataError(f"Expected a split file at '{path}', but there is none.") from error
    except Exception as error:  # zip, npy and JSON each have several ways of being damaged
        raise _damaged(path, error) from error
    wanted = {
        "format": _FORMAT,
        "kind": kind,
        "dataset": identity.name,
        "content_hash": identity.content_hash,
        "size": identity.size,
    }
    for fact, value in wanted.items():
        if header.get(fact) != value:
            raise DataError(
                f"Expected the split file '{path}' to have {fact} {value!r} (got "
                f"{header.get(fact)!r}). It was made for other data or by another version: draw "
                "the split again."
            )
    if any(array.dtype != np.dtype("<i8") for array in arrays.values()):
        raise _damaged(path, "indices that are not int64")
    return header, {name: torch.from_numpy(a.astype(np.int64)) for name, a in arrays.items()}


def require_same_hash(path: Path | str, found: str, facts: Mapping[str, Any]) -> None:
    """Raise ``DataError`` unless the indices read are those that were hashed."""
    if facts.get("hash") != found:
        raise _damaged(path, f"hash {found} instead of {facts.get('hash')}")


def _damaged(path: Path | str, reason: object) -> DataError:
    return DataError(
        f"Expected '{path}' to be a whole split file (got: {reason}). Delete it and draw the "
        "split again."
    )

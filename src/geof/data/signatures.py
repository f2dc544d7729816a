"""Signatures as settings ask for them, kept in the cache when they are exact and costly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from geof.data.cache import Entry, cache_key, content_hash, load_or_build
from geof.options import known_options
from geof.signature.structural import Degree, Method, StructuralSignature, structural_signature

VERSION = 1
"""Raised whenever the computed values change."""

WORTH_KEEPING = 1e8
"""Nodes times edges below which computing is quicker than reading."""


@dataclass(frozen=True)
class SignatureSettings:
    """Arguments of :func:`structural_signature` that a run decides and records."""

    walk_length: int = 16
    degree: Degree = "max"
    method: Method = "exact"
    probes: int = 256
    seed: int = 0

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> SignatureSettings:
        """Build from keywords, refusing an unknown one.

        Raises:
            ConfigError: Naming the nearest valid keyword.
        """
        return cls(**known_options(cls, options, "signature."))


def kept_signature(
    edge_index: Tensor,
    num_nodes: int,
    settings: SignatureSettings | None = None,
    *,
    batch: Tensor | None = None,
) -> StructuralSignature:
    """Return the :func:`structural_signature`, an exact one from the cache when it is there.

    Small graphs are computed anew, and so are estimates: nothing is written for them.
    """
    settings = settings or SignatureSettings()

    def compute() -> StructuralSignature:
        return structural_signature(edge_index, num_nodes, batch=batch, **asdict(settings))

    worth = num_nodes * edge_index.size(1) >= WORTH_KEEPING
    if settings.method != "exact" or not worth:
        return compute()
    walk_length, degree = settings.walk_length, settings.degree
    inputs = {"edge_index": edge_index, "nodes": torch.tensor([num_nodes])}
    if batch is not None:
        inputs["batch"] = batch
    key = cache_key(
        {"inputs": content_hash(inputs)}, VERSION, {"walk_length": walk_length, "degree": degree}
    )
    entry = load_or_build("signatures", key, lambda: Entry({"values": compute().values}))
    return StructuralSignature(entry.tensors["values"], walk_length, degree, "exact")

"""Signatures kept in the cache, under a key of the edges and of every setting."""

from __future__ import annotations

import torch
from torch import Tensor

from geof.data.cache import Entry, cache_key, content_hash, load_or_build
from geof.signature.structural import Degree, StructuralSignature, structural_signature

VERSION = 1
"""Raised whenever the computed values change."""

WORTH_KEEPING = 1e8
"""Nodes times edges below which computing is quicker than reading."""


def kept_signature(
    edge_index: Tensor,
    num_nodes: int,
    *,
    walk_length: int = 16,
    degree: Degree = "max",
    batch: Tensor | None = None,
) -> StructuralSignature:
    """Return the exact :func:`structural_signature`, from the cache when it was computed before.

    Small graphs are computed anew: nothing is written for them.
    """

    def compute() -> StructuralSignature:
        return structural_signature(
            edge_index, num_nodes, walk_length=walk_length, degree=degree, batch=batch
        )

    if num_nodes * edge_index.size(1) < WORTH_KEEPING:
        return compute()
    inputs = {"edge_index": edge_index, "nodes": torch.tensor([num_nodes])}
    if batch is not None:
        inputs["batch"] = batch
    key = cache_key(
        {"inputs": content_hash(inputs)}, VERSION, {"walk_length": walk_length, "degree": degree}
    )
    entry = load_or_build("signatures", key, lambda: Entry({"values": compute().values}))
    return StructuralSignature(entry.tensors["values"], walk_length, degree, "exact")

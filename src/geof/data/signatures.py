"""Signatures as a config asks for them, cached on disk when they are exact and costly."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from geof.data.cache import Entry, cache_key, content_hash, load_or_build
from geof.options import Options
from geof.signature.structural import Degree, Method, StructuralSignature, structural_signature

VERSION = 1
"""Raised whenever the computed values change."""

WORTH_CACHING = 1e8
"""Nodes times edges below which computing is quicker than reading."""


@dataclass(frozen=True)
class SignatureConfig(Options):
    """Arguments of :func:`structural_signature` that a run decides and records."""

    walk_length: Annotated[
        int, Field(ge=0, description="Longest closed walk whose return probability is taken.")
    ] = 16
    degree: Annotated[
        Degree,
        Field(description="Degree over the largest one, or logarithm over logarithm."),
    ] = "max"
    method: Annotated[
        Method, Field(description="Exact in blocks, or an unbiased estimate for large graphs.")
    ] = "exact"
    probes: Annotated[int, Field(ge=2, description="Random vectors of an estimate.")] = 256
    seed: Annotated[int, Field(ge=0, description="Of the random vectors.")] = 0

    @classmethod
    def _place(cls) -> str:
        return "signature."


def cached_signature(
    edge_index: Tensor,
    num_nodes: int,
    config: SignatureConfig | None = None,
    *,
    batch: Tensor | None = None,
) -> StructuralSignature:
    """Return the :func:`structural_signature`, an exact one from the cache when it is there.

    Small graphs are computed anew, and so are estimates: nothing is written for them.
    """
    config = config or SignatureConfig()

    def compute() -> StructuralSignature:
        return structural_signature(edge_index, num_nodes, batch=batch, **asdict(config))

    worth = num_nodes * edge_index.size(1) >= WORTH_CACHING
    if config.method != "exact" or not worth:
        return compute()
    walk_length, degree = config.walk_length, config.degree
    inputs = {"edge_index": edge_index, "nodes": torch.tensor([num_nodes])}
    if batch is not None:
        inputs["batch"] = batch
    key = cache_key(
        {"inputs": content_hash(inputs)}, VERSION, {"walk_length": walk_length, "degree": degree}
    )
    entry = load_or_build("signatures", key, lambda: Entry({"values": compute().values}))
    return StructuralSignature(entry.tensors["values"], walk_length, degree, "exact")

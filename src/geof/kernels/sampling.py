"""Sampled neighbourhoods in compiled code (``native/sample.h``), draw for draw those of NumPy.

:class:`geof.data.batching.NeighbourSampler` uses it where the kernels could be opened.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from geof.draws import Integers
from geof.kernels.library import Sample, find_library
from geof.kernels.neighbourhood import FEW, NeighbourIndex

_WORD = 2**64 - 1


def native_sample(
    index: NeighbourIndex,
    seeds: Integers,
    fanouts: Sequence[int],
    bits: np.random.PCG64,
    *,
    places: bool = False,
) -> list[Tensor] | None:
    """Return the nodes, the edges ``(2, E)`` between them, and their places in the index if asked.

    ``None`` where it cannot be done here: without the kernels, or with more draws per node than
    they compare one by one. ``bits`` stays where it is.
    """
    library = find_library().library
    if library is None or index.num_nodes >= 2**31 or not all(f <= FEW for f in fanouts):
        return None
    pointer, source, seed = (_plain(part) for part in (index.pointer, index.source, seeds))
    fanout = np.array(fanouts, np.int64)
    state = bits.state["state"]
    words = [state[name] >> shift & _WORD for name in ("state", "inc") for shift in (64, 0)]
    arguments = Sample(
        n=index.num_nodes,
        E=len(source),
        seeds=len(seed),
        hops=len(fanout),
        pointer=pointer.ctypes.data,
        source=source.ctypes.data,
        seed=seed.ctypes.data,
        fanout=fanout.ctypes.data,
        state=(*words,),
    )
    return library.sample(arguments, places=places)


def _plain(values: Integers) -> Integers:
    """Return what the kernels, which get addresses alone, must have."""
    return np.ascontiguousarray(values, np.int64)

"""Where the Triton backend is tested: on a GPU, or interpreted on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from geof import GeoF, testing
from geof.kernels.dispatch import find_triton

DEVICE = torch.device("cuda" if torch.cuda.device_count() else "cpu")
needs_triton = pytest.mark.skipif(
    find_triton().backend is None, reason=f"the triton backend is {find_triton().reason}"
)


def values_and_gradients(
    model: GeoF, x: Tensor, edge_index: Tensor, signature: Tensor
) -> dict[str, Tensor]:
    """Do what ``geof.testing`` does where the model's backend is tested, results on the CPU."""
    device = DEVICE if model.backend == "triton" else torch.device("cpu")
    sample = (value.to(device) for value in (x, edge_index, signature))
    found = testing.values_and_gradients(model.to(device), *sample)
    return {name: value.cpu() for name, value in found.items()}

"""The factored step with its sums over edges, feedback and update as Triton kernels, for GPUs.

The frames' images and the controller's two products are torch's. What the kernels do not serve,
edges that carry weights or attributes, goes to :mod:`geof.kernels.factored`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from geof.errors import ConfigError, DtypeError
from geof.kernels.factored import (
    Operators,
    factored_environment,
    factored_statistics,
    statistics_by,
    update_by,
)
from geof.kernels.interface import (
    Backend,
    Evolution,
    Request,
    StepSpec,
    StepStatistics,
    Support,
    controller_output,
)
from geof.kernels.neighbourhood import Neighbourhoods
from geof.kernels.triton_block_operators import feedback_target, pulled_back, updated
from geof.kernels.triton_kernels import INTERPRETED
from geof.kernels.triton_operators import edge_moments

LARGEST_BLOCK = 32
OLDEST = 8, 0  # the compute capability the kernels are compiled for in the tests


def triton_statistics(
    xi: Tensor, message: Tensor, coords: Tensor, edges: Neighbourhoods, spec: StepSpec
) -> StepStatistics:
    """Return Eqs. (4) to (10) in factored form; shapes as in :mod:`geof.kernels.interface`."""
    if edges.terms is not None:
        return factored_statistics(xi, message, coords, edges, spec)
    operators = Operators(edge_moments, pulled_back, feedback_target)
    return statistics_by(operators, xi, message, coords, edges, spec)


def triton_update(
    xi: Tensor, coords: Tensor, statistics: StepStatistics, evolution: Evolution
) -> Tensor:
    """Return the next coordinates, Eqs. (11) and (12)."""
    return update_by(updated, controller_output, xi, coords, statistics, evolution)


def _supported(request: Request) -> Support:
    if request.block_size > LARGEST_BLOCK:
        got = f"(got {request.block_size})"
        return Support(f"made for blocks of at most {LARGEST_BLOCK} {got}", ConfigError)
    if request.dtype not in (None, torch.float32, torch.float64):
        return Support(f"made for float32 or float64 (got {request.dtype})", DtypeError)
    if request.statistic not in ("full", "mean", "diagonal", None):
        return Support(f"not made for the statistic {request.statistic!r}", ConfigError)
    return Support() if request.device is None else _served_there(request.device)


def _served_there(device: torch.device) -> Support:
    if INTERPRETED and device.type == "cpu":
        return Support()
    if device.type != "cuda" or torch.version.hip is not None:
        made = "made for NVIDIA GPUs; with TRITON_INTERPRET=1 it runs on the CPU, to be tested"
        return Support(f"{made} (got tensors on {device})", ConfigError)
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        got = f"(got {'.'.join(map(str, capability))} on {device})"
        return Support(f"made for compute capability 8.0 or newer {got}", ConfigError)
    return Support()


TRITON = Backend(
    "triton", triton_statistics, factored_environment, _supported, update=triton_update
)

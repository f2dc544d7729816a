"""The transport and feedback of one step: the paper's per-edge form and the factored one."""

from geof.kernels.dispatch import BACKENDS, resolve_backend
from geof.kernels.interface import Backend, Statistic, StepSpec, StepStatistics
from geof.kernels.neighbourhood import Neighbourhoods

__all__ = [
    "BACKENDS",
    "Backend",
    "Neighbourhoods",
    "Statistic",
    "StepSpec",
    "StepStatistics",
    "resolve_backend",
]

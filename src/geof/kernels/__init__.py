"""The transport and feedback of one step: as the paper writes it, factored, and compiled."""

from geof.kernels.dispatch import BACKENDS, resolve_backend
from geof.kernels.interface import (
    Backend,
    Controller,
    Evolution,
    Statistic,
    StepSpec,
    StepStatistics,
)
from geof.kernels.neighbourhood import Neighbourhoods

__all__ = [
    "BACKENDS",
    "Backend",
    "Controller",
    "Evolution",
    "Neighbourhoods",
    "Statistic",
    "StepSpec",
    "StepStatistics",
    "resolve_backend",
]

"""One step of the recurrence: as the paper writes it, factored, and compiled."""

from geof.kernels.dispatch import BACKENDS, backends_on, resolve_backend
from geof.kernels.interface import (
    Backend,
    Controller,
    Evolution,
    Request,
    Statistic,
    StepResult,
    StepSpec,
    StepStatistics,
    Support,
)
from geof.kernels.neighbourhood import EdgeTerms, Neighbourhoods, check_edge_index

__all__ = [
    "BACKENDS",
    "Backend",
    "Controller",
    "EdgeTerms",
    "Evolution",
    "Neighbourhoods",
    "Request",
    "Statistic",
    "StepResult",
    "StepSpec",
    "StepStatistics",
    "Support",
    "backends_on",
    "check_edge_index",
    "resolve_backend",
]

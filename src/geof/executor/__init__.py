"""Run many jobs: one after another in this process, or several at once in processes of their own.

An executor draws a job when there is room for it, not before, so that a job may depend on what
came of earlier ones; outcomes arrive as jobs end. An exception, or the death of a process, is an
outcome like any other: the executor goes on. Nothing heavy is imported here, so that a worker
listens to its parent before it imports what its jobs need.
"""

from geof.executor.interface import (
    Executor,
    Function,
    InProcess,
    Job,
    Outcome,
    ShouldStop,
    Value,
    WorkerLostError,
    attempt,
    until,
)
from geof.executor.processes import Processes

__all__ = [
    "Executor",
    "Function",
    "InProcess",
    "Job",
    "Outcome",
    "Processes",
    "ShouldStop",
    "Value",
    "WorkerLostError",
    "attempt",
    "until",
]

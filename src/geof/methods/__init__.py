"""Methods: what the engine gives and wants, and how one is found by name."""

from geof.methods.interface import (
    Encoding,
    GraphInputs,
    HasEpochEnd,
    HasPretext,
    Outputs,
    TaskKind,
    TrainingView,
)
from geof.methods.registry import (
    Method,
    default_preset,
    get_method,
    load_plugin,
    load_preset,
    method_names,
    preset_names,
    register,
)

__all__ = [
    "Encoding",
    "GraphInputs",
    "HasEpochEnd",
    "HasPretext",
    "Method",
    "Outputs",
    "TaskKind",
    "TrainingView",
    "default_preset",
    "get_method",
    "load_plugin",
    "load_preset",
    "method_names",
    "preset_names",
    "register",
]

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
from geof.methods.presets import default_preset, load_preset, preset_names
from geof.methods.registry import Method, get_method, load_plugin, method_names, register

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

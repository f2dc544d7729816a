"""Presets of the compared methods, ``METHOD/PRESET/TASK.yaml``; every value with its reason."""

from pathlib import Path

PRESETS = Path(__file__).parent

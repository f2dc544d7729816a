"""Small data, options and a device in place of benchmarks, presets and a GPU."""

from paper.tests.stand_ins import small_presets, tiny
from tests.pretended import elsewhere

__all__ = ["elsewhere", "small_presets", "tiny"]

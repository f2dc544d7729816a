"""Small data and options in place of benchmarks and presets."""

from paper.tests.stand_ins import small_presets, tiny

__all__ = ["small_presets", "tiny"]

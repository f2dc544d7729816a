"""Random inputs shared by the tests."""

from __future__ import annotations

from functools import partial

from geof.testing import Sample, random_graph

__all__ = ["Sample", "random_sample"]

random_sample = partial(random_graph, simple=False)
"""Features, directed edges (with repeats and self-loops) and signatures."""

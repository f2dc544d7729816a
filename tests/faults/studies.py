"""The words of a small search."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def sweep(folder: Path, out: Path) -> list[str]:
    """Write a graph and a space into ``folder``; return the command that searches it."""
    graph, space = folder / "g.npz", folder / "space.yaml"
    if not graph.exists():
        generator = np.random.default_rng(0)
        x = generator.normal(size=(40, 5)).astype("float32")
        edges = generator.integers(0, 40, (2, 90))
        np.savez(graph, x=x, edge_index=edges, y=(x[:, 0] > 0).astype("int64"))
        space.write_text("learning_rate: {low: 1e-3, high: 1e-1, log: true}\n")
    words = ["sweep", str(space), "--npz", str(graph), "--quiet", "--method", "gcn"]
    words += ["--preset", "none", "options.hidden_channels=8", "epochs=1", "--workers", "1"]
    return [*words, "--trials", "2", "--splits", "0", "--sampler", "random", "--out", str(out)]

"""Count the bytes that one step of the Triton backend moves, and the time that memory takes for it.

python benchmarks/triton_traffic.py

A model, not a measurement. "Once" reads every array once per kernel, as if what neighbours gather
stayed in the cache; "gathered" takes every gather from memory. Float32, full statistic.
"""

from __future__ import annotations

from dataclasses import dataclass

WORD = 4
# Passes over an (n, d, m) array by torch's operators, counted in the source. Forward: coordinates
# turned over 1, frames 1, products with them 2, the controller's output 2. Backward: frames again
# 2, products 2, outer products 3, coordinates 1, the symmetric curvature 3, the controller 4.
FORWARD_PASSES = 6
BACKWARD_PASSES = 15
RANK = 4
BANDWIDTH = {"A100 40 GB": 1.55e12, "A100 80 GB": 2.0e12, "H100": 3.35e12}  # bytes per second


@dataclass(frozen=True)
class Workload:
    """A graph with self-loops counted, in blocks of ``m``."""

    name: str
    nodes: int
    edges: int
    d: int = 64
    m: int = 8


@dataclass(frozen=True)
class Traffic:
    """Words a kernel streams, and words it gathers from neighbours (of so many different ones)."""

    kernel: str
    streamed: int
    gathered: int = 0
    distinct: int = 0

    def bytes(self, *, cached: bool) -> int:
        """Return bytes moved."""
        return WORD * (self.streamed + (self.distinct if cached else self.gathered))


def kernels(w: Workload) -> list[Traffic]:
    """Return the traffic of a step's kernels, forward ones first."""
    n, E, d = w.nodes, w.edges, w.d
    moment, groups, blocks = d * w.m, -(-d // 64), d // w.m
    coords, output = d * (w.m + 1) // 2, (2 * RANK + 1) * d
    flags = coords // 4  # a byte each
    return [
        Traffic("edge_scores", n * (2 + d) + 2 * E, E * d, n * d),
        Traffic("weighted_moments", n * (2 + 2 * d + moment) + 3 * E, E * d, n * d),
        Traffic("block_feedback", n * (2 * coords + 2 * d + 2 * moment + 2 * blocks)),
        Traffic("block_update", n * (3 * coords + output + flags)),
        Traffic("block_update_adjoint", n * (3 * coords + 2 * output + flags)),
        Traffic("block_feedback_adjoint", n * (4 * coords + 3 * d + 2 * moment + blocks // 4)),
        Traffic("pull_on_weights", n * (1 + 3 * d + moment) + (2 + groups) * E, E * d, n * d),
        Traffic("pull_on_exponents", n + (5 + 2 * groups) * E),
        Traffic(
            "pull_on_states", n * (2 + 5 * d) + 6 * E, E * (4 * d + moment), n * (3 * d + moment)
        ),
    ]


def main() -> None:
    """Print the table of docs/gpu.md."""
    workloads = [
        Workload("PubMed", 19_717, 88_648 + 19_717),
        Workload("Computers", 13_752, 491_722 + 13_752),
    ]
    for w in workloads:
        parts = kernels(w)
        for part in parts:
            once, gathered = (part.bytes(cached=cached) / 1e6 for cached in (True, False))
            print(f"| {w.name} | `{part.kernel}` | {once:.0f} | {gathered:.0f} |")
        around = WORD * w.nodes * w.d * w.m * (FORWARD_PASSES + BACKWARD_PASSES)
        print(f"| {w.name} | torch's operators | {around / 1e6:.0f} | {around / 1e6:.0f} |")
        for cached in (True, False):
            total = sum(part.bytes(cached=cached) for part in parts)
            print(f"{w.name}, {'once' if cached else 'gathered'}: {total / 1e6:.0f} MB")
            for name, speed in BANDWIDTH.items():
                own, whole = (1e3 * moved / speed for moved in (total, total + around))
                print(f"  {name}: kernels {own:.2f} ms, with torch's operators {whole:.2f} ms")


if __name__ == "__main__":
    main()

r"""How near the edge kernel comes to what the machine can do.

The roof over a kernel of arithmetic intensity :math:`I` (flops per byte) is
:math:`\min(\text{peak}, I \cdot \text{bandwidth})`. Both are measured here, with as many threads as
the kernel has. Work is counted from the formulas of the factored step, not from what an
implementation happens to do, so implementations are compared on the same count:

* a multiply-add is two flops, every other operation (``exp`` and division included) is one;
* second moments are symmetric, so only their lower half counts, in flops and in bytes;
* compulsory bytes are every input read once and every output written once, with 8-byte sources
  and row pointers; a cache that held everything would see no more traffic than this.

An implementation also fetches the rows of both ends of every edge again and again; how much of that
comes from memory depends on the caches. ``gathered`` is the other extreme: every neighbour's
rows fetched from memory for every edge.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from geof.kernels import Neighbourhoods
from geof_paper.bench.memory import available_bytes
from geof_paper.bench.networks import BLOCK_SIZE, BLOCKS
from geof_paper.bench.problems import Problem
from geof_paper.bench.processes import Say

_FLOAT = 4
_INDEX = 8


@dataclass(frozen=True)
class Work:
    """What one pass of the edge kernel has to do.

    Attributes:
        flops: Floating-point operations.
        compulsory: Bytes read once and written once.
        gathered: Bytes when every neighbour's rows come from memory for every edge.
    """

    flops: int
    compulsory: int
    gathered: int


def forward_work(nodes: int, edges: int, blocks: int, m: int) -> Work:
    """Count the forward pass: weights, first and second moments.

    Per edge, with ``d = blocks * m``: squared distance ``3d``; ``exp``, its argument, the sum and
    the division of the weight ``4``; first moment ``2d``; residual ``d``, weighted ``d``, and its
    outer product ``d (m + 1)``.

    Args:
        nodes: ``n``.
        edges: ``E``, self-loops included.
        blocks: ``B``.
        m: Block size.
    """
    d = blocks * m
    state, moment = nodes * d, nodes * d * (m + 1) // 2
    flops = edges * (7 * d + d * (m + 1) + 4)
    indices = _INDEX * (edges + nodes + 1)
    written = _FLOAT * (edges + state + moment)
    rows = 2  # h and y of the neighbour
    return Work(
        flops,
        _FLOAT * 2 * state + indices + written,
        _FLOAT * rows * (edges * d + state) + indices + written,
    )


def backward_work(nodes: int, edges: int, blocks: int, m: int) -> Work:
    """Count the backward pass; the weights are given, not computed again.

    Per edge: score of the weight ``2d + 1`` from the first moment; residual ``d``; its product
    with the curvature ``2dm``; score from the second moment ``2d + 2``; softmax ``5``; gradient of
    ``y`` at both ends ``3d`` from the second moment and ``2d`` from the first; gradient of ``h``
    ``4d + 1``. Per node: the symmetric curvature ``d (m + 1) / 2``.

    Args: As of :func:`forward_work`.
    """
    d = blocks * m
    state, moment = nodes * d, nodes * d * (m + 1) // 2
    flops = edges * (14 * d + 2 * d * m + 9) + moment
    indices = _INDEX * (edges + nodes + 1)
    given = _FLOAT * (2 * edges + state + moment)  # gradient and value of the weights, of moments
    written = _FLOAT * 2 * state
    # h and y of the neighbour are read, and its two gradients read and written.
    return Work(
        flops,
        _FLOAT * 2 * state + indices + given + written,
        _FLOAT * (6 * edges * d + 2 * state) + indices + given + written,
    )


@dataclass(frozen=True)
class Roof:
    """What the machine can do.

    Attributes:
        bandwidth: Bytes per second of a triad over arrays the caches cannot hold.
        flops: Per second, of a large float32 matrix product.
    """

    bandwidth: float
    flops: float

    def over(self, work: Work) -> float:
        """Return the flops per second the machine allows for this work."""
        return min(self.flops, work.flops / work.compulsory * self.bandwidth)


def measure_roof(*, repeats: int = 5, size: int = 3072, array_bytes: int | None = None) -> Roof:
    """Measure bandwidth and peak, each as the best of several repeats.

    Args:
        repeats: How many.
        size: Rows and columns of the matrices.
        array_bytes: Of each of the triad's three arrays (default: four times the last cache, at
            least 256 MiB and at most an eighth of the available memory).
    """
    wanted = max(2**28, 4 * _last_cache_bytes()) if array_bytes is None else array_bytes
    length = min(wanted, available_bytes() // 8) // _FLOAT
    return Roof(
        3 * length * _FLOAT / _triad_seconds(length, repeats),
        2 * size**3 / _product_seconds(size, repeats),
    )


def _triad_seconds(length: int, repeats: int) -> float:
    # Filled, not zero: pages that were never written all share one page, which stays cached.
    a, b, c = (torch.full((length,), 0.5) for _ in range(3))
    return _best(lambda: torch.add(b, c, alpha=3.0, out=a), repeats)


def _product_seconds(size: int, repeats: int) -> float:
    left, right = torch.rand(size, size), torch.rand(size, size)
    return _best(lambda: torch.mm(left, right), repeats)


def _last_cache_bytes() -> int:
    """Return the size of the largest cache the system tells of, or 32 MiB."""
    found = [2**25]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K"):
            found.append(int(text[:-1]) * 1024)
    return max(found)


def _best(run: Callable[[], object], repeats: int) -> float:
    return min(_seconds(run) for _ in range(repeats + 1))


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


Kernel = Callable[..., Any]


def edge_kernels() -> dict[str, tuple[Kernel, bool]]:
    """Return the edge kernels there are by backend, and whether their layout is ``(n, m, B)``."""
    factored = importlib.import_module("geof.kernels.factored")
    kernels: dict[str, tuple[Kernel, bool]] = {"torch": (factored.edge_moments, False)}
    try:
        native = importlib.import_module("geof.kernels.native")
    except ImportError:
        return kernels
    kernel = getattr(native, "edge_moments", None)
    if kernel is not None:
        kernels["native"] = (kernel, True)
    return kernels


def measure_kernel(
    kernel: Kernel, *, lanes_last: bool, edges: Neighbourhoods, repeats: int
) -> tuple[float, float]:
    """Return the median seconds of the kernel's forward and backward pass.

    Args:
        kernel: ``edge_moments`` of a backend.
        lanes_last: Whether its layout is ``(n, m, B)``, else ``(n, B, m)``.
        edges: The graph.
        repeats: Timed passes, after one to warm up.
    """
    generator = torch.Generator().manual_seed(0)
    block = (BLOCK_SIZE, BLOCKS) if lanes_last else (BLOCKS, BLOCK_SIZE)
    shape = (edges.num_nodes, *block)
    # Small states, hence weights of the size they have in a network that trains.
    h, y = ((0.1 * torch.randn(shape, generator=generator)).requires_grad_() for _ in range(2))
    forward, backward = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        moments = tuple(kernel(h, y, edges, 1.0, second=True))
        forward.append(time.perf_counter() - start)
        cotangents = [torch.ones_like(value) for value in moments]
        start = time.perf_counter()
        torch.autograd.grad(moments, (h, y), cotangents)
        backward.append(time.perf_counter() - start)
    return statistics.median(forward[1:]), statistics.median(backward[1:])


def measure_roofline(path: Path, repeats: int = 5, *, say: Say) -> dict[str, Any]:
    """Measure the machine and every edge kernel on the graph of a saved problem.

    Returns:
        JSON values: the roof, the count of work, and per backend and pass the rates reached.
    """
    say("measuring bandwidth and peak")
    roof = measure_roof()
    piece = Problem.load(path).pieces[0]
    edges = Neighbourhoods.from_edge_index(piece.edge_index, piece.x.size(0))
    counts = (edges.num_nodes, edges.source.numel(), BLOCKS, BLOCK_SIZE)
    works = {"forward": forward_work(*counts), "backward": backward_work(*counts)}
    passes = []
    for backend, (kernel, lanes_last) in edge_kernels().items():
        say(f"edge kernel, {backend}")
        seconds = measure_kernel(kernel, lanes_last=lanes_last, edges=edges, repeats=repeats)
        passes += [
            {"backend": backend, "pass": name, **rates(works[name], value, roof)}
            for name, value in zip(works, seconds, strict=True)
        ]
    return {
        "bandwidth_bytes_per_second": roof.bandwidth,
        "peak_flops_per_second": roof.flops,
        "nodes": counts[0],
        "edges_with_self_loops": counts[1],
        "work": {name: asdict(work) for name, work in works.items()},
        "passes": passes,
    }


def rates(work: Work, seconds: float, roof: Roof) -> dict[str, float]:
    """Return what a pass of ``seconds`` reaches of the machine's rates."""
    flops = work.flops / seconds
    return {
        "seconds": seconds,
        "intensity_flops_per_byte": work.flops / work.compulsory,
        "gflops_per_second": flops / 1e9,
        "gigabytes_per_second": work.compulsory / seconds / 1e9,
        "gathered_gigabytes_per_second": work.gathered / seconds / 1e9,
        "fraction_of_peak_flops": flops / roof.flops,
        "fraction_of_bandwidth": work.compulsory / seconds / roof.bandwidth,
        "fraction_of_roof": flops / roof.over(work),
    }

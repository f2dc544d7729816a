"""Compile the Triton kernels for GPUs that need not be there, and say what ptxas gave them.

python benchmarks/triton_resources.py [--arch 80 90] [--block-sizes 1 2 4 8 16] [--json FILE]

Not to be run with TRITON_INTERPRET=1: interpreted kernels cannot be compiled.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from geof.kernels import triton_blocks, triton_kernels
from geof.kernels.triton_block_operators import UNFUSED, block_tiling
from geof.kernels.triton_operators import LARGEST_EDGES, LAUNCH, WIDEST, edge_tiling

WIDTH = 64  # d, as in the benchmarks
NUMBERS = {"float32": "fp32", "float64": "fp64"}
POINTERS = {
    **dict.fromkeys(("pointer", "source", "out_pointer", "out_target", "out_edge"), "*i32"),
    **dict.fromkeys(("active", "kept", "inside"), "*u8"),
    "attempt": "*i64",
}
INTEGERS = {"d", "m", "num_edges", "groups", "count", "tries", "rank"}
SWITCHES = {
    "block_feedback_adjoint": {"WATCHED": False},
    "block_update": {"MIXED": True, "CORRECTED": True},
    "block_update_adjoint": {"MIXED": True, "CORRECTED": True},
}


def constants(name: str, m: int) -> dict[str, Any]:
    """Return the constants the operators launch a kernel with, for the full statistic."""
    if name.startswith("block"):
        size, blocks = block_tiling(m)
        return {"SIZE": size, "BLOCKS": blocks, **SWITCHES.get(name, {})}
    if name == "edge_scores":
        return {"EDGES": LARGEST_EDGES, "WIDTH": min(WIDTH, WIDEST), "MASKED": False}
    if name == "pull_on_exponents":
        return {"EDGES": 2 * LARGEST_EDGES}
    tiles = edge_tiling(WIDTH, m, second=True)
    return {"EDGES": tiles.edges, "ROWS": tiles.rows, "COLS": tiles.cols, "SECOND": True}


def compile_kernel(name: str, m: int, dtype: str, arch: int) -> Any:
    """Return a kernel compiled for ``sm_<arch>``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels = triton_blocks if name.startswith("block") else triton_kernels
    function, chosen = getattr(kernels, name), constants(name, m)
    signature = {
        argument: "constexpr"
        if argument in chosen
        else "i32"
        if argument in INTEGERS
        else POINTERS.get(argument, f"*{NUMBERS[dtype]}")
        for argument in function.arg_names
    }
    # What a launch finds out: torch's memory is aligned, and so are rows of 64 numbers.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (argument, kind) in enumerate(signature.items())
        if kind.startswith("*") or argument == "d"
    }
    source = ASTSource(fn=function, signature=signature, constexprs=chosen, attrs=aligned)
    options = LAUNCH | (UNFUSED if name == "block_update" else {})
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def resources(compiled: Any, arch: int) -> dict[str, int]:
    """Return registers per thread, spilled bytes (stores and loads) and shared memory in bytes."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(compiled.asm["ptx"])
        feature = re.search(r"\.target (sm_\w+)", ptx.read_text())
        assert feature is not None
        said = subprocess.run(
            [get_ptxas(arch).path, "-v", f"-arch={feature[1]}", str(ptx), "-o", f"{ptx}.cubin"],
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode:
            raise RuntimeError(f"Expected ptxas to accept the kernel: {said.stderr}")
    (registers,) = re.findall(r"Used (\d+) registers", said.stderr)
    spills = re.findall(r"(\d+) bytes spill", said.stderr)
    return {
        "registers": int(registers),
        "spilled_bytes": sum(map(int, spills)),
        "shared_bytes": int(compiled.metadata.shared),
    }


KERNELS = (
    "edge_scores",
    "weighted_moments",
    "pull_on_weights",
    "pull_on_exponents",
    "pull_on_states",
    "block_feedback",
    "block_feedback_adjoint",
    "block_update",
    "block_update_adjoint",
    "block_cholesky",
    "block_cholesky_adjoint",
)
ALIKE = {"edge_scores", "pull_on_exponents"}  # for every block size


def measure(
    archs: Iterable[int], block_sizes: Iterable[int], dtypes: Iterable[str], names: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """Yield one row per kernel, block size, number and architecture."""
    for arch in archs:
        for dtype in dtypes:
            for name in names:
                for m in [8] if name in ALIKE else block_sizes:
                    compiled = compile_kernel(name, m, dtype, arch)
                    found = resources(compiled, arch)
                    yield {"kernel": name, "m": m, "dtype": dtype, "arch": arch, **found}


def main() -> None:
    """Print one row per kernel, and keep them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--dtype", nargs="+", choices=NUMBERS, default=list(NUMBERS))
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for row in measure(options.arch, options.block_sizes, options.dtype, options.kernel):
        print(*row.values(), sep="\t", flush=True)
        rows.append(row)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

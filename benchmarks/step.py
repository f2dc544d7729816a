"""Time and instructions of one step's compiled kernels, without torch, on a batch of molecules.

A pass of the whole network moves by a third with what else the machine does. Instructions do not
move at all, and the best of many turns hardly: so two versions of the kernels can be told apart.

    python benchmarks/step.py                            # the kernels of this checkout
    python benchmarks/step.py OTHER/native native        # two versions, in turns
    python benchmarks/step.py --instructions             # counted by valgrind's callgrind
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PARTS = "frames", "evolve", "evolve, backward", "frames, backward"
LEVELS = {
    "generic": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma"],
}
# As in native/CMakeLists.txt.
FLAGS = [
    "-std=gnu++20",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "--param=max-completely-peeled-insns=4000",
    "-fopenmp",
    "-g1",
]
FEW, MORE, COUNTED = 2, 6, 1024  # rounds whose difference is counted, and nodes


def build(native: Path, level: str, to: Path) -> Path:
    sources = [str(HERE / "step.cpp"), str(native / "geof.cpp")]
    command = ["g++", *FLAGS, *LEVELS[level], f"-I{native}", *sources, "-o", str(to)]
    subprocess.run(command, check=True)
    return to


def run(command: list[str]) -> list[float]:
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(number) for number in made.split()]


def counted(program: Path, rounds: int, folder: Path) -> dict[str, int]:
    """Return instructions by kernel, those of what it calls among them."""
    profile = folder / "callgrind.out"
    tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}"]
    run([*tool, str(program), str(COUNTED), str(rounds)])
    listed = subprocess.run(
        ["callgrind_annotate", "--threshold=100", "--inclusive=yes", "--tree=caller", str(profile)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    calls = re.findall(r"^ *([\d,]+) .*\* .*:geof_(\w+) \[", listed, re.MULTILINE)
    return {name: int(number.replace(",", "")) for number, name in calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("native", nargs="*", type=Path, default=[HERE.parent / "native"])
    parser.add_argument("--level", choices=LEVELS, default="avx2")
    parser.add_argument("--nodes", type=int, default=3821, help="as in a batch of NCI1")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    if options.instructions and shutil.which("valgrind") is None:
        sys.exit("Expected valgrind to count instructions (it is not installed).")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = [
            build(native, options.level, folder / f"step-{k}")
            for k, native in enumerate(options.native)
        ]
        best = [[float("inf")] * len(PARTS) for _ in programs]
        for _ in range(options.turns):
            for k, program in enumerate(programs):
                times = run([str(program), str(options.nodes), "60"])
                best[k] = [min(pair) for pair in zip(best[k], times, strict=False)]
        for native, times in zip(options.native, best, strict=True):
            parts = ", ".join(f"{part} {time:.0f}" for part, time in zip(PARTS, times, strict=True))
            print(f"{native}: {sum(times):.0f} ns per node and step ({parts})")
        if options.instructions:
            for native, program in zip(options.native, programs, strict=True):
                few, more = (counted(program, rounds, folder) for rounds in (FEW, MORE))
                names = "apply_frames", "evolve", "evolve_backward", "apply_frames_backward"
                each = [(more[k] - few[k]) / (MORE - FEW) / COUNTED for k in names]
                parts = ", ".join(
                    f"{part} {count:.0f}" for part, count in zip(PARTS, each, strict=True)
                )
                print(f"{native}: {sum(each):.0f} instructions per node and step ({parts})")


if __name__ == "__main__":
    main()

"""The kernels compiled with sanitizers: as a program that drives them, and as a library."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from geof.kernels.library import LEVELS, find_library

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
PACKAGE = HERE.parents[1] / "src" / "geof"
# Short spans and no work too small to share, so that small graphs have several of each.
OPTIONS = (
    *("-std=gnu++20", "-O0", "-g1", "-fPIC", "-Wno-psabi", "-pthread", f"-I{NATIVE}"),
    *("-DGEOF_SPAN_EDGES=40", "-DGEOF_SPAN_EDGES_PER_NODE=0", "-DGEOF_ROLLED", "-DGEOF_ALONE=0"),
)
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
# As in native/CMakeLists.txt.
FLAGS = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma"),
}
SEEN = ("AddressSanitizer", "ThreadSanitizer", "LeakSanitizer", "runtime error")
"""How a report of a sanitizer begins."""
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
}
ENVIRONMENT.pop("LD_PRELOAD", None)


def run(
    *command: object, timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**ENVIRONMENT, **environment},
        check=False,
    )


def best_level() -> str:
    """Return the best instruction set here."""
    library = find_library().library
    return LEVELS[0] if library is None else library.level


@dataclass(frozen=True)
class Build:
    """The kernels' object files for one sanitizer and instruction set."""

    compiler: str
    folder: Path
    sanitizer: str
    level: str

    def _run(self, *words: object) -> None:
        flags = (*OPTIONS, *SANITIZERS[self.sanitizer], *FLAGS[self.level])
        made = run(self.compiler, *flags, *words)
        assert made.returncode == 0, made.stderr[-3000:]

    def objects(self) -> list[Path]:
        """Compile, once; for the thread sanitizer with a team of plain threads (team.cpp)."""
        kernels = self.folder / "geof.o"
        if not kernels.exists():
            self._run("-fopenmp", "-c", NATIVE / "geof.cpp", "-o", kernels)
        if self.sanitizer != "thread":
            return [kernels]
        team = self.folder / "team.o"
        if not team.exists():
            # Hidden, or the library would find the entry points of the runtime torch has loaded.
            self._run("-fvisibility=hidden", "-c", HERE / "team.cpp", "-o", team)
        return [kernels, team]

    @property
    def _runtime(self) -> list[str]:
        return [] if self.sanitizer == "thread" else ["-fopenmp"]

    def program(self) -> Path:
        """Return the driver."""
        made = self.folder / "sanitize"
        if not made.exists():
            words = [HERE / "sanitize.cpp", *self.objects(), *self._runtime, "-o", made]
            self._run(*words)
        return made

    def package(self) -> Path:
        """Return a folder to import from: the package by links, beside these kernels."""
        place = self.folder / "package"
        kernels = place / "geof" / "kernels"
        if not kernels.exists():
            (kernels / "lib").mkdir(parents=True)
            for path in PACKAGE.iterdir():
                if path.name != "kernels":
                    (place / "geof" / path.name).symlink_to(path)
            for path in (PACKAGE / "kernels").glob("*.py"):
                (kernels / path.name).symlink_to(path)
            library = kernels / "lib" / f"geof_kernels_{LEVELS[0]}.so"
            self._run("-shared", *self.objects(), "-o", library)
        return place

    def preload(self) -> str:
        """Return the runtimes that must be in a process before anything else."""
        name = {"address": "libasan.so", "thread": "libtsan.so"}[self.sanitizer]
        found = [
            run(self.compiler, f"-print-file-name={n}").stdout.strip() for n in (name, STANDARD)
        ]
        if not all(Path(path).is_absolute() for path in found):
            pytest.skip(f"{self.compiler} has no shared {name}")
        return " ".join(found)


STANDARD = "libstdc++.so.6"
"""Loaded first as well: the sanitizers look up what throws when they start."""


@cache
def compiler() -> str:
    """Return a compiler; skip where there is none."""
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def build(folder: Path, sanitizer: str, level: str) -> Build:
    """Return a build in an empty folder; skip where the sanitizer does not work."""
    trial = folder / "trial.cpp"
    trial.write_text("int main() { return 0; }\n")
    flags = (*OPTIONS, *SANITIZERS[sanitizer])
    made = run(compiler(), *flags, trial, "-o", folder / "trial")
    if made.returncode or run(folder / "trial").returncode:
        pytest.skip(f"{compiler()} has no sanitizer that works here: {made.stderr.strip()[:200]}")
    if sanitizer == "thread" and "clang" in compiler():
        pytest.skip("needs GCC, whose calls of OpenMP team.cpp answers")
    return Build(compiler(), folder, sanitizer, level)

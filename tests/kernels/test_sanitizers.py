"""The kernels under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from geof.kernels.library import LEVELS, find_library

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Short spans, so that small graphs have several.
OPTIONS = (
    *("-std=gnu++20", "-O0", "-g1", "-fopenmp", "-Wno-psabi", "-pthread"),
    *("-DGEOF_SPAN_EDGES=40", "-DGEOF_ROLLED"),
    *SANITIZERS,
)
# As in native/CMakeLists.txt.
FLAGS = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma"),
}
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
ENVIRONMENT.pop("LD_PRELOAD", None)

pytestmark = pytest.mark.slow


def run(*command: object, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=ENVIRONMENT,
        check=False,
    )


@pytest.fixture(scope="module")
def compiler(tmp_path_factory) -> str:
    """Return a compiler that has the sanitizers and OpenMP."""
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if found is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("trial")
    (folder / "trial.cpp").write_text("int main() { return 0; }\n")
    made = run(found, *OPTIONS, folder / "trial.cpp", "-o", folder / "trial")
    if made.returncode or run(folder / "trial").returncode:
        pytest.skip(f"{found} has no sanitizers that work here: {made.stderr.strip()[:200]}")
    return found


def levels() -> list[str]:
    """Return the generic instruction set and the best one here."""
    library = find_library().library
    return [LEVELS[0]] if library is None else list(dict.fromkeys([LEVELS[0], library.level]))


@pytest.fixture(scope="module", params=levels())
def program(request, compiler, tmp_path_factory) -> Path:
    """Return the driver, compiled for an instruction set."""
    path = tmp_path_factory.mktemp(request.param) / "sanitize"
    made = run(
        *(compiler, *OPTIONS, *FLAGS[request.param], f"-I{NATIVE}"),
        *(HERE / "sanitize.cpp", NATIVE / "geof.cpp", "-o", path),
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return path


def test_kernels_stay_inside_their_arrays(program):
    done = run(program)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr
    assert int(re.fullmatch(r"(\d+) cases\n", done.stdout)[1]) > 400


def test_an_array_one_value_too_short_is_noticed(program):
    """Otherwise the test above would say nothing."""
    done = run(program, "short")
    assert done.returncode != 0
    assert "ERROR: AddressSanitizer" in done.stderr
    assert "native/frames.h" in done.stderr

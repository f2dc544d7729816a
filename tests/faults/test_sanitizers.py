"""The table of calls with kernels that the sanitizers watch."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from geof.kernels import BACKENDS
from tests.faults.calls import calls
from tests.faults.harness import FULL
from tests.kernels.sanitized import NATIVE, SEEN, best_level, build, run

ROOT = Path(__file__).parents[2]

UNHOOKED = """
import runpy, sys
# An editable install puts itself before every path: there the kernels are the ordinary ones.
sys.meta_path[:] = [hook for hook in sys.meta_path if "editable" not in type(hook).__module__]
runpy.run_module("tests.faults.calls", run_name="__main__", alter_sys=True)
"""


def reports(said: str) -> list[str]:
    """Return what a sanitizer said of the kernels; how torch's threads wait it does not know."""
    found = re.split(rf"^(?=.*(?:{'|'.join(SEEN)}))", said, flags=re.MULTILINE)[1:]
    # What follows a report's last line was said by Python.
    told = [part.splitlines()[0] if part.startswith("SUMMARY") else part for part in found]
    return [report for report in told if "geof_kernels" in report or f"{NATIVE}/" in report]


def test_reports_of_the_kernels_are_told_from_those_of_torch():
    theirs = "WARNING: ThreadSanitizer: data race\n  #0 memset\n  #1 c10::alloc (libc10.so)\n"
    ours = "WARNING: ThreadSanitizer: data race\n  #0 store native/lanes.h (geof_kernels.so)\n"
    assert reports("a call\n" + theirs + "another\n" + ours + theirs) == [ours]


def test_what_python_says_after_a_report_is_not_part_of_it():
    theirs = (
        "WARNING: ThreadSanitizer: data race\n  #0 memset\nSUMMARY: ThreadSanitizer: data race\n"
    )
    assert reports(theirs + "cannot open geof_kernels_avx2.so\n") == []
    assert reports(f"SUMMARY: ThreadSanitizer: data race {NATIVE}/lanes.h:1\nmore\n") != []


@pytest.mark.skipif(not FULL, reason="takes minutes; make test-faults has it")
@pytest.mark.skipif("native" not in BACKENDS, reason="needs the compiled kernels")
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_the_table_of_calls(sanitizer, tmp_path, tried):
    """Right and wrong tensors, in one process with three threads."""
    made = build(tmp_path, sanitizer, best_level())
    nodes = 150 if sanitizer == "thread" else 7  # of few, one thread does all the work
    done = run(
        *(sys.executable, "-c", UNHOOKED, nodes, 3, 1, made.package()),
        timeout=3000,
        LD_PRELOAD=made.preload(),
        ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=1",  # of Python, not of ours
        TSAN_OPTIONS="exitcode=0",
        PYTHONPATH=f"{made.package()}{os.pathsep}{ROOT}",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert reports(done.stderr) == []
    found = re.search(r"(\d+) calls", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) > 20 * len(calls())
    tried(int(found[1]))

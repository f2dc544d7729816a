"""The kernels under the address, undefined-behaviour and thread sanitizers.

The slow suite has addresses for the best instruction set here; ``make test-faults`` has all.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from geof.kernels.library import LEVELS
from tests.faults.harness import FULL
from tests.kernels.sanitized import SEEN, Build, best_level, build, run

pytestmark = [pytest.mark.slow, pytest.mark.faults]
LONG = pytest.mark.skipif(not FULL, reason="takes minutes; make test-faults has it")


def cases(program: Path, *words: str) -> int:
    """Run the driver, which must end well and without a word of the sanitizer's."""
    done = run(program, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr
    found = re.fullmatch(r"(\d+) cases\n", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


@pytest.fixture(
    scope="module", params=list(dict.fromkeys([*([LEVELS[0]] if FULL else []), best_level()]))
)
def addresses(request, tmp_path_factory) -> Build:
    """Return a build that watches addresses, for an instruction set."""
    return build(tmp_path_factory.mktemp(request.param), "address", request.param)


@pytest.fixture(scope="module")
def threads(tmp_path_factory) -> Build:
    """Return a build that watches threads; how work is shared is the same for every level."""
    return build(tmp_path_factory.mktemp("threads"), "thread", best_level())


def test_kernels_stay_inside_their_arrays(addresses):
    assert cases(addresses.program()) > 800


def test_an_array_one_value_too_short_is_noticed(addresses):
    """Otherwise the test above would say nothing."""
    done = run(addresses.program(), "short")
    assert done.returncode != 0
    assert "ERROR: AddressSanitizer" in done.stderr
    assert "native/frames.h" in done.stderr


@LONG
def test_no_two_threads_meet(threads):
    """Neither those that share the work of a kernel nor several callers at once."""
    assert cases(threads.program(), "threads") > 800


@LONG
def test_two_threads_that_write_one_array_are_noticed(threads):
    """Otherwise the test above would say nothing."""
    done = run(threads.program(), "race")
    assert done.returncode != 0
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
    assert "native/gate.h" in done.stderr
    assert any(word in done.stderr for word in SEEN)

"""What the machine tells about a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from geof.machine import peak_resident_bytes

FILE = Path(peak_resident_bytes.__code__.co_filename)
# The function alone: importing the package takes seconds and memory of its own.
ALONE = "import runpy; print(runpy.run_path({!r})['peak_resident_bytes']())"


def test_the_peak_of_a_process_is_not_its_parents():
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's /proc")
    large = torch.ones(2**28)  # 1 GiB, more than a fresh interpreter with all its packages
    command = [sys.executable, "-c", ALONE.format(str(FILE))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < large.nbytes <= peak_resident_bytes()

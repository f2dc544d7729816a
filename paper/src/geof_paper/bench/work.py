"""What the fresh processes do. The server imports this module, and with it everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from geof_paper.bench import devices, memory
from geof_paper.bench.catalogue import WORKLOADS, Effort, Entry, Workload
from geof_paper.bench.devices import CPU
from geof_paper.bench.methods import MethodTraining
from geof_paper.bench.networks import Training
from geof_paper.bench.problems import Facts, Problem, build_problem
from geof_paper.bench.processes import Say
from geof_paper.bench.timing import Times, run_rounds


@dataclass(frozen=True)
class Peak:
    """Memory of one entry alone in its process.

    Attributes:
        peak: Largest resident size of the process while it trained.
        above_data: The same less the size when data and network were ready; on another device
            than the CPU of ``on_device``.
        on_device: Most bytes of tensors there; ``None`` for the CPU.
    """

    peak: int
    above_data: int
    on_device: int | None = None

    @property
    def needed(self) -> int:
        """What the memory that is computed in must hold."""
        return self.peak if self.on_device is None else self.on_device


def prepare(
    workload: Workload, data_root: str | None, batches: int | None, path: Path, *, say: Say
) -> Facts:
    """Build a problem and write it for the processes that measure."""
    say("preparing")
    problem = build_problem(workload, data_root, batches)
    problem.save(path)
    return problem.facts


def measure_times(
    path: Path, entries: tuple[Entry, ...], effort: Effort, device: torch.device = CPU, *, say: Say
) -> dict[Entry, Times]:
    """Time the entries on the problem in the file, interleaved."""
    problem = Problem.load(path).to(device)
    failed: dict[Entry, Times] = {}
    epochs: dict[Entry, Callable[[], float]] = {}
    for entry in entries:
        try:
            _touch_libraries(entry, problem)
            epochs[entry] = _training(entry, problem).epoch
        except Exception as error:  # the entry's result, not the end of the run
            failed[entry] = Times(error=f"{type(error).__name__}: {error}")
    return failed | run_rounds(epochs, effort, say, devices.clock_on(device))


def measure_memory(
    path: Path, entry: Entry, epochs: int, device: torch.device = CPU, *, say: Say
) -> Peak:
    """Train one entry alone and read the peak of the process, and of the device if it counts."""
    say(f"memory of {entry.label}")
    problem = Problem.load(path).to(device)
    _touch_libraries(entry, problem)
    training = _training(entry, problem)
    memory.release_freed()
    memory.reset_peak()
    ready = memory.resident_bytes()
    held = devices.reset_device_peak(device)
    with memory.every_byte_counted():
        for _ in range(epochs):
            training.epoch()
    peak, there = memory.peak_bytes(), devices.device_peak(device)
    if held is None or there is None:
        return Peak(peak, peak - ready)
    return Peak(peak, there - held, there)


def _training(entry: Entry, problem: Problem) -> Training | MethodTraining:
    if entry.is_method:
        return MethodTraining(entry, problem)
    return Training(entry, problem)


def _touch_libraries(entry: Entry, problem: Problem) -> None:
    """Train on a toy, so that loading code and starting threads is in nobody's figures."""
    # Methods have readouts and code of their own for sets; the others differ by a mean pool.
    toy = "tiny-set" if entry.is_method and problem.shape == "set" else "tiny"
    _training(entry, build_problem(WORKLOADS[toy], batches=1).to(problem.device)).epoch()

"""What the fresh processes do. The server imports this module, and with it everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from geof_paper.bench import memory
from geof_paper.bench.catalogue import WORKLOADS, Effort, Entry, Shape, Workload
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
        above_data: The same less the size when data and network were ready.
    """

    peak: int
    above_data: int


def prepare(
    workload: Workload, data_root: str | None, batches: int | None, path: Path, *, say: Say
) -> Facts:
    """Build a problem and write it for the processes that measure."""
    say("preparing")
    problem = build_problem(workload, data_root, batches)
    problem.save(path)
    return problem.facts


def measure_times(
    path: Path, entries: tuple[Entry, ...], effort: Effort, *, say: Say
) -> dict[Entry, Times]:
    """Time the entries on the problem in the file, interleaved."""
    problem = Problem.load(path)
    failed: dict[Entry, Times] = {}
    epochs: dict[Entry, Callable[[], float]] = {}
    for entry in entries:
        try:
            _touch_libraries(entry, problem.shape)
            epochs[entry] = _training(entry, problem).epoch
        except Exception as error:  # the entry's result, not the end of the run
            failed[entry] = Times(error=f"{type(error).__name__}: {error}")
    return failed | run_rounds(epochs, effort, say)


def measure_memory(path: Path, entry: Entry, epochs: int, *, say: Say) -> Peak:
    """Train one entry alone and read the peak of the process."""
    say(f"memory of {entry.label}")
    problem = Problem.load(path)
    _touch_libraries(entry, problem.shape)
    training = _training(entry, problem)
    memory.release_freed()
    memory.reset_peak()
    ready = memory.resident_bytes()
    for _ in range(epochs):
        training.epoch()
    peak = memory.peak_bytes()
    return Peak(peak, peak - ready)


def _training(entry: Entry, problem: Problem) -> Training | MethodTraining:
    if entry.is_method:
        return MethodTraining(entry, problem)
    return Training(entry, problem)


def _touch_libraries(entry: Entry, shape: Shape) -> None:
    """Train on a toy, so that loading code and starting threads is in nobody's figures."""
    # Methods have readouts and code of their own for sets; the others differ by a mean pool.
    toy = "tiny-set" if entry.is_method and shape == "set" else "tiny"
    _training(entry, build_problem(WORKLOADS[toy], batches=1)).epoch()

"""Jobs on a Ray cluster: one task each, whose folder is brought home when it is done.

Machines need this package (the same versions, which is checked) and the raw data below the same
``data_root``; they need not share a disk. Where they do, a job whose machine died is continued
from its last saved state; otherwise it is begun again.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from geof.errors import ConfigError, FolderLockedError, GeofError
from geof.executor import Job, Outcome, Outcomes, ShouldStop, Value, Work, attempt, never, until
from geof.io import write_atomically
from geof.training.run_folder import read_result
from geof.version import __version__
from geof_paper.grid.cells import Cell

RETRIES = 3
"""How often a job whose process died is begun again."""

_POLL_SECONDS = 0.2
_ASK_SECONDS = 1.0
"""From one question of a task, whether it is to stop, to the next."""


@dataclass(frozen=True)
class RayExecutor:
    """Runs jobs as tasks of Ray. See :class:`geof.executor.Executor`.

    Attributes:
        ray: The module, connected to a cluster.
        folder: Where a job writes, the same on every machine; its files are brought here.
        code: Says what code would do a job, to be the same on every machine.
    """

    ray: Any
    folder: Callable[[Any], Path]
    code: Callable[[Any], str]

    @classmethod
    @contextmanager
    def connected(
        cls,
        address: str | None,
        workers: int,
        folder: Callable[[Any], Path],
        code: Callable[[Any], str],
    ) -> Iterator[RayExecutor]:
        """Yield an executor on a cluster; disconnect in the end.

        Args:
            address: Such as ``auto`` or ``ray://head:10001``; ``None`` starts Ray here.
            workers: How many processes a Ray started here has.
            folder: Where a job writes.
            code: Says what code would do a job.

        Raises:
            ConfigError: If Ray is not installed or the cluster cannot be reached.
        """
        ray = _connect(address, workers)
        try:
            yield cls(ray, folder, code)
        finally:
            ray.shutdown()

    def run(
        self, work: Work[Job, Value], jobs: Iterable[Job], *, should_stop: ShouldStop = never
    ) -> Outcomes[Job, Value]:
        """Yield every job with its outcome, its folder brought home.

        Raises:
            ConfigError: If a machine has other code.
        """
        ray = self.ray
        stop = ray.remote(num_cpus=0)(StopFlag).remote()
        held = ray.put(pickle.dumps((work, self.folder, self.code)))
        begin = ray.remote(num_cpus=1, max_retries=RETRIES)(_train)
        drawn = until(jobs, should_stop)
        running: dict[Any, Job] = {}
        while True:
            if should_stop():
                stop.ask.remote()
            room = int(ray.cluster_resources().get("CPU", 1)) - len(running)
            for job in islice(drawn, max(room, 0)):
                running[begin.remote(held, job, self._code(job), stop)] = job
            if not running:
                return
            for done in ray.wait(list(running), timeout=_POLL_SECONDS)[0]:
                job = running.pop(done)
                yield job, self._bring_home(job, done)

    def _code(self, job: Any) -> str:
        return f"geof {__version__}, {self.code(job)}"

    def _bring_home(self, job: Job, done: Any) -> Outcome[Any]:
        """Write a task's files here unless they are; return its outcome."""
        outcome: Outcome[Any]
        try:
            outcome, files = self.ray.get(done)
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, OtherCodeError):
                raise ConfigError(str(cause)) from error
            return Outcome(error=GeofError(f"{type(error).__name__}: {error}"))
        if files:
            write_files(self.folder(job), files)
        return outcome


def revision_of(cell: Cell) -> str:
    """Say what code would train a cell."""
    return f"revision {cell.revision} of '{cell.row.method}'"


class OtherCodeError(Exception):
    """A machine would not do what the one that started it would."""


class StopFlag:
    """Tells the tasks on all machines whether to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Ask all to stop."""
        self.asked = True

    def is_asked(self) -> bool:
        """Return whether that was done."""
        return self.asked


def _train(held: bytes, job: Any, code: str, stop: Any) -> tuple[Outcome[Any], dict[str, bytes]]:
    """Do one job in a process of the cluster; return its outcome and its folder's files."""
    work, folder_of, code_of = _loaded(held)
    here = f"geof {__version__}, {code_of(job)}"
    if here != code:
        raise OtherCodeError(
            f"Expected the code of the machine that started this ({code}; got {here}). Install the "
            "same version everywhere."
        )
    torch.set_num_threads(1)  # what the task has asked for
    outcome = attempt(work, job, _Asked(stop))
    if isinstance(outcome.error, FolderLockedError):
        return outcome, {}  # the files are another's
    folder = folder_of(job)
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return outcome, {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@lru_cache(maxsize=1)
def _loaded(held: bytes) -> Any:
    """Return what a process keeps from one task to the next."""
    return pickle.loads(held)  # from the process that connected to this cluster


class _Asked:
    """Asks a flag, not more often than it is worth."""

    def __init__(self, flag: Any) -> None:
        self.flag, self.answer, self.next = flag, False, 0.0

    def __call__(self) -> bool:
        if not self.answer and time.monotonic() >= self.next:
            import ray

            self.answer = ray.get(self.flag.is_asked.remote())
            self.next = time.monotonic() + _ASK_SECONDS
        return self.answer


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Bring a run folder home; where the disk is shared, all of it is there already.

    What an earlier, unfinished attempt left here is not part of that run and goes.
    """
    finished = folder.is_dir() and read_result(folder) is not None
    if not finished and folder.is_dir():
        for path in folder.iterdir():
            if path.is_file() and path.name[0] != "." and path.name not in files:
                path.unlink()
    # The result comes last: with it the cell counts as finished.
    for name in sorted(files, key=lambda name: name == "result.json"):
        path = folder / name
        if not (finished and path.exists()):
            write_atomically(path, files[name])


def _connect(address: str | None, workers: int) -> Any:
    """Return Ray, connected."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "Expected Ray for '--ray' (it is not installed). Run pip install './paper[ray]' in a "
            "checkout of the project."
        ) from error
    where: dict[str, Any] = {"num_cpus": workers} if address is None else {"address": address}
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"Expected a Ray cluster at '{address}' ({error}).") from error
    return ray

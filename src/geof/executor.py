"""What runs jobs, and the plainest way to: one after another in this process.

An executor draws a job when there is room for it, not before, so that a job may depend on what
came of earlier ones; outcomes arrive as jobs end. An exception, or the death of a process, is an
outcome like any other: the executor goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from geof.errors import GeofError

Job = TypeVar("Job")
Value = TypeVar("Value")
ShouldStop: TypeAlias = Callable[[], bool]
Work: TypeAlias = Callable[[Job, ShouldStop], Value]
"""What is done with a job. It is handed what tells whether to save and raise ``StoppedError``."""


class WorkerLostError(GeofError):
    """A worker process ended although it was not told to."""


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """What came of a job: a value, or the error that ended it, and how long it took."""

    value: Value | None = None
    error: Exception | None = None
    seconds: float = field(default=0.0, compare=False)


Outcomes: TypeAlias = Generator[tuple[Job, Outcome[Value]], None, None]
"""Every job with its outcome, in the order in which they end."""


def never() -> bool:
    """Say that there is no reason to stop."""
    return False


class Executor(Protocol):
    """Runs jobs."""

    def run(
        self, work: Work[Job, Value], jobs: Iterable[Job], *, should_stop: ShouldStop = never
    ) -> Outcomes[Job, Value]:
        """Yield every job with its outcome, in the order in which they end.

        Args:
            work: What to do with a job.
            jobs: Drawn one by one, each when it can begin at once.
            should_stop: When it says so, no further job is drawn and those that run are told to
                save; their outcomes, ``StoppedError`` among them, are the last.
        """
        ...


class InProcess:
    """Runs jobs one after another in this process."""

    def run(
        self, work: Work[Job, Value], jobs: Iterable[Job], *, should_stop: ShouldStop = never
    ) -> Outcomes[Job, Value]:
        """Yield every job with its outcome. See :class:`Executor`."""
        for job in until(jobs, should_stop):
            yield job, attempt(work, job, should_stop)


def until(jobs: Iterable[Job], should_stop: ShouldStop) -> Iterator[Job]:
    """Yield jobs until ``should_stop``, which is asked before each is drawn."""
    drawn = iter(jobs)
    while not should_stop():
        try:
            job = next(drawn)
        except StopIteration:
            return
        yield job


def attempt(work: Work[Job, Value], job: Job, should_stop: ShouldStop) -> Outcome[Value]:
    """Return a job's outcome, whatever it raises."""
    began = time.perf_counter()
    try:
        value = work(job, should_stop)
    except Exception as error:
        return Outcome(error=error, seconds=time.perf_counter() - began)
    return Outcome(value, seconds=time.perf_counter() - began)

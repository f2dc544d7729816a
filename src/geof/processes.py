"""Jobs in processes of their own: a small pool that loses no job and leaves no process behind.

A worker does the jobs its parent sends, and does not outlive it. Nothing heavy is imported here, so
that it listens to its parent before it imports what its jobs need.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic

from geof.errors import GeofError, StoppedError
from geof.executor import (
    Job,
    Outcome,
    Outcomes,
    ShouldStop,
    Value,
    Work,
    WorkerLostError,
    attempt,
    never,
    until,
)

THREADS = "OMP_NUM_THREADS"

_POLL_SECONDS = 0.2
"""From one look at ``should_stop`` to the next."""

_PATIENCE_SECONDS = 10.0
"""What workers get to save and end before they are killed, when a run is broken off."""


@dataclass(frozen=True)
class Processes:
    """Runs jobs in processes, each with its share of the cores.

    The work and the jobs are pickled; a worker keeps its copy of the work from one job to
    the next. Workers are started when there is something to do. No Ctrl-C of the terminal reaches
    them: they stop when this process tells them, when it dies, and when they are asked to end
    (SIGTERM), each time after saving.

    Attributes:
        workers: How many at once.
        threads: Of a worker, unless ``OMP_NUM_THREADS`` is set; ``None`` divides the cores.
        retries: How often a job whose process died is begun again.
        log: Folder for what workers print, a file each; ``None`` prints it here.

    Raises:
        WorkerLostError: From :meth:`run`, if a worker does not even start.
    """

    workers: int
    threads: int | None = None
    retries: int = 1
    log: Path | None = None

    @property
    def share(self) -> int:
        """The number of threads of a worker."""
        return self.threads or max(1, cores() // self.workers)

    def run(
        self, work: Work[Job, Value], jobs: Iterable[Job], *, should_stop: ShouldStop = never
    ) -> Outcomes[Job, Value]:
        """Yield every job with its outcome. See :class:`Executor`."""
        pool: _Pool[Job, Value] = _Pool(self, pickle.dumps(work))
        drawn = until(jobs, should_stop)
        patience = _PATIENCE_SECONDS
        try:
            while True:
                stopping = should_stop()
                if stopping:
                    pool.stop()
                while not stopping and pool.has_room():
                    task = pool.next_lost() or _next_task(drawn)
                    if task is None:
                        break
                    pool.begin(task)
                if pool.is_idle():
                    return
                yield from pool.outcomes(_POLL_SECONDS, stopping=stopping)
        except KeyboardInterrupt:
            patience = 0.0
            raise
        finally:
            pool.close(patience)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class _Task(Generic[Job]):
    """A job on its way, pickled; how often its process died; why it cannot be sent, if so."""

    job: Job
    payload: bytes = b""
    deaths: int = 0
    error: Exception | None = None


def _next_task(drawn: Iterator[Job]) -> _Task[Job] | None:
    for job in drawn:
        try:
            return _Task(job, pickle.dumps(job))
        except Exception as error:  # of any kind: pickling runs code of the job
            return _Task(job, error=error)
    return None


class _Pool(Generic[Job, Value]):
    """The workers of one run and the tasks they have."""

    def __init__(self, how: Processes, work: bytes) -> None:
        self.how, self.work = how, work
        self.workers: list[_Worker[Job]] = []
        self.lost: deque[_Task[Job]] = deque()
        self.done: deque[tuple[Job, Outcome[Value]]] = deque()
        self.told_to_stop = False

    def has_room(self) -> bool:
        busy = sum(worker.task is not None for worker in self.workers)
        return busy < self.how.workers and not self.done  # what is done is told first

    def is_idle(self) -> bool:
        busy = any(worker.task is not None for worker in self.workers)
        return not (busy or self.lost or self.done)

    def next_lost(self) -> _Task[Job] | None:
        return self.lost.popleft() if self.lost else None

    def begin(self, task: _Task[Job]) -> None:
        """Give a task to a worker that has none, or to a new one."""
        if task.error is not None:
            self.done.append((task.job, Outcome(error=task.error)))
            return
        for worker in [worker for worker in self.workers if worker.task is None]:
            if worker.give(task):
                return
            self._remove(worker)  # it died with nothing to do
        numbers = {worker.number for worker in self.workers}
        number = min(n for n in range(len(numbers) + 1) if n not in numbers)
        worker = _Worker(number, self.how, self.work)
        self.workers.append(worker)
        worker.give(task)

    def stop(self) -> None:
        """Tell everyone, once, to save and stop; tasks that were to be begun again are not."""
        if not self.told_to_stop:
            self.told_to_stop = True
            for worker in self.workers:
                worker.send(STOP)
        while self.lost:
            self.done.append((self.lost.popleft().job, _stopped()))

    def outcomes(self, seconds: float, *, stopping: bool) -> Iterator[tuple[Job, Outcome[Value]]]:
        """Yield what ended, after waiting for it at most so long."""
        if not self.done:
            wait([worker.connection for worker in self.workers], seconds)
        for worker in list(self.workers):
            self._listen(worker, stopping)
        while self.done:
            yield self.done.popleft()

    def close(self, patience: float) -> None:
        """Let workers save and end; kill those that do not."""
        for worker in self.workers:
            worker.connection.close()  # which tells them
        deadline = time.monotonic() + patience
        for worker in self.workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self.workers.clear()

    def _listen(self, worker: _Worker[Job], stopping: bool) -> None:
        ended = worker.process.exitcode is not None  # before its last words are read
        try:
            while worker.connection.poll():
                message = worker.connection.recv_bytes()
                if message == READY:
                    worker.ready = True
                elif worker.task is not None:
                    self.done.append((worker.task.job, _loaded(message)))
                    worker.task = None
        except (EOFError, OSError):
            self._bury(worker, stopping)
        else:
            if ended:
                self._bury(worker, stopping)

    def _bury(self, worker: _Worker[Job], stopping: bool) -> None:
        """Decide what becomes of the task of a worker that died."""
        how, task = self._remove(worker), worker.task
        if task is None:
            return
        if stopping:
            self.done.append((task.job, _stopped()))
            return
        if not worker.ready:
            raise WorkerLostError(
                f"Expected a worker process to start, but it {how} before its first job. What it "
                "said is "
                + ("above." if self.how.log is None else f"above or in '{self.how.log}'.")
            )
        task.deaths += 1
        if task.deaths <= self.how.retries:
            self.lost.append(task)
            return
        times = "" if task.deaths == 1 else f", {task.deaths} times"
        self.done.append(
            (
                task.job,
                Outcome(
                    error=WorkerLostError(
                        f"Its worker process {how}{times}. The system does so when memory runs "
                        "out; then fewer workers may help."
                    )
                ),
            )
        )

    def _remove(self, worker: _Worker[Job]) -> str:
        """Forget a worker; return how it ended."""
        self.workers.remove(worker)
        worker.connection.close()
        worker.end(PULSE_SECONDS)
        return _ending(worker.process.exitcode)


class _Worker(Generic[Job]):
    """A worker process, seen from its parent."""

    def __init__(self, number: int, how: Processes, work: bytes) -> None:
        self.number = number
        self.task: _Task[Job] | None = None
        self.ready = False
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        log = None if how.log is None else how.log / f"{number}.log"
        self.process = context.Process(
            target=serve, args=(theirs, os.getpid(), log), name=f"geof-{number}", daemon=True
        )
        with _environment(how.share), _signals_blocked():
            self.process.start()
        theirs.close()
        self.send(work)

    def give(self, task: _Task[Job]) -> bool:
        """Return whether the task could be sent; a new worker's death shows when it is read."""
        sent = self.send(task.payload)
        if sent or not self.ready:
            self.task = task
        return self.task is not None

    def send(self, message: bytes) -> bool:
        try:
            self.connection.send_bytes(message)
        except OSError:
            return False
        return True

    def end(self, patience: float) -> None:
        """Wait for the process to end; kill it if it does not."""
        self.process.join(patience)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


def _loaded(message: bytes) -> Outcome[Any]:
    try:
        outcome: Outcome[Any] = pickle.loads(message)  # from this process's own worker
    except Exception as error:
        return Outcome(error=GeofError(f"Expected a readable outcome ({error})."))
    return outcome


def _stopped() -> Outcome[Any]:
    return Outcome(error=StoppedError("Stopped; it goes on from the last saved state."))


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set the number of threads for a process that is started; the user's own word counts."""
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = str(threads)
    try:
        yield
    finally:
        del os.environ[THREADS]


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let a process that is started begin deaf to Ctrl-C, until it has seen to that itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would unblock them, begun later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


READY, STOP = b"ready", b"stop"
"""What a worker says before its first job, and what its parent says to make it save and stop."""

PULSE_SECONDS = 1.0
"""From one look of a worker at whether its parent still lives to the next."""


def serve(connection: Connection, parent: int, log: Path | None) -> None:
    """Be a worker: do jobs until there are no more, or until told to stop."""
    asked_to_end: list[int] = []
    stop = threading.Event()
    inbox: SimpleQueue[bytes | None] = SimpleQueue()

    def end(number: int, frame: Any) -> None:
        asked_to_end.append(number)
        stop.set()
        inbox.put(None)

    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    if log is not None:
        _print_to(log)
    threading.Thread(target=_receive, args=(connection, parent, inbox, stop), daemon=True).start()
    first = inbox.get()
    if first is None:
        return
    work: Work[Any, Any] = pickle.loads(first)  # from this worker's own parent
    _answer(connection, READY)
    while (payload := inbox.get()) is not None:
        outcome = _attempt_pickled(work, payload, stop.is_set)
        if asked_to_end and isinstance(outcome.error, StoppedError):
            sys.exit(128 + asked_to_end[0])  # somebody else is to go on with the job
        _answer(connection, _dumped(outcome))


def _attempt_pickled(work: Work[Any, Any], payload: bytes, should_stop: ShouldStop) -> Outcome[Any]:
    try:
        job = pickle.loads(payload)
    except Exception as error:
        return Outcome(error=error)
    return attempt(work, job, should_stop)


def _receive(
    connection: Connection, parent: int, inbox: SimpleQueue[bytes | None], stop: threading.Event
) -> None:
    """Pass on what the parent sends; stop when it is gone."""
    try:
        while True:
            while not connection.poll(PULSE_SECONDS):
                if os.getppid() != parent:  # its end may live on in a process it forked
                    return
            message = connection.recv_bytes()
            if message == STOP:
                stop.set()
            else:
                inbox.put(message)
    except (EOFError, OSError):
        return
    finally:
        stop.set()
        inbox.put(None)


def _answer(connection: Connection, message: bytes) -> None:
    try:
        connection.send_bytes(message)
    except OSError:  # nobody listens any more
        sys.exit(0)


def _dumped(outcome: Outcome[Any]) -> bytes:
    """Pickle an outcome; one that cannot be is told in words."""
    try:
        message = pickle.dumps(outcome)
        if outcome.error is not None:
            pickle.loads(message)  # an exception may be written and not read
    except Exception as error:
        what = outcome.error if outcome.error is not None else error
        told = GeofError(f"{type(what).__name__}: {what}")
        message = pickle.dumps(replace(outcome, value=None, error=told))
    return message


def _print_to(path: Path) -> None:
    """Send what this process prints to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)

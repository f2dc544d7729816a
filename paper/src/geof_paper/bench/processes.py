"""Work in fresh processes: cheap ones, forked from a server that has imported everything.

The server imports and never computes, so that no thread pool is running when it forks. This module
imports nothing heavy: the command line starts the server first and pays for its own imports while
the server does for its.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from geof.errors import GeofError

Say: TypeAlias = Callable[[str], None]
"""Receives one line of progress."""

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_WORK = "geof_paper.bench.work"


class FreshProcessError(GeofError, RuntimeError):
    """A process ended without an answer, or in an error that is not one of this package's."""


# Threads that wait spin this often before they sleep. Left alone, GNU's OpenMP spins so long that
# any other work on the machine stretches a parallel loop tenfold; on a quiet machine this number
# makes no difference that we could measure.
_SPINS = ("GOMP_SPINCOUNT", "10000")


class TimeUpError(FreshProcessError):
    """A process had no answer in time and was ended."""


def start_server() -> None:
    """Start importing in the background; without it the first process waits for the imports."""
    if _METHOD == "forkserver":
        multiprocessing.set_forkserver_preload([_WORK])
        with _waiting_politely():
            multiprocessing.forkserver.ensure_running()


@contextmanager
def _waiting_politely() -> Iterator[None]:
    """Set how long threads spin for the processes started inside, unless the user has."""
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        yield
        return
    name, value = _SPINS
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def in_fresh_process(
    work: Callable[..., Any],
    *arguments: Any,
    threads: int,
    say: Say,
    seconds: float | None = None,
) -> Any:
    """Return ``work(*arguments, say=...)``, computed in a process of its own.

    Args:
        work: A function at the top of its module, with a keyword ``say``.
        *arguments: What it is called with.
        threads: CPU threads of torch there.
        say: Receives its lines of progress.
        seconds: When to give it up (default: never).

    Raises:
        GeofError: What ``work`` raised.
        FreshProcessError: If it raised anything else, its traceback having gone to the error
            stream, or if the process ended without an answer, for instance for want of memory.
        TimeUpError: If it took too long.
    """
    context: Any = multiprocessing.get_context(_METHOD)  # the base class has no 'Process'
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, threads, work, arguments))
    # An interruption in the middle of the start would leave a process that nobody ends.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    try:
        return _listen(ours, process, say, seconds)
    finally:
        process.terminate()
        process.join()
        ours.close()


def _listen(ours: Connection, process: Any, say: Say, seconds: float | None) -> Any:
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        if end is not None and not ours.poll(max(0.0, end - time.monotonic())):
            raise TimeUpError(f"The process had no answer after {seconds:.0f} s.")
        try:
            kind, content = ours.recv()
        except EOFError:
            process.join()
            code = process.exitcode
            cause = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            hint = ": probably killed for want of memory" if code == -signal.SIGKILL else ""
            raise FreshProcessError(
                f"The process ended without an answer ({cause}){hint}."
            ) from None
        if kind == "said":
            say(content)
        elif kind == "failed":
            raise content
        else:
            return content


def _answer(
    theirs: Connection, threads: int, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Do the work in the fresh process and send its result or its exception."""
    # Ctrl-C reaches the whole group; the parent decides and terminates.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(threads)
    try:
        answer = ("done", work(*arguments, say=lambda line: theirs.send(("said", line))))
    except GeofError as error:
        answer = ("failed", error)
    except Exception as error:  # not every exception survives the way; its text does
        traceback.print_exc()
        answer = ("failed", FreshProcessError(f"{type(error).__name__}: {error}"))
    theirs.send(answer)

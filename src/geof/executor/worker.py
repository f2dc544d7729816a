"""A worker process: it does the jobs its parent sends, and does not outlive it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from geof.errors import GeofError, StoppedError
from geof.executor.interface import Function, Outcome, ShouldStop, attempt

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
    function: Function[Any, Any] = pickle.loads(first)  # from this worker's own parent
    _answer(connection, READY)
    while (payload := inbox.get()) is not None:
        outcome = _attempt_pickled(function, payload, stop.is_set)
        if asked_to_end and isinstance(outcome.error, StoppedError):
            sys.exit(128 + asked_to_end[0])  # somebody else is to go on with the job
        _answer(connection, _dumped(outcome))


def _attempt_pickled(
    function: Function[Any, Any], payload: bytes, should_stop: ShouldStop
) -> Outcome[Any]:
    try:
        job = pickle.loads(payload)
    except Exception as error:
        return Outcome(error=error)
    return attempt(function, job, should_stop)


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

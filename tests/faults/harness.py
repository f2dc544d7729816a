"""Forked processes that die, run out of room or are refused at a chosen moment."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geof.errors import GeofError

FULL = os.environ.get("GEOF_FAULTS") == "all"
"""Whether every point is tried, as ``make test-faults`` does; else a few of each kind."""

SECONDS = 120.0
"""After which a process counts as hanging; the machine may be busy."""

UNTYPED = 70
"""Exit code of a process that ended with an error which is none of ours."""

DEEDS = ("replace", "rename", "fsync", "unlink", "remove", "rmdir", "mkdir", "open", "link")
"""What a process does to files through ``os``; opening counts where it may write."""


def tries(short: int, full: int) -> int:
    """Return how many tries are wanted here."""
    return full if FULL else short


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code, negative after a signal, and what it said."""

    code: int
    said: str


def forked(action: Callable[[], Any], seconds: float = SECONDS) -> Ended:
    """Run an action in a process of its own to its end; kill it when time is over."""
    return started(action)(seconds)


def started(action: Callable[[], Any]) -> Callable[[float], Ended]:
    """Start an action in a process of its own; return what waits for the end."""
    output, name = tempfile.mkstemp()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _live(action, output)
    os.close(output)

    def wait(seconds: float = SECONDS) -> Ended:
        deadline = time.monotonic() + seconds
        while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError(f"a process was still at work after {seconds} s")
            time.sleep(0.002)
        said = Path(name).read_text(errors="replace")
        os.unlink(name)
        return Ended(os.waitstatus_to_exitcode(found[1]), said)

    return wait


def _live(action: Callable[[], Any], output: int) -> None:
    """Be the child: act, say, end; nothing of the parent's is tidied up."""
    code = UNTYPED
    try:
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
        try:
            code = int(action() or 0)
        except GeofError as error:
            print(f"{type(error).__name__}: {error}")
            code = 1
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 2
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    finally:
        os._exit(code)


def counting(before: Callable[[str], None]) -> None:
    """Call ``before(name)`` before every deed of this process, from here to its end."""
    for name in DEEDS:
        setattr(os, name, _told(name, getattr(os, name), before))
    io.open = builtins.open = _told_to_write(io.open, before)  # type: ignore[assignment]


def _told_to_write(action: Callable[..., Any], before: Callable[[str], None]) -> Any:
    def told(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not isinstance(file, int) and set(mode) & set("wax+"):
            before("open")
        return action(file, mode, *arguments, **options)

    return told


def _told(name: str, action: Callable[..., Any], before: Callable[[str], None]) -> Any:
    def told(*arguments: Any, **options: Any) -> Any:
        flags = options.get("flags", arguments[1] if len(arguments) > 1 else 0)
        if name != "open" or flags & os.O_CREAT:
            before(name)
        return action(*arguments, **options)

    return told


def committing(before: Callable[[str], None]) -> None:
    """Call ``before`` around every commit of a database, too."""
    import sqlalchemy

    engine = sqlalchemy.engine.Engine
    sqlalchemy.event.listen(engine, "commit", lambda connection: before("commit"))
    sqlalchemy.event.listen(engine, "begin", lambda connection: before("begin"))


def number_of_deeds(action: Callable[[], Any], *more: Callable[..., None]) -> int:
    """Run an action to its end; return how many deeds it took."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "deeds"
        log.touch()
        handle = os.open(log, os.O_WRONLY)

        def note(name: str) -> None:
            os.write(handle, b"x")

        ended = forked(lambda: _watched(action, note, more))
        os.close(handle)
        assert ended.code == 0, ended.said
        return log.stat().st_size


def dying(action: Callable[[], Any], last: int, *more: Callable[..., None]) -> Ended:
    """Run an action in a process that is killed before the deed with number ``last``."""
    done = 0

    def count(name: str) -> None:
        nonlocal done
        if done >= last:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1

    return forked(lambda: _watched(action, count, more))


def _watched(action: Callable[[], Any], before: Callable[[str], None], more: Any) -> Any:
    for install in (counting, *more):
        install(before)
    return action()


def contents(folder: Path) -> dict[str, Any]:
    """Return every file and folder below one, without how long anything took."""
    return {
        str(path.relative_to(folder)): "a folder" if path.is_dir() else _content(path)
        for path in sorted(folder.rglob("*"))
    }


def _content(path: Path) -> Any:
    if path.name.endswith("lock") or path.name == "study.db":
        return None
    if path.name == "result.json":
        return _without_cost(path.read_text())
    if path.suffix == ".jsonl" and path.name != "metrics.jsonl":
        return [_without_cost(line) for line in path.read_text().splitlines()]
    if path.name == "summary.csv":
        lines = [line.split(",") for line in path.read_text().splitlines()]
        other = ("trial", "seconds")  # a trial begun twice has a number for each beginning
        return [[v for n, v in zip(lines[0], row, strict=True) if n not in other] for row in lines]
    if path.name == "best.yaml":
        return path.read_text().partition("\n")[2]
    return path.read_bytes()


def _without_cost(text: str) -> dict[str, Any]:
    content = json.loads(text)
    return {n: v for n, v in content.items() if n not in ("seconds_per_epoch", "peak_rss_bytes")}


@contextmanager
def refused_after(room: int, number: int = errno.ENOSPC) -> Iterator[None]:
    """Let this process's deeds fail from the one with number ``room`` on."""
    done, whole, opened = 0, {name: getattr(os, name) for name in DEEDS}, io.open

    def count(name: str) -> None:
        nonlocal done
        done += 1
        if done > room and name not in ("unlink", "remove", "rmdir"):  # which need none
            raise OSError(number, os.strerror(number))

    counting(count)
    try:
        yield
    finally:
        for name, action in whole.items():
            setattr(os, name, action)
        io.open = builtins.open = opened

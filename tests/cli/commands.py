"""The command line in processes of their own, without paying for the imports each time.

A server imports everything once and computes nothing; each command is forked from it, so that it
has its own memory, signals, output and exit code, as a command typed in a shell does.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


class Commands:
    """Runs ``geof`` commands: ``geof("train", "--quiet")``."""

    def __init__(self) -> None:
        self._outputs = tempfile.TemporaryDirectory()
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __call__(self, *arguments: str | Path, folder: Path | None = None) -> Done:
        """Run a command to its end."""
        return self.start(*arguments, folder=folder).wait()

    def start(
        self, *arguments: str | Path, folder: Path | None = None, save_seconds: float | None = None
    ) -> Started:
        """Start a command in ``folder``; let a run save its state every so many seconds."""
        output = Path(tempfile.mkdtemp(dir=self._outputs.name))
        words = [str(argument) for argument in arguments]
        request = {"words": words, "output": str(output), "folder": str(folder or output)}
        return Started(self, self.ask({**request, "save_seconds": save_seconds}), output)

    def python(self, code: str, *arguments: str | Path) -> Started:
        """Start ``code`` as ``python -c`` does, with all the imports there already."""
        output = Path(tempfile.mkdtemp(dir=self._outputs.name))
        words = ["-c", *map(str, arguments)]
        request = {"words": words, "output": str(output), "folder": str(output), "code": code}
        return Started(self, self.ask(request), output)

    def ask(self, request: dict[str, Any]) -> int:
        """Send a request to the server and return its answer."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        """End the server."""
        self._server.kill()  # nothing to tidy up, and torch takes its time
        self._server.communicate()
        self._outputs.cleanup()


@dataclass(frozen=True)
class Started:
    """A command at work."""

    commands: Commands
    pid: int
    output: Path

    def wait(self) -> Done:
        """Wait for the end; the exit code is negative after a signal, as subprocess has it."""
        code = self.commands.ask({"wait": self.pid})
        # One that was killed at once has not opened its streams yet.
        said = (self.output / "out", self.output / "err")
        out, err = (path.read_text() if path.exists() else "" for path in said)
        return Done(code, out, err)

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


def _serve() -> None:
    for name in ("geof.training.predict", "geof.cli.train", "sklearn.metrics"):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _become(**request)
        print(answer, flush=True)


def _become(
    words: list[str],
    output: str,
    folder: str,
    code: str | None = None,
    save_seconds: float | None = None,
) -> None:
    """Run a command or code in a forked process, as if typed in ``folder``, and end."""
    flags = os.O_WRONLY | os.O_CREAT
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(os.path.join(output, name), flags), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    exit_code: Any = 1
    try:
        exit_code = _command(words, save_seconds) if code is None else _code(code, words)
    except SystemExit as end:
        exit_code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _command(words: list[str], save_seconds: float | None) -> int:
    import geof.training
    from geof.cli import main

    if save_seconds is not None:
        watch: Any = geof.training.Watch
        geof.training.Watch = functools.partial(watch, save_seconds=save_seconds)  # type: ignore
    return main(words)


def _code(code: str, words: list[str]) -> int:
    sys.argv = words
    exec(code, {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    _serve()

"""The command line: the parser of all commands and what happens around one.

Nothing heavy is imported until a command runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from geof.cli.arguments import Parser
from geof.errors import ConfigError, GeofError
from geof.plugins import COMMANDS, INSTALL_PAPER, PAPER_COMMANDS, entry_points
from geof.version import __version__

OWN = ("demo", "data", "train", "sweep", "applied", "report", "doctor")
"""The modules of the library's commands, in the order in which the help lists them."""


def build_parser() -> Parser:
    """Return the parser of all commands, those of installed packages among them."""
    parser = Parser(
        prog="geof",
        description="Graph neural networks whose nodes carry a learned, evolving geometry.",
    )
    parser.add_argument("--version", action="version", version=f"geof {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in OWN:
        importlib.import_module(f"geof.cli.{name}").add_command(commands)
    installed = entry_points(COMMANDS)
    for entry in installed.values():
        entry.load().add_command(commands)
    for name, text in PAPER_COMMANDS.items():
        if name not in installed:
            _add_absent(commands, name, text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 refused, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _run(words)
    except BrokenPipeError:  # whoever read it has enough: `geof data list | head -1`
        _say_no_more()
        return 128 + 13
    except (GeofError, OSError, MemoryError, RuntimeError) as error:
        said = _sentence(error)
        if said is None:
            raise
        with suppress(OSError):
            print(f"{_speaker()}: {said}", file=sys.stderr)
        if isinstance(error, OSError):
            _say_no_more()  # it may be the output itself that is full
        return 1
    except KeyboardInterrupt:
        print("geof: interrupted", file=sys.stderr)
        return 130


def _is_one_of_several() -> bool:
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def _speaker() -> str:
    """Return who speaks: one of several processes gives its number."""
    return f"geof (rank {os.environ['RANK']})" if _is_one_of_several() else "geof"


def _require_divisible(command: str) -> None:
    """Refuse a command that every process that torchrun starts would do for itself."""
    if command != "train" and _is_one_of_several() and "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            f"Expected 'geof train' in several processes (got 'geof {command}'): torchrun divides "
            "the training of one run. Start this command without it."
        )


def _run(words: list[str]) -> int:
    """Run a command; what it printed has arrived when this returns."""
    try:
        options = build_parser().parse_args(words)
    except SystemExit:  # after --help, too
        sys.stdout.flush()
        raise
    _require_divisible(options.command)
    options.words = words
    code: int = options.run(options)
    sys.stdout.flush()
    return code


def _sentence(error: Exception) -> str | None:
    """Return what to tell of an error; ``None`` for one that nobody foresaw."""
    if isinstance(error, GeofError):
        return str(error)
    if isinstance(error, OSError):
        where = f" at '{error.filename}'" if error.filename else ""
        return (
            f"Expected to read and write files, but {error.strerror or error}{where}. Check the "
            "path, the permissions and the free space."
        )
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return (
            "Expected more memory than there is. Use a smaller batch_size or hidden_channels, "
            "options.recompute=true, or sampled neighbourhoods (fanouts)."
        )
    return None


def _say_no_more() -> None:
    """Send the rest of the output nowhere, or Python would complain about it on its way out."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _add_absent(commands: argparse._SubParsersAction[Parser], name: str, text: str) -> None:
    """Add a command that says where it is to be had."""

    def run(options: argparse.Namespace) -> int:
        raise GeofError(
            f"Expected an installed command (got {name!r}, which is part of geof-paper). Install "
            f"it with: {INSTALL_PAPER}"
        )

    parser = commands.add_parser(name, help=f"{text} (needs geof-paper)", add_help=False)
    parser.absent = True
    parser.set_defaults(run=run)

"""The command line: the parser of all commands and what happens around one.

Nothing heavy is imported until a command runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from geof.cli.arguments import Parser
from geof.errors import GeofError
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
    options = build_parser().parse_args(words)
    options.words = words
    try:
        code: int = options.run(options)
    except GeofError as error:
        print(f"geof: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("geof: interrupted", file=sys.stderr)
        return 130
    return code


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

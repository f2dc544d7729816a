"""The parser of all commands and what happens around one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from geof.cli import (
    bench,
    data,
    demo,
    doctor,
    embed,
    evaluate,
    predict,
    report,
    reproduce,
    results,
    sweep,
    train,
)
from geof.errors import GeofError
from geof.version import __version__


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="geof",
        description="Graph neural networks whose nodes carry a learned, evolving geometry.",
    )
    parser.add_argument("--version", action="version", version=f"geof {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    applied = (evaluate, predict, embed, report)
    for module in (demo, data, train, sweep, *applied, reproduce, results, bench, doctor):
        module.add_command(commands)
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

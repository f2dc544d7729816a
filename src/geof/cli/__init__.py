"""The command line, one command per file. Nothing heavy is imported until a command runs."""

from geof.cli.main import build_parser, main

__all__ = ["build_parser", "main"]

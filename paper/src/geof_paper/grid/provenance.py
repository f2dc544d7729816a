"""Which code a run executes: a digest that changes when a number might.

The digest covers the modules a run imports, found by following imports from where a run begins. It
leaves out what cannot change a number: comments, docstrings, formatting, other methods, and every
module that only reads finished runs. The compiled kernels are represented by the module that
declares their interface; they agree with the Python ones to rounding.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any

from geof.methods.registry import ENCODERS
from geof.version import __version__

ROOTS = ("geof.data.catalogue", "geof.training.trainer", "geof.training.plan")
"""Where a run begins; the encoder's own modules are added."""

_REGISTRY = "geof.training.network"
"""It imports every method; of these only the encoder's own is followed."""


@cache
def code_digest(encoder: str) -> str:
    """Return the digest of the code that trains an encoder.

    Args:
        encoder: A key of :data:`~geof.training.network.ENCODERS`.
    """
    content = hashlib.sha256(__version__.encode())
    for name in sorted(_reachable([*ROOTS, *_own_modules(encoder)])):
        content.update(f"\n# {name}\n{_meaning(name)}".encode())
    return content.hexdigest()[:12]


def _own_modules(encoder: str) -> list[str]:
    entry = ENCODERS[encoder]
    made = [entry.build, *entry.readouts.values()]
    return [part.__module__ for part in made if part.__module__.startswith("geof.")]


def _reachable(names: Iterable[str]) -> set[str]:
    waiting, found = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        registry = name == _REGISTRY
        waiting += [
            m for m in _imports(name) if not (registry and m.startswith("geof_paper.baselines."))
        ]
    return found


@cache
def _imports(name: str) -> frozenset[str]:
    """Return the modules of this package that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("geof.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("geof"):
            found |= {_defining(str(node.module), alias.name) for alias in node.names}
    return frozenset(found - {name, "geof"})


def _defining(module: str, name: str) -> str:
    """Return the module that defines a name: packages only pass names on."""
    if _source(f"{module}.{name}") is not None:
        return f"{module}.{name}"
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module != module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and (node.module or "").startswith("geof"):
                    return _defining(str(node.module), alias.name)
    return module


@cache
def _source(name: str) -> str | None:
    """Return a module's text, ``None`` if there is no such module."""
    parts = name.split(".")[1:]
    places = [[*parts, "__init__.py"]]
    if parts:
        places.append([*parts[:-1], f"{parts[-1]}.py"])
    for place in places:
        path = resources.files("geof").joinpath(*place)
        if path.is_file():
            return path.read_text()
    return None


@cache
def _tree(name: str) -> ast.Module:
    source = _source(name)
    return ast.parse("" if source is None else source)


@cache
def _meaning(name: str) -> str:
    """Return a module's text without comments, docstrings and formatting."""
    tree = ast.parse(_source(name) or "")
    for node in _documented(tree):
        node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _documented(tree: ast.Module) -> Iterator[Any]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            yield node

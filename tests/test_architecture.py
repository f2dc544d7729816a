"""The arrow runs one way, and the documentation names things that exist."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import geof

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "geof"
# A package may import from those before it. Modules at the root are named with their place.
ORDER = ["version", "errors", "config", "data", "settings", "signature", "geometry", "kernels"]
ORDER += ["model", "baselines", "training", "experiments", "bench", "reports", "testing"]
ORDER += ["cli"]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(geof.__path__, "geof.")
    if not module.name.endswith("__main__")
)


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("geof."):
            names.add(node.module.split(".")[1])
    return names


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_point_left(path):
    place = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if place == "__init__":
        return
    assert imported(path) <= set(ORDER[: ORDER.index(place) + 1])


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), extraglobs=_example_globals())
    assert result.failed == 0


def _example_globals() -> dict[str, object]:
    import torch

    return {"torch": torch}


def test_public_names_are_importable():
    for name in geof.__all__:
        assert getattr(geof, name) is not None
    assert set(dir(geof)) == set(geof.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Geof'"):
        geof.Geof  # noqa: B018


def rows() -> list[tuple[str, str, str]]:
    text = (ROOT / "docs" / "equations.md").read_text()
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and "`geof." in cells[2]:
            found.append((cells[0], cells[2], cells[3]))
    return found


def test_equation_table_names_real_functions_and_tests():
    assert len(rows()) >= 25
    for place, functions, tests in rows():
        for dotted in re.findall(r"`(geof\.[\w.]+)`", functions):
            module, attributes = _split(dotted)
            value = importlib.import_module(module)
            for attribute in attributes:
                value = getattr(value, attribute)
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
        assert named, f"{place} names no test"
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def _split(dotted: str) -> tuple[str, list[str]]:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in MODULES:
            return module, parts[length:]
    raise AssertionError(f"no module in {dotted}")


def test_every_numbered_equation_of_the_model_is_in_the_table():
    covered = {int(n) for place, _, _ in rows() for n in re.findall(r"\((\d+)\)", place)}
    assert covered >= set(range(1, 16)) | {17, 18, 38, 49, 50, 51, 52, 53, 54, 57}

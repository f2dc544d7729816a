"""The arrow runs one way, and the documentation names things that exist."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import geof

ROOT = Path(__file__).parents[1]
LIBRARY, PAPER = ROOT / "src" / "geof", ROOT / "paper" / "src" / "geof_paper"
# A package may import from those before it. Modules at the root are named with their place.
ORDER = {
    "geof": [
        *("version", "errors", "plugins", "options", "io", "machine", "progress", "devices"),
        *(
            "executor",
            "processes",
            "draws",
            "geometry",
            "kernels",
            "signature",
            "nn",
            "methods",
            "data",
            "training",
        ),
        *("estimators", "testing", "report", "cli"),
    ],
    "geof_paper": [
        "presets",
        "searches",
        "baselines",
        "bench",
        "studies",
        "grid",
        "render",
        "commands",
    ],
}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(geof.__path__, "geof.")
    if not module.name.endswith("__main__")
)


@cache
def imported(path: Path) -> set[str]:
    """Return the modules a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("root", [LIBRARY, PAPER], ids=lambda root: root.name)
def test_imports_point_left(root):
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).parts[0].removesuffix(".py")
        if place in ("__init__", "__main__"):
            continue
        order = ORDER[root.name]
        allowed = set(order[: order.index(place) + 1])
        own = [name.split(".") for name in imported(path) if name.startswith(f"{root.name}.")]
        # `from geof import GeoF` names no package: such names are at home further left.
        found = {name[1] for name in own if name[1] in order}
        assert found <= allowed, f"{path.relative_to(ROOT)} imports {sorted(found - allowed)}"


def test_every_package_has_its_place():
    for root in (LIBRARY, PAPER):
        there = {path.stem for path in root.iterdir() if path.suffix == ".py" or path.is_dir()}
        there -= {"__init__", "__main__", "__pycache__"}
        assert there == set(ORDER[root.name])


def test_the_library_knows_nothing_of_the_paper():
    for path in [*LIBRARY.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        named = {name for name in imported(path) if name.startswith("geof_paper")}
        assert not named, f"{path.relative_to(ROOT)} imports {sorted(named)}"


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


def hops() -> list[tuple[str, str]]:
    """Return file and function of every hop the page of the architecture names."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return re.findall(r"^\|[^|]+\| `(src/[\w/.]+)` \| `([\w.]+)` \|$", text, re.MULTILINE)


def test_the_architectures_hops_are_functions_that_exist():
    assert len(hops()) >= 20
    for file, function in hops():
        module = file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        module = module.replace("/", ".")
        value = importlib.import_module(module)
        for attribute in function.split("."):
            value = getattr(value, attribute)
        assert callable(value), f"{file} {function}"


def test_the_page_of_the_architecture_fits_a_screen():
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 65


def test_what_a_distribution_leaves_out_is_named_from_the_root():
    """A bare name, like a line of .gitignore, would take the presets called "paper" along."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    left_out = options["sdist"]["exclude"]
    assert left_out
    assert all(name.startswith("/") and (ROOT / name[1:]).is_dir() for name in left_out)
    assert not any((ROOT / name[1:]).is_relative_to(LIBRARY) for name in left_out)

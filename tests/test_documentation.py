"""What the documents show works as shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text()


def run_blocks(page: Path) -> dict[str, object]:
    """Run a page's Python one block after another; return what it defined."""
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block, namespace)
    return namespace


def test_the_readme_is_short_and_its_example_runs():
    page = ROOT / "README.md"
    assert len(page.read_text().split()) <= 600
    assert tuple(run_blocks(page)["h"].shape) == (1797, 64)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = run_blocks(page)
    if page.stem == "looking-inside":
        assert found["trust"].sum().item() == pytest.approx(1, abs=1e-5)
    if page.stem == "own-tables":
        assert 0 <= found["result"].test <= 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own-tables", "large-graphs"])
def test_tutorials_run_with_their_commands(name, tmp_path, monkeypatch, capsys):
    """Python and commands one after another, as a reader would."""
    from geof.cli import main

    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
    namespace: dict[str, object] = {}
    commands = 0
    for language, block in re.findall(r"```(python|bash)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            exec(block, namespace)
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("geof "):
                assert main(shlex.split(line, comments=True)[1:]) == 0, line
                commands += 1
    assert commands >= 3
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(rows) > 30


def test_every_page_with_python_is_run_by_a_test():
    run = {"README.md", "docs/large-graphs.md", "docs/training.md", "docs/estimators.md"}
    run |= {"docs/distributed.md"}
    run |= {"docs/pyg.md"}  # tests/test_examples.py
    run |= {"docs/own-data.md"}  # tests/data/test_tables.py
    run |= {str(page.relative_to(ROOT)) for page in TUTORIALS}
    shown = {str(page.relative_to(ROOT)) for page in PAGES if "```python" in page.read_text()}
    assert shown <= run


def test_large_graph_examples_run_one_after_another(capsys):
    namespace = run_blocks(ROOT / "docs" / "large-graphs.md")
    assert namespace["whole"].allclose(namespace["pieces"], atol=1e-4)


def test_the_example_of_several_processes_runs_alone(capsys):
    assert run_blocks(ROOT / "docs" / "distributed.md")["result"].epochs == 2


def test_the_example_of_the_trainer_runs(capsys):
    text = (ROOT / "docs" / "training.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})
    assert "Network(" in capsys.readouterr().out


def test_the_example_of_the_estimators_runs(capsys):
    text = (ROOT / "docs" / "estimators.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block.replace("epochs=20", "epochs=1").replace("epochs=3", "epochs=1"), {})
    assert "options.steps" in capsys.readouterr().out


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_make_targets_exist(document):
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / document).read_text()))
    assert named
    for target in named:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_commands_are_ones_the_parser_knows(document):
    from geof.cli import build_parser

    blocks = re.findall(r"```bash\n(.*?)```", document.read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    for line in lines:
        if line.startswith("geof "):
            build_parser().parse_args(shlex.split(line, comments=True)[1:])


def test_the_variants_table_is_complete():
    from geof.nn.settings import VARIANTS

    table = (ROOT / "docs" / "tutorials" / "pyg.md").read_text()
    for options in VARIANTS.values():
        for name, value in options.items():
            shown = f'"{value}"' if isinstance(value, str) else str(value)
            assert f"`{name}={shown}`" in table


def test_the_page_of_benchmarks_is_the_catalogue():
    """Renew it with ``geof data list --markdown > docs/data.md``."""
    from geof.cli.data import catalogue_page

    assert (ROOT / "docs" / "data.md").read_text() == catalogue_page()

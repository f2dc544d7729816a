"""What the documents show works as shown."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text()


def test_readme_examples_run_one_after_another(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(block, namespace)
    assert tuple(namespace["h"].shape) == (3, 16)
    assert namespace["trust"].sum().item() == pytest.approx(1, abs=1e-5)


def test_large_graph_examples_run_one_after_another(capsys):
    text = (ROOT / "docs" / "large-graphs.md").read_text()
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, namespace)
    assert namespace["whole"].allclose(namespace["pieces"], atol=1e-4)


def test_the_example_of_an_own_method_trains():
    from geof.training import ENCODERS, TrainSettings, fit
    from tests.training.toys import TASKS

    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "baselines.md").read_text(), re.DOTALL
    )
    exec(block, {})
    try:
        for make in TASKS.values():
            _, result = fit(make(), TrainSettings(epochs=2), encoder="mine")
            assert result.model == "mine"
    finally:
        del ENCODERS["mine"]


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


@pytest.mark.parametrize(
    "document",
    sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")),
    ids=lambda d: d.name,
)
def test_commands_are_ones_the_parser_knows(document):
    from geof.cli import build_parser

    blocks = re.findall(r"```bash\n(.*?)```", document.read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    for line in lines:
        if line.startswith("geof "):
            build_parser().parse_args(shlex.split(line, comments=True)[1:])


def test_the_page_of_results_shows_what_is_recorded():
    """Renew it with ``geof results render``."""
    from geof_paper.grid.records import read_records
    from geof_paper.render.results_markdown import render_page

    remarks = (ROOT / "docs" / "results-remarks.md").read_text()
    page = render_page(read_records(ROOT / "results"), remarks)
    assert page == (ROOT / "docs" / "results.md").read_text()


def test_recorded_rows_were_made_by_the_presets_that_ship():
    from geof_paper.grid.cells import Row, as_plain
    from geof_paper.grid.records import read_records

    def used(tree):
        if not isinstance(tree, dict):
            return tree
        return {key: used(v) for key, v in tree.items() if v is not None and key != "seed"}

    for record in read_records(ROOT / "results"):
        row = Row(**{**record.row, "changes": tuple(record.row["changes"])})
        assert used(record.settings) == used(as_plain(row.plan("0"))), row.name


def test_the_variants_table_is_complete():
    from geof.nn.settings import VARIANTS

    table = (ROOT / "README.md").read_text()
    for options in VARIANTS.values():
        for name, value in options.items():
            shown = f'"{value}"' if isinstance(value, str) else str(value)
            assert f"`{name}={shown}`" in table


def test_the_page_of_benchmarks_is_the_catalogue():
    """Renew it with ``geof data list --markdown > docs/data.md``."""
    from geof.cli.data import catalogue_page

    assert (ROOT / "docs" / "data.md").read_text() == catalogue_page()


def _reproduced() -> dict[str, list[Path]]:
    """Return the exhibits in the documentation by the command that makes them."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "docs" / "reproduced").glob("*/study.json")):
        found.setdefault(json.loads(path.read_text())["command"], []).append(path.parent)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", _reproduced())
def test_reproduced_tables_come_from_the_records(command, tmp_path, monkeypatch):
    """Renew them with the command, ``--no-run`` and ``--out docs/reproduced``."""
    from geof.cli import main

    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    assert main([*words, "--no-run", "--work", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    for folder in _reproduced()[command]:
        made = tmp_path / "out" / folder.name / "table.csv"
        assert made.read_text() == (folder / "table.csv").read_text(), folder.name


def test_the_page_of_what_was_reproduced_is_up_to_date(tmp_path):
    """Renew it with ``geof reproduce page --out docs/reproduced``."""
    from geof_paper.render.markdown_page import markdown_page

    page = ROOT / "docs" / "reproduced.md"
    remarks = (ROOT / "docs" / "reproduced-remarks.md").read_text()
    assert page.read_text() == markdown_page(ROOT / "docs" / "reproduced", page, remarks)

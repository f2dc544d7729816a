"""The pages of results and of what was reproduced show what is recorded."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "paper" / "results"


def test_the_page_of_results_shows_what_is_recorded():
    """Renew it with ``make pages``."""
    from geof_paper.grid.records import read_failures, read_records
    from geof_paper.render.results_markdown import render_page

    remarks = (ROOT / "docs" / "results-remarks.md").read_text()
    page = render_page(read_records(RESULTS), remarks, read_failures(RESULTS))
    assert page == (ROOT / "docs" / "results.md").read_text()


def test_the_page_of_methods_shows_what_is_recorded():
    """Renew it with ``make pages``."""
    from geof.errors import DataError
    from geof_paper.grid.records import read_records
    from geof_paper.grid.search import read_trials
    from geof_paper.render.methods_markdown import methods_markdown, with_methods

    page = (ROOT / "docs" / "baselines.md").read_text()
    trials = read_trials(RESULTS / "search.jsonl")
    assert with_methods(page, methods_markdown(read_records(RESULTS), trials)) == page
    with pytest.raises(DataError, match="Until here"):
        with_methods("# Methods", "")


def test_every_compared_method_has_facts():
    from geof_paper.grid.search_plans import COMPARED_METHODS
    from geof_paper.studies.method_facts import FACTS

    assert list(FACTS) == list(COMPARED_METHODS.methods)
    assert all(facts.sources.keys() == {"node", "link", "graph"} for facts in FACTS.values())


def test_recorded_runs_are_of_the_presets_that_ship_and_canaries_vouch_for_them():
    from geof.methods import get_method
    from geof_paper.grid.records import read_runs, stale_reasons

    runs, searched = read_runs(RESULTS), _searched()
    late = {run.row for run in runs if run.is_late}
    assert len(runs) >= 1234
    for run, reason in zip(runs, stale_reasons(runs), strict=True):
        # A raised revision leaves runs stale until they are made again, and may come with other
        # options; so does what a search found, a longer schedule where a best epoch was among
        # the last, and what was settled anew of what the paper leaves open. Nothing else may.
        row = run.row
        earlier = run.revision < get_method(row.method).revision
        renewed = (row.task, row.dataset, row.method, row.preset) in searched
        renewed = renewed or (row in late and _without_schedule(run) == _without_schedule(row))
        renewed = renewed or _without_open(run) == _without_open(row)
        assert earlier or renewed or run.options == row.options, row.name
        known = ("made by revision", *(["made with other options"] if renewed else []))
        assert reason is None or reason == run.stale or reason.startswith(known), row.name


def _without_schedule(made) -> dict:
    """Return the options of a run or row but for how long it trains."""
    options = {k: v for k, v in made.options.items() if k not in ("epochs", "patience")}
    # When ACE-HGNN begins to search curvatures is counted in epochs, too.
    inner = {k: v for k, v in options.get("options", {}).items() if k != "search_from"}
    return {**options, "options": inner}


def _without_open(made) -> dict:
    """Return the options of GeoF ``paper`` but for what docs/choices.md settles."""
    row = getattr(made, "row", made)
    if (row.method, row.preset) != ("geof", "paper"):
        return made.options
    options = _without_schedule(made)
    settled = ("lift_gain", "controller_channels")
    inner = {k: v for k, v in options["options"].items() if k not in settled}
    return {**options, "options": inner}


def _searched() -> set[tuple[str, str, str, str]]:
    """Return the rows whose preset was written from a recorded search, or follows such a one."""
    from geof_paper.grid.search import best_trials, read_trials
    from geof_paper.grid.search_plans import PLANS

    found = set()
    for best, _ in best_trials(read_trials(RESULTS / "search.jsonl")):
        plan = PLANS[best.plan]
        rows = {(best.method, plan.preset(best.method, best.task))}
        if best.method == "geof":  # whose recipe the controls have
            rows |= {(host, "matched") for host in ("gcn-so", "gin-so", "argnn-so")}
        for dataset in (best.dataset, *plan.groups[best.task, best.dataset]):
            found |= {(best.task, dataset, *row) for row in rows}
    return found


def test_recorded_runs_give_their_configs_again():
    from geof_paper.grid.cells import changed_options, config_of
    from geof_paper.grid.records import read_runs

    rows = {run.row: run.options for run in read_runs(RESULTS)}
    for row, options in rows.items():
        config = config_of(row.method, row.task, row.dataset, options)
        assert changed_options(config) == options, row.name


REPRODUCED = ROOT / "docs" / "reproduced.md"


def _renewed(folder: Path, *more: str) -> Path:
    """Return the page made again by its commands from the records alone, in a folder."""
    from geof.cli import main

    page = folder / REPRODUCED.name
    shutil.copyfile(REPRODUCED, page)
    shutil.copytree(REPRODUCED.with_suffix(""), page.with_suffix(""))
    words = ["reproduce", "page", "--renew", "--page", str(page), "--work", str(folder / "none")]
    assert main([*words, *more]) == 0
    return page


def test_the_page_of_what_was_reproduced_comes_from_the_records(tmp_path, monkeypatch, capsys):
    """Renew it with ``make pages``."""
    from geof_paper.render.markdown_page import page_commands

    monkeypatch.chdir(ROOT)
    assert len(page_commands(REPRODUCED)) == 13
    assert _renewed(tmp_path, "--no-figures").read_text() == REPRODUCED.read_text()


def test_a_page_without_commands_is_not_renewed(tmp_path):
    from geof.cli import main

    page = tmp_path / "page.md"
    page.write_text("# Nothing")
    assert main(["reproduce", "page", "--renew", "--page", str(page)]) != 0
    assert page.read_text() == "# Nothing"


@pytest.mark.slow
def test_figures_of_what_was_reproduced_come_from_the_records(tmp_path, monkeypatch, capsys):
    """Renew them likewise; maps of representations need run folders and are left alone."""
    monkeypatch.chdir(ROOT)
    figures = _renewed(tmp_path).with_suffix("")
    for figure in sorted(REPRODUCED.with_suffix("").iterdir()):
        if not figure.name.startswith("visualise"):
            made = figures / figure.name
            assert _words(made) == _words(figure), figure.name


def _words(figure: Path) -> list[str]:
    """Return what is written in a figure; places depend on the version that drew it."""
    return re.findall(r">([^<>]+)</text>", figure.read_text())


def test_beside_the_pages_there_is_one_light_figure_per_study():
    from geof_paper.render.markdown_page import HEAVIEST, ORDER

    figures = sorted(path.name for path in REPRODUCED.with_suffix("").iterdir())
    begun = [next(study for study in ORDER if name.startswith(study)) for name in figures]
    assert len(set(begun)) == len(figures) == 9
    for name in figures:
        assert f"](reproduced/{name})" in REPRODUCED.read_text()
        assert (REPRODUCED.with_suffix("") / name).stat().st_size < HEAVIEST

"""The study of homophily: graphs of the level asked for, rows, table, figure and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from geof.cli import main
from geof.errors import ConfigError
from geof_paper.studies import homophily, homophily_graphs
from geof_paper.studies.homophily import (
    OWN,
    REPORTED,
    TITLES,
    config_of,
    differences,
    losses,
    run_study,
    table,
)
from geof_paper.studies.homophily_graphs import CHOOSING, FAMILIES, LEVELS, homophily_graph
from geof_paper.studies.trained_rows import Row, read_rows

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(homophily_graphs, "NODES", 60)
    monkeypatch.setattr(homophily_graphs, "EDGES", 150)


def share_inside(family, level: float, draw: int = CHOOSING) -> float:
    graph = homophily_graph(family, level, draw).graph
    source, target = graph.y[graph.edge_index]
    return float((source == target).float().mean())


def made(dataset: str, method: str, split: int, test: float) -> Row:
    return Row(dataset, "", method, str(split), split, "", "accuracy", test, test, 1, 2, 0.1, {})


@pytest.mark.parametrize("family", FAMILIES)
def test_edges_agree_with_classes_as_often_as_asked_for(family):
    for level in (LEVELS[0], LEVELS[-1]):
        assert share_inside(family, level) == pytest.approx(level, abs=0.015)


def test_levels_and_families_share_features_and_draws_do_not():
    first, *others = [homophily_graph("next", level, 3).graph for level in LEVELS]
    others.append(homophily_graph("even", 0.1, 3).graph)
    for graph in others:
        assert torch.equal(graph.x, first.x)
        assert torch.equal(graph.y, first.y)
        assert not torch.equal(graph.edge_index, first.edge_index)
    assert not torch.equal(homophily_graph("next", 0.1, 4).graph.x, first.x)
    again = homophily_graph("next", LEVELS[0], 3)
    assert again.content_hash == homophily_graph("next", LEVELS[0], 3).content_hash


def test_families_differ_in_where_edges_lead():
    def next_share(family) -> float:
        graph = homophily_graph(family, 0.1, CHOOSING).graph
        source, target = graph.y[graph.edge_index]
        step = (target - source) % 5
        return float(((step == 1) | (step == 4)).float().mean())  # both directions are there

    assert next_share("next") > 0.7
    assert next_share("even") == pytest.approx(0.45, abs=0.03)
    with pytest.raises(ConfigError, match="even"):
        homophily_graph("any", 0.1, 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="homophily"):
        homophily_graph("even", 1.5, 0)


def test_all_methods_have_one_budget_and_their_own_presets(small):
    data = homophily_graph("next", 0.5, 0)
    configs = {method: config_of(data, method, 0, {}) for method in TITLES}
    assert {config.training.epochs for config in configs.values()} == {60}
    assert {config.training.patience for config in configs.values()} == {None}
    assert {configs[name].preset for name in OWN} == {"auto", "tuned"}
    assert configs["sage-classic"].options["norm"] == "batch"


def test_the_command_writes_rows_table_and_figure(small, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(homophily, "BUDGET", {"epochs": 2})
    run_study(tmp_path / "homophily" / "rows.jsonl", ("next-0.1", "even-0.9"), OWN[:1], (0,))
    words = ["reproduce", "homophily", "--out", str(tmp_path), "--splits", "0"]
    only = ["--datasets", "next-0.1", "--methods", "geof:auto,feature-mlp"]
    assert main([*words, *only]) == 0
    rows = [json.loads(line) for line in (tmp_path / "homophily" / "rows.jsonl").open()]
    assert [row["method"] for row in rows] == ["geof:auto", "geof:auto", "feature-mlp"]
    assert main([*words, "--no-run"]) == 0
    shown = capsys.readouterr().out
    assert "| next | 0.1 |" in shown
    assert "| even | 0.9 |" in shown
    assert (tmp_path / "homophily" / "figure.svg").stat().st_size < 60_000
    assert main([*words, "--datasets", "next-0.2"]) != 0
    assert "'next-0.1'" in capsys.readouterr().err


def test_a_loss_of_either_preset_is_marked():
    tests = {"geof:auto": (80.0, 82.0), "geof:tuned": (90.0, 92.0), "gat-classic": (90.0, 92.0)}
    rows = [
        made("next-0.1", name, i, t) for name, both in tests.items() for i, t in enumerate(both)
    ]
    assert losses(rows) == [("next-0.1", "geof:auto")]
    assert "81.0 ± 1.4 (below) | **91.0 ± 1.4** | **91.0 ± 1.4**" in table(rows)


def test_differences_are_taken_draw_by_draw():
    tests = {"geof:auto": (70.0, 80.0), "gcn-classic": (71.0, 81.5), "sage-classic": (69.0, 82.0)}
    rows = [
        made("next-0.1", name, i, t) for name, both in tests.items() for i, t in enumerate(both)
    ]
    assert "| -1.2 ± 0.4 (below) | -0.5 ± 2.1 |" in differences(rows)
    assert differences(rows[:2]).count("|---:|") == 1


def test_the_page_shows_what_is_recorded():
    """Renew it with ``geof reproduce homophily``, whose rows are ``docs/homophily.jsonl``."""
    rows = read_rows(DOCS / "homophily.jsonl")
    page = (DOCS / "homophily.md").read_text()
    assert table(rows) in page
    assert table(rows, "validation") in page
    for own in OWN:
        assert differences(rows, own) in page
    assert {row.dataset for row in rows} >= set(REPORTED)
    assert {row.split for row in rows} == set(range(5))
    for dataset, name in losses(rows):
        assert f"**{dataset}, {TITLES[name]}**" in page  # every loss is spoken of

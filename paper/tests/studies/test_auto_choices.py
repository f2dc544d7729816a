"""Single options of ``auto`` on data kept apart: what is trained, measured and shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from geof.cli import main
from geof_paper.studies import auto_choices, homophily_graphs
from geof_paper.studies.auto_choices import (
    DATA,
    DRAWS,
    GENERATED,
    MEASURED,
    PER_DISTANCE,
    VARIANTS,
    config_of,
    neighbour_distance,
    run_study,
    table,
)
from geof_paper.studies.homophily import DRAWS as REPORTED_DRAWS
from geof_paper.studies.homophily_graphs import homophily_graph
from geof_paper.studies.trained_rows import read_rows

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(homophily_graphs, "NODES", 60)
    monkeypatch.setattr(homophily_graphs, "EDGES", 150)


def test_what_chooses_is_not_what_is_reported():
    assert not set(DRAWS) & set(REPORTED_DRAWS)
    assert set(GENERATED) <= set(DATA)


def test_a_variant_is_auto_with_its_option_and_never_reads_the_test_part(small):
    data = homophily_graph("next", 0.1, 1000)
    plain = config_of(data, "next-0.1", "auto", 1000, {})
    assert not plain.read_test
    changed = config_of(data, "next-0.1", "dropout 0", 1000, {})
    different = {key for key, value in plain.options.items() if changed.options[key] != value}
    assert different == {"dropout"}


def test_the_measured_temperature_follows_the_distance_of_neighbours(small):
    data = homophily_graph("next", 0.1, 1000)
    config = config_of(data, "next-0.1", "auto", 1000, {})
    apart = neighbour_distance(config, data)
    measured = config_of(data, "next-0.1", MEASURED, 1000, {})
    assert measured.options["temperature"] == pytest.approx(PER_DISTANCE * apart, abs=0.1)
    alike = homophily_graph("next", 1.0, 1000)
    alike.graph.x = alike.graph.x[alike.graph.y]  # every class has one row of features
    assert neighbour_distance(config, alike) < apart / 2  # frames still differ


def test_the_start_scale_does_not_change_normalised_distances(small):
    data = homophily_graph("even", 0.5, 1000)
    config = config_of(data, "even-0.5", "auto", 1000, {})
    wide = config_of(data, "even-0.5", "auto", 1000, {"options": {"lift_gain": 100.0}})
    assert neighbour_distance(wide, data) == pytest.approx(
        neighbour_distance(config, data), rel=1e-3
    )


def test_the_command_writes_rows_and_table(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(auto_choices.EPOCHS, "next-0.1", {"epochs": 2})
    words = ["reproduce", "auto-choices", "--out", str(tmp_path), "--datasets", "next-0.1"]
    assert main([*words, "--methods", "auto,measured temperature", "--splits", "0"]) == 0
    rows = read_rows(tmp_path / "auto-choices" / "rows.jsonl")
    assert [row.method for row in rows] == ["auto", "measured temperature"]
    assert {row.test for row in rows} == {None}
    assert "| measured temperature | " in capsys.readouterr().out
    path = tmp_path / "auto-choices" / "rows.jsonl"
    assert run_study(path, None, ["next-0.1"], ["auto"], (1000,)) == rows[:1]


def test_the_page_shows_what_is_recorded():
    """Renew it with ``geof reproduce auto-choices``, whose rows are ``docs/auto-choices.jsonl``."""
    rows = read_rows(DOCS / "auto-choices.jsonl")
    assert table(rows) in (DOCS / "choices.md").read_text()
    assert {row.method for row in rows} == set(VARIANTS)

"""The study of geometry: graphs whose knob does what it says, rows, tables, figure and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from geof.cli import main
from geof.errors import ConfigError
from geof_paper.studies import geometry, geometry_graphs
from geof_paper.studies.geometry import GRAPHS, TITLES, config_of, gain, gains, rows_of, table
from geof_paper.studies.geometry_graphs import (
    CENTRES,
    CHANNELS,
    CHOOSING,
    CORRELATION,
    LEAVES,
    LEVELS,
    geometry_graph,
)
from geof_paper.studies.trained_rows import Row, read_rows

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(geometry_graphs, "CENTRES", 40)
    monkeypatch.setattr(geometry, "TRAINING", {**geometry.TRAINING, "epochs": 2})


def made(name: str, method: str, split: int, test: float) -> Row:
    return Row(name, "", method, str(split), split, "", "accuracy", test, test, 1, 2, 0.1, {})


def leaves_of(knob: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return centres, their leaves and classes; columns are standardised, hence nearly as drawn."""
    graph = geometry_graph(knob, CHOOSING).graph
    x = graph.x.double()
    return x[:CENTRES], x[CENTRES:].view(CENTRES, LEAVES, CHANNELS), graph.y[:CENTRES]


def apart(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(torch.atleast_2d(first - second), ord=2))


def moments(knob: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return mean offset and pooled covariance of the leaves, class by class."""
    centres, leaves, y = leaves_of(knob)
    offset = leaves.mean(1) - centres
    around = leaves - leaves.mean(1, keepdim=True)
    means = [offset[y == c].mean(0) for c in (0, 1)]
    covariances = [torch.cov(around[y == c].flatten(0, 1).T) for c in (0, 1)]
    return means, covariances


def test_the_knob_moves_the_classes_from_means_to_covariances():
    distance, difference = zip(
        *((apart(*m), apart(*c)) for m, c in map(moments, LEVELS)), strict=True
    )
    assert list(distance) == sorted(distance, reverse=True)
    assert list(difference) == sorted(difference)
    assert distance[0] > 5 * distance[-1]
    assert difference[-1] > 3 * difference[0]
    first, second = moments(1.0)[1]  # of opposite sign in every pair, in whatever basis
    mean = (first + second) / 2
    roots = torch.linalg.eigvals(torch.linalg.solve(mean, first - mean)).real.abs()
    assert roots.mean() == pytest.approx(CORRELATION, abs=0.1)


@pytest.mark.parametrize("knob", [0.0, 1.0])
def test_leaves_lie_in_pairs_so_that_their_mean_says_nothing_of_their_covariance(knob):
    _, leaves, _ = leaves_of(knob)
    half = LEAVES // 2
    middle = (leaves[:, :half] + leaves[:, half:]) / 2
    assert (middle - leaves.mean(1, keepdim=True)).abs().max() < 1e-5


def test_levels_share_classes_and_splits_and_draws_do_not():
    first, *others = [geometry_graph(level, 3) for level in LEVELS]
    for graph in others:
        assert torch.equal(graph.graph.y, first.graph.y)
        assert torch.equal(graph.graph.edge_index, first.graph.edge_index)
        assert not torch.equal(graph.graph.x, first.graph.x)
    assert not torch.equal(geometry_graph(0.0, 4).graph.x, first.graph.x)
    assert geometry_graph(0.0, 3).content_hash == first.content_hash
    with pytest.raises(ConfigError, match="knob"):
        geometry_graph(1.5, 0)


def test_all_methods_have_one_recipe(small):
    data = geometry_graph(0.5, 0)
    configs = {method: config_of(data, method, 2, 0, {}) for method in TITLES}
    assert len({config.training for config in configs.values()}) == 1
    assert {config.options["hidden_channels"] for config in configs.values()} == {32}
    for name in ("dropout", "feature_dropout", "outputs"):
        assert len({config.options[name] for config in configs.values()}) == 1
    assert {config.readout["dropout"] for config in configs.values()} == {0.5}
    depths = [c.options.get("steps", c.options.get("num_layers")) for c in configs.values()]
    assert set(depths) == {2}
    assert configs["w/o SF"].options["feedback"] == "none"
    assert configs["w/o GE"].options["evolution"] == "frozen"


def test_the_command_writes_rows_tables_and_figure(small, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    words = ["reproduce", "geometry", "--out", str(tmp_path), "--splits", "0"]
    only = ["--datasets", "knob-0.0,knob-1.0", "--methods", "geof,gcn-classic"]
    assert main([*words, *only]) == 0
    rows = [json.loads(line) for line in (tmp_path / "geometry" / "rows.jsonl").open()]
    assert len(rows) == 8  # two levels, two depths, two methods
    assert main([*words, "--no-run"]) == 0
    shown = capsys.readouterr().out
    assert "| 1 | 0.0 |" in shown
    assert "| 2 | 1.0 |" in shown
    assert "over GCN" in shown
    assert (tmp_path / "geometry" / "figure.svg").stat().st_size < 60_000
    assert main([*words, "--datasets", "knob-0.1"]) != 0
    assert "'knob-0.25'" in capsys.readouterr().err


def test_gains_are_taken_draw_by_draw():
    name = next(iter(GRAPHS))
    tests = {"geof": (80.0, 90.0, 85.0), "w/o SF": (70.0, 79.0, 76.0), "gin": (80.0, 95.0, 80.0)}
    rows = [made(name, method, i, t) for method, all_ in tests.items() for i, t in enumerate(all_)]
    assert "| 1 | 0.0 | +10.0 ± 1.0 * | +0.0 ± 5.0 |" in gains(rows)
    assert "**85.0 ± 5.0** | 75.0 ± 4.6 | **85.0 ± 8.7**" in table(rows)
    assert gain(rows, "gat-classic") is None


def test_the_page_shows_what_is_recorded():
    """Renew it with ``geof reproduce geometry``, whose rows are ``docs/geometry.jsonl``."""
    rows = read_rows(DOCS / "geometry.jsonl")
    page = (DOCS / "geometry.md").read_text()
    assert table(rows) in page
    assert table(rows, "validation") in page
    assert gains(rows) in page
    for name in GRAPHS:
        assert {(row.method, row.split) for row in rows_of(rows, name)} in (
            set(),
            {(method, draw) for method in TITLES for draw in range(10)},
        )

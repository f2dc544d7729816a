"""Rows: one form for all, ratios to the usual GCN, exponents of growth."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from geof_paper.bench.catalogue import Entry
from geof_paper.bench.rows import Row, growth, growth_exponent, with_ratios

REQUIRED = {"dataset", "model", "backend", "seconds_per_epoch", "peak_rss_bytes", "ratio_to_gcn"}


def row(method, backend=None, dataset="tiny", seconds=None, memory=None, **facts) -> Row:
    return Row(
        dataset=dataset,
        method=method,
        backend=backend,
        status="skipped" if seconds is None else "ok",
        reason="too large" if seconds is None else None,
        facts={"source": "generated", "inputs": "dense", **facts},
        machine={"cpu": "abacus"},
        seconds_per_epoch=seconds,
        peak_bytes_above_data=memory,
    )


def test_every_row_has_every_key_measured_or_not():
    rows = [row("gcn", seconds=1.0).as_json(), row("geof", "reference").as_json()]
    assert rows[0].keys() == rows[1].keys() >= REQUIRED
    assert rows[0]["backend"] is None
    assert rows[1]["seconds_per_epoch"] is None
    assert (rows[0]["preset"], rows[0]["stage"]) == (None, "supervised")
    assert rows[1]["status"] == "skipped"
    assert rows[1]["source"] == "generated"
    assert rows[1]["machine"] == {"cpu": "abacus"}
    json.dumps(rows, allow_nan=False)


def test_ratios_are_to_the_usual_gcn():
    rows = with_ratios(
        [
            row("gcn-csr", seconds=1.0, memory=50),
            row("gcn", seconds=2.0, memory=100),
            row("geof", "torch", seconds=5.0, memory=150),
            row("geof", "reference"),
        ]
    )
    assert [r.ratio_to_gcn for r in rows] == [0.5, 1.0, 2.5, None]
    assert [r.memory_ratio_to_gcn for r in rows] == [0.5, 1.0, 1.5, None]


def test_without_the_gcn_there_is_no_ratio():
    assert with_ratios([row("gat", seconds=1.0)])[0].ratio_to_gcn is None
    rows = with_ratios([row("gat", seconds=1.0), row("gcn")])
    assert rows[0].ratio_to_gcn is None
    zero = with_ratios([row("gat", seconds=1.0, memory=5), row("gcn", seconds=1.0, memory=0)])
    assert zero[0].memory_ratio_to_gcn is None


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(exponent):
    sizes = [1e5, 1e6, 1e7]
    assert growth_exponent(sizes, [3e-7 * size**exponent for size in sizes]) == pytest.approx(
        exponent
    )


def test_the_exponent_is_a_least_squares_slope():
    # log10 times 0, 2, 1 at log10 sizes 0, 1, 2: the slope is 1/2.
    assert growth_exponent([1, 10, 100], [1, 100, 10]) == pytest.approx(0.5)


def test_growth_is_fitted_per_series_and_entry():
    rows = [
        row("gcn", dataset="edges-1e5", seconds=1.0, edges=200_000, nodes=10_000),
        row("gcn", dataset="edges-1e7", seconds=100.0, edges=20_000_000, nodes=1_000_000),
        row("geof", "torch", "edges-1e5", 1.0, edges=200_000, nodes=10_000),
        row("geof", "torch", "edges-1e7", edges=20_000_000, nodes=1_000_000),  # skipped
        row("geof", "torch", "nodes-4e4", 8.0, edges=200_000, nodes=40_000),
        row("geof", "torch", "nodes-1e4", 2.0, edges=200_000, nodes=10_000),
        row("gcn", dataset="tiny", seconds=1.0, edges=1, nodes=1),
    ]
    found = growth(rows)
    assert [(f["series"], f["model"], f["backend"]) for f in found] == [
        ("edges", "gcn", None),
        ("nodes", "geof", "torch"),
    ]
    assert [f["exponent"] for f in found] == pytest.approx([1.0, 1.0])
    assert found[1]["sizes"] == [10_000, 40_000]
    assert found[1]["seconds"] == [2.0, 8.0]


def test_a_row_knows_its_entry():
    assert row("geof", "torch").entry == Entry("geof", "torch")
    assert replace(row("gcn"), backend=None).entry.label == "gcn"

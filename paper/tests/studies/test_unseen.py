"""The study of graphs nobody tuned for: all rows, stopped and gone on with, losses marked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from geof.cli import main
from geof.data.records import GraphSet
from geof_paper.studies import trained_rows, unseen
from geof_paper.studies.trained_rows import Row, Score, is_below, read_rows
from geof_paper.studies.unseen import losses, run_study, table
from geof_paper.studies.unseen_graphs import UNSEEN, Unseen, families, nearest_rows

SHORT = {"epochs": 2}


def rows_of_a_table() -> Unseen:
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(40, 3)), np.arange(40) % 2
    return Unseen("small", "40 rows", lambda: nearest_rows("small", x, y, 3))


def some_families() -> Unseen:
    return Unseen("few", "30 graphs", lambda: families(30), "graph")


TINY = (rows_of_a_table(), some_families())
METHODS = ("geof", "feature-mlp")


def made(dataset: str, method: str, split: int, test: float) -> Row:
    return Row(dataset, "", method, str(split), split, "", "accuracy", test, test, 1, 2, 0.1, {})


def test_the_table_has_every_dataset_and_method(tmp_path):
    rows = run_study(tmp_path / "rows.jsonl", TINY, METHODS, (0, 1), changes=SHORT)
    assert len(rows) == 2 * 2 * 2
    assert rows == read_rows(tmp_path / "rows.jsonl")
    for part in ("test", "validation"):
        head, _, *lines = table(rows, part).splitlines()
        assert [line.split(" | ")[0] for line in lines] == ["| small", "| few"]
        assert "GeoF `auto`" in head
        assert "MLP" in head
        assert "not run" not in "".join(lines)
    by_split = {(row.dataset, row.split): set() for row in rows}
    for row in rows:
        by_split[row.dataset, row.split].add(row.split_hash)
    assert all(len(hashes) == 1 for hashes in by_split.values())  # the same for all methods


def test_a_stopped_study_goes_on_and_ends_with_the_same_rows(tmp_path, monkeypatch):
    whole = run_study(tmp_path / "whole.jsonl", TINY[:1], METHODS, (0, 1), changes=SHORT)

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "stopped.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_study(path, TINY[:1], METHODS, (0, 1), changes=SHORT, say=stop)
    assert len(read_rows(path)) == 1
    with path.open("a") as file:
        file.write('{"dataset": "sm')  # killed while it wrote
    said: list[str] = []
    rows = run_study(path, TINY[:1], METHODS, (0, 1), changes=SHORT, say=said.append)
    assert len(said) == 3
    assert [replace(row, seconds=0) for row in rows] == [replace(row, seconds=0) for row in whole]
    monkeypatch.setattr(trained_rows, "train", None)  # nothing is left to train
    assert run_study(path, TINY[:1], METHODS, (0, 1), changes=SHORT) == rows
    with pytest.raises(TypeError):  # other options are other runs
        run_study(path, TINY[:1], METHODS, (0, 1), changes={"epochs": 3})


def test_a_loss_beyond_the_pooled_deviation_is_marked():
    assert is_below(Score(80.0, 1.0), Score(82.0, 1.0))
    assert not is_below(Score(80.0, 1.0), Score(80.9, 1.0))
    tests = {"geof": (80.0, 82.0), "gcn": (90.0, 92.0), "feature-mlp": (50.0, 50.0)}
    rows = [made("one", name, i, t) for name, both in tests.items() for i, t in enumerate(both)]
    assert losses(rows) == ["one"]
    assert "81.0 ± 1.4 (below) | **91.0 ± 1.4** | 50.0 ± 0.0" in table(rows)
    better = [replace(row, test=95.0) if row.method == "geof" else row for row in rows]
    assert losses(better) == []
    assert "(below)" not in table(better)


def test_data_are_the_same_every_time_and_can_be_split():
    for graph in UNSEEN:
        data = graph.make()
        assert data.name == graph.name
        assert data.content_hash == graph.make().content_hash
        assert isinstance(data, GraphSet) == (graph.task == "graph")


def test_the_command_writes_rows_and_table(tmp_path, monkeypatch, capsys):
    from geof_paper.studies import unseen_graphs

    monkeypatch.setattr(unseen_graphs, "UNSEEN", TINY)
    monkeypatch.setattr(unseen, "BUDGET", SHORT)
    words = ["reproduce", "unseen", "--splits", "0", "--out", str(tmp_path)]
    only = ["--datasets", "small", "--methods", "gcn,feature-mlp"]
    assert main([*words, *only]) == 0
    lines = (tmp_path / "unseen" / "rows.jsonl").read_text().splitlines()
    assert {json.loads(line)["method"] for line in lines} == {"gcn", "feature-mlp"}
    assert main([*words, "--no-run"]) == 0
    assert "| small |" in capsys.readouterr().out
    assert main([*words, "--datasets", "smal"]) != 0
    assert "'small'" in capsys.readouterr().err


def test_the_page_shows_what_is_recorded():
    """Renew it with ``geof reproduce unseen``, whose rows are ``docs/unseen.jsonl``."""
    docs = Path(__file__).parents[3] / "docs"
    rows = read_rows(docs / "unseen.jsonl")
    page = (docs / "unseen.md").read_text()
    assert table(rows) in page
    assert table(rows, "validation") in page
    assert {row.dataset for row in rows} == {graph.name for graph in UNSEEN}
    for dataset in losses(rows):
        assert f"**{dataset}**" in page  # every loss is spoken of

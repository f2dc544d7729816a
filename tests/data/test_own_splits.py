"""Splits that a column, a file, scaffolds, groups or time decide."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

from geof.data.own_splits import SMILES, own_split, scaffold_of, split_columns
from geof.data.records import NodeGraph
from geof.data.splits import DatasetIdentity, NodeSplit, random_node_split
from geof.errors import ConfigError, DataError

SHARES = (0.6, 0.2)


def graph(count: int = 20, **aside: list[str]) -> NodeGraph:
    empty = torch.empty(2, 0, dtype=torch.long)
    data = Data(x=torch.ones(count, 1), edge_index=empty, y=torch.zeros(count, dtype=torch.long))
    ids = tuple(f"n{i}" for i in range(count))
    cells = {name: tuple(map(str, values)) for name, values in aside.items()}
    return NodeGraph("toy", data, ("a",), ids, content_hash="h", aside=cells)


def split(how: str, data: NodeGraph, rows: torch.Tensor | None = None) -> NodeSplit:
    rows = torch.ones(data.graph.num_nodes, dtype=torch.bool) if rows is None else rows
    return own_split(how, data, rows, NodeSplit, SHARES)


def parts(found: NodeSplit) -> list[list[int]]:
    return [part.tolist() for part in (found.train, found.validation, found.test)]


def part_of(found: NodeSplit) -> dict[int, int]:
    return {row: i for i, rows in enumerate(parts(found)) for row in rows}


@pytest.mark.parametrize(
    ("how", "columns"),
    [
        ("3", ()),
        ("column:part", ("part",)),
        ("group:a:b", ("a:b",)),
        ("group:a:7", ("a",)),
        ("time:when", ("when",)),
        ("scaffold", (SMILES,)),
        ("mine.json", ()),
    ],
)
def test_which_columns_a_split_goes_by(how, columns):
    assert split_columns(how) == columns


def test_words_of_a_column():
    data = graph(7, part=["train", "Val", " test ", "", "valid", "TRAIN", "validation"])
    found = split("column:part", data)
    assert parts(found) == [[0, 5], [1, 4, 6], [2]]
    assert found.name == "column part"
    assert found.hash == NodeSplit.fixed([0, 5], [1, 4, 6], [2], size=7, name="x").hash


def test_columns_that_are_no_split():
    with pytest.raises(DataError, match=r"split column 'part'.*\(got 'tset' for 'n1'\).*'test'"):
        split("column:part", graph(3, part=["train", "tset", "val"]))
    with pytest.raises(DataError, match=r"labelled rows in every part.*got none in 'test'"):
        split("column:part", graph(3, part=["train", "train", "val"]))
    bare = torch.tensor([True, True, False])
    with pytest.raises(DataError, match="got 1 without a label in 'test'"):
        split("column:part", graph(3, part=["train", "val", "test"]), bare)
    with pytest.raises(ConfigError, match="with the column 'part'"):
        split("column:part", graph(3))
    for wrong in ("first", "-1", "1.5", "column:", "group:", "scaffold:x", "columns:part"):
        with pytest.raises(ConfigError, match="'--split' to be a number from 0"):
            split(wrong, graph(3))


def test_rows_without_a_label_are_in_no_part():
    rows = torch.ones(7, dtype=torch.bool)
    rows[5] = False
    data = graph(7, part=["train", "val", "test", "", "val", "train", "val"])
    assert parts(split("column:part", data, rows))[0] == [0]


# Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["json", "csv", "npz"])
def test_files_of_identifiers(ending, tmp_path):
    data, path = graph(5), tmp_path / f"mine.{ending}"
    if ending == "json":
        path.write_text(json.dumps({"train": ["n3", "n0"], "val": ["n4"], "test": ["n1"]}))
    elif ending == "csv":
        path.write_text("id,part\nn3,train\nn0,train\nn4,val\nn1,test\nn2,\n")
    else:
        made = NodeSplit.fixed([0, 3], [4], [1], size=5, name="before")
        made.save(path, DatasetIdentity.of(data))
    assert parts(split(str(path), data)) == [[0, 3], [4], [1]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.json", '{"train": ["n0"], "val": ["n1"], "test": ["n0"]}', "'n0' again"),
        ("s.json", '{"train": ["n0"], "val": ["n1"], "test": ["n9"]}', "'n9', which is none"),
        ("s.json", '{"train": ["n0"], "val": ["n1"]}', "got none in 'test'"),
        ("s.json", '{"train": ["n0"], "vall": ["n1"]}', "got 'vall'"),
        ("s.json", '["n0"]', "lists of identifiers by part"),
        ("s.json", '{"train"', "a JSON file at"),
        ("s.csv", "id,part\nn0,train\nn0,test\n", "different identifiers"),
        ("s.csv", "id,part\nn0,trian\n", "got 'trian' for 'n0'"),
        ("s.csv", "id\nn0\n", "columns 'id' and 'part'"),
        ("none.json", None, "a JSON file at"),
    ],
)
def test_files_that_are_no_split(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        split(str(tmp_path / name), graph(5))


def test_a_split_of_other_data_is_refused(tmp_path):
    data = graph(10)
    random_node_split(10, 0).save(tmp_path / "s.npz", DatasetIdentity.of(data))
    with pytest.raises(DataError, match="made for other data"):
        split(str(tmp_path / "s.npz"), replace(data, content_hash="other"))


# Groups, time, scaffolds ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_together_and_parts_have_their_share(seed):
    groups = [f"g{i % 11 if i % 3 else 0}" for i in range(100)]
    found = split(f"group:g:{seed}", graph(100, g=groups))
    part = part_of(found)
    assert len(part) == 100
    assert all(len({part[i] for i in range(100) if groups[i] == g}) == 1 for g in set(groups))
    sizes = [len(rows) for rows in parts(found)]
    assert abs(sizes[0] - 60) <= 8
    assert min(sizes) >= 8
    assert found.hash == split(f"group:g:{seed}", graph(100, g=groups)).hash


def test_seeds_deal_groups_otherwise():
    data = graph(60, g=[f"g{i % 12}" for i in range(60)])
    assert len({split(f"group:g:{seed}", data).hash for seed in range(5)}) == 5
    assert split("group:g", data).hash == split("group:g:0", data).hash


def test_three_groups_are_enough_however_large_one_is():
    found = split("group:g", graph(20, g=["big"] * 18 + ["x", "y"]))
    assert sorted(map(len, parts(found))) == [1, 1, 18]
    found = split("group:g", graph(30, g=["x", "y", "z"] * 10))
    assert list(map(len, parts(found))) == [10, 10, 10]
    with pytest.raises(DataError, match=r"at least 3 groups in column 'g'.*got 2"):
        split("group:g", graph(20, g=["x", "y"] * 10))
    with pytest.raises(DataError, match="1 empty cells of 20"):
        split("group:g", graph(20, g=["x", "y", "z", ""] + ["x"] * 16))


@pytest.mark.parametrize("dates", [False, True])
def test_time_goes_forward_and_equal_times_stay_together(dates):
    moments = [(7 * i) % 20 // 2 for i in range(20)]  # every one twice
    cells = [f"2021-01-{m + 1:02d}" for m in moments] if dates else moments
    found = split("time:t", graph(20, t=cells))
    train, validation, test = ([moments[i] for i in rows] for rows in parts(found))
    assert max(train) < min(validation)
    assert max(validation) < min(test)
    assert (len(train), len(validation), len(test)) == (12, 4, 4)


def test_times_that_are_none():
    with pytest.raises(DataError, match=r"a date such as.*'t' \(got 'soon' for 'n1'\)"):
        split("time:t", graph(3, t=["1", "soon", "2"]))
    with pytest.raises(DataError, match="got '' for 'n1'"):
        split("time:t", graph(3, t=["1", "", "2"]))
    with pytest.raises(DataError, match="got both"):
        split("time:t", graph(3, t=["1", "2020-01-01", "2"]))
    with pytest.raises(DataError, match="got none in 'validation'"):
        split("time:t", graph(20, t=["1"] * 10 + ["2"] * 10))
    labelled = torch.tensor([True, False, True, True, True, True])
    found = split("time:t", graph(6, t=["1", "soon", "2", "3", "5", "4"]), labelled)
    assert parts(found) == [[0, 2, 3], [5], [4]]


def test_scaffolds_stay_together_and_the_rarest_are_tested():
    pytest.importorskip("rdkit")
    rings = {"c1ccccc1": 12, "C1CCCCC1": 4, "c1ccncc1": 2, "C1CC1": 2}
    smiles = [f"{'C' * (1 + i)}{ring}" for ring, count in rings.items() for i in range(count)]
    assert scaffold_of("CCc1ccccc1") == "c1ccccc1"
    assert scaffold_of("CCO") == ""
    data = replace(graph(20), aside={SMILES: tuple(smiles)})
    found = split("scaffold", data)
    assert parts(found) == [list(range(12)), list(range(12, 16)), list(range(16, 20))]
    data = replace(graph(20), aside={SMILES: tuple(["CCO"] * 20)})
    with pytest.raises(DataError, match="got none in 'train'"):
        split("scaffold", data)

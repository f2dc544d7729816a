"""Numbers, several targets, own splits and directed edges, from the command line to the table."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from geof.cli import main
from tests.cli.conftest import PLAIN

SMALL = ["--quiet", *PLAIN, "--method", "gcn", "epochs=4", "options.hidden_channels=8"]


@pytest.fixture
def source(tmp_path, monkeypatch) -> list[str]:
    """Nodes with a price that shows in two columns, two of yes or no, columns to split by."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    rows = [["id", "a", "b", "price", "toxic", "soluble", "kind", "part", "owner", "day"]]
    for i in range(60):
        a, b = draw.gauss(0, 1), draw.gauss(0, 1)
        price = "" if i % 20 == 0 else f"{1000 + 100 * a + 50 * b:.3f}"
        part = ("train", "train", "train", "val", "test")[i % 5]
        soluble = "" if i % 4 == 0 else int(b > 0)
        known = [price, int(a > 0), soluble, "red" if a > 0.5 else "blue", part]
        rows.append(
            [f"n{i}", f"{a:.4f}", f"{b:.4f}", *known, f"o{i % 7}", f"2024-03-{1 + i % 28:02d}"]
        )
    with open("nodes.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    pairs = [draw.sample(range(60), 2) for _ in range(120)]
    lines = "".join(f"n{a},n{b}\n" for a, b in pairs)
    Path("edges.csv").write_text("source,target\n" + lines)
    return ["--nodes", "nodes.csv", "--edges", "edges.csv"]


LABELS = ("price", "toxic", "soluble", "kind")


def words(*labels: str, keep: str = "") -> list[str]:
    """Return flags that predict these columns from 'a' and 'b' alone."""
    others = [n for n in (*LABELS, "part", "owner", "day") if n not in (*labels, keep)]
    flags = [["--label", name] for name in labels] + [["--drop", name] for name in others]
    return [word for flag in flags for word in flag]


def train(source: list[str], *more: str, out: str = "run") -> dict:
    assert main(["train", *source, *SMALL, *more, "--out", out]) == 0
    return json.loads(Path(out, "result.json").read_text())


def predicted(*flags: str, run: str = "run") -> list[dict[str, str]]:
    assert main(["predict", run, *flags, "--out", "p.csv", "--force"]) == 0
    with open("p.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_from_train_to_predict(source, capsys):
    result = train(source, *words("price", keep="part"), "--split-column", "part")
    said = capsys.readouterr().out
    assert "Column 'price' holds numbers that are not whole" in said
    assert f"rmse: test {result['test']:.4g}, validation" in said
    assert "%" not in said
    assert (result["metric"], result["split"]) == ("rmse", "column part")
    rows = predicted()
    truth = {row["id"]: row["truth"] for row in rows}
    assert truth["n0"] == ""
    with open("nodes.csv", newline="") as file:
        given = list(csv.DictReader(file))
    assert [row["price"] for row in given] == [
        f"{float(t):.3f}" if t else "" for t in truth.values()
    ]
    word = {"train": "train", "val": "validation", "test": "test"}
    expected = [word[row["part"]] if row["price"] else "" for row in given]
    assert [row["part"] for row in rows] == expected
    tested = [r for r in rows if r["part"] == "test"]
    squares = [(float(r["prediction"]) - float(r["truth"])) ** 2 for r in tested]
    assert math.sqrt(sum(squares) / len(squares)) == pytest.approx(result["test"])
    capsys.readouterr()
    assert main(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == result["metrics"]
    assert main(["report", "run", "--out", "page.html"]) == 0
    assert "node regression" in Path("page.html").read_text()


def test_other_data_have_no_part_and_truth_where_there_is_one(source):
    train(source, *words("kind"))
    assert predicted()[0].keys() == {
        *("id", "part", "truth", "prediction", "probability_blue", "probability_red")
    }
    text = Path("nodes.csv").read_text().splitlines()
    Path("new.csv").write_text("\n".join([text[0], *(line + "1" for line in text[1:])]) + "\n")
    rows = predicted("--nodes", "new.csv", "--edges", "edges.csv")
    assert "truth" in rows[0]
    assert {row["truth"] for row in rows} == {"red", "blue"}
    Path("bare.csv").write_text("id,a,b\nx,1,2\n")
    Path("none.csv").write_text("source,target\n")
    (row,) = predicted("--nodes", "bare.csv", "--edges", "none.csv")
    assert row.keys() == {"id", "prediction", "probability_blue", "probability_red"}


def test_several_targets(source, capsys):
    result = train(source, *words("toxic", "soluble"))
    assert "predicted as yes-or-no targets" in capsys.readouterr().out
    assert result["metric"] == "roc_auc"
    assert {"roc_auc/toxic", "roc_auc/soluble"} <= result["metrics"].keys()
    row = predicted()[0]
    assert row["truth_soluble"] == ""
    assert row["prediction_soluble"] in "01"
    assert 0 < float(row["probability_toxic"]) < 1
    assert main(["predict", "run", "--out", "q.csv", "--json"]) == 0
    assert main(["report", "run", "--out", "page.html"]) == 0


@pytest.mark.parametrize(
    ("how", "keep", "name"),
    [
        (["--split", "group:owner"], "owner", "group owner"),
        (["--split", "time:day"], "day", "time day"),
        (["--split", "mine.json"], "", "file mine.json"),
    ],
)
def test_own_splits(how, keep, name, source):
    parts = {"train": range(30), "validation": range(30, 45), "test": range(45, 60)}
    Path("mine.json").write_text(
        json.dumps({part: [f"n{i}" for i in rows] for part, rows in parts.items()})
    )
    result = train(source, *words("kind", keep=keep), *how, "metric=balanced_accuracy")
    assert (result["split"], result["metric"]) == (name, "balanced_accuracy")
    with open("nodes.csv", newline="") as file:
        given = list(csv.DictReader(file))
    rows = {row["id"]: row["part"] for row in predicted()}
    if keep == "owner":
        owners = {(row["owner"], rows[row["id"]]) for row in given}
        assert len(owners) == 7
    elif keep == "day":
        days = {part: [r["day"] for r in given if rows[r["id"]] == part] for part in parts}
        assert max(days["train"]) < min(days["validation"])
        assert max(days["validation"]) < min(days["test"])
    else:
        assert [rows[f"n{i}"] for i in (0, 30, 59)] == list(parts)
    stored = json.loads(Path("run", "config.json").read_text())
    assert stored["split_hash"] == result["split_hash"]
    again = train(source, *words("kind"), "--split", "run/split.npz", out="again")
    assert again["split_hash"] == result["split_hash"]


def test_a_column_to_split_by_is_no_feature(source):
    for how, keep in (("column:part", "part"), ("group:owner", "owner"), ("time:day", "day")):
        train(source, *words("kind", keep=keep), "--split", how, out=keep)
        schema = json.loads(Path(keep, "config.json").read_text())["schema"]
        assert [column["name"] for column in schema["columns"]] == ["a", "b"]
        assert keep in schema["dropped"]


def test_molecules_with_numbers_and_scaffolds(tmp_path, monkeypatch):
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    rings = ["c1ccccc1"] * 16 + ["C1CCCCC1"] * 2 + ["c1ccncc1"] * 2
    lines = [f"{'C' * (1 + i % 5)}{ring},{i + 0.5},m{i}" for i, ring in enumerate(rings)]
    Path("m.csv").write_text("smiles,boils,name\n" + "\n".join(lines) + "\n")
    source = ["--molecules", "m.csv", "--id", "name"]
    result = train(source, "--label", "boils", "--split", "scaffold", "metric=mae")
    assert (result["split"], result["metric"]) == ("scaffold", "mae")
    rows = predicted()
    assert [row["part"] for row in rows] == ["train"] * 16 + ["validation"] * 2 + ["test"] * 2
    assert [float(row["truth"]) for row in rows] == [i + 0.5 for i in range(20)]
    Path("new.csv").write_text("smiles,name\nCCO,ethanol\n")
    (row,) = predicted("--molecules", "new.csv")
    assert row.keys() == {"id", "prediction"}


def test_direction_is_noticed_and_kept_for_new_data(source, capsys):
    train(source, *words("kind"))
    assert "edges given in one direction taken as undirected. Keep" in capsys.readouterr().out
    train(source, *words("kind"), "--directed", out="kept")
    said = capsys.readouterr().out
    assert "edges keep their direction" in said
    Path("new.csv").write_text("id,a,b\nx,1,2\ny,-1,0\n")
    chances = {}
    for edge in ("x,y", "y,x"):
        Path("edge.csv").write_text(f"source,target\n{edge}\n")
        rows = predicted("--nodes", "new.csv", "--edges", "edge.csv", run="kept")
        chances[edge] = [row["probability_red"] for row in rows]
    assert chances["x,y"] != chances["y,x"]


def test_class_weights_change_what_is_learned(source):
    plain = train(source, *words("kind"), out="plain")
    weighted = train(source, *words("kind"), "class_weights=balanced", out="weighted")
    same = train(source, *words("kind"), "class_weights=none", out="same")
    assert Path("plain/metrics.jsonl").read_text() == Path("same/metrics.jsonl").read_text()
    assert Path("plain/metrics.jsonl").read_text() != Path("weighted/metrics.jsonl").read_text()
    assert plain["split_hash"] == weighted["split_hash"] == same["split_hash"]


def test_links_by_hits_at_any_k(source):
    result = train(source, *words(), "--task", "link", "metric=hits@5")
    assert result["test"] == result["metrics"]["hits@5"]
    assert result["metric"] == "hits@5"


def test_a_sweep_keeps_the_lowest_error(source, capsys):
    Path("space.yaml").write_text("learning_rate: [0.05, 1.0e-6]\n")
    flags = [*source, *words("price"), "--preset", "none", "--method", "gcn", "epochs=5"]
    flags += ["--sampler", "grid", "--splits", "0", "--workers", "1"]
    assert main(["sweep", "space.yaml", *flags, "--out", "S", "--json", "--quiet"]) == 0
    answer = json.loads(capsys.readouterr().out)
    with open("S/summary.csv", newline="") as file:
        reached = {
            float(row["learning_rate"]): float(row["validation"]) for row in csv.DictReader(file)
        }
    assert answer["best"]["validation"] == min(reached.values())
    assert reached[0.05] < reached[1e-6]


@pytest.mark.parametrize(
    ("labels", "more", "message"),
    [
        (["kind"], ["--target-kind", "regression"], "Expected a finite number in column 'kind'"),
        (["price", "kind"], [], "Expected a finite number in column 'kind'"),
        (["toxic", "kind"], ["--target-kind", "classes"], "one label column"),
        (["kind"], ["metric=rmse"], "Expected 'metric' to judge classes"),
        (["price"], ["class_weights=balanced"], "no 'class_weights' for regression"),
        (["kind"], ["class_weights=[1.0]"], "a weight for each class, blue, red (got 1)"),
        (["kind"], ["class_weights=[1.0,-1.0]"], "each a finite number above 0"),
        (["kind"], ["--split-column", "owner"], "got 'o0' for 'n0'"),
        (["kind"], ["--split-column", "ownr"], "Did you mean 'owner'"),
        (["kind"], ["--split", "time:owner"], "a date such as 2024-05-31"),
        (["kind"], ["--split", "scaffold"], "a table of SMILES (--molecules"),
        (["kind"], ["--split", "sometimes"], "'--split' to be a number from 0"),
        ([], ["--task", "link", "--split", "time:day"], "a number from 0 for the link task"),
        ([], ["--task", "link", "--directed"], "without direction for the link task"),
    ],
)
def test_what_cannot_be_done_is_said(labels, more, message, source, capsys):
    keep = {"--split-column": "owner", "time:owner": "owner", "time:day": "day"}
    kept = next((keep[word] for word in more if word in keep), "")
    flags = [*source, *words(*labels, keep=kept), *more, "--method", "gcn"]
    assert main(["train", *flags, "--out", "wrong"]) == 1
    assert message in capsys.readouterr().err
    assert not Path("wrong").exists()


def test_an_empty_part_is_said(source, capsys):
    text = Path("nodes.csv").read_text().replace(",test,", ",train,")
    Path("nodes.csv").write_text(text)
    flags = [*source, *words("kind", keep="part"), "--split-column", "part"]
    assert main(["train", *flags, "--out", "wrong"]) == 1
    assert "every part of the split 'column part' (got none in 'test')" in capsys.readouterr().err


def test_pairs_carry_their_part_and_truth(source):
    """An edge is true, a held-out negative false, and of any other pair nothing is known."""
    train(source, *words("kind"), "--task", "link")
    split = np.load("run/split.npz")
    asked = {name: split[name][:, 0] for name in ("train", "validation", "test_negatives")}
    known = {tuple(pair) for name in split.files for pair in split[name].T if split[name].ndim == 2}
    other = next((a, b) for a in range(60) for b in range(a + 1, 60) if (a, b) not in known)
    pairs = [*(tuple(map(int, pair)) for pair in asked.values()), other]
    lines = [f"n{b},n{a}" for a, b in pairs]  # whichever direction
    Path("pairs.csv").write_text("\n".join(["source,target", *lines]) + "\n")
    rows = predicted(*source, "--pairs", "pairs.csv")
    assert [row["part"] for row in rows] == ["train", "validation", "test", ""]
    assert [row["truth"] for row in rows] == ["1", "1", "0", ""]
    Path("more.csv").write_text(Path("edges.csv").read_text() + "n0,n59\n")
    rows = predicted(*source[:3], "more.csv", "--pairs", "pairs.csv")
    assert "part" not in rows[0]  # another graph has none of the run's parts
    assert [row["truth"] for row in rows[:2]] == ["1", "1"]

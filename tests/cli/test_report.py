"""``geof report``: which page, from what, to where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from geof.cli import main
from tests.cli.conftest import QUICK, write_tables
from tests.report.test_html import check


def report(run, *more) -> int:
    return main(["report", str(run), "--map", "pca", *map(str, more)])


@pytest.fixture
def copied(node_run, tmp_path):
    return shutil.copytree(node_run, tmp_path / "run")


def test_a_page_beside_the_run(copied, capsys):
    assert report(copied) == 0
    page = check((copied / "report.html").read_text(encoding="utf-8"))
    assert page["finished"]
    assert str(copied / "report.html") in capsys.readouterr().out


def test_a_page_that_is_there_stays_unless_forced(copied, tmp_path, capsys):
    out = tmp_path / "page.html"
    out.write_text("mine")
    assert report(copied, "--out", out) == 1
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert report(copied, "--out", out, "--force", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {
        "out": str(out),
        "kind": "run",
        "bytes": len(out.read_bytes()),
        "missing": [],
    }
    assert report(copied, "--out", tmp_path / "page.pdf") == 1
    assert "end in .html" in capsys.readouterr().err


def test_nodes_asked_for_come_first(copied):
    assert report(copied, "--node", "ü 7", "ü 3") == 0
    assert check((copied / "report.html").read_text(encoding="utf-8"))["first"] == 3


def test_without_its_data_a_run_has_options_and_curves(copied, tmp_path, capsys):
    config = (copied / "config.json").read_text()
    (copied / "config.json").write_text(config.replace("nodes.csv", "gone.csv"))
    assert report(copied) == 0
    assert "the data cannot be used" in capsys.readouterr().out
    page = check((copied / "report.html").read_text(encoding="utf-8"))
    assert page["curves"]["epochs"] == [1, 2, 3, 4]
    assert "gone.csv" in page["missing"][0]
    assert "scores" not in page
    assert report(copied, "--force", "--node", "ü 1") == 1
    assert "Expected the run's data" in capsys.readouterr().err


def test_named_data_are_used_and_wrong_ones_refused(copied, node_run, tmp_path, capsys):
    forget_files(copied)
    nodes, edges = node_run.parent / "nodes.csv", node_run.parent / "edges.csv"
    assert report(copied, "--nodes", nodes, "--edges", edges, "--json") == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    lines = edges.read_text().splitlines()[:-30]
    (tmp_path / "fewer.csv").write_text("\n".join(lines) + "\n")
    flags = ["--nodes", nodes, "--edges", tmp_path / "fewer.csv"]
    assert report(copied, "--force", *flags) == 1
    assert "the data that" in capsys.readouterr().err


def forget_files(run: Path) -> None:
    """Let a run not say where its data are."""
    config = json.loads((run / "config.json").read_text())
    config["run"]["data"] = {}
    (run / "config.json").write_text(json.dumps(config))


def test_a_run_that_does_not_say_where_its_data_are(copied, capsys):
    forget_files(copied)
    assert report(copied) == 0
    assert "the run does not say where its own data are" in capsys.readouterr().out


def test_a_run_without_a_checkpoint(copied, capsys):
    (copied / "checkpoint.safetensors").unlink()
    (copied / "result.json").unlink()
    assert report(copied) == 0
    page = check((copied / "report.html").read_text(encoding="utf-8"))
    assert not page["finished"]
    assert "--resume" in page["missing"][0]


def test_a_run_goes_on_with_its_page_beside_it(tmp_path, capsys):
    run = tmp_path / "run"
    flags = [*write_tables(tmp_path), "--label", "kind", "--out", str(run), *QUICK]
    assert main(["train", *flags]) == 0
    (run / "result.json").unlink()
    assert report(run) == 0
    before = (run / "report.html").read_bytes()
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    assert (run / "result.json").exists()
    assert (run / "report.html").read_bytes() == before


def test_what_is_no_run_is_refused(tmp_path, capsys, monkeypatch):
    """Where nothing installed makes pages of other folders."""
    monkeypatch.setattr("geof.cli.report.entry_points", lambda group: {})
    assert report(tmp_path) == 1
    assert "part of geof-paper; install it with: pip install ./paper" in capsys.readouterr().err
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert report(tmp_path / "nothing") == 1
    assert "not there" in capsys.readouterr().err
    assert report(tmp_path / "other.json") == 1
    assert "a file" in capsys.readouterr().err
    assert report(tmp_path, "--node", "3") == 1
    assert "Expected a run folder for '--node'" in capsys.readouterr().err


def test_runs_of_the_demonstration_find_their_embedded_data(tmp_path, capsys):
    from geof.cli.demo import demo_data
    from geof.data import random_node_split
    from geof.training import NodeTask, TrainingConfig
    from tests.training.toys import fit

    data = demo_data()["covariance"]
    split = random_node_split(data.graph.num_nodes, 0, nodes=data.graph.y >= 0)
    options = {"hidden_channels": 8, "num_layers": 1}
    more = {"method": "gcn", "options": options, "preset": "demo", "out": tmp_path}
    fit(NodeTask(data, split), TrainingConfig(epochs=1), **more)
    assert main(["report", str(tmp_path), "--json", "--map", "pca"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert [sentence.split(":")[0] for sentence in missing] == ["The geometry of nodes"]

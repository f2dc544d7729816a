"""A run folder written by version 0.1 before configs had one record opens, predicts and goes on.

``old_run`` was stopped after four of six epochs; beside it stands what the run left in peace gave.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from geof.cli import main
from geof.training.predict import Run
from geof.training.run_folder import read_config, read_result

HERE = Path(__file__).parent / "old_run"
TABLES = ("nodes.csv", "edges.csv", "predictions.csv", "expected_result.json")


@pytest.fixture
def old(tmp_path) -> Path:
    """The run folder as it was, its data beside it."""
    run = tmp_path / "run"
    run.mkdir()
    for path in HERE.iterdir():
        shutil.copy(path, tmp_path if path.name in TABLES else run)
    (run / "expected_metrics.jsonl").unlink()
    settings = run / "settings.yaml"
    settings.write_text(settings.read_text().replace("FOLDER", str(tmp_path)))
    return run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_it_opens_and_predicts_what_it_predicted(old, tmp_path):
    run = Run.open(old)
    assert (run.config.method, run.config.task, run.epoch) == ("geof", "node", 4)
    assert run.config.options["dropout"] == 0.3
    assert run.config.signature.walk_length == 3
    assert run.class_names == ("a", "b")
    assert not run.finished
    assert main(["predict", str(old), "--out", str(tmp_path / "p.csv")]) == 0
    for now, before in zip(rows(tmp_path / "p.csv"), rows(HERE / "predictions.csv"), strict=True):
        assert now["id"] == before["id"]
        assert float(now["probability_a"]) == pytest.approx(
            float(before["probability_a"]), abs=1e-5
        )


def test_it_goes_on_and_ends_as_it_would_have(old, capsys):
    assert main(["train", "--resume", str(old), "--quiet"]) == 0
    assert "Going on after epoch 4." in capsys.readouterr().out
    result, wanted = read_result(old), json.loads((HERE / "expected_result.json").read_text())
    wanted["method"] = wanted.pop("model")
    for name in ("dataset", "method", "best_epoch", "epochs", "split_hash", "parameters", "seed"):
        assert result[name] == wanted[name], name
    for name in ("test", "validation"):
        assert result[name] == pytest.approx(wanted[name], abs=1e-3)
    lines = zip(
        (old / "metrics.jsonl").read_text().splitlines(),
        (HERE / "expected_metrics.jsonl").read_text().splitlines(),
        strict=True,
    )
    for now, before in lines:
        assert json.loads(now) == pytest.approx(json.loads(before), rel=1e-4)
    assert read_config(old)["run"]["method"] == "geof"


def test_other_options_are_still_refused(old, capsys):
    assert main(["train", "--resume", str(old), "--quiet", "options.dropout=0.1"]) == 1
    assert "options.dropout: 0.3 there, 0.1 now" in capsys.readouterr().err
    assert main(["train", "--resume", str(old), "--quiet", "clip=1.0"]) == 1
    assert "training.clip: None there, 1.0 now" in capsys.readouterr().err


def test_its_page_can_be_made(old, capsys):
    assert main(["report", str(old), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [sentence.split(":")[0] for sentence in said["missing"]] == ["The result"]


def test_a_result_under_its_old_name(old):
    shutil.copy(HERE / "expected_result.json", old / "result.json")
    assert read_result(old)["method"] == "geof"

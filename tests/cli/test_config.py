"""Options from files, words, flags and presets: who goes over whom, and what is refused."""

from __future__ import annotations

import json

import pytest
import yaml

from geof.cli import main
from geof.training import config as training_config
from tests.cli.conftest import LOUD, QUICK


def show(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert main(["train", "--show", *arguments]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.fixture
def source(tables) -> list[str]:
    return [*tables, "--label", "kind"]


def test_a_shown_config_used_as_a_file_gives_the_same_run(source, tmp_path, capsys):
    words = [
        "options.log_scale_bounds=[-2,2]",
        "patience=3",
        "clip=1e-1",
        "signature.walk_length=4",
    ]
    assert main(["train", *source, "--split", "3", "--show", *QUICK, *words]) == 0
    text = capsys.readouterr().out
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert main(["train", "--config", str(file), "--show"]) == 0
    assert capsys.readouterr().out == text
    one, other = tmp_path / "one", tmp_path / "other"
    assert main(["train", *source, "--split", "3", "--out", str(one), *QUICK, *words]) == 0
    assert main(["train", "--config", str(file), "--out", str(other), "--quiet"]) == 0
    assert main(["train", "--config", str(one / "config.json"), "--show"]) == 0
    assert capsys.readouterr().out.endswith(text)
    third = tmp_path / "third"
    given = ["--config", str(one / "config.json"), "--out", str(third), "--quiet"]
    assert main(["train", *given]) == 0
    for name in ("config.json", "checkpoint.safetensors", "split.npz"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
        assert (one / name).read_bytes() == (third / name).read_bytes(), name


def test_nothing_is_written_when_a_config_is_shown(source, tmp_path, capsys):
    show(capsys, *source, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_words_go_over_the_file_and_the_file_over_the_preset(source, tmp_path, capsys, monkeypatch):
    preset = {"epochs": 9, "clip": 2.0, "warmup": 1, "options": {"steps": 5, "blocks": 4}}
    monkeypatch.setattr(training_config, "load_preset", lambda *_: preset)
    file = tmp_path / "s.yaml"
    file.write_text("epochs: 7\nclip: 1e-1\noptions:\n  steps: 4\n  prototypes: 2\n")
    found = show(capsys, *source, "--config", str(file), "epochs=3", "options.prototypes=3")
    assert (found["epochs"], found["clip"], found["warmup"]) == (3, 0.1, 1)
    options = found["options"]
    assert (options["steps"], options["blocks"], options["prototypes"]) == (4, 4, 3)


def test_flags_go_over_the_file(source, tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text("split: 1\nmethod: gcn\ntask: link\npreset: none\n")
    found = show(capsys, *source, "--config", str(file))
    assert [found[key] for key in ("split", "method", "task")] == ["1", "gcn", "link"]
    flags = ["--split", "2", "--method", "geof", "--task", "node"]
    found = show(capsys, *source, "--config", str(file), *flags)
    assert [found[key] for key in ("split", "method", "task")] == ["2", "geof", "node"]


def test_spellings_of_earlier_versions_still_work(source, tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text("encoder: gcn\npreset: none\nmodel: {num_layers: 3}\n")
    found = show(capsys, *source, "--config", str(file), "model.hidden_channels=9")
    assert found["method"] == "gcn"
    assert (found["options"]["num_layers"], found["options"]["hidden_channels"]) == (3, 9)
    assert show(capsys, *source, "--model", "gcn")["method"] == "gcn"


def test_the_file_names_the_data_unless_a_flag_does(source, tmp_path, capsys):
    file = tmp_path / "s.yaml"
    nodes, edges = source[1], source[3]
    file.write_text(f"data: {{nodes: {nodes}, edges: {edges}, label: kind, drop: [city]}}\n")
    assert show(capsys, "--config", str(file))["data"]["drop"] == ["city"]
    assert "drop" not in show(capsys, "--config", str(file), *source)["data"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", "Did you mean 'epochs'"),
        ("options: {temprature: 3}", "Did you mean 'temperature'"),
        ("readout: {dropuot: 0.5}", "Did you mean 'dropout'"),
        ("signature: {walk: 3}", "'signature.walk'"),
        ("data: {node: n.csv}", "Did you mean 'nodes'"),
        ("data: {nodes: 3}", "'data.nodes' to be the name of a file or nothing (got 3)"),
        ("data: {drop: city}", "'data.drop' to be a list, each text (got 'city')"),
        ("data: n.csv", "'data' to be a section"),
        ("options: 3", "'options' to be a section"),
        ("method: [gcn]", "'method' to be text"),
        ("encoder: geoff", "Did you mean 'geof'"),
        ("preset: 3", "'preset' to be text"),
        ("folds: ten", "'folds' to be an integer"),
        ("split: 1.5", "'split' to be text"),
        ("task: nodes", "Did you mean 'node'"),
        ("epochs: 3\nepochs: 4", "'epochs' comes twice"),
        ("epochs: [", "to be YAML"),
        ("- epochs", "'key: value' lines"),
    ],
)
def test_a_bad_file_is_refused_by_name(text, message, source, tmp_path, capsys):
    file, run = tmp_path / "s.yaml", tmp_path / "run"
    file.write_text(text + "\n")
    given = source if not text.startswith("data") else []
    assert main(["train", *given, "--config", str(file), "--out", str(run)]) == 1
    assert message in capsys.readouterr().err
    assert not run.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "geoff"], "Did you mean 'geof'"),
        (["--method", "geoff", "--preset", "tuned"], "Did you mean 'geof'"),
        (["--preset", "tunde"], "Did you mean 'tuned'"),
        (["--method", "gcn", "--preset", "paper"], "Valid: 'none', 'plain'"),
        (["--config", "none.yaml"], "Expected a config file at 'none.yaml'"),
        (["--split", "x"], "'--split' to be a number"),
        (["--task", "graph"], "'--task' to fit the data"),
        (["fanouts=[2,2]"], "'batch_size' beside 'fanouts'"),
        (["epochs=3", "epochs.x=4"], "'epochs'"),
    ],
)
def test_bad_flags_and_words_are_refused_by_name(arguments, message, source, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *source, "--out", str(run), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not run.exists()


def test_json_is_all_there_is_on_the_output(source, geof, tmp_path):
    run = tmp_path / "run"
    done = geof("train", *source, "--out", run, "--json", *LOUD)
    assert done.code == 0
    assert json.loads(done.out)["test"] == json.loads((run / "result.json").read_text())["test"]
    assert "note: 5 repeated edges merged." in done.err
    silent = geof("train", *source, "--out", run, "--json", *QUICK)
    assert (silent.code, silent.out, silent.err) == (0, done.out, "")


def test_quiet_has_no_progress(source, geof, tmp_path):
    loud = geof("train", *source, "--out", tmp_path / "a", *LOUD)
    quiet = geof("train", *source, "--out", tmp_path / "b", *QUICK)
    title = "nodes: geof (none), node task"
    assert title in loud.out
    assert title not in quiet.out
    assert "accuracy: test" in quiet.out
    assert (loud.code, loud.err, quiet.code, quiet.err) == (0, "", 0, "")

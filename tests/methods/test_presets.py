"""Every preset that ships parses, builds a plan, runs, and gives a reason for every value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from geof.data.catalogue import CATALOGUE
from geof.errors import ConfigError
from geof.methods.presets import (
    default_preset,
    load_preset,
    preset_datasets,
    preset_folder,
    preset_names,
)
from geof.training import ENCODERS, Plan, run_experiment
from geof.yaml_options import merge, read_settings
from tests.training.toys import graph_set, node_graph

FILES = sorted(preset_folder().glob("*/*/*.yaml"))
NAMES = {"/".join(path.parts[-3:]): path for path in FILES}
TASKS = ("node", "link", "graph")


def parts(path: Path) -> tuple[str, str, str]:
    return path.parts[-3], path.parts[-2], path.stem


CASES = {
    "/".join([*parts(path), dataset or "any"]): (*parts(path), dataset)
    for path in FILES
    for dataset in (None, *preset_datasets(*parts(path)))
}


def test_every_encoder_has_its_default_preset_for_every_task():
    for encoder in ENCODERS:
        assert default_preset(encoder) != "none", encoder
    assert default_preset("my own") == "none"
    folders = {path.parent for path in FILES}
    assert {folder.parent.name for folder in folders} <= ENCODERS.keys()
    for folder in folders:
        assert sorted(path.stem for path in folder.iterdir()) == sorted(TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_sections_are_for_all_or_for_a_benchmark_of_the_task(name):
    sections = read_settings(NAMES[name])
    one_graph = NAMES[name].stem != "graph"
    for section, settings in sections.items():
        assert isinstance(settings, dict), section
        if section != "all":
            assert CATALOGUE[section].is_node_graph == one_graph


@pytest.mark.parametrize("case", CASES)
def test_every_preset_builds_a_plan(case):
    encoder, preset, task, dataset = CASES[case]
    tree = load_preset(encoder, preset, task, dataset)
    plan = Plan.from_tree(tree, task=task, encoder=encoder, preset=preset)
    again = Plan.from_tree(plan.tree(), task=task, encoder=encoder, preset=preset)
    assert again == plan
    for key, value in tree.items():
        found = plan.tree()[key]
        assert found.items() >= value.items() if isinstance(value, dict) else found == value, key


def run_briefly(case: str) -> None:
    encoder, preset, task, dataset = CASES[case]
    tree = load_preset(encoder, preset, task, dataset)
    stage = {"pretraining": {"epochs": 1}} if "pretraining" in tree else {}
    tree = merge(tree, {"epochs": 2, "evaluate_every": 1, **stage})
    plan = Plan.from_tree(tree, task=task, encoder=encoder, preset=preset, folds=3)
    data = graph_set(12) if task == "graph" else node_graph()
    _, result = run_experiment(plan.experiment(plan.build_task(data)))
    assert (result.epochs - len(stage), result.model, result.preset) == (2, encoder, preset)


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("/any")])
def test_every_preset_runs(case):
    run_briefly(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith("/any")])
def test_every_preset_runs_with_each_datasets_settings(case):
    run_briefly(case)


COMMENT = re.compile(r"^\s*#.*[A-Za-z]{3}")
VALUE = re.compile(r"^\s*[\w-]+:\s*[^\s#]")
EMPTY = re.compile(r":\s*\{\}")


def unexplained(text: str) -> list[str]:
    """Return the lines with a value and no reason, beside it or directly above."""
    found, above = [], ""
    for line in text.splitlines():
        value, _, reason = line.partition(" #")
        explained = re.search("[A-Za-z]{3}", reason) or COMMENT.match(above)
        if VALUE.match(value) and not EMPTY.search(value) and not explained:
            found.append(value.strip())
        above = line
    return found


def test_the_check_for_reasons_sees_what_is_missing():
    text = """
# Values in general.
all:
  epochs: 3 # more do not help
  # Chosen on validation data,
  # see the page of results.
  clip: 1.0
  patience: 5
  warmup: 2 #
  model:
    steps: 2 # printed
    bounds: [1, 2]

    blocks: 8
Cora: {}
"""
    assert unexplained(text) == ["patience: 5", "warmup: 2", "bounds: [1, 2]", "blocks: 8"]


@pytest.mark.parametrize("name", NAMES)
def test_every_value_gives_its_reason(name):
    assert unexplained(NAMES[name].read_text()) == []


def test_a_dataset_lies_over_what_all_share(monkeypatch, tmp_path):
    folder = tmp_path / "geof" / "own"
    folder.mkdir(parents=True)
    (folder / "node.yaml").write_text(
        "all:\n  epochs: 5\n  model: {steps: 2, blocks: 4}\nCora:\n  model: {steps: 3}\n"
    )
    monkeypatch.setattr("geof.methods.presets.preset_folder", lambda: tmp_path)
    shared = {"epochs": 5, "model": {"steps": 2, "blocks": 4}}
    assert load_preset("geof", "own", "node") == shared
    assert load_preset("geof", "own", "node", "my graph") == shared
    assert load_preset("geof", "own", "node", "Cora") == {
        "epochs": 5,
        "model": {"steps": 3, "blocks": 4},
    }
    assert preset_names("geof") == ["own", "none"]
    assert preset_names("gcn") == ["none"]
    assert preset_datasets("geof", "own", "node") == ["Cora"]


def test_unknown_presets_name_the_nearest():
    with pytest.raises(ConfigError, match=r"a preset of 'geof' \(got 'paperr'\).*mean 'paper'"):
        load_preset("geof", "paperr", "node")
    with pytest.raises(ConfigError, match="Valid: 'none', 'plain'"):
        load_preset("gcn", "paper", "node")


def test_the_preset_none_sets_nothing():
    assert load_preset("geof", "none", "node", "Cora") == {}

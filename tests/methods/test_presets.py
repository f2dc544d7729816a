"""Every preset that ships parses, makes a config, runs, and gives a reason for every value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from geof.data.catalogue import CATALOGUE
from geof.errors import ConfigError
from geof.io import read_yaml
from geof.methods.registry import (
    Method,
    default_preset,
    get_method,
    load_preset,
    method_names,
    preset_datasets,
    preset_names,
    register,
    unregister,
)
from geof.training import RunConfig, Trainer, build_task
from geof.training.canary import canaries
from tests.training.toys import graph_set, node_graph

FILES = {method: sorted(get_method(method).presets.glob("*/*.yaml")) for method in method_names()}
NAMES = {"/".join(path.parts[-3:]): path for files in FILES.values() for path in files}
TASKS = ("node", "link", "graph")


def parts(path: Path) -> tuple[str, str, str]:
    return path.parts[-3], path.parts[-2], path.stem


CASES = {
    "/".join([*parts(path), dataset or "any"]): (*parts(path), dataset)
    for path in NAMES.values()
    for dataset in (None, *preset_datasets(*parts(path)))
}


@pytest.fixture
def mine(tmp_path):
    """A method of one's own with presets of its own, below the path returned."""
    register(Method("mine", get_method("gcn").build, presets=tmp_path / "presets"))
    yield tmp_path / "presets"
    unregister("mine")


def test_every_method_has_its_default_preset_for_every_task(mine):
    for method, files in FILES.items():
        for task in TASKS:
            assert load_preset(method, default_preset(method, task), task), method
        assert {path.stem for path in files} == set(TASKS)
    assert default_preset("mine") == "none"


@pytest.mark.parametrize("name", NAMES)
def test_sections_are_for_all_or_for_a_benchmark_of_the_task(name):
    sections = read_yaml(NAMES[name])
    one_graph = NAMES[name].stem != "graph"
    for section, options in sections.items():
        assert isinstance(options, dict), section
        if section != "all":
            assert CATALOGUE[section].is_node_graph == one_graph


@pytest.mark.parametrize("case", CASES)
def test_every_preset_makes_a_config(case):
    method, preset, task, dataset = CASES[case]
    tree = load_preset(method, preset, task, dataset)
    about = {"method": method, "preset": preset, "task": task}
    config = RunConfig.parse({**about, "data": {} if dataset is None else {"dataset": dataset}})
    assert RunConfig.parse(config.tree()) == config
    for key, value in tree.items():
        found = config.tree()[key]
        assert found.items() >= value.items() if isinstance(value, dict) else found == value, key


def run_briefly(case: str) -> None:
    method, preset, task, dataset = CASES[case]
    tree = load_preset(method, preset, task, dataset)
    stage = {"pretraining": {"epochs": 1}} if "pretraining" in tree else {}
    about = {"method": method, "preset": preset, "task": task, "folds": 3}
    named = {"data": {} if dataset is None else {"dataset": dataset}}
    config = RunConfig.parse({**about, **named}, {"epochs": 2, "evaluate_every": 1, **stage})
    data = graph_set(12) if task == "graph" else node_graph()
    result = Trainer(config, build_task(config, data)).fit()
    assert (result.epochs - len(stage), result.method, result.preset) == (2, method, preset)


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("/any")])
def test_every_preset_runs(case):
    run_briefly(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith("/any")])
def test_every_preset_runs_with_each_datasets_options(case):
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
  options:
    steps: 2 # printed
    bounds: [1, 2]

    blocks: 8
Cora: {}
"""
    assert unexplained(text) == ["patience: 5", "warmup: 2", "bounds: [1, 2]", "blocks: 8"]


@pytest.mark.parametrize("name", NAMES)
def test_every_value_gives_its_reason(name):
    assert unexplained(NAMES[name].read_text()) == []


def test_a_dataset_lies_over_what_all_share(mine):
    folder = mine / "own"
    folder.mkdir(parents=True)
    (folder / "node.yaml").write_text(
        "all:\n  epochs: 5\n  options: {steps: 2, blocks: 4}\nCora:\n  options: {steps: 3}\n"
    )
    shared = {"epochs": 5, "options": {"steps": 2, "blocks": 4}}
    assert load_preset("mine", "own", "node") == shared
    assert load_preset("mine", "own", "node", "my graph") == shared
    assert load_preset("mine", "own", "node", "Cora") == {
        "epochs": 5,
        "options": {"steps": 3, "blocks": 4},
    }
    assert load_preset("mine", "own", "link") == {}  # it has no file for links
    assert preset_names("mine") == ["own", "none"]
    assert default_preset("mine") == "own"
    assert preset_datasets("mine", "own", "node") == ["Cora"]


def test_presets_can_differ_by_task(mine):
    for name, task in (("aside", "node"), ("published", "node"), ("other", "link")):
        (mine / name).mkdir(parents=True, exist_ok=True)
        (mine / name / f"{task}.yaml").write_text("all:\n  epochs: 5\n")
    assert preset_names("mine") == ["aside", "other", "published", "none"]
    assert preset_names("mine", "node") == ["aside", "published", "none"]
    assert preset_names("mine", "graph") == preset_names("mine")  # none has it: all set nothing
    assert [default_preset("mine", task) for task in ("node", "link")] == ["published", "other"]
    assert RunConfig.parse({"method": "mine", "task": "link"}).preset == "other"
    with pytest.raises(ConfigError, match=r"the link task \(got 'aside'.*Valid: 'other', 'none'"):
        load_preset("mine", "aside", "link")
    assert load_preset("mine", "none", "link") == load_preset("mine", "other", "graph") == {}
    assert [name for name in canaries("mine") if "graph" not in name] == [
        *("aside node", "published node", "other link"),
    ]


def test_unknown_presets_name_the_nearest():
    with pytest.raises(ConfigError, match=r"a preset of 'geof' \(got 'paperr'\).*mean 'paper'"):
        load_preset("geof", "paperr", "node")
    with pytest.raises(ConfigError, match="Valid: 'none', 'plain'"):
        load_preset("gcn", "paper", "node")


def test_the_preset_none_sets_nothing():
    assert load_preset("geof", "none", "node", "Cora") == {}

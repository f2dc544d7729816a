"""A search: spaces, draws, what is trained and what is never looked at."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna", reason="the extra geof[sweep] is not installed")

from geof.data.formats import from_npz
from geof.errors import ConfigError, StoppedError
from geof.training import NodeTask, Plan
from geof.training import sweep as module
from geof.training.space import Choices, Range, Space
from geof.training.sweep import Subject, Sweep, SweepSettings, best_of
from geof.yaml_options import read_settings

FIXED = {"epochs": 2, "model": {"hidden_channels": 8, "num_layers": 1}}
BASE = Plan.from_tree(FIXED, task="node", encoder="gcn")
MIXED = {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}, "model.num_layers": [1, 2]}


@pytest.fixture(scope="module", autouse=True)
def unsynchronised_databases():
    """Nothing here survives the machine, and waiting for the disk would be most of the time."""
    sqlalchemy = pytest.importorskip("sqlalchemy")

    def relax(connection, record):
        connection.execute("PRAGMA synchronous=OFF")

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", relax)
    yield
    sqlalchemy.event.remove(sqlalchemy.engine.Engine, "connect", relax)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 5)).astype("float32")
    edges = generator.integers(0, 40, (2, 90))
    path = tmp_path_factory.mktemp("data") / "g.npz"
    np.savez(path, x=x, edge_index=edges, y=(x[:, 0] > 0).astype("int64"))
    return from_npz(path)


@pytest.fixture
def subject(data):
    return Subject(data, BASE)


def study(folder, tree, **settings) -> Sweep:
    return Sweep(folder, Space.from_tree(tree, BASE), SweepSettings(**settings))


def search(folder, subject, tree, **settings) -> Sweep:
    sweep = study(folder, tree, **settings)
    sweep.prepare()
    sweep.work(subject)
    return sweep


def points(sweep) -> list[dict]:
    return [dict(trial.values) for trial in sorted(sweep.finished(), key=lambda t: t.number)]


def rows(folder) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_space_is_dotted_or_nested():
    tree = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "model": {"dropout": [0.1]}}
    space = Space.from_tree({**tree, "model.num_layers": {"low": 1, "high": 3}}, BASE)
    assert space.dimensions == {
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "model.dropout": Choices((0.1,)),
        "model.num_layers": Range(1, 3, whole=True),
    }


def test_whole_ends_of_a_real_setting_mean_every_number_between():
    space = Space.from_tree({"model.dropout": {"low": 0, "high": 1}}, BASE)
    assert space.dimensions["model.dropout"] == Range(0, 1, whole=False)
    base = Plan.from_tree({"weight_decay": 0}, task="node", encoder="gcn")
    space = Space.from_tree({"weight_decay": {"low": 0, "high": 1}}, base)
    assert space.dimensions["weight_decay"] == Range(0, 1, whole=False)


def test_the_space_of_the_page_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    (tmp_path / "space.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    space = Space.from_tree(read_settings(tmp_path / "space.yaml"), Plan.from_tree({}, task="node"))
    assert len(space.dimensions) == 6
    assert space.dimensions["model.temperature"] == Range(1, 256, log=True, whole=False)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"learning_rat": [1]}, "'learning_rat' in the space.*Did you mean 'learning_rate'"),
        ({"model": {"num_layer": [1]}}, "Did you mean 'model.num_layers'"),
        ({"model": [1]}, "Unknown setting 'model'"),
        ({"model.dropout.rate": [1]}, "Unknown setting 'model.dropout.rate'"),
        ({"encoder": ["gcn"]}, "Unknown setting 'encoder'"),
        ({"epochs": [0, 1]}, "'epochs' to be an integer >= 1"),
        ({"schedule": ["constant", "cosinus"]}, "Did you mean 'cosine'"),
        ({"learning_rate": {"low": 0, "high": 1}}, "'learning_rate' to be a finite number"),
        ({"epochs": 5}, r"list of values or \{low: ..., high: ...\} for 'epochs'.*epochs=VALUE"),
        ({"epochs": []}, "list of values"),
        ({"epochs": [1, 1]}, "different values"),
        ({"epochs": [{"low": 1}]}, "no sections"),
        ({"learning_rate": [float("nan")]}, "plain finite values"),
        ({"learning_rate": {"low": 1, "hight": 2}}, "Did you mean 'high'"),
        ({"learning_rate": {"low": 1}}, "low <= high"),
        ({"learning_rate": {"low": 2, "high": 1}}, "low <= high"),
        ({"learning_rate": {"low": "a", "high": 1}}, "'low' of 'learning_rate' to be a number"),
        ({"learning_rate": {"low": 1, "high": 2, "log": 1}}, "log: true or false"),
        ({"weight_decay": {"low": 0, "high": 1, "log": True}}, "0 < low"),
        ({"weight_decay": {"low": 0, "high": 1, "step": 0}}, "'step' of 'weight_decay'"),
        ({"epochs": {"low": 1, "high": 2.5}}, "whole numbers for 'epochs'"),
        ({"model": {"dropout": [0.1]}, "model.dropout": [0.2]}, "'model.dropout' once"),
        ({}, "got none"),
    ],
)
def test_a_wrong_space_is_refused(tree, message):
    with pytest.raises(ConfigError, match=message):
        Space.from_tree(tree, BASE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 0}, "'trials'"),
        ({"trials": None}, "'trials' for sampler 'tpe'"),
        ({"splits": ()}, "different 'splits'"),
        ({"splits": ("1", "1")}, "different 'splits'"),
        ({"sampler": "tpee"}, "Did you mean 'tpe'"),
        ({"seed": -1}, "'seed'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SweepSettings(**settings)


def test_a_grid_needs_lists_and_a_folder_a_plain_name(tmp_path):
    with pytest.raises(ConfigError, match="a range for 'learning_rate'"):
        study(tmp_path / "s", MIXED, sampler="grid", trials=None)
    with pytest.raises(ConfigError, match="without '\\?'"):
        study(tmp_path / "what?", MIXED)
    assert not list(tmp_path.iterdir())


def test_a_grid_is_every_point_once(subject, tmp_path):
    tree = {"optimiser": ["adam", "adamw"], "fanouts": [[2, 2], [3, 3]]}
    base = {"batch_size": 8, **FIXED}
    subject = Subject(subject.data, Plan.from_tree(base, task="node", encoder="gcn"))
    sweep = Sweep(
        tmp_path, Space.from_tree(tree, subject.base), SweepSettings(None, sampler="grid")
    )
    for _ in range(2):  # the second time there is nothing left to do
        sweep.prepare()
        sweep.work(subject)
        found = points(sweep)
        assert len(found) == 4
        assert {json.dumps(point) for point in found} == {
            json.dumps({"optimiser": o, "fanouts": f})
            for o in ("adam", "adamw")
            for f in ([2, 2], [3, 3])
        }
    assert len(list((tmp_path / "trials").iterdir())) == 4
    assert [row["state"] for row in rows(tmp_path)] == ["complete"] * 4
    assert {row["fanouts"] for row in rows(tmp_path)} == {"[2, 2]", "[3, 3]"}


def test_a_grid_may_stop_short_and_go_on(subject, tmp_path):
    tree = {"optimiser": ["adam", "adamw"]}
    assert len(points(search(tmp_path, subject, tree, trials=1, sampler="grid"))) == 1
    assert len(points(search(tmp_path, subject, tree, trials=9, sampler="grid"))) == 2


@pytest.mark.parametrize(
    ("sampler", "trials"),
    [
        ("tpe", 3),
        ("random", 3),
        # More than TPE draws at random before it looks at what it found.
        pytest.param("tpe", 14, marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_draws_the_same_over_an_interruption(sampler, trials, subject, tmp_path):
    whole = search(tmp_path / "a", subject, MIXED, trials=trials, sampler=sampler, seed=3)
    broken = search(tmp_path / "b", subject, MIXED, trials=trials - 2, sampler=sampler, seed=3)
    broken.trials = trials
    broken._take(lambda: False)  # a process that draws and dies
    broken._study.ask()  # one that dies before it has drawn everything
    broken = search(tmp_path / "b", subject, MIXED, trials=trials, sampler=sampler, seed=3)
    assert points(broken) == points(whole)
    assert [t.validation for t in broken.finished()] == [t.validation for t in whole.finished()]
    other = search(tmp_path / "c", subject, MIXED, trials=1, sampler=sampler, seed=4)
    assert points(other) != points(whole)[:1]


def test_points_of_dead_processes_are_trained_by_others(subject, tmp_path):
    tree = {"learning_rate": [0.1, 0.01, 0.001]}
    sweep = study(tmp_path, tree, trials=None, sampler="grid")
    sweep.prepare()
    sweep._take(lambda: False)
    sweep._study.ask()  # popped from the queue, its parameters not yet written
    sweep.prepare()
    sweep.work(subject)
    assert sorted(point["learning_rate"] for point in points(sweep)) == [0.001, 0.01, 0.1]
    assert len(rows(tmp_path)) == 3


def test_a_trial_taken_back_is_queued_once(subject, tmp_path, monkeypatch):
    sweep = study(tmp_path, MIXED, trials=2)
    first = sweep._take(lambda: False)
    with monkeypatch.context() as patch:  # killed between its two steps
        patch.setattr(sweep._study, "tell", lambda *a, **k: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            sweep.prepare()
    sweep.prepare()
    sweep.work(subject)
    assert len(points(sweep)) == 2
    assert points(sweep)[0] == sweep.space.values(first.params)
    assert len({trial.folder for trial in sweep.finished()}) == 2


def test_equal_settings_are_trained_once(subject, tmp_path, monkeypatch):
    calls = []
    real = module.run_experiment
    monkeypatch.setattr(
        module, "run_experiment", lambda run, out, watch: calls.append(out) or real(run, out=out)
    )
    tree = {"learning_rate": [0.01, 1e30]}  # the second is no good
    sweep = search(tmp_path, subject, tree, trials=5, sampler="random")
    finished = sweep.finished()
    good = [t for t in finished if t.error is None]
    bad = [t for t in finished if t.error is not None]
    assert len(good) > 1
    assert len(bad) > 1
    assert len({t.validation for t in good}) == len({t.error for t in bad}) == 1
    folders = {t.folder for t in finished}
    assert len(folders) == 2
    assert calls.count(tmp_path / "trials" / bad[0].folder / "split-0") == 1
    lines = tmp_path / "trials" / good[0].folder / "split-0" / "metrics.jsonl"
    assert len(lines.read_text().splitlines()) == 2


def test_the_value_is_the_mean_over_splits_each_with_its_own_seed(subject, tmp_path):
    sweep = search(tmp_path, subject, {"learning_rate": [0.1]}, trials=1, splits=("0", "3"))
    (trial,) = sweep.finished()
    folder = tmp_path / "trials" / trial.folder
    results = [json.loads((folder / f"split-{n}" / "result.json").read_text()) for n in (0, 3)]
    assert [result["seed"] for result in results] == [0, 3]
    assert trial.validation == pytest.approx(sum(r["validation"] for r in results) / 2)
    assert len({result["split_hash"] for result in results}) == 2
    assert float(rows(tmp_path)[0]["validation_split_3"]) == results[1]["validation"]


def test_a_seed_of_your_own_is_kept(data, tmp_path):
    base = Plan.from_tree({**FIXED, "seed": 7}, task="node", encoder="gcn")
    search(
        tmp_path, Subject(data, base, own_seed=True), {"clip": [1.0]}, trials=1, splits=("0", "1")
    )
    found = [json.loads(p.read_text())["seed"] for p in tmp_path.glob("trials/*/*/result.json")]
    assert found == [7, 7]


def test_the_test_part_is_never_read(subject, tmp_path, monkeypatch):
    parts = []
    real = NodeTask.evaluate
    monkeypatch.setattr(
        NodeTask, "evaluate", lambda self, net, part: parts.append(part) or real(self, net, part)
    )
    search(tmp_path, subject, {"learning_rate": [0.1, 0.01]}, trials=2, sampler="grid")
    assert set(parts) == {"validation"}
    results = [json.loads(p.read_text()) for p in tmp_path.glob("trials/*/*/result.json")]
    assert [(r["test"], r["metrics"]) for r in results] == [(None, {})] * 2


def test_a_failed_trial_is_recorded_and_passed_over(subject, tmp_path):
    tree = {"learning_rate": [1e30, 0.01], "model.hidden_channels": [8, "wide"]}
    sweep = search(tmp_path, subject, tree, trials=None, sampler="grid")
    states = [(row["learning_rate"], row["state"], row["validation"]) for row in rows(tmp_path)]
    assert [state for _, state, _ in states] == ["failed", "failed", "complete", "failed"]
    assert states[0][2] == ""
    assert "finite" in rows(tmp_path)[0]["error"]
    assert "\n" not in rows(tmp_path)[1]["error"]
    assert best_of(sweep.finished()).number == 2


def test_a_stop_leaves_a_trial_to_go_on_with(subject, tmp_path):
    asked = iter([False, True, True])
    sweep = study(tmp_path, MIXED, trials=2)
    with pytest.raises(StoppedError, match="after epoch 1"):
        sweep.work(subject, should_stop=lambda: next(asked))
    assert not sweep.finished()
    with pytest.raises(StoppedError, match="between trials"):
        sweep.work(subject, should_stop=lambda: True)
    assert len(points(search(tmp_path, subject, MIXED, trials=2))) == 2
    assert len(list((tmp_path / "trials").iterdir())) == 2


def test_another_process_with_the_same_settings_is_waited_for(subject, tmp_path):
    tree = {"learning_rate": [0.1]}
    name = module._hash_of(subject.plan({"learning_rate": 0.1}, "0"))
    asked = iter([False, True])
    with (
        module._alone(tmp_path / "trials" / name, lambda: True),
        pytest.raises(StoppedError, match="another process"),
    ):
        study(tmp_path, tree, trials=1).work(subject, should_stop=lambda: next(asked))


def test_tasks_are_kept_from_trial_to_trial(subject, tmp_path, monkeypatch):
    built = []
    real = Plan.build_task
    monkeypatch.setattr(
        Plan, "build_task", lambda self, *a: built.append(self.split) or real(self, *a)
    )
    tree = {"learning_rate": [0.1, 0.01]}
    search(tmp_path, subject, tree, trials=2, splits=("0", "1"), sampler="grid")
    assert sorted(built) == ["0", "1"]


def test_optuna_is_asked_for_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'geof\[sweep\]'"):
        study(tmp_path / "s", MIXED)
    assert not (tmp_path / "s").exists()

"""A search: spaces, draws, what is trained and what is never looked at."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna", reason="the extra geof[sweep] is not installed")

from geof.data.formats import from_npz
from geof.data.sources import Loaded
from geof.errors import ConfigError, DataError, StoppedError
from geof.executor import Outcome, WorkerLostError
from geof.io import read_yaml
from geof.training import NodeTask, RunConfig, Trainer, trials
from geof.training.run_folder import locked
from geof.training.sweep import Sweep, _hash_of, best_of
from geof.training.trials import (
    Choices,
    Range,
    Runner,
    Space,
    SweepConfig,
    TrialTrainer,
    laid_over,
)

FIXED = {
    "method": "gcn",
    "preset": "none",
    "epochs": 2,
    "options": {"hidden_channels": 8, "num_layers": 1},
}
BASE = RunConfig.parse(FIXED)
MIXED = {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}, "options.num_layers": [1, 2]}


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
def trainer(data):
    runner = Runner(tasks=2)
    runner.keep(BASE, Loaded(data))
    return TrialTrainer(runner)


def test_the_base_comes_first_and_later_trials_lie_near_the_best(tmp_path, trainer):
    tree = {
        "learning_rate": [0.001, 0.003, 0.01, 0.03],
        "weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
        "options.dropout": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
        **{f"readout.{name}": [0.0, 0.1, 0.2, 0.3, 0.4] for name in ("dropout",)},
        "clip": [None, 1.0, 2.0],
        "warmup": [0, 1, 2, 3],
        "edge_dropout": [None, 0.1, 0.2],
    }
    found = search(tmp_path, trainer, tree, sampler="near", try_base=True, trials=8)
    rows = sorted(found.finished(), key=lambda trial: trial.number)
    own = found.space.values(found.space.point_of(found.base))
    assert rows[0].values == own
    changes = []
    for number, row in enumerate(rows[1:], start=1):
        best = best_of(rows[:number])
        changes.append(sum(row.values[key] != value for key, value in best.values.items()))
    assert max(changes) < len(tree)
    assert min(changes) > 0
    assert sum(changes) / len(changes) <= 6
    again = search(tmp_path / "again", trainer, tree, sampler="near", try_base=True, trials=8)
    assert [t.values for t in again.finished()] == [t.values for t in found.finished()]


def test_near_the_best_not_all_of_a_few_options_change(tmp_path, trainer):
    few = {"learning_rate": [0.01, 0.02, 0.03], "clip": [None, 1.0, 2.0], "warmup": [0, 1, 2]}
    found = search(tmp_path, trainer, few, sampler="near", try_base=True, trials=9)
    rows = sorted(found.finished(), key=lambda trial: trial.number)
    changes = []
    for number, row in enumerate(rows[1:], start=1):
        best = best_of(rows[:number])
        changes.append(sum(row.values[key] != value for key, value in best.values.items()))
    assert sum(changes) / len(changes) <= 2


def test_a_base_outside_the_space_cannot_be_tried(tmp_path, trainer):
    with pytest.raises(ConfigError, match=r"own 'learning_rate', .*among the values"):
        search(tmp_path, trainer, {"learning_rate": [0.5, 0.7]}, try_base=True, trials=2)
    with pytest.raises(ConfigError, match="Expected 'try_base' with sampler 'near'"):
        SweepConfig(sampler="near")


@pytest.mark.parametrize(
    "change", [{"class_weights": "balanced"}, {"metric": "macro_f1"}, {"edge_dropout": 0.5}]
)
def test_runs_share_a_task_only_where_it_is_the_same(data, change):
    runner = Runner(tasks=2)
    runner.keep(BASE, Loaded(data))
    other = replace(BASE, training=replace(BASE.training, **change))
    rate = replace(BASE, training=replace(BASE.training, learning_rate=0.5))
    assert runner.task(rate) is runner.task(BASE)
    assert runner.task(other) is not runner.task(BASE)


def study(folder, tree, base=BASE, **config) -> Sweep:
    return Sweep(folder, base, Space.from_tree(tree, base), SweepConfig(**config))


def search(folder, trainer, tree, base=BASE, **config) -> Sweep:
    sweep = study(folder, tree, base, **config)
    sweep.run(trainer)
    return sweep


def points(sweep) -> list[dict]:
    return [dict(trial.values) for trial in sorted(sweep.finished(), key=lambda t: t.number)]


def rows(folder) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_space_is_dotted_or_nested():
    rates = {"low": 1e-4, "high": 1e-2, "log": True}
    tree = {"learning_rate": rates, "options": {"dropout": [0.1]}, "pretraining.epochs": [0]}
    space = Space.from_tree({**tree, "options.num_layers": {"low": 1, "high": 3}}, BASE)
    assert space.dimensions == {
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "options.dropout": Choices((0.1,)),
        "pretraining.epochs": Choices((0,)),
        "options.num_layers": Range(1, 3, whole=True),
    }


def test_what_options_were_called_before_is_understood_and_kept():
    space = Space.from_tree({"model": {"dropout": [0.1]}, "model.num_layers": [3]}, BASE)
    assert list(space.dimensions) == ["model.dropout", "model.num_layers"]
    config = laid_over(BASE, {"model.dropout": 0.1, "model.num_layers": 3}, "4")
    assert (config.options["dropout"], config.options["num_layers"]) == (0.1, 3)
    assert (config.split, config.seed, config.training.seed) == ("4", 4, None)


def test_laid_over_nothing_a_config_stays_what_it_is(tmp_path):
    (tmp_path / "g.npz").touch()
    about = {"data": {"npz": tmp_path / "g.npz"}, "split": "3", "readout": {"dropout": 0.5}}
    base = RunConfig.parse(FIXED, {**about, "batch_size": 8, "fanouts": [2, 3]})
    assert laid_over(base, {}, "3") == base


def test_whole_ends_of_a_real_option_mean_every_number_between():
    space = Space.from_tree({"pretraining.weight_decay": {"low": 0, "high": 1}}, BASE)
    assert space.dimensions["pretraining.weight_decay"] == Range(0, 1, whole=False)
    base = RunConfig.parse(FIXED, {"weight_decay": 0})
    space = Space.from_tree({"weight_decay": {"low": 0, "high": 1}}, base)
    assert space.dimensions["weight_decay"] == Range(0, 1, whole=False)


def test_the_space_of_the_page_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    (tmp_path / "space.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    space = Space.from_tree(read_yaml(tmp_path / "space.yaml"), RunConfig())
    assert len(space.dimensions) == 6
    assert space.dimensions["options.temperature"] == Range(1, 256, log=True, whole=False)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"learning_rat": [1]}, "'learning_rat' in the space.*Did you mean 'learning_rate'"),
        ({"options": {"num_layer": [1]}}, "Did you mean 'options.num_layers'"),
        ({"options": [1]}, "Unknown option 'options'"),
        ({"options.dropout.rate": [1]}, "Unknown option 'options.dropout.rate'"),
        ({"encoder": ["gcn"]}, "Unknown option 'encoder'"),
        ({"method": ["gcn"]}, "Unknown option 'method'"),
        ({"split": ["1"]}, "Unknown option 'split'"),
        ({"data.label": ["y"]}, "Unknown option 'data.label'"),
        ({"options.hidden_channels": [8, "wide"]}, "'options.hidden_channels' to be an integer"),
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
        ({"options": {"dropout": [0.1]}, "options.dropout": [0.2]}, "'options.dropout' once"),
        ({"options.dropout": [0.1], "model.dropout": [0.2]}, "'model.dropout' once"),
        ({}, "got none"),
    ],
)
def test_a_wrong_space_is_refused(tree, message):
    with pytest.raises(ConfigError, match=message):
        Space.from_tree(tree, BASE)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"trials": 0}, "'trials'"),
        ({"trials": None}, "'trials' for sampler 'tpe'"),
        ({"splits": ()}, "different 'splits'"),
        ({"splits": ("1", "1")}, "different 'splits'"),
        ({"sampler": "tpee"}, "Did you mean 'tpe'"),
        ({"seed": -1}, "'seed'"),
    ],
)
def test_a_wrong_config_of_a_search_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        SweepConfig(**config)


def test_a_grid_needs_lists_and_a_folder_a_plain_name(tmp_path):
    with pytest.raises(ConfigError, match="a range for 'learning_rate'"):
        study(tmp_path / "s", MIXED, sampler="grid", trials=None)
    with pytest.raises(ConfigError, match="without '\\?'"):
        study(tmp_path / "what?", MIXED)
    assert not list(tmp_path.iterdir())


def test_a_grid_is_every_point_once(trainer, tmp_path):
    tree = {"optimiser": ["adam", "adamw"], "fanouts": [[2, 2], [3, 3]]}
    base = RunConfig.parse(FIXED, {"batch_size": 8})
    sweep = study(tmp_path, tree, base, trials=None, sampler="grid")
    for _ in range(2):  # the second time there is nothing left to do
        sweep.run(trainer)
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


def test_a_grid_may_stop_short_and_go_on(trainer, tmp_path):
    tree = {"optimiser": ["adam", "adamw"]}
    assert len(points(search(tmp_path, trainer, tree, trials=1, sampler="grid"))) == 1
    assert len(points(search(tmp_path, trainer, tree, trials=9, sampler="grid"))) == 2


@pytest.mark.parametrize(
    ("sampler", "trials"),
    [
        ("tpe", 3),
        ("random", 3),
        # More than TPE draws at random before it looks at what it found.
        pytest.param("tpe", 14, marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_draws_the_same_over_an_interruption(sampler, trials, trainer, tmp_path):
    whole = search(tmp_path / "a", trainer, MIXED, trials=trials, sampler=sampler, seed=3)
    broken = search(tmp_path / "b", trainer, MIXED, trials=trials - 2, sampler=sampler, seed=3)
    broken.trials = trials
    broken._draw()  # a process that draws and dies
    broken._study.ask()  # one that dies before it has drawn everything
    broken = search(tmp_path / "b", trainer, MIXED, trials=trials, sampler=sampler, seed=3)
    assert points(broken) == points(whole)
    assert [t.validation for t in broken.finished()] == [t.validation for t in whole.finished()]
    other = search(tmp_path / "c", trainer, MIXED, trials=1, sampler=sampler, seed=4)
    assert points(other) != points(whole)[:1]


def test_points_of_dead_processes_are_trained_by_others(trainer, tmp_path):
    tree = {"learning_rate": [0.1, 0.01, 0.001]}
    sweep = study(tmp_path, tree, trials=None, sampler="grid")
    sweep._prepare()
    sweep._draw()
    sweep._study.ask()  # popped from the queue, its parameters not yet written
    sweep.run(trainer)
    assert sorted(point["learning_rate"] for point in points(sweep)) == [0.001, 0.01, 0.1]
    assert len(rows(tmp_path)) == 3


def test_a_trial_taken_back_is_queued_once(trainer, tmp_path, monkeypatch):
    sweep = study(tmp_path, MIXED, trials=2)
    first = sweep._draw()
    with monkeypatch.context() as patch:  # killed between its two steps
        patch.setattr(sweep._study, "tell", lambda *a, **k: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            sweep.run(trainer)
    sweep.run(trainer)
    assert len(points(sweep)) == 2
    assert points(sweep)[0] == sweep.space.values(first.params)
    assert len({trial.folder for trial in sweep.finished()}) == 2


def test_equal_options_are_trained_once(trainer, tmp_path, monkeypatch):
    calls = []
    real = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda self: calls.append(self.out) or real(self))
    tree = {"learning_rate": [0.01, 1e30]}  # the second is no good
    sweep = search(tmp_path, trainer, tree, trials=5, sampler="random")
    finished = sweep.finished()
    good = [t for t in finished if t.error is None]
    bad = [t for t in finished if t.error is not None]
    assert len(good) > 1
    assert len(bad) > 1
    assert len({t.validation for t in good}) == len({t.error for t in bad}) == 1
    folders = {t.folder for t in finished}
    assert len(folders) == 2
    assert sorted(calls) == sorted(tmp_path / "trials" / name / "split-0" for name in folders)
    lines = tmp_path / "trials" / good[0].folder / "split-0" / "metrics.jsonl"
    assert len(lines.read_text().splitlines()) == 2


def test_the_value_is_the_mean_over_splits_each_with_its_own_seed(trainer, tmp_path):
    sweep = search(tmp_path, trainer, {"learning_rate": [0.1]}, trials=1, splits=("0", "3"))
    (trial,) = sweep.finished()
    folder = tmp_path / "trials" / trial.folder
    results = [json.loads((folder / f"split-{n}" / "result.json").read_text()) for n in (0, 3)]
    assert [result["seed"] for result in results] == [0, 3]
    assert trial.validation == pytest.approx(sum(r["validation"] for r in results) / 2)
    assert len({result["split_hash"] for result in results}) == 2
    assert float(rows(tmp_path)[0]["validation_split_3"]) == results[1]["validation"]


def test_a_seed_of_your_own_is_kept(trainer, tmp_path):
    base = RunConfig.parse(FIXED, {"seed": 7})
    search(tmp_path, trainer, {"clip": [1.0]}, base, trials=1, splits=("0", "1"))
    found = [json.loads(p.read_text())["seed"] for p in tmp_path.glob("trials/*/*/result.json")]
    assert found == [7, 7]


def test_the_test_part_is_never_read(trainer, tmp_path, monkeypatch):
    parts = []
    real = NodeTask.evaluate
    monkeypatch.setattr(
        NodeTask,
        "evaluate",
        lambda self, net, part, **how: parts.append(part) or real(self, net, part, **how),
    )
    search(tmp_path, trainer, {"learning_rate": [0.1, 0.01]}, trials=2, sampler="grid")
    assert set(parts) == {"validation"}
    results = [json.loads(p.read_text()) for p in tmp_path.glob("trials/*/*/result.json")]
    assert [(r["test"], r["metrics"]) for r in results] == [(None, {})] * 2


def test_a_failed_trial_is_recorded_and_passed_over(trainer, tmp_path):
    tree = {"learning_rate": [1e30, 0.01], "pretraining.epochs": [0, 1]}  # a GCN has no such stage
    sweep = search(tmp_path, trainer, tree, trials=None, sampler="grid")
    states = [(row["learning_rate"], row["state"], row["validation"]) for row in rows(tmp_path)]
    assert [state for _, state, _ in states] == ["failed", "failed", "complete", "failed"]
    assert states[0][2] == ""
    assert "finite" in rows(tmp_path)[0]["error"]
    assert "\n" not in rows(tmp_path)[1]["error"]
    assert best_of(sweep.finished()).number == 2


def test_options_that_do_not_fit_together_fail_their_trial_alone(trainer, tmp_path):
    tree = {"batch_size": [8, None], "fanouts": [None, [2, 2]]}
    sweep = search(tmp_path, trainer, tree, trials=None, sampler="grid")
    errors = {str(t.values): t.error for t in sweep.finished()}
    assert "Expected 'batch_size' beside 'fanouts'" in errors.pop(
        str({"batch_size": None, "fanouts": [2, 2]})
    )
    assert len(errors) == 3
    assert sum(error is None for error in errors.values()) == 2
    assert [row["folder"] == "" for row in rows(tmp_path)].count(True) == 1


def test_a_stop_leaves_a_trial_to_go_on_with(trainer, tmp_path):
    asked = iter([False, True, True])
    sweep = study(tmp_path, MIXED, trials=2)
    with pytest.raises(StoppedError, match="after epoch 1"):
        sweep.run(trainer, should_stop=lambda: next(asked))
    assert not sweep.finished()
    with pytest.raises(StoppedError, match="between trials"):
        sweep.run(trainer, should_stop=lambda: True)
    assert len(points(search(tmp_path, trainer, MIXED, trials=2))) == 2
    assert len(list((tmp_path / "trials").iterdir())) == 2
    sweep.run(trainer, should_stop=lambda: True)  # there is nothing left to be stopped


def test_a_process_still_at_work_on_a_trial_is_waited_for(trainer, tmp_path, monkeypatch):
    tree = {"learning_rate": [0.1]}
    runner = trainer.runner
    runner.patience = float("inf")
    name = _hash_of(laid_over(study(tmp_path, tree).base, {"learning_rate": 0.1}, "0"))
    asked = iter([False, True])
    folder = tmp_path / "trials" / name / "split-0"
    with locked(folder), pytest.raises(StoppedError, match="another process"):
        study(tmp_path, tree, trials=1).run(trainer, should_stop=lambda: next(asked))
    held = locked(folder)
    held.__enter__()
    waits = []
    monkeypatch.setattr(
        trials.time, "sleep", lambda seconds: waits.append(held.__exit__(None, None, None))
    )
    sweep = search(tmp_path, trainer, tree, trials=1)
    assert len(waits) == 1
    assert sweep.finished()[0].validation is not None


def test_tasks_are_kept_from_trial_to_trial(trainer, tmp_path, monkeypatch):
    built = []
    real = trials.build_task
    monkeypatch.setattr(
        trials, "build_task", lambda config, data: built.append(config.split) or real(config, data)
    )
    tree = {"learning_rate": [0.1, 0.01]}
    search(tmp_path, trainer, tree, trials=2, splits=("0", "1"), sampler="grid")
    assert sorted(built) == ["0", "1"]


class Several:
    """An executor that has everything in flight before anything ends, the last one first."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def run(self, function, jobs, *, should_stop=lambda: False):
        drawn = list(jobs)
        for job in reversed(drawn):
            error = self.errors.pop(0) if self.errors else None
            yield job, Outcome(None if error else {"0": float(len(drawn))}, error)


def test_points_drawn_twice_while_they_train_are_trained_once(trainer, tmp_path):
    sweep = study(tmp_path, {"learning_rate": [0.1, 0.01]}, trials=6, sampler="random")
    told = []
    sweep.run(trainer, executor=Several(), on_trial=lambda: told.append(len(sweep.finished())))
    finished = sweep.finished()
    assert told == [1, 2, 3, 4, 5, 6]
    assert {t.validation for t in finished} == {2.0}  # two jobs for six trials
    assert len({t.folder for t in finished}) == 2


def test_a_lost_worker_fails_its_trial_and_the_search_goes_on(trainer, tmp_path):
    tree = {"learning_rate": [0.1, 0.01]}
    sweep = study(tmp_path, tree, trials=None, sampler="grid")
    sweep.run(trainer, executor=Several(WorkerLostError("Its process was killed.")))
    assert [row["error"] for row in rows(tmp_path)] == ["", "Its process was killed."]


def test_what_no_options_would_mend_ends_the_search_and_not_the_trial(trainer, tmp_path):
    tree = {"learning_rate": [0.1, 0.01, 0.001]}
    sweep = study(tmp_path, tree, trials=None, sampler="grid")
    several = Several(StoppedError("Stopped."), DataError("The disk is full."))
    with pytest.raises(DataError, match="disk is full"):
        sweep.run(trainer, executor=several)
    assert len(sweep.finished()) == 1
    with pytest.raises(StoppedError, match="state of every trial is saved"):
        sweep.run(trainer, executor=Several(StoppedError("a"), StoppedError("b")))
    sweep.run(trainer)
    assert sorted(point["learning_rate"] for point in points(sweep)) == [0.001, 0.01, 0.1]


def test_other_data_than_at_the_start_end_the_search(trainer, tmp_path):
    trainer.content_hash = "other"
    with pytest.raises(DataError, match="'g' has changed"):
        search(tmp_path, trainer, MIXED, trials=1)


def test_optuna_is_asked_for_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'geof\[sweep\]'"):
        study(tmp_path / "s", MIXED)
    assert not (tmp_path / "s").exists()

"""A run that is killed anywhere and started again ends with the bits of one that was not."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from geof.data.sources import DataConfig
from geof.errors import ConfigError, DataError, FolderLockedError, StoppedError
from geof.training import Network, TrainingConfig, Watch, trainer
from geof.training.checkpoint import CURRENT, PREVIOUS
from geof.training.predict import Run
from geof.training.run_folder import LOCK
from tests.training.toys import FRAGILE, fit, graph_task, link_task, node_task

SETTINGS = TrainingConfig(
    epochs=4,
    schedule="cosine",
    warmup=2,
    clip=0.5,
    learning_rate=0.02,
    weight_averaging=0.6,
)
SAMPLED = TrainingConfig(batch_size=12, fanouts=(2, 2))
KINDS = {
    "node": node_task,
    "link": link_task,
    "graph": lambda: graph_task(training=TrainingConfig(batch_size=9, edge_dropout=0.3)),
    "node, sampled": lambda: node_task(training=SAMPLED),
    "link, sampled": lambda: link_task(training=TrainingConfig(batch_size=30, fanouts=(2, 2))),
}
EVERY_EPOCH, EVERY_STEP, NEVER = 0.0, 0.0, 1e9


class Killed(BaseException):
    """What no part of the program may catch and live."""


class Machine:
    """Counts a process's deeds, writing files and moving weights; dies before a chosen one."""

    def __init__(self, monkeypatch):
        self.last, self.deeds = None, []
        self._count(monkeypatch, os, "fsync", lambda handle: None)  # slow, and nothing to see
        for owner, name in (
            (os, "replace"),
            (secrets, "token_hex"),  # the name of a file about to be written
            (Path, "unlink"),
            (torch.optim.Adam, "step"),
        ):
            self._count(monkeypatch, owner, name, getattr(owner, name))

    def _count(self, monkeypatch, owner, name, action):
        def counted(*arguments, **options):
            self.deed(name)
            return action(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    def deed(self, name):
        # The dead do nothing, cleaning up included.
        if self.last is not None and len(self.deeds) >= self.last:
            raise Killed
        self.deeds.append(name)

    def run(
        self,
        task,
        out,
        last=None,
        save_seconds=EVERY_EPOCH,
        settings=SETTINGS,
        step_seconds=NEVER,
    ):
        """Train until the end or the last deed; return whether it was the end."""
        self.last, self.deeds = last, []
        watch = Watch(
            should_stop=lambda: self.deed("should_stop"),
            on_epoch=lambda report: self.deed("on_epoch"),
            save_seconds=save_seconds,
            step_seconds=step_seconds,
        )
        try:
            fit(task, settings, options=FRAGILE, out=out, watch=watch)
        except Killed:
            return False
        return True


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def remains(out: Path) -> dict[str, object]:
    """What a finished run leaves, apart from how long it took and how much memory."""
    result = json.loads((out / "result.json").read_text())
    del result["seconds_per_epoch"], result["peak_rss_bytes"]
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    contents = {name: (out / name).read_bytes() for name in names - {"result.json"}}
    return {**contents, "result.json": result}


def tear(out: Path, draw: random.Random) -> None:
    """Leave the last line of the metrics half written."""
    path = out / "metrics.jsonl"
    if path.exists():
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - draw.randrange(20)])


@pytest.mark.parametrize(
    ("kind", "moments"),
    # Batches of graphs and of samples have the most to remember; see also tests/cli/test_kill.py.
    [(kind, 6) for kind in ("graph", "node, sampled")]
    + [pytest.param(kind, 20, marks=pytest.mark.slow) for kind in KINDS],
)
def test_random_kills_leave_no_trace(kind, moments, machine, tmp_path):
    task, draw = KINDS[kind](), random.Random(kind)
    assert machine.run(task, tmp_path / "whole", save_seconds=NEVER)
    whole = remains(tmp_path / "whole")
    assert machine.run(task, tmp_path / "watched")
    total = len(machine.deeds)
    kills = runs = 0
    while kills < moments:
        out = tmp_path / str(runs)
        while not machine.run(
            task,
            out,
            last=draw.randrange(total),
            save_seconds=draw.choice([EVERY_EPOCH, NEVER]),
            step_seconds=draw.choice([EVERY_STEP, NEVER]),
        ):
            kills += 1
            if not (out / "result.json").exists():
                tear(out, draw)
        assert remains(out) == whole
        runs += 1


def test_a_kill_at_every_rename(machine, tmp_path):
    """Among them the moments between the two renames of a state, where only the older is there."""
    task, settings, only_previous = node_task(), replace(SETTINGS, epochs=3), 0
    assert machine.run(task, tmp_path / "whole", settings=settings)
    whole = remains(tmp_path / "whole")
    for last in [i for i, name in enumerate(machine.deeds) if name == "replace"]:
        out = tmp_path / str(last)
        assert not machine.run(task, out, last=last, settings=settings)
        only_previous += (out / PREVIOUS).exists() and not (out / CURRENT).exists()
        assert machine.run(task, out, settings=settings)
        assert remains(out) == whole
    assert only_previous == 2  # the first save has no predecessor


def test_half_written_files_of_a_killed_run_are_swept_away(machine, tmp_path):
    task = node_task()
    assert not machine.run(task, tmp_path, last=30)
    assert [path for path in tmp_path.glob(".*") if path.name != LOCK]
    assert machine.run(task, tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == [LOCK]


def stopped_after(epochs: int, task, out: Path, settings=SETTINGS, **more) -> None:
    seen: list[int] = []
    watch = Watch(
        on_epoch=lambda report: seen.append(report.epoch),
        should_stop=lambda: len(seen) >= epochs,
        save_seconds=EVERY_EPOCH,
    )
    with pytest.raises(StoppedError, match=f"Stopped after epoch {epochs}; the state is saved in"):
        fit(task, settings, options=FRAGILE, out=out, watch=watch, **more)


def finished(task, out: Path, settings=SETTINGS, **more) -> tuple[dict[str, object], list[str]]:
    notes: list[str] = []
    options = {"options": FRAGILE, **more}
    fit(task, settings, out=out, watch=Watch(on_note=notes.append), **options)
    return remains(out), notes


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return finished(node_task(), tmp_path_factory.mktemp("whole"))[0]


def test_a_stopped_run_goes_on(whole, tmp_path):
    stopped_after(2, node_task(), tmp_path)
    Run.open(tmp_path)  # it can be used as it is
    assert not (tmp_path / "result.json").exists()
    remaining, notes = finished(node_task(), tmp_path)
    assert remaining == whole
    assert "Going on after epoch 2." in notes


@pytest.mark.parametrize("kind", ["graph", "node, sampled"])
def test_a_long_epoch_is_stopped_and_gone_on_with_between_its_steps(kind, monkeypatch, tmp_path):
    whole = finished(KINDS[kind](), tmp_path / "whole")[0]
    monkeypatch.setattr(trainer, "LONG_EPOCH", 0.0)
    steps: list[tuple[int, int]] = []
    watch = Watch(
        on_step=lambda epoch, step: steps.append((epoch, step)),
        should_stop=lambda: steps[-1] == (2, 1),
    )
    with pytest.raises(StoppedError, match=r"within epoch 2, after 1 of \d+ steps; the state is"):
        fit(KINDS[kind](), SETTINGS, options=FRAGILE, out=tmp_path / "run", watch=watch)
    remaining, notes = finished(KINDS[kind](), tmp_path / "run")
    assert "Going on within epoch 2, after step 1." in notes
    assert remaining == whole


@pytest.mark.parametrize("harm", ["bit", "cut", "emptied"])
def test_a_damaged_state_is_named_and_the_one_before_used(harm, whole, tmp_path):
    task = node_task()
    stopped_after(3, task, tmp_path)
    damage(tmp_path / CURRENT, harm)
    remaining, notes = finished(task, tmp_path)
    assert remaining == whole
    assert any(CURRENT in note and "Expected" in note for note in notes)
    assert any(f"Going on from '{PREVIOUS}'" in note for note in notes)
    assert "Going on after epoch 2." in notes


@pytest.mark.parametrize("harm", ["bit", "cut"])
def test_without_a_sound_state_nothing_is_pretended(harm, tmp_path):
    task = node_task()
    stopped_after(3, task, tmp_path)
    for name in (CURRENT, PREVIOUS):
        damage(tmp_path / name, harm)
    with pytest.raises(DataError, match="Expected a sound training state") as caught:
        fit(task, SETTINGS, options=FRAGILE, out=tmp_path)
    assert CURRENT in str(caught.value)
    assert PREVIOUS in str(caught.value)
    assert not (tmp_path / "result.json").exists()


def test_a_damaged_state_never_takes_the_sound_ones_place(machine, whole, tmp_path):
    """Killed at the renames that follow a rescue, between the two of a save among them."""
    task, harmed = node_task(), tmp_path / "harmed"
    stopped_after(2, task, harmed)
    damage(harmed / CURRENT, "bit")
    shutil.copytree(harmed, tmp_path / "whole")
    assert machine.run(task, tmp_path / "whole")
    for last in [i for i, name in enumerate(machine.deeds) if name == "replace"]:
        out = shutil.copytree(harmed, tmp_path / str(last))
        assert not machine.run(task, out, last=last)
        assert machine.run(task, out)
        assert remains(out) == whole


def damage(path: Path, harm: str) -> None:
    content = bytearray(path.read_bytes())
    if harm == "bit":
        content[-100] ^= 4
    else:
        del content[len(content) // 2 if harm == "cut" else 0 :]
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_not_opened(tmp_path):
    finished(node_task(), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    sound = path.read_bytes()
    for harm in ("bit", "cut"):
        path.write_bytes(sound)
        damage(path, harm)
        with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
            Run.open(tmp_path)
        with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
            fit(node_task(), SETTINGS, options=FRAGILE, out=tmp_path)


def test_one_folder_one_run(whole, tmp_path):
    task, inside, go_on = node_task(), threading.Event(), threading.Event()

    def wait(report) -> None:
        inside.set()
        assert go_on.wait(30)

    def first() -> None:
        torch.set_num_threads(1)  # a thread has a number of its own
        fit(task, SETTINGS, options=FRAGILE, out=tmp_path, watch=Watch(on_epoch=wait))

    other = threading.Thread(target=first)
    other.start()
    try:
        assert inside.wait(30)
        with pytest.raises(FolderLockedError, match="another run is at work there"):
            fit(node_task(), SETTINGS, options=FRAGILE, out=tmp_path)
    finally:
        go_on.set()
        other.join()
    assert json.loads((tmp_path / "result.json").read_text())["epochs"] == SETTINGS.epochs


def test_the_lock_goes_with_the_run(machine, whole, tmp_path):
    assert not machine.run(node_task(), tmp_path, last=20)
    assert machine.run(node_task(), tmp_path)
    assert remains(tmp_path) == whole


def test_changed_settings_are_named(tmp_path):
    task = node_task()
    stopped_after(2, task, tmp_path)
    config = (tmp_path / "config.json").read_bytes()
    changed = replace(SETTINGS, learning_rate=0.005, clip=None)
    with pytest.raises(ConfigError, match=r"training\.clip: 0\.5 there, None now") as caught:
        fit(task, changed, options=FRAGILE, out=tmp_path)
    assert "training.learning_rate: 0.02 there, 0.005 now" in str(caught.value)
    assert "--allow-changes" in str(caught.value)
    assert (tmp_path / "config.json").read_bytes() == config
    assert not (tmp_path / "result.json").exists()
    remaining, notes = finished(task, tmp_path, changed, allow_changes=True)
    assert any("training.learning_rate" in note for note in notes)
    config = json.loads(remaining["config.json"])
    assert config["run"]["training"]["learning_rate"] == 0.005
    assert config["changes"] == [
        {"training.clip": [0.5, None], "training.learning_rate": [0.02, 0.005]}
    ]
    rates = [json.loads(line)["learning_rate"] for line in remaining["metrics.jsonl"].splitlines()]
    assert rates == [SETTINGS.learning_rate_at(e) for e in (1, 2)] + [
        changed.learning_rate_at(e) for e in (3, 4)
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"options": {**FRAGILE, "dropout": 0.1}}, "options.dropout: 0.3 there, 0.1 now"),
        ({"readout": {"dropout": 0.5}}, "readout.dropout"),
        ({"method": "gcn", "options": {"hidden_channels": 8}}, "method: geof there, gcn now"),
        ({"preset": "tuned"}, "preset: none there, tuned now"),
        ({"read_test": False}, "read_test"),
    ],
)
def test_what_makes_another_run_is_never_accepted(change, named, tmp_path):
    stopped_after(2, node_task(), tmp_path)
    config = (tmp_path / "config.json").read_bytes()
    for allow in (False, True):
        with pytest.raises(ConfigError, match="name another folder") as caught:
            finished(node_task(), tmp_path, allow_changes=allow, **change)
        assert named in str(caught.value)
        assert "--allow-changes" not in str(caught.value)
    assert (tmp_path / "config.json").read_bytes() == config


def test_other_data_are_another_run(tmp_path):
    task = node_task()
    task.data = replace(task.data, content_hash="a")
    stopped_after(2, task, tmp_path)
    task.data = replace(task.data, content_hash="b")
    with pytest.raises(ConfigError, match="content_hash: a there, b now"):
        finished(task, tmp_path, allow_changes=True)


def test_files_of_data_may_move(whole, tmp_path):
    """The content decides; where it lies does not."""
    stopped_after(2, node_task(), tmp_path, data=DataConfig(npz=tmp_path / "here.npz"))
    moved = DataConfig(npz=tmp_path / "there.npz")
    remaining, _ = finished(node_task(), tmp_path, data=moved)
    assert remaining["checkpoint.safetensors"] == whole["checkpoint.safetensors"]


def test_another_split_is_another_run(tmp_path):
    stopped_after(2, node_task(), tmp_path)
    other = node_task()
    other.split_hash = "0" * 16
    with pytest.raises(ConfigError, match="split_hash"):
        finished(other, tmp_path, allow_changes=True)
    with pytest.raises(ConfigError, match="signature"):
        finished(node_task(signature=None), tmp_path, allow_changes=True)
    with pytest.raises(ConfigError, match="fanouts: None there"):
        finished(node_task(training=SAMPLED), tmp_path, allow_changes=True)


def test_a_finished_run_is_not_trained_again(whole, monkeypatch, tmp_path):
    task = node_task()
    first, result = fit(task, SETTINGS, options=FRAGILE, out=tmp_path)
    (tmp_path / CURRENT).write_bytes(b"left behind by a kill before it was removed")

    def losses(network: Network, epoch: int):
        raise AssertionError("trained again")

    monkeypatch.setattr(task, "losses", losses)
    notes: list[str] = []
    again, same = fit(
        task, SETTINGS, options=FRAGILE, out=tmp_path, watch=Watch(on_note=notes.append)
    )
    assert same == result
    assert notes == ["The run is finished already; this is its result."]
    for name, value in first.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert remains(tmp_path) == whole


def test_a_finished_run_is_not_changed(tmp_path):
    """Its files say how it was made; more epochs are another run."""
    remaining, _ = finished(node_task(), tmp_path)
    longer = replace(SETTINGS, epochs=9)
    with pytest.raises(ConfigError, match=r"training\.epochs"):
        finished(node_task(), tmp_path, longer, allow_changes=True)
    assert remains(tmp_path) == remaining


def test_the_number_of_threads_is_part_of_the_state(tmp_path):
    torch.set_num_threads(2)
    try:
        two, _ = finished(node_task(), tmp_path / "whole")
        stopped_after(2, node_task(), tmp_path / "run")
        torch.set_num_threads(1)
        remaining, _ = finished(node_task(), tmp_path / "run")
    finally:
        torch.set_num_threads(1)
    assert remaining == two


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"new or empty folder.*thesis\.tex"):
        fit(node_task(), SETTINGS, options=FRAGILE, out=tmp_path)
    with pytest.raises(DataError, match="got a file"):
        fit(node_task(), SETTINGS, options=FRAGILE, out=tmp_path / "thesis.tex")
    with pytest.raises(DataError, match="Expected to make the folder"):
        fit(node_task(), SETTINGS, options=FRAGILE, out=tmp_path / "thesis.tex" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_config_is_told(tmp_path):
    stopped_after(2, node_task(), tmp_path)
    (tmp_path / "config.json").write_text('{"training": ')
    with pytest.raises(DataError, match="Expected a run folder"):
        fit(node_task(), SETTINGS, options=FRAGILE, out=tmp_path)

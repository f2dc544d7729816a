"""A run's folder: one process at a time, one configuration."""

from __future__ import annotations

import json

import pytest

from geof.errors import ConfigError, DataError, FolderLockedError
from geof.training.run_folder import FORMAT, LOCK, locked, read_config, read_result, settle_config

CONFIG = {
    "format": FORMAT,
    "dataset": "toy",
    "run": {
        "method": "geof",
        "training": {"epochs": 5, "clip": None},
        "options": {"bounds": (-1.0, 1.0)},
        "data": {"npz": "here.npz"},
    },
    "versions": {"geof": "1"},
}


def changed(**training):
    run = CONFIG["run"]
    return {**CONFIG, "run": {**run, "training": {**run["training"], **training}}}


def test_the_first_writes_and_the_same_again_says_nothing(tmp_path):
    assert settle_config(tmp_path, CONFIG, allow_changes=False) == []
    before = (tmp_path / "config.json").read_bytes()
    assert settle_config(tmp_path, CONFIG, allow_changes=False) == []  # tuples are lists there
    assert (tmp_path / "config.json").read_bytes() == before
    assert read_config(tmp_path)["run"]["training"] == {"epochs": 5, "clip": None}


def test_every_change_is_recorded_in_order(tmp_path):
    settle_config(tmp_path, CONFIG, allow_changes=False)
    (note,) = settle_config(tmp_path, changed(epochs=9), allow_changes=True)
    assert note == "Options changed on the way: training.epochs: 5 there, 9 now."
    settle_config(tmp_path, changed(epochs=9, clip=1.0), allow_changes=True)
    settle_config(tmp_path, changed(epochs=9, clip=1.0), allow_changes=False)  # these hold now
    config = read_config(tmp_path)
    assert config["changes"] == [{"training.epochs": [5, 9]}, {"training.clip": [None, 1.0]}]
    assert config["run"]["training"] == {"epochs": 9, "clip": 1.0}
    with pytest.raises(ConfigError, match=r"training\.epochs: 9 there, 5 now"):
        settle_config(tmp_path, changed(clip=1.0), allow_changes=False)


def test_one_fixed_difference_forbids_the_others_too(tmp_path):
    settle_config(tmp_path, CONFIG, allow_changes=False)
    before = (tmp_path / "config.json").read_bytes()
    other = {**changed(epochs=9), "dataset": "other"}
    with pytest.raises(ConfigError, match=r"dataset: toy there, other now.*name another folder"):
        settle_config(tmp_path, other, allow_changes=True)
    checked = {**CONFIG, "protocol": {"leak_checked": True}}
    with pytest.raises(ConfigError, match=r"protocol: None there, \{'leak_checked': True\} now"):
        settle_config(tmp_path, checked, allow_changes=True)
    other["run"] = {**other["run"], "options": {}}
    with pytest.raises(ConfigError, match=r"options\.bounds: \[-1\.0, 1\.0\] there, None now"):
        settle_config(tmp_path, other, allow_changes=True)
    assert (tmp_path / "config.json").read_bytes() == before


def test_what_decides_no_number_may_differ(tmp_path):
    settle_config(tmp_path, CONFIG, allow_changes=False)
    moved = {**CONFIG, "run": {**CONFIG["run"], "data": {"npz": "there.npz"}}}
    assert settle_config(tmp_path, moved, allow_changes=False) == []


def test_other_versions_are_a_note(tmp_path):
    settle_config(tmp_path, CONFIG, allow_changes=False)
    newer = {**CONFIG, "versions": {"geof": "2"}}
    (note,) = settle_config(tmp_path, newer, allow_changes=False)
    assert "Other versions" in note


def test_the_lock_keeps_others_out_and_is_given_back(tmp_path):
    run = tmp_path / "a" / "run"
    busy = pytest.raises(FolderLockedError, match="another run is at work there")
    with locked(run), busy, locked(run):
        pass
    with pytest.raises(ZeroDivisionError), locked(run):
        _ = 1 / 0
    with locked(run):
        pass


def test_what_a_killed_run_left_does_not_count_as_something_else(tmp_path):
    (tmp_path / LOCK).touch()
    (tmp_path / ".config.json.k3x").write_text("half")
    with locked(tmp_path):
        pass
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"new or empty folder.*notes\.txt"), locked(tmp_path):
        pass


def test_results_are_read_when_there_and_sound(tmp_path):
    assert read_result(tmp_path) is None
    (tmp_path / "result.json").write_text(json.dumps({"test": 1.0}))
    assert read_result(tmp_path) == {"test": 1.0}
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(DataError, match="Expected a run folder"):
        read_result(tmp_path)
    with pytest.raises(DataError, match="Expected a run folder"):
        read_config(tmp_path)
    bad = ['{"format": 2}', '{"format": 2, "run": {"training": 3}}']
    for text in (
        *bad,
        "[]",
        "{}",
        '{"network": 3, "signature": {}}',
        '{"format": 2, "run": [}',
        "3",
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(DataError, match=r"config\.json|run folder"):
            read_config(tmp_path)

"""Stored canaries: a method gives its numbers, and what changes them is told."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from geof.errors import ConfigError
from geof.methods import registry
from geof.methods.gcn import PlainGCN
from geof.training import canary
from geof.training.canary import (
    TOLERANCE,
    canaries,
    canary_file,
    canary_text,
    difference,
    require_canaries,
    sing,
    store_canaries,
    stored_canaries,
    vouched_revision,
)


@pytest.mark.parametrize("method", registry.OWN)
def test_recorded_runs_are_what_the_code_gives(method):
    """If it fails: undo the change, or raise the revision and ``geof results canaries --write``."""
    require_canaries(method)


def test_canaries_are_of_the_librarys_methods():
    assert set(json.loads(canary_file("geof").read_text())) == set(registry.OWN)
    assert len(canaries("geof")) == 9


@pytest.fixture
def gcn(monkeypatch, tmp_path):
    """One canary of gcn, stored in a file that may be written."""
    copy = tmp_path / "canaries.json"
    shutil.copy(canary_file("gcn"), copy)
    monkeypatch.setattr(canary, "canary_file", lambda method: copy)
    monkeypatch.setattr(canary, "canaries", lambda method: ["plain node"])
    stored = json.loads(copy.read_text())
    stored["gcn"]["canaries"] = {"plain node": stored["gcn"]["canaries"]["plain node"]}
    copy.write_text(canary_text(stored))
    return copy


def with_revision(monkeypatch, revision: int) -> None:
    changed = replace(registry.get_method("gcn"), revision=revision)
    monkeypatch.setitem(registry._METHODS, "gcn", changed)


def change_numbers(monkeypatch, factor: float) -> None:
    """Change a method by a constant."""
    forward = PlainGCN.forward
    monkeypatch.setattr(PlainGCN, "forward", lambda self, inputs: factor * forward(self, inputs))


def test_a_changed_constant_is_told_with_its_size_and_the_remedy(gcn, monkeypatch):
    change_numbers(monkeypatch, 1.001)
    with pytest.raises(ConfigError) as caught:
        require_canaries("gcn")
    message = str(caught.value)
    assert "method 'gcn'" in message
    assert "'plain node' by" in message
    assert "Undo the change" in message
    assert "revision=2" in message
    assert "geof results canaries --write" in message


def test_rounding_is_no_change(gcn, monkeypatch):
    change_numbers(monkeypatch, 1 + 1e-9)
    stored = stored_canaries("gcn")["canaries"]["plain node"]
    assert 0 < difference(stored, sing("gcn", "plain node")) < TOLERANCE
    require_canaries("gcn")


def test_numbers_that_moved_are_stored_only_with_a_raised_revision(gcn, monkeypatch):
    before = gcn.read_text()
    assert not store_canaries("gcn")
    assert gcn.read_text() == before
    change_numbers(monkeypatch, 1.001)
    with pytest.raises(ConfigError, match=r"moved: 'plain node' by"):
        store_canaries("gcn")
    assert gcn.read_text() == before
    with_revision(monkeypatch, 2)
    with pytest.raises(ConfigError, match="stored for revision 1; it has 2"):
        require_canaries("gcn")
    assert vouched_revision("gcn", "node") == 1
    assert store_canaries("gcn")
    require_canaries("gcn")
    assert vouched_revision("gcn", "node") == 2
    assert json.loads(gcn.read_text())["geof"] == json.loads(before)["geof"]
    with_revision(monkeypatch, 1)
    with pytest.raises(ConfigError, match="stored for revision 2; it has 1"):
        store_canaries("gcn")


def test_a_new_canary_is_added_and_the_others_stay(gcn, monkeypatch):
    before = stored_canaries("gcn")["canaries"]
    monkeypatch.setattr(canary, "canaries", lambda method: ["plain node", "plain link"])
    with pytest.raises(ConfigError, match="'plain link' is not stored"):
        require_canaries("gcn")
    assert vouched_revision("gcn", "link") is None
    assert store_canaries("gcn")
    assert stored_canaries("gcn")["canaries"]["plain node"] == before["plain node"]
    assert vouched_revision("gcn", "link") == 1


def test_what_is_not_there_vouches_for_nothing(gcn):
    gcn.unlink()
    assert stored_canaries("gcn") == {}
    assert vouched_revision("gcn", "node") is None


def test_differences_of_other_forms_are_infinite():
    numbers = {"loss": [1.0], "validation_loss": [None], "prediction": [2.0], "best_epoch": 1}
    assert difference(numbers, numbers) == 0.0
    assert difference(numbers, {**numbers, "loss": [1.5]}) == 0.5
    for other in ({"best_epoch": 2}, {"loss": [1.0, 1.0]}, {"validation_loss": [1.0]}):
        assert difference(numbers, {**numbers, **other}) == float("inf")

from __future__ import annotations

import json

import pytest

from geof.errors import DataError
from geof.io import write_json


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "config.json"
    write_json(path, {"b": 1})
    assert json.loads(path.read_text()) == {"b": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"b": float("nan")})
    assert json.loads(path.read_text()) == {"b": 1}
    assert [p.name for p in path.parent.iterdir()] == ["config.json"]


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"Expected to write .*Check the path"):
        write_json(tmp_path / "file" / "config.json", {})


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    def full_disk(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(DataError, match="No space left"):
        write_json(tmp_path / "config.json", {})
    assert list(tmp_path.iterdir()) == []

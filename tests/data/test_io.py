from __future__ import annotations

import json
import sys

import pytest

from geof import io
from geof.errors import DataError
from geof.io import hold, read_json, write_atomically, write_json


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks that end with a process")
def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    names = {"dead": ".table.csv.00c0ffee", "alive": ".table.csv.0badcafe"}
    others = [".table.csv.mine", ".other.csv.00c0ffee"]
    for name in (*names.values(), *others):
        (tmp_path / name).write_text("half")
    with (tmp_path / names["alive"]).open("w") as file:
        assert hold(file.fileno(), tmp_path / names["alive"])
        write_atomically(tmp_path / "table.csv", b"whole")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([names["alive"], *others, "table.csv"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks that end with a process")
def test_a_file_removed_before_it_was_held_is_made_again(tmp_path, monkeypatch):
    """As by a process that takes it for abandoned at that very moment."""
    whole, removed = io.hold, []

    def late(handle, path):
        if not removed:
            removed.append(path)
            path.unlink()
        return whole(handle, path)

    monkeypatch.setattr(io, "hold", late)
    write_atomically(tmp_path / "table.csv", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    assert removed


def test_json_is_read(tmp_path):
    write_json(tmp_path / "record.json", {"a": [1, "ü"]})
    assert read_json(tmp_path / "record.json", "a record") == {"a": [1, "ü"]}
    write_json(tmp_path / "rows.json", [1])
    assert read_json(tmp_path / "rows.json", "rows", list) == [1]


BAD_JSON = {
    "half": (b'{"a": 1', "Expecting"),
    "a list": (b"[1]", "got a list instead of a dict"),
    "nothing": (b"null", "got a NoneType instead of a dict"),
    "nested too deeply": (b"[" * 100_000, "recursion"),
    "not UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "empty": (b"", "Expecting"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_JSON.values(), ids=BAD_JSON)
def test_json_that_is_something_else_is_refused(tmp_path, content, reason):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"Expected a record at '.*record\.json' \(.*{reason}"):
        read_json(path, "a record")


def test_json_that_cannot_be_opened_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"missing\.json' \(No such file.*\)\. Check the path"):
        read_json(tmp_path / "missing.json", "a record")
    with pytest.raises(DataError, match="Is a directory"):
        read_json(tmp_path, "a record")

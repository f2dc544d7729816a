"""The cache: whole entries or none, whoever writes, whatever happens to the bytes."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch

from geof.data import cache
from geof.data.cache import Entry, cache_folder, cache_key, content_hash, load_or_build, read_entry
from geof.errors import DataError
from geof.io import hold

KEY = cache_key({"file": "00"}, 1, {})


def an_entry(value: float = 1.0) -> Entry:
    tensors = {"x": torch.full((3, 2), value), "codes": torch.arange(4, dtype=torch.int16)}
    return Entry(tensors, {"names": ["a", "ü"], "sizes": [1, 2]})


def never() -> Entry:
    raise AssertionError("built although it was there")


def assert_same(entry: Entry, other: Entry) -> None:
    assert entry.metadata == other.metadata
    assert entry.tensors.keys() == other.tensors.keys()
    for name, tensor in entry.tensors.items():
        assert torch.equal(tensor, other.tensors[name])
        assert tensor.dtype == other.tensors[name].dtype


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_an_entry_is_built_once_and_read_afterwards(tmp_path):
    load_or_build("kind", KEY, an_entry, tmp_path)
    assert_same(load_or_build("kind", KEY, never, tmp_path), an_entry())
    assert files(tmp_path) == [f"kind/{KEY}/entry.json", f"kind/{KEY}/tensors.safetensors"]


def test_the_key_changes_with_every_part():
    keys = {
        KEY,
        cache_key({"file": "01"}, 1, {}),
        cache_key({"other": "00"}, 1, {}),
        cache_key({"file": "00"}, 2, {}),
        cache_key({"file": "00"}, 1, {"row_normalise": True}),
    }
    assert len(keys) == 5
    assert cache_key({"a": "0", "b": "1"}, 1, {}) == cache_key({"b": "1", "a": "0"}, 1, {})


def test_content_hash_changes_with_name_dtype_shape_and_value():
    x = torch.arange(4.0)
    hashes = {
        content_hash({"x": x}),
        content_hash({"y": x}),
        content_hash({"x": x.double()}),
        content_hash({"x": x.view(2, 2)}),
        content_hash({"x": x + 1}),
        content_hash({"x": x[:0]}),
    }
    assert len(hashes) == 6
    assert content_hash({"x": x.view(2, 2).t()}) == content_hash({"x": x.view(2, 2).t().clone()})


def test_writing_to_a_loaded_tensor_leaves_the_file_alone(tmp_path):
    load_or_build("kind", KEY, an_entry, tmp_path)
    load_or_build("kind", KEY, never, tmp_path).tensors["x"].add_(1)
    assert_same(load_or_build("kind", KEY, never, tmp_path), an_entry())


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GEOF_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("GEOF_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "geof"


@pytest.mark.parametrize("version", [cache.FORMAT_VERSION - 1, cache.FORMAT_VERSION + 1, None])
def test_an_entry_of_another_format_version_is_rebuilt(tmp_path, version):
    load_or_build("kind", KEY, lambda: an_entry(7.0), tmp_path)
    index = tmp_path / "kind" / KEY / "entry.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "format_version": version}))
    assert_same(load_or_build("kind", KEY, an_entry, tmp_path), an_entry())
    assert_same(load_or_build("kind", KEY, never, tmp_path), an_entry())


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped byte": lambda folder: flip_a_byte(folder / "tensors.safetensors"),
    "truncated": lambda folder: os.truncate(folder / "tensors.safetensors", 20),
    "no tensors": lambda folder: (folder / "tensors.safetensors").unlink(),
    "no index": lambda folder: (folder / "entry.json").unlink(),
    "half an index": lambda folder: os.truncate(folder / "entry.json", 30),
    "an index of another kind": lambda folder: (folder / "entry.json").write_text("[1]"),
    "an index nested too deeply": lambda folder: (folder / "entry.json").write_text("[" * 100_000),
    "altered metadata": lambda folder: (folder / "entry.json").write_text(
        (folder / "entry.json").read_text().replace('"a"', '"b"')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_detected_and_rebuilt(tmp_path, damage):
    load_or_build("kind", KEY, an_entry, tmp_path)
    damage(tmp_path / "kind" / KEY)
    assert read_entry(tmp_path / "kind" / KEY) is None
    assert_same(load_or_build("kind", KEY, an_entry, tmp_path), an_entry())
    assert_same(load_or_build("kind", KEY, never, tmp_path), an_entry())
    assert len(files(tmp_path)) == 2


def test_a_file_in_the_place_of_an_entry_is_replaced(tmp_path):
    (tmp_path / "kind").mkdir()
    (tmp_path / "kind" / KEY).write_text("not a folder")
    load_or_build("kind", KEY, an_entry, tmp_path)
    assert_same(load_or_build("kind", KEY, never, tmp_path), an_entry())


def test_who_comes_second_keeps_the_first_entry(tmp_path):
    def overtaken() -> Entry:
        cache.publish(tmp_path / "kind" / KEY, an_entry(5.0))
        return an_entry()

    load_or_build("kind", KEY, overtaken, tmp_path)
    assert_same(load_or_build("kind", KEY, never, tmp_path), an_entry(5.0))
    assert len(files(tmp_path)) == 2


def test_a_full_disk_leaves_the_cache_as_it_was(tmp_path, monkeypatch):
    load_or_build("kind", "other", an_entry, tmp_path)
    before = files(tmp_path)

    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "save_file", full)
    with pytest.raises(DataError, match=r"No space left.*GEOF_CACHE.*cache=False"):
        load_or_build("kind", KEY, an_entry, tmp_path)
    assert files(tmp_path) == before
    assert [p.name for p in (tmp_path / "kind").iterdir()] == ["other"]


def test_a_cache_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Expected to write"):
        load_or_build("kind", KEY, an_entry, tmp_path / "file")


def test_only_old_leftovers_of_killed_processes_are_removed(tmp_path):
    old, young = tmp_path / "kind" / ".tmp-old", tmp_path / "kind" / ".tmp-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "tensors.safetensors").write_bytes(b"half")
    yesterday = time.time() - 2 * 24 * 3600
    os.utime(old, (yesterday, yesterday))
    load_or_build("kind", KEY, an_entry, tmp_path)
    assert not old.exists()
    assert young.exists()


RACER = """
import sys, time
from pathlib import Path
import torch
from geof.data.cache import Entry, load_or_build

folder, start, mine = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
(start / mine).touch()
while len(list(start.iterdir())) < 2:
    time.sleep(0.0001)
for i in range(60):
    build = lambda: Entry({"x": torch.full((200, 200), float(i))}, {"i": i})
    entry = load_or_build("kind", f"{i:032d}", build, folder)
    assert entry.metadata == {"i": i} and bool((entry.tensors["x"] == i).all())
"""


def test_two_processes_at_once_do_not_corrupt_it(geof, tmp_path):
    folder, start = tmp_path / "cache", tmp_path / "start"
    start.mkdir()
    # Half of the entries are there but damaged: repairing races as well.
    for i in range(0, 60, 2):
        cache.publish(folder / "kind" / f"{i:032d}", an_entry())
        flip_a_byte(folder / "kind" / f"{i:032d}" / "tensors.safetensors")
    racers = [geof.python(RACER, folder, start, name) for name in ("a", "b")]
    done = [racer.wait() for racer in racers]
    assert [racer.code for racer in done] == [0, 0], [racer.err for racer in done]
    assert len(files(folder)) == 120
    for i in range(60):
        entry = load_or_build("kind", f"{i:032d}", never, folder)
        assert bool((entry.tensors["x"] == i).all())


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks that end with a process")
def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    dead, alive = tmp_path / "kind" / ".new-dead", tmp_path / "kind" / ".new-alive"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
        (folder / "tensors.safetensors").write_bytes(b"half")
    handle = os.open(alive, os.O_RDONLY)
    try:
        assert hold(handle, alive)
        load_or_build("kind", KEY, an_entry, tmp_path)
    finally:
        os.close(handle)
    assert not dead.exists()
    assert (alive / "tensors.safetensors").exists()


def test_a_fresh_folder_that_another_process_removes_is_made_again(tmp_path, monkeypatch):
    opened, lost = os.open, []

    def late(path, *more, **options):
        if not lost and Path(path).name.startswith(".new-"):
            lost.append(path)
            os.rmdir(path)  # between its making and its holding
        return opened(path, *more, **options)

    monkeypatch.setattr(os, "open", late)
    cache.publish(tmp_path / "kind" / "key", an_entry())
    assert lost
    assert read_entry(tmp_path / "kind" / "key").metadata == an_entry().metadata

"""What a task brings home replaces what an unfinished attempt left; Ray itself is not needed."""

from __future__ import annotations

from geof_paper.grid.ray_grid import _write_files


def test_an_unfinished_attempt_gives_way(tmp_path):
    for name in ("config.json", "checkpoint.safetensors", "failure.json", ".lock"):
        (tmp_path / name).write_text("old")
    files = {"result.json": b"{}", "checkpoint.safetensors": b"new", "measures/depth.json": b"{}"}
    _write_files(tmp_path, files)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == b"new"
    assert (tmp_path / "measures" / "depth.json").exists()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".lock", "checkpoint.safetensors", "measures", "result.json"}


def test_a_finished_run_on_a_shared_disk_stays_as_it_is(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "checkpoint.safetensors").write_text("there")
    _write_files(tmp_path, {"checkpoint.safetensors": b"other", "measures/depth.json": b"{}"})
    assert (tmp_path / "checkpoint.safetensors").read_text() == "there"
    assert (tmp_path / "measures" / "depth.json").exists()

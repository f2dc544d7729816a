from __future__ import annotations

import json
import pickle

import pytest
import torch
from torch import nn

from geof.errors import DataError
from geof.training import load_checkpoint, save_checkpoint, write_json


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


def test_wrong_checkpoints_are_refused_and_change_nothing(tmp_path):
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    path = tmp_path / "model.safetensors"
    with pytest.raises(DataError, match="missing, truncated"):
        load_checkpoint(path, model)
    save_checkpoint(path, nn.Linear(4, 2))
    with pytest.raises(DataError, match=r"weight has shape \(2, 4\), the model \(2, 3\)"):
        load_checkpoint(path, model)
    save_checkpoint(path, nn.Linear(3, 2, bias=False))
    with pytest.raises(DataError, match="missing bias"):
        load_checkpoint(path, model)
    save_checkpoint(path, model)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="truncated"):
        load_checkpoint(path, model)
    path.write_bytes(pickle.dumps({"weight": 1}))  # never unpickled
    with pytest.raises(DataError, match="not a checkpoint"):
        load_checkpoint(path, model)
    assert torch.equal(model.weight, before)

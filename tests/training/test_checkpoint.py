from __future__ import annotations

import json
import pickle
import random

import pytest
import torch
from safetensors.torch import save
from torch import nn

from geof.errors import DataError
from geof.training import load_checkpoint, save_checkpoint
from geof.training.checkpoint import read_tensors, write_tensors


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
    path.write_bytes(save(model.state_dict()))  # a stranger's, without a checksum
    with pytest.raises(DataError, match="checksum"):
        load_checkpoint(path, model)
    assert torch.equal(model.weight, before)


def test_the_description_comes_back(tmp_path):
    path = tmp_path / "model.safetensors"
    about = {"epoch": 3, "names": ["ü", None, 1e-3], "nested": {"a": True}}
    tensors = {"n": torch.tensor(5), "x": torch.randn(2, 3).t(), "none": torch.empty(0, 4)}
    write_tensors(path, tensors, about)
    found, described = read_tensors(path)
    assert described == about
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(found[name], value)
        assert found[name].dtype == value.dtype
    with pytest.raises(ValueError, match="JSON"):
        write_tensors(path, tensors, {"loss": float("nan")})
    assert read_tensors(path)[1] == about


def test_equal_contents_are_equal_bytes(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    values = {name: torch.arange(4.0) + i for i, name in enumerate("dcab")}
    write_tensors(one, values, {"a": 1, "b": 2})
    write_tensors(two, dict(reversed(values.items())), {"b": 2, "a": 1})
    assert one.read_bytes() == two.read_bytes()


def test_no_flipped_bit_and_no_missing_end_goes_unnoticed(tmp_path):
    model, path, draw = nn.BatchNorm1d(3), tmp_path / "model.safetensors", random.Random(0)
    save_checkpoint(path, model, {"epoch": 3, "rate": 1e-3})
    content = path.read_bytes()
    at = content.index(b"version")
    harmless = range(at, content.index(b"}", at))  # which geof wrote it: nobody reads that
    for place in draw.sample([i for i in range(len(content)) if i not in harmless], 120):
        harmed = bytearray(content)
        harmed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(harmed)
        with pytest.raises(DataError):
            load_checkpoint(path, nn.BatchNorm1d(3))
    for end in draw.sample(range(len(content)), 40):
        path.write_bytes(content[:end])
        with pytest.raises(DataError):
            load_checkpoint(path, nn.BatchNorm1d(3))
    path.write_bytes(content)
    load_checkpoint(path, model)


def test_an_edited_description_is_noticed(tmp_path):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, nn.Linear(2, 2), {"validation": 71})
    content = path.read_bytes()
    assert json.dumps(71).encode() in content
    path.write_bytes(content.replace(b": 71", b": 99"))
    with pytest.raises(DataError, match="checksum"):
        read_tensors(path)

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from geof.errors import DataError
from geof.training import load_checkpoint, save_checkpoint


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

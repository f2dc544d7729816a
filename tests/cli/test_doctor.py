"""``geof doctor`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from geof import cli
from geof.cli import doctor
from geof.kernels import BACKENDS


def examine(**environment: str) -> dict:
    command = [sys.executable, "-m", "geof.cli", "doctor", "--json"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_says_which_backend_and_why():
    findings = examine()
    assert findings["backends"] == list(BACKENDS)
    assert findings["auto"] == ("native" if "native" in BACKENDS else "torch")
    assert findings["native kernels"] in findings["why"]
    assert findings["backends agree"] is True


def test_says_so_when_there_are_no_kernels():
    findings = examine(GEOF_KERNELS="off")
    assert findings["auto"] == "torch"
    assert findings["backends"] == ["reference", "torch"]
    assert "switched off by GEOF_KERNELS=off" in findings["why"]
    assert findings["native library"] is None


def test_disagreement_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_differences", lambda: {"torch": 1e-3})
    assert cli.main(["doctor"]) == 1
    assert "no" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["auto", "threads", "why"])
def test_table_has_every_finding(name, capsys):
    assert cli.main(["doctor"]) == 0
    assert name in capsys.readouterr().out

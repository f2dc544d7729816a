"""``geof doctor`` as a user meets it."""

from __future__ import annotations

import json

import pytest

from geof import cli
from geof.cli import doctor
from geof.kernels import BACKENDS


def test_says_which_backend_and_why(geof):
    """Without kernels: see tests/kernels/test_native.py."""
    findings = json.loads(geof("doctor", "--json").out)
    assert findings["backends"] == list(BACKENDS)
    assert findings["auto"] == ("native" if "native" in BACKENDS else "torch")
    assert findings["native kernels"] in findings["why"]
    assert findings["backends agree"] is True


def test_disagreement_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_differences", lambda device: ({"torch": 1e-3}, 1e-10))
    assert cli.main(["doctor"]) == 1
    assert "no" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["auto", "threads", "why"])
def test_table_has_every_finding(name, capsys):
    assert cli.main(["doctor"]) == 0
    assert name in capsys.readouterr().out


def test_a_device_can_be_named(geof):
    findings = json.loads(geof("doctor", "--json", "--device", "auto").out)
    assert findings["checked on"] in findings["devices"]
    assert set(findings["largest difference to 'reference'"]) >= {"torch"}


def test_a_device_that_is_not_there_is_told(capsys):
    assert cli.main(["doctor", "--device", "cuda:97"]) == 1
    assert "there is 'cpu'" in capsys.readouterr().err

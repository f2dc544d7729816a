"""Every compared method gives the numbers that vouch for its recorded runs."""

from __future__ import annotations

import json

import pytest

from geof.methods import get_method, method_names
from geof.methods.registry import OWN
from geof.training.canary import canary_file, require_canaries, vouched_revision
from geof_paper.studies.compared import COMPARED

METHODS = [name for name in dict.fromkeys(c.method for c in COMPARED) if name not in OWN]
"""Those of this package; the library's own are tested with it."""


@pytest.mark.parametrize("method", METHODS)
def test_recorded_runs_are_what_the_code_gives(method):
    """If it fails: undo the change, or raise the revision and ``geof results canaries --write``."""
    require_canaries(method)


def test_every_method_has_canaries_for_every_task():
    assert set(json.loads(canary_file("hgcn").read_text())) == set(METHODS)
    assert set(method_names()) >= {*METHODS, *OWN}
    for method in (*METHODS, *OWN):
        for task in ("node", "link", "graph"):
            assert vouched_revision(method, task) == get_method(method).revision, method

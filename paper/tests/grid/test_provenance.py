"""The digest of the code changes when a number might, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from geof_paper.grid import provenance
from geof_paper.grid.provenance import code_digest

CACHED = (
    *(code_digest, provenance._source, provenance._tree),
    *(provenance._imports, provenance._meaning),
)


@pytest.fixture
def edited(monkeypatch):
    """Return the digest of an encoder when a module's text is another."""
    original = provenance._source.__wrapped__

    def digest(module: str, change: Callable[[str], str], encoder: str = "geof") -> str:
        def source(name: str) -> str | None:
            return change(original(name)) if name == module else original(name)

        with monkeypatch.context() as patch:
            patch.setattr(provenance, "_source", source)
            _forget()
            found = code_digest(encoder)
        _forget()
        return found

    return digest


def _forget() -> None:
    for function in CACHED:
        function.cache_clear()


def more_code(text: str) -> str:
    return text + "\nEXTRA = 1\n"


def test_a_changed_module_is_other_code(edited):
    assert edited("geof.nn.transport", more_code) != code_digest("geof")
    assert edited("geof.version", lambda text: text.replace('= "', '= "9')) != code_digest("geof")


@pytest.mark.slow
def test_comments_and_docstrings_are_no_code(edited):
    assert edited("geof.nn.geof", lambda text: text + "\n# words\n") == code_digest("geof")
    reworded = edited("geof.nn.geof", lambda text: text.replace('"""', '"""Words. ', 1))
    assert reworded == code_digest("geof")


@pytest.mark.slow
def test_other_methods_do_not_matter(edited):
    assert edited("geof.methods.gcn", more_code) == code_digest("geof")
    assert edited("geof.methods.gcn", more_code, "gcn") != code_digest("gcn")


def test_what_only_reads_finished_runs_does_not_matter():
    reached = provenance._reachable([*provenance.ROOTS, *provenance._own_modules("geof")])
    assert {"geof.training.trainer", "geof.nn.geof", "geof.data.splits"} <= reached
    assert not {"geof.training.predict", "geof.nn.inference"} & reached
    assert not [name for name in reached if name.startswith(("geof.cli", "geof.experiments"))]


def test_a_method_brings_what_it_imports():
    own = provenance._reachable(provenance._own_modules("hgcn"))
    assert {"geof_paper.baselines.hgcn", "geof_paper.baselines.poincare"} <= own

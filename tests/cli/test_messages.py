"""Messages name what the user can do where the user stands: on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from geof.cli import main
from geof.errors import listed, nearest
from tests.cli.conftest import PLAIN

SMALL = ["--quiet", *PLAIN, "--method", "gcn", "epochs=1", "options.hidden_channels=4"]
MANY = [f"assay_{i}" for i in range(300)]


def refusal(capsys, *words: str) -> str:
    """Return what a command that is refused says."""
    assert main(["train", *words]) == 1
    return capsys.readouterr().err


@pytest.fixture
def molecules(tmp_path, monkeypatch) -> Path:
    """A table with SMILES in capitals and several hundred columns."""
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    smiles = ["C" * i + "O" for i in range(1, 13)]
    rows = [",".join([text, str(i % 2), *["0"] * len(MANY)]) for i, text in enumerate(smiles)]
    Path("m.csv").write_text("\n".join([",".join(["SMILES", "active", *MANY]), *rows]) + "\n")
    return tmp_path


class TestMolecules:
    def test_capitals_are_found_and_long_lists_cut(self, molecules, capsys):
        words = ["--molecules", "m.csv", "--label", "active", "--folds", "3", *SMALL]
        assert main(["train", *words, "--out", "run"]) == 0
        out = capsys.readouterr().out
        assert "'assay_9' and 290 more" in out.replace("\n", "")
        assert main(["predict", "run", "--molecules", "m.csv", "--out", "p.csv"]) == 0

    def test_a_missing_column_names_the_flag(self, molecules, capsys):
        text = Path("m.csv").read_text().replace("SMILES", "structure", 1)
        Path("m.csv").write_text(text)
        said = refusal(capsys, "--molecules", "m.csv", "--label", "active", *SMALL)
        assert "--smiles COLUMN" in said
        assert len(said) < 500


@pytest.fixture
def tables(tmp_path, monkeypatch) -> list[str]:
    """Nodes with two columns of names, one of postcodes with a slip, and a class of one."""
    monkeypatch.chdir(tmp_path)
    rows = ["id,name,about,size,kind"]
    for i in range(30):
        kind = "rare" if i == 0 else "ab"[i % 2]
        rows.append(f"n{i},name {i},text {i},{'x1' if i == 3 else i},{kind}")
    Path("nodes.csv").write_text("\n".join(rows) + "\n")
    edges = [f"n{i},n{(i + 1) % 30},{i}" for i in range(30)]
    Path("edges.csv").write_text("source,target,since\n" + "\n".join(edges) + "\n")
    return ["--nodes", "nodes.csv", "--edges", "edges.csv", "--label", "kind", *SMALL]


class TestTables:
    def test_all_columns_are_named_at_once_with_flags_that_exist(self, tables, capsys):
        said = refusal(capsys, *tables)
        assert "3 cannot" in said
        assert "--drop name --drop about --drop size" in said
        assert "--kind size=categorical" in said

    def test_each_remedy_works(self, tables, capsys):
        drop = ["--drop", "name", "--drop", "about", "--kind", "size=categorical"]
        said = refusal(capsys, *tables, *drop)
        assert "--edge-columns ignore" in said
        said = refusal(capsys, *tables, *drop, "--edge-columns", "ignore")
        assert "--allow-singletons" in said
        words = [*tables, *drop, "--edge-columns", "ignore", "--allow-singletons"]
        assert main(["train", *words, "--out", "run"]) == 0
        again = ["--nodes", "nodes.csv", "--edges", "edges.csv"]
        assert main(["predict", "run", *again, "--out", "p.csv"]) == 0

    def test_two_columns_after_one_flag(self, tables, capsys):
        said = refusal(capsys, *tables, "--drop", "name", "about")
        assert "--drop name --drop about" in said
        assert "KEY=VALUE" not in said
        assert "COLUMN=KIND" in refusal(capsys, *tables, "--kind", "size")

    def test_several_missing_columns_at_once(self, tables, capsys):
        said = refusal(capsys, *tables, "--drop", "nam", "--drop", "bout")
        assert "'nam', 'bout'" in said


class TestArrays:
    def test_an_archive_says_what_it_has(self, tmp_path, capsys):
        path = tmp_path / "g.npz"
        np.savez(path, features=np.ones((3, 2)), edges=np.zeros((2, 1), int), labels=[0, 1, 0])
        said = refusal(capsys, "--npz", str(path), *SMALL)
        assert "has 'edges', 'features', 'labels'" in said
        assert "under the name 'x'" in said

    def test_objects_are_refused_by_name(self, tmp_path, capsys):
        path = tmp_path / "g.npz"
        objects = np.array([None, "a"], dtype=object)
        np.savez(path, x=np.ones((2, 2)), edge_index=np.zeros((2, 1), int), node_ids=objects)
        assert "objects under 'node_ids'" in refusal(capsys, "--npz", str(path), *SMALL)


def test_lists_are_cut_and_near_names_found_in_any_case():
    assert listed(range(11)) == ", ".join(map(str, range(11)))
    assert listed(range(12)).endswith("9 and 2 more")
    assert "Did you mean 'SMILES'" in nearest("smiles", ["SMILES", "id"])

"""Molecules from SMILES. For tables a stub stands in for RDKit: an atom per letter, in a chain."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from geof.data.molecules import (
    ATOM_SIZES,
    BOND_SIZES,
    atom_feature_names,
    molecule_graph,
    parse_smiles,
    read_molecules,
)
from geof.errors import ConfigError, DataError

has_rdkit = importlib.util.find_spec("rdkit") is not None
needs_rdkit = pytest.mark.skipif(not has_rdkit, reason="RDKit is not installed")

# Metals, charges, radicals, isotopes, chirality, stereo bonds, rings, salts, a dummy atom.
SMILES = [
    "Cl[C@H](/C=C/C)Br",
    "F/C=C\\F",
    "O=C([O-])c1ccccc1.[Na+]",
    "[Pt](Cl)(Cl)([NH3])[NH3]",
    "C[C@@H](N)C(=O)O",
    "[CH3]",
    "[2H]O[2H]",
    "[U]",
    "*CC",
    "S(F)(F)(F)(F)(F)F",
    "N#N",
    "[Al+3]",
    "C",
    "CC=C(C)Cl",
    "[Fe+6]",
    "[Os+8]",
    "[C-6]",
]


def ogb_features():
    """Load OGB's file by itself: importing the package asks the network for its version."""
    spec = importlib.util.find_spec("ogb")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("ogb is not installed")
    path = Path(spec.submodule_search_locations[0]) / "utils" / "features.py"
    features = importlib.util.spec_from_file_location("ogb_features", path)
    module = importlib.util.module_from_spec(features)
    features.loader.exec_module(module)
    return module


@needs_rdkit
def test_codes_equal_those_of_ogb():
    from rdkit import Chem

    ogb = ogb_features()
    assert tuple(ogb.get_atom_feature_dims()) == ATOM_SIZES
    assert tuple(ogb.get_bond_feature_dims()) == BOND_SIZES
    for smiles in SMILES:
        molecule, parsed = Chem.MolFromSmiles(smiles), parse_smiles(smiles)
        atoms = [ogb.atom_to_feature_vector(atom) for atom in molecule.GetAtoms()]
        bonds = [ogb.bond_to_feature_vector(bond) for bond in molecule.GetBonds()]
        assert parsed.atoms.tolist() == atoms, smiles
        assert parsed.bond_codes.tolist() == bonds, smiles


@needs_rdkit
def test_the_features_of_atoms_have_names():
    names = atom_feature_names()
    assert len(names) == len(set(names)) == sum(ATOM_SIZES)
    pytest.importorskip("rdkit")
    carbon, _, _, nitrogen = molecule_graph("CCC[NH3+]").x
    said = [
        {name for name, one in zip(names, row, strict=True) if one} for row in (carbon, nitrogen)
    ]
    assert said[0] >= {"element 6", "charge 0", "hydrogens 3", "hybridisation SP3", "aromatic no"}
    assert said[1] >= {"element 7", "charge 1", "degree 4", "in a ring no"}


@pytest.mark.parametrize("smiles", ["C1CC", "c1cccc1", "", "hello"])
def test_what_cannot_be_parsed_is_none_and_silent(smiles, capfd):
    assert parse_smiles(smiles) is None
    assert capfd.readouterr().err == ""


# Tables ---------------------------------------------------------------------------------------

TABLE = """name,smiles,active,mass
one,CC,1,30
two,CCO,0,46
three,C(,1,
four,,0,
five,O,0,18
six,N,1,17
"""


def chain(smiles: str) -> Data | None:
    if not smiles.isalpha():
        return None
    first = torch.arange(len(smiles) - 1)
    ends = torch.stack([torch.cat([first, first + 1]), torch.cat([first + 1, first])])
    edge_index = ends[:, (ends[0] * len(smiles) + ends[1]).argsort()]
    x = torch.tensor([[float(ord(atom))] for atom in smiles])
    return Data(x=x, edge_index=edge_index, edge_attr=torch.ones(edge_index.size(1), 3).long())


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    """Letters in a chain instead of chemistry: the table is what is tested here."""
    monkeypatch.setattr("geof.data.molecules.molecule_graph", chain)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "drugs.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def test_unparsable_rows_are_counted_and_named(file):
    molecules = read_molecules(file, label="active", id_column="name")
    assert molecules.name == "drugs"
    assert molecules.graph_ids == ("one", "two", "five", "six")
    assert molecules.class_names == ("0", "1")
    assert [graph.y.tolist() for graph in molecules.graphs] == [[1], [0], [0], [1]]
    assert [graph.num_nodes for graph in molecules.graphs] == [2, 3, 1, 1]
    assert molecules.graphs[2].edge_index.shape == (2, 0)
    assert molecules.notes == (
        f"2 of 6 SMILES in '{file}' cannot be parsed and are left out: line 4 ('C('), 5 ('').",
        "Columns not used: 'mass'.",
    )


def test_a_class_without_a_molecule_is_none(file):
    file.write_text(TABLE.replace("C(,1", "C(,2"), encoding="utf-8")
    assert read_molecules(file, label="active").class_names == ("0", "1")


def test_without_identifiers_rows_keep_their_number(file):
    assert read_molecules(file).graph_ids == ("0", "1", "4", "5")


def test_unparsable_rows_can_be_refused(file):
    with pytest.raises(
        DataError, match=r"\(got 'C\(' at '.*drugs.csv', line 4\).*on_invalid='note'"
    ):
        read_molecules(file, on_invalid="error")
    with pytest.raises(ConfigError, match="Unknown on_invalid='drop'"):
        read_molecules(file, on_invalid="drop")


def test_new_molecules_need_no_labels(file):
    molecules = read_molecules(file, class_names=("no", "yes"))
    assert molecules.class_names == ("no", "yes")
    assert all(graph.y.tolist() == [-1] for graph in molecules.graphs)


def test_new_molecules_with_labels_keep_the_classes_of_the_model(file):
    file.write_text("smiles,active\nCC,1\nC,\n", encoding="utf-8")
    molecules = read_molecules(file, label="active", class_names=("0", "1", "2"))
    assert [int(graph.y) for graph in molecules.graphs] == [1, -1]
    assert "1 of 2 without a label." in molecules.notes
    with pytest.raises(DataError, match=r"'active' \(got '1' at '.*drugs.csv', line 2\)"):
        read_molecules(file, label="active", class_names=("0", "2"))


def test_bad_tables_are_refused(file):
    with pytest.raises(DataError, match=r"SMILES column 'smile' in .*mean 'smiles'"):
        read_molecules(file, smiles="smile")
    with pytest.raises(DataError, match=r"label column 'activ' in .*mean 'active'"):
        read_molecules(file, label="activ")
    with pytest.raises(DataError, match="got 6 rows, none that can be parsed"):
        read_molecules(file, smiles="mass")
    file.write_text("id,smiles,active\na,C,1\na,CC,0\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"'a' at '.*drugs.csv', line 2, and again at .*line 3"):
        read_molecules(file, id_column="id")
    with pytest.raises(DataError, match=r"got one in '0' of column 'active' in .*1 other"):
        read_molecules(file, label="active")
    assert read_molecules(file, label="active", allow_singletons=True).num_classes == 2


def test_the_hash_follows_the_content(file):
    first = read_molecules(file, label="active").content_hash
    assert read_molecules(file, label="active").content_hash == first
    file.write_text(TABLE.replace("one,CC", "one,CN"), encoding="utf-8")
    assert read_molecules(file, label="active").content_hash != first
    file.write_text(
        TABLE.replace("one,CC,1", "one,CC,0").replace("two,CCO,0", "two,CCO,1"), encoding="utf-8"
    )
    assert read_molecules(file, label="active").content_hash != first

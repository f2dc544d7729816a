"""Molecules from SMILES, with OGB's nine atom and three bond features."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from geof.data.raw_files import Integers, undirected
from geof.errors import DataError

ATOM_SIZES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Sizes of OGB's vocabularies: atomic number, chirality, degree, charge, hydrogens, radical
electrons, hybridisation, aromatic, in a ring. All but the last two end with "anything else"."""

BOND_SIZES = (5, 6, 2)
"""Sizes of OGB's vocabularies: kind, stereo, conjugated."""

_CHIRALITY = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
_HYBRIDISATION = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
_BOND = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")


@dataclass(frozen=True)
class Molecule:
    """A molecule as OGB encodes it.

    Attributes:
        atoms: Nine codes per atom, within :data:`ATOM_SIZES`.
        bonds: The two ends of every bond, once.
        bond_codes: Three codes per bond, within :data:`BOND_SIZES`.
    """

    atoms: Integers
    bonds: Integers
    bond_codes: Integers


def parse_smiles(smiles: str) -> Molecule | None:
    """Return the molecule, or ``None`` if RDKit cannot parse it or finds no atom in it.

    Raises:
        DataError: If RDKit is not installed.
    """
    rdkit_version()
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or molecule.GetNumAtoms() == 0:
        return None
    atoms = [_atom_codes(atom) for atom in molecule.GetAtoms()]
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    codes = [_bond_codes(bond) for bond in molecule.GetBonds()]
    return Molecule(
        atoms=np.array(atoms, dtype=np.int64),
        bonds=np.array(bonds, dtype=np.int64).reshape(-1, 2),
        bond_codes=np.array(codes, dtype=np.int64).reshape(-1, 3),
    )


def _atom_codes(atom: Any) -> list[int]:
    """Encode like ``ogb.utils.features.atom_to_feature_vector``."""
    return [
        _within(atom.GetAtomicNum() - 1, 118),
        _place(_CHIRALITY, atom.GetChiralTag()),
        _within(atom.GetTotalDegree(), 11),
        _within(atom.GetFormalCharge() + 5, 11),
        _within(atom.GetTotalNumHs(), 9),
        _within(atom.GetNumRadicalElectrons(), 5),
        _place(_HYBRIDISATION, atom.GetHybridization()),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    ]


def _bond_codes(bond: Any) -> list[int]:
    """Encode like ``ogb.utils.features.bond_to_feature_vector``."""
    # OGB knows no stereo kinds younger than it is and raises; we take them for "any".
    stereo = min(_place(_STEREO, bond.GetStereo()), len(_STEREO) - 1)
    return [_place(_BOND, bond.GetBondType()), stereo, int(bond.GetIsConjugated())]


def _within(value: int, other: int) -> int:
    return value if 0 <= value < other else other


def _place(names: tuple[str, ...], value: object) -> int:
    name = str(value)
    return names.index(name) if name in names else len(names)


def rdkit_version() -> str:
    """Return RDKit's version, or say how to install it."""
    try:
        return importlib.metadata.version("rdkit")
    except importlib.metadata.PackageNotFoundError as error:
        raise DataError(
            "Expected RDKit for reading SMILES (it is not installed). Run pip install rdkit."
        ) from error


def one_hot(codes: Tensor, sizes: Sequence[int]) -> Tensor:
    """Widen categorical codes ``(n, k)`` to ``(n, sum(sizes))``, a one per column of codes."""
    offset = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    wide = torch.zeros(codes.size(0), sum(sizes))
    return wide.scatter_(1, codes.long() + offset, 1.0)


def molecule_graph(smiles: str) -> Data | None:
    """Return the graph of a molecule, or ``None`` if RDKit cannot parse it.

    Returns:
        ``x`` (one-hot atom features, :data:`ATOM_SIZES`), ``edge_index`` and ``edge_attr`` (bond
        codes).
    """
    molecule = parse_smiles(smiles)
    if molecule is None:
        return None
    ends, place = undirected(molecule.bonds[:, 0], molecule.bonds[:, 1], len(molecule.atoms))
    return Data(
        x=one_hot(torch.from_numpy(molecule.atoms), ATOM_SIZES),
        edge_index=torch.from_numpy(ends),
        edge_attr=torch.from_numpy(molecule.bond_codes[place]),
    )

"""Molecules from SMILES, one or a table of them, with OGB's nine atom and three bond features."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from geof.data.columns import label_indices
from geof.data.files import File, Table, read_table, unique_cells
from geof.data.records import (
    GraphSet,
    Labels,
    class_names_of,
    graph_set,
    missing_note,
    require_members,
    undirected,
)
from geof.data.targets import CLASSES, TargetKind, column_facts, column_targets, require_known
from geof.draws import Integers
from geof.errors import SHOWN, ConfigError, DataError, listed, nearest
from geof.progress import tracked

ATOM_SIZES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Sizes of OGB's vocabularies: atomic number, chirality, degree, charge, hydrogens, radical
electrons, hybridisation, aromatic, in a ring. All but the last two end with "anything else"."""

ATOM_FIELDS = (
    *("element", "chirality", "degree", "charge", "hydrogens", "radical electrons"),
    *("hybridisation", "aromatic", "in a ring"),
)
"""What the codes of an atom are, in the order of :data:`ATOM_SIZES`."""

BOND_SIZES = (5, 6, 2)
"""Sizes of OGB's vocabularies: kind, stereo, conjugated."""

RING_SIZE = 2
"""Size of what :func:`in_ring` adds to the bonds that a model uses: whether one is in a ring."""

OnInvalid: TypeAlias = Literal["note", "error"]

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


def atom_feature_names() -> tuple[str, ...]:
    """Return a name for each of the one-hot atom features, such as ``element 6`` for carbon."""
    worded = {"chirality": _CHIRALITY, "hybridisation": _HYBRIDISATION}
    worded |= dict.fromkeys(("aromatic", "in a ring"), ("no", "yes"))
    first = {"element": 1, "charge": -5}  # what the code 0 stands for
    names = []
    for field, size in zip(ATOM_FIELDS, ATOM_SIZES, strict=True):
        words = worded.get(field) or [str(first.get(field, 0) + code) for code in range(size - 1)]
        names += [f"{field} {word}" for word in [*words, "other"][:size]]
    return tuple(names)


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


def in_ring(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return whether each edge of an undirected graph, given in both directions, is in a ring.

    An edge outside every ring is the only way between two parts of the graph. Edges that a spanning
    forest leaves out close a ring each; every one gets a random number, and an edge of the forest
    is in a ring if the numbers that begin below it do not all end there: their sum by
    exclusive or is not zero, but for one chance in :math:`2^{64}`.
    """
    source, target = edge_index.numpy()
    parent, order = _spanning_forest(source, target, num_nodes)
    closing = (parent[source] != target) & (parent[target] != source)
    once = closing & (source < target)
    numbers = np.random.default_rng(0).integers(1, 2**63, int(once.sum()), dtype=np.int64)
    sums = np.zeros(num_nodes + 1, np.int64)
    for ends in (source, target):
        np.bitwise_xor.at(sums, ends[once], numbers)
    below, above = sums.tolist(), parent.tolist()
    for node in reversed(order.tolist()):
        below[above[node]] ^= below[node]
    lower = np.where(parent[source] == target, source, target)
    return torch.from_numpy(closing | (np.array(below)[lower] != 0))


def _spanning_forest(source: Integers, target: Integers, n: int) -> tuple[Integers, Integers]:
    """Return each node's parent, ``n`` for a root, and the nodes from the roots on."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    def graph(rows: Integers, columns: Integers, size: int) -> Any:
        return coo_array((np.ones(len(rows), np.int8), (rows, columns)), (size, size)).tocsr()

    _, part = connected_components(graph(source, target, n), directed=False)
    _, roots = np.unique(part, return_index=True)
    joined = graph(np.append(source, np.full(len(roots), n)), np.append(target, roots), n + 1)
    order, parent = breadth_first_order(joined, n, directed=True)
    return parent.astype(np.int64), order[1:].astype(np.int64)


# Tables of molecules --------------------------------------------------------------------------


def read_molecules(
    file: File,
    *,
    smiles: str = "smiles",
    label: str | Sequence[str] | None = None,
    id_column: str | None = None,
    class_names: Sequence[str] = (),
    on_invalid: OnInvalid = "note",
    allow_singletons: bool = False,
    target_kind: TargetKind | None = None,
    aside: Sequence[str] = (),
) -> GraphSet:
    """Read molecules with OGB's atom and bond features.

    Args:
        file: ``.csv``, ``.tsv`` or ``.parquet``, a row per molecule. Further columns are not used
            and named in a note.
        smiles: The column of SMILES; ``"smiles"`` is also found in other letters, ``SMILES`` say.
        label: The column to predict, or several; an empty cell is no label. ``None`` for new
            molecules.
        id_column: The column of identifiers (default: rows, counted from 0, as the file has them).
        class_names: For prediction: the classes a model was trained on, which labels must be among.
        on_invalid: ``"note"`` leaves out rows whose SMILES cannot be parsed and names their lines
            in a note; ``"error"`` refuses the first one.
        allow_singletons: Whether a class may have a single member, and a target no value at all.
        target_kind: ``"classes"``, ``"regression"`` or ``"binary"`` (default: guessed, with a
            note).
        aside: Columns that a split goes by, kept beside the graphs.

    Raises:
        DataError: With file and line of what cannot be used.
    """
    if on_invalid not in get_args(OnInvalid):
        hint = nearest(on_invalid, get_args(OnInvalid))
        raise ConfigError(f"Unknown on_invalid={on_invalid!r}. {hint}")
    table = read_table(file)
    given, smiles = smiles, smiles_column(table, smiles)
    aside = [smiles if name == given else name for name in aside]
    graphs, invalid = _parse(table, smiles, on_invalid)
    rows = [row for row in range(len(table)) if row not in invalid]
    kept = table.take(rows)
    labels = (label,) if isinstance(label, str) else tuple(label or ())
    beside = {name: tuple(kept.cells(name, "split column")) for name in aside}
    found = _labels(kept, labels, target_kind, class_names, allow_singletons)
    ids = unique_cells(kept, id_column) if id_column else tuple(map(str, rows))
    notes = _notes(table, invalid, {smiles, *labels, id_column, *aside})
    said = [*found.notes, *notes]
    read = graph_set(Path(file).stem, graphs, found.y, found.class_names, ids, said, found.facts)
    found_aside = {given if name == smiles else name: beside[name] for name in beside}
    return replace(read, aside=found_aside, feature_names=atom_feature_names())


def smiles_column(table: Table, name: str = "smiles") -> str:
    """Return the column of SMILES: that name, or, for ``"smiles"``, the one that differs in case.

    Raises:
        DataError: If there is none, with the flag that names it.
    """
    alike = [column for column in table.columns if column.strip().casefold() == "smiles"]
    if name == "smiles" and name not in table.columns and len(alike) == 1:
        return alike[0]
    table.cells(name, "SMILES column", "smiles= (--smiles COLUMN)")
    return name


def _labels(
    table: Table,
    columns: Sequence[str],
    kind: TargetKind | None,
    known: Sequence[str],
    allow_singletons: bool,
) -> Labels:
    """Return what the label columns hold; ``known`` are the classes a model was trained on."""
    if not columns:
        return Labels(torch.full((len(table),), -1), tuple(known), CLASSES, [])
    facts, notes = column_facts(table, columns, "classes" if known else kind)
    if facts.kind != "classes":
        y = column_targets(table, facts)
        if not allow_singletons:
            require_known(y, facts, f"'{table.source}'")
        return Labels(y, (), facts, [*notes, *missing_note(y)])
    names = tuple(known) or class_names_of(table.cells(columns[0], "label column"))
    y = label_indices(table, columns[0], names)
    if not known:
        where = f" of column {columns[0]!r} in '{table.source}'"
        require_members(y, names, allow_singletons, where)
    unlabelled = int((y < 0).sum())
    notes += [f"{unlabelled} of {len(table)} without a label."] if unlabelled else []
    return Labels(y, names, facts, notes)


def _parse(table: Table, smiles: str, on_invalid: OnInvalid) -> tuple[list[Data], dict[int, str]]:
    """Return the molecules, and the SMILES of rows that are none."""
    graphs: list[Data] = []
    invalid: dict[int, str] = {}
    cells = table.cells(smiles, "SMILES column")
    for row, text in enumerate(tracked("molecules", cells, len(cells))):
        graph = molecule_graph(text.strip()) if text.strip() else None
        if graph is not None:
            graphs.append(graph)
            continue
        if on_invalid == "error":
            raise DataError(
                f"Expected a SMILES that can be parsed in column {smiles!r} (got {text!r} at "
                f"{table.place(row)}). Correct it, or leave such rows out with on_invalid='note'."
            )
        invalid[row] = text
    if not graphs:
        raise DataError(
            f"Expected molecules in column {smiles!r} of '{table.source}' (got {len(table)} rows, "
            "none that can be parsed). Name the column with smiles= (--smiles COLUMN)."
        )
    return graphs, invalid


def _notes(table: Table, invalid: dict[int, str], used: set[str | None]) -> list[str]:
    notes = []
    if invalid:
        first = list(invalid.items())[:SHOWN]
        places = ", ".join(f"{table.places[row]} ({text!r})" for row, text in first)
        more = f" and {len(invalid) - SHOWN} more" if len(invalid) > SHOWN else ""
        notes.append(
            f"{len(invalid)} of {len(table)} SMILES in '{table.source}' cannot be parsed and are "
            f"left out: {table.unit} {places}{more}."
        )
    if unused := [name for name in table.columns if name not in used]:
        notes.append(f"Columns not used: {listed(unused)}.")
    return notes

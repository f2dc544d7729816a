"""What a config says about its data and their signatures, and how both are had.

Signatures are cached on disk when they are exact and costly.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data

from geof.data.cache import Entry, cache_key, content_hash, load_or_build
from geof.data.catalogue import CATALOGUE, load
from geof.data.columns import ArrayEncoder, Kind, Schema
from geof.data.graph_sets import PackedGraphs
from geof.data.molecules import BOND_SIZES, RING_SIZE, in_ring
from geof.data.own_splits import SMILES, split_columns
from geof.data.records import EdgeSizes, GraphSet, NodeGraph, ReadOptions
from geof.data.targets import TargetKind
from geof.errors import ConfigError, DataError
from geof.methods.interface import TaskKind
from geof.options import Options
from geof.signature import Degree, Method, StructuralSignature, structural_signature

SOURCES = ("dataset", "nodes", "molecules", "npz", "arrays")
"""The options that each name a source; exactly one is needed."""

OWN = SOURCES[1:]
"""Those of a user's own data."""

Text: TypeAlias = str | None
File: TypeAlias = Path | None


@dataclass(frozen=True)
class DataConfig(Options):
    """What names the data: a benchmark, or the user's own files. Empty for data made in Python."""

    dataset: Annotated[Text, Field(description="a benchmark of 'geof data list'")] = None
    nodes: Annotated[File, Field(description="table of nodes, with --edges")] = None
    molecules: Annotated[File, Field(description="table of SMILES")] = None
    npz: Annotated[File, Field(description="one graph in NumPy's format")] = None
    arrays: Annotated[
        File, Field(description="folder of x.npy, edge_index.npy and y.npy, mapped and not copied")
    ] = None
    edges: Annotated[File, Field(description="table of edges, with --nodes")] = None
    id: Annotated[Text, Field(description="column of identifiers")] = None
    source: Annotated[Text, Field(description="first column of edges or pairs")] = None
    target: Annotated[Text, Field(description="second column of edges or pairs")] = None
    smiles: Annotated[Text, Field(description="column of SMILES (default: smiles)")] = None
    label: Annotated[
        str | tuple[str, ...] | None,
        Field(description="the column to predict; several for several targets"),
    ] = None
    target_kind: Annotated[
        TargetKind | None,
        Field(description="what the labels are: classes, numbers or yes-or-no (default: guessed)"),
    ] = None
    directed: Annotated[
        bool, Field(description="messages run along an edge's direction, from source to target")
    ] = False
    standardise: Annotated[
        bool,
        Field(
            description="of arrays: columns of numbers are standardised as those of tables are; "
            "zeros and ones, and counts that are mostly zero, stay as they are"
        ),
    ] = False
    drop: Annotated[tuple[str, ...], Field(description="node columns to leave out")] = ()
    kinds: Annotated[
        tuple[str, ...],
        Field(description="node columns that are not what they look like: postcode=categorical"),
    ] = ()
    allow_singletons: Annotated[
        bool, Field(description="admit classes with a single member, which no split can hold")
    ] = False
    missing: Annotated[
        Literal["error", "mean"] | None,
        Field(description="what to do with missing numbers (default: error)"),
    ] = None
    edge_columns: Annotated[
        Literal["refuse", "ignore", "use"] | None,
        Field(
            description="what to do with edge weights and attributes (default: refuse those of "
            "your own files, ignore those of benchmarks and bonds of molecules)"
        ),
    ] = None
    edge_weight: Annotated[Text, Field(description="column of edge weights, at least 0")] = None
    edge_attr: Annotated[
        tuple[str, ...], Field(description="columns of edge attributes, words or numbers")
    ] = ()
    data_root: Annotated[File, Field(description="raw benchmark files")] = None
    raw_features: Annotated[
        bool, Field(description="benchmark features without row normalisation")
    ] = False

    @classmethod
    def _place(cls) -> str:
        return "data."

    @property
    def kind(self) -> str | None:
        """Which source is named, ``None`` for data made in Python."""
        return next((name for name in SOURCES if getattr(self, name) is not None), None)

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    @property
    def column_kinds(self) -> dict[str, Kind]:
        """The kind of each column that is not what it looks like.

        Raises:
            ConfigError: For a word that is not ``COLUMN=KIND``.
        """
        kinds: dict[str, Any] = {}
        for word in self.kinds:
            column, equals, kind = word.rpartition("=")
            if not equals or not column:
                raise ConfigError(
                    f"Expected '--kind COLUMN=KIND', such as postcode=categorical (got {word!r})."
                )
            kinds[column] = kind
        return kinds

    @property
    def default_task(self) -> TaskKind:
        """The task when none is named: a set of graphs is classified, and so are nodes."""
        known = CATALOGUE.get(self.dataset or "")
        of_graphs = known is not None and "graph classification" in known.tasks
        return "graph" if self.molecules is not None or of_graphs else "node"

    def require_source(self) -> str:
        """Return which source is named.

        Raises:
            ConfigError: Unless it is exactly one, with nothing said that it has no use of.
        """
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            names = ", ".join(f"--{name}" for name in SOURCES)
            got = " and ".join(f"--{name}" for name in given) or "none"
            raise ConfigError(f"Expected exactly one of {names} (got {got}).")
        if given[0] == "nodes" and self.edges is None:
            raise ConfigError("Expected '--edges FILE' beside '--nodes'.")
        for name in _USED_BY:
            if given[0] not in _USED_BY[name] and getattr(self, name):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(
                    f"Expected no '{flag}' beside '--{given[0]}', which has no use of it."
                )
        return given[0]

    def to_dict(self) -> dict[str, Any]:
        """Return what is given, as plain values; paths are made absolute, to be found again."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: _plain(value) for name, value in found.items() if value}

    def columns_only(self) -> DataConfig:
        """Return the same without names of files: what may be told to others."""
        named = replace(self, nodes=None, molecules=None, npz=None, arrays=None)
        return replace(named, edges=None, data_root=None)


_USED_BY: dict[str, tuple[str, ...]] = {
    "data_root": ("dataset",),
    "raw_features": ("dataset",),
    "edges": ("nodes",),
    "id": ("nodes", "molecules"),
    "label": ("nodes", "molecules"),
    "target_kind": ("nodes", "molecules", "npz", "arrays"),
    "directed": ("nodes", "npz", "arrays"),
    "standardise": ("npz",),
    "drop": ("nodes",),
    "kinds": ("nodes",),
    "allow_singletons": OWN,
    "edge_weight": ("nodes",),
    "edge_attr": ("nodes",),
    "source": ("nodes", "npz", "arrays", "dataset"),
    "target": ("nodes", "npz", "arrays", "dataset"),
}
"""Which sources have a use of an option; those not named here are for all."""


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.resolve())
    return list(value) if isinstance(value, tuple) else value


class Loaded(NamedTuple):
    """Data, and the schema that tables of nodes went through."""

    data: NodeGraph | GraphSet
    schema: Schema | None = None


def read_data(config: DataConfig, task: TaskKind = "node", split: str = "0") -> Loaded:
    """Read labelled data.

    Args:
        config: What names them.
        task: What they are for; links need no label.
        split: How they will be split: the columns that takes are no features.

    Raises:
        ConfigError: If nothing, or too much, names them.
        DataError: If they cannot be read.
    """
    kind, aside = config.require_source(), split_columns(split)
    if kind == "dataset":
        return Loaded(read_benchmark(config))
    if kind in ("npz", "arrays"):
        from geof.data.formats import from_arrays, from_npz

        options: ReadOptions = {
            "edge_columns": config.edge_columns or "refuse",
            "directed": config.directed,
            "allow_singletons": config.allow_singletons,
        }
        if config.target_kind is not None:
            options["target_kind"] = config.target_kind
        own = tuple(name for name in aside if name != SMILES)
        if config.arrays is not None:
            return Loaded(from_arrays(config.arrays, aside=own, **options))
        assert config.npz is not None
        graph = from_npz(config.npz, aside=own, **options)
        return standardised(graph) if config.standardise else Loaded(graph)
    if config.label is None and (kind == "molecules" or task != "link"):
        raise ConfigError("Expected '--label COLUMN', the column to predict (got none).")
    if kind == "molecules":
        from geof.data.molecules import read_molecules

        assert config.molecules is not None
        smiles = config.smiles or "smiles"
        found = read_molecules(
            config.molecules,
            smiles=smiles,
            label=config.labels,
            id_column=config.id,
            target_kind=config.target_kind,
            aside=[smiles if name == SMILES else name for name in aside],
            allow_singletons=config.allow_singletons,
        )
        if SMILES in aside:
            found = replace(found, aside={SMILES: found.aside[smiles]})
        return Loaded(with_edges(found, config))
    from geof.data.tables import read_node_table

    assert config.nodes is not None
    assert config.edges is not None
    return Loaded(
        *read_node_table(
            config.nodes,
            config.edges,
            label=config.labels,
            id_column=config.id,
            drop=config.drop,
            kinds=config.column_kinds,
            allow_singletons=config.allow_singletons,
            target_kind=config.target_kind,
            directed=config.directed,
            aside=[name for name in aside if name != SMILES],
            missing=config.missing or "error",
            source=config.source,
            target=config.target,
            edge_columns=config.edge_columns or "refuse",
            edge_weight=config.edge_weight,
            edge_attr=config.edge_attr,
        )
    )


def standardised(graph: NodeGraph) -> Loaded:
    """Return a graph with standardised columns, as one read from a table has them, and how.

    Sparse features stay as they are.
    """
    if graph.graph.x.layout != torch.strided:
        return Loaded(graph)
    encoder = ArrayEncoder.fit(graph.graph.x)
    changed = sum(pair != (0.0, 1.0) for pair in zip(encoder.mean, encoder.scale, strict=True))
    if not changed:
        return Loaded(graph)
    note = f"{changed} of {len(encoder.mean)} columns are numbers and were standardised."
    return Loaded(replace(encoded(graph, encoder), notes=(*graph.notes, note)), encoder)


def encoded(graph: NodeGraph, encoder: ArrayEncoder) -> NodeGraph:
    """Return a graph whose features went through what a run's did."""
    data = copy(graph.graph)
    data.x = encoder.encode(data.x)
    return replace(graph, graph=data)


def read_benchmark(config: DataConfig) -> NodeGraph | GraphSet:
    """Load the benchmark a config names."""
    assert config.dataset is not None
    data = load(config.dataset, data_root=config.data_root, row_normalise=not config.raw_features)
    return with_edges(data, config)


def with_edges(data: NodeGraph | GraphSet, config: DataConfig) -> NodeGraph | GraphSet:
    """Let a set of graphs use its edge attributes, bonds or labels, if the config says so.

    Bonds are told apart by kind, stereo, conjugation and whether they are in a ring.

    Raises:
        DataError: If there are none.
    """
    if config.edge_columns != "use":
        return data
    if isinstance(data, NodeGraph) or not data.graphs or data.graphs[0].edge_attr is None:
        raise DataError(
            f"Expected edge attributes in '{data.name}' for edge_columns='use' (got none). Leave "
            "it out."
        )
    facts = CATALOGUE.get(data.name) if config.dataset else None
    if facts is None or facts.loader != "tu":
        bonds = EdgeSizes((*BOND_SIZES, RING_SIZE))
        return replace(data, graphs=_with_rings(data.graphs), edge_sizes=bonds)
    codes = [graph.edge_attr.amax(0) for graph in data.graphs if len(graph.edge_attr)]
    most = torch.stack(codes).amax(0) + 1
    return replace(data, edge_sizes=EdgeSizes(tuple(most.tolist())))


def _with_rings(graphs: Sequence[Data]) -> Sequence[Data]:
    """Return the graphs with a further column of ``edge_attr``: whether an edge is in a ring."""
    if isinstance(graphs, PackedGraphs):
        return graphs.with_rings()
    copies = []
    for graph in graphs:
        ring = in_ring(graph.edge_index, graph.num_nodes)[:, None].long()
        copies.append(copy(graph))
        copies[-1].edge_attr = torch.cat([graph.edge_attr, ring], dim=1)
    return copies


def notes_of(data: NodeGraph | GraphSet) -> tuple[str, ...]:
    """Return what a reader of a result must know about the data, what no method reads included."""
    if not isinstance(data, GraphSet) or data.edge_sizes is not None or not data.graphs:
        return data.notes
    if data.graphs[0].edge_attr is not None:
        unused = "Edge features (bonds) are there and not used: the paper's model has none."
        return (*data.notes, unused)
    return data.notes


SIGNATURE_VERSION = 1
"""Raised whenever the computed values of signatures change."""

WORTH_CACHING = 1e8
"""Nodes times edges below which computing is quicker than reading."""


@dataclass(frozen=True)
class SignatureConfig(Options):
    """Arguments of :func:`structural_signature` that a run decides and records."""

    walk_length: Annotated[
        int, Field(ge=0, description="Longest closed walk whose return probability is taken.")
    ] = 16
    degree: Annotated[
        Degree,
        Field(description="Degree over the largest one, or logarithm over logarithm."),
    ] = "max"
    method: Annotated[
        Method, Field(description="Exact in blocks, or an unbiased estimate for large graphs.")
    ] = "exact"
    probes: Annotated[int, Field(ge=2, description="Random vectors of an estimate.")] = 256
    seed: Annotated[int, Field(ge=0, description="Of the random vectors.")] = 0

    @classmethod
    def _place(cls) -> str:
        return "signature."


def cached_signature(
    edge_index: Tensor,
    num_nodes: int,
    config: SignatureConfig | None = None,
    *,
    batch: Tensor | None = None,
) -> StructuralSignature:
    """Return the :func:`structural_signature`, an exact one from the cache when it is there.

    Small graphs are computed anew, and so are estimates: nothing is written for them.
    """
    config = config or SignatureConfig()

    def compute() -> StructuralSignature:
        return structural_signature(edge_index, num_nodes, batch=batch, **asdict(config))

    worth = num_nodes * edge_index.size(1) >= WORTH_CACHING
    if config.method != "exact" or not worth:
        return compute()
    walk_length, degree = config.walk_length, config.degree
    inputs = {"edge_index": edge_index, "nodes": torch.tensor([num_nodes])}
    if batch is not None:
        inputs["batch"] = batch
    key = cache_key(
        {"inputs": content_hash(inputs)},
        SIGNATURE_VERSION,
        {"walk_length": walk_length, "degree": degree},
    )
    entry = load_or_build("signatures", key, lambda: Entry({"values": compute().values}))
    return StructuralSignature(entry.tensors["values"], walk_length, degree, "exact")

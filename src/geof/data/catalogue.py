"""The twelve datasets of the paper: where their raw files are, and what is in them.

Raw files lie below a data root in the layout of PyG's dataset classes. Checksums are given for
files known to be upstream's own bytes and for no others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from geof.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph

Loader: TypeAlias = Literal["planetoid", "npz", "tu", "smiles", "ogb"]

NODE_TASKS = ("node classification", "link prediction")
GRAPH_TASKS = ("graph classification",)


@dataclass(frozen=True)
class RawFile:
    """A file below the data root.

    Attributes:
        path: Relative to the data root, with forward slashes.
        sha256: Of upstream's own bytes; ``None`` where we never held them, or where copies with
            the same content and other bytes are read, too.
        download: What a download must be, for files without ``sha256``: ``"sha256:..."`` or
            ``"git:..."``, the name of git's blob; ``None`` where nobody published either.
        optional: Whether the loader can do without, saying so.
        rows: Data rows of a text file that has neither checksum nor framing to tell a truncated
            copy by.
    """

    path: str
    sha256: str | None = None
    optional: bool = False
    rows: int | None = None
    download: str | None = None


@dataclass(frozen=True)
class Statistics:
    """Sizes after loading.

    Attributes:
        graphs: Number of graphs.
        nodes: In all graphs together.
        edges: In all graphs together, every undirected edge counted twice, no self-loops.
        features: Columns of ``x``.
        classes: Number of classes.
    """

    graphs: int
    nodes: int
    edges: int
    features: int
    classes: int


@dataclass(frozen=True)
class DatasetFacts:
    """The facts of one dataset.

    Attributes:
        name: As the paper writes it.
        loader: Format of the raw files.
        tasks: What the paper does with it.
        metrics: The paper's metric for each task, in the order of ``tasks``.
        folder: Below the data root.
        files: The raw files; other files in the folder are left alone.
        urls: What :func:`geof.data.provision.fetch` downloads: the addresses PyG and OGB use.
        expected: Sizes we measured on the real files.
        features: What the columns of ``x`` are.
        checksums: What the checksums cover, and why some files have none.
        licence: Of the repository or collection that publishes the data, where it states one.
        source: Where the data come from.
        class_names: In the order of the sorted raw labels; empty to use the raw labels.
        difference: Why the sizes differ from those the paper prints; empty where they agree.
    """

    name: str
    loader: Loader
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    folder: str
    files: tuple[RawFile, ...]
    urls: tuple[str, ...]
    expected: Statistics
    features: str
    checksums: str
    licence: str
    source: str
    class_names: tuple[str, ...] = ()
    difference: str = ""

    @property
    def is_node_graph(self) -> bool:
        """Whether it is a single graph rather than a set of graphs."""
        return GRAPH_TASKS[0] not in self.tasks


_PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
_SHCHUR_URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_TU_URL = "https://www.chrsmrrs.com/graphkerneldatasets"
_DEEPCHEM_URL = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
_OGB_URL = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download"


def _planetoid(
    name: str, digests: Mapping[str, str], expected: Statistics, features: str
) -> DatasetFacts:
    names = {part: f"ind.{name.lower()}.{part}" for part in digests}
    return DatasetFacts(
        name=name,
        loader="planetoid",
        tasks=NODE_TASKS,
        metrics=("accuracy", "ROC-AUC"),
        folder=name,
        files=tuple(RawFile(f"{name}/raw/{names[p]}", sha) for p, sha in digests.items()),
        urls=tuple(f"{_PLANETOID_URL}/{file}" for file in names.values()),
        expected=expected,
        features=features,
        checksums="all files (git blobs of kimiyoung/planetoid, commit af6abf468a77)",
        licence="MIT",
        source="github.com/kimiyoung/planetoid, after Sen et al. 2008",
    )


def _npz(name: str, file: str, blob: str, expected: Statistics, features: str) -> DatasetFacts:
    return DatasetFacts(
        name=name,
        loader="npz",
        tasks=NODE_TASKS,
        metrics=("accuracy", "ROC-AUC"),
        folder=name,
        files=(RawFile(f"{name}/raw/{file}", download=f"git:{blob}"),),
        urls=(f"{_SHCHUR_URL}/{file}",),
        expected=expected,
        features=features,
        checksums="of a download (git blob of shchur/gnn-benchmark, commit 1e72912); none for a "
        "file that is there: measured on a re-packed archive with upstream's keys and values, "
        "whose bytes are not upstream's",
        licence="MIT",
        source="github.com/shchur/gnn-benchmark, Shchur et al. 2018",
    )


def _tu(
    name: str,
    digests: Mapping[str, str | None],
    expected: Statistics,
    features: str,
    difference: str,
    checksums: str = "all files (equal copies of the TUDataset collection in two repositories)",
    class_names: tuple[str, ...] = (),
) -> DatasetFacts:
    return DatasetFacts(
        name=name,
        loader="tu",
        tasks=GRAPH_TASKS,
        metrics=("accuracy",),
        folder=name,
        files=tuple(
            RawFile(f"{name}/raw/{name}_{part}.txt", sha, optional=part == "node_attributes")
            for part, sha in digests.items()
        ),
        urls=(f"{_TU_URL}/{name}.zip",),
        expected=expected,
        difference=difference,
        features=features,
        checksums=checksums,
        licence="not stated",
        source="chrsmrrs.github.io/datasets (TUDataset), Morris et al. 2020",
        class_names=class_names,
    )


_HALF = "The paper counts every undirected edge once, we count it twice"

_CITESEER = {
    "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
}
_PUBMED = {
    "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}
_PROTEINS = {
    "A": "4c4b33e272fc95cac6d27ed6d5d12b9a852c8610e91fff59f8f0dbdd5a20df67",
    "graph_indicator": "8d4ff1e852a5c28561e9bffb44cf9490bc552b13a3b6156dd12dc7f44e9afc4a",
    "graph_labels": "c0ef9810c440775252872318d0c8adc385588e14bc4c47a2c34aa96ee3c7cdcd",
    "node_labels": "f758e8ad3d6e3c026b50833d75f6f90735b94eb3345e4243707f495ca8afea8d",
}
_NCI1 = {
    "A": "2c028eda59a5fe96e2265a63d9ac236901bd9a7dc658498be13cd704a703076d",
    "graph_indicator": "ffe5acfa754b057d5ce0dc725c5aadb631628161886cc040d38c719635257dc5",
    "graph_labels": "fae44681e70113f496256ae87eaac33b7836e3a97fe8e023933b84fde6a5c8a2",
    "node_labels": "dc0a22b6cbff0c939de00373e823977ba32b358f560e4288d7602f7b51407ee2",
}
_MUTAGENICITY = {
    "A": "ae85e22b4b898ebd819d2ed3adc8f06a7bf1cda746b333086472d19b36711145",
    "graph_indicator": "88b2d83ff10fad75b3280654061e965976f74e75620058c371ed23567236b4bc",
    "graph_labels": "b604c7dcbfdf89193901e32abdcbf9b5b92137414ce22231f00ed65d48ec48f9",
    "node_labels": "b429ec418c831d02dc3088b2fe08d11214627850d2bbdacfa9797c0510e70ae7",
    "edge_labels": "bf8e783386ac22e6033bbce56d765c0a4336649bd590a6f1e467b27b549f2114",
}
_FRANKENSTEIN = {
    "A": "8b59e2c7f5e91e5ab3007d6cc0ba9aa6181fb55c9e17364a484f758b8a502890",
    "graph_indicator": None,
    "graph_labels": "189aa9ff62e8113c9989493d2a9aa2ecdf285137a95b7d25c912bbd6b9ba1b49",
    "node_attributes": "6ab4080ed35df5955b4209c3edb60cd561e12d8749e49c59f441bca2d19fd460",
}

_OGB_FILES = {
    "raw/edge": "d279b2d408f553cdc6e8ff9712e8eb52ee8831e6f63d29431812e27bca119389",
    "raw/edge-feat": "a59f5bcf890de811555f5d3819a96f713b4f8b6204801f286991c197afacf836",
    "raw/node-feat": "1e875d13c6442622d2b4f3763e7b0ef48cf2c769828b087ef0efe91c3bdb574b",
    "raw/graph-label": "88f950d08c606556cca1c1ffef05229f46d64043ad7fa617e8938a3ae9779993",
    "raw/num-node-list": "e26f7e29de4a3985c7f47482838c62f870c90c4d01871c57bfeae1b8d993a24b",
    "raw/num-edge-list": "fa058f23514328fd69bc9c4c31fd8f5938c4ce18726855489d0c0e2dfeaddd37",
    "split/scaffold/train": "9f1e46e77897b3de3d19452cbd47c312e2844a0ec664c1c9dc897c10d12e42f0",
    "split/scaffold/valid": "eaf4d6b4630f9e689d2b203669674d0dc309673319e8ac32daa9e9ca90e2e1fa",
    "split/scaffold/test": "27485729d83edd6f47eb3b8daff69fdb32c9df6b36b17204ef87f8dc1a30eab1",
}
_BBBP = "d07a38487aeac5cee5508413e468043ef3097451d2a112701c2d60be9ec6b662"
_ATOMS = "one-hot of OGB's nine atom features (119 + 5 + 12 + 12 + 10 + 6 + 6 + 2 + 2)"

CATALOGUE: dict[str, DatasetFacts] = {
    facts.name: facts
    for facts in (
        _planetoid(
            "CiteSeer", _CITESEER, Statistics(1, 3_327, 9_104, 3_703, 6), "words, 0/1 (sparse)"
        ),
        _planetoid(
            "PubMed", _PUBMED, Statistics(1, 19_717, 88_648, 500, 3), "words, TF-IDF (sparse)"
        ),
        _npz(
            "CS",
            "ms_academic_cs.npz",
            "9bdd7da943d86b74297e8d32e99eb64245b52835",
            Statistics(1, 18_333, 163_788, 6_805, 15),
            "keyword counts (sparse)",
        ),
        _npz(
            "Physics",
            "ms_academic_phy.npz",
            "8d8bc12e29aa67f6753a712080eae81079bd7d01",
            Statistics(1, 34_493, 495_924, 8_415, 5),
            "keyword counts (sparse)",
        ),
        _npz(
            "Photo",
            "amazon_electronics_photo.npz",
            "97323743cb56aca9dd611f5b4b46862c1c9c6bd9",
            Statistics(1, 7_650, 238_162, 745, 8),
            "words of reviews, 0/1 (dense: a third is non-zero)",
        ),
        _npz(
            "Computers",
            "amazon_electronics_computers.npz",
            "8120e4148a330b3fafe37c4476823302d9d834b9",
            Statistics(1, 13_752, 491_722, 767, 10),
            "words of reviews, 0/1 (dense: a third is non-zero)",
        ),
        _tu(
            "PROTEINS",
            _PROTEINS,
            Statistics(1_113, 43_471, 162_088, 3, 2),
            "one-hot of the 3 node labels, PyG's default; the one real-valued attribute of the "
            "collection (node_attributes) is not used",
            f"{_HALF} (145.63 = 2 x 72.82), and prints 39.06 and 72.82 to one decimal.",
        ),
        _tu(
            "NCI1",
            _NCI1,
            Statistics(4_110, 122_747, 265_506, 37, 2),
            "one-hot of the 37 node labels",
            f"{_HALF} (64.60 = 2 x 32.30).",
        ),
        _tu(
            "Mutagenicity",
            _MUTAGENICITY,
            Statistics(4_337, 131_488, 266_894, 14, 2),
            "one-hot of the 14 atom kinds; 'edge_attr' is the bond label",
            f"{_HALF} (61.54 = 2 x 30.77).",
            class_names=("mutagen", "nonmutagen"),
        ),
        _tu(
            "FRANKENSTEIN",
            _FRANKENSTEIN,
            Statistics(4_337, 73_283, 155_068, 780, 2),
            "780 real-valued attributes; without their file, one-hot degrees",
            f"{_HALF} (35.75 = 2 x 17.88).",
            checksums="A, graph_labels and node_attributes (161,012,686 bytes, from a git-lfs "
            "pointer); none for graph_indicator, of which we hold a reconstruction only",
        ),
        DatasetFacts(
            name="BBBP",
            loader="smiles",
            tasks=GRAPH_TASKS,
            metrics=("ROC-AUC",),
            folder="bbbp",
            files=(RawFile("bbbp/raw/BBBP.csv", rows=2_050, download=f"sha256:{_BBBP}"),),
            urls=(f"{_DEEPCHEM_URL}/BBBP.csv",),
            expected=Statistics(2_039, 49_068, 105_842, 174, 2),
            difference="The file has 2,050 rows; RDKit (2026.9) cannot parse 11 of them (rows 59, "
            "61, 391, 614, 642, 645-649 and 685, from 0), which leaves 2,039 graphs with 24.06 "
            "atoms on average. The paper's averages divide by all 2,050 (49,068 / 2,050 = 23.94, "
            "105,842 / 2,050 = 51.63) and, unlike in its other molecule rows, count every bond "
            "twice.",
            features=f"{_ATOMS}; 'edge_attr' is OGB's three bond features",
            checksums="of a download (the copy measured on has the MD5 that TorchDrug publishes); "
            "none for a file that is there, whose rows are counted",
            licence="not stated",
            source="moleculenet.org, Wu et al. 2018",
            class_names=("non-permeable", "permeable"),
        ),
        DatasetFacts(
            name="ogbg-molhiv",
            loader="ogb",
            tasks=GRAPH_TASKS,
            metrics=("ROC-AUC",),
            folder="ogbg_molhiv",
            files=tuple(
                RawFile(f"ogbg_molhiv/{part}.csv.gz", download=f"sha256:{sha}")
                for part, sha in _OGB_FILES.items()
            ),
            urls=(f"{_OGB_URL}/hiv.zip",),
            expected=Statistics(41_127, 1_049_163, 2_259_376, 174, 2),
            difference=f"{_HALF} (54.94 = 2 x 27.47), and prints 25.51 and 27.47 to one decimal.",
            features=f"{_ATOMS}; 'edge_attr' is OGB's three bond features",
            checksums="of a download (git-lfs pointers of a copy of OGB's folder); none for files "
            "that are there: measured on files derived anew from MoleculeNet's HIV.csv, equal to "
            "OGB's in order, structure, labels and split, not in the codes of a few metal atoms",
            licence="MIT",
            source="ogb.stanford.edu, Hu et al. 2020",
            class_names=("inactive", "active"),
        ),
    )
}
"""By name, in the order of the paper's table."""


def find(name: str) -> DatasetFacts:
    """Return the dataset called ``name``, in upper or lower case.

    Raises:
        ConfigError: For an unknown name, with the nearest known one.
    """
    by_lower = {known.lower(): facts for known, facts in CATALOGUE.items()}
    if name.lower() not in by_lower:
        raise ConfigError(f"Unknown dataset {name!r}. " + nearest(name, CATALOGUE))
    return by_lower[name.lower()]


def resolve_data_root(data_root: Path | str | None = None) -> Path:
    """Return the folder of raw files: the argument, or else ``GEOF_DATA``.

    Raises:
        DataError: If neither names a folder.
    """
    chosen = data_root or os.environ.get("GEOF_DATA")
    if not chosen:
        raise DataError(
            "Expected a folder of raw files (got none). Pass --data-root DIR (data_root=) or set "
            "GEOF_DATA; 'geof data fetch NAME --data-root DIR' fills it."
        )
    root = Path(chosen).expanduser()
    if not root.is_dir():
        what = "a file" if root.exists() else "nothing there"
        raise DataError(
            f"Expected the data root '{root}' to be a folder (got {what}). Correct --data-root or "
            "GEOF_DATA."
        )
    return root


def load(
    name: str,
    *,
    data_root: Path | str | None = None,
    row_normalise: bool = True,
    cache: bool = True,
) -> NodeGraph | GraphSet:
    """Load a dataset from raw files, or from what an earlier call prepared from the same files.

    Never touches the network.

    Args:
        name: One of :data:`CATALOGUE`.
        data_root: Folder of raw files (default: ``GEOF_DATA``). May be read-only.
        row_normalise: Whether the features of each node of a single graph are scaled to sum to one
            (paper, appendix "Data Processing"); sets of graphs are left as they are.
        cache: Whether to store the result in :func:`geof.data.cache.cache_folder`.

    Raises:
        ConfigError: For an unknown name.
        DataError: If a raw file is missing, is not what the catalogue expects, or cannot be read.
    """
    from geof.data.graph_sets import load_graph_set
    from geof.data.node_graphs import load_node_graph

    facts = find(name)
    root = resolve_data_root(data_root)
    if facts.is_node_graph:
        return load_node_graph(facts, root, row_normalise, cache)
    return load_graph_set(facts, root, cache)

"""What is known of the compared methods beside their runs: fidelity, sources, published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from geof.methods.interface import TaskKind


@dataclass(frozen=True)
class Facts:
    """Of one method.

    Attributes:
        fidelity: What was compared with what.
        sources: Where the preset of a task comes from.
        epochs: How many were published for a task; a task that is missing has none.
        scores: What the method's own paper prints, in percent, with its split where that is not
            60/20/20.
    """

    fidelity: str
    sources: Mapping[TaskKind, str]
    epochs: Mapping[TaskKind, str] = field(default_factory=dict)
    scores: Mapping[tuple[TaskKind, str], str] = field(default_factory=dict)


_READ = "public code read line by line (no licence), no numbers"
_NUMBERS = "public code read, its numbers in tests"
_CONTROL = "reconstructed from two sentences; the statistic is GeoF's own code"
_MATCHED: dict[TaskKind, str] = {
    "node": "GeoF `tuned`",
    "link": "GeoF `tuned`",
    "graph": "GeoF `tuned`",
}

FACTS = {
    "gcn": Facts(
        "PyG's network",
        {"node": "Kipf and Welling", "link": "PyG's example", "graph": "PyG's tutorial"},
        {"node": "200", "link": "100"},
    ),
    "gin": Facts(
        _NUMBERS,
        {"node": "ours", "link": "ours", "graph": "authors' defaults"},
        {"graph": "350 of 50 batches"},
    ),
    "ml2-gcl": Facts(
        _READ,
        {"node": "authors' program (Cora)", "link": "the same pretext", "graph": "from nodes"},
        {"node": "40 of the pretext", "link": "40 of the pretext"},
    ),
    "amp": Facts(
        "from the paper; public code not run (licence)",
        {"node": "paper", "link": "from nodes", "graph": "paper"},
        {"node": "2000, patience 250", "graph": "250"},
        {("node", "CiteSeer"): "75.1 (48/32/20)", ("node", "PubMed"): "89.7 (48/32/20)"},
    ),
    "wavegc": Facts(
        _READ,
        {
            "node": "authors' files (CS, Photo, Computers)",
            "link": "from nodes",
            "graph": "authors' file (Peptides-func), smaller",
        },
        {"node": "100 (Computers 200)", "graph": "250"},
        {
            ("node", "CS"): "95.9 (second hand)",
            ("node", "Photo"): "95.4 (second hand)",
            ("node", "Computers"): "92.3 (second hand)",
        },
    ),
    "sparrow": Facts(
        "reconstructed from the abstract; GRACE's numbers in tests",
        {"node": "GRACE", "link": "GRACE", "graph": "ours"},
    ),
    "g2former": Facts(
        _READ,
        {
            "node": "authors' `run.sh` and the paper, narrower",
            "link": "from nodes",
            "graph": "from nodes",
        },
        {"node": "3000, patience 1000"},
        {
            ("node", "CiteSeer"): "72.6 (20 per class)",
            ("node", "PubMed"): "79.3 (20 per class)",
            ("node", "CS"): "96.5",
            ("node", "Physics"): "97.6",
            ("node", "Photo"): "97.1",
            ("node", "Computers"): "94.3",
        },
    ),
    "hgcn": Facts(
        "public code read (no licence); the same layers' numbers in ACE-HGNN's tests",
        {"node": "authors' scripts", "link": "authors' scripts", "graph": "ours"},
        {"node": "5000, patience 100", "link": "5000, patience 100"},
    ),
    "d-gcn": Facts(
        _NUMBERS,
        {
            "node": "authors' scripts, two stages",
            "link": "authors' scripts",
            "graph": "from nodes",
        },
        {"node": "200 + 200 to 300, then 500", "link": "300"},
    ),
    "spdgnn": Facts(
        "reconstructed from a list of operators; no public code found",
        {"node": "ours", "link": "ours", "graph": "ours"},
    ),
    "ace-hgnn": Facts(
        _NUMBERS,
        {"node": "authors' defaults", "link": "authors' defaults", "graph": "ours"},
        {"node": "2000", "link": "2000"},
    ),
    "bec-gnn": Facts(
        _READ,
        {
            "node": "authors' program (Wisconsin)",
            "link": "from nodes",
            "graph": "authors' TU program",
        },
        {"node": "1000", "graph": "500 (OGB 100)"},
    ),
    "gnrf": Facts(
        _READ + "; its solver's (torchdiffeq) numbers in tests",
        {"node": "authors' file (PubMed)", "link": "from nodes", "graph": "from nodes"},
        {"node": "500"},
    ),
    "argnn": Facts(
        _NUMBERS,
        {
            "node": "authors' runs (CiteSeer, PubMed)",
            "link": "authors' run (Cora)",
            "graph": "ours",
        },
        {"node": "200", "link": "500"},
    ),
    "gcn-so": Facts(_CONTROL, _MATCHED),
    "gin-so": Facts(_CONTROL, _MATCHED),
    "argnn-so": Facts(_CONTROL, _MATCHED),
}
"""By method, in the order of the comparison."""

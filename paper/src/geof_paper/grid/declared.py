"""The paper's studies: which variants, on which benchmarks, and what is measured on them.

A study is declared here before anything is run, so its runs read the test part like any result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from geof.data.catalogue import CATALOGUE
from geof.errors import ConfigError, nearest
from geof.methods.interface import TaskKind
from geof.nn.settings import VARIANTS
from geof_paper.grid.cells import BENCHMARKS, Benchmark, Row, benchmarks_of
from geof_paper.studies.compared import ADAPTED, COMPARED, Compared, preset_for
from geof_paper.studies.printed import Printed, paper_tables, printed


@dataclass(frozen=True)
class Variant:
    """What a study compares, a row of its table.

    Attributes:
        label: What the table calls it.
        method: What is trained.
        preset: Which of its presets; ``None`` for the study's.
        changes: ``KEY=VALUE`` words over the preset.
        printed: The paper's name for it.
        value: Of the option that the study varies, if it varies one.
        adapted: The tasks on which the preset is ``adapted``.
    """

    label: str
    method: str = "geof"
    preset: str | None = None
    changes: tuple[str, ...] = ()
    printed: str | None = None
    value: int | None = None
    adapted: tuple[TaskKind, ...] = ()

    @property
    def names(self) -> set[str]:
        """What a user may call it."""
        presets = {self.preset, *(ADAPTED for _ in self.adapted)} - {None}
        return {self.label, self.method} | {f"{self.method}:{preset}" for preset in presets}


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper.

    Attributes:
        name: What ``geof reproduce`` calls it.
        title: For people.
        place: Where the paper has it.
        variants: What is compared, the rows of its table.
        benchmarks: The columns: the paper's, or others the user names.
        measure: What is computed on every trained network besides its scores, a key of
            :data:`geof_paper.studies.measures.MEASURES`; ``None`` for nothing.
        reference: The label of the variant that others are compared with on the same splits.
        nodes_only: Whether the measure is defined for node classification alone.
        splits: How many of the ten splits are run unless the user says.
    """

    name: str
    title: str
    place: str
    variants: tuple[Variant, ...]
    benchmarks: tuple[Benchmark, ...]
    measure: str | None = None
    reference: str | None = None
    nodes_only: bool = False
    splits: int = 10

    def row(self, variant: Variant, benchmark: Benchmark, preset: str) -> Row:
        """Return the row of a variant on a benchmark.

        A change to what the method has anyway is left out, so that the row is the plain one.
        """
        task, dataset = benchmark
        chosen = preset_for(task, variant.preset or preset, variant.adapted)
        plain = Row(task, dataset, variant.method, chosen)
        config = plain.config("0")
        changes = tuple(
            word
            for word in variant.changes
            if replace(plain, changes=(word,), study=self.name).config("0") != config
        )
        return replace(plain, changes=changes, study=self.name) if changes else plain

    def printed(self, variant: Variant, benchmark: Benchmark) -> Printed | None:
        """Return what the paper prints for a variant on a benchmark, if anything."""
        task, dataset = benchmark
        if self.name == "feedback":
            cell = paper_tables()["feedback"].get(variant.label, {}).get(dataset)
            return None if cell is None else Printed(cell["mean"], cell["std"])
        return printed(task, dataset, variant.printed)


def _nodes(*datasets: str) -> tuple[Benchmark, ...]:
    return tuple(("node", dataset) for dataset in datasets)


def _graphs(*datasets: str) -> tuple[Benchmark, ...]:
    return tuple(("graph", dataset) for dataset in datasets)


FULL = Variant("full", printed="GeoF")


def _changed(label: str) -> Variant:
    """Return one of GeoF's own variants, by the paper's name for it."""
    words = (f"options.{name}={value}" for name, value in VARIANTS[label].items())
    return Variant(label, changes=tuple(map(str.lower, words)))  # False is false in YAML


ABLATIONS = (FULL, *(_changed(label) for label in VARIANTS if label.startswith("w/o ")))
FEEDBACK = (
    *(_changed(label) for label in VARIANTS if not label.startswith(("w/o ", "full"))),
    FULL,
)
BLOCKS = tuple(
    Variant(f"B = {value}", changes=(f"options.blocks={value}",), value=value)
    for value in (4, 8, 16, 32, 64)
)
PROTOTYPES = tuple(
    Variant(f"K = {value}", changes=(f"options.prototypes={value}",), value=value)
    for value in (4, 8, 16, 32, 64)
)
DEPTHS = tuple(
    Variant(f"L = {value}", changes=(f"options.steps={value}",), value=value)
    for value in range(1, 9)
)


def _variant(compared: Compared) -> Variant:
    return Variant(
        compared.title.replace("`", ""),
        compared.method,
        compared.preset,
        printed=compared.printed,
        adapted=compared.adapted,
    )


_COMPARISON = tuple(_variant(c) for c in COMPARED if not c.method.endswith("-so"))
_SECOND_ORDER = tuple(
    _variant(compared)
    for name in ("gcn", "gcn-classic", "gcn-so", "gin", "gin-so", "argnn", "argnn-so", "geof")
    for compared in COMPARED
    if compared.method == name and compared.preset != "paper"
)

STUDIES = {
    study.name: study
    for study in (
        Study(
            "node-link",
            "Node classification and link prediction",
            "Table 1",
            _COMPARISON,
            tuple(benchmark for benchmark in BENCHMARKS if benchmark[0] != "graph"),
        ),
        Study(
            "graph",
            "Graph classification",
            "Table 2",
            _COMPARISON,
            tuple(benchmark for benchmark in BENCHMARKS if benchmark[0] == "graph"),
        ),
        Study(
            "ablation",
            "What each part is worth",
            "Fig. 2(a) and the extended ablations",
            ABLATIONS,
            (
                *_graphs("Mutagenicity", "NCI1", "BBBP", "ogbg-molhiv"),
                *_nodes("PubMed", "Computers"),
            ),
            reference="full",
        ),
        Study(
            "sensitivity",
            "Number of blocks B and of prototypes K",
            "Fig. 2(b) and the extended sensitivity",
            (*BLOCKS, *PROTOTYPES),
            (*_graphs("NCI1", "Mutagenicity"), *_nodes("PubMed")),
        ),
        Study(
            "depth",
            "Number of steps L and the change of the geometry in the last one",
            "Fig. 2(c)",
            DEPTHS,
            _nodes("PubMed"),
            measure="depth",
        ),
        Study(
            "stability",
            "Perturbed initial features",
            "Fig. 2(d)",
            (FULL,),
            _nodes("PubMed"),
            measure="stability",
            nodes_only=True,
        ),
        Study(
            "second-order",
            "Second-order statistics as features and as feedback",
            "Table 3",
            _SECOND_ORDER,
            (*_nodes("CiteSeer", "Photo"), *_graphs("PROTEINS", "BBBP")),
            reference="GeoF tuned",
        ),
        Study(
            "feedback",
            "Statistics and schedules of the feedback",
            "Table 4",
            FEEDBACK,
            (*_nodes("Photo", "CS"), *_graphs("Mutagenicity", "NCI1")),
            reference="full",
        ),
        Study(
            "visualise",
            "Maps of the representations",
            "The appendix's t-SNE figure",
            (Variant("ARGNN", "argnn", "published", printed="ARGNN"), replace(FULL, label="GeoF")),
            _nodes("CiteSeer"),
            measure="visualise",
            nodes_only=True,
            splits=1,
        ),
        Study(
            "theory",
            "The constants of Lemma 1 and Proposition 3 beside what is observed",
            "Lemma 1 and Proposition 3",
            (FULL,),
            _nodes("CiteSeer"),
            measure="theory",
            nodes_only=True,
        ),
    )
}
"""Studies that train, by name."""


def choose_benchmarks(study: Study, datasets: Sequence[str] | None) -> tuple[Benchmark, ...]:
    """Return the benchmarks of the datasets asked for, the study's own where nothing is said.

    A dataset the paper's study does not have is taken with its own task, nodes for one graph.

    Raises:
        ConfigError: For an unknown dataset, or one whose task the study has no use of.
    """
    if datasets is None:
        return study.benchmarks
    chosen: list[Benchmark] = []
    for name in datasets:
        if name not in CATALOGUE:
            raise ConfigError(f"Unknown dataset {name!r}. " + nearest(name, CATALOGUE))
        own = [benchmark for benchmark in study.benchmarks if benchmark[1] == name]
        chosen += own or benchmarks_of([name])[:1]
    if study.nodes_only and any(task != "node" for task, _ in chosen):
        raise ConfigError(
            f"Expected datasets of node classification for '{study.name}' (got "
            f"{', '.join(datasets)})."
        )
    return tuple(chosen)


def choose_variants(study: Study, names: Sequence[str] | None) -> tuple[Variant, ...]:
    """Return the variants asked for by label, method or ``METHOD:PRESET``.

    Raises:
        ConfigError: If a name fits none.
    """
    if names is None:
        return study.variants
    known = sorted({name for variant in study.variants for name in variant.names})
    for name in names:
        if name not in known:
            raise ConfigError(
                f"Expected '--methods' to name rows of '{study.name}' (got {name!r}). "
                + nearest(name, known)
            )
    return tuple(variant for variant in study.variants if variant.names & set(names))

"""The paper's tables and figures as grids of runs: which lines, which datasets, what is measured.

A study is declared here before anything is run, so its lines read the test part like any result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from geof.data.catalogue import CATALOGUE
from geof.errors import ConfigError, nearest
from geof.methods.interface import TaskKind
from geof.methods.presets import load_preset
from geof.yaml_options import merge, parse_words
from geof_paper.grid.cells import SETTINGS, Row
from geof_paper.studies.compared import COMPARED
from geof_paper.studies.printed import Printed, paper_tables, printed

Setting: TypeAlias = tuple[TaskKind, str]

BLOCKS = (4, 8, 16, 32, 64)
PROTOTYPES = (4, 8, 16, 32, 64)
DEPTHS = tuple(range(1, 9))


@dataclass(frozen=True)
class Line:
    """A line of a study's table.

    Attributes:
        label: What the table calls it.
        encoder: Which encoder.
        preset: Which of its presets; ``None`` for the study's.
        changes: ``KEY=VALUE`` words over the preset.
        printed: The paper's name for it.
    """

    label: str
    encoder: str = "geof"
    preset: str | None = None
    changes: tuple[str, ...] = ()
    printed: str | None = None


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper.

    Attributes:
        name: What ``geof reproduce`` calls it.
        title: For people.
        place: Where the paper has it.
        lines: Of its table.
        settings: Of its columns: the paper's, or others the user names.
        measure: What is computed on every trained model besides its scores, a key of
            :data:`geof_paper.studies.measures.MEASURES`; ``None`` for nothing.
        reference: The label of the line that others are compared with on the same splits.
        nodes_only: Whether the measure is defined for node classification alone.
        splits: How many of the ten splits are run unless the user says.
    """

    name: str
    title: str
    place: str
    lines: tuple[Line, ...]
    settings: tuple[Setting, ...]
    measure: str | None = None
    reference: str | None = None
    nodes_only: bool = False
    splits: int = 10

    def row(self, line: Line, setting: Setting, preset: str) -> Row:
        """Return the row of a line on a setting.

        A change to what the preset says anyway is left out, so that the row is the plain one.
        """
        task, dataset = setting
        own = line.preset or preset
        tree = load_preset(line.encoder, own, task, dataset)
        changes = tuple(w for w in line.changes if merge(tree, parse_words([w])) != tree)
        return Row(task, dataset, line.encoder, own, changes, self.name if changes else None)

    def printed(self, line: Line, setting: Setting) -> Printed | None:
        """Return what the paper prints for a line on a setting, if anything."""
        task, dataset = setting
        if self.name == "feedback":
            cell = paper_tables()["feedback"].get(line.label, {}).get(dataset)
            return None if cell is None else Printed(cell["mean"], cell["std"])
        return printed(task, dataset, line.printed)


def _nodes(*datasets: str) -> tuple[Setting, ...]:
    return tuple(("node", dataset) for dataset in datasets)


def _graphs(*datasets: str) -> tuple[Setting, ...]:
    return tuple(("graph", dataset) for dataset in datasets)


FULL = Line("full", printed="GeoF")
ABLATIONS = (
    FULL,
    Line("w/o SA", changes=("model.structure_aware=false",)),
    Line("w/o AI", changes=("model.atlas_initialisation=false",)),
    Line("w/o GT", changes=("model.frame_transport=false",)),
    Line("w/o SF", changes=("model.feedback=none",)),
    Line("w/o GE", changes=("model.evolution=frozen",)),
)
FEEDBACK = (
    Line("mean-only", changes=("model.feedback=mean",)),
    Line("diagonal", changes=("model.feedback=diagonal",)),
    Line("one-shot", changes=("model.evolution=one-shot",)),
    FULL,
)
SENSITIVITY = (
    *(Line(f"B = {value}", changes=(f"model.blocks={value}",)) for value in BLOCKS),
    *(Line(f"K = {value}", changes=(f"model.prototypes={value}",)) for value in PROTOTYPES),
)
DEPTH = tuple(Line(f"L = {value}", changes=(f"model.steps={value}",)) for value in DEPTHS)

_COMPARISON = tuple(
    Line(m.title.replace("`", ""), m.encoder, m.preset, printed=m.printed)
    for m in COMPARED
    if not m.encoder.endswith("-so")
)
_SECOND_ORDER = tuple(
    Line(m.title.replace("`", ""), m.encoder, m.preset, printed=m.printed)
    for name in ("gcn", "gcn-classic", "gcn-so", "gin", "gin-so", "argnn", "argnn-so", "geof")
    for m in COMPARED
    if m.encoder == name and m.preset != "paper"
)

STUDIES = {
    study.name: study
    for study in (
        Study(
            "node-link",
            "Node classification and link prediction",
            "Table 1",
            _COMPARISON,
            tuple(setting for setting in SETTINGS if setting[0] != "graph"),
        ),
        Study(
            "graph",
            "Graph classification",
            "Table 2",
            _COMPARISON,
            tuple(setting for setting in SETTINGS if setting[0] == "graph"),
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
            SENSITIVITY,
            (*_graphs("NCI1", "Mutagenicity"), *_nodes("PubMed")),
        ),
        Study(
            "depth",
            "Number of steps L and the change of the geometry in the last one",
            "Fig. 2(c)",
            DEPTH,
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
            (Line("ARGNN", "argnn", "published", printed="ARGNN"), replace(FULL, label="GeoF")),
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


def choose_settings(study: Study, datasets: Sequence[str] | None) -> tuple[Setting, ...]:
    """Return the settings of the datasets asked for, the study's own where nothing is said.

    A dataset the paper's study does not have is taken with its own task, nodes for one graph.

    Raises:
        ConfigError: For an unknown dataset, or one whose task the study has no use of.
    """
    if datasets is None:
        return study.settings
    chosen: list[Setting] = []
    for name in datasets:
        if name not in CATALOGUE:
            raise ConfigError(f"Unknown dataset {name!r}. " + nearest(name, CATALOGUE))
        own = [setting for setting in study.settings if setting[1] == name]
        chosen += own or [next(setting for setting in SETTINGS if setting[1] == name)]
    if study.nodes_only and any(task != "node" for task, _ in chosen):
        raise ConfigError(
            f"Expected datasets of node classification for '{study.name}' (got "
            f"{', '.join(datasets)})."
        )
    return tuple(chosen)


def choose_lines(study: Study, models: Sequence[str] | None) -> tuple[Line, ...]:
    """Return the lines asked for by label, encoder or ``ENCODER:PRESET``.

    Raises:
        ConfigError: If a name fits no line.
    """
    if models is None:
        return study.lines
    for name in models:
        known = sorted({n for line in study.lines for n in _names(line)})
        if name not in known:
            raise ConfigError(
                f"Expected '--models' to name lines of '{study.name}' (got {name!r}). "
                + nearest(name, known)
            )
    return tuple(line for line in study.lines if _names(line) & set(models))


def _names(line: Line) -> set[str]:
    own = set() if line.preset is None else {f"{line.encoder}:{line.preset}"}
    return {line.label, line.encoder} | own


def values_of(study: Study, letter: str) -> list[tuple[int, Line]]:
    """Return the lines labelled ``LETTER = VALUE`` with their values."""
    found: list[Any] = [line.label.split(" = ") for line in study.lines]
    return [
        (int(parts[1]), line)
        for parts, line in zip(found, study.lines, strict=True)
        if parts[0] == letter
    ]

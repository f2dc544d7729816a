"""The studies are the paper's, and parts of them are chosen by name."""

from __future__ import annotations

import pytest

from geof_paper.grid.cells import Row
from geof_paper.grid.declared import FULL, STUDIES, Variant, choose_benchmarks, choose_variants
from geof_paper.studies.compared import COMPARED
from geof_paper.studies.printed import printed

NODE = ("node", "CiteSeer")


def test_changes_that_change_nothing_are_the_plain_row(small_presets):
    study = STUDIES["sensitivity"]
    own = study.row(Variant("B = 2", changes=("options.blocks=2",)), NODE, "tuned")
    assert own == Row("node", "CiteSeer", "geof", "tuned")
    usual = study.row(Variant("K = 4", changes=("options.prototypes=4",)), NODE, "tuned")
    assert usual == own  # the default of the code, which no preset says
    other = study.row(Variant("B = 4", changes=("options.blocks=4",)), NODE, "tuned")
    assert (other.changes, other.study) == (("options.blocks=4",), "sensitivity")
    assert other.command("0-9") == "geof reproduce sensitivity --datasets CiteSeer --splits 0-9"


def test_studies_are_the_papers():
    feedback = STUDIES["feedback"]
    assert [b[1] for b in feedback.benchmarks] == ["Photo", "CS", "Mutagenicity", "NCI1"]
    assert feedback.printed(FULL, ("graph", "NCI1")).mean == 83.0
    assert feedback.printed(feedback.variants[1], ("graph", "NCI1")).mean == 80.4
    assert len(STUDIES["node-link"].benchmarks) == 12
    names = [variant.printed for variant in STUDIES["graph"].variants]
    assert len({name for name in names if name}) == 15
    for study in STUDIES.values():
        rows = [study.row(v, b, "tuned") for v in study.variants for b in study.benchmarks]
        for row in rows:
            row.config("0")  # every variant is possible


def test_variants_and_benchmarks_are_chosen_by_name():
    study = STUDIES["node-link"]
    assert choose_benchmarks(study, ["Photo"]) == (("node", "Photo"), ("link", "Photo"))
    assert choose_benchmarks(STUDIES["ablation"], ["CiteSeer"]) == (("node", "CiteSeer"),)
    assert choose_benchmarks(STUDIES["ablation"], ["PROTEINS"]) == (("graph", "PROTEINS"),)
    assert [v.label for v in choose_variants(study, ["geof"])] == ["GeoF paper", "GeoF tuned"]
    assert [v.label for v in choose_variants(study, ["geof:paper"])] == ["GeoF paper"]
    for name in ("gnrf:published", "gnrf:adapted"):  # one for nodes, the other for links
        assert [v.label for v in choose_variants(study, [name])] == ["GNRF"]
    presets = [study.row(choose_variants(study, ["gnrf"])[0], b, "tuned") for b in study.benchmarks]
    assert {(row.task, row.preset) for row in presets} == {
        *(("node", "published"), ("link", "adapted")),
    }
    with pytest.raises(Exception, match="Did you mean 'Photo'"):
        choose_benchmarks(study, ["Phoot"])
    with pytest.raises(Exception, match="Did you mean 'hgcn'"):
        choose_variants(study, ["hgc"])


def test_printed_numbers():
    assert printed("node", "CiteSeer").mean == 77.7
    assert printed("link", "Computers").mean == 98.0
    assert printed("graph", "ogbg-molhiv").mean == 82.9
    assert printed("node", "CiteSeer", "Nobody") is None
    assert printed("node", "CiteSeer", None) is None
    assert printed("node", "Photo", "GIN w/ SO").mean == 93.6
    assert printed("graph", "BBBP", "ARGNN w/ SO").mean == 91.9
    assert printed("link", "Photo", "GIN w/ SO") is None
    for compared in COMPARED:
        if compared.printed is not None:
            assert printed("node", "CiteSeer", compared.printed) is not None, compared


def test_ablations_and_feedback_are_geofs_own_variants():
    words = {
        v.label: v.changes for study in ("ablation", "feedback") for v in STUDIES[study].variants
    }
    assert words == {
        "full": (),
        "w/o SA": ("options.structure_aware=false",),
        "w/o AI": ("options.atlas_initialisation=false",),
        "w/o GT": ("options.frame_transport=false",),
        "w/o SF": ("options.feedback=none",),
        "w/o GE": ("options.evolution=frozen",),
        "mean-only": ("options.feedback=mean",),
        "diagonal": ("options.feedback=diagonal",),
        "one-shot": ("options.evolution=one-shot",),
    }

"""Tables of studies where numbers are out of the ordinary."""

from __future__ import annotations

from geof_paper.render.studies import _bound


def test_a_bound_beyond_floating_point_is_said_and_not_averaged():
    assert _bound([1e307] * 4, 10).mean == 1e307
    assert _bound([2.0, 4.0], 10).mean == 3.0
    cell = _bound([1.0, None], 10)
    assert (cell.mean, cell.note) == (None, "beyond floating point")


def test_the_largest_complete_table_of_methods_and_benchmarks_is_taken():
    from geof_paper.grid.cells import BENCHMARKS
    from geof_paper.render.aggregate import largest_complete
    from geof_paper.studies.compared import COMPARED

    geof, gcn, gin, hgcn = (
        next(c for c in COMPARED if c.method == name and c.preset != "paper")
        for name in ("geof", "gcn", "gin", "hgcn")
    )
    methods = [geof, gcn, gin, hgcn]
    everywhere = {(b, m) for b in BENCHMARKS for m in (geof, gcn)}
    known = everywhere | {(b, gin) for b in BENCHMARKS[:13]}
    assert largest_complete(methods, known) == [geof, gcn, gin]  # 39 scores against 36
    known = everywhere | {(b, gin) for b in BENCHMARKS[:11]}
    assert largest_complete(methods, known) == [geof, gcn]  # 36 against 33

"""Tables of studies where numbers are out of the ordinary."""

from __future__ import annotations

from geof_paper.render.studies import _bound


def test_a_bound_beyond_floating_point_is_said_and_not_averaged():
    assert _bound([1e307] * 4, 10).mean == 1e307
    assert _bound([2.0, 4.0], 10).mean == 3.0
    cell = _bound([1.0, None], 10)
    assert (cell.mean, cell.note) == (None, "beyond floating point")

"""One table in four forms: what is shown, what is marked, and that no label breaks a form."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from geof.errors import ConfigError, DataError, ShapeError
from geof_paper.render.tables import Cell, Row, Table, escape_latex, escape_markdown, write_table

HOSTILE = "a|b\n<b>&%$#_{}~^\\ [x] *y* `z` --k"
OURS = Cell(77.01, 0.5, 3, 10, 77.7, 1.2)
FAR = Cell(80.0, 0.5, 10, 10, 77.7, 1.2)
ABSENT = Cell(None, paper=95.0, paper_deviation=0.3)
FAILED = Cell(None, note="failed: out_of_memory")


def table(**changes) -> Table:
    given = {
        "title": "Nodes",
        "columns": ("CiteSeer", "Photo"),
        "rows": (Row("GeoF", (OURS, ABSENT)), Row("GCN", (FAR, FAILED))),
        "caption": "Accuracy in percent.",
    }
    return Table(**{**given, **changes})


@pytest.mark.parametrize(
    ("cell", "marked"),
    [
        (Cell(77.0, 3.0, paper=72.0, paper_deviation=4.0), False),  # 5 is not more than 5
        (Cell(77.1, 3.0, paper=72.0, paper_deviation=4.0), True),
        (Cell(66.9, 3.0, paper=72.0, paper_deviation=4.0), True),
        (Cell(99.0, None, paper=72.0, paper_deviation=4.0), False),
        (Cell(99.0, 1.0, paper=72.0), False),
        (Cell(99.0, 1.0), False),
        (Cell(None, paper=72.0, paper_deviation=4.0), False),
    ],
)
def test_a_mark_is_more_than_the_combined_deviation(cell, marked):
    assert cell.marked is marked


def test_differences_are_free_of_binary_noise():
    assert OURS.difference == -0.69
    assert Cell(3e-15, paper=2.91e-15).difference == 9e-17
    assert ABSENT.difference is None


@pytest.mark.parametrize("field", ["mean", "deviation", "paper", "paper_deviation"])
def test_cells_are_finite(field):
    with pytest.raises(DataError, match=f"'{field}' of a cell"):
        Cell(**{"mean": 1.0, field: float("nan")})


def test_rows_fit_their_columns():
    with pytest.raises(ShapeError, match="2 cells in row 'GeoF'"):
        table(rows=(Row("GeoF", (OURS,)),))
    with pytest.raises(ConfigError, match="each of 2 columns"):
        table(better=("larger",))
    with pytest.raises(ConfigError, match="Did you mean 'smaller'"):
        table(better="smaler")


def test_json_holds_everything():
    first, second = table().as_json()["rows"]
    assert first["label"] == "GeoF"
    assert first["cells"][0] == {
        "mean": 77.01,
        "deviation": 0.5,
        "count": 3,
        "of": 10,
        "paper": 77.7,
        "paper_deviation": 1.2,
        "difference": -0.69,
        "marked": False,
        "note": "",
    }
    assert second["cells"][0]["marked"] is True
    assert {k: v for k, v in table().as_json().items() if k != "rows"} == {
        "title": "Nodes",
        "caption": "Accuracy in percent.",
        "columns": ["CiteSeer", "Photo"],
    }


def test_csv_has_a_line_per_cell():
    text = table(rows=(Row(HOSTILE, (OURS, ABSENT)), Row("GCN", (FAR, FAILED)))).csv()
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(lines) == 4
    assert lines[0]["label"] == HOSTILE
    expected = {"column": "CiteSeer", "mean": "77.01", "difference": "-0.69", "marked": "false"}
    assert expected.items() <= lines[0].items()
    assert lines[1]["mean"] == ""
    assert lines[3]["note"] == "failed: out_of_memory"
    assert lines[2]["marked"] == "true"


def markdown_cells(text: str) -> list[list[str]]:
    """The cells of a Markdown table: split at pipes without a backslash."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_shows_ours_and_the_papers():
    text = table().markdown()
    header, rule, geof, gcn = markdown_cells(text)
    assert header == ["", "CiteSeer", "Photo"]
    assert rule == ["---"] * 3
    assert geof[1] == "77.01 ± 0.50 (3 of 10)<br>paper 77.7 ± 1.2, -0.7"
    assert geof[2] == "not run<br>paper 95.0 ± 0.3"
    assert gcn[1] == "80.00 ± 0.50<br>paper 77.7 ± 1.2, +2.3*"
    assert gcn[2] == r"failed: out\_of\_memory"
    assert "Accuracy in percent." in text
    assert r"\* differs from the paper" in text


def test_markdown_explains_a_mark_only_where_there_is_one():
    assert "differs" not in table(rows=(Row("GeoF", (OURS, ABSENT)),)).markdown()


def test_markdown_keeps_hostile_labels_in_their_cell():
    hostile = table(title=HOSTILE, columns=(HOSTILE, "b"), rows=(Row(HOSTILE, (OURS, FAILED)),))
    lines = markdown_cells(hostile.markdown())
    assert {len(line) for line in lines} == {3}
    assert lines[0][1] == lines[2][0] == escape_markdown(HOSTILE)
    assert escape_markdown("a|<\nb") == r"a\|&lt; b"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (Cell(2.9107e-15, paper=2.91e-15), "2.91e-15<br>paper 2.91e-15, +7.00e-19"),
        (Cell(0.020682, paper=0.0207), "0.0207<br>paper 0.0207, 0.0000"),
        (Cell(0.0123, 0.00234, 10), "0.0123 ± 0.0023"),
        (Cell(0.0, 0.0, 10), "0.00 ± 0.00"),
        (Cell(-0.0123, 0.25, 10), "-0.01 ± 0.25"),
        (Cell(93.0, paper=93.0), "93.00<br>paper 93.0, 0.0"),
        (Cell(1.0487e28, 5.3e27, 10), "1.05e+28 ± 5.3e+27"),
        (Cell(93.0, count=1), "93.00 (1 of 10)"),
        (Cell(93.0, note="on 5 of 6 files"), "93.00<br>on 5 of 6 files"),
    ],
)
def test_small_and_large_numbers_stay_readable(cell, shown):
    text = Table("t", ("c",), (Row("r", (cell,)),)).markdown()
    assert markdown_cells(text)[2][1] == shown


def latex_structure(text: str) -> list[list[str]]:
    """Check braces, dollars, environments and columns; return the cells of the tabular."""
    bare = re.sub(r"\\[\\&%$#_{}]", "", text)
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#%~](?!\$)|(?<!\$)\^", bare.replace("$~", ""))
    assert text.isascii()
    opened = re.findall(r"\\begin{(\w+)}", text)
    assert opened == re.findall(r"\\end{(\w+)}", text)[::-1] == ["table", "tabular"]
    columns = len(re.search(r"\\begin{tabular}{(\w+)}", text)[1])
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "")
    lines = [line for line in body.splitlines() if line]
    assert all(line.endswith(r" \\") for line in lines)
    cells = [[c.strip() for c in re.split(r"(?<!\\)&", line[:-3])] for line in lines]
    assert {len(line) for line in cells} == {columns}
    return cells


def test_latex_shows_ours_above_the_papers():
    text = table().latex()
    assert latex_structure(text) == [
        ["", "CiteSeer", "Photo"],
        ["GeoF", r"77.01 $\pm$ 0.50 $(3/10)$", "not run"],
        [r"\quad paper", r"77.7 $\pm$ 1.2", r"95.0 $\pm$ 0.3"],
        ["GCN", r"\textbf{80.00} $\pm$ 0.50$^\dagger$", "failed$^{1}$"],
        [r"\quad paper", r"77.7 $\pm$ 1.2", ""],
    ]
    assert r"$^{1}$~failed: out\_of\_memory" in text.split(r"\end{tabular}")[1]
    caption = re.search(r"\\caption{(.*)}\n", text)[1]
    assert caption.startswith("Nodes. Accuracy in percent. $(a/b)$: $a$ of $b$ splits. $\\dagger$:")


def test_latex_uses_no_command_beyond_booktabs():
    known = {"begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "quad"}
    known |= {"pm", "textbf", "dagger", "footnotesize", "par", "times", "textbar", "textless"}
    known |= {"textgreater", "textasciitilde", "textasciicircum", "textbackslash"}
    text = table(title=HOSTILE, rows=(Row(HOSTILE, (OURS, FAILED)), *table().rows)).latex()
    text = text.replace(r"\\", "")
    assert set(re.findall(r"\\([A-Za-z]+)", text)) <= known


def test_latex_keeps_hostile_labels_in_their_cell():
    failed = Cell(None, note=f"failed: {HOSTILE}")
    rows = (Row(HOSTILE, (OURS, failed)), Row("[t]", (OURS, failed)))
    text = table(title=HOSTILE, columns=(HOSTILE, "é中"), caption=HOSTILE, rows=rows).latex()
    cells = latex_structure(text)
    assert cells[0][1] == cells[1][0] == escape_latex(HOSTILE)
    assert cells[3][0] == "{[}t{]}"  # a bracket after \\ would be its argument
    assert cells[3][2] == "failed$^{1}$"  # the same note once


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("100% & $5 #1 a_b {c}", r"100\% \& \$5 \#1 a\_b \{c\}"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ("ML²-GCL λ Γ", r"ML$^{2}$-GCL $\lambda$ $\Gamma$"),
        ("é ü ç", r"\'{e} \"{u} \c{c}"),
        ("a---b", "a-{}-{}-b"),
        ("a—b", r"a\textemdash{}b"),
        ("中\x00", "{[}U+4E2D{]}{[}U+0000{]}"),
        ("a\n\tb", "a b"),
    ],
)
def test_latex_escapes(text, escaped):
    assert escape_latex(text) == escaped


def bold(text: str) -> list[str]:
    return re.findall(r"\\textbf{([\d.]+)", text)


def test_the_best_of_each_column_is_bold():
    rows = tuple(Row(str(v), (Cell(v), Cell(v), Cell(v))) for v in (1.0, 2.0, 2.001))
    given = Table("t", ("up", "down", "id"), rows, better=("larger", "smaller", "neither"))
    assert bold(given.latex()) == ["1.00", "2.00", "2.00"]  # equal as printed, both are best
    assert bold(Table("t", ("up",), (Row("a", (Cell(1.0),)),)).latex()) == []  # best of nothing


def test_four_files_are_written(tmp_path):
    paths = write_table(table(), tmp_path / "new")
    assert [path.name for path in paths] == ["table.csv", "table.json", "table.md", "table.tex"]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [p.name for p in paths]
    assert json.loads(paths[1].read_text()) == table().as_json()
    assert paths[2].read_text() == table().markdown()
    assert paths[0].read_bytes() == table().csv().encode()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Expected to write"):
        write_table(table(), tmp_path / "file")

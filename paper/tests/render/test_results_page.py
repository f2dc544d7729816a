"""The page of recorded results and studies."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from geof.report.html import render
from geof_paper.grid.cells import Row
from geof_paper.grid.records import FailedRun, results_file, to_line
from geof_paper.render.results_page import page_and_script, results_page
from paper.tests.render.studies import write_records, write_studies
from tests.report.runs import HOSTILE
from tests.report.test_html import check, check_script


def page_of(page: dict) -> str:
    script = resources.files("geof_paper.render") / "assets" / "results.js"
    return render(page, script.read_text())


def test_the_script_writes_text_only(tmp_path):
    check_script({"results": page_and_script(write_records(tmp_path))[1]})


def test_the_page_of_results(tmp_path):
    page = results_page(write_records(tmp_path))
    assert check(page_of(page))["rows"][0]["details"]["machine"]["processor"] == HOSTILE[0]
    (node, link) = page["tables"]
    assert [row["label"] for row in node["rows"]] == ["GeoF paper", "GeoF tuned"]
    ours = node["rows"][1]["cells"][0]
    assert (ours["mean"], ours["deviation"], ours["count"]) == (77.0, 1.0, 3)
    assert (ours["paper"], ours["paper_deviation"], ours["marked"]) == (77.7, 1.2, False)
    alone = node["rows"][0]["cells"][0]
    assert (alone["mean"], alone["deviation"], alone["marked"]) == (60.0, None, False)
    assert link["columns"] == ["CiteSeer"]
    assert link["rows"][0]["cells"][0]["marked"]  # 81.5 against 92.3
    assert [row["marked"] for row in page["rows"]] == [True, False, False, False]
    changed = page["rows"][3]
    assert (changed["changes"], changed["paper"]) == ("options.steps=9", None)
    assert changed["details"]["options"]["options"]["steps"] == 9
    assert changed["details"]["options"]["options"]["backend"] == "auto"  # all that is in force


def test_stale_runs_are_marked_on_the_page(tmp_path):
    page = results_page(write_records(tmp_path))
    (node, link) = page["tables"]
    assert [row["cells"][0]["note"] for row in node["rows"] + link["rows"]] == ["", "", "2 stale"]
    splits = page["rows"][0]["details"]["splits"]
    assert [(split["revision"], split["stale"]) for split in splits] == [(1, HOSTILE[2])] * 2
    assert page["rows"][1]["details"]["splits"][0]["stale"] is None


def test_failures_are_on_the_page(tmp_path):
    write_records(tmp_path)
    row = Row("node", "CiteSeer", "geof", "tuned")
    failed = FailedRun(row=row, split="7", revision=1, failure={"error": HOSTILE[0]})
    with results_file(tmp_path, "node").open("a") as file:
        file.write(to_line(failed) + "\n")
    page = results_page(tmp_path)
    (tuned,) = [r for r in page["rows"] if r["preset"] == "tuned" and r["dataset"] == "CiteSeer"]
    assert tuned["details"]["failures"] == [{"split": "7", "error": HOSTILE[0]}]
    assert tuned["count"] == 3


def test_the_page_of_studies(tmp_path):
    page = results_page(write_studies(tmp_path))
    assert check(page_of(page))["studies"] == page["studies"]
    bare, depth = page["studies"]
    assert depth["missing"] == ["PubMed: not run"]
    assert depth["figure"].startswith("data:image/svg+xml;base64,")
    assert depth["table"]["rows"][0]["cells"][0]["marked"] is True
    assert bare["missing"] == ["How it was made: there is no study.json."]
    assert results_page(tmp_path / "depth")["studies"][0]["name"] == "depth"


def test_records_and_studies_may_lie_in_one_folder(tmp_path):
    write_studies(tmp_path)
    (tmp_path / "index.json").write_text("{}")
    assert results_page(tmp_path)["rows"] == []
    (tmp_path / "index.json").unlink()
    write_records(tmp_path)
    both = results_page(tmp_path)
    assert len(both["rows"]) == 4
    assert len(both["studies"]) == 2


def test_the_recorded_results_of_this_project_have_a_page():
    page = results_page(Path(__file__).parents[2] / "results")
    check(page_of(page))
    labels = [{row["label"] for row in table["rows"]} for table in page["tables"]]
    names = ["HGCN" in found for found in labels], ["HGCN adapted" in found for found in labels]
    assert names == ([True, True, False], [False, False, True])  # a table each of the three tasks
    assert len(page["rows"]) > 100

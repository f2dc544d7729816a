"""The pages in a real browser: opened from disk, used with pointer and keys, no errors."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paper.tests.render.studies import write_records, write_studies
from tests.report.runs import HOSTILE, RUNS, name, report

pytestmark = pytest.mark.browser
CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    named = os.environ.get("CHROMIUM")
    found = named or next((path for path in map(shutil.which, CANDIDATES) if path), None)
    if found is None:
        pytest.fail("Expected Chromium on PATH or in $CHROMIUM. Run 'make test-browser'.")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """One page of each kind."""
    made = {}
    for kind, make in RUNS.items():
        try:
            made[kind] = report(make(tmp_path_factory.mktemp(kind)))
        except pytest.skip.Exception:  # without rdkit there is no page of graphs
            continue
    from geof.cli import main

    results = write_records(write_studies(tmp_path_factory.mktemp("results")))
    assert main(["report", str(results)]) == 0
    made["results"] = results / "report.html"
    return made


@pytest.fixture
def visit(browser, pages) -> Iterator:
    """Return what opens a page; errors and requests that leave the file fail the test."""
    contexts, trouble = [], []

    def open_page(kind: str, **settings):
        if kind not in pages:
            pytest.skip("rdkit is not installed")
        settings = {"viewport": {"width": 1280, "height": 900}, **settings}
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on(
            "console",
            lambda told: trouble.append(told.text) if told.type in ("error", "warning") else None,
        )
        page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith(("file:", "data:", "blob:file:", "blob:null"))
                else trouble.append(asked.url)
            ),
        )
        page.goto(pages[kind].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def settled(page, selector: str, attribute: str) -> str:
    """Return an attribute once it has stopped changing."""
    page.wait_for_timeout(350)
    value = page.locator(selector).first.get_attribute(attribute)
    page.wait_for_timeout(100)
    assert page.locator(selector).first.get_attribute(attribute) == value
    return value


def click_point(page, key: int) -> None:
    mark = page.locator(f'#map-plot [data-key="{key}"]')
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


@pytest.mark.parametrize("kind", [*RUNS, "results"])
def test_every_page_opens_without_errors(kind, visit):
    page = visit(kind)
    assert page.locator("h1").count() == 1
    assert page.locator("section").count() >= 2
    assert page.title() != "pwned"
    for link in page.locator("#contents a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    leaked = page.evaluate(
        """() => {
          const frame = document.createElement('iframe');
          document.body.append(frame);
          const own = new Set(Object.getOwnPropertyNames(frame.contentWindow));
          frame.remove();
          return Object.getOwnPropertyNames(window).filter(
            (name) => !own.has(name) && !/^[0-9]+$/.test(name));
        }"""
    )
    assert [one for one in leaked if not one.startswith("__")] == []


def test_a_click_on_the_map_opens_the_node(visit):
    page = visit("node")
    for key in (7, 21):
        click_point(page, key)
        assert page.locator("#chosen bdi").text_content() == name(key)
        assert page.locator("#live").text_content().startswith(f"Selected node {name(key)}")


def test_the_slider_moves_ellipses_weights_and_determinants(visit):
    page = visit("node")
    click_point(page, 5)
    page.locator("#step").focus()
    before = settled(page, ".ellipse", "d")
    total = page.locator("#total-logdet").inner_text()
    block = page.locator(".logdet").first.inner_text()
    weight = page.locator(".weights tbody td").nth(2).inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#step").get_attribute("aria-valuetext") == "step 1 of 2"
    assert settled(page, ".ellipse", "d") != before
    assert page.locator("#total-logdet").inner_text() != total
    assert page.locator(".logdet").first.inner_text() != block
    assert page.locator(".weights tbody td").nth(2).inner_text() != weight
    page.keyboard.press("Home")
    assert "start" in page.locator("#step-name").inner_text()
    start = settled(page, ".ellipse", "d")
    assert start == page.locator(".ghost").first.get_attribute("d")
    assert "no neighbour has been weighed" in page.locator(".heard").inner_text()
    page.keyboard.press("End")
    assert settled(page, ".ellipse", "d") == before
    assert page.locator("#total-logdet").inner_text() == total


def test_the_ellipse_drawn_is_the_one_in_the_data(visit):
    page = visit("node", reduced_motion="reduce")
    click_point(page, 5)
    determinant, trace = page.evaluate(
        """() => {
          const page = JSON.parse(document.getElementById('data').textContent);
          const node = page.geometry.scopes[0].nodes.find((one) => one.node === 5);
          const [a, b, c] = node.shadow[2][0];
          const shown = document.querySelector('.ellipse').getAttribute('d');
          const unit = Number(document.querySelector('.unit').getAttribute('r'));
          const [rx, ry] = shown.match(/A([\\d.]+) ([\\d.]+)/).slice(1).map((v) => v / unit);
          return [rx * rx * ry * ry - (a * c - b * b), rx * rx + ry * ry - (a + c)];
        }"""
    )
    assert abs(determinant) < 5e-3
    assert abs(trace) < 5e-3


def test_keys_alone_select_a_node(visit):
    page = visit("node")
    first = page.locator("#chosen").inner_text()
    page.locator("#search").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "map-plot"
    assert not page.locator("#map-plot .ring").get_attribute("hidden")
    seen = {page.locator("#live").text_content()}
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
        seen.add(page.locator("#live").text_content())
    assert len(seen) >= 2
    for key in ("ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
        page.keyboard.press("Enter")
        if page.locator("#chosen").inner_text() != first:
            break
    assert page.locator("#chosen").inner_text() != first
    assert page.locator("#live").text_content().startswith("Selected node")


def test_search_and_neighbours(visit):
    page = visit("node")
    page.locator("#search").fill(name(11))
    page.keyboard.press("Enter")
    assert page.locator("#chosen bdi").text_content() == name(11)
    neighbour = page.locator(".weights button.link").first
    wanted = neighbour.text_content()
    neighbour.click()
    assert page.locator("#chosen bdi").text_content() == wanted
    page.locator("#search").fill("nobody of that name")
    page.get_by_role("button", name="Show").click()
    assert "No node here is called" in page.locator("#map").inner_text()


def test_graphs_are_chosen_and_their_nodes_clicked(visit):
    page = visit("graph")
    values = [one.get_attribute("value") for one in page.locator("#graph option").all()]
    page.locator("#graph").select_option(values[-1])
    vertex = page.locator("#graph-plot .vertex").last
    vertex.scroll_into_view_if_needed()
    key, box = vertex.get_attribute("data-key"), vertex.bounding_box()
    before = settled(page, ".ellipse", "d")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("#chosen").inner_text().startswith(f"Node {key} of graph")
    assert key != "0"
    assert settled(page, ".ellipse", "d") != before
    click_point(page, int(values[0]))
    assert page.locator("#graph").input_value() == values[0]


def test_links_have_curves_and_no_confusion(visit):
    page = visit("link")
    assert page.get_by_label("ROC curve", exact=True).count() == 1
    assert page.get_by_label("Precision-recall curve", exact=True).count() == 1
    assert page.locator(".confusion").count() == 0


def test_curves_are_read_with_the_arrow_keys(visit):
    page = visit("node")
    page.get_by_label("Loss", exact=True).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    readout = page.locator("#curves .readout").first.inner_text()
    assert readout.startswith("epoch 2: training loss")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(scheme, visit):
    page = visit("node", color_scheme=scheme)

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(value) for value in re.findall(r"\d+", colour)[:3])

    assert (brightness() > 380) == (scheme == "light")
    page.locator("#theme").click()
    assert (brightness() > 380) == (scheme == "dark")
    page.emulate_media(media="print")
    assert brightness() == 3 * 255
    assert not page.locator("#theme").is_visible()


def test_printing_unfolds_everything(visit):
    page = visit("results")
    assert page.locator(".below:visible").count() == 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".below:visible").count() == 4
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator(".below:visible").count() == 0
    assert len(page.pdf()) > 1000


@pytest.mark.parametrize("kind", [*RUNS, "results"])
def test_a_narrow_screen_needs_no_sideways_scrolling(kind, visit):
    page = visit(kind, viewport={"width": 375, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_what_is_wider_than_the_screen_says_so(visit):
    """The cue stands where a part scrolls by itself, fades away at its end, and nowhere else."""
    page = visit("node", viewport={"width": 375, "height": 800}, has_touch=True)
    parts = page.locator(".scroller")
    wide = 0
    for part in parts.all():
        inside = part.locator(".scroll")
        more = inside.evaluate("(one) => one.scrollWidth - one.clientWidth")
        assert part.locator(".cue").is_visible() == (more > 1)
        assert ("more-right" in inside.get_attribute("class")) == (more > 1)
        if more > 1:
            wide += 1
            inside.evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
            page.wait_for_timeout(100)
            assert "more-right" not in inside.get_attribute("class")
            assert "more-left" in inside.get_attribute("class")
    assert wide >= 1
    page = visit("gcn", viewport={"width": 1280, "height": 900})
    assert page.locator("#scores .cue").count() >= 2
    assert page.locator("#scores .cue:visible").count() == 0


def test_the_column_under_the_map_is_used(visit):
    page = visit("node", viewport={"width": 1400, "height": 900})
    places = {name: page.locator(name).bounding_box() for name in ("#map", "#geometry", ".heard")}
    below = places[".heard"]
    assert below["x"] == places["#map"]["x"]
    assert below["y"] >= places["#map"]["y"] + places["#map"]["height"] - 1
    assert below["x"] + below["width"] <= places["#geometry"]["x"]
    # What is left empty at the end of the shorter column is less than the map is high.
    left = page.locator(".heard > :last-child").bounding_box()
    ends = left["y"] + left["height"], places["#geometry"]["y"] + places["#geometry"]["height"]
    assert abs(ends[0] - ends[1]) < places["#map"]["height"]
    page.set_viewport_size({"width": 375, "height": 800})
    tops = [page.locator(name).bounding_box()["y"] for name in ("#map", "#geometry", ".heard")]
    assert tops == sorted(tops)


def test_macro_averages_end_the_table_of_classes(visit):
    last = visit("node").locator("#scores .averaged tbody tr").last
    assert last.locator("th").inner_text() == "Macro average"
    cells = [cell.inner_text() for cell in last.locator("td").all()]
    assert all(text.endswith("%") for text in cells[:3])
    assert cells[3].isdecimal()


@pytest.mark.parametrize("kind", [*RUNS, "results"])
def test_every_figure_can_be_downloaded(kind, visit, tmp_path):
    page = visit(kind)
    figures = page.locator("figure")
    assert figures.count() >= 1
    for i, figure in enumerate(figures.all()):
        button = figure.locator("button.save")
        assert button.count() == 1
        if i % 8 == 7:  # Chromium drops downloads beyond ten in a second
            page.wait_for_timeout(1200)
        with page.expect_download() as saved:
            button.click()
        kept = tmp_path / f"{i}-{saved.value.suggested_filename}"
        saved.value.save_as(kept)
        assert re.fullmatch(r"[a-z0-9-]+\.(svg|csv)", saved.value.suggested_filename)
        if kept.suffix == ".csv":
            rows = list(csv.reader(kept.open(encoding="utf-8", newline="")))
            assert len({len(row) for row in rows}) == 1
            assert all(cell.isdecimal() for row in rows[1:] for cell in row[1:])
            continue
        drawing = ElementTree.parse(kept).getroot()
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        if kind == "results":
            continue  # as it was put in
        text = kept.read_text(encoding="utf-8")
        assert "var(" not in text  # what only the page's style sheet knows
        assert "color(" not in text
        assert "class=" not in text
        size = [float(value) for value in drawing.get("viewBox").split()[2:]]
        assert min(size) > 50
        painted = [one for one in drawing.iter() if one.get("stroke", "none") != "none"]
        assert painted


def test_results_are_sorted_filtered_and_shown_in_detail(visit):
    page = visit("results")
    rows = page.locator("#rows .sortable > tbody > tr:not(.below)")

    def column(number: int) -> list[str]:
        return [row.locator("td").nth(number).inner_text() for row in rows.all()]

    heading = page.locator("#rows th", has_text="Test")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [text.split()[0] for text in column(7)] == ["60.00", "77.00", "81.50", "95.20"]
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert [text.split()[0] for text in column(7)] == ["95.20", "81.50", "77.00", "60.00"]
    page.locator("#task").select_option("link")
    assert column(1) == ["link"]
    assert page.locator("#row-count").inner_text() == "1 of 4 rows"
    rows.first.get_by_role("button").click()
    shown = page.locator(".below:visible").inner_text()
    assert "geof results run --tasks link" in shown
    assert "hash1" in shown
    assert HOSTILE[0] in shown  # the machine's name, as text
    page.locator("#task").select_option("")
    page.locator("#method").fill("steps=9")
    assert column(5) == ["options.steps=9"]
    marked = page.locator("#tables .marked")
    assert marked.count() >= 1
    assert "≠" in marked.first.inner_text()


def test_studies_show_their_figure_and_what_is_missing(visit):
    page = visit("results")
    study = page.locator("section", has_text="PubMed: not run").first
    assert HOSTILE[0] in study.inner_text()
    figure = study.locator("img")
    assert figure.evaluate("(image) => image.naturalWidth") == 40
    assert page.title() != "pwned"


def test_controls_have_names_and_focus_shows(visit):
    for kind in ("node", "results"):
        page = visit(kind)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('input, select, button')].filter((one) =>
              !(one.labels && one.labels.length) && !one.textContent.trim()
              && !one.getAttribute('aria-label')).map((one) => one.outerHTML)"""
        )
        assert nameless == []
        page.locator("#theme").focus()
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"

"""Pages are valid, stand alone, and carry hostile names as text."""

from __future__ import annotations

import json
import re
import shutil
from importlib import resources

import html5lib
import pytest

from geof.report.html import SCRIPTS, json_for_html, render
from tests.report.runs import HOSTILE, name, report


def parse(text: str):
    """Parse as HTML5, refusing every error."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)


def data_in(tree) -> dict:
    (script,) = (s for s in tree.iter("script") if s.get("type") == "application/json")
    return json.loads(script.text)


def check(text: str) -> dict:
    """Assert what holds for every page and return its data."""
    tree = parse(text)
    assert len(list(tree.iter("script"))) == 2  # the data and the code, nothing else
    assert not list(tree.iter("img"))
    assert not list(tree.iter("link"))
    for element in tree.iter():
        if not isinstance(element.tag, str):
            continue
        assert "src" not in element.attrib
        assert not any(attribute.startswith("on") for attribute in element.attrib)
        assert element.get("href", "#").startswith("#")
    (policy,) = (m for m in tree.iter("meta") if m.get("http-equiv"))
    assert policy.get("content").startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    )
    assert "NaN" not in text
    assert "Infinity" not in json.dumps(data_in(tree))
    return data_in(tree)


@pytest.mark.parametrize("kind", ["node", "link", "graph", "gcn"])
def test_the_page_of_a_run(kind, runs, tmp_path):
    folder = shutil.copytree(runs(kind), tmp_path / "run")
    text = report(folder, "--map", "pca").read_text(encoding="utf-8")
    page = check(text)
    assert page["kind"] == "run"
    if kind == "node":
        assert page["names"]["0"][0] == name(0)
        assert HOSTILE[0] not in text
        assert "<img" not in text


@pytest.mark.parametrize("text", [*HOSTILE, "]]>", "\ud800 half a pair", "{{data}}"])
def test_data_survive_and_stay_data(text):
    page = {"kind": "results", "title": text, "names": {text: [text]}, "bad": float("nan")}
    content = render(page).encode()
    found = data_in(parse(content.decode()))
    assert found["names"] == {text: [text]}
    assert found["bad"] is None
    escaped = json_for_html(page)
    assert not set("<>&\u2028\u2029") & set(escaped)
    assert escaped.isascii()


def check_script(code: dict[str, str]) -> None:
    """Assert that a page's script makes no markup and asks nothing of anybody."""
    for name_, text in code.items():
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
        assert not re.search(forbidden, text), name_
        assert not re.search(r"</script|<!--", text), name_
        assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket", text), name_
    addresses = set(re.findall(r"https?://[^\s\"']+", "".join(code.values())))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_script_writes_text_only():
    assets = resources.files("geof.report") / "assets"
    names = (*SCRIPTS, "page")
    assert {file.name for file in assets.iterdir()} == {
        *(f"{name}.js" for name in names),
        "page.html",
        "page.css",
    }
    check_script({name: (assets / f"{name}.js").read_text() for name in names})
    style = (assets / "page.css").read_text()
    assert "url(" not in style
    assert "@import" not in style

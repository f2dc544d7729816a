"""The catalogue, loading by name, and the commands behind ``geof data``."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import os
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from geof.cli.data import add_command
from geof.data import provision
from geof.data.catalogue import CATALOGUE, DatasetFacts, RawFile, Statistics, find, load
from geof.data.provision import _identity, check, exit_code, fetch, list_datasets
from geof.errors import ConfigError, DataError

REAL = os.environ.get("GEOF_DATA", "")
needs_files = pytest.mark.skipif(not REAL, reason="GEOF_DATA does not name the raw files")

TU = {
    "A": "1, 2\n2, 1\n3, 4\n4, 3\n",
    "graph_indicator": "1\n1\n2\n2\n",
    "graph_labels": "0\n1\n",
    "node_labels": "0\n1\n1\n2\n",
}
TINY = Statistics(graphs=2, nodes=4, edges=4, features=3, classes=2)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEOF_DATA", raising=False)


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> DatasetFacts:
    """NCI1 with four nodes, its checksums, and an archive to fetch it from."""
    archive = tmp_path / "upstream" / "NCI1.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for part, text in TU.items():
            content.writestr(f"NCI1/NCI1_{part}.txt", text)
        content.writestr("NCI1/../../escaped.txt", "outside")
    benchmark = dataclasses.replace(
        CATALOGUE["NCI1"],
        files=tuple(RawFile(f"NCI1/raw/NCI1_{p}.txt", digest(text)) for p, text in TU.items()),
        urls=(archive.as_uri(),),
        expected=TINY,
    )
    monkeypatch.setitem(CATALOGUE, "NCI1", benchmark)
    return benchmark


@pytest.fixture
def root(tmp_path, tiny) -> Path:
    folder = tmp_path / "root" / "NCI1" / "raw"
    folder.mkdir(parents=True)
    for part, text in TU.items():
        (folder / f"NCI1_{part}.txt").write_text(text)
    return tmp_path / "root"


def everything(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


# Facts ----------------------------------------------------------------------------------------


class PaperRow(NamedTuple):
    graphs: int
    nodes: float
    edges: float
    classes: int


PAPER = {
    "CiteSeer": PaperRow(1, 3_327, 9_104, 6),
    "PubMed": PaperRow(1, 19_717, 88_648, 3),
    "CS": PaperRow(1, 18_333, 163_788, 15),
    "Physics": PaperRow(1, 34_493, 495_924, 5),
    "Photo": PaperRow(1, 7_650, 238_162, 8),
    "Computers": PaperRow(1, 13_752, 491_722, 10),
    "PROTEINS": PaperRow(1_113, 39.10, 72.80, 2),
    "NCI1": PaperRow(4_110, 29.87, 32.30, 2),
    "Mutagenicity": PaperRow(4_337, 30.32, 30.77, 2),
    "FRANKENSTEIN": PaperRow(4_337, 16.90, 17.88, 2),
    "BBBP": PaperRow(2_050, 23.90, 51.60, 2),
    "ogbg-molhiv": PaperRow(41_127, 25.50, 27.50, 2),
}
"""The paper's table of datasets as printed, averages per graph."""


def test_the_twelve_are_there_in_the_papers_order():
    nodes = ["CiteSeer", "PubMed", "CS", "Physics", "Photo", "Computers"]
    graphs = ["PROTEINS", "NCI1", "Mutagenicity", "FRANKENSTEIN", "BBBP", "ogbg-molhiv"]
    assert [name for name in CATALOGUE if name in PAPER] == nodes + graphs
    assert [name for name in PAPER if CATALOGUE[name].is_node_graph] == nodes


@pytest.mark.parametrize("name", PAPER)
def test_statistics_equal_the_papers_or_the_difference_is_explained(name):
    expected, paper = CATALOGUE[name].expected, PAPER[name]
    assert expected.classes == paper.classes
    ours = (expected.graphs, expected.nodes / expected.graphs, expected.edges / expected.graphs)
    equal = ours == (paper.graphs, paper.nodes, paper.edges)
    assert equal == (CATALOGUE[name].difference == "")


@pytest.mark.parametrize(
    "name", ["PROTEINS", "NCI1", "Mutagenicity", "FRANKENSTEIN", "ogbg-molhiv"]
)
def test_the_paper_counts_undirected_edges_of_graph_sets_once(name):
    expected, paper = CATALOGUE[name].expected, PAPER[name]
    assert expected.nodes / expected.graphs == pytest.approx(paper.nodes, abs=0.05)
    assert expected.edges / expected.graphs / 2 == pytest.approx(paper.edges, abs=0.05)


def test_the_papers_bbbp_averages_divide_by_all_rows():
    expected, paper = CATALOGUE["BBBP"].expected, PAPER["BBBP"]
    assert expected.nodes / paper.graphs == pytest.approx(paper.nodes, abs=0.05)
    assert expected.edges / paper.graphs == pytest.approx(paper.edges, abs=0.05)
    assert expected.graphs + 11 == paper.graphs == CATALOGUE["BBBP"].files[0].rows


@pytest.mark.parametrize("benchmark", CATALOGUE.values(), ids=CATALOGUE)
def test_facts_are_complete(benchmark):
    assert len(benchmark.tasks) == len(benchmark.metrics)
    assert benchmark.licence
    assert benchmark.source
    assert benchmark.features
    assert all(file.path.startswith(f"{benchmark.folder}/") for file in benchmark.files)
    for file in benchmark.files:
        assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
        pinned = r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}"
        assert file.download is None or re.fullmatch(pinned, file.download)
    assert all(url.startswith("https://") for url in benchmark.urls)
    if any(file.sha256 is None for file in benchmark.files):
        assert "none" in benchmark.checksums


def test_one_download_is_without_a_checksum():
    """Nobody publishes any, and ours is reconstructed; sizes are compared, edges within graphs."""
    bare = [
        file.path
        for benchmark in CATALOGUE.values()
        for file in benchmark.files
        if file.sha256 is None and file.download is None
    ]
    assert bare == ["FRANKENSTEIN/raw/FRANKENSTEIN_graph_indicator.txt"]


def test_metrics_are_the_papers():
    metrics = {name: benchmark.metrics for name, benchmark in CATALOGUE.items()}
    assert metrics["PubMed"] == ("accuracy", "ROC-AUC")
    assert metrics["FRANKENSTEIN"] == ("accuracy",)
    assert metrics["BBBP"] == metrics["ogbg-molhiv"] == ("ROC-AUC",)


# Loading by name ------------------------------------------------------------------------------


def test_names_are_found_in_any_case_and_typos_answered():
    assert find("citeseer") is CATALOGUE["CiteSeer"]
    with pytest.raises(ConfigError, match=r"Unknown dataset 'Pubmet'.*Did you mean 'PubMed'"):
        find("Pubmet")


def test_load_reads_the_root_or_the_environment(root, monkeypatch):
    assert len(load("NCI1", data_root=root).graphs) == 2
    monkeypatch.setenv("GEOF_DATA", str(root))
    assert len(load("nci1", cache=False).graphs) == 2


def test_load_without_a_root_says_what_to_do():
    with pytest.raises(DataError, match=r"--data-root.*GEOF_DATA.*geof data fetch"):
        load("NCI1")


def test_load_never_touches_the_network(tmp_path, tiny, monkeypatch):
    def called(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr("urllib.request.urlopen", called)
    with pytest.raises(DataError, match=r"NCI1_A\.txt.*nothing there.*geof data fetch NCI1"):
        load("NCI1", data_root=tmp_path)


def test_a_root_that_is_a_file_or_absent_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="got a file"):
        load("NCI1", data_root=tmp_path / "file")
    with pytest.raises(DataError, match="got nothing there"):
        load("NCI1", data_root=tmp_path / "absent")


def test_a_folder_in_the_place_of_a_file_is_refused(root):
    (root / "NCI1/raw/NCI1_A.txt").unlink()
    (root / "NCI1/raw/NCI1_A.txt").mkdir()
    with pytest.raises(DataError, match=r"NCI1_A\.txt.*something else there"):
        load("NCI1", data_root=root)


def test_a_wrong_checksum_is_refused(root, tmp_path):
    path = root / "NCI1/raw/NCI1_A.txt"
    path.write_text(TU["A"][:-1])
    with pytest.raises(DataError, match=r"NCI1_A\.txt.*SHA-256.*truncated or altered.*fetch"):
        load("NCI1", data_root=root)
    assert not (tmp_path / "cache").exists()


def test_raw_folders_are_not_written_to(root):
    before = everything(root)
    load("NCI1", data_root=root)
    check(["NCI1"], root)
    assert everything(root) == before


# list, check, prepare -------------------------------------------------------------------------


def test_list_tells_which_files_are_there(root):
    assert {row.present for row in list_datasets()} == {None}
    present = {row.dataset.name: row.present for row in list_datasets(root)}
    assert present["NCI1"] is True
    assert present["CiteSeer"] is False


def status(root: Path) -> tuple[str, str, int]:
    rows = check(["NCI1"], root)
    return rows[0].status, rows[0].detail, exit_code(rows)


def test_check_accepts_sound_files(root):
    assert status(root) == ("ok", "", 0)


def test_check_names_what_is_missing(root):
    (root / "NCI1/raw/NCI1_node_labels.txt").unlink()
    what, detail, code = status(root)
    assert (what, code) == ("missing", 1)
    assert "NCI1/raw/NCI1_node_labels.txt" in detail


def test_check_finds_a_wrong_checksum(root):
    (root / "NCI1/raw/NCI1_graph_labels.txt").write_text("1\n1\n")
    what, detail, code = status(root)
    assert (what, code) == ("failed", 1)
    assert "SHA-256" in detail


def test_check_finds_other_statistics(root, tiny, monkeypatch):
    other = dataclasses.replace(tiny, expected=dataclasses.replace(TINY, nodes=5_000))
    monkeypatch.setitem(CATALOGUE, "NCI1", other)
    what, detail, code = status(root)
    assert (what, code) == ("differs", 1)
    assert "4 nodes instead of 5,000" in detail


def test_prepare_fills_the_cache_and_reports(root, tmp_path):
    seen = []
    rows = provision.prepare(["NCI1"], root, seen.append)
    assert rows == seen
    assert rows[0].measured == TINY
    assert len(list((tmp_path / "cache" / "NCI1").iterdir())) == 1


# fetch ----------------------------------------------------------------------------------------


def test_fetch_fills_the_root_and_load_reads_it(tmp_path, tiny):
    root = tmp_path / "new" / "root"
    (row,) = fetch(["NCI1"], root)
    assert len(row.downloaded) == row.verified == len(TU)
    assert set(everything(root)) == {file.path for file in tiny.files}
    assert not list(tmp_path.rglob("escaped.txt"))
    assert check(["NCI1"], root)[0].status == "ok"


def test_fetch_keeps_what_is_sound_and_replaces_the_rest(root, monkeypatch):
    assert fetch(["NCI1"], root)[0].downloaded == ()
    (root / "NCI1/raw/NCI1_A.txt").write_text("altered")
    assert fetch(["NCI1"], root)[0].downloaded == ("NCI1/raw/NCI1_A.txt",)
    assert (root / "NCI1/raw/NCI1_A.txt").read_text() == TU["A"]
    assert len(fetch(["NCI1"], root, force=True)[0].downloaded) == len(TU)


def refuse_fetch(root: Path, message: str) -> None:
    before = everything(root)
    with pytest.raises(DataError, match=message):
        fetch(["NCI1"], root, force=True)
    assert everything(root) == before
    assert not list(root.glob(".fetch-*"))


def test_a_truncated_archive_is_refused(root, tmp_path):
    archive = tmp_path / "upstream" / "NCI1.zip"
    os.truncate(archive, archive.stat().st_size // 2)
    refuse_fetch(root, "cut short")


def test_a_download_with_a_wrong_checksum_is_refused(root, tmp_path):
    with zipfile.ZipFile(tmp_path / "upstream" / "NCI1.zip", "w") as content:
        for part, text in TU.items():
            content.writestr(f"NCI1/NCI1_{part}.txt", text + "\n")
    refuse_fetch(root, r"the SHA-256 .* from the download of 'NCI1/raw/NCI1_A\.txt'")


def test_an_archive_without_a_wanted_file_is_refused(root, tmp_path):
    with zipfile.ZipFile(tmp_path / "upstream" / "NCI1.zip", "w") as content:
        content.writestr("NCI1/NCI1_A.txt", TU["A"])
    refuse_fetch(root, "got none")


def test_an_unreachable_address_is_refused(root, tmp_path):
    (tmp_path / "upstream" / "NCI1.zip").unlink()
    refuse_fetch(root, r"Expected to download 'file://.*NCI1\.zip' for NCI1.*by hand")


def test_a_full_disk_leaves_the_root_as_it_was(root, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("geof.data.provision._copy", full)
    refuse_fetch(root, r"No space left.*free space")


def test_a_root_that_is_a_file_is_refused(tmp_path, tiny):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Expected to write raw files below"):
        fetch(["NCI1"], tmp_path / "file")


def test_fetch_needs_a_root(tiny):
    with pytest.raises(DataError, match="Expected a folder of raw files"):
        fetch(["NCI1"])


@pytest.fixture
def upstream(tmp_path, monkeypatch):
    """Publish content under the name of a benchmark's single file."""

    def publish(name: str, content: bytes) -> None:
        benchmark = CATALOGUE[name]
        path = tmp_path / "upstream" / Path(benchmark.files[0].path).name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        monkeypatch.setitem(CATALOGUE, name, dataclasses.replace(benchmark, urls=(path.as_uri(),)))

    return publish


@pytest.mark.parametrize(
    ("rows", "message"), [(2_049, r"2050 rows \(got 2049\)"), (2_050, "sha256:d07a.* .got sha256:")]
)
def test_a_table_is_checked_by_its_rows_and_its_checksum(tmp_path, upstream, rows, message):
    upstream("BBBP", b"num,name,p_np,smiles\r\n" + b"1,a,1,C\r\n" * rows)
    with pytest.raises(DataError, match=message):
        fetch(["BBBP"], tmp_path / "root")
    assert everything(tmp_path / "root") == {}


@needs_files
def test_the_table_that_is_published_is_taken(tmp_path, upstream):
    upstream("BBBP", (Path(REAL) / "bbbp/raw/BBBP.csv").read_bytes())
    assert fetch(["BBBP"], tmp_path / "root")[0].downloaded == ("bbbp/raw/BBBP.csv",)


def test_a_truncated_npz_is_refused(tmp_path, upstream):
    import numpy as np

    np.savez(tmp_path / "whole.npz", labels=np.arange(100))
    content = (tmp_path / "whole.npz").read_bytes()
    upstream("CS", content[:-50])
    with pytest.raises(DataError, match="a whole archive"):
        fetch(["CS"], tmp_path / "root")
    upstream("CS", content)
    with pytest.raises(DataError, match=r"git:9bdd7da9.* \(got git:[0-9a-f]{40}\)"):
        fetch(["CS"], tmp_path / "root")


def test_a_blob_is_known_by_gits_name_for_it(tmp_path):
    (tmp_path / "file").write_bytes(b"hello\n")  # as `git hash-object` says
    assert _identity(tmp_path / "file", "git:") == "git:ce013625030ba8dba906f756967f9e9ca394464a"


def test_an_archive_that_unpacks_without_end_is_refused(root, tmp_path, monkeypatch):
    monkeypatch.setattr("geof.data.provision.LARGEST_BYTES", 10_000)
    with zipfile.ZipFile(tmp_path / "upstream" / "NCI1.zip", "w", zipfile.ZIP_DEFLATED) as content:
        content.writestr("NCI1/NCI1_A.txt", "0" * 1_000_000)
    assert (tmp_path / "upstream" / "NCI1.zip").stat().st_size < 10_000
    refuse_fetch(root, r"'NCI1/NCI1_A.txt' in the archive.*at most 10,000 bytes")


def test_a_download_without_end_is_refused(root, tmp_path, monkeypatch):
    monkeypatch.setattr("geof.data.provision.LARGEST_BYTES", 100)
    refuse_fetch(root, "the download of 'file://.*at most 100 bytes")


def test_certificates_are_looked_at_and_plain_connections_refused(root, monkeypatch):
    class Redirected(io.BytesIO):
        def geturl(self):
            return "http://somewhere.else/NCI1.zip"

    def urlopen(url, **options):
        assert "context" not in options  # Python's own, which verifies
        return Redirected(b"")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    refuse_fetch(root, "https address for NCI1 .*http://somewhere")


# The command line -----------------------------------------------------------------------------


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    options = parser.parse_args(["data", *arguments])
    return options.run(options)


def test_commands_print_and_return_exit_codes(root, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert run("list") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in CATALOGUE)
    assert "BBBP: The file has 2,050 rows" in text
    assert run("check", "NCI1", "--data-root", str(root)) == 0
    assert "ok" in capsys.readouterr().out
    assert run("prepare", "NCI1", "--data-root", str(root)) == 0
    assert "seconds" in capsys.readouterr().out
    assert run("fetch", "NCI1", "--data-root", str(tmp_path / "new")) == 0
    assert "files written" in capsys.readouterr().out
    (root / "NCI1/raw/NCI1_A.txt").unlink()
    assert run("check", "NCI1", "--data-root", str(root)) == 1
    assert "NCI1: Missing: NCI1/raw/NCI1_A.txt" in capsys.readouterr().out


# The real files -------------------------------------------------------------------------------

COMPLETE = [name for name in CATALOGUE if name != "FRANKENSTEIN"]


@needs_files
@pytest.mark.slow
@pytest.mark.parametrize("name", COMPLETE)
def test_real_files_are_what_the_catalogue_says(name):
    (row,) = check([name], REAL)
    assert row.status == "ok", row.detail
    assert row.measured == CATALOGUE[name].expected


@needs_files
def test_real_frankenstein_says_when_its_attributes_are_missing():
    (row,) = check(["FRANKENSTEIN"], REAL)
    path = Path(REAL) / "FRANKENSTEIN/raw/FRANKENSTEIN_node_attributes.txt"
    if path.exists():
        assert row.status == "ok"
    else:
        assert row.status == "incomplete"
        assert "FALLBACK: 'FRANKENSTEIN_node_attributes.txt' is missing" in row.detail
        assert exit_code([row]) == 1

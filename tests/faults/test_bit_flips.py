"""One bit of a file is wrong: an error that says so, or the right answer all the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from geof.cli import main
from geof.data.cache import Entry, load_or_build, read_entry
from geof.data.link_splits import LinkSplit
from geof.data.splits import DatasetIdentity, NodeSplit
from geof.errors import GeofError
from geof.training.checkpoint import read_tensors, save_checkpoint
from geof.training.predict import Run
from geof.training.run_folder import read_config, read_result
from tests.faults.conftest import WORDS
from tests.faults.harness import forked, tries

FLIPS = tries(60, 3000)


def flipped(path: Path, number: int) -> Iterator[None]:
    """Write a file with one bit changed, once for each of so many bits; all if there are fewer."""
    sound = path.read_bytes()
    bits = range(8 * len(sound))
    if len(bits) > number:
        draw = random.Random(path.name)
        # A third in the head of the file, where formats keep what they say about themselves.
        head = draw.sample(bits[: 8 * 512], min(number // 3, len(bits[: 8 * 512])))
        bits = sorted({*head, *draw.sample(bits, number - len(head))})
    try:
        for bit in bits:
            content = bytearray(sound)
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            yield
    finally:
        path.write_bytes(sound)


def refused_or_right(
    path: Path, read: Callable[[], Any], same: Callable[[Any], bool], tried, number: int = FLIPS
) -> None:
    """Read with one bit wrong; return how often that was refused."""
    refused = count = 0
    for _ in flipped(path, number):
        try:
            found = read()
        except GeofError:
            refused += 1
        else:
            assert same(found), path
        count += 1
    tried(count)
    assert refused > 0


def equal(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def run(finished_runs, tmp_path) -> Path:
    """Return a copy of a finished run, to be damaged."""
    return Path(shutil.copytree(finished_runs["node"], tmp_path / "run"))


def test_a_checkpoint(run, tried):
    path = run / "checkpoint.safetensors"
    tensors, about = read_tensors(path)

    def same(found: Any) -> bool:
        return equal(found[0], tensors) and found[1] == about

    refused_or_right(path, lambda: read_tensors(path), same, tried)


def test_a_checkpoint_that_is_opened(run, tried):
    """The whole way to the network."""
    wanted = Run.open(run).network.state_dict()
    refused_or_right(
        run / "checkpoint.safetensors",
        lambda: Run.open(run).network.state_dict(),
        lambda found: equal(found, wanted),
        tried,
        tries(10, 200),
    )


def test_a_small_state_bit_by_bit(tmp_path, tried):
    path = tmp_path / "state.safetensors"
    save_checkpoint(path, torch.nn.Linear(2, 3), {"reports": [{"epoch": 1}], "name": "ü"})
    tensors, about = read_tensors(path)

    def same(found: Any) -> bool:
        return equal(found[0], tensors) and found[1] == about

    refused_or_right(path, lambda: read_tensors(path), same, tried)


def test_a_split(tmp_path, tried):
    identity, path = DatasetIdentity("toy", "00", 9), tmp_path / "split.npz"
    parts = torch.arange(9).split(3)
    split = NodeSplit(*parts, "random")
    split.save(path, identity)

    def same(found: NodeSplit) -> bool:
        return all(torch.equal(a, b) for a, b in zip(_parts(found), parts, strict=True))

    def _parts(found: NodeSplit) -> list[torch.Tensor]:
        return [found.train, found.validation, found.test]

    refused_or_right(path, lambda: NodeSplit.load(path, identity), same, tried)


def test_a_split_of_links(finished_runs, tmp_path, tried):
    path = tmp_path / "split.npz"
    shutil.copy(finished_runs["link"] / "split.npz", path)
    about = read_config(finished_runs["link"])
    identity = DatasetIdentity(about["dataset"], about["content_hash"], 60)
    whole = LinkSplit.load(path, identity)
    refused_or_right(
        path,
        lambda: LinkSplit.load(path, identity),
        lambda found: found.hash == whole.hash,
        tried,
        tries(30, 1000),
    )


def test_an_entry_of_the_cache(tmp_path, tried):
    """A damaged one is none, and is built again."""
    entry = Entry({"x": torch.arange(12.0)}, {"name": "ü"})
    load_or_build("kind", "key", lambda: entry, tmp_path)
    place = tmp_path / "kind" / "key"
    for name in ("entry.json", "tensors.safetensors"):
        none = count = 0
        for _ in flipped(place / name, FLIPS):
            found = read_entry(place)
            none += found is None
            assert found is None or (
                equal(found.tensors, entry.tensors) and found.metadata == entry.metadata
            )
            count += 1
        assert none > 0
        tried(count)


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_plain_files_of_a_run(name, run, sources, tried):
    """They are text for people, without a checksum; what they decide is told or stays right."""
    read = read_config if name == "config.json" else read_result
    wanted = Run.open(run).network.state_dict()
    count = 0
    for _ in flipped(run / name, FLIPS):
        try:
            read(run)
            if count % 10 == 0:
                assert equal(Run.open(run).network.state_dict(), wanted)
        except GeofError:
            pass
        count += 1
    tried(count)


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "split.npz"])
@pytest.mark.parametrize("command", ["train", "report", "evaluate"])
def test_commands_on_a_damaged_run(command, name, run, sources, tmp_path, tried):
    """A sentence or an answer, never a traceback, never a signal."""
    words = {
        "train": ["train", *sources["node"], *WORDS, "--out", str(run)],
        "report": ["report", str(run), "--out", str(tmp_path / "page.html")],
        "evaluate": ["evaluate", str(run), "--json"],
    }[command]
    for _ in flipped(run / name, tries(4, 40)):
        ended = forked(lambda: main(words))
        assert ended.code in (0, 1), ended.said
        assert "Traceback" not in ended.said
        tried()


@pytest.fixture
def study(tmp_path) -> Path:
    """Return a finished study."""
    pytest.importorskip("optuna", reason="the extra geof[sweep] is not installed")
    from tests.faults.studies import sweep

    assert main(sweep(tmp_path, tmp_path / "study")) == 0
    return tmp_path / "study"


@pytest.mark.parametrize("name", ["sweep.json", "space.yaml", "config.yaml"])
def test_what_a_study_is(name, study, tried):
    """Another space, config or order is told where the same command is given again."""
    from geof.training.sweep import Study

    whole = Study.read(study)
    count = 0
    for _ in flipped(study / name, FLIPS):
        try:
            found = Study.read(study)
            assert found.space.dimensions
            whole.require_same(found)
        except GeofError:
            pass
        else:
            assert (found.base, found.searched) == (whole.base, whole.searched)
        count += 1
    tried(count)


def test_the_database_of_a_study(study, tried):
    words = ["sweep", "--resume", str(study), "--quiet"]
    for _ in flipped(study / "study.db", tries(5, 150)):
        ended = forked(lambda: main(words))
        assert ended.code in (0, 1), ended.said
        assert "Traceback" not in ended.said
        tried()

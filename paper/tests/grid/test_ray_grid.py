"""Jobs on a cluster, with a stand-in for Ray: drawn lazily, stopped, brought home; code checked."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from geof.errors import ConfigError, FolderLockedError, GeofError, StoppedError
from geof.executor import Outcome
from geof_paper.grid.cells import Cell, Row
from geof_paper.grid.ray_grid import OtherCodeError, RayExecutor, revision_of, write_files


class RayError(Exception):
    """As Ray raises when a task's process died, or with the task's own error as its cause."""

    def __init__(self, text, cause=None):
        super().__init__(text)
        self.cause = cause


class FakeRay:
    """Does a task when it is waited for; an actor's method at once."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, cpus=2):
        self.cpus, self.killed = cpus, []

    def cluster_resources(self):
        return {"CPU": self.cpus}

    def put(self, value):
        return value

    def remote(self, **needs):
        def wrap(what):
            if isinstance(what, type):
                return SimpleNamespace(remote=lambda: Handle(what()))
            return SimpleNamespace(remote=lambda *given: (id(object()), what, given))

        return wrap

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        if not isinstance(reference, tuple):
            return reference
        _, function, given = reference
        if given[1] in self.killed:
            raise RayError("the worker died")
        try:
            return function(*given)
        except Exception as error:
            raise RayError(str(error), error) from error


class Handle:
    """An actor as others see it."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self._actor, name))


def folder_of(job, root):
    return Path(root) / str(job)


def code_of(job):
    return "revision 1"


def act(job, should_stop, root):
    """Write a file like a run, and do what the job says."""
    folder = folder_of(job, root)
    if job == "absent":
        return "no data"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(str(job))
    if job == "locked":
        raise FolderLockedError("Another process works there; the files are its.")
    if should_stop():
        raise StoppedError("Stopped after its epoch.")
    if job == "fails":
        raise MemoryError("no room")
    (folder / "result.json").write_text("{}")
    return job


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


@pytest.fixture
def executor(ray, tmp_path):
    return RayExecutor(ray, partial(folder_of, root=tmp_path), code_of)


def run(executor, jobs, tmp_path, **options):
    return list(executor.run(partial(act, root=tmp_path), jobs, **options))


def test_jobs_are_drawn_when_there_is_room_and_told_as_they_end(executor, tmp_path):
    drawn, told = [], []

    def jobs():
        for job in range(5):
            drawn.append(job)
            assert len(drawn) - len(told) <= 2
            yield job

    for job, outcome in executor.run(partial(act, root=tmp_path), jobs()):
        told.append((job, outcome))
    assert told == [(job, Outcome(job)) for job in range(5)]


def test_an_exception_and_a_dead_process_are_outcomes(executor, ray, tmp_path):
    ray.killed = ["dies"]
    found = dict(run(executor, ["fails", "dies", "works"], tmp_path))
    assert isinstance(found["fails"].error, MemoryError)
    assert isinstance(found["dies"].error, GeofError)
    assert str(found["dies"].error) == "RayError: the worker died"
    assert found["works"] == Outcome("works")


def test_a_stop_reaches_the_tasks_and_draws_no_other(executor, ray, tmp_path, monkeypatch):
    asked = iter([False, False, False])

    def jobs():
        yield "first"
        yield "second"
        raise AssertionError("not drawn")

    found = run(executor, jobs(), tmp_path, should_stop=lambda: next(asked, True))
    assert [type(outcome.error) for _, outcome in found[1:]] == [StoppedError]
    assert not (tmp_path / "second" / "result.json").exists()


def test_other_code_on_a_machine_is_refused(executor, tmp_path, monkeypatch):
    here = RayExecutor._code
    monkeypatch.setattr(RayExecutor, "_code", lambda self, job: here(self, job) + "+")
    with pytest.raises(ConfigError, match=r"got geof .*revision 1\)\. Install the same version"):
        run(executor, [1], tmp_path)
    assert not issubclass(OtherCodeError, GeofError)  # no cell can fail of it


def test_the_code_of_a_cell_is_its_methods_revision():
    assert revision_of(Cell(Row("node", "CiteSeer", "gcn", "plain"), "0")) == "revision 1 of 'gcn'"


class Home(RayExecutor):
    """An executor whose own disk is another than its tasks'."""

    def _bring_home(self, job, done):
        return RayExecutor(self.ray, partial(folder_of, root="home"), self.code)._bring_home(
            job, done
        )


def test_files_come_home(ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for job in ("locked", "absent", "fails", "1"):
        Path("home", job).mkdir(parents=True)
        Path("home", job, "training_state.safetensors").write_text("before")
    executor = Home(ray, partial(folder_of, root="there"), code_of)
    found = dict(run(executor, ["locked", "absent", "fails", 1], "there"))
    assert isinstance(found["locked"].error, FolderLockedError)
    assert found["absent"].value == "no data"
    assert {path.name for path in Path("home/1").iterdir()} == {"metrics.jsonl", "result.json"}
    assert {path.name for path in Path("home/fails").iterdir()} == {"metrics.jsonl"}
    # Nothing was made there: what is here stays.
    for job in ("locked", "absent"):
        assert [path.name for path in Path("home", job).iterdir()] == ["training_state.safetensors"]


def test_an_unfinished_attempt_gives_way(tmp_path):
    for name in ("config.json", "checkpoint.safetensors", "failure.json", ".lock"):
        (tmp_path / name).write_text("old")
    files = {"result.json": b"{}", "checkpoint.safetensors": b"new", "measures/depth.json": b"{}"}
    write_files(tmp_path, files)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == b"new"
    assert (tmp_path / "measures" / "depth.json").exists()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".lock", "checkpoint.safetensors", "measures", "result.json"}


def test_a_finished_run_on_a_shared_disk_stays_as_it_is(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "checkpoint.safetensors").write_text("there")
    write_files(tmp_path, {"checkpoint.safetensors": b"other", "measures/depth.json": b"{}"})
    assert (tmp_path / "checkpoint.safetensors").read_text() == "there"
    assert (tmp_path / "measures" / "depth.json").exists()


def test_ray_is_asked_for_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    connected = RayExecutor.connected(None, 2, partial(folder_of, root=tmp_path), code_of)
    with pytest.raises(ConfigError, match=r"pip install './paper\[ray\]'"), connected:
        pass

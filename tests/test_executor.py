"""Executors: jobs drawn when their turn comes, every outcome told, no process left behind."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from geof import processes as module
from geof.errors import ConfigError, GeofError, StoppedError
from geof.executor import InProcess, Outcome, WorkerLostError
from geof.processes import Processes
from tests.processes import marked, wait_for

ROOT = Path(__file__).parents[1]


class UnreadableError(Exception):
    """One that is pickled and cannot be read back."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Unreadable:
    """A value that is pickled and cannot be read back."""

    def __reduce__(self):
        return (int, ("no number",))


class Counting:
    """Remembers, as a worker keeps its data, how many jobs it did."""

    def __init__(self):
        self.count = 0

    def __call__(self, job, should_stop):
        self.count += 1
        return os.getpid(), self.count


def act(job, should_stop):
    """Do what a job says."""
    name, *rest = job
    if name == "double":
        return 2 * rest[0]
    if name == "threads":
        import torch

        return os.environ["OMP_NUM_THREADS"], torch.get_num_threads()
    if name == "session":
        return os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if name == "raise":
        raise rest[0](*rest[1:])
    if name == "unreadable error":
        raise UnreadableError(1, 2)
    if name == "unpicklable value":
        return threading.Lock()
    if name == "unreadable value":
        return Unreadable()
    if name == "large":
        return bytes(rest[0])
    if name == "print":
        print("said", rest[0], flush=True)
        return None
    if name == "die":
        os.kill(os.getpid(), rest[0])
        time.sleep(60)
    if name == "die once":
        if not Path(rest[0]).exists():
            Path(rest[0]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "second time"
    if name == "stubborn":
        Path(rest[0], f"begun-{os.getpid()}").touch()
        time.sleep(60)
    if name == "work":
        return work(Path(rest[0]), should_stop)
    raise AssertionError(name)


def work(folder, should_stop, seconds=60):
    """Work like a run: an epoch after another, saved when asked to stop."""
    (folder / f"begun-{os.getpid()}").touch()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.02)
        if should_stop():
            (folder / f"saved-{os.getpid()}").touch()
            raise StoppedError("Stopped after its epoch.")
    return "worked to the end"


def never():
    raise AssertionError("not drawn")
    yield


def run(executor, jobs, function=act, **options):
    return list(executor.run(function, jobs, **options))


def names(folder, pattern):
    return sorted(path.name for path in Path(folder).glob(pattern))


@contextlib.contextmanager
def no_process_left():
    """No child of this process may live on."""
    yield
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists():
        alive = [Path(f"/proc/{n}/cmdline").read_bytes() for n in children.read_text().split()]
        assert not [words for words in alive if b"spawn_main" in words]


def test_one_after_another_in_this_process():
    drawn = []

    def jobs():
        for number in range(3):
            drawn.append(number)
            yield ("double", number)

    outcomes = InProcess().run(act, jobs())
    assert not drawn
    assert next(outcomes) == (("double", 0), Outcome(0))
    assert drawn == [0]  # the next one is judged when its turn comes
    assert list(outcomes) == [(("double", 1), Outcome(2)), (("double", 2), Outcome(4))]


def test_an_exception_is_an_outcome():
    (_, outcome), (_, after) = run(InProcess(), [("raise", ConfigError, "no"), ("double", 1)])
    assert isinstance(outcome.error, ConfigError)
    assert outcome.value is None
    assert after == Outcome(2)


def test_a_stop_in_this_process_reaches_the_job_and_draws_no_other(tmp_path):
    begun = tmp_path / f"begun-{os.getpid()}"

    def jobs():
        yield ("work", str(tmp_path))
        yield from never()

    ((_, outcome),) = run(InProcess(), jobs(), should_stop=begun.exists)
    assert isinstance(outcome.error, StoppedError)
    assert run(InProcess(), never(), should_stop=lambda: True) == []


def test_no_worker_is_started_for_nothing(monkeypatch):
    monkeypatch.setattr(module, "_Worker", None)
    assert run(Processes(2), []) == []
    assert run(Processes(2), never(), should_stop=lambda: True) == []


def test_jobs_that_cannot_be_pickled_are_told_and_need_no_worker(monkeypatch):
    monkeypatch.setattr(module, "_Worker", None)
    drawn = []

    def jobs():
        for number in range(3):
            drawn.append(number)
            yield threading.Lock()

    outcomes = Processes(2).run(act, jobs())
    assert isinstance(next(outcomes)[1].error, TypeError)
    assert drawn == [0]
    assert len(list(outcomes)) == 2
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        run(Processes(2), [1], function=lambda job, should_stop: job)


def test_one_worker_tells_everything_and_lives_on(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with no_process_left():
        jobs = [
            ("double", 4),
            ("raise", ConfigError, "no good"),
            ("unreadable error",),
            ("unpicklable value",),
            ("unreadable value",),
            ("large", 3_000_000),
            ("session",),
            ("threads",),
            ("print", "this"),
        ]
        outcomes = run(Processes(1, threads=1, log=tmp_path / "log"), jobs)
    assert [job for job, _ in outcomes] == jobs  # one worker: in the order drawn
    double, config, unreadable, unpicklable, strange, large, session, threads, _ = (
        outcome for _, outcome in outcomes
    )
    assert double == Outcome(8)
    assert isinstance(config.error, ConfigError)
    assert str(config.error) == "no good"
    assert str(unreadable.error) == "UnreadableError: 1 and 2"
    assert isinstance(unpicklable.error, GeofError)
    assert "cannot pickle" in str(unpicklable.error)
    assert isinstance(strange.error, GeofError)
    assert large.value == bytes(3_000_000)
    assert session.value == (os.name == "posix", True)
    assert threads.value == ("1", 1)
    assert (tmp_path / "log" / "0.log").read_text() == "said this\n"


def test_two_workers_keep_what_they_have_and_draw_no_more_than_they_can_take(monkeypatch):
    drawn, told = [], []

    def jobs():
        for number in range(6):
            drawn.append(number)
            assert len(drawn) - len(told) <= 2
            yield number

    with no_process_left():
        for job, outcome in Processes(2).run(Counting(), jobs()):
            told.append((job, *outcome.value))
    assert sorted(job for job, _, _ in told) == list(range(6))
    counts: dict[int, list[int]] = {}
    for _, process, count in told:
        counts.setdefault(process, []).append(count)
    assert os.getpid() not in counts
    assert all(found == list(range(1, len(found) + 1)) for found in counts.values())
    assert len(counts) <= 2


def test_cores_are_divided(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 7)
    assert [Processes(3).share, Processes(9).share, Processes(3, threads=4).share] == [2, 1, 4]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # the user's own word counts
    with module._environment(2):
        assert os.environ["OMP_NUM_THREADS"] == "4"
    monkeypatch.delenv("OMP_NUM_THREADS")
    with module._environment(2):
        assert os.environ["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_killed_worker_is_told_its_job_tried_again_and_the_others_go_on(tmp_path):
    jobs = [("die", signal.SIGKILL), ("double", 1), ("die once", str(tmp_path / "died"))]
    with no_process_left():
        found = {job[0]: outcome for job, outcome in run(Processes(1), jobs)}
    assert isinstance(found["die"].error, WorkerLostError)
    assert "was killed by SIGKILL, 2 times" in str(found["die"].error)
    assert found["double"] == Outcome(2)
    assert found["die once"] == Outcome("second time")


def test_a_worker_that_does_not_start_is_an_error_not_a_loop(monkeypatch):
    monkeypatch.setattr(module, "serve", os._exit)  # with the pipe for a code
    with (
        no_process_left(),
        pytest.raises(WorkerLostError, match="to start, but it ended with exit code 1"),
    ):
        run(Processes(2), [1, 2])


def test_a_stop_lets_every_worker_save(tmp_path):
    def jobs():
        yield ("work", str(tmp_path))
        yield ("work", str(tmp_path))
        yield from never()

    with no_process_left():
        outcomes = run(
            Processes(2), jobs(), should_stop=lambda: len(names(tmp_path, "begun-*")) == 2
        )
    assert [type(outcome.error) for _, outcome in outcomes] == [StoppedError] * 2
    assert len(names(tmp_path, "saved-*")) == 2


def test_a_run_broken_off_lets_workers_save_and_leaves_none(tmp_path):
    def jobs():
        yield ("work", str(tmp_path))
        wait_for(lambda: names(tmp_path, "begun-*"))
        raise GeofError("no more")

    with no_process_left(), pytest.raises(GeofError, match="no more"):
        run(Processes(2), jobs())
    assert len(names(tmp_path, "saved-*")) == 1


def test_a_second_interruption_does_not_wait(tmp_path):
    def should_stop():
        if names(tmp_path, "begun-*"):
            raise KeyboardInterrupt
        return False

    began = time.monotonic()
    with no_process_left(), pytest.raises(KeyboardInterrupt):
        run(Processes(1), [("stubborn", str(tmp_path))], should_stop=should_stop)
    assert time.monotonic() - began < module._PATIENCE_SECONDS


def test_who_does_not_stop_is_killed_when_patience_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)

    def jobs():
        yield ("stubborn", str(tmp_path))
        wait_for(lambda: names(tmp_path, "begun-*"))
        raise GeofError("no more")

    with no_process_left(), pytest.raises(GeofError, match="no more"):
        run(Processes(2), jobs())


def test_a_worker_asked_to_end_saves_and_its_job_goes_on_elsewhere(tmp_path):
    asked = []

    def should_stop():
        begun = names(tmp_path, "begun-*")
        if begun and not asked:
            asked.append(int(begun[0].removeprefix("begun-")))
            os.kill(asked[0], signal.SIGTERM)
        return len(begun) == 2  # another worker has the job

    ((_, outcome),) = run(Processes(1), [("work", str(tmp_path))], should_stop=should_stop)
    assert isinstance(outcome.error, StoppedError)
    assert f"saved-{asked[0]}" in names(tmp_path, "saved-*")
    assert len(names(tmp_path, "saved-*")) == 2


SLOW_START = """
import sys, time
from geof.cli.progress import stop_requests
from geof.processes import Processes
from tests.test_executor import SlowToLoad

def jobs():
    print("begun", flush=True)
    yield "job"

with stop_requests() as should_stop:
    ((job, outcome),) = Processes(1).run(SlowToLoad(), jobs(), should_stop=should_stop)
print(type(outcome.error).__name__)
"""


class SlowToLoad:
    """A function that takes as long to be read as what it imports."""

    def __call__(self, job, should_stop):
        return work(Path.cwd(), should_stop)

    def __setstate__(self, state):
        time.sleep(0.5)

    def __getstate__(self):
        return {"something": 1}


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_a_worker_is_deaf_to_the_terminal_from_the_beginning(seconds, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_START],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout.readline() == "begun\n"
        time.sleep(seconds)  # the worker starts, then reads its function
        os.killpg(parent.pid, signal.SIGINT)
        out, said = parent.communicate(timeout=30)
    assert out == "StoppedError\n"
    assert "Traceback" not in said
    assert len(names(tmp_path, "saved-*")) == 1


PARENT = """
import os, sys, time
from pathlib import Path
from geof.processes import Processes
from tests.test_executor import act

def jobs():
    yield "work", sys.argv[1]
    if len(sys.argv) > 2 and os.fork() == 0:  # it has the pipe of the first worker, too
        until = time.monotonic() + 30
        while not Path(sys.argv[1], "over").exists() and time.monotonic() < until:
            time.sleep(0.02)
        os._exit(0)
    yield "work", sys.argv[1]

list(Processes(2).run(act, jobs()))
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
@pytest.mark.parametrize(
    ("number", "more"), [(signal.SIGKILL, []), (signal.SIGTERM, []), (signal.SIGKILL, ["fork"])]
)
def test_workers_do_not_outlive_their_parent(number, more, tmp_path):
    mark = f"GEOF_TEST_MARK={uuid.uuid4()}"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), *more],
        cwd=ROOT,
        env={**os.environ, **dict([mark.split("=")]), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as parent:
        wait_for(lambda: len(names(tmp_path, "begun-*")) == 2, 60)
        assert len(marked(mark)) >= 3
        parent.send_signal(number)
        parent.wait()
    wait_for(lambda: len(names(tmp_path, "saved-*")) == 2, 2.5)
    (tmp_path / "over").touch()
    wait_for(lambda: not marked(mark), 5)

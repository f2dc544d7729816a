"""Fresh processes: answers, progress, errors and deaths."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import forkserver

import pytest
import torch

from geof.errors import ConfigError
from geof_paper.bench import processes
from geof_paper.bench.processes import (
    FreshProcessError,
    TimeUpError,
    in_fresh_process,
    start_server,
)


def report(value, *, say):
    say(f"got {value}")
    return value, os.getpid(), torch.get_num_threads(), os.environ.get("GOMP_SPINCOUNT")


def refuse(*, say):
    raise ConfigError("not like this")


def stumble(*, say):
    raise KeyError("gone")


def vanish(*, say):
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted(*, say):
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def linger(*, say):
    time.sleep(60)


@pytest.fixture(scope="module")
def module_patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", autouse=True)
def _server(module_patch):
    module_patch.setattr(processes, "_WORK", "torch")  # all that the work here needs
    forkserver._forkserver._stop()  # one that other tests started may lack the setting
    start_server()


def fresh(work, *arguments, **options):
    said: list[str] = []
    answer = in_fresh_process(work, *arguments, threads=1, say=said.append, **options)
    return answer, said


def test_an_answer_comes_from_another_process_with_the_threads_asked_for():
    (value, process, threads, _), said = fresh(report, 7)
    assert (value, threads, said) == (7, 1, ["got 7"])
    assert process != os.getpid()
    assert fresh(report, 7)[0][1] != process


def test_the_setting_of_waiting_threads_stays_in_the_processes():
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        pytest.skip("the environment has its own setting")
    assert fresh(report, 1)[0][3] == "10000"
    assert "GOMP_SPINCOUNT" not in os.environ


def test_our_errors_come_back_as_they_are():
    with pytest.raises(ConfigError, match="not like this"):
        fresh(refuse)


def test_other_errors_come_back_by_name():
    with pytest.raises(FreshProcessError, match="KeyError: 'gone'"):
        fresh(stumble)


def test_a_killed_process_is_an_error_that_names_the_likely_cause():
    with pytest.raises(FreshProcessError, match=r"signal 9\): probably killed for want of memory"):
        fresh(vanish)


def test_a_process_that_takes_too_long_is_given_up():
    start = time.monotonic()
    with pytest.raises(TimeUpError, match="no answer after 1 s"):
        fresh(linger, seconds=1)
    assert time.monotonic() - start < 30


def test_an_interruption_is_the_parents_to_act_on():
    assert fresh(interrupted)[0] == "still here"

"""Long work says how far it is, what it will cost and what would be cheaper."""

from __future__ import annotations

import io
import signal
import time
import warnings

import pytest
import torch
from rich.console import Console

from geof import progress, signature
from geof.cli import progress as shown
from geof.data.sources import SignatureConfig, cached_signature
from geof.errors import CostWarning, DataError
from geof.signature import structural_signature

ENDS = torch.arange(60)
RING = torch.stack([torch.cat([ENDS, (ENDS + 1) % 60]), torch.cat([(ENDS + 1) % 60, ENDS])])


class Heard(progress.Listener):
    def __init__(self) -> None:
        self.advances: list[tuple[str, int, int]] = []
        self.notes: list[str] = []

    def advance(self, what: str, done: int, total: int) -> None:
        self.advances.append((what, done, total))

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_signatures_tell_every_block():
    heard = Heard()
    with progress.listening(heard):
        structural_signature(RING, 60)
        structural_signature(RING, 60, method="estimate", probes=64)
    assert heard.advances[:3] == [("signatures", done, 2) for done in (0, 1, 2)]
    assert not heard.notes


def test_a_long_computation_is_announced_with_the_cheaper_choice(monkeypatch):
    monkeypatch.setattr(signature, "_RATE", 100.0)
    heard = Heard()
    with progress.listening(heard):
        cached_signature(RING, 60, SignatureConfig())
        cached_signature(RING, 60, SignatureConfig(method="estimate"))
    (note,) = heard.notes
    assert "signature.method=estimate" in note
    with pytest.warns(CostWarning, match="method='estimate' in Python"):
        structural_signature(RING, 60)
    with pytest.raises(DataError, match=r"on one core\).*signature\.method=estimate"):
        structural_signature(RING, 60, max_work=1.0)


def test_short_work_is_not_announced():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        structural_signature(RING, 60)


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""
    now = [0.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    return now


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def test_plain_lines_have_the_time_left(clock):
    plain = console()
    with shown.working(plain):
        for _ in progress.tracked("molecules", range(4), 4):
            clock[0] += 20
        progress.announce("Exact signatures", 75.0, "less")
    assert plain.file.getvalue().splitlines() == [
        "molecules: 25 %, 1:00 left",
        "molecules: 50 %, 0:40 left",
        "molecules: 75 %, 0:20 left",
        "note: Exact signatures: about 1:15 on this machine. Cheaper: less.",
    ]


def test_quiet_still_names_the_cost(clock):
    plain = console()
    with shown.working(plain, quiet=True):
        list(progress.tracked("molecules", range(4), 4))
        progress.announce("Exact signatures", 75.0)
    assert plain.file.getvalue() == "note: Exact signatures: about 1:15 on this machine.\n"


def test_a_terminal_gets_bars():
    live = Console(file=io.StringIO(), width=100, force_terminal=True)
    with shown.working(live):
        list(progress.tracked("molecules", range(4), 4))
    assert "molecules" in live.file.getvalue()


def test_batches_and_long_epochs_are_told(clock):
    from geof.training import EpochReport

    plain = console()
    with shown.training_meter(plain, 10, quiet=False, cheaper="fanouts=[10,10]") as meter:
        clock[0] += 20
        meter.batch(1, 3, 8)
        clock[0] += 20
        meter.pulse()
        meter.epoch(EpochReport(1, 0.5, 90.0, 0.1, 0.01, 1.0))
    assert plain.file.getvalue().splitlines() == [
        "epoch 1, batch 3 of 8",
        "epoch 1, batch 3 of 8, 0:40 since the start",
        "note: An epoch takes 0:40; 10 at most 6:00 more. Cheaper: fanouts=[10,10].",
    ]


def test_batches_have_the_time_left_and_a_long_epoch_is_told_within_it(clock):
    from geof.training import EpochReport

    plain = console()
    with shown.training_meter(plain, 10, quiet=False, cheaper="less") as meter:
        clock[0] += 4  # data and the first batch
        meter.batch(1, 11, 110)  # resumed in the midst of an epoch
        for step in (12, 13, 14):
            clock[0] += 2
            meter.batch(1, step, 110)
        clock[0] += 10
        meter.pulse()
        meter.epoch(EpochReport(1, 0.5, 90.0, 0.1, 0.01, 1.0))
        clock[0] += 15
        meter.pulse()
        meter.batch(2, 1, 110)
    assert plain.file.getvalue().splitlines() == [
        "note: An epoch takes about 3:40; 10 at most 36:40 more. Cheaper: less.",
        "epoch 1, batch 14 of 110, 3:12 of the epoch left, 0:20 since the start",
        "epoch 2 is at work, 0:35 since the start",
    ]


def test_short_epochs_of_batches_cost_nothing_to_speak_of(clock):
    plain = console()
    with shown.training_meter(plain, 10, quiet=False) as meter:
        for step in range(1, 20):
            clock[0] += 0.5
            meter.batch(1, step, 20)
    assert plain.file.getvalue() == ""


def endless_epoch(began: float) -> None:
    with shown.stop_requests(grace=0.1) as should_stop:
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
        while time.monotonic() - began < 20:
            time.sleep(0.01)


def test_an_epoch_that_does_not_end_is_given_up(capsys):
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        endless_epoch(began)
    assert time.monotonic() - began < 20
    assert "0.1 s at most" in capsys.readouterr().err


def test_one_that_ends_is_not():
    with shown.stop_requests(grace=0.05) as should_stop:
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
    time.sleep(0.1)

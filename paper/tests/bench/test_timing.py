"""Rounds: interleaved, bounded by the time there is, errors kept apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geof_paper.bench.catalogue import FULL, Entry
from geof_paper.bench.timing import Times, left_with_one_round, round_orders, run_rounds

GCN, GAT = Entry("gcn"), Entry("gat")
FAST, SLOW, SLOWEST = (Entry("geof", name) for name in ("native", "torch", "reference"))


class Stage:
    """A clock that only epochs move, and the order in which they ran."""

    def __init__(self, seconds: dict[Entry, float]) -> None:
        self.now = 0.0
        self.order: list[Entry] = []
        self.epochs = {c: self.epoch(c, s) for c, s in seconds.items()}

    def epoch(self, entry: Entry, seconds: float):
        def run() -> None:
            self.order.append(entry)
            self.now += seconds

        return run

    def run(self, **changes):
        effort = replace(FULL, seconds=10, least_rounds=3, most_rounds=5)
        return run_rounds(
            self.epochs, replace(effort, **changes), lambda line: None, lambda: self.now
        )


def test_rounds_are_interleaved_and_the_first_is_not_counted():
    stage = Stage({GCN: 0.1, GAT: 0.2, FAST: 0.3})
    times = stage.run(most_rounds=3)
    assert stage.order[:3] == [GCN, GAT, FAST]  # warm-up
    rounds = [stage.order[start : start + 3] for start in (3, 6, 9)]
    assert rounds == [[GCN, GAT, FAST], [GAT, FAST, GCN], [FAST, GCN, GAT]]
    assert len(stage.order) == 12
    assert times[FAST].seconds == pytest.approx([0.3] * 3)
    assert times[FAST].median == pytest.approx(0.3)


def test_the_number_of_rounds_fits_the_time_within_bounds():
    assert len(Stage({GCN: 2.5}).run()[GCN].seconds) == 4
    assert len(Stage({GCN: 0.001}).run()[GCN].seconds) == 5
    assert len(Stage({GCN: 100.0}).run()[GCN].seconds) == 3


def test_rounds_end_when_they_take_longer_than_the_warm_up_promised():
    stage = Stage({})
    durations = iter([0.1, *[6.0] * 10])

    def slower() -> None:
        stage.now += next(durations)

    stage.epochs = {GCN: slower}
    assert len(stage.run()[GCN].seconds) == 3


def test_slow_backends_are_left_with_their_first_epoch():
    stage = Stage({GCN: 0.5, FAST: 1.0, SLOW: 5.0, SLOWEST: 45.0})
    times = stage.run()
    assert {c: len(t.seconds) for c, t in times.items()} == {GCN: 5, FAST: 5, SLOW: 1, SLOWEST: 1}
    assert stage.order.count(SLOWEST) == 1
    assert times[SLOWEST].median == 45.0
    assert times[SLOWEST].quartiles is None


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        ({GCN: 0.1, FAST: 0.1, SLOWEST: 1.0}, []),
        ({GCN: 0.1, FAST: 1.0, SLOWEST: 9.0}, [SLOWEST]),
        ({GCN: 9.0, FAST: 9.0, SLOW: 10.0, SLOWEST: 11.0}, [SLOWEST, SLOW]),
        ({GCN: 99.0, GAT: 99.0, FAST: 99.0}, []),  # never those that are compared
        ({SLOWEST: 99.0}, []),
    ],
)
def test_only_slower_backends_give_rounds_up(seconds, left):
    assert left_with_one_round(seconds, replace(FULL, seconds=10, least_rounds=3)) == left


def test_with_one_round_the_first_epoch_is_it():
    stage = Stage({SLOW: 5.0})
    assert stage.run(most_rounds=1)[SLOW].seconds == [5.0]
    assert stage.order == [SLOW]


def test_an_error_is_the_entries_own():
    stage = Stage({GCN: 0.1, GAT: 0.1})
    ran = []

    def fails_later() -> None:
        ran.append(1)
        if len(ran) == 2:
            raise ValueError("no luck")

    stage.epochs[FAST] = fails_later
    times = stage.run()
    assert times[FAST].error == "ValueError: no luck"
    assert times[FAST].median is None
    assert len(ran) == 2
    assert len(times[GCN].seconds) == 5


def test_nobody_left_to_run_is_no_round():
    assert round_orders([], FULL, 0.0) == []
    assert Stage({}).run() == {}


def test_median_and_quartiles():
    times = Times([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (times.median, times.quartiles) == (3.0, (2.0, 4.0))
    assert Times([1.0, 2.0]).quartiles is None
    assert Times().median is None

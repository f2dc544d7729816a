"""Interleaved rounds: whatever slows the machine for a while slows every entry alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from geof_paper.bench.catalogue import Effort, Entry
from geof_paper.bench.processes import Say


@dataclass
class Times:
    """Seconds of each timed epoch of one entry.

    Attributes:
        seconds: One per round.
        error: Why there are none.
    """

    seconds: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def median(self) -> float | None:
        """The middle of the rounds."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The first and third quartile; of fewer than three rounds there are none."""
        if len(self.seconds) < 3:
            return None
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def run_rounds(
    epochs: Mapping[Entry, Callable[[], object]],
    effort: Effort,
    say: Say,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Entry, Times]:
    """Time every entry once per round, after a round to warm up.

    Args:
        epochs: What one training epoch of each entry is.
        effort: How many rounds, and how long.
        say: Receives lines of progress.
        clock: Seconds.

    Returns:
        The timed epochs. Whoever has one round, by the effort or by
        :func:`left_with_one_round`, has the warm-up epoch for it.
    """
    times = {entry: Times() for entry in epochs}
    first: dict[Entry, float] = {}
    for entry, epoch in epochs.items():
        say(f"warming up {entry.label}")
        seconds = _timed(epoch, times[entry], clock)
        if seconds is not None:
            first[entry] = seconds
    single = list(first) if effort.most_rounds == 1 else left_with_one_round(first, effort)
    for entry in single:
        times[entry].seconds.append(first.pop(entry))
    orders = round_orders(list(first), effort, sum(first.values()))
    if orders:
        say(f"{len(orders)} rounds of {', '.join(entry.label for entry in first)}")
    begin = clock()
    for number, order in enumerate(orders):
        if number >= effort.least_rounds and clock() - begin > effort.seconds:
            break  # the warm-up promised shorter rounds
        for entry in order:
            if times[entry].error is None:
                seconds = _timed(epochs[entry], times[entry], clock)
                if seconds is not None:
                    times[entry].seconds.append(seconds)
    return times


def _timed(epoch: Callable[[], object], times: Times, clock: Callable[[], float]) -> float | None:
    """Return the seconds of one epoch; an error is the entry's result, not the run's end."""
    start = clock()
    try:
        epoch()
    except Exception as error:
        times.error = f"{type(error).__name__}: {error}"
        times.seconds.clear()
        return None
    return clock() - start


def left_with_one_round(first: Mapping[Entry, float], effort: Effort) -> list[Entry]:
    """Return the slowest of GeoF's backends, as many as it takes for the rest to fit the time.

    The fastest backend and the networks it is compared with keep all rounds.
    """
    geof = sorted((c for c in first if c.backend is not None), key=lambda c: first[c])
    left: list[Entry] = []
    total = sum(first.values())
    while len(geof) > 1 and effort.least_rounds * total > effort.seconds:
        left.append(geof.pop())
        total -= first[left[-1]]
    return left


def round_orders(
    running: Sequence[Entry], effort: Effort, round_seconds: float
) -> list[list[Entry]]:
    """Return the order of each round; each begins with the next entry in turn.

    Args:
        running: Who takes part.
        effort: How many rounds, and how long.
        round_seconds: What a round takes.
    """
    fitting = int(effort.seconds / max(round_seconds, 1e-9))
    rounds = min(effort.most_rounds, max(effort.least_rounds, fitting)) if running else 0
    shifts = (number % len(running) for number in range(rounds))
    return [[*running[shift:], *running[:shift]] for shift in shifts]

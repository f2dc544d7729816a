"""Interleaved rounds: whatever slows the machine for a while slows every contestant alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from geof_paper.bench.catalogue import Contestant, Effort
from geof_paper.bench.processes import Say


@dataclass
class Times:
    """Seconds of each timed epoch of one contestant.

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
    epochs: Mapping[Contestant, Callable[[], object]],
    effort: Effort,
    say: Say,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Contestant, Times]:
    """Time every contestant once per round, after a round to warm up.

    Args:
        epochs: What one training epoch of each contestant is.
        effort: How many rounds, and how long.
        say: Receives lines of progress.
        clock: Seconds.

    Returns:
        The timed epochs. Whoever has one round, by the effort or by
        :func:`left_with_one_round`, has the warm-up epoch for it.
    """
    times = {contestant: Times() for contestant in epochs}
    first: dict[Contestant, float] = {}
    for contestant, epoch in epochs.items():
        say(f"warming up {contestant.label}")
        seconds = _timed(epoch, times[contestant], clock)
        if seconds is not None:
            first[contestant] = seconds
    single = list(first) if effort.most_rounds == 1 else left_with_one_round(first, effort)
    for contestant in single:
        times[contestant].seconds.append(first.pop(contestant))
    orders = round_orders(list(first), effort, sum(first.values()))
    if orders:
        say(f"{len(orders)} rounds of {', '.join(contestant.label for contestant in first)}")
    begin = clock()
    for number, order in enumerate(orders):
        if number >= effort.least_rounds and clock() - begin > effort.seconds:
            break  # the warm-up promised shorter rounds
        for contestant in order:
            if times[contestant].error is None:
                seconds = _timed(epochs[contestant], times[contestant], clock)
                if seconds is not None:
                    times[contestant].seconds.append(seconds)
    return times


def _timed(epoch: Callable[[], object], times: Times, clock: Callable[[], float]) -> float | None:
    """Return the seconds of one epoch; an error is the contestant's result, not the run's end."""
    start = clock()
    try:
        epoch()
    except Exception as error:
        times.error = f"{type(error).__name__}: {error}"
        times.seconds.clear()
        return None
    return clock() - start


def left_with_one_round(first: Mapping[Contestant, float], effort: Effort) -> list[Contestant]:
    """Return the slowest of GeoF's backends, as many as it takes for the rest to fit the time.

    The fastest backend and the networks it is compared with keep all rounds.
    """
    geof = sorted((c for c in first if c.backend is not None), key=lambda c: first[c])
    left: list[Contestant] = []
    total = sum(first.values())
    while len(geof) > 1 and effort.least_rounds * total > effort.seconds:
        left.append(geof.pop())
        total -= first[left[-1]]
    return left


def round_orders(
    running: Sequence[Contestant], effort: Effort, round_seconds: float
) -> list[list[Contestant]]:
    """Return the order of each round; each begins with the next contestant in turn.

    Args:
        running: Who takes part.
        effort: How many rounds, and how long.
        round_seconds: What a round takes.
    """
    fitting = int(effort.seconds / max(round_seconds, 1e-9))
    rounds = min(effort.most_rounds, max(effort.least_rounds, fitting)) if running else 0
    shifts = (number % len(running) for number in range(rounds))
    return [[*running[shift:], *running[:shift]] for shift in shifts]

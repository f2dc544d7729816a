"""The rows of the result, their ratios to the GCN, and growth exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from geof_paper.bench.catalogue import WORKLOADS, Entry, Growth, Stage

BASELINE = Entry("gcn")
"""What ratios are to: the GCN as usually written."""


@dataclass(frozen=True)
class Row:
    """One entry on one workload. Every row has every field; ``None`` is not measured.

    Attributes:
        dataset: The workload's name.
        method: ``gcn``, ``gcn-csr``, ``gat``, ``geof``, ``geof-edges`` or a registered method.
        backend: Of GeoF's step.
        device: Where it was trained.
        preset: Of a registered method; ``None`` for an entry of equal width.
        stage: What was timed: the supervised epochs, or the pretext's of a method whose preset
            freezes the encoder after them.
        status: ``ok``; ``skipped``: not run; ``failed``: run and ended in an error.
        reason: Why it was skipped or failed, or why its memory is missing.
        seconds_per_epoch: Median over the rounds.
        seconds_quartiles: First and third quartile; ``None`` below three rounds.
        rounds: Timed epochs.
        ratio_to_gcn: Of the median times, on the same workload in the same run.
        peak_rss_bytes: Largest resident size of a fresh process that trains this entry alone.
        peak_device_bytes: Most bytes of tensors on another device than the CPU.
        peak_bytes_above_data: The same of the device, else of the process, less what it was when
            data and network were ready.
        memory_ratio_to_gcn: Of the latter.
        memory_epochs: Epochs behind the peak.
        facts: Fields of :class:`geof_paper.bench.problems.Facts`; empty before the data are there.
        machine: See :func:`geof_paper.bench.machine.describe_machine`.
    """

    dataset: str
    method: str
    backend: str | None
    status: Literal["ok", "skipped", "failed"]
    reason: str | None
    facts: Mapping[str, Any]
    machine: Mapping[str, Any]
    device: str = "cpu"
    preset: str | None = None
    stage: Stage = "supervised"
    seconds_per_epoch: float | None = None
    seconds_quartiles: tuple[float, float] | None = None
    rounds: int = 0
    ratio_to_gcn: float | None = None
    peak_rss_bytes: int | None = None
    peak_device_bytes: int | None = None
    peak_bytes_above_data: int | None = None
    memory_ratio_to_gcn: float | None = None
    memory_epochs: int = 0

    @property
    def entry(self) -> Entry:
        """Who it is about."""
        return Entry(self.method, self.backend)

    def as_json(self) -> dict[str, Any]:
        """Return the row as flat JSON values, but for the machine.

        The method's key is ``model``, as in the files that were written from the beginning.
        """
        row = {**vars(self), **self.facts, "machine": dict(self.machine), "model": self.method}
        del row["facts"], row["method"]
        return row


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one workload with their ratios to its GCN, where it was measured."""
    base = next((row for row in rows if row.entry == BASELINE), None)
    if base is None:
        return list(rows)
    return [
        replace(
            row,
            ratio_to_gcn=_ratio(row.seconds_per_epoch, base.seconds_per_epoch),
            memory_ratio_to_gcn=_ratio(row.peak_bytes_above_data, base.peak_bytes_above_data),
        )
        for row in rows
    ]


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of the least-squares line of log time on log size."""
    logs = ([math.log(value) for value in values] for values in (sizes, seconds))
    return statistics.linear_regression(*logs).slope


def growth(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the exponent of every entry in edges and in nodes, from two points on.

    Returns:
        JSON values ``series``, ``model``, ``backend``, ``exponent``, and the ``sizes`` and
        ``seconds`` it was fitted to.
    """
    kinds: tuple[Growth, ...] = ("edges", "nodes")
    found = []
    for series in kinds:
        points: dict[Entry, list[tuple[int, float]]] = {}
        for row in rows:
            if WORKLOADS[row.dataset].growth == series and row.seconds_per_epoch is not None:
                point = (int(row.facts[series]), row.seconds_per_epoch)
                points.setdefault(row.entry, []).append(point)
        for entry, measured in points.items():
            if len(measured) < 2:
                continue
            sizes, seconds = zip(*sorted(measured), strict=True)
            found.append(
                {
                    "series": series,
                    "model": entry.method,
                    "backend": entry.backend,
                    "exponent": growth_exponent(sizes, seconds),
                    "sizes": list(sizes),
                    "seconds": list(seconds),
                }
            )
    return found

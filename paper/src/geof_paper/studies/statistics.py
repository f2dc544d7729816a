"""Whether differences between methods are more than noise.

Over many benchmarks: ranks within each, Friedman's test and Holm-adjusted comparisons with one
reference method, as the paper's table of aggregates. Between two rows on the same splits: a paired
test. Scores are percentages; larger is better.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from geof.errors import ConfigError, DataError, ShapeError, nearest

Array = NDArray[np.float64]

SAME_DECIMALS = 9
"""Scores are ranked after rounding to this: means of equal sums may differ in the last bit."""


class MeanAndDeviation(NamedTuple):
    """Mean and sample deviation; one value alone has no deviation."""

    mean: float
    deviation: float | None
    number: int


@dataclass(frozen=True)
class Friedman:
    r"""Friedman's test of equal performance.

    Attributes:
        statistic: Chi-square without correction for ties,
            :math:`\frac{12 N}{k (k + 1)} (\sum_j R_j^2 - k (k + 1)^2 / 4)`. This is the form that
            gives the paper's 169.2 from the paper's tables.
        p_value: Of the statistic.
        degrees: Degrees of freedom, one less than there are methods.
        corrected_statistic: With the correction for ties, as ``scipy.stats.friedmanchisquare``
            has it; never smaller.
        corrected_p_value: Of the latter.
    """

    statistic: float
    p_value: float
    degrees: int
    corrected_statistic: float
    corrected_p_value: float


@dataclass(frozen=True)
class MethodRow:
    """One method over the benchmarks that were used.

    Attributes:
        method: Its name.
        averages: Mean score per group; ``None`` for a group none of whose benchmarks was used.
        overall: Mean score over all benchmarks.
        rank: Average rank, one is best.
        gain: Mean of the reference's score less this one's; ``None`` for the reference, as are the
            three below.
        z: ``(rank - rank of the reference) / sqrt(k (k + 1) / (6 N))``.
        p_value: Two-sided, of ``z`` under the normal distribution.
        p_holm: The same, adjusted for the number of comparisons by Holm's step-down rule.
    """

    method: str
    averages: Mapping[str, float | None]
    overall: float
    rank: float
    gain: float | None = None
    z: float | None = None
    p_value: float | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class Aggregate:
    """A comparison over benchmarks.

    Attributes:
        reference: The method that others are compared with.
        rows: One per method, in the given order.
        friedman: The global test.
        used: Benchmarks in which every method has a score: all numbers rest on these alone.
        left_out: The other benchmarks, each with the methods that have no score there.
    """

    reference: str
    rows: tuple[MethodRow, ...]
    friedman: Friedman
    used: tuple[str, ...]
    left_out: Mapping[str, tuple[str, ...]]

    @property
    def note(self) -> str:
        """How many benchmarks were used and which were left out, in words."""
        return _note(self.used, self.left_out)


@dataclass(frozen=True)
class Paired:
    """Two rows compared on the splits they share.

    Attributes:
        mean: Mean of first less second.
        standard_error: Of that mean, as the scheme asks.
        t: Mean over standard error; ``None`` where every difference is the same.
        degrees: Degrees of freedom, one less than there are splits.
        p_value: Two-sided. One if all differences are zero; ``None`` if they are all the same
            other number, of which the test can say nothing.
        splits: The shared splits.
        left_out: Splits that only one row has.
        scheme: ``random`` or ``folds``, see :func:`compare_paired`.
    """

    mean: float
    standard_error: float
    t: float | None
    degrees: int
    p_value: float | None
    splits: tuple[Hashable, ...]
    left_out: tuple[Hashable, ...]
    scheme: str


Scheme = Literal["random", "folds"]


def mean_and_deviation(values: ArrayLike) -> MeanAndDeviation:
    """Return mean, sample deviation (divided by one less than the number) and number.

    Raises:
        DataError: If there is no value or one is not finite.
    """
    numbers = np.asarray(values, dtype=np.float64).ravel()
    if numbers.size == 0 or not np.isfinite(numbers).all():
        raise DataError(
            f"Expected one finite value or more (got {numbers.tolist()}). Leave out what failed."
        )
    deviation = float(numbers.std(ddof=1)) if numbers.size > 1 else None
    return MeanAndDeviation(float(numbers.mean()), deviation, numbers.size)


def ranks_within(scores: ArrayLike) -> Array:
    """Return each method's rank in each benchmark; one is best and ties share their mean rank.

    Args:
        scores: Benchmarks x methods, complete.
    """
    rounded = np.round(_complete(scores), SAME_DECIMALS)
    return np.asarray(stats.rankdata(-rounded, axis=1), dtype=np.float64)


def average_ranks(scores: ArrayLike) -> Array:
    """Return each method's rank averaged over the benchmarks (see :func:`ranks_within`)."""
    return np.asarray(ranks_within(scores).mean(axis=0), dtype=np.float64)


def friedman(scores: ArrayLike) -> Friedman:
    """Test whether the methods perform equally.

    Args:
        scores: Benchmarks x methods, complete.

    Returns:
        The statistic without and with the correction for ties.

    Raises:
        ConfigError: If there are fewer than two benchmarks or methods.
    """
    ranks = ranks_within(scores)
    benchmarks, methods = ranks.shape
    _require_two(benchmarks, methods)
    squares = float((ranks.mean(axis=0) ** 2).sum())
    plain = (
        12 * benchmarks / (methods * (methods + 1)) * (squares - methods * (methods + 1) ** 2 / 4)
    )
    plain = max(plain, 0.0)  # a difference of equal numbers may be a little less
    ties = sum(
        float((c**3 - c).sum()) for c in (np.unique(r, return_counts=True)[1] for r in ranks)
    )
    untied = 1 - ties / (benchmarks * methods * (methods**2 - 1))
    corrected = plain / untied if untied > 0 else 0.0  # all methods tied everywhere
    degrees = methods - 1
    tails = [float(stats.chi2.sf(value, degrees)) for value in (plain, corrected)]
    return Friedman(plain, tails[0], degrees, corrected, tails[1])


def holm(p_values: ArrayLike) -> Array:
    """Return p-values adjusted by Holm's step-down rule."""
    from statsmodels.stats.multitest import multipletests

    values = np.asarray(p_values, dtype=np.float64)
    return values if values.size == 0 else np.asarray(multipletests(values, method="holm")[1])


def rank_differences(ranks: ArrayLike, benchmarks: int, reference: int) -> tuple[Array, Array]:
    """Return z and two-sided p of every average rank against the reference's.

    Args:
        ranks: Average rank per method.
        benchmarks: How many benchmarks they are averages over.
        reference: Index of the reference, whose own z is zero.
    """
    averages = np.asarray(ranks, dtype=np.float64)
    methods = averages.size
    z = (averages - averages[reference]) / np.sqrt(methods * (methods + 1) / (6 * benchmarks))
    return z, np.asarray(2 * stats.norm.sf(np.abs(z)), dtype=np.float64)


def nemenyi_difference(methods: int, benchmarks: int, level: float = 0.05) -> float:
    r"""Return how far average ranks of any two methods must be apart, by Nemenyi's test.

    :math:`q \sqrt{k (k + 1) / 6 N}` with the quantile :math:`q` of the studentised range, divided
    by :math:`\sqrt 2`.

    >>> round(nemenyi_difference(5, 30), 3)
    1.114
    """
    _require_two(benchmarks, methods)
    quantile = stats.studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * benchmarks)))


def aggregate(
    scores: ArrayLike,
    methods: Sequence[str],
    groups: Sequence[str],
    reference: str,
    *,
    benchmarks: Sequence[str] | None = None,
) -> Aggregate:
    """Compare methods over benchmarks, as the paper's table of aggregates does.

    Ranks need complete blocks. Every given method is kept, and the benchmarks are those in which
    all of them have a score; averages and gains rest on the same ones, so that rows can be
    compared. To use more benchmarks give fewer methods.

    Args:
        scores: Benchmarks x methods, in percent; NaN where a method was not run.
        methods: Names of the columns.
        groups: Task of each benchmark, to average within.
        reference: The method that the others are compared with.
        benchmarks: Names of the benchmarks, for saying which were left out.

    Raises:
        ShapeError: If names and scores do not fit.
        DataError: If a score is infinite.
        ConfigError: If a name repeats, the reference is not among the methods, or fewer than two
            methods or two benchmarks remain.
    """
    table = np.asarray(scores, dtype=np.float64)
    names = (
        [f"benchmark {i + 1}" for i in range(len(groups))]
        if benchmarks is None
        else list(benchmarks)
    )
    _check_names(table, methods, groups, names, reference)
    absent = [
        tuple(method for method, value in zip(methods, row, strict=True) if np.isnan(value))
        for row in table
    ]
    whole = [i for i, missing in enumerate(absent) if not missing]
    used = tuple(names[i] for i in whole)
    left_out = {names[i]: missing for i, missing in enumerate(absent) if missing}
    _require_two(len(used), len(methods), _note(used, left_out))
    members = {group: [n for n, i in enumerate(whole) if groups[i] == group] for group in groups}
    rows = _rows(table[whole], methods, members, reference)
    return Aggregate(reference, rows, friedman(table[whole]), used, left_out)


def compare_paired(
    first: Mapping[Any, float],
    second: Mapping[Any, float],
    scheme: Scheme,
    *,
    test_to_train: float | None = None,
) -> Paired:
    """Test whether two rows differ on the splits they share.

    ``random``: splits drawn anew each time overlap, so differences are correlated and the plain
    t-test finds too much. The corrected resampled t-test (Nadeau and Bengio, 2003) takes
    :math:`(1/J + n_{test}/n_{train}) s^2` for the variance of the mean of J differences.
    ``folds``: test sets are disjoint and the plain paired t-test is used, with variance
    :math:`s^2/J`. The training sets of folds still overlap, so its p-values are somewhat
    too small.

    Args:
        first: Score per split.
        second: Score per split of the other row.
        scheme: How the splits were made.
        test_to_train: Test size over training size (a third for 60/20/20); for ``random`` only.

    Raises:
        ConfigError: If the scheme is unknown, ``test_to_train`` does not go with it, or fewer than
            two splits are shared.
        DataError: If a score is not finite.
    """
    correction = _correction(scheme, test_to_train)
    shared = tuple(split for split in first if split in second)
    left_out = tuple(s for s in [*first, *second] if (s in first) != (s in second))
    if len(shared) < 2:
        raise ConfigError(
            f"Expected two shared splits or more (got {len(shared)}). Run both rows on the same "
            "splits."
        )
    differences = np.array([first[s] - second[s] for s in shared], dtype=np.float64)
    mean, deviation, count = mean_and_deviation(differences)
    assert deviation is not None  # there are two or more
    degrees = count - 1
    if deviation < 10.0**-SAME_DECIMALS:  # nothing but rounding varies
        same = abs(mean) < 10.0**-SAME_DECIMALS
        return Paired(mean, 0.0, None, degrees, 1.0 if same else None, shared, left_out, scheme)
    error = deviation * float(np.sqrt(1 / count + correction))
    p_value = 2 * float(stats.t.sf(abs(mean) / error, degrees))
    return Paired(mean, error, mean / error, degrees, p_value, shared, left_out, scheme)


def _note(used: Sequence[str], left_out: Mapping[str, Sequence[str]]) -> str:
    text = f"{len(used)} of {len(used) + len(left_out)} benchmarks were used."
    if not left_out:
        return text
    reasons = (f"{name} (no score of {_few(missing)})" for name, missing in left_out.items())
    return f"{text} Left out: {'; '.join(reasons)}."


def _few(methods: Sequence[str]) -> str:
    return ", ".join(methods) if len(methods) <= 3 else f"{len(methods)} methods"


def _rows(
    table: Array, methods: Sequence[str], members: Mapping[str, Sequence[int]], reference: str
) -> tuple[MethodRow, ...]:
    """Return a row per method; ``members`` says which benchmarks make up each group."""
    base = list(methods).index(reference)
    ranks = average_ranks(table)
    z, p_values = rank_differences(ranks, len(table), base)
    others = [j for j in range(len(methods)) if j != base]
    adjusted = dict(zip(others, holm(p_values[others]).tolist(), strict=True))
    rows = []
    for j, method in enumerate(methods):
        averages = {g: float(table[i, j].mean()) if i else None for g, i in members.items()}
        row = MethodRow(method, averages, float(table[:, j].mean()), float(ranks[j]))
        if j != base:
            gain = float((table[:, base] - table[:, j]).mean())
            test = {"z": float(z[j]), "p_value": float(p_values[j]), "p_holm": adjusted[j]}
            row = replace(row, gain=gain, **test)
        rows.append(row)
    return tuple(rows)


def _complete(scores: ArrayLike) -> Array:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2:
        raise ShapeError(f"Expected scores of benchmarks x methods (got shape {table.shape}).")
    if not np.isfinite(table).all():
        raise DataError(
            "Expected a finite score in every cell. Use aggregate(), which leaves out benchmarks "
            "with missing scores and says so."
        )
    return table


def _check_names(
    table: Array,
    methods: Sequence[str],
    groups: Sequence[str],
    benchmarks: Sequence[str],
    reference: str,
) -> None:
    expected = (len(groups), len(methods))
    if table.shape != expected or len(benchmarks) != len(groups):
        raise ShapeError(
            f"Expected scores of {expected[0]} benchmarks x {expected[1]} methods, as the groups "
            f"and methods say (got shape {table.shape} and {len(benchmarks)} names of benchmarks)."
        )
    for kind, names in (("methods", methods), ("benchmarks", benchmarks)):
        if len(set(names)) < len(names):
            raise ConfigError(f"Expected {kind} to have different names (got {list(names)}).")
    if reference not in methods:
        raise ConfigError(f"Unknown reference {reference!r}. {nearest(reference, methods)}")
    if np.isinf(table).any():
        raise DataError("Expected finite scores, or NaN where a method was not run (got infinity).")


def _require_two(benchmarks: int, methods: int, note: str = "") -> None:
    if benchmarks < 2 or methods < 2:
        raise ConfigError(
            f"Expected two methods or more and two benchmarks or more in which all of them have a "
            f"score (got {methods} methods, {benchmarks} benchmarks). {note}".rstrip()
        )


def _correction(scheme: str, test_to_train: float | None) -> float:
    if scheme not in get_args(Scheme):
        raise ConfigError(f"Unknown scheme {scheme!r}. {nearest(scheme, get_args(Scheme))}")
    if scheme == "folds":
        if test_to_train is not None:
            raise ConfigError(
                f"Expected no 'test_to_train' for folds (got {test_to_train}). Leave it out."
            )
        return 0.0
    if test_to_train is None or not 0 < test_to_train < float("inf"):
        raise ConfigError(
            f"Expected 'test_to_train' to be a positive number for random splits (got "
            f"{test_to_train}). Give test size over training size: 1/3 for 60/20/20."
        )
    return test_to_train

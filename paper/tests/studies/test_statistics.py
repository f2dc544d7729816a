"""Ranks, Friedman, Holm and paired tests: by hand, against SciPy, and the paper's own table."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from scipy import stats

from geof.errors import ConfigError, DataError, ShapeError
from geof.io import write_json
from geof_paper.studies.printed import paper_tables
from geof_paper.studies.statistics import (
    aggregate,
    average_ranks,
    compare_paired,
    friedman,
    holm,
    mean_and_deviation,
    nemenyi_difference,
    rank_differences,
    ranks_within,
)

NAN = float("nan")


def paper_scores():
    """The printed means of the paper's Tables 1 and 2: scores, methods, groups, benchmarks."""
    tables = paper_tables()
    methods = list(tables["node_link"])
    benchmarks = [("node_link", name) for name in tables["node_link"]["GeoF"]]
    benchmarks += [("graph", name) for name in tables["graph"]["GeoF"]]
    scores = [[tables[kind][m][name]["mean"] for m in methods] for kind, name in benchmarks]
    groups = [kind if kind == "graph" else name.split("/")[1] for kind, name in benchmarks]
    return scores, methods, groups, [name for _, name in benchmarks]


def as_printed(value: float, decimals: int = 1) -> str:
    """A number as the paper prints it: halves go up (89.25 is printed as 89.3).

    The mean of printed decimals is a short decimal or far from a half, so what binary floats add
    is removed first.
    """
    exact = Decimal(repr(round(value, 9)))
    return str(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))


@pytest.fixture(scope="module")
def paper():
    scores, methods, groups, benchmarks = paper_scores()
    return aggregate(scores, methods, groups, "GeoF", benchmarks=benchmarks)


def test_the_papers_chi_square_is_the_one_without_correction_for_ties(paper):
    tables = paper_tables()
    assert as_printed(paper.friedman.statistic) == str(tables["friedman_chi2"]) == "169.2"
    assert paper.friedman.degrees == tables["friedman_dof"] == 14
    assert as_printed(paper.friedman.corrected_statistic) == "169.9"  # so not this one
    assert len(paper.used) == 18
    assert paper.note == "18 of 18 benchmarks were used."


@pytest.mark.parametrize("method", list(paper_tables()["aggregate"]))
def test_the_papers_aggregates_to_the_printed_digit(paper, method):
    printed = paper_tables()["aggregate"][method]
    row = next(row for row in paper.rows if row.method == method)
    ours = {**row.averages, "overall": row.overall, "rank": row.rank}
    if method != "GeoF":
        ours["gain"] = row.gain
        assert f"{row.p_holm:.2e}" == f"{printed['p_holm']:.2e}"
    else:
        assert row.gain is row.z is row.p_value is row.p_holm is None
    assert {key: as_printed(value) for key, value in ours.items()} == {
        key: str(value) for key, value in printed.items() if key != "p_holm"
    }


def test_ranks_by_hand_with_ties():
    scores = [[90.0, 80.0, 80.0, 70.0], [1.0, 1.0, 1.0, 5.0]]
    assert ranks_within(scores).tolist() == [[1, 2.5, 2.5, 4], [3, 3, 3, 1]]
    assert average_ranks(scores).tolist() == [2, 2.75, 2.75, 2.5]


def test_equal_means_tie_although_their_last_bits_differ():
    third = np.mean([0.1, 0.2, 0.3]) * 100, (0.1 + 0.2 + 0.3) / 3 * 100, 20.0
    assert len(set(third)) > 1
    assert ranks_within([third]).tolist() == [[2, 2, 2]]


def test_friedman_by_hand():
    # Three benchmarks, the same order in each: R = 1, 2, 3.
    # 12 * 3 / (3 * 4) * (1 + 4 + 9 - 3 * 16 / 4) = 3 * 2 = 6.
    test = friedman([[3, 2, 1], [9, 8, 7], [30, 20, 10]])
    assert test.statistic == pytest.approx(6)
    assert test.corrected_statistic == pytest.approx(6)
    assert test.p_value == pytest.approx(math.exp(-3))  # chi-square with two degrees of freedom
    # One tie of two: R = 7/6, 11/6, 3. 3 * (1.3611 + 3.3611 + 9 - 12) = 31/6.
    tied = friedman([[2, 2, 1], [9, 8, 7], [30, 20, 10]])
    assert tied.statistic == pytest.approx(31 / 6)
    assert tied.corrected_statistic == pytest.approx(31 / 6 / (1 - 6 / (3 * 3 * 8)))


@pytest.mark.parametrize("seed", range(4))
def test_corrected_friedman_is_scipys(seed):
    scores = np.random.default_rng(seed).integers(0, 6, (12, 5)).astype(float)
    theirs = stats.friedmanchisquare(*scores.T)
    ours = friedman(scores)
    assert ours.corrected_statistic == pytest.approx(theirs.statistic)
    assert ours.corrected_p_value == pytest.approx(theirs.pvalue)
    assert ours.statistic < ours.corrected_statistic


def test_methods_that_never_differ_are_equal():
    test = friedman(np.ones((3, 4)))
    assert (test.statistic, test.corrected_statistic) == (0, 0)
    assert (test.p_value, test.corrected_p_value) == (1, 1)
    result = aggregate(np.ones((3, 2)), "ab", "xxx", "a")
    assert [row.p_holm for row in result.rows] == [None, 1]


def test_holm_by_hand():
    # Sorted 0.01 * 4, 0.02 * 3, 0.025 * 2 < 0.06 and so 0.06, 0.7 * 1.
    assert holm([0.02, 0.7, 0.01, 0.025]) == pytest.approx([0.06, 0.7, 0.04, 0.06])
    assert holm([0.6, 0.5]).tolist() == [1, 1]
    assert holm([]).tolist() == []


def test_rank_differences_by_hand():
    # k = 3, N = 8: sqrt(3 * 4 / 48) = 1 / 2.
    z, p = rank_differences([1.0, 2.0, 3.0], 8, reference=1)
    assert z.tolist() == [-2, 0, 2]
    assert p == pytest.approx([0.0455002639, 1, 0.0455002639])


def test_only_complete_benchmarks_count_and_the_others_are_named():
    scores = [[3, 2, 1], [9, NAN, NAN], [6, 5, 4], [7, 9, 8]]
    groups, names = ["node", "graph", "node", "link"], ["A", "B", "C", "D"]
    result = aggregate(scores, ["x", "y", "z"], groups, "x", benchmarks=names)
    assert result.used == ("A", "C", "D")
    assert result.left_out == {"B": ("y", "z")}
    assert result.note == "3 of 4 benchmarks were used. Left out: B (no score of y, z)."
    x, y, _ = result.rows
    assert x.averages == {"node": 4.5, "graph": None, "link": 7}
    assert x.overall == pytest.approx(16 / 3)  # the 9 does not count
    assert (x.rank, y.rank) == (pytest.approx(5 / 3), pytest.approx(5 / 3))
    assert y.gain == pytest.approx(0)


def test_an_aggregate_can_be_written(tmp_path):
    result = aggregate([[1, 2], [2, NAN], [3, 4]], "ab", "xyx", "a")
    write_json(tmp_path / "a.json", asdict(result))
    written = json.loads((tmp_path / "a.json").read_text())
    assert [row["rank"] for row in written["rows"]] == [2.0, 1.0]
    assert written["left_out"] == {"benchmark 2": ["b"]}


@pytest.mark.parametrize(
    ("scores", "methods", "groups", "reference", "error", "message"),
    [
        (
            [[1, 2], [NAN, 2]],
            "ab",
            "xx",
            "a",
            ConfigError,
            "1 benchmarks.*benchmark 2 .no score of a",
        ),
        ([[1], [2]], "a", "xx", "a", ConfigError, "1 methods"),
        ([[1, 2], [2, 1]], "ab", "xx", "c", ConfigError, "reference 'c'"),
        ([[1, 2], [2, 1]], "aa", "xx", "a", ConfigError, "different names"),
        ([[1, 2], [2, 1]], "abc", "xx", "a", ShapeError, "2 benchmarks x 3 methods"),
        ([[1, 2], [2, np.inf]], "ab", "xx", "a", DataError, "infinity"),
    ],
)
def test_what_cannot_be_compared_is_refused(scores, methods, groups, reference, error, message):
    with pytest.raises(error, match=message):
        aggregate(scores, methods, groups, reference)


def test_ranks_of_missing_scores_are_refused():
    with pytest.raises(DataError, match=r"aggregate\(\)"):
        ranks_within([[1, NAN]])
    with pytest.raises(ShapeError, match="benchmarks x methods"):
        ranks_within([1.0, 2.0])
    with pytest.raises(ConfigError, match="two benchmarks"):
        friedman([[1, 2]])


def test_mean_and_deviation():
    assert mean_and_deviation([1, 2, 3, 4]) == (2.5, pytest.approx(math.sqrt(5 / 3)), 4)
    assert mean_and_deviation([7]) == (7, None, 1)
    for bad in ([], [1, NAN]):
        with pytest.raises(DataError, match="finite"):
            mean_and_deviation(bad)


FIRST = {"0": 80.0, "1": 82.0, "2": 81.0, "3": 84.0, "8": 1.0}
SECOND = {"0": 79.0, "1": 79.0, "2": 79.0, "3": 82.0, "9": 99.0}
# Differences 1, 3, 2, 2: mean 2, sample variance 2/3.


def test_disjoint_folds_use_the_plain_paired_test():
    result = compare_paired(FIRST, SECOND, "folds")
    theirs = stats.ttest_rel([80, 82, 81, 84], [79, 79, 79, 82])
    assert (result.mean, result.degrees) == (2, 3)
    assert result.standard_error == pytest.approx(math.sqrt(2 / 3 / 4))
    assert result.t == pytest.approx(theirs.statistic)
    assert result.p_value == pytest.approx(theirs.pvalue)
    assert result.splits == ("0", "1", "2", "3")
    assert result.left_out == ("8", "9")


def test_random_splits_use_the_corrected_variance():
    result = compare_paired(FIRST, SECOND, "random", test_to_train=1 / 3)
    assert result.standard_error == pytest.approx(math.sqrt((1 / 4 + 1 / 3) * 2 / 3))
    assert result.t == pytest.approx(2 / math.sqrt(7 / 18))
    plain = compare_paired(FIRST, SECOND, "folds")
    assert plain.p_value < 0.05 / 2 < result.p_value  # 0.016 and 0.049
    assert result.p_value > 0.01


def test_turning_a_comparison_round_turns_its_sign():
    there, back = (compare_paired(*p, "folds") for p in ((FIRST, SECOND), (SECOND, FIRST)))
    assert (there.mean, there.t, there.p_value) == (-back.mean, -back.t, back.p_value)


def test_differences_that_do_not_vary():
    same = compare_paired({0: 0.3, 1: 0.7}, {0: 0.1 + 0.2, 1: 0.7}, "folds")
    assert (same.p_value, same.t) == (1, None)
    shifted = compare_paired({0: 1.3, 1: 1.7}, {0: 0.3, 1: 0.7}, "folds")
    assert (shifted.p_value, shifted.t) == (None, None)


@pytest.mark.parametrize(
    ("second", "scheme", "ratio", "message"),
    [
        ({"0": 1.0}, "folds", None, "two shared splits"),
        (SECOND, "fold", None, "Did you mean 'folds'"),
        (SECOND, "folds", 0.3, "no 'test_to_train'"),
        (SECOND, "random", None, "'test_to_train' to be a positive"),
        (SECOND, "random", -1, "'test_to_train' to be a positive"),
    ],
)
def test_paired_comparisons_that_make_no_sense(second, scheme, ratio, message):
    with pytest.raises(ConfigError, match=message):
        compare_paired(FIRST, second, scheme, test_to_train=ratio)


def test_nemenyis_critical_difference_is_that_of_the_tables():
    """Demsar 2006, Table 5 (a): q of 2, 5 and 10 methods at 5 % is 1.960, 2.728 and 3.164."""
    for methods, quantile in {2: 1.960, 5: 2.728, 10: 3.164}.items():
        wanted = quantile * math.sqrt(methods * (methods + 1) / (6 * 14))
        assert nemenyi_difference(methods, 14) == pytest.approx(wanted, rel=1e-3)
    with pytest.raises(ConfigError):
        nemenyi_difference(1, 14)

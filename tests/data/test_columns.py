"""The fitted schema: what columns become, what is refused and where, and its JSON."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geof.data.columns import ColumnEncoder
from geof.data.files import Table
from geof.data.records import class_names_of
from geof.errors import ConfigError, DataError


def table(source="nodes.csv", **columns):
    rows = len(next(iter(columns.values())))
    return Table(source, columns, list(range(2, rows + 2)))


MIXED = table(
    id=["a", "b", "c", "d"],
    age=["1", "2", "3", "6"],
    town=["Ulm", "Bern", "Ulm", "Zürich"],
    member=["true", "False", "TRUE", "false"],
    void=["", " ", "", ""],
    flat=["7", "7.0", "7", "7"],
    species=["cat", "", "dog", "cat"],
)


def fitted(**options):
    return ColumnEncoder.fit(MIXED, label="species", id_column="id", **options)


def test_each_kind_becomes_its_features():
    x, notes = fitted().encode_noting(MIXED)
    assert fitted().feature_names == (
        "age",
        "town=Bern",
        "town=Ulm",
        "town=Zürich",
        "member",
        "flat",
    )
    age = torch.tensor([1.0, 2.0, 3.0, 6.0])
    torch.testing.assert_close(x[:, 0], (age - age.mean()) / age.std(correction=0))
    assert x[:, 1:4].tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert x[:, 4].tolist() == [1, 0, 1, 0]
    assert x[:, 5].tolist() == [0, 0, 0, 0]
    assert x.dtype == torch.float32
    assert notes == (
        "Column 'void' is empty and gives no feature.",
        "Column 'flat' is constant and gives zeros.",
    )
    assert fitted().encode_labels(MIXED).tolist() == [0, -1, 1, 0]


def test_the_statistics_are_those_of_the_fitted_rows():
    new = table(
        "new.csv",
        id=["x"],
        age=["3"],
        town=["Oslo"],
        member=["true"],
        void=["now filled"],
        flat=["8"],
    )
    x, notes = fitted().encode_noting(new)
    assert x.tolist() == [[0, 0, 0, 0, 1, 0]]
    assert notes == (
        "Column 'town': 1 unseen categories (first: 'new.csv', line 2) are all zeros.",
        "Column 'void' was empty when the schema was fitted and gives no feature.",
        "Column 'flat' was constant when the schema was fitted and gives zeros.",
    )
    assert fitted().encode_labels(new).tolist() == [-1]


@pytest.mark.parametrize("cell", ["", "  "])
def test_a_missing_number_is_refused_with_its_place_or_filled_with_the_mean(cell):
    holes = table(age=["1", cell, "5"])
    with pytest.raises(
        DataError, match=r"'age' \(got an empty cell at 'nodes.csv', line 3\).*mean"
    ):
        ColumnEncoder.fit(holes)
    encoder = ColumnEncoder.fit(holes, missing="mean")
    x, notes = encoder.encode_noting(holes)
    assert encoder.feature_names == ("age", "age=<missing>")
    assert x.tolist() == [[-1, 0], [0, 1], [1, 0]]
    assert notes == (
        "Column 'age': 1 missing values (first: 'nodes.csv', line 3) set to the mean.",
    )


def test_missing_truths_and_words():
    holes = table(member=["true", "", "false", "true"], town=["Ulm", "", "Ulm", "Ulm"])
    encoder = ColumnEncoder.fit(holes, missing="mean")
    x, notes = encoder.encode_noting(holes)
    assert encoder.feature_names == ("member", "member=<missing>", "town=<missing>", "town=Ulm")
    torch.testing.assert_close(x[1], torch.tensor([2 / 3, 1.0, 1.0, 0.0]))
    assert "'town': 1 missing values (first: 'nodes.csv', line 3) are a category of" in notes[1]
    with pytest.raises(DataError, match=r"true or false in column 'member' \(got an empty cell"):
        ColumnEncoder.fit(holes)


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused_with_its_line(word):
    message = rf"finite number in column 'age' \(got '{word}' at 'nodes.csv', line 4\)"
    for missing in ("error", "mean"):
        with pytest.raises(DataError, match=message):
            ColumnEncoder.fit(table(age=["1", "2", word]), missing=missing)


@pytest.mark.parametrize("slip", ["NA", "12 kg", "1_000", "-"])
def test_a_slip_among_numbers_does_not_turn_them_into_words(slip):
    slipped = table(age=["1", "2", slip, "4"])
    with pytest.raises(DataError, match=rf"'age' \(got '{slip}' at 'nodes.csv', line 4\).*kinds="):
        ColumnEncoder.fit(slipped)
    encoder = ColumnEncoder.fit(slipped, kinds={"age": "categorical"})
    assert encoder.encode(slipped).sum(1).tolist() == [1, 1, 1, 1]


def test_a_word_in_a_new_table_where_numbers_were_is_refused():
    encoder = ColumnEncoder.fit(table(age=["1", "2"], member=["true", "false"]))
    with pytest.raises(DataError, match=r"'age' \(got 'old' at 'new.csv', line 3\)"):
        encoder.encode(table("new.csv", age=["1", "old"], member=["true", "true"]))
    with pytest.raises(DataError, match=r"true or false in column 'member' \(got 'yes' at"):
        encoder.encode(table("new.csv", age=["1"], member=["yes"]))
    with pytest.raises(DataError, match=r"empty cell at 'new.csv', line 2.*when fitting"):
        encoder.encode(table("new.csv", age=[""], member=["true"]))


def test_a_value_that_float32_cannot_hold_is_refused():
    encoder = ColumnEncoder.fit(table(age=["0", "1e-30"]))
    with pytest.raises(DataError, match=r"range of the training table \(got '1e30' at 'new.csv'"):
        encoder.encode(table("new.csv", age=["1e30"]))


@pytest.mark.parametrize("size", ["1e-300", "1e300"])
def test_extreme_numbers_are_standardised_without_overflow(size):
    column = table(age=[f"-{size}", size])
    assert ColumnEncoder.fit(column).encode(column).tolist() == [[-1], [1]]


def test_rounding_does_not_make_a_constant_column_vary():
    column = table(age=["0.1"] * 10)
    assert ColumnEncoder.fit(column).encode(column).abs().max() == 0


def test_free_text_is_refused_unless_insisted_on():
    sentences = [f"A long sentence about the node with the number {i}." for i in range(40)]
    for cells in (sentences, [f"name-{i}" for i in range(40)], sentences[:21] * 10):
        with pytest.raises(DataError, match=r"'about' of 'nodes.csv'.*free text.*drop=\['about'\]"):
            ColumnEncoder.fit(table(about=cells))
    with pytest.raises(DataError, match="1001 different values"):
        ColumnEncoder.fit(table(about=[f"w{i}" for i in range(1001)] * 3))
    insisted = ColumnEncoder.fit(table(about=sentences), kinds={"about": "categorical"})
    assert len(insisted.feature_names) == 40
    few = ColumnEncoder.fit(table(about=sentences[:20]))
    assert len(few.feature_names) == 20


def test_dropped_columns_may_come_back_or_not():
    encoder = fitted(drop=["town", "void"])
    assert encoder.feature_names == ("age", "member", "flat")
    later = table(id=["a"], age=["1"], member=["true"], flat=["7"], town=["Ulm"])
    assert encoder.encode(later).shape == (1, 3)


def test_lacking_and_unknown_columns_of_a_new_table_are_named():
    encoder = ColumnEncoder.fit(table(age=["1", "2"], height=["1", "2"]))
    with pytest.raises(DataError, match=r"'new.csv' \(lacks 'age'\).*Did you mean 'aga'"):
        encoder.encode(table("new.csv", aga=["1"], height=["1"]))
    with pytest.raises(DataError, match=r"got also 'heigth', 'x'\).*Did you mean 'height'"):
        encoder.encode(table("new.csv", age=["1"], height=["1"], heigth=["1"], x=["1"]))


def test_wrong_options_are_refused():
    with pytest.raises(DataError, match=r"label column 'specie' in 'nodes.csv'.*mean 'species'"):
        ColumnEncoder.fit(MIXED, label="specie")
    with pytest.raises(DataError, match=r"column 'twon' in.*mean 'town'"):
        fitted(drop=["twon"])
    with pytest.raises(ConfigError, match="one role for column 'species'"):
        fitted(drop=["species"])
    with pytest.raises(ConfigError, match="Unknown kind 'number'"):
        fitted(kinds={"age": "number"})
    with pytest.raises(ConfigError, match="Unknown missing='zero'"):
        fitted(missing="zero")
    with pytest.raises(DataError, match=r"labels in column 'void' of 'nodes.csv'"):
        ColumnEncoder.fit(MIXED, label="void")


def test_labels_are_sorted_and_unknown_ones_refused():
    assert class_names_of(["10", "9", "", "-1"]) == ("-1", "9", "10")
    assert class_names_of(["10", "9", "b"]) == ("10", "9", "b")
    new = table("new.csv", id=["x"], species=["cow"])
    with pytest.raises(
        DataError, match=r"'species' \(got 'cow' at 'new.csv', line 2\).*'cat', 'dog'"
    ):
        fitted().encode_labels(new)


def test_without_feature_columns_there_is_a_constant():
    bare = table(id=["a", "b"])
    x, notes = ColumnEncoder.fit(bare, id_column="id").encode_noting(bare)
    assert x.tolist() == [[1], [1]]
    assert notes == ("No column gives a feature: every node has the constant 1.",)


words = st.text(min_size=0, max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False).map(repr)


@given(st.lists(st.tuples(numbers, words), min_size=1, max_size=12), st.text(min_size=1))
def test_json_gives_the_same_encoder_back(rows, name):
    cells = table(**{name: [n for n, _ in rows], name + "'": [w for _, w in rows]})
    encoder = ColumnEncoder.fit(cells, kinds={name + "'": "categorical"}, missing="mean")
    again = ColumnEncoder.from_json(encoder.to_json())
    assert again == encoder
    assert torch.equal(again.encode(cells), encoder.encode(cells))


def test_json_keeps_labels_identifiers_and_options():
    encoder = fitted(drop=["town"], missing="mean")
    assert ColumnEncoder.from_json(encoder.to_json()) == encoder


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"missing": "guess"},
        {"class_names": "ab"},
        {"class_names": [1]},
        {"surprise": 1},
        {"columns": [{"name": "a"}]},
        {"columns": [{"name": "a", "kind": "text", "vocabulary": []}]},
        {"columns": [{"name": "a", "kind": "numeric", "vocabulary": [], "mean": "x"}]},
    ],
)
def test_json_of_something_else_is_refused(change):
    content = json.loads(fitted().to_json()) | change
    with pytest.raises(DataError, match="Expected the JSON of a column encoder"):
        ColumnEncoder.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format": 1', "[" * 100_000])
def test_text_that_is_no_schema_is_refused(text):
    with pytest.raises(DataError, match="Expected the JSON of a column encoder"):
        ColumnEncoder.from_json(text)

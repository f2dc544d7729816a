"""Settings files and KEY=VALUE words: read as people mean them, written so that they read back."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from geof.errors import ConfigError, DataError
from geof.io import dump_yaml, merge, parse_words, read_yaml

# PyYAML itself writes U+0085, an old line end, as a space.
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x85")
TRAPS = "no on yes true null ~ None 1e-3 1_000 010 1:30 0x1f = << 2024-01-31 .5 - # {} ü \u2028"
WORDS = st.text(LETTERS, max_size=12) | st.sampled_from(
    [*TRAPS.split(" "), "", " ", "\n", "- a", "a: b", "a #b"]
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
)
TREES = st.dictionaries(
    WORDS,
    st.recursive(
        PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)
    ),
    max_size=4,
)


def read(text: str, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    return read_yaml(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("settings")


@given(tree=TREES)
@example(tree={"learning_rate": 1e-05, "clip": 1e16, "name": "1e5", "flag": "True"})
def test_what_is_written_reads_back(tree, folder):
    again = read(dump_yaml(tree), folder)
    assert again == tree
    assert repr(again) == repr(tree)  # 1, 1.0 and True are different settings; -0.0 too


def test_tuples_become_lists_and_short_lists_stand_on_one_line(tmp_path):
    text = dump_yaml({"model": {"log_scale_bounds": (-5.0, 5.0)}, "fanouts": (10, 10)})
    assert "fanouts: [10, 10]\n" in text
    assert read(text, tmp_path) == {"model": {"log_scale_bounds": [-5.0, 5.0]}, "fanouts": [10, 10]}


def test_the_order_of_keys_is_kept():
    assert dump_yaml({"b": 1, "a": {"d": 1, "c": 2}}) == "b: 1\na:\n  d: 1\n  c: 2\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-1.5e-3", -1.5e-3),
        ("5.", 5.0),
        (".5", 0.5),
        ("7", 7),
        ("1e", "1e"),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("None", None),
        ("~", None),
        ("", None),
        ("[1, 2e-1]", [1, 0.2]),
        ("{a: {b: no}}", {"a": {"b": "no"}}),
        ("'1e-3'", "1e-3"),
        ("2024-01-31", "2024-01-31"),
        ("2024-13-45", "2024-13-45"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("0x_", "0x_"),
        ("-7", -7),
        ("0", 0),
    ],
)
def test_values_mean_what_they_say(text, value, tmp_path):
    for found in (read(f"key: {text}\n", tmp_path)["key"], parse_words([f"key={text}"])["key"]):
        assert found == value
        assert type(found) is type(value)


def test_other_users_of_yaml_keep_theirs():
    assert yaml.safe_load("a: no") == {"a": False}
    assert yaml.safe_load("a: 1e-3") == {"a": "1e-3"}
    assert yaml.safe_load("{a: 1, a: 2}") == {"a": 2}
    assert yaml.safe_dump({"a": "None"}) == "a: None\n"


def test_an_empty_file_sets_nothing(tmp_path):
    assert read("", tmp_path) == read("# only a remark\n", tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 1\nepochs: 2\n", r"the key 'epochs' comes twice.*line 2"),
        ("model:\n  steps: 1\n  blocks: 2\n  steps: 3\n", r"'steps' comes twice.*line 4"),
        ("- epochs\n", "'key: value' lines .got list"),
        ("epochs", "'key: value' lines .got str"),
        ("1: 2\n", "YAML|'key: value' lines"),
        ("epochs: [1\n", "to be YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "to be YAML"),
        ("a: \x01\n", "to be YAML"),
        ("[a]: 1\n", "YAML|'key: value' lines"),
        ("model: {1: 2}\n", "YAML|'key: value' lines"),
    ],
)
def test_what_cannot_be_settings_is_told_with_the_place(text, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as caught:
        read(text, tmp_path)
    assert "settings.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="Expected a config file at"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(DataError, match="Expected a config file at"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: Zürich".encode("latin-1"))
    with pytest.raises(DataError, match="Expected a config file at"):
        read_yaml(tmp_path / "latin.yaml")


def test_words_make_a_tree_and_later_ones_win():
    words = ["epochs=3", "model.steps=4", "model.blocks=2", "epochs=5", "note=a=b"]
    assert parse_words(words) == {
        "epochs": 5,
        "model": {"steps": 4, "blocks": 2},
        "note": "a=b",
    }
    assert parse_words([]) == {}
    assert parse_words(["model={steps: 1, blocks: 2}", "model.steps=3"]) == {
        "model": {"steps": 3, "blocks": 2}
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("epochs", r"KEY=VALUE \(got 'epochs'\)"),
        ("=3", r"KEY=VALUE \(got '=3'\)"),
        ("fanouts=[1", r"a value for 'fanouts' \(got '\[1'"),
        ("model={a: 1, a: 2}", "'a' comes twice"),
    ],
)
def test_bad_words(word, message):
    with pytest.raises(ConfigError, match=message):
        parse_words([word])


def test_later_trees_lie_on_top():
    preset = {"epochs": 1, "model": {"steps": 2, "blocks": 8, "bounds": [1, 2]}}
    file = {"model": {"steps": 3, "bounds": [0]}, "clip": 1.0}
    words = {"epochs": 9, "model": {"steps": 4}}
    assert merge(preset, file, words) == {
        "epochs": 9,
        "model": {"steps": 4, "blocks": 8, "bounds": [0]},
        "clip": 1.0,
    }
    assert merge(preset, file)["model"]["steps"] == 3
    assert merge({"model": {"a": 1}}, {"model": None}) == {"model": None}
    assert merge({"model": 1}, {"model": {"a": 1}}) == {"model": {"a": 1}}
    assert merge() == {}
    assert preset["model"]["steps"] == 2  # the arguments stay as they were

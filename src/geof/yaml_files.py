"""Options as YAML and as ``KEY=VALUE`` words: the same names, the same values, merged in order.

Training options stand at the top, the others in sections: ``options.steps=3`` on a command line is
``options: {steps: 3}`` in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from geof.errors import ConfigError, DataError

Tree: TypeAlias = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: ``1e-3`` is a number, ``no`` and a date are words, no key twice."""


# YAML 1.1 reads yes, no, on and off as booleans, 1e-3 as text, 1:30 as a number and 2024-01-31 as a
# date. SafeLoader's own tables are copied, not changed: other users of PyYAML keep theirs.
_OURS = (":bool", ":float", ":int", ":timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(_OURS)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^None$"), ["N"])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$"),
    list("-+.0123456789"),
)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9]\d*)$"), list("-+0123456789")
)


def _mapping_without_repeats(loader: _Loader, node: yaml.MappingNode) -> Tree:
    tree: Tree = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(
                problem=f"expected a name for a key, got {key!r}", problem_mark=key_node.start_mark
            )
        if key in tree:
            raise yaml.MarkedYAMLError(
                problem=f"the key {key!r} comes twice", problem_mark=key_node.start_mark
            )
        tree[key] = loader.construct_object(value_node, deep=True)
    return tree


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_repeats)


def read_yaml(path: Path) -> Tree:
    """Read a YAML file of options.

    Raises:
        DataError: If the file cannot be read.
        ConfigError: If it is not YAML or not a mapping; says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Expected a config file at '{path}' ({error}).") from error
    try:
        tree = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"Expected '{path}' to be YAML ({_one_line(error)}).") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"Expected '{path}' to hold options as 'key: value' lines (got {type(tree).__name__})."
        )
    return tree


def parse_words(words: Sequence[str]) -> Tree:
    """Return ``KEY=VALUE`` words as a tree; values are read as YAML.

    Raises:
        ConfigError: For a word without ``=`` or a value that is not YAML.

    >>> parse_words(["epochs=3", "model.steps=4", "clip=1e-1", "patience=null"])
    {'epochs': 3, 'model': {'steps': 4}, 'clip': 0.1, 'patience': None}
    """
    tree: Tree = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"Expected options as KEY=VALUE (got {word!r}).")
        try:
            value = yaml.load(text, _Loader)  # a SafeLoader
        except yaml.YAMLError as error:
            raise ConfigError(
                f"Expected a value for '{key}' (got {text!r}: {_one_line(error)})."
            ) from error
        branch: Tree = value
        for name in reversed(key.split(".")):
            branch = {name: branch}
        tree = merge(tree, branch)
    return tree


def merge(*trees: Mapping[str, Any]) -> Tree:
    """Return the trees laid over one another, later ones on top."""
    merged: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            below = merged.get(key)
            if isinstance(below, dict) and isinstance(value, Mapping):
                value = merge(below, value)
            merged[key] = value
    return merged


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return a tree as YAML that :func:`read_yaml` reads back."""
    return yaml.dump(_plain(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers on one line, and quotes what :class:`_Loader` would misread."""


_Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, [])]
    + [
        pair
        for pair in resolvers
        if pair not in yaml.SafeDumper.yaml_implicit_resolvers.get(first, [])
    ]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Dumper.add_representer(
    list,
    lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True),
)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())

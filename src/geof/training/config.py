"""One record of a run: what is trained on what, how, from which preset.

A :class:`RunConfig` is parsed once, checked before any data is read, written to ``config.json`` and
handed to the :class:`~geof.training.trainer.Trainer`. The same names hold in Python, in YAML and
on the command line: training options stand at the top, the others in their sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from geof.data.own_splits import split_file
from geof.data.sources import OWN, DataConfig, SignatureConfig
from geof.errors import ConfigError
from geof.io import dump_yaml, merge
from geof.methods.interface import Choice, TaskKind
from geof.methods.registry import (
    AUTO,
    default_preset,
    get_method,
    load_preset,
    method_options,
    readout_options,
)
from geof.options import Count, Option, Options, declared, require_known, require_option
from geof.training.stages import UNDECISIVE, PretrainingConfig, TrainingConfig

SECTIONS = ("data", "options", "readout", "signature", "pretraining")
"""The sections of a config file."""

RUN_KEYS = ("method", "task", "preset", "split", "folds")
"""What a config file says about the run itself, beside its sections and the training options."""

RENAMED = {"encoder": "method", "model": "options"}
"""Names that config files and run folders written by earlier versions use."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run.

    Attributes:
        method: What is trained, a registered method.
        task: Node, link or graph.
        preset: Where the options come from, for the record.
        split: Number of the split or fold, a file, or how it is made; see
            :mod:`geof.data.own_splits`.
        folds: Into how many folds graphs are divided.
        data: What names the data.
        options: The method's options; those not given are filled in.
        readout: The readout's options, likewise.
        training: How to optimise.
        pretraining: The stage before the task's.
        signature: How signatures are computed.
        read_test: Whether the test part is read at the end; a search must not.
        chosen: Options that were chosen by the data, with the reason.
        given: What files and command lines said, to be laid over what the data choose.

    Raises:
        ConfigError: For an unknown method or option, naming the nearest, or a value out of range.
    """

    method: str = "geof"
    task: TaskKind = "node"
    preset: str = "none"
    split: str = "0"
    folds: int = 10
    data: DataConfig = field(default_factory=DataConfig)
    options: Mapping[str, Any] = field(default_factory=dict)
    readout: Mapping[str, Any] = field(default_factory=dict)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    pretraining: PretrainingConfig = field(default_factory=PretrainingConfig)
    signature: SignatureConfig = field(default_factory=SignatureConfig)
    read_test: bool = True
    chosen: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_option("task", self.task, get_args(TaskKind))
        options = method_options(self.method, self.options)
        readout = readout_options(self.method, self.task, self.readout)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "readout", readout)

    @property
    def seed(self) -> int:
        """The seed of the run: its own, or the split's number, so that splits differ in it too."""
        if self.training.seed is not None:
            return self.training.seed
        return int(self.split) if self.split.isdecimal() else 0

    @property
    def revision(self) -> int:
        """The revision of the method: recorded runs of an earlier one are stale."""
        return get_method(self.method).revision

    @classmethod
    def parse(cls, *layers: Mapping[str, Any]) -> RunConfig:
        """Build from config files and command lines, later layers over earlier ones.

        Below them all lies the preset they name, the default one of the method if none.

        Raises:
            ConfigError: For an unknown key, naming the nearest, or a value out of range.
        """
        given = merge(*(renamed(layer) for layer in layers))
        _require_keys(given)
        everything = deepcopy(given)
        about = {key: _run_value(key, given.pop(key)) for key in RUN_KEYS if _has(given, key)}
        sources = given.pop("data", None) or {}
        data = DataConfig.of(sources)
        method = about.setdefault("method", "geof")
        task = about.setdefault("task", data.default_task)
        preset = about.setdefault("preset", default_preset(method, task, own_data=data.kind in OWN))
        if preset == AUTO and data.kind == "npz" and "standardise" not in sources:
            data = replace(data, standardise=True)  # as a table's columns are
        laid_below = renamed(load_preset(method, preset, task, data.dataset))
        data = _read_as(laid_below.pop("data", None), data)
        tree = merge(laid_below, given)
        _require_keys(tree)
        training = {key: tree[key] for key in declared(TrainingConfig) if key in tree}
        return cls(
            **about,
            data=data,
            options=tree.get("options") or {},
            readout=tree.get("readout") or {},
            training=TrainingConfig.of(training),
            pretraining=PretrainingConfig.of(tree.get("pretraining") or {}),
            signature=SignatureConfig.of(tree.get("signature") or {}),
            given=everything,
        )

    def chosen_by(self, choices: Sequence[Choice]) -> RunConfig:
        """Return the same with choices by the data below everything that was given."""
        wanted = {
            choice.key: choice for choice in choices if _value_at(self.given, choice.key) is None
        }
        layers = [_at(choice.key, choice.value) for choice in wanted.values()]
        reasons = {key: choice.reason for key, choice in wanted.items()}
        parsed = RunConfig.parse({"preset": self.preset}, *layers, self.given)
        return replace(parsed, given=self.given, chosen=reasons, read_test=self.read_test)

    def value_of(self, key: str) -> Any:
        """Return an option by its name, such as ``options.dropout`` or ``epochs``."""
        return _value_at(self.tree(), key)

    def tree(self) -> dict[str, Any]:
        """Return every option as :meth:`parse` and YAML take it; off ones too, over a preset."""
        tree = {key: getattr(self, key) for key in RUN_KEYS} | {"split": self._found_again()}
        tree |= {"data": self.data.to_dict(), **_all_values(self.training)}
        tree |= {"options": _plain(self.options), "readout": _plain(self.readout)}
        tree["signature"] = _all_values(self.signature)
        # Also where there is no such stage: the preset below may have one.
        tree["pretraining"] = _all_values(self.pretraining)
        return tree

    def to_yaml(self) -> str:
        """Return the run as a config file."""
        return dump_yaml(self.tree())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that :meth:`from_dict` reads back."""
        plain = {key: getattr(self, key) for key in (*RUN_KEYS, "read_test")}
        plain["split"] = self._found_again()
        plain |= {"options": _plain(self.options), "readout": _plain(self.readout)}
        plain |= {"data": self.data.to_dict()} | (
            {"chosen": dict(self.chosen)} if self.chosen else {}
        )
        for name in ("training", "pretraining", "signature"):
            plain[name] = values_of(getattr(self, name))
        return plain

    def decisive(self) -> dict[str, Any]:
        """Return :meth:`to_dict` without what does not decide the result: where it is computed."""
        plain = self.to_dict()
        plain["training"] = {n: v for n, v in plain["training"].items() if n not in UNDECISIVE}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RunConfig:
        """Build from what :meth:`to_dict` returned.

        Raises:
            ConfigError: For a name this version does not know, or a value out of range.
        """
        sections: dict[str, type[Options]] = {
            "data": DataConfig,
            "training": TrainingConfig,
            "pretraining": PretrainingConfig,
            "signature": SignatureConfig,
        }
        require_known(plain, [f.name for f in fields(cls) if f.name != "given"])
        built = {name: kind.of(plain.get(name) or {}) for name, kind in sections.items()}
        return cls(**{**plain, **built})

    def on(self, device: str | None) -> RunConfig:
        """Return the same, computed on another device."""
        return replace(self, training=replace(self.training, device=device))

    def without_paths(self) -> RunConfig:
        """Return the same without names of files and devices, as a checkpoint carries it."""
        split = self.split if split_file(self.split) is None else "0"
        seeded = replace(self.training, device=None)
        if split != self.split:  # whose number would be another seed
            seeded = replace(seeded, seed=self.seed)
        return replace(self, data=self.data.columns_only(), split=split, training=seeded)

    def _found_again(self) -> str:
        """Return the split, the name of a file made absolute."""
        file = split_file(self.split)
        return self.split if file is None else str(file.resolve())


def renamed(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer of a config with earlier names replaced by the present ones."""
    return merge(*({RENAMED.get(key, key): value} for key, value in layer.items()))


def _at(key: str, value: Any) -> dict[str, Any]:
    """Return a layer with one option."""
    *sections, name = key.split(".")
    layer = {name: value}
    for section in reversed(sections):
        layer = {section: layer}
    return layer


def _value_at(tree: Mapping[str, Any], key: str) -> Any:
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None  # type: ignore[assignment]
    return tree


def values_of(options: Options) -> dict[str, Any]:
    """Return a group of options as plain values, without those that are off."""
    return {name: value for name, value in _all_values(options).items() if value is not None}


def _all_values(options: Options) -> dict[str, Any]:
    return {name: _plain(getattr(options, name)) for name in declared(type(options))}


def _has(tree: Mapping[str, Any], key: str) -> bool:
    return tree.get(key) is not None


def _require_keys(tree: Mapping[str, Any]) -> None:
    require_known(tree, [*RUN_KEYS, *SECTIONS, *declared(TrainingConfig)])
    for name in SECTIONS:
        if not isinstance(tree.get(name) or {}, Mapping):
            raise ConfigError(
                f"Expected '{name}' to be a section of options, such as {name}.KEY=VALUE (got "
                f"{tree[name]!r})."
            )


def _read_as(wanted: Any, data: DataConfig) -> DataConfig:
    """Return data with what a preset says of them, which is whether edges' attributes are used."""
    require_known(wanted or {}, ["edge_columns"])
    if not wanted or data.edge_columns is not None:
        return data
    return DataConfig.of({**data.to_dict(), **wanted})


def _run_value(key: str, value: Any) -> Any:
    if key == "folds":
        return Option(key, Count).check(value)
    if key == "split" and type(value) is int:
        return str(value)
    if key == "task":  # which also names a preset's file
        require_option(key, value, get_args(TaskKind))
    return Option(key, str).check(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value

"""The space a search draws from: choices and ranges of options, checked before anything runs."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from geof.errors import ConfigError, nearest
from geof.training.config import (
    RENAMED,
    RUN_KEYS,
    PretrainingConfig,
    RunConfig,
    values_of,
)

_RANGE_KEYS = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Choices:
    """An option that takes one of several values, each plain JSON."""

    values: tuple[Any, ...]

    def distribution(self, optuna: Any) -> Any:
        """Return Optuna's form. The choices are JSON text, as a list is no choice to Optuna."""
        return optuna.distributions.CategoricalDistribution([as_json(v) for v in self.values])


@dataclass(frozen=True)
class Range:
    """An option between two numbers, whole ones if ``whole``."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    @property
    def values(self) -> tuple[Any, ...]:
        """The ends."""
        return self.low, self.high

    def distribution(self, optuna: Any) -> Any:
        """Return Optuna's form."""
        kinds = optuna.distributions
        with warnings.catch_warnings():  # of a step that does not end at 'high'
            warnings.simplefilter("ignore")
            if self.whole:
                return kinds.IntDistribution(self.low, self.high, self.log, self.step or 1)
            return kinds.FloatDistribution(self.low, self.high, self.log, self.step)


@dataclass(frozen=True)
class Space:
    """What is searched: dotted options, named as the user wrote them, each with its values."""

    dimensions: Mapping[str, Choices | Range]

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], base: RunConfig) -> Space:
        """Read a space and try every value it names, each beside the first of the others.

        Args:
            tree: Options, dotted or in sections, with lists of values or
                ``{low:, high:, log:, step:}``.
            base: The config a point is laid over.

        Raises:
            ConfigError: For an unknown option, naming the nearest, or a value it cannot have.
        """
        known = _defaults(base)
        dimensions: dict[str, Choices | Range] = {}
        for key, value in _flat(tree):
            if present_name(key) in map(present_name, dimensions):
                raise ConfigError(f"Expected '{key}' once in the space (got it twice).")
            if present_name(key) not in known:
                raise ConfigError(f"Unknown option {key!r} in the space. " + nearest(key, known))
            dimensions[key] = _dimension(key, value, known[present_name(key)])
        if not dimensions:
            raise ConfigError("Expected options to search in the space (got none).")
        space = cls(dimensions)
        for values in space._samples():
            laid_over(base, values, base.split)
        return space

    def points(self) -> Iterator[dict[str, str]]:
        """Yield every point of a grid as Optuna's parameters, the last option fastest."""
        texts = ([as_json(value) for value in d.values] for d in self.dimensions.values())
        for point in product(*texts):
            yield dict(zip(self.dimensions, point, strict=True))

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for Optuna's parameters."""
        return {
            key: json.loads(parameters[key]) if isinstance(d, Choices) else parameters[key]
            for key, d in self.dimensions.items()
        }

    def _samples(self) -> Iterator[dict[str, Any]]:
        first = {key: dimension.values[0] for key, dimension in self.dimensions.items()}
        for key, dimension in self.dimensions.items():
            yield from ({**first, key: value} for value in dimension.values)


def laid_over(base: RunConfig, values: Mapping[str, Any], split: str) -> RunConfig:
    """Return a config with values put over it, on a split.

    Raises:
        ConfigError: If a value, or values together, cannot be.
    """
    plain: dict[str, Any] = {**base.to_dict(), "split": split}
    for key, value in values.items():
        section, _, name = present_name(key).rpartition(".")
        plain[section or "training"][name] = value
    return RunConfig.from_dict(plain)


def present_name(key: str) -> str:
    """Return an option's name with what earlier versions called its section replaced."""
    section, dot, name = key.partition(".")
    return f"{RENAMED.get(section, section)}{dot}{name}" if dot else key


def _defaults(base: RunConfig) -> dict[str, Any]:
    """Return every option that can be searched with its default.

    Not the value given: who fixes 'weight_decay: 0' still has a real option.
    """
    tree = RunConfig(method=base.method, task=base.task).tree()
    tree["pretraining"] = values_of(PretrainingConfig())
    known: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            known |= {f"{key}.{name}": default for name, default in value.items()}
        elif key not in RUN_KEYS:
            known[key] = value
    return known


def _dimension(key: str, value: Any, default: Any) -> Choices | Range:
    if isinstance(value, list) and value:
        return _choices(key, value)
    if isinstance(value, Mapping):
        return _range(key, value, default)
    raise ConfigError(
        f"Expected a list of values or {{low: ..., high: ...}} for '{key}' (got {value!r}). "
        f"An option that is not searched goes on the command line: {key}=VALUE."
    )


def _choices(key: str, values: Sequence[Any]) -> Choices:
    try:
        texts = [as_json(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Expected plain finite values for '{key}' ({error}).") from error
    if len(set(texts)) != len(texts) or any(isinstance(value, Mapping) for value in values):
        raise ConfigError(f"Expected different values for '{key}', no sections (got {values}).")
    return Choices(tuple(values))


def _range(key: str, given: Mapping[str, Any], default: Any) -> Range:
    for name in given:
        if name not in _RANGE_KEYS:
            raise ConfigError(f"Unknown '{name}' for '{key}'. " + nearest(str(name), _RANGE_KEYS))
    low, high, step = (_number(key, name, given) for name in ("low", "high", "step"))
    log = given.get("log", False)
    if low is None or high is None or low > high or type(log) is not bool:
        raise ConfigError(f"Expected low <= high and log: true or false for '{key}' (got {given}).")
    if log and (low <= 0 or step is not None):
        raise ConfigError(f"Expected 0 < low and no step beside 'log: true' for '{key}'.")
    if step is not None and step <= 0:
        raise ConfigError(f"Expected 'step' of '{key}' to be above 0 (got {step}).")
    whole = all(isinstance(n, int) for n in (low, high, step) if n is not None)
    if isinstance(default, int) and not whole:
        raise ConfigError(f"Expected whole numbers for '{key}' (got {dict(given)}).")
    # '{low: 0, high: 1}' of an option such as dropout means every number in between.
    return Range(low, high, log, step, whole and not isinstance(default, float))


def _number(key: str, name: str, given: Mapping[str, Any]) -> float | None:
    number = given.get(name)
    if number is not None and (type(number) not in (int, float) or not math.isfinite(number)):
        raise ConfigError(f"Expected '{name}' of '{key}' to be a number (got {number!r}).")
    return number


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def as_json(value: Any, *, sort_keys: bool = False) -> str:
    """Return plain values as JSON text."""
    return json.dumps(value, sort_keys=sort_keys, allow_nan=False)

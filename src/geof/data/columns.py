"""Columns of a table as features: a schema fitted once and applied to every later table.

* numbers are standardised with the mean and the deviation of the fitted rows, but zeros and ones,
  and counts that are mostly zero, stay as they are: they are words of a text or marks of a kind,
  and shifting them would make every absent one a number;
* words become one column per word seen while fitting; an unseen word is all zeros;
* ``true`` and ``false`` become 1 and 0.

What cannot be used is refused with the place it stands at. What was rescued is said in a note.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.data.files import Table, number, truth
from geof.data.records import CarriedByEdges, EdgeSizes, class_names_of
from geof.data.targets import (
    CLASSES,
    TargetFacts,
    TargetKind,
    check_target_kind,
    column_facts,
    column_targets,
)
from geof.errors import SHOWN, ConfigError, DataError, ShapeError, listed, nearest

Kind: TypeAlias = Literal["numeric", "count", "categorical", "boolean", "empty"]
Missing: TypeAlias = Literal["error", "mean"]

FORMAT = 1
"""Version of the JSON form; raised when a field changes its meaning."""

# A column of words with more values than FEW is free text when most rows have a value of their
# own or the values are long; beyond MANY it would give more columns than a table should.
FEW, LONG, MANY = 20, 40, 1000


@dataclass(frozen=True)
class ColumnSchema:
    """What was fitted for one column.

    Attributes:
        name: The column.
        kind: How it is read.
        mean: Of the fitted numbers; of the zeros and ones for a boolean column.
        scale: Their standard deviation; 0 marks a constant column, which gives zeros.
        indicator: Whether a further column says where the value was missing.
        vocabulary: The words of a categorical column, sorted; ``""`` stands for missing.
    """

    name: str
    kind: Kind
    mean: float = 0.0
    scale: float = 1.0
    indicator: bool = False
    vocabulary: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """A name for each feature the column gives."""
        if self.kind == "categorical":
            return tuple(f"{self.name}={word or '<missing>'}" for word in self.vocabulary)
        if self.kind == "empty":
            return ()
        return (self.name, f"{self.name}=<missing>") if self.indicator else (self.name,)


@dataclass(frozen=True)
class EdgeSchema:
    """What was fitted for the columns of a table of edges.

    Words, truth values and whole numbers of few values are categories; other numbers are
    standardised.

    Attributes:
        columns: The attribute columns in order.
        weight: The column of weights, or ``None``.
    """

    columns: tuple[ColumnSchema, ...] = ()
    weight: str | None = None

    @classmethod
    def fit(cls, table: Table, columns: Iterable[str], weight: str | None = None) -> EdgeSchema:
        """Read the schema off a table of edges.

        Raises:
            DataError: If a column does not exist or cannot be an attribute.
        """
        fitted = []
        for name in columns:
            table.cells(name, "edge column")
            kind: Kind | None = "categorical" if _is_code(table, name) else None
            column = _fit_column(table, name, kind, "error")
            if column.kind == "boolean":
                column = _fit_column(table, name, "categorical", "error")
            if column.kind != "empty":
                fitted.append(column)
        if weight is not None:
            table.cells(weight, "column of edge weights")
        return cls(tuple(fitted), weight)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns a table of edges must have."""
        names = tuple(column.name for column in self.columns)
        return names if self.weight is None else (self.weight, *names)

    @property
    def sizes(self) -> EdgeSizes:
        """What the encoded columns are, categories first."""
        words = [len(c.vocabulary) for c in self.columns if c.kind == "categorical"]
        return EdgeSizes(tuple(words), len(self.columns) - len(words))

    def encode(self, table: Table) -> CarriedByEdges:
        """Return what the edges of a table carry.

        Raises:
            DataError: If a column is missing, a category was not there when the schema was fitted,
                or a cell is no number; with its place.
        """
        for name in self.names:
            table.cells(name, "edge column of the training table")
        weight = None if self.weight is None else _edge_weights(table, self.weight)
        words = [_codes(table, c) for c in self.columns if c.kind == "categorical"]
        numbers = [_scaled(table, c) for c in self.columns if c.kind != "categorical"]
        if not self.columns:
            return CarriedByEdges(weight)
        attributes = torch.from_numpy(np.stack([*words, *numbers], axis=1))
        attributes = attributes.float() if numbers else attributes.long()
        return CarriedByEdges(weight, attributes, self.sizes)


@dataclass(frozen=True)
class ColumnEncoder:
    """A fitted schema: which columns a table has and what they become.

    Attributes:
        columns: The feature columns in order.
        id_column: The column of identifiers, if any.
        label: The label column, if any.
        class_names: The label of each class index.
        dropped: Columns left out on request; later tables may have them or not.
        targets: What is predicted; its columns where that is not one of the classes.
        missing: ``"error"`` refuses missing numbers, ``"mean"`` puts the fitted mean there.
        edges: What the columns of the edges are; ``None`` where edges carry nothing.

    Example:
        >>> table = Table("t.csv", {"age": ["1", "3"], "town": ["Bern", "Ulm"]}, [2, 3])
        >>> encoder = ColumnEncoder.fit(table)
        >>> encoder.feature_names
        ('age', 'town=Bern', 'town=Ulm')
        >>> encoder.encode(table).tolist()
        [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """

    columns: tuple[ColumnSchema, ...]
    id_column: str | None = None
    label: str | None = None
    class_names: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    missing: Missing = "error"
    targets: TargetFacts = CLASSES
    edges: EdgeSchema | None = None

    @classmethod
    def fit(
        cls,
        table: Table,
        *,
        label: str | Sequence[str] | None = None,
        id_column: str | None = None,
        drop: Iterable[str] = (),
        kinds: Mapping[str, Kind] | None = None,
        missing: Missing = "error",
        target_kind: TargetKind | None = None,
    ) -> ColumnEncoder:
        """Read the schema off a table.

        Args:
            table: The rows to fit to; statistics come from all of them.
            label: The column to predict, or several.
            id_column: The column of identifiers.
            drop: Columns to leave out.
            kinds: The kind of columns that should not be guessed, for instance
                ``{"postcode": "categorical"}``.
            missing: What to do where a number is missing.
            target_kind: What the label columns hold, guessed if not given; see
                :func:`~geof.data.targets.column_facts`.

        Raises:
            ConfigError: If an option contradicts another or is unknown.
            DataError: If a column does not exist or cannot become features.
        """
        dropped, chosen = tuple(drop), dict(kinds or {})
        _require_named(table, (*dropped, *chosen))
        labels = (label,) if isinstance(label, str) else tuple(label or ())
        _check_options(labels, id_column, dropped, chosen, missing)
        facts = column_facts(table, labels, target_kind)[0] if labels else CLASSES
        classes = facts.kind == "classes"
        class_names = class_names_of(table.cells(labels[0])) if labels and classes else ()
        if labels and classes and not class_names:
            raise DataError(
                f"Expected labels in column {labels[0]!r} of '{table.source}' (got none). Fill in "
                "the known ones; a node may lack a label, not all of them."
            )
        features = [n for n in table.columns if n not in {*labels, id_column, *dropped}]
        columns = _fit_columns(table, features, chosen, missing)
        own = labels[0] if labels and classes else None
        return cls(columns, id_column, own, class_names, dropped, missing, facts)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """A name for each feature; one constant where no column gives any."""
        names = tuple(name for column in self.columns for name in column.feature_names)
        return names or ("<constant>",)

    def encode(self, table: Table) -> Tensor:
        """Return the features of a table's rows, ``(rows, features)`` in float32.

        Raises:
            DataError: If the table lacks a column, has an unknown one, or a cell does not fit.
        """
        return self.encode_noting(table)[0]

    def encode_noting(self, table: Table) -> tuple[Tensor, tuple[str, ...]]:
        """Like :meth:`encode`, with a sentence for everything that was filled in or lost."""
        self._require_columns(table)
        x = np.zeros((len(table), len(self.feature_names)), dtype=np.float32)
        notes: list[str] = []
        start = 0
        for column in self.columns:
            stop = start + len(column.feature_names)
            notes += _encode_column(table, column, self.missing, x[:, start:stop])
            start = stop
        if start == 0:
            x[:] = 1
            notes.append("No column gives a feature: every node has the constant 1.")
        return torch.from_numpy(x), tuple(notes)

    def encode_labels(self, table: Table) -> Tensor:
        """Return class indices, -1 where the label or its whole column is missing, or targets."""
        if self.targets.kind != "classes":
            return column_targets(table, self.targets)
        if self.label is None or self.label not in table.columns:
            return torch.full((len(table),), -1)
        return label_indices(table, self.label, self.class_names)

    def to_json(self) -> str:
        """Return the schema as JSON, for :meth:`from_json`."""
        content = {"format": FORMAT, **asdict(self)}
        if self.edges is None:  # as it was written before edges could carry anything
            del content["edges"]
        return json.dumps(content, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ColumnEncoder:
        """Read what :meth:`to_json` wrote.

        Raises:
            DataError: If the text is anything else.
        """
        try:
            content = json.loads(text)
            if content.pop("format") != FORMAT:
                raise ValueError("it was written by another version")
            columns = tuple(_schema_from_json(entry) for entry in content.pop("columns"))
            for name in ("class_names", "dropped"):
                content[name] = _words(content[name])
            if content["missing"] not in get_args(Missing):
                raise ValueError(f"missing={content['missing']!r}")
            if content.get("edges") is not None:
                entries = tuple(map(_schema_from_json, content["edges"]["columns"]))
                content["edges"] = EdgeSchema(entries, content["edges"]["weight"])
            targets = content.pop("targets", {"kind": "classes", "names": []})
            facts = TargetFacts(targets["kind"], _words(targets["names"]))
            check_target_kind(facts.kind)
            return cls(columns, **content, targets=facts)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataError(
                f"Expected the JSON of a column encoder, format {FORMAT} (got something else: "
                f"{error}). Fit it again from the training table."
            ) from error

    def _require_columns(self, table: Table) -> None:
        wanted = {column.name for column in self.columns}
        if lacking := [column.name for column in self.columns if column.name not in table.columns]:
            raise DataError(
                f"Expected the columns of the training table in '{table.source}' (lacks "
                f"{listed(lacking)}). " + nearest(lacking[0], table.columns, most=SHOWN)
            )
        allowed = wanted | {self.label, self.id_column, *self.dropped, *self.targets.names}
        if unknown := [name for name in table.columns if name not in allowed]:
            raise DataError(
                f"Expected only columns of the training table in '{table.source}' (got also "
                f"{listed(unknown)}). Remove them. " + nearest(unknown[0], wanted, most=SHOWN)
            )


def label_indices(table: Table, label: str, class_names: Sequence[str]) -> Tensor:
    """Return the class index of every row, -1 where the label is missing.

    Raises:
        DataError: For a label that is none of the classes.
    """
    index = {name: i for i, name in enumerate(class_names)}
    indices = []
    for row, cell in enumerate(table.cells(label, "label column")):
        if cell.strip() and cell not in index:
            raise DataError(
                f"Expected a known class in column {label!r} (got {cell!r} at "
                f"{table.place(row)}). " + nearest(cell, class_names)
            )
        indices.append(index.get(cell, -1))
    return torch.tensor(indices, dtype=torch.long)


def _check_options(
    labels: Sequence[str],
    id_column: str | None,
    dropped: Sequence[str],
    kinds: Mapping[str, str],
    missing: str,
) -> None:
    taken = [name for name in (*labels, id_column) if name is not None]
    for name in {*taken, *dropped, *kinds}:
        if [*taken, *dropped, *kinds].count(name) > 1:
            raise ConfigError(
                f"Expected one role for column {name!r} (got several of label, identifier, drop "
                "and kinds). Name it once."
            )
    for kind in kinds.values():
        if kind not in get_args(Kind):
            raise ConfigError(f"Unknown kind {kind!r}. " + nearest(kind, get_args(Kind)))
    if missing not in get_args(Missing):
        raise ConfigError(f"Unknown missing={missing!r}. " + nearest(missing, get_args(Missing)))


def _require_named(table: Table, names: Sequence[str]) -> None:
    """Raise one error for all columns that are named and not there."""
    lacking = [name for name in names if name not in table.columns]
    if len(lacking) > 1:
        raise DataError(
            f"Expected the columns {listed(lacking)} in '{table.source}'. "
            + nearest(lacking[0], table.columns, most=SHOWN)
        )
    for name in lacking:
        table.cells(name)


def _fit_columns(
    table: Table, names: Sequence[str], chosen: Mapping[str, Kind], missing: Missing
) -> tuple[ColumnSchema, ...]:
    """Fit all columns; what is wrong with several is said at once."""
    fitted: list[ColumnSchema] = []
    wrong: dict[str, DataError] = {}
    for name in names:
        try:
            fitted.append(_fit_column(table, name, chosen.get(name), missing))
        except DataError as error:
            wrong[name] = error
    if len(wrong) == 1:
        raise next(iter(wrong.values()))
    if wrong:
        reasons = "".join(f"\n- {error}" for error in list(wrong.values())[:SHOWN])
        more = f"\n- and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        flags = " ".join(f"--drop {shlex.quote(name)}" for name in wrong)
        raise DataError(
            f"Expected columns that can become features in '{table.source}' ({len(wrong)} "
            f"cannot). Correct them, or leave all of them out with drop={list(wrong)} ({flags})."
            f"{reasons}{more}"
        )
    return tuple(fitted)


def _fit_column(table: Table, name: str, chosen: Kind | None, missing: Missing) -> ColumnSchema:
    cells = table.columns[name]
    kind = chosen or _guess_kind(table, name)
    if kind == "empty":
        return ColumnSchema(name, kind)
    if kind == "categorical":
        words = {cell if cell.strip() else "" for cell in cells}
        return ColumnSchema(name, kind, vocabulary=tuple(sorted(words)))
    values = _values(table, name, kind, missing)
    known = values[~np.isnan(values)]
    indicator = len(known) < len(values)
    mean, deviation = _moments(known)
    if kind == "numeric" and chosen is None and are_counts(known):
        kind = "count"
    scale = 1.0 if kind in ("boolean", "count") and deviation else deviation
    return ColumnSchema(name, kind, mean, scale, indicator)


def _guess_kind(table: Table, name: str) -> Kind:
    rows = [row for row, cell in enumerate(table.columns[name]) if cell.strip()]
    if not rows:
        return "empty"
    if name in table.types:
        kind = table.types[name]
        if kind not in get_args(Kind):
            raise DataError(
                f"Expected numbers, words or booleans in column {name!r} of '{table.source}' (got "
                f"type {kind}). Leave it out with {_drop(name)}, or give it as numbers, one "
                "column each."
            )
    else:
        kind = _kind_of_text(table, name, rows)
    if kind == "categorical":
        _refuse_free_text(table, name)
    return cast(Kind, kind)


def _kind_of_text(table: Table, name: str, rows: Sequence[int]) -> Kind:
    cells = table.columns[name]
    words = [row for row in rows if number(cells[row]) is None]
    if not words:
        return "numeric"
    if all(truth(cells[row]) is not None for row in rows):
        return "boolean"
    if 2 * len(words) < len(rows):  # a slip among numbers, not a column of words
        raise DataError(
            f"Expected a number in column {name!r} (got {cells[words[0]]!r} at "
            f"{table.place(words[0])}). Correct it, leave the cell empty if the value is missing, "
            f"or choose {_as_words(name)}."
        )
    return "categorical"


def _refuse_free_text(table: Table, name: str) -> None:
    words = {cell for cell in table.columns[name] if cell.strip()}
    length = sum(map(len, words)) / len(words)
    own = 2 * len(words) > len(table)
    if len(words) > FEW and (own or length > LONG or len(words) > MANY):
        raise DataError(
            f"Expected a category in column {name!r} of '{table.source}' (got {len(words)} "
            f"different values in {len(table)} rows, {length:.0f} characters on average: free text "
            f"or names). Leave it out with {_drop(name)}, replace it by an embedding, one column "
            f"per number, or insist with {_as_words(name)}."
        )


def _drop(name: str) -> str:
    return f"drop=[{name!r}] (--drop {shlex.quote(name)})"


def _as_words(name: str) -> str:
    flag = shlex.quote(f"{name}=categorical")
    return f"kinds={{{name!r}: 'categorical'}} (--kind {flag})"


def _values(table: Table, name: str, kind: Kind, missing: Missing) -> NDArray[np.float64]:
    """Return the numbers of a column, NaN where one is missing and may be."""
    parse, wanted = (truth, "true or false") if kind == "boolean" else (number, "a finite number")
    values = np.full(len(table), math.nan)
    for row, cell in enumerate(table.columns[name]):
        value = parse(cell)
        if value is not None and math.isfinite(value):
            values[row] = value
        elif cell.strip():
            raise DataError(
                f"Expected {wanted} in column {name!r} (got {cell!r} at {table.place(row)}). "
                "Correct it, or leave the cell empty if the value is missing."
            )
        elif missing == "error":
            raise DataError(
                f"Expected {wanted} in column {name!r} (got an empty cell at {table.place(row)}). "
                "Fill it in, or choose missing='mean' (--missing mean) when fitting."
            )
    return values


def _moments(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and deviation without overflow; the deviation of a constant is exactly 0."""
    if not len(values):
        return 0.0, 0.0
    if values.min() == values.max():
        return float(values[0]), 0.0
    largest = float(np.abs(values).max())
    unit = values / largest
    return float(unit.mean() * largest), float(unit.std() * largest)


def are_counts(values: NDArray[np.float64]) -> bool:
    """Return whether numbers are zeros and ones, or counts that are mostly zero."""
    if not len(values) or values.min() < 0 or (values != np.floor(values)).any():
        return False
    return bool(values.max() <= 1 or 2 * np.count_nonzero(values) <= len(values))


@dataclass(frozen=True)
class ArrayEncoder:
    """What columns of an array of features go through: those of a table, without names.

    Attributes:
        mean: Per column; 0 where it stays as it is.
        scale: Per column; 1 where it stays as it is.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, x: Tensor) -> ArrayEncoder:
        """Read off what a table's columns of the same numbers would go through."""
        fitted = [_column_moments(column) for column in x.double().t().numpy()]
        return cls(*zip(*fitted, strict=True)) if fitted else cls((), ())

    def encode(self, x: Tensor) -> Tensor:
        """Return the features in float32.

        Raises:
            ShapeError: If there is another number of columns.
        """
        if x.size(1) != len(self.mean):
            raise ShapeError(
                f"Expected {len(self.mean)} features, as the run was trained on (got {x.size(1)})."
            )
        if x.layout != torch.strided:  # kept sparse because it is mostly zero: never fitted
            return x
        mean, scale = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.scale))
        return ((x.double() - mean) / scale).float()

    def to_json(self) -> str:
        """Return it as JSON, for :meth:`from_json`."""
        return json.dumps({"format": FORMAT, "array": asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ArrayEncoder:
        """Read what :meth:`to_json` wrote.

        Raises:
            DataError: If the text is anything else.
        """
        try:
            content = json.loads(text)["array"]
            mean, scale = (tuple(map(float, content[name])) for name in ("mean", "scale"))
            if len(mean) != len(scale) or not all(map(math.isfinite, (*mean, *scale))):
                raise ValueError("means and scales do not fit each other")
            if 0.0 in scale:
                raise ValueError("a scale is zero")
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"Expected the JSON of an array encoder, format {FORMAT} (got something else: "
                f"{error}). Train again."
            ) from error
        return cls(mean, scale)


def _column_moments(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return what is taken off a column and what it is divided by."""
    if are_counts(values) and values.min() != values.max():
        return 0.0, 1.0
    mean, deviation = _moments(values)
    return mean, deviation or 1.0


Schema: TypeAlias = ColumnEncoder | ArrayEncoder
"""What features go through, fitted once."""


def read_schema(text: str) -> Schema:
    """Read the JSON of either encoder.

    Raises:
        DataError: If it is neither.
    """
    return (ArrayEncoder if '"array"' in text else ColumnEncoder).from_json(text)


def _encode_column(
    table: Table, column: ColumnSchema, missing: Missing, out: NDArray[np.float32]
) -> list[str]:
    """Write a column's features to ``out`` and return what there is to say about it."""
    name = f"Column {column.name!r}"
    if column.kind == "empty":
        filled = any(cell.strip() for cell in table.columns[column.name])
        state = "was empty when the schema was fitted" if filled else "is empty"
        return [f"{name} {state} and gives no feature."]
    if column.kind == "categorical":
        return _encode_words(table, column, out)
    values = _values(table, column.name, column.kind, missing)
    absent = np.isnan(values)
    values[absent] = column.mean
    if column.indicator:
        out[:, 1] = absent
    notes = []
    if absent.any():
        first = table.place(int(absent.argmax()))
        notes.append(f"{name}: {absent.sum()} missing values (first: {first}) set to the mean.")
    if column.scale == 0:
        new = (values != column.mean).any()
        state = "was constant when the schema was fitted" if new else "is constant"
        return [*notes, f"{name} {state} and gives zeros."]
    if column.kind == "numeric":
        with np.errstate(over="ignore"):  # refused below, with its place
            values = ((values - column.mean) / column.scale).astype(np.float32)
        if not np.isfinite(values).all():
            row = int((~np.isfinite(values)).argmax())
            raise DataError(
                f"Expected {name[0].lower()}{name[1:]} within the range of the training table (got "
                f"{table.columns[column.name][row]!r} at {table.place(row)}, beyond float32 after "
                "standardising). Check the unit."
            )
    out[:, 0] = values
    return notes


def _encode_words(table: Table, column: ColumnSchema, out: NDArray[np.float32]) -> list[str]:
    index = {word: i for i, word in enumerate(column.vocabulary)}
    missing, unseen = [], []
    for row, cell in enumerate(table.columns[column.name]):
        word = cell if cell.strip() else ""
        if not word:
            missing.append(row)
        if word in index:
            out[row, index[word]] = 1
        elif word:
            unseen.append(row)
    notes = []
    if len(index) == 1:
        notes.append(f"Column {column.name!r} has a single category.")
    if missing:
        how = "a category of their own" if "" in index else "all zeros"
        notes.append(_count_note(table, column.name, "missing values", missing, how))
    if unseen:
        notes.append(_count_note(table, column.name, "unseen categories", unseen, "all zeros"))
    return notes


def _count_note(table: Table, name: str, what: str, rows: Sequence[int], how: str) -> str:
    return f"Column {name!r}: {len(rows)} {what} (first: {table.place(rows[0])}) are {how}."


def _is_code(table: Table, name: str) -> bool:
    """Return whether a column holds few different whole numbers."""
    cells = {cell.strip() for cell in table.columns[name]}
    return len(cells) <= FEW and all(cell.removeprefix("-").isdecimal() for cell in cells)


def _codes(table: Table, column: ColumnSchema) -> NDArray[np.float64]:
    """Return the place of each cell in the vocabulary."""
    index = {word: i for i, word in enumerate(column.vocabulary)}
    codes = np.zeros(len(table))
    for row, cell in enumerate(table.columns[column.name]):
        word = cell if cell.strip() else ""
        if word not in index:
            raise DataError(
                f"Expected a known category in edge column {column.name!r} (got {cell!r} at "
                f"{table.place(row)}, which the training table does not have). Map it to a known "
                "one, or train again with it. " + nearest(cell, column.vocabulary)
            )
        codes[row] = index[word]
    return codes


def _scaled(table: Table, column: ColumnSchema) -> NDArray[np.float64]:
    """Return standardised numbers; of a constant column zeros."""
    values = _values(table, column.name, column.kind, "error")
    return (values - column.mean) / column.scale if column.scale else np.zeros(len(table))


def _edge_weights(table: Table, name: str) -> Tensor:
    values = _values(table, name, "numeric", "error")
    if (values < 0).any():
        row = int((values < 0).argmax())
        raise DataError(
            f"Expected weights of at least 0 in column {name!r} (got {table.columns[name][row]!r} "
            f"at {table.place(row)}). Clean or shift them; a sign can be an attribute "
            "(--edge-attr)."
        )
    return torch.from_numpy(values).float()


def _schema_from_json(entry: dict[str, Any]) -> ColumnSchema:
    column = ColumnSchema(**{**entry, "vocabulary": _words(entry["vocabulary"])})
    if column.kind not in get_args(Kind) or not isinstance(column.name, str):
        raise ValueError(f"column {column.name!r} of kind {column.kind!r}")
    if not all(math.isfinite(float(value)) for value in (column.mean, column.scale)):
        raise ValueError(f"column {column.name!r} has no finite mean and scale")
    return column


def _words(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"expected a list of strings, got {values!r}")
    return tuple(values)

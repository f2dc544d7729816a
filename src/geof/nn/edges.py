r"""Weights and attributes of edges, as terms of a step.

A weight :math:`w_{ij} \ge 0` is a factor on the unnormalised weights of Eq. (4), an attribute
:math:`a_{ij}` adds to the energy's exponent and to the message in environment coordinates:

.. math::
    \omega_{ij} \propto w_{ij} \exp(-\|h_i - h_j\|_2^2 / \tau + s(a_{ij})), \qquad
    m_{j \to i} = L_i^{-1} (L_j \phi(\xi_j) + e(a_{ij})).

Categories go through one small table each, numbers through a linear map. Every self-loop has weight
1 and no attribute, so a node's residual to itself stays zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from geof.errors import ConfigError, DataError, DtypeError, ShapeError
from geof.kernels import EdgeTerms, Neighbourhoods
from geof.nn.inputs import Remembered
from geof.options import require_positive

EVERY_COMBINATION = 256
"""Up to so many possible combinations of categories the table has a row for each."""


class EdgeRows(NamedTuple):
    """The different attributes that occur.

    Attributes:
        row: ``(E,)`` int32 in the order of the neighbourhoods, -1 for self-loops.
        codes: ``(C, categories)`` int64.
        numbers: ``(C, numbers)``.
    """

    row: Tensor
    codes: Tensor
    numbers: Tensor


class EdgeEncoder(nn.Module):
    r"""Makes :math:`s(a_{ij})` and :math:`e(a_{ij})` of edge attributes.

    All parameters start at zero: the model then starts as the one that sees no attributes, and
    nothing is drawn that would change the other parameters. There is no symmetry to break, for
    every category and every number has parameters of its own and a gradient from the first step on.

    Different attributes are encoded once. With :math:`C` of them (some ten for bonds) no tensor of
    :math:`E \times d` entries exists; continuous numbers that are all different make :math:`C = E`.

    Args:
        blocks: :math:`B`.
        block_size: :math:`m`.
        channels: How many numbers an edge has.
        categories: The size of each categorical column.

    Shapes:
        - **attributes:** :math:`(E, \text{categories} + \text{channels})`, codes first; integers
          where there are no numbers
    """

    def __init__(
        self, blocks: int, block_size: int, *, channels: int = 0, categories: Sequence[int] = ()
    ) -> None:
        super().__init__()
        require_positive("edge_channels", channels, least=0)
        for size in categories:
            require_positive("edge_categories", size)
        self.blocks, self.block_size = blocks, block_size
        self.channels, self.categories = channels, tuple(categories)
        width = blocks * block_size + 1  # a message and a scalar of the energy
        self.tables = nn.ParameterList(torch.zeros(size, width) for size in self.categories)
        self.numbers = nn.Parameter(torch.zeros(channels, width)) if channels else None

    def reset_parameters(self) -> None:
        """Start at zero again."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, rows: EdgeRows) -> tuple[Tensor, Tensor]:
        """Return :math:`e`, ``(C, B, m)``, and :math:`s`, ``(C,)``, of the different attributes."""
        columns = enumerate(self.tables)
        parts = [table[rows.codes[:, column]] for column, table in columns]
        if self.numbers is not None:
            parts.append(rows.numbers.to(self.numbers.dtype) @ self.numbers)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        message, energy = total[:, :-1], total[:, -1]
        return message.reshape(-1, self.blocks, self.block_size), energy

    def rows(self, edges: Neighbourhoods, attributes: Tensor) -> EdgeRows:
        """Return the different attributes of the edges, those found before if there are."""
        if self._every_edge(attributes) or attributes.is_inference():
            return self._rows(edges, attributes)

        def build() -> EdgeRows:
            with torch.no_grad():
                return self._rows(edges, attributes)

        remembered: Remembered[EdgeRows] = edges.cached(EdgeRows, Remembered)
        key = id(attributes), attributes._version, self.categories
        return remembered.of(attributes, key, build)

    def _rows(self, edges: Neighbourhoods, attributes: Tensor) -> EdgeRows:
        codes = self._codes(attributes)
        numbers = attributes[:, len(self.categories) :]
        if self.channels and self._every_edge(attributes):
            row = torch.arange(len(attributes), device=attributes.device)
        elif self.channels:
            _, row = attributes.unique(dim=0, return_inverse=True)
            first = _first_of(row)
            codes, numbers = codes[first], numbers[first]
        else:
            row, codes = self._combinations(codes)
            numbers = attributes.new_zeros(len(codes), 0)
        return EdgeRows(edges.at_origin(row, -1).to(torch.int32), codes, numbers)

    def _every_edge(self, attributes: Tensor) -> bool:
        """Return whether to tell no attributes apart: compiled, or with a gradient of their own."""
        return torch.compiler.is_compiling() or attributes.requires_grad

    def _combinations(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return each edge's row, and the codes of the rows."""
        count = prod(self.categories)
        if count <= EVERY_COMBINATION:
            places = [torch.arange(size, device=codes.device) for size in self.categories]
            row = codes.new_zeros(len(codes))
            for column, size in enumerate(self.categories):
                row = row * size + codes[:, column]
            return row, torch.cartesian_prod(*places).reshape(count, len(places))
        if torch.compiler.is_compiling():
            return torch.arange(len(codes), device=codes.device), codes
        found, row = codes.unique(dim=0, return_inverse=True)
        return row, found

    def _codes(self, attributes: Tensor) -> Tensor:
        """Return the categorical columns, checked."""
        given = attributes[:, : len(self.categories)]
        codes = given.long()
        if torch.compiler.is_compiling() or not len(codes):
            return codes
        for column, size in enumerate(self.categories):
            wrong = (codes[:, column] != given[:, column]) | (codes[:, column] < 0)
            wrong |= codes[:, column] >= size
            if wrong.any():
                edge = int(wrong.nonzero()[0])
                raise DataError(
                    f"Expected column {column} of 'edge_attr' to hold categories from 0 to "
                    f"{size - 1} (got {given[edge, column].item()} at edge {edge}). Map it to a "
                    "known category, or build the model with more 'edge_categories'."
                )
        return codes

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"channels={self.channels}, categories={self.categories}"


def edge_terms(
    edges: Neighbourhoods,
    encoder: EdgeEncoder | None,
    weight: Tensor | None,
    attributes: Tensor | None,
    dtype: torch.dtype,
) -> EdgeTerms | None:
    """Return what edges add to a step; ``None`` where there are neither weights nor attributes.

    Args:
        edges: Neighbourhoods that know where their edges were given.
        encoder: What attributes go through, or ``None``.
        weight: ``(E,)`` in the order the edges were given, at least zero, or ``None`` for ones.
        attributes: ``(E, columns)`` likewise, or ``None``.
        dtype: The model's.

    Raises:
        ConfigError: If attributes and encoder do not go together, or the neighbourhoods do not know
            the order.
        ShapeError: If there are more or fewer than edges.
        DtypeError: If they are of the wrong kind.
        DataError: If a weight is negative, or anything is not finite.
    """
    if encoder is not None and attributes is None and edges.terms is not None:
        return edges.terms
    if (encoder is None) != (attributes is None):
        raise ConfigError(
            "Expected 'edge_attr' where the model was built with edge_channels or edge_categories, "
            f"and nowhere else (got {'none' if attributes is None else 'some'}). Build the model "
            "for the attributes there are."
        )
    if weight is None and attributes is None:
        return edges.terms
    if edges.origin is None:
        raise ConfigError(
            "Expected neighbourhoods that know the order in which edges were given, for "
            "'edge_weight' and 'edge_attr'. Use Neighbourhoods.from_edge_index(edge_index, "
            "num_nodes, origin=True), or pass edge_index itself."
        )
    count = edges.num_given
    bias = edges.source.new_zeros(edges.source.shape, dtype=dtype)
    if weight is not None:
        _check_weight(weight, count, dtype)
        bias = edges.at_origin(_log(weight), 0.0)
    if encoder is None or attributes is None:
        return EdgeTerms(bias)
    _check_attributes(attributes, count, encoder)
    rows = encoder.rows(edges, attributes)
    table, energy = encoder(rows)
    chosen = rows.row.long()
    if len(energy):
        bias = bias + torch.where(chosen >= 0, energy[chosen.clamp_min(0)], 0.0)
    return EdgeTerms(bias, rows.row, table)


def _check_weight(weight: Tensor, count: int, dtype: torch.dtype) -> None:
    """Require ``count`` finite weights of the model's dtype, none of them negative."""
    _check_tensor("edge_weight", weight)
    if weight.shape != (count,):
        raise ShapeError(
            f"Expected 'edge_weight' to have shape ({count},), one weight per column of "
            f"'edge_index' (got {tuple(weight.shape)}). Use .view(-1), or the edges they belong to."
        )
    if weight.dtype != dtype:
        raise DtypeError(
            f"Expected 'edge_weight' to have the model's dtype {dtype} (got {weight.dtype}). "
            f"Use edge_weight.to({dtype})."
        )
    if torch.compiler.is_compiling():
        return
    wrong = ~((weight >= 0) & weight.isfinite())
    if wrong.any():
        edge = int(wrong.nonzero()[0])
        raise DataError(
            f"Expected 'edge_weight' to be finite and at least 0 (got {weight[edge].item()} at "
            f"edge {edge}, and {int(wrong.sum())} such in all). Clean or shift the weights; a sign "
            "can be a category of 'edge_attr'."
        )


def _check_attributes(attributes: Tensor, count: int, encoder: EdgeEncoder) -> None:
    """Require ``count`` rows of as many columns as the encoder has."""
    _check_tensor("edge_attr", attributes)
    width = len(encoder.categories) + encoder.channels
    if attributes.shape != (count, width):
        raise ShapeError(
            f"Expected 'edge_attr' to have shape ({count}, {width}), a row per column of "
            f"'edge_index' with {len(encoder.categories)} categories and {encoder.channels} "
            f"numbers (got {tuple(attributes.shape)})."
        )
    if attributes.dtype == torch.bool or attributes.is_complex():
        raise DtypeError(
            f"Expected 'edge_attr' of whole or floating-point numbers (got {attributes.dtype}). "
            "Use edge_attr.long() for categories."
        )
    if attributes.is_floating_point() and not torch.compiler.is_compiling():
        wrong = ~attributes.isfinite().all(-1)
        if wrong.any():
            edge = int(wrong.nonzero()[0])
            raise DataError(
                f"Expected 'edge_attr' to be finite, but {int(wrong.sum())} of {count} rows hold a "
                f"NaN or an infinity (first: row {edge}). Clean or impute these rows."
            )


def _check_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise DtypeError(
            f"Expected '{name}' to be a torch.Tensor (got {type(value).__name__}). "
            "Use torch.as_tensor."
        )


def _log(weight: Tensor) -> Tensor:
    """Return the logarithm, minus infinity at zero, where its gradient is taken for zero."""
    positive = weight > 0
    return torch.where(positive, torch.where(positive, weight, 1.0).log(), -torch.inf)


def _first_of(row: Tensor) -> Tensor:
    """Return where each number from 0 up first stands in ``row``."""
    count = int(row.max()) + 1 if len(row) else 0
    places = torch.arange(len(row), device=row.device)
    return row.new_full((count,), len(row)).scatter_reduce(0, row, places, "amin")

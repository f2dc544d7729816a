"""Scalars and edges on their way to the native operators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geof.geometry import AdmissibleBox, JitterSchedule
from geof.kernels import Evolution, StepSpec
from geof.kernels.native_arguments import StatisticCode, StepOptions, step_options

HEADER = Path(__file__).parents[2] / "native" / "geof.h"
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
OPTIONS = st.builds(
    StepOptions,
    st.sampled_from(StatisticCode),
    st.booleans(),
    st.integers(0, 2**31 - 1),
    *[NUMBERS] * 9,
)


@given(OPTIONS)
def test_options_survive_the_way_through_an_operator(options):
    integers, numbers = options.pack()
    assert all(type(value) is int for value in integers)
    assert all(type(value) is float for value in numbers)
    assert len(integers) + len(numbers) == len(StepOptions._fields)
    back = StepOptions.unpack(integers, numbers)
    assert back == options
    assert isinstance(back.statistic, StatisticCode)
    assert isinstance(back.framed, bool)


@torch.library.custom_op("geof_tests::echo", mutates_args=())
def echo(x: torch.Tensor, integers: list[int], numbers: list[float]) -> torch.Tensor:
    return torch.tensor([*integers, *numbers], dtype=torch.float64)


@given(OPTIONS)
def test_torch_hands_the_lists_on_as_they_are(options):
    *integers, mix = echo(torch.zeros(1), *options.pack())[[0, 1, 2, 7]].tolist()
    assert integers == list(options[:3])
    assert mix == options.mix


def test_too_few_or_too_many_numbers_are_refused():
    integers, numbers = StepOptions(StatisticCode.FULL, True, 5, 1.0, 1.0, 1e-6, 10.0).pack()
    with pytest.raises(ValueError, match="unpack"):
        StepOptions.unpack(integers[:2], numbers)
    with pytest.raises(TypeError):
        StepOptions.unpack(integers, [*numbers, 1.0])


def test_codes_are_those_of_the_header():
    (comment,) = re.findall(r"int32_t statistic; /\* (.*?) \*/", HEADER.read_text())
    pairs = (part.split() for part in comment.split(", "))
    assert {name.upper(): int(code) for code, name in pairs} == StatisticCode.__members__


@pytest.mark.parametrize("statistic", ["full", "diagonal", "mean", None], ids=str)
def test_options_of_a_step(statistic):
    spec = StepSpec(2.0, statistic, False, 0.3, JitterSchedule(1e-3, 4.0, 7))
    options = step_options(spec)
    assert options.statistic.name == (statistic or "none").upper()
    assert options.second == (statistic in ("full", "diagonal"))
    assert options[1:7] == (False, 7, 2.0, 0.3, 1e-3, 4.0)
    assert options[7:] == (0.0,) * 5
    evolution = Evolution(0.6, 0.2, AdmissibleBox(1.5, (-2.0, 3.0)), None)
    whole = step_options(spec, evolution)
    assert whole[:7] == options[:7]
    assert whole[7:] == (0.6, 0.2, 1.5, -2.0, 3.0)

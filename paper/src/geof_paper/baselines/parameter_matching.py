"""Widths and rank for which a control has as many parameters as the network it is compared with.

Three integers are searched: the width, in whole blocks; the width inside a layer, among a few
multiples of the first; and the rank of a bottleneck. The number of parameters is affine in the
rank, so for every pair of widths the best rank follows from two counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from geof.errors import ConfigError
from geof.options import require_number, require_positive

TOLERANCE = 0.005
"""The largest difference allowed, in parts of the number to be matched."""


class ParameterMatch(NamedTuple):
    """What the search found.

    Attributes:
        width: A multiple of the block size.
        inner: Width inside a layer.
        rank: Of the bottleneck.
        parameters: Of the whole network with these.
        gap: The difference in parts of the number to be matched, with its sign.
    """

    width: int
    inner: int
    rank: int
    parameters: int
    gap: float


def match_parameters(
    count: Callable[[int, int, int], int],
    target: int,
    *,
    block_size: int,
    near: int,
    inner_ratios: Sequence[float] = (1.0,),
    least_rank: int = 8,
    tolerance: float = TOLERANCE,
) -> ParameterMatch:
    """Return the width nearest to a wanted one that matches, with its best rank.

    The nearest width keeps the input map and the number of blocks as close as possible to those of
    the network compared with; at its very width all other parameters match too, not only the sum.
    The rank is at least ``least_rank`` (or a narrower width itself) and at most the width: below,
    the statistic would hardly get through; above, parameters would have no effect.

    Args:
        count: Parameters of the whole network, readout included, by width, inner width and rank.
        target: The number to match.
        block_size: What the width is a multiple of.
        near: The wanted width; twice that is the widest that is tried.
        inner_ratios: Inner widths in parts of the width, the first that matches is taken.
        least_rank: The least rank.
        tolerance: The largest difference allowed, in parts of ``target``.

    Raises:
        ConfigError: If no width matches; names the nearest miss.

    >>> match_parameters(lambda width, _, rank: 10 * width + rank, 665, block_size=8, near=60)
    ParameterMatch(width=64, inner=64, rank=25, parameters=665, gap=0.0)
    """
    for name, value in {"target": target, "block_size": block_size, "near": near}.items():
        require_positive(name, value)
    require_positive("least_rank", least_rank)
    require_number("tolerance", tolerance, least=0)
    widths = range(block_size, max(2 * near, block_size) + 1, block_size)
    tried = []
    for width in sorted(widths, key=lambda width: (abs(width - near), width)):
        for inner in (max(1, round(ratio * width)) for ratio in inner_ratios):
            found = _best_rank(count, target, width, inner, min(least_rank, width))
            if abs(found.gap) <= tolerance:
                return found
            tried.append(found)
    miss = min(tried, key=lambda found: abs(found.gap))
    raise ConfigError(
        f"Expected widths and a rank with {target} parameters within {tolerance:.1%} (nearest: "
        f"{miss.parameters} at width {miss.width}, inner width {miss.inner}, rank {miss.rank}). "
        "Try other 'inner_ratios', a lower 'least_rank' or another depth."
    )


def _best_rank(
    count: Callable[[int, int, int], int], target: int, width: int, inner: int, least: int
) -> ParameterMatch:
    one, two = count(width, inner, 1), count(width, inner, 2)
    rank = round(1 + (target - one) / (two - one)) if two != one else least
    rank = min(max(rank, least), width)
    parameters = count(width, inner, rank)
    return ParameterMatch(width, inner, rank, parameters, (parameters - target) / target)

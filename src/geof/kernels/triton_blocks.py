r"""The step's small matrices in Triton: feedback, factors and the update of the coordinates.

A program holds ``BLOCKS`` matrices of ``SIZE x SIZE``, ``SIZE`` the power of two from ``m`` on;
what is beyond ``m``, or beyond the last block, is the identity. ``r`` and ``s`` number rows and
columns, ``(1, SIZE, 1)`` and ``(1, 1, SIZE)``. A triangular matrix is read and written as its ``t``
coordinates: strictly lower entries row by row, then the logarithms of the diagonal.

Scalars come as tensors: Triton rounds a Python float to single precision.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # nothing here runs then, but the module can be read
    from geof.kernels import triton_absent as tl
    from geof.kernels import triton_absent as triton


@triton.jit
def row_of(matrix, k, SIZE: tl.constexpr):
    """Return row ``k`` of each matrix, ``(BLOCKS, SIZE)``."""
    r = tl.arange(0, SIZE)[None, :, None]
    return tl.sum(tl.where(r == k, matrix, 0), axis=1)


@triton.jit
def column_of(matrix, k, SIZE: tl.constexpr):
    """Return column ``k`` of each matrix, ``(BLOCKS, SIZE)``."""
    s = tl.arange(0, SIZE)[None, None, :]
    return tl.sum(tl.where(s == k, matrix, 0), axis=2)


@triton.jit
def entry_of(vector, k, SIZE: tl.constexpr):
    """Return entry ``k`` of each vector, ``(BLOCKS,)``."""
    row = tl.arange(0, SIZE)[None, :]
    return tl.sum(tl.where(row == k, vector, 0), axis=1)


@triton.jit
def place_of(block, r, s, m):
    """Return where the coordinate of a lower entry stands."""
    within = tl.where(r > s, r * (r - 1) // 2 + s, m * (m - 1) // 2 + r)
    return block[:, None, None] * (m * (m + 1) // 2) + within


@triton.jit
def lower_of(coords, place, there, r, s):
    """Return triangular matrices of coordinates, Eq. (1)."""
    given = tl.load(coords + place, mask=there & (r >= s), other=0)
    return tl.where(r == s, tl.exp(given), given)


@triton.jit
def solved(lower, right, SIZE: tl.constexpr):
    """Return X of L X = right, from the first row downwards."""
    r, row = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, :]
    for k in range(SIZE):
        own = column_of(lower, k, SIZE)
        found = row_of(right, k, SIZE) / entry_of(own, k, SIZE)[:, None]
        rest = right - tl.where(row > k, own, 0)[:, :, None] * found[:, None, :]
        right = tl.where(r == k, found[:, None, :], rest)
    return right


@triton.jit
def solved_by_adjoint(lower, right, SIZE: tl.constexpr):
    """Return X of L^T X = right, from the last row upwards."""
    r, row = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, :]
    for step in range(SIZE):
        k = SIZE - 1 - step
        own = row_of(lower, k, SIZE)
        found = row_of(right, k, SIZE) / entry_of(own, k, SIZE)[:, None]
        rest = right - tl.where(row < k, own, 0)[:, :, None] * found[:, None, :]
        right = tl.where(r == k, found[:, None, :], rest)
    return right


@triton.jit
def solved_from_right(lower, left, SIZE: tl.constexpr):
    """Return Y of Y L = left, from the last column to the first."""
    s, row = tl.arange(0, SIZE)[None, None, :], tl.arange(0, SIZE)[None, :]
    for step in range(SIZE):
        k = SIZE - 1 - step
        own = row_of(lower, k, SIZE)
        found = column_of(left, k, SIZE) / entry_of(own, k, SIZE)[:, None]
        rest = left - found[:, :, None] * tl.where(row < k, own, 0)[:, None, :]
        left = tl.where(s == k, found[:, :, None], rest)
    return left


@triton.jit
def solved_vector(lower, vector, SIZE: tl.constexpr):
    """Return x of L x = vector."""
    row = tl.arange(0, SIZE)[None, :]
    for k in range(SIZE):
        own = column_of(lower, k, SIZE)
        found = (entry_of(vector, k, SIZE) / entry_of(own, k, SIZE))[:, None]
        vector = tl.where(row == k, found, vector - tl.where(row > k, own, 0) * found)
    return vector


@triton.jit
def solved_vector_by_adjoint(lower, vector, SIZE: tl.constexpr):
    """Return x of L^T x = vector."""
    row = tl.arange(0, SIZE)[None, :]
    for step in range(SIZE):
        k = SIZE - 1 - step
        own = row_of(lower, k, SIZE)
        found = (entry_of(vector, k, SIZE) / entry_of(own, k, SIZE))[:, None]
        vector = tl.where(row == k, found, vector - tl.where(row < k, own, 0) * found)
    return vector


@triton.jit
def factorised(
    given,
    there,
    pending,
    jitters,
    relative_jitters,
    tries,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Return the factor at the first jitter that serves, Eqs. (51) to (53), and which that is.

    ``jitters`` and ``relative_jitters`` have ``tries`` entries: what is added to the diagonal, and
    parts of the block's largest row sum to add as well. Where none serves the factor is the
    identity and the attempt ``tries``.
    """
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    row = tl.arange(0, SIZE)[None, :]
    given = tl.where((r == s) & (there == 0), 1, tl.where(r >= s, given, 0))
    below = tl.where((r > s) & there, tl.abs(given), 0)
    largest = tl.sum(tl.where((r >= s) & there, tl.abs(given), 0), axis=2) + tl.sum(below, axis=1)
    scale = tl.max(largest, axis=1)
    made = tl.where((r == s) & (pending >= 0)[:, None, None], 1, 0).to(given.dtype)
    number = tl.full((BLOCKS,), 0, tl.int32)
    t = 0
    while (t < tries) & (tl.sum(pending, axis=0) > 0):
        relative = tl.load(relative_jitters + t)
        # No part of a sum that overflows: 0 times it would be no number.
        jitter = tl.load(jitters + t) + tl.where(relative > 0, relative * scale, 0)
        # Every pivot is at least the jitter before rounding: what is far below is rounding alone.
        least = tl.where(relative > 0, 0.5 * jitter, 0)
        rest = given + tl.where((r == s) & there, jitter[:, None, None], 0)
        lower = tl.full((BLOCKS, SIZE, SIZE), 0, given.dtype)
        sound = pending
        for k in range(SIZE):
            column = column_of(rest, k, SIZE)
            pivot = entry_of(column, k, SIZE)
            positive = (pivot > 0) & (pivot < float("inf")) & (pivot >= least)
            sound = tl.where(positive, sound, 0)
            column = tl.where(row >= k, column / tl.sqrt(tl.where(positive, pivot, 1))[:, None], 0)
            lower = tl.where(s == k, column[:, :, None], lower)
            rest -= column[:, :, None] * column[:, None, :]
        made = tl.where((sound > 0)[:, None, None], lower, made)
        number = tl.where(sound > 0, t, number)
        pending = tl.where(sound > 0, 0, pending)
        t += 1
    return made, tl.where(pending > 0, tries, number)


@triton.jit
def factor_adjoint(root, given, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    r"""Return :math:`\operatorname{sym}(R^{-\top} \Phi(R^\top \bar R) R^{-1})`.

    Eq. (38) transposed; :math:`\Phi` keeps the strictly lower part and halves the diagonal.
    """
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    inner = tl.full((BLOCKS, SIZE, SIZE), 0, root.dtype)
    for k in range(SIZE):
        inner += row_of(root, k, SIZE)[:, :, None] * row_of(given, k, SIZE)[:, None, :]
    inner = tl.where(r > s, inner, tl.where(r == s, 0.5 * inner, 0))
    inner = solved_from_right(root, solved_by_adjoint(root, inner, SIZE), SIZE)
    return 0.5 * (inner + tl.trans(inner, (0, 2, 1)))


@triton.jit
def block_cholesky(
    matrix,
    jitters,
    relative_jitters,
    factor,
    attempt,
    count,
    m,
    tries,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write the factors of matrices, and the attempts they needed; see :func:`factorised`."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    there = (block < count)[:, None, None] & (r < m) & (s < m)
    place = (block[:, None, None] * m + r) * m + s
    given = tl.load(matrix + place, mask=there & (r >= s), other=0)
    pending = (block < count).to(tl.int32)
    made, number = factorised(given, there, pending, jitters, relative_jitters, tries, SIZE, BLOCKS)
    tl.store(factor + place, made, mask=there)
    tl.store(attempt + block, number.to(tl.int64), mask=block < count)


@triton.jit
def block_cholesky_adjoint(
    factor,
    grad_factor,
    grad_matrix,
    count,
    m,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write the gradients of matrices from those of their factors; see :func:`factor_adjoint`."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    there = (block < count)[:, None, None] & (r < m) & (s < m)
    place = (block[:, None, None] * m + r) * m + s
    root = tl.load(factor + place, mask=there & (r >= s), other=0)
    root = tl.where((r == s) & (there == 0), 1, root)
    given = tl.load(grad_factor + place, mask=there & (r >= s), other=0)
    tl.store(grad_matrix + place, factor_adjoint(root, given, SIZE, BLOCKS), mask=there)


@triton.jit
def block_feedback(
    coords,
    first,
    second,
    floor,
    jitters,
    relative_jitters,
    aggregate,
    moment,
    target,
    attempt,
    count,
    m,
    tries,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    r"""Write :math:`L^{-1}` first, :math:`C = L^{-1} S L^{-\top} + \epsilon_s I` and its target.

    The target is the coordinates of SChol(C), Eq. (10); of a block without a factor, its own.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    held, row = block < count, tl.arange(0, SIZE)[None, :]
    there, inside = held[:, None, None] & (r < m) & (s < m), held[:, None] & (row < m)
    place, full = place_of(block, r, s, m), (block[:, None, None] * m + r) * m + s
    lower = lower_of(coords, place, there, r, s)
    vector = tl.load(first + block[:, None] * m + row, mask=inside, other=0)
    vector = solved_vector(lower, vector, SIZE)
    tl.store(aggregate + block[:, None] * m + row, vector, mask=inside)
    half = solved(lower, tl.load(second + full, mask=there, other=0), SIZE)
    bent = solved(lower, tl.trans(half, (0, 2, 1)), SIZE)
    bent += tl.where((r == s) & there, tl.load(floor), 0)
    tl.store(moment + full, bent, mask=there)
    made, number = factorised(
        bent, there, held.to(tl.int32), jitters, relative_jitters, tries, SIZE, BLOCKS
    )
    found = tl.where(r == s, tl.log(tl.where(r == s, made, 1)), made)
    present = tl.load(coords + place, mask=there & (r >= s), other=0)
    found = tl.where((number == tries)[:, None, None], present, found)
    tl.store(target + place, found, mask=there & (r >= s))
    tl.store(attempt + block, number.to(tl.int64), mask=held)


@triton.jit
def block_feedback_adjoint(
    coords,
    aggregate,
    second,
    target,
    kept,
    grad_aggregate,
    grad_moment,
    grad_target,
    grad_coords,
    grad_first,
    grad_second,
    count,
    m,
    WATCHED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write the gradients of what :func:`block_feedback` read; ``WATCHED`` where C has one."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    held, row = block < count, tl.arange(0, SIZE)[None, :]
    there, inside = held[:, None, None] & (r < m) & (s < m), held[:, None] & (row < m)
    place, full = place_of(block, r, s, m), (block[:, None, None] * m + r) * m + s
    lower = lower_of(coords, place, there, r, s)
    root = lower_of(target, place, there, r, s)
    pull = tl.load(grad_target + place, mask=there & (r >= s), other=0)
    # A block that kept its coordinates does not depend on the moment.
    own = (tl.load(kept + block, mask=held, other=0) != 0)[:, None, None]
    free = tl.where(own, 0, pull / tl.where(r == s, root, 1))
    bent = factor_adjoint(root, tl.where(r >= s, free, 0), SIZE, BLOCKS)
    if WATCHED:
        seen = tl.load(grad_moment + full, mask=there, other=0)
        bent += 0.5 * (seen + tl.trans(seen, (0, 2, 1)))
    left = solved_by_adjoint(lower, bent, SIZE)
    tl.store(grad_second + full, solved_from_right(lower, left, SIZE), mask=there)
    # C without its floor, made again: subtracting the floor would cancel digits.
    half = solved(lower, tl.load(second + full, mask=there, other=0), SIZE)
    spread = solved(lower, tl.trans(half, (0, 2, 1)), SIZE)
    turned = tl.full((BLOCKS, SIZE, SIZE), 0, lower.dtype)
    for k in range(SIZE):
        turned += column_of(left, k, SIZE)[:, :, None] * row_of(spread, k, SIZE)[:, None, :]
    reaching = tl.load(grad_aggregate + block[:, None] * m + row, mask=inside, other=0)
    reaching = solved_vector_by_adjoint(lower, reaching, SIZE)
    tl.store(grad_first + block[:, None] * m + row, reaching, mask=inside)
    mean = tl.load(aggregate + block[:, None] * m + row, mask=inside, other=0)
    turned = -2 * turned - reaching[:, :, None] * mean[:, None, :]
    slope = tl.where(r == s, turned * lower, turned) + tl.where(own, pull, 0)
    tl.store(grad_coords + place, slope, mask=there & (r >= s))


@triton.jit
def block_update(
    coords,
    target,
    output,
    numbers,
    following,
    inside,
    count,
    m,
    rank,
    MIXED: tl.constexpr,
    CORRECTED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    r"""Write the next coordinates, Eqs. (11) and (12), and which of them the box left alone.

    ``numbers`` are :math:`\lambda, \gamma, a_{max}, \ell_{min}, \ell_{max}`. To be compiled without
    fused products: infinities of both signs make a NaN, which the clip does not hide.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    held, row = block < count, tl.arange(0, SIZE)[None, :]
    there, within = held[:, None, None] & (r < m) & (r >= s), held[:, None] & (row < m)
    place = place_of(block, r, s, m)
    value = tl.load(coords + place, mask=there, other=0)
    if MIXED:
        value += tl.load(numbers) * (tl.load(target + place, mask=there, other=0) - value)
    if CORRECTED:
        said = output + block[:, None] * ((2 * rank + 1) * m) + row
        change = tl.load(said + 2 * m * rank, mask=within, other=0)[:, :, None]
        said += row * (rank - 1)
        product = tl.full((BLOCKS, SIZE, SIZE), 0, value.dtype)
        for k in range(rank):
            left = tl.load(said + k, mask=within, other=0)
            right = tl.load(said + m * rank + k, mask=within, other=0)
            product += tl.where(r > s, left[:, :, None] * right[:, None, :], 0)
        value += tl.load(numbers + 1) * tl.where(r == s, change, product)
    low = tl.where(r == s, tl.load(numbers + 3), -tl.load(numbers + 2))
    high = tl.where(r == s, tl.load(numbers + 4), tl.load(numbers + 2))
    clipped = tl.where(value < low, low, tl.where(value > high, high, value))
    tl.store(following + place, clipped, mask=there)
    tl.store(inside + place, (clipped == value).to(tl.uint8), mask=there)


@triton.jit
def block_update_adjoint(
    grad,
    inside,
    output,
    numbers,
    grad_coords,
    grad_target,
    grad_output,
    count,
    m,
    rank,
    MIXED: tl.constexpr,
    CORRECTED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write the gradients of what :func:`block_update` read."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    r, s = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    held, row = block < count, tl.arange(0, SIZE)[None, :]
    there, within = held[:, None, None] & (r < m) & (r >= s), held[:, None] & (row < m)
    place = place_of(block, r, s, m)
    reaching = tl.load(grad + place, mask=there, other=0)
    reaching = tl.where(tl.load(inside + place, mask=there, other=0) != 0, reaching, 0)
    if MIXED:
        mix = tl.load(numbers)
        tl.store(grad_target + place, mix * reaching, mask=there)
        tl.store(grad_coords + place, (1 - mix) * reaching, mask=there)
    else:
        tl.store(grad_coords + place, reaching, mask=there)
    if CORRECTED:
        pull = tl.load(numbers + 1) * reaching
        own = block[:, None] * ((2 * rank + 1) * m) + row
        on_scale = tl.sum(tl.where(r == s, pull, 0), axis=2)
        tl.store(grad_output + own + 2 * m * rank, on_scale, mask=within)
        own += row * (rank - 1)
        for k in range(rank):
            left = tl.load(output + own + k, mask=within, other=0)
            right = tl.load(output + own + m * rank + k, mask=within, other=0)
            on_left = tl.sum(tl.where(r > s, pull * right[:, None, :], 0), axis=2)
            on_right = tl.sum(tl.where(r > s, pull * left[:, :, None], 0), axis=1)
            tl.store(grad_output + own + k, on_left, mask=within)
            tl.store(grad_output + own + m * rank + k, on_right, mask=within)

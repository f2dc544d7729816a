r"""The step's sums over edges in Triton; its blocks: :mod:`geof.kernels.triton_blocks`.

A node's state is one row of ``d`` numbers; row entry ``q`` belongs to block ``q // m``. A program
of the edge kernels owns one node and ``ROWS`` entries of it, walks that node's edges ``EDGES`` at
a time and is the only one to write its results: no atomics, so the same bits in every run. Second
moments and their gradients are ``(n, d, m)``: entry ``(i, q, s)`` pairs ``q`` with coordinate
``s`` of its own block.

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
def edge_scores(
    h,
    pointer,
    source,
    active,
    temperature,
    score,
    normaliser,
    d,
    EDGES: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
):
    r"""Write :math:`\exp(-\|h_i - h_j\|^2 / \tau)` of node ``i``'s edges and their sum, Eq. (4)."""
    i = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(pointer + i), tl.load(pointer + i + 1)
    tau = tl.load(temperature)
    lane, column = tl.arange(0, EDGES), tl.arange(0, WIDTH)
    total = tl.full((EDGES,), 0, h.dtype.element_ty)
    for e in range(begin, end, EDGES):
        at = e + lane
        live = at < end
        j = tl.load(source + at, mask=live, other=0).to(tl.int64)
        energy = tl.full((EDGES,), 0, h.dtype.element_ty)
        for c in range(0, d, WIDTH):
            q = c + column
            own = tl.load(h + i * d + q, mask=q < d, other=0)
            inside = live[:, None] & (q < d)[None, :]
            near = tl.load(h + j[:, None] * d + q[None, :], mask=inside, other=0)
            difference = own[None, :] - near
            energy += tl.sum(difference * difference, axis=1)
        w = tl.where(live, tl.exp(-energy / tau), 0)
        if MASKED:
            w = tl.where(tl.load(active + at, mask=live, other=0) != 0, w, 0)
        tl.store(score + at, w, mask=live)
        total += w
    tl.store(normaliser + i, tl.sum(total, axis=0))


@triton.jit
def weighted_moments(
    y,
    pointer,
    source,
    score,
    normaliser,
    weight,
    first,
    second,
    d,
    m,
    EDGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SECOND: tl.constexpr,
):
    r"""Write the weights, :math:`\sum_j \omega_{ij} y_j` and :math:`S_i` of one node's rows."""
    i, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = tl.load(pointer + i), tl.load(pointer + i + 1)
    sum_of_scores = tl.load(normaliser + i)
    lane = tl.arange(0, EDGES)
    q = group * ROWS + tl.arange(0, ROWS)
    s = tl.arange(0, COLS)
    inside, paired = q < d, (q < d)[:, None] & (s < m)[None, :]
    partner = ((q // m) * m)[:, None] + s[None, :]
    own = tl.load(y + i * d + q, mask=inside, other=0)
    total = tl.full((EDGES, ROWS), 0, y.dtype.element_ty)
    if SECOND:
        own_partner = tl.load(y + i * d + partner, mask=paired, other=0)
        outer = tl.full((EDGES, ROWS, COLS), 0, y.dtype.element_ty)
    for e in range(begin, end, EDGES):
        at = e + lane
        live = at < end
        j = tl.load(source + at, mask=live, other=0).to(tl.int64)
        w = tl.load(score + at, mask=live, other=0) / sum_of_scores
        if group == 0:
            tl.store(weight + at, w, mask=live)
        near = tl.load(
            y + j[:, None] * d + q[None, :], mask=live[:, None] & inside[None, :], other=0
        )
        total += w[:, None] * near
        if SECOND:
            across = tl.load(
                y + j[:, None, None] * d + partner[None, :, :],
                mask=live[:, None, None] & paired[None, :, :],
                other=0,
            )
            residual = w[:, None] * (near - own[None, :])
            outer += residual[:, :, None] * (across - own_partner[None, :, :])
    tl.store(first + i * d + q, tl.sum(total, axis=0), mask=inside)
    if SECOND:
        place = (i * d + q[:, None]) * m + s[None, :]
        tl.store(second + place, tl.sum(outer, axis=0), mask=paired)


@triton.jit
def pull_on_weights(
    y,
    pointer,
    source,
    weight,
    grad_first,
    curvature,
    share,
    grad_y,
    d,
    m,
    num_edges,
    EDGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SECOND: tl.constexpr,
):
    r"""Write these rows' share of :math:`\partial / \partial\omega_{ij}`, and what the target gets.

    ``curvature`` is the second moment's gradient plus its transpose: both factors of the outer
    product carry the same residual. The target's own part of ``grad_y`` is there with ``SECOND``.
    """
    i, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = tl.load(pointer + i), tl.load(pointer + i + 1)
    lane = tl.arange(0, EDGES)
    q = group * ROWS + tl.arange(0, ROWS)
    s = tl.arange(0, COLS)
    inside, paired = q < d, (q < d)[:, None] & (s < m)[None, :]
    partner = ((q // m) * m)[:, None] + s[None, :]
    pull = tl.load(grad_first + i * d + q, mask=inside, other=0)
    if SECOND:
        own = tl.load(y + i * d + q, mask=inside, other=0)
        own_partner = tl.load(y + i * d + partner, mask=paired, other=0)
        place = (i * d + q[:, None]) * m + s[None, :]
        bend = tl.load(curvature + place, mask=paired, other=0)
        total = tl.full((EDGES, ROWS), 0, y.dtype.element_ty)
    for e in range(begin, end, EDGES):
        at = e + lane
        live = at < end
        j = tl.load(source + at, mask=live, other=0).to(tl.int64)
        near = tl.load(
            y + j[:, None] * d + q[None, :], mask=live[:, None] & inside[None, :], other=0
        )
        part = tl.sum(pull[None, :] * near, axis=1)
        if SECOND:
            across = tl.load(
                y + j[:, None, None] * d + partner[None, :, :],
                mask=live[:, None, None] & paired[None, :, :],
                other=0,
            )
            bent = tl.sum(bend[None, :, :] * (across - own_partner[None, :, :]), axis=2)
            part += 0.5 * tl.sum(bent * (near - own[None, :]), axis=1)
            total += tl.load(weight + at, mask=live, other=0)[:, None] * bent
        tl.store(share + group.to(tl.int64) * num_edges + at, part, mask=live)
    if SECOND:
        tl.store(grad_y + i * d + q, -tl.sum(total, axis=0), mask=inside)


@triton.jit
def pull_on_exponents(
    pointer,
    weight,
    grad_weight,
    share,
    grad_exponent,
    num_edges,
    groups,
    EDGES: tl.constexpr,
):
    """Write the gradient of the exponents of one node's softmax."""
    i = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(pointer + i), tl.load(pointer + i + 1)
    lane = tl.arange(0, EDGES)
    mean = tl.full((EDGES,), 0, weight.dtype.element_ty)
    for e in range(begin, end, EDGES):
        at = e + lane
        live = at < end
        total = tl.load(grad_weight + at, mask=live, other=0)
        part = share + at
        for _ in range(groups):
            total += tl.load(part, mask=live, other=0)
            part += num_edges
        mean += tl.load(weight + at, mask=live, other=0) * total
    mean_score = tl.sum(mean, axis=0)
    for e in range(begin, end, EDGES):  # sums again: what was stored here may be another thread's
        at = e + lane
        live = at < end
        total = tl.load(grad_weight + at, mask=live, other=0)
        part = share + at
        for _ in range(groups):
            total += tl.load(part, mask=live, other=0)
            part += num_edges
        w = tl.load(weight + at, mask=live, other=0)
        tl.store(grad_exponent + at, w * (total - mean_score), mask=live)


@triton.jit
def pull_on_states(
    h,
    y,
    pointer,
    source,
    out_pointer,
    out_target,
    out_edge,
    weight,
    grad_exponent,
    grad_first,
    curvature,
    temperature,
    grad_h,
    grad_y,
    d,
    m,
    EDGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SECOND: tl.constexpr,
):
    """Write one node's gradients: over its incoming edges, then over its outgoing ones."""
    k, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, EDGES)
    q = group * ROWS + tl.arange(0, ROWS)
    s = tl.arange(0, COLS)
    inside, paired = q < d, (q < d)[:, None] & (s < m)[None, :]
    partner = ((q // m) * m)[:, None] + s[None, :]
    own_h = tl.load(h + k * d + q, mask=inside, other=0)
    force = tl.full((EDGES, ROWS), 0, y.dtype.element_ty)
    total = tl.full((EDGES, ROWS), 0, y.dtype.element_ty)
    for e in range(tl.load(pointer + k), tl.load(pointer + k + 1), EDGES):
        at = e + lane
        live = at < tl.load(pointer + k + 1)
        j = tl.load(source + at, mask=live, other=0).to(tl.int64)
        steep = tl.load(grad_exponent + at, mask=live, other=0)
        near = tl.load(
            h + j[:, None] * d + q[None, :], mask=live[:, None] & inside[None, :], other=0
        )
        force += steep[:, None] * (own_h[None, :] - near)
    if SECOND:
        own_partner = tl.load(y + k * d + partner, mask=paired, other=0)
    for e in range(tl.load(out_pointer + k), tl.load(out_pointer + k + 1), EDGES):
        at = e + lane
        live = at < tl.load(out_pointer + k + 1)
        i = tl.load(out_target + at, mask=live, other=0).to(tl.int64)
        edge = tl.load(out_edge + at, mask=live, other=0)
        steep = tl.load(grad_exponent + edge, mask=live, other=0)
        w = tl.load(weight + edge, mask=live, other=0)
        reached = live[:, None] & inside[None, :]
        near = tl.load(h + i[:, None] * d + q[None, :], mask=reached, other=0)
        force += steep[:, None] * (own_h[None, :] - near)
        pull = tl.load(grad_first + i[:, None] * d + q[None, :], mask=reached, other=0)
        if SECOND:
            reached_pairs = live[:, None, None] & paired[None, :, :]
            place = (i[:, None, None] * d + q[None, :, None]) * m + s[None, None, :]
            bend = tl.load(curvature + place, mask=reached_pairs, other=0)
            across = tl.load(
                y + i[:, None, None] * d + partner[None, :, :], mask=reached_pairs, other=0
            )
            pull += tl.sum(bend * (own_partner[None, :, :] - across), axis=2)
        total += w[:, None] * pull
    # A tiny temperature has no reciprocal, but what is nothing stays nothing.
    pulled = -2 * tl.sum(force, axis=0) / tl.load(temperature)
    tl.store(grad_h + k * d + q, pulled, mask=inside)
    gathered = tl.sum(total, axis=0)
    if SECOND:
        gathered += tl.load(grad_y + k * d + q, mask=inside, other=0)
    tl.store(grad_y + k * d + q, gathered, mask=inside)


INTERPRETED = not isinstance(edge_scores, getattr(triton, "JITFunction", object))
"""Whether ``TRITON_INTERPRET=1`` was set when this was imported: then it all runs on the CPU."""

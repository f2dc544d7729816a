"""The Triton backend on its own: its operators, its corner cases, and how it compiles.

On a GPU these run there; elsewhere the kernels are interpreted, a few milliseconds per operation
and program, so graphs are tiny. How whole models agree with the reference: test_parity.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from geof import geometry
from geof.errors import (
    ConfigError,
    DeviceError,
    DtypeError,
    NonFiniteError,
    NumericalWarning,
    ShapeError,
)
from geof.geometry import JitterSchedule, counting_blocks
from geof.kernels import (
    BACKENDS,
    EdgeTerms,
    Neighbourhoods,
    Request,
    StepSpec,
    backends_on,
    dispatch,
    factored,
    lanes,
    resolve_backend,
)
from geof.kernels.dispatch import TritonFinding, find_triton
from geof.testing import assert_same
from tests.graphs import random_sample
from tests.kernels.outcomes import assert_accurate, outcome
from tests.kernels.test_parity import build
from tests.kernels.triton_device import DEVICE, needs_triton, values_and_gradients

ROOT = Path(__file__).parents[2]
CUDA = torch.device("cuda")
SCHEDULE = JitterSchedule()


@pytest.fixture
def ops():
    """Return the operators' module, which cannot run where Triton is not."""
    from geof.kernels import triton_operators

    return triton_operators


@pytest.fixture
def blocks():
    """Return the operators over small matrices, likewise."""
    from geof.kernels import triton_block_operators

    return triton_block_operators


def small_graph(random_state, *, nodes=5, static=True, hub=0) -> Neighbourhoods:
    """Return neighbourhoods with repeats and an isolated node, and a hub of so many edges."""
    draw = random_state(1)
    pairs = torch.randint(0, nodes - 1, (2, 2 * nodes), generator=draw.generator)
    spokes = torch.stack([torch.arange(hub) % (nodes - 1), torch.zeros(hub, dtype=torch.long)])
    edge_index = torch.cat([pairs, pairs[:, :1], spokes], 1)
    return Neighbourhoods.from_edge_index(edge_index, nodes, static_shapes=static)


def moments(module, edges, states, *, second, dtype=torch.float64):
    """Return sums over edges and their gradients, on the CPU."""
    device = torch.device("cpu") if module is factored else DEVICE

    def run(h, y):
        made = module.edge_moments(
            h.to(device), y.to(device), edges.to(device), 4.0, second=second
        )._asdict()
        return {name: value.cpu() for name, value in made.items()}

    return outcome(run, states, dtype=dtype)


def states(random_state, nodes, blocks, m):
    draw = random_state(2)
    return {"h": draw.normal(nodes, blocks, m), "y": draw.normal(nodes, blocks, m)}


@needs_triton
@pytest.mark.parametrize("second", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sums_over_edges_and_their_gradients(ops, random_state, second):
    """Blocks of three: rows and columns beyond them are padding."""
    edges, given = small_graph(random_state, nodes=4), states(random_state, 4, 1, 3)
    assert not edges.active.all()
    ours, wanted = (moments(module, edges, given, second=second) for module in (ops, factored))
    assert_same(ours, wanted, tolerance=1e-13)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "m"), [(20, 4), (5, 16), (1, 32)])
@pytest.mark.parametrize("second", [True, False])
def test_rows_of_several_programs_and_a_hub_of_several_pieces(ops, random_state, blocks, m, second):
    edges = small_graph(random_state, nodes=6, static=True, hub=40)
    given = states(random_state, 6, blocks, m)
    tiles = ops.edge_tiling(blocks * m, m, second=second)
    assert tiles.groups == -(-blocks * m // 64)
    assert max(edges.target.bincount()) > 2 * tiles.edges
    ours, wanted = (moments(module, edges, given, second=second) for module in (ops, factored))
    assert_same(ours, wanted, tolerance=1e-13)


@needs_triton
@pytest.mark.slow
def test_the_same_bits_again(ops, random_state):
    edges, given = small_graph(random_state, hub=20), states(random_state, 5, 2, 4)
    once, again = (moments(ops, edges, given, second=True, dtype=torch.float32) for _ in range(2))
    assert all(torch.equal(value, again[name]) for name, value in once.items())


@needs_triton
def test_no_node_is_no_error(ops, blocks):
    edges = Neighbourhoods.from_edge_index(torch.zeros(2, 0, dtype=torch.long), 0).to(DEVICE)
    h, y = (torch.zeros(0, 2, 3, device=DEVICE, requires_grad=True) for _ in range(2))
    made = ops.edge_moments(h, y, edges, 1.0, second=True)
    made.second.sum().backward()
    assert made.second.shape == (0, 2, 3, 3)
    assert y.grad.shape == y.shape
    coords, second = h.new_zeros(0, 2, 6).requires_grad_(), made.second.detach()
    target, attempt = blocks.feedback_target(second, coords, SCHEDULE)
    assert target.shape == (0, 2, 6)
    assert attempt.shape == (0, 2)
    _, _, target, _ = blocks.pulled_back(coords, y.detach(), second, 1.0, 1e-6, 10.0, 5)
    following, _ = blocks.updated(coords, target, None, 0.5, 0.1, 2.0, -5.0, 5.0)
    following.sum().backward()
    assert coords.grad.shape == (0, 2, 6)


def targets(module, matrix, present, dtype=torch.float64):
    """Return target, attempts and gradients, on the CPU."""
    device = torch.device("cpu") if module is geometry else DEVICE

    def run(matrix, present):
        made = module.feedback_target(matrix.to(device), present.to(device), SCHEDULE)
        return {"target": made.coordinates.cpu(), "attempt": made.attempt.cpu()}

    return outcome(run, {"matrix": matrix, "present": present}, dtype=dtype)


def positive_definite(random_state, *leading, m):
    root = random_state(3).normal(*leading, m, m)
    return root @ root.mT / m + 0.1 * torch.eye(m, dtype=root.dtype)


@needs_triton
@pytest.mark.parametrize(
    "m", [3, *(pytest.param(m, marks=pytest.mark.slow) for m in (1, 2, 4, 8, 16, 32))]
)
def test_targets_and_their_gradients(blocks, random_state, m):
    matrix = positive_definite(random_state, 2, 2, m=m)
    present = random_state(4).normal(2, 2, m * (m + 1) // 2)
    ours, wanted = (targets(module, matrix, present) for module in (blocks, geometry))
    assert_same(ours, wanted, tolerance=1e-12)


@needs_triton
def test_every_way_through_the_jitters(blocks, random_state):
    """First attempt, a retry, a jitter relative to the block, and a block that keeps its own."""
    matrix = positive_definite(random_state, 5, m=2)
    matrix[1] = torch.diag(torch.tensor([1.0, -5e-5]))  # the schedule's third jitter
    matrix[2] = torch.diag(torch.tensor([1e3, -1.0]))  # beyond the schedule
    matrix[3] = torch.tensor([[-1.0, 0.0], [0.0, -1.0]])  # not even its own size
    present = random_state(4).normal(5, 3)
    with warnings.catch_warnings(), counting_blocks() as counts:
        warnings.simplefilter("ignore", NumericalWarning)
        ours = targets(blocks, matrix, present)
        taken = counts.take()
        wanted = targets(geometry, matrix, present)
        assert (taken.rescued, taken.kept) == (counts.rescued, counts.kept) == (1, 1)
    assert ours["attempt"].tolist() == wanted["attempt"].tolist() == [0, 2, 8, 10, 0]
    assert_same(ours, wanted, tolerance=1e-12)


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets the kernels
def test_a_block_whose_row_sum_overflows_is_factored(blocks, random_state):
    """Only a jitter relative to that sum is out of reach then; the first needs none."""
    matrix = positive_definite(random_state, 2, m=2)
    matrix[1] = torch.tensor([[1.7e308, 1e308], [1e308, 1.7e308]], dtype=torch.float64)
    present = random_state(4).normal(2, 3)
    found, _ = blocks._cholesky(matrix.to(DEVICE), 1e-6, 10.0, 5)
    assert torch.allclose(found[1].cpu(), torch.linalg.cholesky(matrix[1]), rtol=1e-12)
    ours, wanted = (
        module.feedback_target(matrix.to(DEVICE), present.to(DEVICE), SCHEDULE)
        for module in (blocks, geometry)
    )
    assert ours.attempt.tolist() == wanted.attempt.tolist() == [0, 0]


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets the kernels
@pytest.mark.parametrize(
    ("place", "value"),
    [((0, 0), float("inf")), ((1, 0), float("nan")), ((1, 1), -float("inf"))],
    ids=str,
)
def test_what_is_not_finite_is_an_error(blocks, random_state, place, value):
    matrix = positive_definite(random_state, 2, m=2).to(DEVICE)
    matrix[1][place] = value
    with pytest.raises(NonFiniteError, match="1 of 2 blocks"):
        blocks.feedback_target(matrix, matrix.new_zeros(2, 3), SCHEDULE)


def pulled(module, given, weights, dtype=torch.float64):
    """Return feedback from moments and its gradients, on the CPU; weights for C's if it has one."""
    device = torch.device("cpu") if module is lanes else DEVICE

    def run(coords, first, second):
        inputs = (value.to(device) for value in (coords, first, second))
        names = "aggregate", "moment", "target", "attempt"
        made = dict(zip(names, module.pulled_back(*inputs, 0.5, 1e-6, 10.0, 5), strict=True))
        kept = {name: value.cpu() for name, value in made.items()}
        return kept if weights else {name: kept[name] for name in ("aggregate", "target")}

    return outcome(run, given, dtype=dtype)


@needs_triton
@pytest.mark.parametrize(
    ("m", "watched"),
    [(3, True), *(pytest.param(m, False, marks=pytest.mark.slow) for m in (1, 2, 4, 8, 16))],
)
def test_feedback_from_moments_and_its_gradients(blocks, random_state, m, watched):
    draw, t = random_state(6), m * (m + 1) // 2
    given = {"coords": 0.3 * draw.normal(3, 2, t), "first": draw.normal(3, 2, m)}
    given["second"] = positive_definite(random_state, 3, 2, m=m)
    ours, wanted = (pulled(module, given, watched) for module in (blocks, lanes))
    assert_same(ours, wanted, tolerance=1e-11)


@needs_triton
def test_a_block_that_keeps_its_coordinates_hands_its_gradient_on(blocks, random_state):
    """And one served by a later jitter goes the usual way."""
    draw = random_state(6)
    given = {"coords": 0.3 * draw.normal(3, 1, 3), "first": draw.normal(3, 1, 2)}
    given["second"] = positive_definite(random_state, 3, 1, m=2)
    given["second"][1] = -1e3 * torch.eye(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        ours, wanted = (pulled(module, given, True) for module in (blocks, lanes))
    assert ours["attempt"].flatten().tolist() == wanted["attempt"].flatten().tolist() == [0, 10, 0]
    assert torch.equal(ours["target"][1], given["coords"][1])
    assert_same(ours, wanted, tolerance=1e-11)


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets the kernels
def test_feedback_that_is_not_finite_is_an_error(blocks, random_state):
    second = positive_definite(random_state, 2, m=2).to(DEVICE)
    second[1, 0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="1 of 2 blocks"):
        blocks.pulled_back(
            second.new_zeros(2, 3), second.new_zeros(2, 2), second, 0.1, 1e-6, 10.0, 5
        )


@needs_triton
@pytest.mark.parametrize(
    ("m", "rank", "mixed"),
    [
        (3, 2, True),
        (2, 0, True),
        pytest.param(4, 3, False, marks=pytest.mark.slow),
        pytest.param(8, 4, True, marks=pytest.mark.slow),
        pytest.param(1, 2, True, marks=pytest.mark.slow),
    ],
)
def test_updates_and_their_gradients(blocks, random_state, m, rank, mixed):
    """Some coordinates end at the bounds of the box, where no gradient passes."""
    draw, t = random_state(7), m * (m + 1) // 2
    given = {"coords": draw.normal(3, 2, t)}
    given |= {"target": draw.normal(3, 2, t)} if mixed else {}
    given |= {"output": 2 * draw.normal(3, 2, (2 * rank + 1) * m)} if rank else {}

    def made(module):
        device = torch.device("cpu") if module is lanes else DEVICE

        def run(coords, target=None, output=None):
            inputs = (v if v is None else v.to(device) for v in (coords, target, output))
            following, inside = module.updated(*inputs, 0.3, 0.5, 0.8, -0.6, 0.7)
            return {"following": following.cpu(), "inside": inside.cpu().long()}

        return outcome(run, given)

    ours, wanted = made(blocks), made(lanes)
    assert not ours["inside"].bool().all()
    assert_same(ours, wanted, tolerance=1e-12)


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets the kernels
def test_an_overflow_of_the_correction_is_not_clipped(blocks):
    """Products of both signs beyond the largest number are a NaN together, as to the others."""
    output = torch.tensor([0.0, 0.0, 1e200, -1e200, 1e200, 1e200, 0.0, 0.0, 0.0, 0.0])
    coords, output = torch.zeros(1, 1, 3), output.view(1, 1, 10)
    coords, output = (value.double().to(DEVICE) for value in (coords, output))
    following, inside = blocks.updated(coords, None, output, 0.5, 0.1, 2.0, -5.0, 5.0)
    assert following[0, 0, 0].isnan()
    assert not inside[0, 0, 0]


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("feedback", ["full", "none"])
def test_float32_is_as_accurate_as_the_reference(feedback):
    def results(name, dtype):
        found = []
        for seed in range(3):
            x, edge_index, u = random_sample(seed, nodes=8, edges=30, dtype=torch.float32)
            model = build(name, 2, 4, seed=seed, temperature=4.0, feedback=feedback).float()
            sample = x.to(dtype), edge_index, u.to(dtype)
            found.append(values_and_gradients(model.to(dtype), *sample))
        return found

    assert_accurate(
        results("triton", torch.float32),
        results("reference", torch.float32),
        results("reference", torch.float64),
    )


@needs_triton
def test_edges_that_carry_something_go_to_torch(random_state, monkeypatch):
    """To the bit, and without a kernel: they would leave the terms out."""
    from geof.kernels import triton_backend

    monkeypatch.setattr(triton_backend, "statistics_by", None)
    draw, edges = random_state(5), small_graph(random_state, static=False)
    bias = torch.where(edges.source == edges.target, 0.0, draw.normal(len(edges.source)))
    edges = edges.carrying(EdgeTerms(bias)).to(DEVICE)
    given = [draw.normal(5, 2, size).to(DEVICE) for size in (4, 4, 10)]
    spec = StepSpec(2.0, "full", True, 0.1, SCHEDULE)
    ours, wanted = (
        backend.statistics(*given, edges, spec)
        for backend in (resolve_backend("triton", 4), BACKENDS["torch"])
    )
    assert all(torch.equal(one, two) for one, two in zip(ours, wanted, strict=True))


@needs_triton
@pytest.mark.slow
def test_operators_are_registered_soundly(ops, blocks, random_state):
    edges, given = small_graph(random_state, nodes=3), states(random_state, 3, 1, 2)
    plan = [part.to(DEVICE) for part in ops.transposed_plan(edges)]
    h, y = (value.to(DEVICE).requires_grad_() for value in given.values())
    # The symbolic tests run the operators again and again; the step's own say as much.
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(
        torch.ops.geof.triton_edge_moments.default,
        (h, y, plan, edges.active.to(DEVICE), 2.0, True),
        test_utils=checks,
    )
    matrix = positive_definite(random_state, 2, m=2).to(DEVICE).requires_grad_()
    schedule = 1e-6, 10.0, 5
    torch.library.opcheck(
        torch.ops.geof.triton_cholesky.default, (matrix, *schedule), test_utils=checks
    )
    coords, first = (matrix.new_zeros(2, size).requires_grad_() for size in (3, 2))
    torch.library.opcheck(
        torch.ops.geof.triton_pulled_back.default,
        (coords, first, matrix, 0.1, *schedule),
        test_utils=checks,
    )
    torch.library.opcheck(
        torch.ops.geof.triton_updated.default,
        (coords, None, matrix.new_ones(2, 6).requires_grad_(), 0.5, 0.1, 2.0, -5.0, 5.0),
        test_utils=checks,
    )


def _wrong(value):
    """Yield a tensor as it must not be: its numbers, its shape, its device."""
    yield value.to(torch.float16 if value.is_floating_point() else torch.int16)
    yield value[..., :-1]
    yield value.unsqueeze(-1)
    yield value.to("meta")


@needs_triton
def test_operators_refuse_tensors_that_do_not_fit(ops, blocks, random_state):
    """Kernels get addresses alone: what does not fit would be read beyond its end."""
    edges, given = small_graph(random_state, nodes=3), states(random_state, 3, 2, 2)
    h, y = given.values()
    plan, weight = list(ops.transposed_plan(edges)), torch.zeros(len(edges.source)).double()
    second, coords = positive_definite(random_state, 3, 2, m=2), h.new_zeros(3, 2, 3)
    output, flags = h.new_zeros(3, 2, 6), torch.zeros(3, 2, 3, dtype=torch.bool)
    calls = [
        (ops._edge_moments, (h, y, plan, edges.active, 1.0, True)),
        (ops._edge_moments_backward, (weight, y, second, h, y, weight, plan, 1.0, True)),
        (blocks._cholesky_adjoint, (second, second)),
        (blocks.pulled_back, (coords, h, second, 0.1, 1e-6, 10.0, 5)),
        (
            blocks._pulled_back_backward,
            (h, second, coords, coords, h, second, coords, flags[..., 0]),
        ),
        (blocks.updated, (coords, coords, output, 0.5, 0.1, 2.0, -5.0, 5.0)),
        (blocks._updated_backward, (coords, flags, output, True, 0.5, 0.1)),
    ]
    for operator, arguments in calls:
        leaves, structure = tree_flatten(arguments)
        for k, leaf in enumerate(leaves):
            for wrong in _wrong(leaf) if isinstance(leaf, torch.Tensor) else ():
                spoilt = [*leaves[:k], wrong, *leaves[k + 1 :]]
                with pytest.raises((DtypeError, DeviceError, ShapeError)):
                    operator(*tree_unflatten(spoilt, structure))


@needs_triton
@pytest.mark.slow
def test_a_compiled_model_is_one_graph():
    x, edge_index, u = random_sample(0, nodes=4, edges=8)
    model = build("triton", 1, 2, steps=1).to(DEVICE)
    sample = [value.to(DEVICE) for value in (x, edge_index, u)]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*sample), model(*sample), rtol=1e-12, atol=1e-12)


class TestChoice:
    def test_auto_takes_it_for_cuda_tensors_alone(self, monkeypatch):
        """Where it serves: torch otherwise, and never for the CPU."""
        served = BACKENDS["torch"]
        monkeypatch.setattr(dispatch, "find_triton", lambda: TritonFinding(served))
        monkeypatch.setattr(dispatch, "_find", lambda name: served if name == "triton" else None)
        assert dispatch._fastest(Request(8, CUDA, torch.float32)) == "triton"
        assert dispatch._fastest(Request(8, CUDA, torch.int64)) == "torch"
        assert dispatch._fastest(Request(8, torch.device("cpu"))) == "torch"

    def test_backends_of_a_device(self, monkeypatch):
        monkeypatch.setattr(dispatch, "_found", [TritonFinding(None)])
        assert list(backends_on(torch.device("cpu"))) == list(BACKENDS)
        assert list(backends_on(CUDA)) == ["reference", "torch"]
        monkeypatch.setattr(dispatch, "_found", [TritonFinding(BACKENDS["torch"])])
        assert list(backends_on(CUDA)) == ["reference", "torch", "triton"]

    def test_a_model_made_beside_a_gpu_has_looked_for_it(self, monkeypatch):
        """Before torch.compile traces a step, which cannot import."""
        monkeypatch.setattr(dispatch, "_found", [])
        resolve_backend("auto", 8)
        assert bool(dispatch._found) == (DEVICE.type == "cuda")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        resolve_backend("auto", 8)
        assert dispatch._found

    def test_without_triton_the_name_is_an_error_and_auto_takes_torch(self, monkeypatch):
        monkeypatch.setattr(dispatch, "_found", [])
        monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"pip install 'geof\[triton\]'.*'torch'"):
            resolve_backend("triton", 8)
        assert resolve_backend("auto", 8, CUDA).name == "torch"

    def test_a_triton_that_cannot_be_imported_is_none(self, monkeypatch):
        monkeypatch.setattr(dispatch, "_found", [])
        monkeypatch.setattr(dispatch, "find_spec", lambda name: True)
        monkeypatch.setitem(sys.modules, "geof.kernels.triton_backend", None)
        assert find_triton().backend is None
        assert "cannot be imported" in find_triton().reason

    @needs_triton
    @pytest.mark.parametrize(
        ("request_", "error", "reason"),
        [
            (Request(33), ConfigError, r"at most 32 \(got 33\)"),
            (Request(8, torch.device("meta")), ConfigError, r"NVIDIA GPUs.*\(got tensors on meta"),
            (Request(8, None, torch.bfloat16), DtypeError, r"float64 \(got torch.bfloat16\)"),
            (Request(8, None, None, "isotropic"), ConfigError, r"statistic 'isotropic'"),
        ],
    )
    def test_it_says_why_it_cannot(self, request_, error, reason):
        with pytest.raises(error, match=f"the triton backend is .*{reason}.*'auto' or 'torch'"):
            resolve_backend("triton", *request_)

    @needs_triton
    def test_old_gpus_and_the_plain_cpu_are_torch_s(self, monkeypatch):
        from geof.kernels import triton_backend

        request = Request(8, CUDA, torch.float32)
        monkeypatch.setattr(torch.version, "hip", None)
        for capability, name in (((7, 5), "torch"), ((8, 0), "triton"), ((12, 0), "triton")):
            monkeypatch.setattr(
                torch.cuda, "get_device_capability", lambda device, found=capability: found
            )
            assert resolve_backend("auto", *request).name == name
        monkeypatch.setattr(triton_backend, "INTERPRETED", False)
        with pytest.raises(ConfigError, match=r"TRITON_INTERPRET=1.*got tensors on cpu"):
            resolve_backend("triton", 8, torch.device("cpu"))

    @pytest.mark.slow
    def test_importing_geof_does_not_import_the_kernels(self):
        code = "import sys, geof.nn; assert 'geof.kernels.triton_kernels' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_kernels_module_can_be_read_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None; from geof.kernels import triton_operators as o;"
        "from geof.kernels.dispatch import find_triton; assert o.edge_tiling(64, 8, second=True)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_compile_for_gpus_that_are_not_here(arch, tmp_path):
    """As docs/gpu.md has it for m = 8: in float32 a thread spills a few words at most."""
    file = tmp_path / "rows.json"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = [str(ROOT / "benchmarks" / "triton_resources.py"), "--arch", str(arch)]
    options = ["--block-sizes", "8", "--dtype", "float32", "--json", str(file)]
    subprocess.run(
        [sys.executable, *script, *options],
        check=True,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
    )
    rows = json.loads(file.read_text())
    assert {row["kernel"] for row in rows} >= {"weighted_moments", "block_cholesky_adjoint"}
    assert all(row["spilled_bytes"] <= 32 and row["registers"] <= 168 for row in rows)

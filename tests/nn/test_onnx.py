"""ONNX: what is written out is what the operators do, and runtimes give the model's numbers."""

from __future__ import annotations

import sys

import pytest
import torch

from geof import GeoF
from geof.errors import ConfigError
from geof.geometry import JitterSchedule
from geof.geometry.cholesky import RELATIVE_JITTERS, feedback_target, stabilised_cholesky
from geof.nn.onnx import (
    export_onnx,
    written_out_factor,
    written_out_solve,
    written_out_stabilised,
)
from tests.nn.test_pyg import BATCH, EDGES, PAIRS, Graphs, Links, Nodes, X

SCHEDULE = JitterSchedule()
VALUES = SCHEDULE.initial, SCHEDULE.growth, SCHEDULE.retries


def blocks(size: int) -> torch.Tensor:
    """Return definite blocks, nearly definite ones and some no jitter of the schedule serves."""
    draw = torch.Generator().manual_seed(size)
    half = torch.randn(30, 2, size, size, generator=draw, dtype=torch.float64)
    made = half @ half.mT + torch.eye(size)
    made[1] = torch.diag_embed(-torch.logspace(1, -8, size, dtype=torch.float64))
    made[2, 0] = -torch.eye(size) * 5e-4
    return made


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_factor_is_the_operators(size):
    definite = blocks(size)[3:]
    assert torch.allclose(written_out_factor(definite), torch.linalg.cholesky(definite))
    upper = definite + torch.triu(torch.randn(size, size), 1)
    assert torch.equal(written_out_factor(upper), written_out_factor(definite))
    found, attempt = written_out_stabilised(definite, *VALUES, False)
    wanted = stabilised_cholesky(definite, SCHEDULE)
    assert torch.allclose(found, wanted.factor)
    assert torch.equal(attempt, wanted.attempt)


@pytest.mark.filterwarnings("ignore::geof.errors.NumericalWarning")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_block_takes_the_jitter_the_operator_takes(size):
    moment = blocks(size)
    found, attempt = written_out_stabilised(moment, *VALUES, True)
    factor, wanted = torch.ops.geof.stabilised_cholesky(moment, *VALUES, True)
    assert torch.equal(attempt, wanted)
    assert torch.allclose(found, factor, rtol=1e-6)
    assert attempt[2, 0] == 3  # 1e-3 is the first jitter above 5e-4
    assert SCHEDULE.retries < attempt[1].max() <= SCHEDULE.retries + len(RELATIVE_JITTERS) + 1
    present = torch.zeros(30, 2, size * (size + 1) // 2, dtype=torch.float64)
    assert torch.equal(feedback_target(moment, present, SCHEDULE).attempt, attempt)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_the_solve_is_the_operators(upper, left, unitriangular):
    matrix = written_out_factor(blocks(4)[3:])
    matrix = matrix.mT if upper else matrix
    right = torch.randn(27, 2, *((4, 3) if left else (3, 4)), dtype=torch.float64)
    how = {"upper": upper, "left": left, "unitriangular": unitriangular}
    wanted = torch.linalg.solve_triangular(matrix, right, **how)
    assert torch.allclose(written_out_solve(matrix, right, **how), wanted)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"pip install 'geof\[onnx\]'"):
        export_onnx(GeoF(5, 16), (X, EDGES))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "third"), [(Nodes, ()), (Links, (PAIRS,)), (Graphs, (BATCH,))])
def test_a_runtime_gives_the_models_numbers_for_any_size(model, third, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    nodes, edges, pairs = (torch.export.Dim(name, min=3) for name in ("nodes", "edges", "pairs"))
    last = {Links: ({1: pairs},), Graphs: ({0: nodes},)}.get(model, ())
    eager = model().eval()
    backend = eager.encoder.backend
    path = tmp_path / "model.onnx"
    export_onnx(eager, (X, EDGES, *third), path, dynamic_shapes=({0: nodes}, {1: edges}, *last))
    assert eager.encoder.backend == backend  # the model stays as it is
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    smaller = (X[:9], EDGES[:, (EDGES < 9).all(0)])
    twice = (X, torch.cat([EDGES, EDGES[:, :5]], dim=1))  # an edge given twice counts once
    rest = tuple(part[:9] if model is Graphs else part for part in third)
    for given in ((X, EDGES, *third), (*smaller, *rest), (*twice, *third)):
        fed = {name: part.numpy() for name, part in zip(names, given, strict=True)}
        found = torch.from_numpy(session.run(None, fed)[0])
        with torch.no_grad():
            assert torch.allclose(found, eager(*given), atol=1e-5)

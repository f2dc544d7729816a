"""The profile: every part is timed, every operator has a group, groups add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from geof.kernels import BACKENDS
from geof.kernels.library import Library
from geof_paper.bench import profile as profiling
from geof_paper.bench.catalogue import PROFILE, WORKLOADS, Entry
from geof_paper.bench.networks import Training
from geof_paper.bench.problems import build_problem
from geof_paper.bench.profile import (
    GROUPS,
    SWITCHED,
    group_of,
    measure_profile,
    profile_shares,
    spent_in,
    time_parts,
)

SHORT = replace(PROFILE, seconds=0.0, least_rounds=2, most_rounds=2)


def step_of(workload: str, backend: str = "auto") -> profiling._Step:
    problem = build_problem(WORKLOADS[workload], batches=1)
    return profiling._Step(Training(Entry("geof", backend), problem))


@pytest.mark.parametrize("workload", ["tiny", "tiny-set"])
def test_both_tables_of_a_workload(workload):
    call, plan = Library.call, Library.plan
    found = measure_profile(WORKLOADS[workload], None, SHORT, say=lambda line: None)
    assert (Library.call, Library.plan) == (call, plan)
    assert [part.name for part in found.parts] == ["gcn", *SWITCHED]
    for part in found.parts:
        assert 0 < part.forward_cpu_ms < part.cpu_ms
        assert part.cpu_ms_quartiles[0] <= part.cpu_ms <= part.cpu_ms_quartiles[1]
        assert part.passes == 2
        assert part.ratio_to_gcn == pytest.approx(part.cpu_ms / found.parts[0].cpu_ms)
    assert {share.group for share in found.shares} == set(GROUPS)
    assert sum(share.share for share in found.shares) == pytest.approx(1)
    assert all(share.self_ms >= 0 for share in found.shares)
    assert found.facts.batches_per_epoch == 1
    assert found.as_json()["parts"][1]["name"] == "geof"


def test_the_groups_of_a_pass_are_the_whole_pass():
    step = step_of("tiny-set")
    with profile(activities=[ProfilerActivity.CPU]) as found, record_function("outer"):
        step.run(step.prepared())
    (outer,) = [event for event in found.events() if event.name == "outer"]
    assert sum(spent_in(outer).values()) == pytest.approx(outer.cpu_time_total / 1e3, rel=1e-3)


@pytest.mark.slow
@pytest.mark.skipif("native" not in BACKENDS, reason="no compiled kernels")
def test_kernels_are_seen_and_preparations_are_not():
    shares = {share.group: share.self_ms for share in profile_shares(step_of("tiny-set"), 2)}
    assert shares["native forward"] > 0 < shares["native backward"]
    plain = {s.group: s.self_ms for s in profile_shares(step_of("tiny-set", "torch"), 2)}
    assert plain["native forward"] == plain["native backward"] == 0
    assert plain["normalisation and element-wise"] > 0


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("geof kernel: evolve", "native forward"),
        ("geof kernel: evolve_backward", "native backward"),
        ("aten::addmm_", "dense products"),
        ("aten::_sparse_addmm", "dense products"),
        ("aten::nll_loss_backward", "loss and readout"),
        ("aten::_log_softmax", "loss and readout"),
        ("aten::scatter_add_", "loss and readout"),
        ("aten::_fused_adam_", "optimiser"),
        ("Optimizer.step#Adam.step", "optimiser"),
        ("aten::empty_strided", "the rest"),
        ("aten::t", "the rest"),
        ("autograd::engine::evaluate_function: MmBackward0", "the rest"),
        ("_WholeStepBackward", "the rest"),
        ("aten::tanh", "normalisation and element-wise"),
        ("aten::native_layer_norm", "normalisation and element-wise"),
        ("aten::index_select", "normalisation and element-wise"),
        ("aten::copy_", "normalisation and element-wise"),
    ],
)
def test_groups_by_name(name, group):
    assert group_of(name) == group


def test_a_switch_changes_what_it_says():
    problem = build_problem(WORKLOADS["tiny"])
    off = Training(Entry("geof", "auto"), problem, **SWITCHED["no controller"])
    off.epoch()
    controller = off.network.module.geof.controller
    assert all(parameter.grad is None for parameter in controller.parameters())
    wide = Training(Entry("geof", "auto"), problem, **SWITCHED["controller 64"])
    assert wide.network.module.geof.controller.hidden.out_features == 64
    assert SWITCHED["blocks of 4"]["blocks"] * 4 == SWITCHED["blocks of 16"]["blocks"] * 16 == 64


def test_parts_take_turns_and_halves_are_told_apart():
    now, order = 0.0, []

    class Stand:
        def __init__(self, name: str, forward: float, whole: float) -> None:
            self.name, self.forward, self.whole = name, forward, whole

        def prepared(self) -> tuple[()]:
            nonlocal now
            now += 100  # not in the pass
            return ()

        def run(self, prepared, between) -> None:
            nonlocal now
            order.append(self.name)
            now += self.forward
            between()
            now += self.whole - self.forward

    steps = {"gcn": Stand("gcn", 0.1, 0.3), "geof": Stand("geof", 0.2, 0.9)}
    parts = time_parts(steps, SHORT, lambda line: None, lambda: now)
    assert order == ["gcn", "geof"] * 2 + ["geof", "gcn"]
    assert [part.cpu_ms for part in parts] == pytest.approx([300, 900])
    assert [part.forward_cpu_ms for part in parts] == pytest.approx([100, 200])
    assert parts[1].ratio_to_gcn == pytest.approx(3)


def test_the_bench_trains_with_the_optimiser_of_geof_train():
    training = Training(Entry("gcn"), build_problem(WORKLOADS["tiny"]))
    assert isinstance(training.optimiser, torch.optim.Adam)
    assert training.optimiser.defaults["fused"] is True

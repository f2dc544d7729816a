"""The guard against running out of memory, and the peak of a process."""

from __future__ import annotations

import pytest
import torch

from geof.machine import memory_bytes
from geof_paper.bench import memory
from geof_paper.bench.catalogue import WORKLOADS
from geof_paper.bench.problems import build_problem


def test_what_fits_at_any_price_is_not_predicted():
    facts = build_problem(WORKLOADS["tiny"]).facts
    ceiling = 1_200 * memory.EDGE_CEILING + 200 * memory.NODE_CEILING
    ceiling += memory.DATA_COPIES * facts.data_bytes
    assert memory.surely_fits(facts, int(ceiling / memory.USABLE) + 10)
    assert not memory.surely_fits(facts, int(ceiling / memory.USABLE) - 10)


def test_a_peak_is_read_off_the_line_through_two_probes():
    # 100 MB of libraries and 18 kB per edge.
    small, large = ((edges, 10**8 + 18_000 * edges) for edges in (16_000, 48_000))
    assert memory.extrapolate(small, large, 500_000) == 10**8 + 18_000 * 500_000
    assert memory.extrapolate((1, 10), (2, 8), 500) == 8  # it never falls


def test_a_run_is_refused_with_both_numbers():
    assert memory.refusal(10 * 10**9, 20 * 10**9) is None
    reason = memory.refusal(19 * 10**9, 20 * 10**9)
    assert "19.0 GB" in reason
    assert "20.0 GB" in reason


def test_available_memory_is_part_of_the_machines():
    assert 0 < memory.available_bytes() <= memory_bytes()


def test_a_container_has_what_its_limit_leaves(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    real = memory.Path
    monkeypatch.setattr(
        memory, "Path", lambda p: tmp_path if str(p) == "/sys/fs/cgroup" else real(p)
    )
    assert memory.available_bytes() == 3_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() > 3_000_000


def test_the_peak_covers_what_was_freed_and_forgets_on_reset():
    if not memory.Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux's /proc")
    memory.release_freed()
    memory.reset_peak()
    before = memory.resident_bytes()
    large = torch.ones(2**25)  # 128 MiB, touched
    del large
    assert memory.peak_bytes() - before > 2**26
    memory.release_freed()  # what the allocator keeps depends on what ran before in this process
    memory.reset_peak()
    assert memory.peak_bytes() - before < 2**26


@pytest.mark.parametrize("holes", [0, 8])
def test_live_memory_is_counted_whatever_the_allocator_kept(holes):
    """A heap with holes in it answers for the first time by growing, for the second from them."""
    if not memory.Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux's /proc")
    with memory.every_byte_counted():
        pass  # from here on glibc keeps what is freed in pieces of up to 32 MiB
    for _ in range(2):
        freed = [torch.ones(2**22) for _ in range(holes)]
        above = [torch.ones(2**8) for _ in range(64)]  # the heap cannot shrink past these
        del freed
        with memory.every_byte_counted():
            kept = [torch.ones(2**18) for _ in range(64)][::2]  # 32 MiB in tensors of 1 MiB
            memory.reset_peak()
            before = memory.resident_bytes()
            large = torch.ones(2**22)
            grown = memory.peak_bytes() - before
        # numpy asks for huge pages: those at both ends may have come with their neighbours.
        assert abs(grown - large.nbytes) <= 2**22, (len(kept), len(above))
        del large, kept

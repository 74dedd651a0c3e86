"""Vectors of a thread: 16 bytes at once from shared memory, and for bandwidth-bound kernels from memory."""

from __future__ import annotations

import re
from collections import Counter
from math import prod

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_config
from ptx.test_convolutions import check, made

DEPTHWISE = "--stag=axb --dtag=axb --dt=bf16 g64mb32ic64ih56oc64oh56kh3ph1"
HALO = 1.65
"""Bytes of the source that groups read, relative to its bytes: neighbours share them in the second-level cache."""


def accesses(line: str, level: str = "sm_80") -> Counter[str]:
    """Return how often each load, store and product stands in the main kernel."""
    text = made(line, "", level).notes["ptx"]
    main = text[text.index(".entry convsmith("):].partition("\n}")[0]
    return Counter(re.findall(r"\s((?:ld|st)\.(?:shared|global)\S+|cp\.async\.c\S+|fma\S+)\s", main))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", ["--stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1", "--matmul 256x128:128x256",
                                  "--dir=BWD_D --stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1"])  # fmt: skip
def test_a_load_of_shared_memory_serves_many_products(line: str) -> None:
    counts = accesses(line)
    loads = {name: n for name, n in counts.items() if name.startswith("ld.shared")}
    assert {*loads} == {"ld.shared.v4.b32"} and counts["fma.rn.f32"] >= 10 * sum(loads.values())
    assert "st.global.v4.b32" in counts and "st.global.b32" not in counts


def test_a_depthwise_kernel_moves_few_bytes_in_vectors() -> None:
    problem, machine = parse_problem(DEPTHWISE), target("sm_80")
    with one_table():
        plan = plan_for(problem, device_config(problem, machine), machine)
    groups = plan.main.nest.groups
    source = prod(problem.tensor("src").layout.shape) * 2
    assert plan.main.shared["src"] * groups <= HALO * source
    counts = accesses(DEPTHWISE)
    stores = {name for name in counts if name.startswith("st.global")}
    assert counts["cp.async.cg.shared.global"] and not any(name.startswith("ld.global") for name in counts)
    assert stores and stores <= {f"st.global.{x}b32" for x in ("", "v2.", "v4.")}


def test_one_operation_makes_an_f32_of_each_half_of_a_word() -> None:
    """A shift for the lower half, a mask for the upper one; no half is moved to a register of its own."""
    words = "--register=g:4,ow:4 --reduce=kh,kw,ic --realise=pad_copy --pack= --group=g:16,ow:4,oh:4,kh:3,kw:3"
    config = f"--target=sm_80 --lane=g {words} --shared=src,wei --pad=wei:8 --vectors=g:4"
    text = made("--stag=axb --dtag=axb --dt=bf16 g16mb1ic16ih4oc16oh4kh3ph1", config, "sm_80").notes["ptx"]
    counts = Counter(re.findall(r"\s(shl\.b32|and\.b32|cvt\.u32\.u16|ld\.shared\S+|fma\S+)\s", text))
    loaded = 2 * counts["ld.shared.v2.b32"]
    assert (counts["fma.rn.f32"], counts["ld.shared.v2.b32"]) == (9 * 4 * 4, 3 * 6 + 9)
    assert counts["shl.b32"] >= loaded <= counts["and.b32"] and not counts["cvt.u32.u16"]


def test_a_depthwise_kernel_is_exact_under_four_schedules() -> None:
    words = "--register=g:8,ow:2 --reduce=kh,kw,ic --realise=pad_copy --group=g:16,ow:4,oh:2,kh:3,kw:3 --shared=src,wei"
    check("--stag=axb --dtag=axb --dt=bf16 g16mb1ic16ih5oc16oh5kh3ph1", f"--lane=g {words} --pad=wei:8 --vectors=g:8",
          "sm_80")


@pytest.mark.parametrize("words", [
    "--vectors=ow:1", "--register=ow:6 --group=ow:6 --vectors=ow:4", "--vectors=xx:2", "--vectors=kw:2",
])  # fmt: skip
def test_illegal_vectors_are_refused(words: str) -> None:
    problem, machine = parse_problem("mb1ic8iw8oc8ow8kw1"), target("sm_80")
    config = Config.parse(f"--target=sm_80 --lane=oc --pack= --realise=mask {words}")
    with pytest.raises(ConfigError, match=r"--vectors=\w+:\d: legal is a divisor of at least 2"), one_table():
        plan_for(problem, config, machine)

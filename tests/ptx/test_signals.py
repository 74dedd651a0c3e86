"""Fences, arrivals and waits of kernels of sm_90a are statements of the IR: without one of them, the interpreter of the
IR raises, and the PTX lacks its instruction.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from devices import DeviceOracle

from convsmith.compiler.cubin import assemble_ptx
from convsmith.diag.errors import InternalError
from convsmith.interp.memory import InterpError
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from ptx.hopper_configs import LAST, LEVEL, forward
from ptx.kernels import kernel_ptx
from ptx.sass import skip_without

LINE = f"{LAST} --dt=bf16 mb1ic16iw9oc8ow9kw3pw1"
WORDS = forward(k=16, slots=2).replace("mb+oh,mb_oh+ow", "mb+ow").replace("mb_oh_ow", "mb_ow").replace("kh,kw", "kw")
CODE = {
    "fence barriers": r"fence\.mbarrier_init", "receive": r"mbarrier\.try_wait", "fence registers": r"wgmma\.fence",
    "commit products": r"wgmma\.commit_group", "wait 1 products": r"wgmma\.wait_group\S*\s+1;",
    "wait 0 products": r"wgmma\.wait_group\S*\s+0;", "release step s - 1": r"mbarrier\.arrive\.(?!expect)",
}  # fmt: skip
"""The statements of a kernel that order what is asynchronous, each with its instruction."""
WAITS = {"receive": 1}
"""Instructions that remain without a statement: the producer waits too."""


def made() -> Plan:
    config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {WORDS}")
    return plan_for(parse_problem(LINE), config, target(LEVEL))


@cache
def text() -> str:
    """Return the text of the kernel after all rewrites."""
    with interning():
        return str(run_steps(made().naive(), made().pipeline)).partition("\npack ")[0] + "\n"


def without(line: str) -> str:
    (here,) = (x for x in text().splitlines(keepends=True) if x.strip() == line)
    return text().replace(here, "")


def interpret(kernel: str) -> None:
    with interning():
        plan = made()
        DeviceOracle(plan, plan.machine).check(parse_kernel(kernel))


def test_kernels_compute_the_same() -> None:
    assert all(f"{line}\n" in text() for line in CODE)
    interpret(text())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", CODE)
def test_a_statement_that_is_left_out_is_missed(line: str) -> None:
    with pytest.raises(InterpError, match=r"fence|received|waited|released|a product reads|adds to"):
        interpret(without(line))


@pytest.mark.parametrize("line", CODE)
def test_a_statement_that_is_left_out_is_no_code(line: str) -> None:
    def count(kernel: str) -> int:
        with interning():
            return len(re.findall(CODE[line], kernel_ptx(parse_kernel(kernel), target(LEVEL))))

    assert (count(text()), count(without(line))) == (1 + WAITS.get(line, 0), WAITS.get(line, 0))


def test_a_fence_of_shared_memory_is_code() -> None:
    """It orders the stores of a thread before what reads them through another path, and the consumers."""
    here = next(x for x in text().splitlines(keepends=True) if x.strip() == "fence registers")
    fenced = text().replace(here, here + here.replace("registers", "shared"))
    with interning():
        ptx = kernel_ptx(parse_kernel(fenced), target(LEVEL))
    assert re.search(r"fence\.proxy\.async\.shared::cta;\s+bar(rier)?\.(cta\.)?sync\s+1, 128;", ptx)
    skip_without(LEVEL)
    assert not assemble_ptx(ptx, LEVEL).warnings


def test_the_assembler_misses_a_fence_of_registers() -> None:
    """It says so, and adds one; of the other statements it knows nothing."""
    skip_without(LEVEL)
    with interning():
        whole, bare = (kernel_ptx(parse_kernel(x), target(LEVEL)) for x in (text(), without("fence registers")))
    assert not assemble_ptx(whole, LEVEL).warnings
    assert "C7519" in "".join(assemble_ptx(bare, LEVEL).warnings)


def test_code_needs_the_signals() -> None:
    with interning(), pytest.raises(InternalError, match="0 signalled loops; legal is one"):
        kernel_ptx(parse_kernel(text().replace("#signalled", "#pipelined")), target(LEVEL))

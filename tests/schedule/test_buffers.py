"""The private buffers that a plan states are those of its kernel, once rewritten."""

from __future__ import annotations

import pytest

from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc
from convsmith.ir.walk import statements_of
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

TARGETS = {t.name: t for t in LEVELS}
LAYER = "mb1ic8ih6oc32oh6kh3ph1"
FILL = "for an iteration of the loop that fills it"

CASES = {
    "nothing packed": (LAYER, "--target=avx512 --lane=oc --register=ow:3,oc:32 --pack=", ()),
    "weights": (LAYER, "--target=avx512 --lane=oc --register=ow:3,oc:32", ("until the operand changes",)),
    "padded copy": (
        LAYER, "--target=avx512 --lane=oc --register=ow:3,oc:32 --realise=pad_copy",
        ("until the operand changes", FILL),
    ),
    "dot products": (
        f"--dt=bf16 {LAYER}", "--target=avx512_bf16 --lane=oc --register=ow:3,oc:32 --realise=pad_copy "
        "--instruction=vdpbf16ps_512 --k_step=ic:2", ("until the operand changes", FILL),
    ),
    "copy that converts": (
        f"--dt=bf16 {LAYER}", "--target=avx512_bf16 --lane=oc --register=ow:3,oc:32 --realise=pad_copy",
        ("until the operand changes", FILL),
    ),
    "both operands": (
        "--matmul 8x8:8x32", "--target=avx512 --lane=n --register=m:4,n:32 --pack=src,wei",
        ("for a call", "until the operand changes"),
    ),
    "packed nearby": (
        "--matmul 8x8:8x32", "--target=avx512 --lane=n --register=m:4,n:16 --order=n,m --pack_at=src+m",
        ("until the operand changes", FILL),
    ),
    "packed at a cache tile": (
        "--matmul 8x8:8x32",
        "--target=avx512 --lane=n --register=n:16 --order=n,m --cache=m:4 --pack= --pack_at=src+m:4",
        (FILL,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_private_buffers(name: str) -> None:
    line, words, lifetimes = CASES[name]
    config = Config.parse(words)
    with interning():
        made = plan(parse_problem(line), config, TARGETS[config.target])
        planned = made.main.buffers
        low = lower(made)
        inside = {s.buffer.name: s.buffer for s in statements_of(low.kernel.body) if isinstance(s, Alloc)}
        operands = {b.name: b for b in low.kernel.params}
        assert tuple(b.lifetime for b in planned) == lifetimes
        for buffer in planned:
            built = (inside if buffer.scope == "cache" else operands)[buffer.name]
            assert (buffer.scope, buffer.dtype) == (built.scope, built.dtype.name)
            assert buffer.elements in (0, built.size)
            assert set(buffer.order) <= {x.name for x in made.main.nest.loops}
    assert not [b for b in inside if inside[b].scope == "cache" and b not in {x.name for x in planned}]

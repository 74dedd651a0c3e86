"""A strided gradient multiplies what meets, and nothing else: no zeros are put between the elements."""

from __future__ import annotations

from collections import Counter

import pytest
from oracles import Oracle, small_target
from problems import exact

from convsmith.interp.interp import _Machine
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Invoke, Store
from convsmith.ir.value import Binary, Fma
from convsmith.ir.walk import loops_of, walk
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

CASES = {
    "stride": ("--dir=BWD_D mb1ic4iw9oc3ow5kw3sw2pw1", "--lane=ic --register=ic:4,iw:2"),
    "stride-beyond-the-taps": ("--dir=BWD_D mb1ic4iw11oc2ow4kw2sw3", "--lane=ic --register=ic:4,iw:3"),
    "two-axes": (
        "--dir=BWD_D mb1ic4ih5iw6oc2oh3ow3kh3kw3sh2sw2ph1pw1",
        "--lane=ic --register=ic:4,iw:2 --reduce=kh,kw,oc",
    ),
    "dilation": ("--dir=BWD_D mb1ic4iw11oc3ow4kw3sw2dw2pw1", "--lane=ic --register=ic:4"),
    "deconvolution": ("--deconv mb2ic3iw4oc4ow8kw4sw2pw1", "--lane=oc --register=oc:4,ow:2"),
    "groups": ("--dir=BWD_D g2mb1ic8iw7oc4ow4kw3sw2pw1", "--lane=ic --register=ic:4,iw:2 --threads=2"),
    "not-strided": ("--dir=BWD_D mb1ic4iw6oc3ow6kw3pw1", "--lane=ic --register=ic:4,iw:2"),
    "phases": ("--deconv mb1ic3iw5oc1ow24kw8sw4", ""),
    "phases-of-channels": ("--deconv --stag=axb --dtag=axb mb1ic3ih3iw3oc2oh6ow12kh2kw4sh2sw4", ""),
    "phases-of-many": ("--dir=BWD_D mb1ic1ih6iw8oc9oh3ow2kh2kw4sh2sw4", ""),
    "phases-moved-by-pads": ("--deconv mb1ic5iw5oc1ow32kw16sw8pw4", ""),
    "phases-with-fewer-taps": ("--dir=BWD_D mb1ic1iw36oc5ow4kw12sw8", ""),
    "phases-without-taps": ("--dir=BWD_D mb2ic1iw20oc5ow3kw4sw8", ""),
    "phases-of-one-pixel": ("--dir=BWD_D mb1ic1ih5iw8oc3oh3ow1kh3kw8", ""),
    "taps-of-one-channel": ("--dir=BWD_W mb1ic1iw28oc3ow6kw8sw4", ""),
}
"""A problem, and a config without its level, or nothing for the default."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_that_meet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line, words = CASES[name]
    problem, target = parse_problem(line), small_target()
    lanes = {row.name: row.lanes * row.terms for row in target.instructions}
    counted: Counter[str] = Counter()
    invoke = _Machine._invoke

    def count(self: _Machine, s: Invoke) -> None:
        counted[s.instruction] += 1
        invoke(self, s)

    with interning():
        oracle = Oracle(problem, target)
        config = Config.parse(f"--target=generic {words}") if words else default_config(exact(problem), target)
        made = plan(problem, config, target)
        st, kernel = made.program.main, run_steps(made.program.naive(), made.pipeline)
        monkeypatch.setattr(_Machine, "_invoke", count)
        oracle.check(kernel)
        bodies = (kernel.body, *(f.body for f in kernel.functions))
        stored = [v for body in bodies for s in walk(body) if isinstance(s, Store) for v in walk(s.value)]
        loops = {loop.var.name for body in bodies for loop in loops_of(body)}
    assert not loops & {f"{d.name}.r" for d in st.of("k")}, "a loop looks for the taps that meet a pixel"
    assert not any(isinstance(v, Fma) or (isinstance(v, Binary) and v.op == "mul") for v in stored)
    assert sum(lanes[name] * n for name, n in counted.items()) * 2 == problem.flops_real

"""A store whose mask is false is dropped: by the naive nest, after every rewrite, and by compiled code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from guarded import Array, Compiled, canary, check_result
from oracles import Oracle, small_target
from problems import with_instruction

from convsmith.arith.simplify import simplify
from convsmith.compiler import driver
from convsmith.ir.index import Cond, Index, Var, conj, eq, mod
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.passes.manager import run_steps
from convsmith.problem import Problem, parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import kernel_plan, scheduled
from convsmith.statement.naive import naive
from convsmith.statement.parts import sum_of_parts
from convsmith.statement.statement import Statement

KINDS = {
    "channels": ("mb1ic2ih2iw4oc7kh1kw3pw1", "--lane=oc --register=oc:4,ow:3 --reduce=kh,kw,ic"),
    "pixels": ("mb2ic2iw7oc3kw1", "--lane=ow --register=ow:4,oc:2"),
    "threads": ("--stag=axb --dtag=axb mb2ic2iw5oc7kw3pw1", "--lane=oc --register=oc:4,ow:3 --threads=2"),
    "one-function": ("mb1ic2iw5oc7kw3pw1", "--lane=oc --register=oc:4,ow:2 --outline=no --realise=mask"),
    "drained": ("--attr-post-ops=linear:2:1 mb1ic2iw5oc7kw1", "--lane=oc --register=oc:4,ow:2 --spill_sums=yes"),
    "blocks": ("mb1ic5iw4oc9kw1", "--lane=oc --register=oc:4,ow:2 --cache=oc:8,ic:2"),
    "lanes-along-input": ("mb1ic6iw4oc4kw1", "--lane=ic --register=oc:2,ow:3 --reduce=kw,ic"),
    "groups": ("g6mb1ic6iw5oc6kw3pw1", "--lane=g --register=g:4,ow:2 --reduce=kw,ic"),
    "fused": ("mb1ic3ih2iw5oc6kh1kw1", "--lane=oc --fuse=oh+ow --register=oc:4,oh_ow:6"),
    "sum": ("--attr-post-ops=sum:0.5 --dtag=aBc4b mb1ic2iw5oc6kw1", "--lane=oc --register=oc:4,ow:2"),
    "bytes": ("--dt=u8:s8:u8 --attr-post-ops=relu mb1ic5iw5oc6kw1", "--lane=oc --register=oc:4,ow:2"),
    "held": (
        "--stag=axb --dtag=axb g6mb1ic6iw5oc6kw3pw1",
        "--lane=g --register=g:4,ow:2,kw:3 --order=mb,g,ow --resident=wei",
    ),
    "backward": ("--dir=BWD_D mb1ic5iw7oc2ow4kw3sw2pw1", "--lane=ic --register=ic:4,iw:2"),
    "weights": ("--dir=BWD_W mb2ic3iw4oc6kw2", "--lane=oc --register=oc:4,ic:2"),
    "product": ("--matmul 2x5x3:2x3x6", "--lane=n --register=n:4,m:2"),
    "parts": ("--dir=FWD_B mb2ic6iw5oc7kw1", "--lane=oc --register=oc:4,ow:2 --split=ic:3"),
    "fragments": ("--matmul --dt=u8:s8:s32 7x16:16x9", "--lane=n --register=n:12,m:3 --k_step=k:8 --threads=2"),
}  # fmt: skip
FORMS = ("first", "from-second", "every-other", "none")


def kept(form: str, x: Index, size: int) -> Cond:
    """The condition on a coordinate."""
    if form == "every-other":
        return eq(mod(x, 2), 0)
    return {"first": x < size - 1, "from-second": x >= 1, "none": x < 0}[form]


def places(form: str, size: int) -> Array:
    """The coordinates for which the condition holds."""
    x = np.arange(size)
    return {"first": x < size - 1, "from-second": x >= 1, "every-other": x % 2 == 0, "none": x < 0}[form]


def dropping(st: Statement, forms: dict[int, str]) -> Statement:
    """The statement with masks on some coordinates of its result."""
    if st.whole is not st:
        return replace(st, part_of=dropping(st.whole, forms))
    ranges = {Var(d.name): (0, d.size - 1) for d in st.dims}
    masks = list(st.c.masks)
    for dim, form in forms.items():
        masks[dim] = conj([simplify(kept(form, st.c.coords[dim], st.c.layout.shape[dim]), ranges)])
    return replace(st, c=replace(st.c, masks=tuple(masks)))


def oracle(problem: Problem, target: Machine, forms: dict[int, str]) -> Oracle:
    """One that expects what the result's array held before where the store is dropped."""
    made, (result, *_) = Oracle(problem, target), problem.outputs
    whole = made.truth[result.name]
    old = made.arrays[result.name] if result.role == "inout" else np.full(whole.shape, canary(whole.dtype))
    there = np.ones(whole.shape, bool)
    for dim, form in forms.items():
        there &= places(form, whole.shape[dim]).reshape([-1 if n == dim else 1 for n in range(whole.ndim)])
    assert not there.all()
    made.truth[result.name] = np.where(there, whole, old).astype(whole.dtype)
    return made


def cases() -> list[tuple[str, dict[int, str]]]:
    """Each kind with conditions on channels, on the last coordinate, and on both, the forms in turn."""
    found = []
    for turn, (kind, (line, _)) in enumerate(KINDS.items()):
        last = len(parse_problem(line).outputs[0].shape) - 1
        one, two = (FORMS[(turn + n) % len(FORMS)] for n in (0, 1))
        found += [(kind, {1: one}), (kind, {last: two}), (kind, {1: FORMS[turn % 3], last: "first"})]
    return found


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("kind", "forms"), cases())
def test_dropped_by_every_rewrite(kind: str, forms: dict[int, str]) -> None:
    line, words = KINDS[kind]
    problem, target = parse_problem(line), small_target()
    config = with_instruction(Config.parse(f"--target=generic {words}"), problem, target)
    with interning():
        st = dropping(scheduled(problem, config, target), forms)
        made = oracle(problem, target, forms)
        made.finish = None if st.whole is st else naive(problem, sum_of_parts(st))
        run_steps(naive(problem, st), kernel_plan(st, config, target).pipeline, [made])


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "forms"), [c for c in cases() if c[0] != "fragments"][::2])
def test_dropped_by_compiled_code(kind: str, forms: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    line, words = KINDS[kind]
    problem, target = parse_problem(line), host_targets()[-1]
    monkeypatch.setattr("convsmith.schedule.plan.scheduled", lambda *args: dropping(scheduled(*args), forms))
    artifact = driver.build_artifact(problem, Config.parse(f"--target={target.name} {words}"), target)
    made = oracle(problem, target, forms)
    check_result(problem, Compiled(problem, artifact)(made.arrays), made.truth)

"""A plan says what the rewrites then make: loops, packed operands, registers; and it prints."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import prod

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.manager import run_steps
from convsmith.passes.stream import stream
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import LEVELS as LOOP_LEVELS
from convsmith.schedule.plan import Plan, plan
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in LEVELS}

LINES = (
    "--stag=axb --dtag=axb mb2ic32ih14oc48oh14kh3ph1",
    "mb1ic3ih30oc20oh15kh3sh2ph1",
    "g4mb1ic16ih9oc24oh9kh3ph1",
    "g64mb1ic64ih9oc64oh9kh3ph1",
    "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic20ih9oc33oh9kh3ph1",
    "--dt=s8:s8:u8 --attr-zero-points=src:common:3 --stag=axb mb1ic20ih9oc33oh9kh3ph1",
    "--dt=bf16 --stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1",
    "--dir=BWD_D --stag=axb --dtag=axb mb1ic40ih9oc16oh9kh3ph1",
    "--dir=BWD_D mb1ic40ih9oc16oh5kh3ph1sh2",
    "--dir=BWD_WB --stag=axb --dtag=axb mb3ic7ih9oc20oh9kh3ph1",
    "--matmul 3x30x70:3x70x50",
    "--matmul --dt=u8:s8:s32 30x70:70x50",
)


def plans(threads: int = 1) -> list[Plan]:
    """The default plans of all lines for three levels; their nodes are those of the present table."""
    found = []
    for line in LINES:
        for isa in ("avx2", "avx512_bf16", "avx512_amx"):
            problem, target = parse_problem(line).canonical(), TARGETS[isa]
            found.append(plan(problem, default_config(problem, target, threads), target))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 4])
def test_packed_operands_have_the_elements_of_the_plan(threads: int) -> None:
    with interning():
        assert sum(map(check_packed, plans(threads))) >= 20


def check_packed(made: Plan) -> int:
    """Compare the plan's packed operands of known size with those that the kernel packs; return their number."""
    packs = run_steps(made.naive(), made.pipeline).packs
    written = {b.name: b for pack in packs for b in pack.written}
    planned = [b for b in made.main.buffers if b.elements]
    for b in planned:
        packed = written[b.name]
        assert (prod(packed.shape), packed.dtype.name) == (b.elements, b.dtype), str(made)
    return len(planned)


@pytest.mark.parametrize("words", ["vpmaddwd_256_u8 --k_step=ic:2", "vpmaddubsw_256 --k_step=ic:4"])
def test_packing_converts_weights_alone_to_words(words: str) -> None:
    problem = parse_problem("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic32ih8oc32oh8kh1").canonical()
    text = f"--target=avx2 --lane=oc --register=ow:4,oc:16 --reduce=kh,kw,ic --pack=src,wei --instruction={words}"
    with interning():
        assert check_packed(plan(problem, Config.parse(text), TARGETS["avx2"])) == 2


def test_loops_are_values() -> None:
    with interning():
        for made in plans():
            for kernel in made.kernels:
                dims = {d.name: d.kind for d in kernel.statement.dims}
                for loop in kernel.nest.loops:
                    assert loop.level in LOOP_LEVELS and loop.extent >= 1, loop
                    roles = {dims.get(dim, "n") for dim in loop.dims}  # phases are columns
                    assert loop.role in roles or roles == {"batch", "m"}, loop


def test_registers_fit_and_are_those_of_the_file_that_the_instruction_uses() -> None:
    with interning():
        files = set()
        for made in plans():
            found = made.main.registers
            assert 0 < found.needed <= found.available
            files.add((found.available, bool(made.main.nest.rows)))
        assert {(16, False), (32, False), (8, True)} <= files


def test_a_plan_prints_and_does_not_change() -> None:
    problem = parse_problem("--dir=BWD_WB --stag=axb --dtag=axb mb4ic32ih14oc48oh14kh3ph1").canonical()
    with interning():
        made = plan(problem, default_config(problem, TARGETS["avx512"], 4), TARGETS["avx512"])
        text = str(made)
        with pytest.raises(FrozenInstanceError):
            made.config = Config("avx512", "oc")  # type: ignore[misc]
    lines = [line.partition(" ")[0] for line in text.splitlines()]
    assert lines[0] == "config" and lines.count("statement") == len(made.kernels) == 2
    assert lines.count("pipeline") == lines.count("registers") == lines.count("instruction") == 2
    assert "bias, in each call, last: diff_bia from the sums of diff_dst over mb 4, oh 14, ow 14 in f32" in text


@pytest.mark.parametrize(
    ("cache", "loops"),
    [("n:64,n:32", {"n.b": 2, "n.b2": 2}), ("n:64,k:40,n:32", {"n.b": 2, "k.b": 2, "n.b2": 2}), ("m:12,n:64", {})],
)
def test_cache_tiles_within_cache_tiles(cache: str, loops: dict[str, int]) -> None:
    problem = parse_problem("--matmul 30x80:80x120").canonical()
    config = Config.parse(f"--target=avx2 --lane=n --register=m:4,n:16 --cache={cache}")
    with interning():
        nest = plan(problem, config, TARGETS["avx2"]).main.nest
    extents = {loop.name: loop.extent for loop in nest.loops}
    assert {name: extents[name] for name in loops} == loops


def test_vectors_of_packed_weights_alone_can_be_streamed() -> None:
    problem, target = parse_problem("--stag=axb --dtag=axb mb1ic64ih9oc48oh9kh1").canonical(), TARGETS["avx512"]
    config = Config.parse("--target=avx512 --lane=oc --register=ow:9,oc:16 --reduce=ic --pack=wei --stream=wei")
    with interning():
        (step,) = (s for s in plan(problem, config, target).pipeline if s.run is stream)
        assert [name for name, _ in step.args[0]] == ["wei_p"]
        with pytest.raises(ConfigError, match="--stream=wei: legal are") as caught:
            plan(problem, config.changed(pack=()), target)
    assert caught.value.code == "stream"

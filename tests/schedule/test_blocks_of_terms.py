"""Loops over terms follow the blocks of the source's layout, so that no step computes a quotient by their length."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.ir.index import FloorDiv, Mod
from convsmith.ir.intern import interning
from convsmith.ir.stmt import For, Invoke, Kernel
from convsmith.ir.walk import loops_of, statements_of, variables_of, walk
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.statement.naive import naive

LEVEL = {t.name: t for t in LEVELS}
BLOCKS = "--stag=aBx16b --dtag=aBx16b"
WORDS = "--target=avx2 --lane=oc --register=ow:3,oc:16 --reduce=kh,kw,ic"
BACKWARD = "--target=avx2 --lane=ic --register=iw:3,ic:16 --reduce=kh,kw,oc"


def lowered(line: str, words: str) -> Kernel:
    """The main kernel of ``line`` after its last rewrite."""
    problem = parse_problem(line)
    (k,) = (x for x in plan_for(problem, Config.parse(words), LEVEL["avx2"]).kernels if x.statement.when == "main")
    kernel = naive(problem, k.statement)
    for step in k.pipeline:
        kernel = step(kernel)
    return kernel


def loops_of_terms(kernel: Kernel) -> list[For]:
    """The first tile's loops over channels around multiply-adds, outermost first."""
    body = kernel.functions[0].body
    loops = (x for x in loops_of(body) if any(isinstance(s, Invoke) for s in statements_of(x)))
    return [x for x in loops if x.var.name.startswith(("ic", "oc"))]


@pytest.mark.sampled(2, "line")
@pytest.mark.parametrize(
    ("line", "words", "extents"),
    [
        (f"{BLOCKS} mb1ic64ih3iw6oc16oh3ow6kh1kw1ph0pw0", WORDS, [4, 16]),
        (f"{BLOCKS} mb1ic64ih3iw6oc16oh3ow6kh3kw3ph1pw1", WORDS, [4, 16]),
        (f"{BLOCKS} mb1ic64ih3iw6oc16oh3ow6kh3kw3ph1pw1", f"{WORDS} --realise=indirection",
         [4, 16]),
        (f"{BLOCKS} mb1ic40ih3iw6oc16oh3ow6kh1kw1ph0pw0", WORDS, [3]),  # the last block is half full
        ("--stag=aBx8b --dtag=aBx8b mb1ic64ih3iw6oc16oh3ow6kh1kw1ph0pw0", WORDS, [8, 8]),
        (f"{BLOCKS} mb1ic64ih3iw6oc16oh3ow6kh1kw1ph0pw0", f"{WORDS} --cache=ic:32", [2, 16]),
        (f"{BLOCKS} g2mb1ic64ih3iw6oc32oh3ow6kh1kw1ph0pw0", WORDS, [2, 16]),
        (f"--dir=BWD_D {BLOCKS} mb1ic16ih3iw6oc64oh3ow6kh1kw1ph0pw0", BACKWARD, [4, 16]),
    ],
)  # fmt: skip
def test_a_loop_over_blocks_and_one_within_a_block(line: str, words: str, extents: list[int]) -> None:
    with interning():
        loops = loops_of_terms(lowered(line, words))
        found = dict.fromkeys((x.var, x.hi) for x in loops)
        assert len(found) == 2
        assert [hi.const for _, hi in found if hi.is_const] == extents
        for x in loops:
            divided = (e for e in walk(x.body) if isinstance(e, FloorDiv | Mod))
            assert not any(x.var in variables_of(e) for e in divided)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--stag=axb --dtag=axb mb1ic64ih3iw6oc16oh3ow6kh1kw1ph0pw0", WORDS),
        (f"{BLOCKS} mb1ic16ih3iw6oc16oh3ow6kh1kw1ph0pw0", WORDS),  # there is one block
        ("--stag=aBx2b --dtag=aBx2b mb1ic64ih3iw6oc16oh3ow6kh1kw1ph0pw0", WORDS),  # blocks are short
        (f"{BLOCKS} mb1ic64ih3iw6oc16oh3ow6kh1kw1ph0pw0", f"{WORDS} --pack=src,wei"),
        (f"{BLOCKS} mb1ic64ih3iw6oc16oh3ow6kh3kw3ph1pw1", f"{WORDS} --realise=pad_copy"),
        (f"{BLOCKS} mb1ic72ih3iw6oc16oh3ow6kh1kw1ph0pw0", f"{WORDS} --cache=ic:36"),  # tiles begin within blocks
        (f"{BLOCKS} mb1ic72ih3iw6oc16oh3ow6kh1kw1ph0pw0", f"{WORDS} --split=ic:2"),  # and so do parts
        (f"{BLOCKS} g2mb1ic72ih3iw6oc32oh3ow6kh1kw1ph0pw0", WORDS),  # and groups
    ],
)
def test_other_loops_are_whole(line: str, words: str) -> None:
    with interning():
        assert len(loops_of_terms(lowered(line, words))) == 1


@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ("", "mb2ic40ih5iw6oc24oh5ow6kh3kw3ph1pw1"),
        ("", "g2mb1ic96ih5iw6oc32oh5ow6kh1kw1ph0pw0"),
        ("--dir=BWD_D", "mb2ic24ih5iw6oc40oh3ow3kh3kw3sh2sw2ph1pw1"),
        ("--deconv", "mb2ic40ih3iw3oc24oh6ow6kh2kw2sh2sw2ph0pw0"),
        ("--dt=u8:s8:s32", "mb2ic72ih5iw6oc24oh5ow6kh3kw3ph1pw1"),
        ("--dt=bf16", "mb2ic72ih5iw6oc24oh5ow6kh1kw1ph0pw0"),
    ],
)
def test_default_kernels_of_blocks_are_right(options: str, sizes: str, level: str) -> None:
    try:
        verdict = cs.compile(f"{options} {BLOCKS} {sizes}", target=level, threads=1).verify()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize("words", ["--fetch=src", "--fetch=wei", "--stream=wei", "--cache=ic:32"])
def test_prefetches_stand_beside_loops_over_blocks(words: str) -> None:
    line = f"{BLOCKS} mb1ic64ih9iw9oc48oh9ow9kh1kw1ph0pw0"
    verdict = cs.compile(line, target="avx2", config=f"{WORDS} {words}", threads=1).verify()
    assert verdict.ok, verdict.detail

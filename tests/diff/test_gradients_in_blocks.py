"""Gradients of weights on vectors of pairs: both factors of a block of pixels are packed before they are read. On
vectors of single elements, the factor that supplies the vectors is.
"""

from __future__ import annotations

import pytest
from guarded import Compiled, check_result, expected

from convsmith.compiler.driver import build_artifact
from convsmith.ir.instruction import Instruction
from convsmith.ir.intern import interning
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.problem import Problem
from convsmith.schedule import copy_nest
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan


def pairs(level: Machine) -> Instruction | None:
    """Return the instruction of a level that adds up pairs of products of bf16, if it has one."""
    return next((row for row in level.vector_rows("bf16", "bf16", "f32") if row.terms == 2), None)


LEVELS = [t for t in host_targets() if t.name == "avx512_bf16" and pairs(t) is not None]
LAST, FIRST = (f"--dir=BWD_W --dt=bf16 --stag={t} --dtag={t}" for t in ("axb", "abx"))
CASES = [
    (f"{FIRST} mb2ic19iw90oc35ow90kw5pw8dw3", "--lane=oc --order=kw,oc,ic --reduce=mb,ow --cache=ow:34", "ow"),
    (f"{FIRST} mb2ic19ih9iw41oc35oh9ow41kh3kw3ph1pw1",
     "--lane=oc --order=kw,oc,ic,kh --reduce=mb,oh,ow --cache=oh:3", "oh"),
    (f"{FIRST} mb3ic35ih5iw34oc19oh3ow32kh3kw3ph0pw0",
     "--lane=ic --order=kw,oc,ic,kh --reduce=mb,oh,ow --cache=mb:1", "mb"),
    (f"{LAST} --wtag=axb mb2ic35ih9iw41oc19oh9ow41kh3kw3ph1pw1",
     "--lane=ic --order=kw,oc,ic,kh --reduce=mb,oh,ow --cache=oh:3", "oh"),
    (f"{FIRST} g2mb2ic8iw90oc34ow90kw7pw3", "--lane=oc --order=kw,g,oc,ic --reduce=mb,ow --cache=ow:34", "g"),
]  # fmt: skip


def config_of(words: str, place: str, level: Machine) -> Config:
    row, lane = pairs(level), words.split()[0].removeprefix("--lane=")
    assert row is not None
    other = "ic" if lane == "oc" else "oc"
    return Config.parse(
        f"--target={level.name} {words} --register={other}:6,{lane}:{2 * row.lanes} --instruction={row.name} "
        f"--k_step=ow:2 --realise=pad_copy --pack_at=src+{place},diff_dst+{place}"
    )


def text_of_exact(problem: Problem, config: Config, level: Machine) -> str:
    """Compare the kernel's results with the reference, and return its text."""
    arrays = random_arrays(problem)
    compiled = Compiled(problem, build_artifact(problem, config, level))
    check_result(problem, compiled(arrays), expected(problem, arrays))
    with interning():
        made = plan(problem.canonical(), config, level)
        return str(run_steps(made.program.naive(), made.pipeline))


@pytest.mark.sampled(2, "level", "line")
@pytest.mark.parametrize("level", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize(("line", "words", "place"), CASES)
def test_blocks_of_both_factors(
    line: str, words: str, place: str, level: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of odd length and borders leave pairs of which one element is absent; the copies have zeros there, and all
    products are made by the instruction.
    """
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    problem, config = parse_problem(line), config_of(words, place, level)
    text = text_of_exact(problem, config, level)
    assert config.instruction in text and any(row.name in text for row in level.transpositions)
    assert "* cast(f32" not in text


PARTS = [
    ("mb1ic4ih20iw40oc19oh20ow40kh3kw3ph1pw1", "--split=oh:2 --cache=part:1,oh:5", 7 * 20 * 3 * 6 * 2),
    ("mb2ic3ih22iw41oc19oh12ow22kh3kw5sh2sw2ph2pw3", "--split=mb:2 --cache=part:1,oh:4", 9 * 11 * 6 * 3 * 2),
]
"""Problems with parts of the pixels for two threads, and the elements of the packed source of a block, whose rows taps
share.
"""


@pytest.mark.parametrize("level", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize(("line", "words", "elements"), PARTS)
def test_threads_pack_blocks_of_their_own_parts(
    line: str, words: str, elements: int, level: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread packs both factors of a block of its own pixels."""
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    row = pairs(level)
    assert row is not None
    problem = parse_problem(f"{LAST} --wtag=axb {line}")
    config = Config.parse(
        f"--target={level.name} --lane=oc --register=kw:3,ic:3,oc:{row.lanes} --order=part,kw,oc,ic,kh "
        f"--reduce=mb,oh,ow --instruction={row.name} --k_step=ow:2 {words} --realise=pad_copy --pack= "
        "--pack_at=src+oh,diff_dst+oh --threads=2"
    )
    text = text_of_exact(problem, config, level)
    _, inside = text.split("#parallel")
    assert f"alloc src_n: bf16[{elements}]" in inside


@pytest.mark.parametrize("level", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize("words", [
    "--fuse=oh+ow --reduce=mb,oh_ow --k_step=oh_ow:2 --split=mb:2 --cache=part:1,mb:1,oh_ow:38",
    "--reduce=mb,oh,ow --k_step=ow:2 --split=oh:2 --cache=part:1,oh:3",
])  # fmt: skip
def test_threads_pack_blocks_of_pointwise_weights(words: str, level: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of a part consists of pixels of an image, or of rows, of which the last block has fewer."""
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    row = pairs(level)
    assert row is not None
    problem = parse_problem(f"{LAST} --wtag=axb mb4ic20ih10iw9oc19oh10ow9kh1kw1ph0pw0")
    place = words.rsplit(",", 1)[1].split(":")[0]
    config = Config.parse(
        f"--target={level.name} --lane=oc --register=ic:6,oc:{row.lanes} --order=part,kw,oc,ic,kh "
        f"--instruction={row.name} {words} --pack= --pack_at=src+{place},diff_dst+{place} --threads=2"
    )
    arrays = random_arrays(problem)
    compiled = Compiled(problem, build_artifact(problem, config, level))
    check_result(problem, compiled(arrays), expected(problem, arrays))


SINGLE = "--dir=BWD_W --stag=abx --dtag=abx"
OF_VECTORS = [
    (f"{SINGLE} mb2ic19ih9oc35oh9kh3ph1", "--lane=oc --order=oc,ic,kh,kw --cache=mb:1,oh:4", "diff_dst+oh"),
    (f"{SINGLE} mb3ic35ih9oc19oh5kh1sh2ph0", "--lane=ic --order=oc,kh,kw,ic --cache=mb:2", "src+mb"),
    (f"{SINGLE} --dt=f64 g2mb2ic14ih9oc22oh9kh1ph0", "--lane=oc --order=g,oc,ic,kh,kw --cache=mb:1,oh:2",
     "diff_dst+oh"),
    (f"{SINGLE} mb2ic3ih30oc20oh8kh4sh4ph1", "--lane=oc --order=oc,ic,kh,kw --cache=mb:1,oh:3", "diff_dst+oh"),
]  # fmt: skip


@pytest.mark.sampled(11)
@pytest.mark.parametrize("level", host_targets(), ids=lambda t: t.name)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words", "packed"), OF_VECTORS)
def test_blocks_of_the_factor_that_supplies_vectors(
    line: str, words: str, packed: str, threads: int, level: Machine
) -> None:
    """The other factor is read in place, and its rows meet borders there. Threads pack vectors of their own."""
    problem, lane = parse_problem(line), words.split()[0].removeprefix("--lane=")
    share = f"--cache={lane}:{level.width(dtype(problem.types[0]))},"
    words = f"{words.replace('--cache=', share)} --threads=2" if threads > 1 else words
    config = Config.parse(f"--target={level.name} {words} --reduce=mb,oh,ow --pack= --pack_at={packed}")
    assert packed.split("+")[0] + "_n" in text_of_exact(problem, config, level)

"""Results whose reduction is split: right, the same bits every time, and chosen where outputs are few."""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_targets, target
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.verification import verify_kernel
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.problem.types import TYPES
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

ISAS = [t.name for t in host_targets()]
SPLIT = [
    ("--dir=BWD_W --stag=axb --dtag=axb mb2ic16ih8oc16kh3ph1", "--lane=oc --register=ic:2,oc:16 --split=mb:2 --pack="),
    ("--dir=BWD_WB mb1ic5ih14oc7kh3ph1", "--lane=oc --register=ic:2,oc:16 --split=oh:7"),
    ("--dir=BWD_W --dt=bf16 g4mb4ic16ih9oc20kh3ph1sh2", "--lane=oc --register=ic:2,oc:16 --split=mb:4"),
    ("--dir=BWD_W --wtag=axb mb4ic16iw9oc20kw3pw1dw1", "--lane=ic --register=oc:2,ic:16 --split=mb:2 --pack=diff_dst"),
    ("--deconv --dir=BWD_W mb2ic5ih9oc7kh3ph1sh2", "--lane=ic --register=oc:2,ic:16 --reduce=mb,ih,iw --split=ih:3"),
    ("--dir=BWD_W mb1ic3iw40oc2ow40kw3pw1", "--lane=ow --register=ic:3,oc:2 --split=ow:2 --pack="),
    ("--dir=BWD_W --dt=f64 mb3ic4iw7oc4kw2", "--lane=oc --split=mb:3"),
    (
        "--dir=BWD_W --dt=bf16 --stag=axb --dtag=axb g19mb1ic19ih12iw7oc19oh12ow7kh3kw3ph1pw1",
        "--lane=g --register=kh:3,g:16 --split=oh:3 --k_step=ow:4",
    ),
    (
        "--dir=BWD_W --stag=axb --dtag=axb g6mb1ic6ih13iw16oc6oh8ow8kh5kw3sh2sw2ph3pw1dh1",
        "--lane=g --register=kh:5,g:16 --split=oh:4 --k_step=ow:2",
    ),
    (
        "--dir=BWD_W --stag=axb --dtag=axb g5mb2ic5iw18oc5ow12kw7pw0",
        "--lane=g --register=kw:3,g:16 --split=ow:3 --k_step=ow:4",
    ),
    ("--dir=BWD_W --wtag=Abc16a mb2ic4iw7oc20kw2", "--lane=oc --split=mb:2"),
    ("mb1ic16ih4oc4kh3ph1", "--lane=oc --register=oc:16 --split=ic:4"),
    (
        "--dir=FWD_B --attr-post-ops=relu:0.5+sum:2+add:f32:per_oc --dtag=axb mb1ic6ih4oc4kh3ph1",
        "--lane=oc --split=kh:3",
    ),
    ("--stag=axb mb1ic16ih4oc4kh3ph1", "--lane=oc --register=oc:16 --split=ic:4 --realise=pad_copy"),
    ("--stag=axb mb1ic16ih4oc4kh3ph1", "--lane=ic --register=oc:4 --split=ic:2 --realise=mask"),
    ("--attr-post-ops=tanh --dtag=a:1:99_b:5:19_c:5:3 mb1ic4iw5oc5kw3pw1", "--lane=oc --split=ic:2 --spill_sums=yes"),
    ("g4mb1ic4iw9oc4kw3pw1", "--lane=g --split=kw:3"),
    ("--deconv g2mb2ic8ih6oc6kh3ph1sh2", "--lane=oc --split=ic:2"),
    ("--dir=BWD_D --stag=axb mb2ic5ih6oc8kh3ph1sh2", "--lane=ic --split=oc:4"),
    ("--dir=BWD_D --dt=bf16 mb2ic5iw6oc8ow3kw4pw1sw2", "--lane=ic --split=kw:4"),
    (
        "--dt=u8:s8:u8 --attr-scales=wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:1 "
        "g2mb1ic16iw5oc6kw3pw1", "--lane=oc --split=ic:2",
    ),
    (
        "--dt=u8:s8:f32 --attr-zero-points=src:common:3+wei:per_dim_0 g2mb1ic16iw5oc6kw3pw1",
        "--lane=oc --split=ic:2 --offsets=sums",
    ),
    (
        "--dt=s8:u8:f32 --attr-zero-points=src:common:3+wei:common:2 mb1ic16iw5oc6kw3pw1",
        "--lane=oc --split=ic:2 --offsets=sums --flip=src,wei",
    ),
    ("--dt=u8:s8:s32 --attr-post-ops=s32_add:per_oc --dtag=aBx16b mb1ic4iw5oc6kw3pw1", "--lane=oc --split=kw:3"),
    ("--dir=BWD_W --stag=axb --dtag=axb mb2ic5ih6oc7kh3ph1", "--lane=oc --register=ic:2 --split=mb:2,oh:3"),
    (
        "--dt=u8:s8:u8 --attr-scales=wei:per_oc+dst:common:2 --attr-zero-points=src:common:3 mb1ic16iw5oc6kw3pw1",
        "--lane=oc --split=kw:3,ic:2 --order=part2,part",
    ),
    ("--matmul --dt=f16 --bia-dt=f32 3x64:64x5", "--lane=k --split=k:4"),
    ("--matmul --stag=acb 2x3x8:1x8x5", "--lane=n --split=k:2"),
    (
        "--matmul --bits=7:5 --dt=u8:s8:s32 --attr-zero-points=src:per_dim_0+wei:common:2 5x8:8x6",
        "--lane=n --register=n:16,m:2 --offsets=sums --pack=src,wei --split=k:2",
    ),
]  # fmt: skip


@pytest.mark.sampled(18, "isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("line", "words"), SPLIT)
def test_splits_are_exact(line: str, words: str, isa: str) -> None:
    threads = 1 + (len(line) + ISAS.index(isa)) % 2
    kernel = cs.compile(line, config=f"--target={isa} {words} --threads={threads}")
    verdict = verify_kernel(kernel)
    assert verdict.ok, verdict.detail


def test_rows_that_a_part_lacks_are_tested_once_for_each_row_of_taps() -> None:
    """The first part has no row above its first one, and the last part none below its last one."""
    line = "--dir=BWD_W --dt=bf16 --stag=axb --dtag=axb g8mb1ic8ih16iw32oc8oh16ow32kh3kw3ph1pw1"
    config = "--target=avx2 --lane=g --register=kh:3,kw:3,g:8 --order=part,g,kh,kw --split=oh:2 --k_step=ow:4 --pack="
    with interning():
        made = plan(parse_problem(line).canonical(), Config.parse(config), target("avx2"))
        text = str(run_steps(made.program.naive(), made.pipeline))
    _, _, row = text.partition("for ow.o")
    inner = row[: row.index("\n      if")]  # until the pixels that steps of four leave
    assert inner.count("if ") == 3 and inner.count("fmadd") == 3 * 3 * 4


def test_few_weights_are_summed_in_parts_by_several_threads() -> None:
    line = "--dir=BWD_W --stag=axb --dtag=axb mb4ic8ih14oc8kh1"
    assert cs.compile(line, threads=4).config.tiles_at("split") == (("mb", 4),)
    assert not cs.compile(line, threads=1).config.tiles_at("split")
    assert not cs.compile("--dir=BWD_W --stag=axb --dtag=axb mb1ic64ih14oc64kh3ph1", threads=2).config.tiles_at("split")
    verdict = verify_kernel(cs.compile(line, threads=4))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_the_same_bits_for_the_same_number_of_threads(threads: int) -> None:
    rng = np.random.default_rng(threads)
    src, diff = (rng.standard_normal((4, c, 15, 13), np.float32) for c in (6, 8))
    runs = []
    for _ in range(3):
        kernel = cs.compile("--dir=BWD_W mb4ic6ih15iw13oc8kh1kw1", threads=threads)
        assert kernel.config.tiles_at("split")
        runs.append(kernel.run(src=src, diff_dst=diff)["diff_wei"].tobytes())
    assert len(set(runs)) == 1


FEW = [
    "--matmul 3x40000:40000x17",
    "--matmul --dt=bf16 --stag=ba 1x65536:65536x9",
    "--matmul --bia-dt=f32 --attr-post-ops=gelu_tanh 5x32768:32768x8",
    "--dir=FWD_B --attr-post-ops=relu mb1ic9000ih5oc6kh3",
    "--stag=axb --dtag=axb g2mb1ic16384ih4oc4kh3ph1",
    "--deconv mb1ic65536iw9oc4kw3pw1sw2",
    "--dir=BWD_D --dtag=axb mb1ic5iw6oc30000kw3pw1",
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", FEW)
def test_few_outputs_have_the_same_bits_for_any_number_of_threads(line: str) -> None:
    """Parts are chosen by the problem alone, and are added in one order."""
    problem = cs.compile(line).problem
    rng = np.random.default_rng(0)
    arrays = {
        t.name: rng.standard_normal(t.shape).astype(TYPES[t.dtype].numpy) for t in problem.tensors if t.role == "in"
    }
    splits, results = set(), set()
    for threads in (1, 2, 3, 2):
        kernel = cs.compile(line, threads=threads)
        splits.add(kernel.config.tiles_at("split"))
        results |= {kernel.run(**arrays)[problem.outputs[0].name].tobytes() for _ in range(2)}
    assert len(splits) == len(results) == 1
    ((_, parts),) = splits.pop()
    assert parts > 1
    verdict = verify_kernel(cs.compile(line, threads=2))
    assert verdict.ok, verdict.detail


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "line",
    [
        "mb1ic64ih14oc64kh3ph1", "--dt=u8:s8:s32 --stag=axb mb1ic64ih14oc64kh3ph1", "--matmul 64x4096:4096x512",
        "--matmul 4x64:64x4", "g32mb1ic32ih56oc32kh3ph1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 16])
def test_many_outputs_and_short_sums_are_not_split(line: str, threads: int) -> None:
    assert not cs.compile(line, threads=threads).config.tiles_at("split")


@pytest.mark.parametrize(
    ("line", "words", "text"),
    [
        ("--dir=BWD_W mb3ic4iw7oc4kw2", "--lane=oc --split=mb:2", "a divisor of it: mb (3), ow (6)"),
        ("--dir=BWD_W mb3ic4iw7oc4kw2", "--lane=oc --split=kw:2", "legal is a reduction loop"),
        ("--dir=BWD_W g2mb2ic4id2oc4kd2", "--lane=oc --split=mb:2", "diff_wei has 6 dims; legal"),
        ("mb2ic4iw7oc4kw2", "--lane=oc --split=mb:2", "a divisor of it: ic (4), kw (2)"),
        ("--dir=BWD_W mb3ic4iw7oc4kw2", "--lane=oc --split=mb:0", "in at least one part"),
    ],
)
def test_what_cannot_be_split(line: str, words: str, text: str) -> None:
    with pytest.raises(cs.ConfigError, match="--split=") as caught:
        cs.compile(line, config=f"--target=generic {words}")
    assert caught.value.code == "split" and text in str(caught.value)


def test_products_of_fragments_that_a_copy_fills_up_are_not_split() -> None:
    """358 channels leave a product of 64 unfilled, and the channels of the next tap follow in a part."""
    level = next(t for t in LEVELS if t.name == "avx512_amx")
    problem = parse_problem("--dt=u8:s8:s32 --stag=axb --dtag=axb mb18ic358id3oc64od1kd5pd2").canonical()
    with interning():
        config = default_config(problem, level)
        assert config.instruction == "tdpbusd_16" and not config.tiles_at("split")
        plan(problem, config, level)

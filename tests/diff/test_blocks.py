"""Blocks of loops: right whatever they are, in the order of gemmlowp's hierarchy, and chosen where sums are long."""

from __future__ import annotations

import re

import numpy as np
import pytest
from amx import needs_amx
from problems import with_instruction

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.ir.walk import loops_of
from convsmith.machine.registry import host_targets, target
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.verification import verify_kernel
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

ISAS = [t.name for t in host_targets()]
EACH = [isa for isa in ISAS if isa in ("avx512_bf16", "avx2", "generic")]
CONV = "--lane=oc --register=ow:2,oc:16"
BLOCKS = [
    ("--matmul 20x50:50x70", "--lane=n --register=m:2,n:16 --cache=k:16"),
    ("--matmul 20x50:50x70", "--lane=n --register=m:2,n:16 --cache=n:64,k:16,m:8 --pack=src,wei"),
    ("--matmul --dt=u8:s8:s32 20x50:50x70", "--lane=n --register=m:2,n:16 --k_step=k:4 --cache=k:16,n:32"),
    ("--matmul 20x50:50x70", "--lane=n --register=m:2,n:16 --cache=n:64,m:8,n:32,m:4"),
    ("--matmul 20x50:50x70", "--lane=n --register=m:2,n:16 --cache=n:64,k:20,n:32"),
    ("--matmul --dt=u8:s8:u8 --attr-zero-points=src:common:3 20x70:70x70",
     "--lane=n --register=m:2,n:16 --k_step=k:4 --cache=k:32"),
    ("--matmul --dt=bf16 20x50:50x70", "--lane=n --register=m:2,n:16 --k_step=k:2 --cache=k:16"),
    ("mb2ic20ih7oc40oh7kh3ph1", f"{CONV} --reduce=kh,kw,ic --cache=ic:8"),
    ("--dir=FWD_B --attr-post-ops=tanh mb2ic20ih7oc70oh7kh3ph1", f"{CONV} --cache=oc:32,ic:8,oh:3 --spill_sums=yes"),
    ("g2mb1ic20ih7oc40oh7kh3ph1", f"{CONV} --cache=kh:1"),
    ("mb1ic20ih7oc40oh4kh3ph1sh2", f"{CONV} --cache=ic:16 --realise=mask"),
    ("--dir=BWD_D mb1ic40ih7oc20oh4kh3ph1sh2", "--lane=ic --register=ic:16,iw:2 --cache=oc:6"),
    ("--dir=BWD_W mb2ic5ih9oc6oh9kh3ph1", "--lane=ow --register=ic:2,oc:3 --cache=oh:4 --pack="),
    ("--dir=BWD_W --stag=abx --dtag=abx mb1ic3ih20oc4oh20kh3ph1", "--lane=ow --register=oc:4 --cache=oh:8 --pack="),
    ("--dir=BWD_W mb4ic5ih7oc6oh4kh3ph1sh2", "--lane=oc --register=ic:2,oc:16 --cache=mb:2 --pack=diff_dst"),
    ("--dir=BWD_W g2mb1ic4ih20oc6oh20kh5ph2", "--lane=ow --register=kw:2,ic:2 --cache=oc:2,oh:8 --pack="),
    ("mb1ic20ih7oc40oh7kh3ph1", f"{CONV} --cache=ic:8 --realise=pad_copy"),
    ("mb1ic20ih7oc40oh7kh3ph1", f"{CONV} --cache=ic:8 --realise=indirection"),
    ("--dir=FWD_B --attr-post-ops=tanh mb2ic20ih7oc70oh7kh3ph1", f"{CONV} --cache=oc:32,kh:2,ic:8,oh:3"),
    ("--dir=BWD_W mb4ic5ih9oc6oh5kh3ph1sh2", "--lane=oc --register=ic:2,oc:16 --cache=mb:1,oh:2 --pack=diff_dst"),
    ("--dir=BWD_W mb5ic5ih7oc40oh7kh3ph1", "--lane=oc --register=ic:2,oc:16 --cache=oc:32,oh:3,mb:2,ic:4 --pack="),
]  # fmt: skip


UNEVEN = [
    ("mb1ic20ih7oc40oh7kh3ph1", "--lane=oc --register=ow:2,oc:16,ic:4 --first_last_tile=ic:3,ic:5"),
    ("mb1ic20ih7oc40oh7kh3ph1", "--lane=oc --register=ow:2,oc:16,ic:4 --cache=ic:4 --first_last_tile=ic:3,ic:5"),
    ("--matmul --dt=u8:s8:s32 20x50:50x70",
     "--lane=n --register=m:2,n:16,k:6 --first_last_tile=k:1,k:7 --cache=n:32,k:6"),
]


@pytest.mark.sampled(2, "isa", "line", "words")
@pytest.mark.parametrize("isa", EACH[-2:])
@pytest.mark.parametrize(("line", "words"), UNEVEN)
def test_tiles_with_ends_of_their_own_are_exact(line: str, words: str, isa: str) -> None:
    kernel = cs.compile(line, config=f"--target={isa} {words}")
    assert kernel.config.tiles_at("first_last_tile")
    verdict = verify_kernel(kernel)
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--first_last_tile=ic:3,ic:4 --register=ic:4", "bounds", "loop ic runs 0 .. 20; legal are 3 + 4 iterations"),
        ("--first_last_tile=ow:3,ow:4", "first_last_tile", "--first_last_tile=ow: legal are reduction loops, "),
        ("--register=ow:4 --remainder=ow:2", "remainder", "--remainder=ow: its extent is not an argument of the call"),
    ],
)
def test_ends_and_remainders_that_are_refused(words: str, code: str, text: str) -> None:
    with pytest.raises(cs.ConfigError, match=re.escape(text)) as error:
        cs.compile("mb1ic20ih7oc40oh7kh3ph1", config=f"--target=generic --lane=oc {words}")
    assert error.value.code == code


@pytest.mark.sampled(16, "threads", "isa", wide=1, every="line")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("line", "words", "isa"),
    [(*block, isa) for block in BLOCKS for isa in EACH if isa != "generic" or "--k_step" not in block[1]],
)
def test_blocks_are_exact(line: str, words: str, threads: int, isa: str) -> None:
    config = Config.parse(f"--target={isa} {words} --threads={threads}")
    config = with_instruction(config, parse_problem(line), target(isa))
    kernel = cs.compile(line, config=str(config))
    assert kernel.config.tiles_at("cache")
    verdict = verify_kernel(kernel)
    assert verdict.ok, verdict.detail


@needs_amx
@pytest.mark.parametrize("block", ["k:128", "n:32,k:64,m:32", "m:64,n:64"])
def test_blocks_on_fragments(block: str) -> None:
    """Sums go back into their registers where the next block begins."""
    words = "--lane=n --register=m:32,n:32 --instruction=tdpbusd_16 --k_step=k:64"
    kernel = cs.compile("--matmul --dt=u8:s8:s32 70x320:320x70", config=f"--target=avx512_amx {words} --cache={block}")
    verdict = verify_kernel(kernel)
    assert verdict.ok, verdict.detail


def test_the_packed_order_has_the_blocks_of_the_config() -> None:
    """L2 width, L2 depth, L1 width, the run along depth, the kernel's cells: as in gemmlowp's packing."""
    (target,) = (t for t in LEVELS if t.name == "avx512_vnni")
    problem = parse_problem("--matmul --dt=u8:s8:s32 96x256:256x192").canonical()
    config = Config.parse(
        "--target=avx512_vnni --lane=n --register=m:6,n:32 --order=n,m --instruction=vpdpbusd_512 "
        "--k_step=k:4 --cache=n:96,k:64,m:48 --pack=src,wei"
    )
    with interning():
        made = plan(problem, config, target)
        lhs, rhs = run_steps(made.program.naive(), made.pipeline).packs
    orders = [[(x.var.name, int(x.hi)) for x in loops_of(p.body)] for p in (lhs, rhs)]
    assert orders[0] == [("k.b", 4), ("m.b", 2), ("m.o", 8), ("k.o", 16), ("m.i", 6), ("k.q", 4)]
    assert orders[1] == [("n.b", 2), ("k.b", 4), ("n.o", 3), ("k.o", 16), ("n.v", 2), ("n.l", 16), ("k.q", 4)]
    # seek_run: a run of depth starts at l2_width * start_depth + start_width * run depth.
    width, depth = rhs.params[1].shape[2:6], rhs.params[1].shape[3] * 4
    assert np.prod(rhs.params[1].shape[2:]) == 96 * 64 and depth == 64 and width[0] * width[2] * width[3] == 96


def test_blocks_where_a_tile_of_weights_outgrows_the_cache() -> None:
    """Their weights fit in their part of the second-level cache, but for equal blocks that are rounded up to steps, and
    so do the sums between them.
    """
    (target,) = (t for t in LEVELS if t.name == "avx512")
    long = default_config(parse_problem("--matmul 512x16384:16384x4096"), target)
    sizes = dict(long.tiles_at("cache"))
    assert list(sizes) == ["n", "k"]
    assert (sizes["k"] - 1) * long.size("n") * 4 <= target.l2.bytes // 4
    assert sizes["n"] * 512 * 4 <= target.l2.bytes
    for line in ("--matmul 512x1024:1024x4096", "--matmul 1x16384:16384x4096", "mb1ic64ih56oc64oh56kh3ph1"):
        assert not default_config(parse_problem(line), target).tiles_at("cache")
    assert default_config(parse_problem("--accuracy=strict mb1ic1024ih14oc64oh14kh5ph2"), target).tiles_at("cache")


@pytest.mark.parametrize("layout", ["abx", "axb"])
def test_blocks_of_the_pixels_of_a_gradient(layout: str) -> None:
    """Images outgrow the cache: what a tile of the outermost loop reads of a block stays there."""
    (target,) = (t for t in LEVELS if t.name == "avx512")
    tags = f"--dir=BWD_W --stag={layout} --dtag={layout}"
    config = default_config(parse_problem(f"{tags} mb1ic16ih256iw512oc72oh256ow512kh1kw1"), target)
    ((loop, rows),) = config.tiles_at("cache")
    assert (loop, config.order[0]) == ("oh", "oc")
    assert target.l2.bytes // 4 < rows * 512 * (16 + 72) * 4
    assert rows * 512 * (16 + config.size("oc")) * 4 <= target.l2.bytes
    assert default_config(parse_problem(f"{tags} mb4ic1024ih28oc512oh28kh1"), target).tiles_at("cache")
    for sizes in ("mb1ic16ih28oc72oh28kh1", "mb1ic6ih256iw512oc2oh256ow512kh1kw1"):
        assert not default_config(parse_problem(f"{tags} {sizes}"), target).tiles_at("cache")


def test_a_long_sum_by_default() -> None:
    kernel = cs.compile("--matmul 200x9000:9000x70", threads=2)
    assert kernel.config.tiles_at("cache")
    verdict = verify_kernel(kernel)
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--register=m:4,n:32 --cache=m:6", "a multiple of the register tile"),
        ("--register=m:4,n:32 --cache=n:0", "a multiple of the register tile"),
        ("--register=m:4,n:32 --cache=n:40", "a multiple of the register tile"),
        ("--register=m:4 --cache=n:3", "the 4 lanes"),
    ],
)
def test_what_is_no_block(words: str, text: str) -> None:
    with pytest.raises(cs.ConfigError, match="--cache=") as caught:
        cs.compile("--matmul 20x50:50x70", config=f"--target=generic --lane=n {words}")
    assert caught.value.code == "cache" and text in str(caught.value)


@pytest.mark.parametrize("blocks", ["ic:4,oh:3,kh:1", "ic:4,ic:2"])
def test_blocks_of_reduction_loops_are_adjacent(blocks: str) -> None:
    config = f"--target=generic --lane=oc --cache={blocks}"
    with pytest.raises(cs.ConfigError, match="adjacent cache tiles of different reduction loops") as caught:
        cs.compile("ic8ih7oc8oh7kh3ph1", config=config)
    assert caught.value.code == "cache"
    assert str(Config.parse(config).changed(cache=(("ic", 4),))).endswith("--cache=ic:4")

"""A product by warp groups, whose operands a copy engine brings, as a schedule that a user writes."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

import convsmith as cs
from convsmith.compiler.driver import lower
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.wgmma import wgmma

LINE = "--dt=bf16:bf16:f32 mb1ic64ih8oc64oh8kh3ph1"


def made(line: str, target: str = "sm_90a", config: str | None = None, **sizes: Any) -> cs.CompiledKernel:
    """Return the kernel of a line in channels last, by the schedule of the library unless there is a config."""
    schedule = partial(wgmma, **sizes) if config is None else None
    tags = dict(src_tag="axb", wei_tag="axb", dst_tag="axb")
    return cs.compile(line, schedule=schedule, config=config, target=target, threads=1, bias=False, **tags)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        (LINE, dict(rows=64)),
        ("--dt=bf16:bf16:f32 mb3ic64ih8oc80oh8kh1ph0", dict(rows=128)),  # neither pixels nor channels fill all tiles
        ("--dt=bf16 mb2ic96ih9oc32oh5kh3ph1sh2", dict(columns=32, terms=32, instruction="wgmma_m64n32k16_bf16")),
        ("--dt=u8:s8:s32 mb1ic128ih8oc64oh8kh1ph0",
         dict(rows=64, terms=128, slots=2, instruction="wgmma_m64n64k32_u8_s8")),
    ],
)  # fmt: skip
def test_products_of_warp_groups_are_exact(line: str, sizes: dict[str, Any]) -> None:
    kernel = made(line, **sizes)
    assert kernel.verify().ok and kernel.artifact is not None
    assert {x.of for x in kernel.artifact.entries["main"].launch.maps} == {"src", "wei"}


def renamed(kernel: cs.CompiledKernel) -> str:
    """Return the text of a kernel with its loops numbered in the order in which they begin."""
    with kernel.planned() as plan:
        text = str(lower(plan).kernel)
    numbers = {name: n for n, name in enumerate(dict.fromkeys(re.findall(r"for (\S+) in", text)))}
    return re.sub(r"[\w.]+", lambda x: f"loop{numbers[x[0]]}" if x[0] in numbers else x[0], text)


def test_the_schedule_makes_the_kernel_of_the_config() -> None:
    config = (
        "--target=sm_90a --lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:64 --reduce=kh,kw,ic "
        "--instruction=wgmma_m64n64k16_bf16 --realise=hardware --pack= --group=mb_oh_ow:64,oc:64,ic:64 "
        "--shared=src,wei --buffers=4"
    )
    assert renamed(made(LINE, rows=64)) == renamed(made(LINE, config=config))


def test_weights_that_meet_the_zeros_of_a_copy_are_finite() -> None:
    limits = [dict(made(line, rows=64).artifact.limits) for line in (LINE, LINE.replace("kh3ph1", "kh1ph0"))]  # type: ignore[union-attr]
    assert [*limits[0]] == ["wei"] and not limits[1]


@pytest.mark.parametrize(
    ("line", "sizes", "text"),
    [
        (LINE, dict(rows=96),
         "src has along mb_oh_ow the loops mb_oh_ow.w of 2 x mb_oh_ow.i of 64, and loops around them step by 96"),
        (LINE, dict(columns=32), "wei has along oc the loops oc.f of 1 x oc.i of 64, and loops around them step by 32"),
        (LINE.replace("ic64", "ic256"), dict(terms=128),
         "src lies in rows along ic, of which a copy brings 64, and its last loops have 128"),
        (LINE.replace("ic64", "ic60"), {}, "bring: src has rows 120 bytes apart, no multiple of 16"),
        ("--dt=u8:s8:s32 mb1ic64ih8oc64oh8kh1ph0", {}, "wgmma_m64n64k16_bf16 multiplies bf16:bf16:f32; legal is an"),
        (LINE, dict(slots=0), "pipeline: loop s (of 9) by 0"),
        (LINE, dict(slots=20), "bytes of shared memory; sm_90a has 232448"),
    ],
    ids=["rows", "columns", "terms", "rows-of-memory", "types", "no-slot", "slots"],
)  # fmt: skip
def test_an_illegal_tile_is_refused_with_its_numbers(line: str, sizes: dict[str, Any], text: str) -> None:
    with pytest.raises(cs.ConfigError) as error:
        made(line, **sizes)
    assert text in str(error.value)


def test_a_fragment_of_another_size_is_refused() -> None:
    def swapped(s: KernelSchedule) -> None:
        row, column, term = s.loop("ow"), s.loop("oc"), s.loop("ic")
        s.flatten()
        s.fragments(s.machine.rows["wgmma_m64n64k16_bf16"], row, column, term)

    with pytest.raises(cs.ConfigError, match="multiplies 64 x 64 x 16; found ow of 8, oc of 64, ic of 64"):
        cs.compile(LINE, schedule=swapped, target="sm_90a", threads=1)


def test_a_machine_without_a_copy_engine_says_so() -> None:
    def bring(s: KernelSchedule) -> None:
        s.bring(s.loop("ic"), {"src": (), "wei": ()})

    for target in ("avx2", "sm_80"):
        with pytest.raises(cs.ConfigError, match=f"bring: {target} has no copy engine; legal is stage"):
            cs.compile(LINE, schedule=bring, target=target, threads=1)


def test_what_is_no_operand_cannot_be_brought() -> None:
    with pytest.raises(cs.UsageError, match="bring: 'dst'; legal are src, wei"):
        cs.compile(LINE, schedule=lambda s: s.bring(s.loop("ic"), {"dst": ()}), target="sm_90a", threads=1)


def test_an_unknown_instruction_is_refused() -> None:
    with pytest.raises(cs.UsageError, match="there is no instruction 'wgmma_m64n64k16'; legal are"):
        made(LINE, instruction="wgmma_m64n64k16")

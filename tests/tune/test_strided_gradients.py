"""Results of which each pixel meets the taps of one residue class: strided gradients by data, and deconvolutions."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.ir.stmt import Store
from convsmith.ir.value import Binary, Const
from convsmith.ir.walk import statements_of
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in LEVELS}
FIRST, LAST = "--stag=abx --dtag=abx", "--stag=axb --dtag=axb"


@pytest.mark.parametrize(
    ("line", "level", "instruction"),
    [
        (f"--deconv --dt=bf16 {FIRST} mb1ic512ih7oc512oh14kh3sh2ph1", "avx512_bf16", "vdpbf16ps_512"),
        (f"--dir=BWD_D --dt=bf16 {FIRST} mb1ic128ih28oc256oh14kh3sh2ph1", "avx512_bf16", "vdpbf16ps_512"),
        (f"--deconv --dt=u8:s8:s32 {FIRST} mb1ic256ih11oc256oh21kh3sh2ph1", "avx512_vnni", "vpdpbusd_512"),
        (f"--deconv --dt=bf16 {FIRST} mb1ic512ih7oc256oh14kh1sh2ph0", "avx512_bf16", "vdpbf16ps_512"),
        (f"--dir=BWD_D --dt=bf16 {FIRST} mb1ic3ih256oc64oh128kh7sh2ph3", "avx512_bf16", ""),
    ],
    ids=["deconvolution", "by-data", "bytes", "classes-without-taps", "few-channels"],
)
def test_pairs_of_channels_are_copied_where_many_results_share_them(line: str, level: str, instruction: str) -> None:
    """A copy brings the terms of dot products together; it costs more than it gains where few results share it."""
    config = default_config(parse_problem(line), TARGETS[level])
    assert config.instruction == instruction
    assert config.realise == "pad_copy" or not instruction


@pytest.mark.parametrize(
    ("line", "lane", "order", "loops"),
    [
        (f"--deconv {FIRST} mb2ic24ih6oc32oh12kh4sh2ph1", "oc", "mb,oc,oh,ow", ["mb", "oc.o", "oh.r", "ow.r"]),
        (f"--deconv {FIRST} mb2ic24ih6oc32oh12kh4sh2ph1", "oc", "mb,oh,ow,oc", ["mb", "oh.r", "ow.r", "oh"]),
        (f"--deconv {LAST} mb2ic24ih6oc32oh12kh4sh2ph1", "oc", "mb,oc,oh,ow", ["oh.r", "ow.r", "mb", "oc.o"]),
        (f"--deconv {FIRST} mb2ic24ih6oc32oh12kh4sh2ph1", "ow", "mb,oh,ow,oc", ["mb", "oh", "ow.o", "oh.r"]),
        (f"--deconv {FIRST} mb2ic24ih6oc32oh11kh3sh2ph1", "ow", "mb,oh,ow,oc", ["mb", "oh.r", "ow.r", "oh"]),
    ],
    ids=["pixels-adjacent", "channels-within", "channels-adjacent", "rows-of-lanes", "classes-of-other-sizes"],
)
def test_classes_of_adjacent_pixels_run_in_turn(line: str, lane: str, order: str, loops: list[str]) -> None:
    """Each class writes a part of every line of such a result, so that classes are within the loops around pixels, and
    within those over pixels that are lanes if all classes have as many.
    """
    tile = "ow:6,oc:16" if lane == "oc" else "ow:16,oc:4"
    words = f"--target=avx512 --lane={lane} --register={tile} --order={order} --reduce=kh,kw,ic"
    with interning():
        made = plan(parse_problem(line), Config.parse(words), TARGETS["avx512"])
    assert [loop.name for loop in made.main.nest.made[:4]] == loops


@pytest.mark.parametrize("sizes", ["mb1ic3ih9oc8oh5kh1sh2ph0", "mb1ic2ih13oc8oh5kh3sh3ph3dh2"])
def test_classes_without_taps_add_no_zeros_of_a_copy(sizes: str) -> None:
    words = "--lane=iw --register=ic:2,iw:8 --order=mb,ih,iw,ic --reduce=kh,kw,oc --realise=pad_copy"
    problem, config = parse_problem(f"--dir=BWD_D {FIRST} {sizes}"), Config.parse(f"--target=avx2 {words}")
    with interning():
        made = plan(problem, config, TARGETS["avx2"])
        kernel = run_steps(made.naive(), made.pipeline)
        bodies = (kernel.body, *(f.body for f in kernel.functions))
        stores = [s.value for body in bodies for s in statements_of(body) if isinstance(s, Store)]
    assert not [v for v in stores if isinstance(v, Binary) and isinstance(v.b, Const)]

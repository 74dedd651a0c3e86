"""Leading lanes that form a word are loaded as one where a machine has no masked loads of their type."""

from __future__ import annotations

from itertools import product

import pytest

from convsmith.codegen.shuffles import ShuffleEmitter
from convsmith.codegen.word_loads import is_word, load_word
from convsmith.compiler.driver import lower
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.ir.intern import interning
from convsmith.ir.types import dtype
from convsmith.ir.value import strided
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

FEW_CHANNELS = "--dt=u8:s8:s32 --stag=abx --dtag=abx mb1ic3ih9oc16oh9kh3ph1"
WORDS = [(name, n, k) for name in ("u8", "bf16", "f32") for n in (2, 4, 8) for k in range(1, n)]


@pytest.mark.parametrize("name, lanes, active", WORDS)
def test_lanes_form_words_of_at_most_64_bits(name: str, lanes: int, active: int) -> None:
    t = dtype(name)
    fits = 16 <= lanes * t.bits <= 64
    assert is_word(t, strided(lanes, 1, active), 0) == fits
    assert is_word(t, strided(lanes, 1, active), t.bytes) == (fits and active == 1 and name != "f32")


def test_a_single_channel_of_a_pair_is_one_load() -> None:
    words = "--lane=oc --register=ow:4,oc:32 --instruction=vdpbf16ps_512 --k_step=ic:2"
    config = Config.parse(f"--target=avx512_bf16 {words}")
    problem = parse_problem("--dt=bf16 --stag=axb --dtag=axb mb1ic3ih9oc32oh7kh3ph0")
    with interning():
        text = lower(plan_for(problem.canonical(), config, target("avx512_bf16"))).text
    assert "load i16" in text and "masked.load.v2" not in text


def parts(nbytes: int) -> list[tuple[int, int]]:
    """The place and the size of each load of that many bytes."""
    emit, found = ShuffleEmitter(64, ""), []
    load_word(emit, dtype("u8"), "%p", 8, nbytes)
    start = 0
    for line in emit.lines:
        if "getelementptr" in line:
            start = int(line.rsplit(" ", 1)[1])
        elif " load " in line:
            found.append((start, int(line.partition("load i")[2].partition(",")[0]) // 8))
    return found


def test_parts_cover_the_active_bytes_alone() -> None:
    for nbytes in range(1, 8):
        places = [start + n for start, size in parts(nbytes) for n in range(size)]
        assert places == list(range(nbytes))


def test_a_factor_of_few_channels_is_no_masked_load() -> None:
    words = "--lane=oc --register=ow:4,oc:16 --instruction=vpmaddubsw_256 --k_step=ic:4 --realise=pad_copy"
    config = Config.parse(f"--target=avx2 {words}")
    with interning():
        text = lower(plan_for(parse_problem(FEW_CHANNELS).canonical(), config, target("avx2"))).text
    assert "masked.load.v4i8" not in text


@pytest.mark.sampled(12)
@pytest.mark.parametrize("level, channels", [*product([t.name for t in host_targets()], (1, 2, 3, 5, 6, 7))])
def test_results_are_exact(level: str, channels: int) -> None:
    line = FEW_CHANNELS.replace("ic3", f"ic{channels}")
    kernel = compile_kernel(line, target=level, threads=1, config="--lane=oc --realise=pad_copy")
    assert verify_kernel(kernel).ok

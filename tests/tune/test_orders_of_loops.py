"""The order of loops around a register tile follows from the bytes that it moves between memories."""

from __future__ import annotations

from dataclasses import replace

import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.memory import core_caches
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import host_targets, known_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.statement.views import statement
from convsmith.tune.candidates import candidates, default_config
from convsmith.tune.costs.traffic import Traffic
from convsmith.tune.orders import orders

AVX512 = next(t for t in LEVELS if t.name == "avx512")
LAST = "--stag=axb --dtag=axb"
A, B, C = 64 * 32 * 4, 32 * 48 * 4, 64 * 48 * 4 * 2
"""Bytes of 64 rows of 32 elements, of 32 rows of 48, and of reading and writing the 64 rows of their product."""


@pytest.mark.parametrize(
    ("order", "first", "second", "near", "far"),
    [
        ("m,n", 7 << 10, 1 << 13, A + B * 16 + C, A + B + C),  # a tile of rows meets all columns: 8 KiB
        ("n,m", 1 << 12, 1 << 13, A * 3 + B + C, A * 3 + B + C),  # all rows meet 16 columns: 10 KiB
        ("n,m", 1 << 11, 1 << 16, A * 3 + B * 16 + C, A + B + C),  # a tile of the product: 3 KiB
        ("m,n", 1 << 14, 1 << 16, A + B + C, A + B + C),
        ("m,n", 1 << 11, 1 << 12, A * 3 + B * 16 + C, A + B * 16 + C),
    ],
)
def test_bytes_of_a_product(order: str, first: int, second: int, near: int, far: int) -> None:
    """An operand moves again in each iteration of a loop that reads more between than the memory holds."""
    target = replace(AVX512, memories=core_caches(first, second, (64, 32)))
    with interning():
        st = statement(parse_problem("--matmul 64x32:32x48"), target)
        config = Config(
            "avx512", "n", register=(("m", 4), ("n", 16)), order=tuple(order.split(",")), pack=("src", "wei")
        )
        assert Traffic(st, target).moved(loops_after_fusing(st, config), config).means == (near, far)


@pytest.mark.parametrize(
    ("line", "outermost"),
    [
        (f"--accuracy=strict {LAST} mb16ic512ih7oc512oh7kh3ph1", ["oc"]),  # 9 MiB of weights pass once
        (f"{LAST} mb1ic512ih28oc256oh28kh1ph0", ["mb_oh_ow"]),  # weights stay in the second cache, images do not
        (f"{LAST} mb1ic256ih56oc512oh28kh1sh2ph0", ["mb", "oh"]),
        (f"{LAST} mb1ic2048ih7oc512oh7kh1ph0", ["oc"]),  # images stay, 4 MiB of weights do not
        (f"{LAST} mb16ic128ih28oc512oh28kh1ph0", ["mb_oh_ow"]),  # images and results beyond the caches pass once
    ],
)
def test_what_exceeds_the_caches_passes_once(line: str, outermost: list[str]) -> None:
    config = default_config(parse_problem(line), AVX512)
    assert list(config.order[: len(outermost)]) == outermost


@pytest.mark.parametrize(("images", "outermost", "stream"), [(1, "oc", "src"), (16, "mb_oh_ow", "wei")])
def test_images_beyond_the_caches_pass_once_through_fragments(images: int, outermost: str, stream: str) -> None:
    (level,) = (level for level in LEVELS if level.name == "avx512_amx")
    config = default_config(parse_problem(f"--dt=bf16 {LAST} mb{images}ic1024ih14oc256oh14kh1ph0"), level)
    assert config.instruction == "tdpbf16ps_16"
    assert (config.order[0], config.staged("stream")) == (outermost, (stream,))


def test_sums_in_registers_take_no_room_of_a_cache() -> None:
    """The results of 256 sums lie on a line each, which fill the cache; until these are written, it holds rows."""
    target = replace(AVX512, memories=core_caches(1 << 14, 1 << 20, (64, 32)))
    with interning():
        st = statement(parse_problem("--dir=BWD_W --stag=abx --dtag=abx mb1ic64ih28oc64oh28kh3ph1"), target)
        tile = (("ic", 8), ("oc", 32))
        config = Config(
            "avx512", "oc", register=tile, order=("oc", "ic", "kh", "kw"), reduce=("mb", "oh", "ow"), pack=("diff_dst",)
        )
        near, _ = Traffic(st, target).moved(loops_after_fusing(st, config), config).means
    tiles, image, line = 8 * 2 * 9, 28 * 28 * 4, 64
    assert near == tiles * ((8 + 32) * image + 2 * 8 * 32 * line)


@pytest.mark.parametrize(
    ("line", "reduce"),
    [
        (f"{LAST} mb1ic512ih7oc512oh7kh3ph1", "kh,ic,kw"),
        (f"--dir=BWD_D {LAST} mb1ic512ih7oc512oh7kh3ph1", "kh,oc,kw"),
        (f"{LAST} mb1ic192ih7oc128oh7kh5ph2", "kh,ic,kw"),
        (f"{LAST} mb1ic512ih9oc512oh7kh3ph0", "kh,kw,ic"),  # no product is left out at borders
        (f"{LAST} mb1ic512ih8oc512oh8kh3ph1", "kh,kw,ic"),  # eight pixels more do not fit the registers
        (f"{LAST} mb1ic128ih56oc128oh28kh3sh2ph1", "kh,kw,ic"),  # 28 products for two vectors of weights
        (f"{LAST} mb1ic128ih7oc128oh7kh3ph1", "kh,kw,ic"),
    ],
)
def test_taps_run_within_channels_where_pixels_arrive_late(line: str, reduce: str) -> None:
    """Intel servers start two multiply-adds in a cycle; their second-level cache keeps up with one."""
    intel = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server").of(AVX512)
    problem = parse_problem(f"--accuracy=strict {line}")
    assert ",".join(default_config(problem, intel).reduce) == reduce
    assert default_config(problem, AVX512).reduce[-1] != "kw"


@pytest.mark.parametrize(
    ("line", "inner"),
    [
        (f"{LAST} g1024mb4ic1024ih43oc1024oh42kh2ph0", "g"),  # pixels are a page apart, and come from far
        (f"{LAST} g1152mb32ic1152ih7oc1152oh7kh3ph1", "ow"),  # the second-level cache holds the image
        (f"{LAST} g480mb4ic480ih32oc480oh32kh3ph1", "ow"),  # prefetchers follow steps of 1,920 bytes
    ],
)
def test_channels_are_innermost_where_runs_of_pixels_come_from_far(line: str, inner: str) -> None:
    zen5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(AVX512)
    order = default_config(parse_problem(line), zen5).order
    assert max("g", "ow", key=order.index) == inner


DEPTHS = [
    (f"{LAST} g64mb1ic64id16ih56iw56oc64kd3kh3kw3pd1ph1pw1", ["mb", "oh", "od", "ow"]),
    (f"{LAST} g24mb1ic24id16ih112iw112oc24od16oh56ow56kd5kh3kw3sd1sh2sw2pd2ph1pw1", ["mb", "oh", "od", "ow"]),
    (f"{LAST} --dir=BWD_D g64mb1ic64id16ih56iw56oc64kd3kh3kw3pd1ph1pw1", ["mb", "ih", "id", "iw"]),
    (f"{LAST} g64mb1ic64id16ih56iw56oc64kd1kh3kw3ph1pw1", ["mb", "od", "oh", "ow"]),  # no plane is read twice
    (f"{LAST} g256mb1ic256id8ih14iw14oc256kd3kh3kw3pd1ph1pw1", ["mb", "od", "oh", "ow"]),  # three planes stay
    (f"--accuracy=strict {LAST} mb1ic64id16ih56iw56oc64kd3kh1kw1pd1", ["mb", "od", "oh", "ow"]),  # arithmetic hides it
]


@pytest.mark.parametrize(("line", "order"), DEPTHS)
def test_rows_of_a_tile_pass_through_all_depths(line: str, order: list[str]) -> None:
    """Where the planes of a window exceed the second-level cache, rows of all depths are read before the next rows."""
    assert list(default_config(parse_problem(line), AVX512).order[:4]) == order


def test_depth_within_rows_computes_the_same() -> None:
    line = f"{LAST} g20mb2ic20id5ih9iw7oc20kd3kh3kw3pd1ph1pw1"
    config = Config.parse(
        f"--target={host_targets()[0].name} --lane=g --register=oh:4,g:16 --order=mb,oh,od,ow,g,oc"
    )
    verdict = verify_kernel(cs.compile(line, config=config))
    assert verdict.ok and verdict.detail == "exact"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", [t for t in LEVELS if t.name in ("avx512", "avx2")], ids=lambda t: t.name)
@pytest.mark.parametrize(
    "line",
    [
        "--dir=BWD_W --stag=axb --wtag=axb --dtag=axb mb32ic128ih27oc32oh27kh1ph0",
        "--dir=BWD_W --stag=abx --dtag=abx mb8ic64ih28oc96oh14kh3sh2ph1",
        "--dir=BWD_W --stag=aBx16b --dtag=aBx16b mb4ic64ih64oc16oh64kh1ph0",
        "--dir=BWD_W --stag=axb --wtag=axb --dtag=axb g64mb16ic64ih28oc64oh28kh3ph1",
    ],
)
def test_no_order_and_no_blocks_move_less_than_each_element_once(line: str, level: Machine) -> None:
    """The bound excludes orders and blocks, so that it must never exceed their cycles."""
    problem = parse_problem(line)
    with interning():
        st = statement(problem, level)
        traffic = Traffic(st, level)
        for choice in candidates(problem, level, 1, 1):
            config = choice.config.changed(cache=())
            loops = loops_after_fusing(st, config)
            blocks = [((n, size),) for n in loops.of("k") for size in {loops.extents[n] // 2, 1} if size]
            for cache in ((), *blocks):
                for order in orders(loops, config, ""):
                    each = config.changed(cache=cache)
                    assert traffic.cycles(loops, each, order) >= traffic.least(each) * (1 - 1e-9)
                    assert traffic.cycles(loops, each, order) == traffic.cycles(loops, each.changed(order=order))


@pytest.mark.parametrize("level", ["avx2", "wasm32+relaxed"])
@pytest.mark.parametrize("line", ["g128mb32ic128ih64oc128oh64kh1ph0", "--deconv g64mb32ic64ih112oc64oh112kh1ph0"])
def test_pixels_along_the_lanes_pass_each_group_of_one_channel(level: str, line: str) -> None:
    """No other group reads the image of a group, which is read in the order of memory."""
    machine = next(t for t in known_targets("generic") if t.name == level)
    config = default_config(parse_problem(f"--stag=abx --dtag=abx {line}"), machine)
    assert (config.lane, config.order) == ("oh_ow", ("mb", "g", "oc", "oh_ow"))

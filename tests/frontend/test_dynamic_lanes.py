"""Kernels for any sizes whose vectors run along the pixels of rows of any length, or along groups of few channels."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import convsmith as cs
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.types import dtype
from convsmith.layout.reorder import to_layout
from convsmith.machine import registry
from convsmith.machine.registry import host_targets
from convsmith.problem import Conv, reference
from convsmith.problem.data import random_arrays
from convsmith.schedule.call_variants import config_of_call, pixels_at_borders
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import general, joined_pixels
from convsmith.tune.dynamic import dynamic_config

LINES = (
    "--stag=abx --dtag=abx mb1ic7ih8oc5kh1",
    "--stag=abx --dtag=abx mb1ic6id3ih4iw4oc9od3oh4ow4kd1kh1kw1",
    "--stag=abx --dtag=abx g3mb1ic6ih8oc6kh1",
    "--stag=abx --dtag=abx --dir=FWD_B --attr-post-ops=relu mb1ic5ih8oc6kh1",
    "--stag=abx --dtag=abx --attr-post-ops=sum:0.5+relu mb1ic5ih8oc6kh1",
    "--stag=abx --dtag=abx g5mb1ic5ih8oc5kh3ph1",
    "--stag=abx --dtag=abx --attr-post-ops=sum g5mb1ic5ih8oc5kh3ph1",
    "--stag=abx --dtag=abx g3mb1ic3ih8oc3kh5ph4dh1",
    "--stag=abx --dtag=abx g3mb1ic3iw30oc3kw11pw5",
    "--stag=abx --dtag=abx g2mb1ic2id4ih4iw4oc2od4oh4ow4kd3kh3kw3pd1ph1pw1",
    "--stag=abx --dtag=abx --dt=f64 g4mb1ic4ih8oc4kh3ph1",
    "--stag=abx --dtag=abx --dt=bf16 mb1ic6ih8oc5kh1",
)


def _dims(p: Conv) -> str:
    return ",".join(["mb", *(f"i{a}" for a in p.axes)])


def _call(p: Conv, rng: random.Random) -> tuple[Conv, list[tuple[int, int]]]:
    """The problem at sizes and pads of its own, with a row of any length."""
    widest = rng.choice((3, 20, 130))
    i = tuple(rng.randrange(1, widest if n == p.rank - 1 else 5) for n in range(p.rank))
    pads = [(rng.randrange(0, 4), rng.randrange(0, 4)) for _ in p.axes] if rng.random() < 0.6 else [(0, 0)] * p.rank
    o = [(x + a + b - keff) // s + 1 for x, (a, b), keff, s in zip(i, pads, p.keff, p.s)]
    if min(o) < 1:
        return _call(p, rng)
    return replace(p, mb=rng.randrange(1, 3), i=i, o=tuple(o), p=tuple(a for a, _ in pads)), pads


def _check(p: Conv, kernel: cs.CompiledKernel, calls: int) -> None:
    rng = random.Random(str(p))
    weights = {t.name: to_layout(random_arrays(p, 7)[t.name], t.layout) for t in p.inputs}
    packed = kernel.pack(weights["wei"], weights.get("bia"))
    for seed in range(calls):
        q, pads = _call(p, rng)
        arrays = random_arrays(q, seed)
        arrays |= {name: x for name, x in weights.items() if name in ("wei", "bia")}
        truth = to_layout(reference(q, arrays, np.float64)["dst"], q.dst_layout)
        given = {t.name: to_layout(arrays[t.name], t.layout) for t in q.inputs} | {"wei": packed}
        given.pop("bia", None)
        got = kernel.run(pads=pads, **given)["dst"]
        np.testing.assert_array_equal(got.astype(np.float64), truth.astype(np.float64), err_msg=f"{q} {pads}")


@pytest.mark.sampled(24, wide=1, every="line level")
@pytest.mark.parametrize("level", [host_targets()[n].name for n in (0, -1)])
@pytest.mark.parametrize("line", LINES)
def test_any_sizes_and_pads(line: str, level: str) -> None:
    """Under the default config, whose lanes are pixels, with two threads on the lower level."""
    p = Conv.parse(line)
    threads = 2 if level == host_targets()[-1].name else 1
    kernel = cs.compile(p, target=level, threads=threads, dynamic=_dims(p))
    if threads == 1 or p.rank > 1:
        assert Config.parse(str(kernel.config)).lane == "ow"
    _check(kernel.problem, kernel, 10)


FEW = (
    "mb1ic6ih8oc3kh3ph1", "--dir=FWD_B --attr-post-ops=sum+relu mb1ic5ih8oc2kh5ph2", "mb1ic9iw30oc1kw11pw5",
    "mb1ic5id4ih4iw4oc2od4oh4ow4kd3kh3kw3pd1ph1pw1", "--dt=f64 mb1ic6ih8oc3kh3ph1dh1",
    "g3mb1ic12ih8oc9kh3ph1", "--dir=FWD_B --attr-post-ops=sum+relu g4mb1ic8ih9oc32kh5ph2",
    "g2mb1ic4id4ih4iw4oc6od4oh4ow4kd3kh3kw3pd1ph1pw1",
)  # fmt: skip
"""Results of few channels, or of few channels a group, in channels first."""


@pytest.mark.sampled(8, wide=1, every="line")
@pytest.mark.parametrize("line", FEW)
def test_results_of_few_channels_have_vectors_of_pixels(line: str) -> None:
    p, level = Conv.parse(f"--stag=abx --dtag=abx {line}"), host_targets()[0]
    kernel = cs.compile(p, target=level.name, threads=1, dynamic=_dims(p))
    if level.masked_bytes and 2 * p.oc // p.g <= level.lanes(64 if p.dt[0] == "f64" else 32):
        assert (kernel.config.lane, kernel.config.realise) == ("ow", "mask")
    _check(p, kernel, 6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", ["--register=oc:2,ow:16", "--register=oc:1,ow:64 --remainder=ow:32"])
@pytest.mark.parametrize("line", [LINES[0], LINES[4]])
def test_tiles_and_their_remainders(line: str, words: str) -> None:
    """Sums of a result are added once, though the last vector of a row is otherwise computed as a whole."""
    p = Conv.parse(line)
    level = next(t.name for t in host_targets() if t.name.startswith("avx512") or t is host_targets()[-1])
    if not level.startswith("avx512"):  # which has fewer and shorter registers
        words = words.replace("ow:64 --remainder=ow:32", "ow:16 --remainder=ow:8")
    given = f"--target={level} --lane=ow {words} --order=mb,oh,oc,ow --reduce=kh,kw,ic"
    _check(p, cs.compile(p, threads=1, config=given, dynamic=_dims(p)), 10)


COPIED = (
    *LINES[:2], *LINES[3:5], LINES[-1], "--stag=abx --dtag=abx --dt=f64 mb1ic5ih8oc6kh1",
    "--stag=abx --dtag=abx --dt=u8:s8:s32 mb1ic7ih8oc5kh1",
    "--stag=abx --dtag=abx --dt=u8:s8:u8 --attr-zero-points=src:common:3 mb1ic9ih8oc5kh1",
    "--stag=axb --dtag=abx mb1ic7ih8oc5kh1",
)  # fmt: skip
"""Pixels that are read where they are; in the last line, each vector of them is gathered."""


@pytest.mark.sampled(18, wide=1, every="line words")
@pytest.mark.parametrize("words", ["--register=oc:2,ow:{}", "--register=oc:1,ow:{} --threads=2"])
@pytest.mark.parametrize("line", COPIED)
def test_tiles_and_parts_of_tiles_copy_the_pixels_that_they_read(line: str, words: str) -> None:
    """A part of a tile has a copy of its own, at whose start its pixels are; a last vector may be copied again."""
    p, level = Conv.parse(line), host_targets()[0]
    order = ",".join(["mb", *(d for d in ("od", "oh") if d[1] in p.axes), "ow", "oc"])
    reduce = ",".join([*(f"k{a}" for a in p.axes), "ic"])
    given = f"--target={level.name} --lane=ow {words} --order={order} --reduce={reduce} --pack_at=src+ow"
    lanes = level.lanes(64 if p.dt[0] == "f64" else 32)
    kernel = cs.compile(p, config=given.format(3 * lanes), threads=2 if "threads" in words else 1, dynamic=_dims(p))
    _check(p, kernel, 20)


def test_threads_share_rows_where_channels_share_a_copy() -> None:
    """As many rows run as one as leave each thread a part of the image, where it would else have channels."""
    q = replace(Conv.parse(LINES[0]), oc=8, i=(8, 10), o=(8, 10))
    words = "--target=generic --lane=ow --register=oc:1,ow:8 --reduce=kh,kw,ic --threads=2"
    for order, rows in (("mb,oh,oc,ow", 1), ("mb,oh,ow,oc --pack_at=src+ow", 2), ("mb --pack_at=src+ow", 1)):
        config = Config.parse(f"{words} --order={order}")
        assert joined_pixels(q, {t.name: t for t in q.tensors}, config)["oh_end"] == rows


@pytest.mark.parametrize("line", ["mb1ic1040ih4oc1032kh1", "g2mb1ic2064ih4oc1024kh1"])
def test_tiles_of_far_weights_pass_over_all_rows_of_padded_images(line: str) -> None:
    """Rows of an image do not run as one there; packed weights are those of all calls."""
    p, level = Conv.parse(f"--stag=axb --dtag=axb {line}"), registry.target("generic")
    groups = ("g",) if p.g > 1 else ()
    order = ",".join([*groups, "mb,oh,ow,oc"])
    words = f"--target=generic --lane=oc --register=ow:2,oc:8 --order={order} --threads={{}}"
    configs = [Config.parse(words.format(threads)) for threads in (1, 2)]
    orders = [config_of_call(replace(p, o=(6, 6), p=(1, 1)), config, level).order for config in configs]
    assert orders == [(*groups, "oc", "mb", "oh", "ow"), configs[1].order]
    assert config_of_call(replace(p, mb=2), configs[0], level) == configs[0]
    arrays = random_arrays(replace(p, i=(2, 3), o=(4, 5), p=(1, 1)), 3)
    kernel = cs.compile(p, threads=1, config=str(configs[0]), dynamic=_dims(p))
    packed = kernel.pack(to_layout(arrays["wei"], p.tensor("wei").layout))
    for pads in ((0, 0), (1, 1)):
        o = tuple(x + 2 * a for x, a in zip((2, 3), pads))
        q = replace(p, i=(2, 3), o=o, p=pads)
        truth = reference(q, arrays, np.float64)["dst"]
        got = kernel.run(pads=[(a, a) for a in pads], src=to_layout(arrays["src"], q.tensor("src").layout), wei=packed)
        np.testing.assert_array_equal(got["dst"], to_layout(truth, q.dst_layout))


def test_taps_of_other_axes_are_no_part_of_a_tile() -> None:
    """They run as far as the source does, which is known at the call."""
    config = "--lane=ow --register=ow:16,kh:3 --order=mb,g,oc,oh,ow --reduce=ic,kh,kw --realise=mask"
    with pytest.raises(cs.ConfigError, match="--register=kh,ow: dynamic"):
        cs.compile(Conv.parse(LINES[5]), threads=1, config=f"--target=generic {config}", dynamic="mb,ih,iw")


def test_sums_over_the_pixels_of_a_call_have_no_lanes_along_these() -> None:
    p = Conv.parse("--dir=BWD_W --stag=abx --dtag=abx g20mb1ic20ih8oc20kh3ph1")
    kernel = cs.compile(p, threads=1, dynamic="mb,ih,iw")
    assert Config.parse(str(kernel.config)).lane not in ("oh", "ow")


WINDOWS = (
    "--stag=axb --dtag=axb g20mb1ic20ih8oc20kh3ph1",
    "--stag=axb --dtag=axb --attr-post-ops=sum:0.5+relu g16mb1ic16ih8oc16kh3ph1",
    "--stag=axb --dtag=axb g33mb1ic33ih9oc33kh5sh2ph2",
    "--stag=axb --dtag=axb --dir=FWD_B g16mb1ic16ih9oc16kh3ph2dh1",
    "--stag=axb --dtag=axb g16mb1ic16id4ih5iw6oc16od4oh5ow6kd3kh3kw3pd1ph1pw1",
    "--stag=axb --dtag=axb --dt=bf16 g32mb1ic32ih8oc32kh3ph1",
    "--stag=aBx16b --dtag=aBx16b g32mb1ic32ih8oc32kh3ph1",
    "--stag=abx --dtag=abx g5mb1ic5ih12oc5kh3ph1",
    "--stag=abx --dtag=abx --attr-post-ops=sum g5mb1ic5ih12oc5kh5sh2ph2",
)


@pytest.mark.sampled(18, wide=1, every="line")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", WINDOWS)
def test_tiles_of_several_rows_serve_any_sizes(line: str, threads: int) -> None:
    p = Conv.parse(line)
    for level in (host_targets()[0], host_targets()[-1]):
        kernel = cs.compile(p, target=level.name, threads=threads, dynamic=_dims(p))
        if p.rank == 2 and level is host_targets()[0]:
            config = Config.parse(str(kernel.config))
            assert config.realise == "mask"
            assert config.size("oh") > 1 or level.registers < 32  # of which one row takes what there is
        _check(kernel.problem, kernel, 15)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", ["", "--attr-post-ops=sum "])
@pytest.mark.parametrize("rows", [2, 3, 4])
def test_tiles_of_rows_of_any_height(operation: str, rows: int) -> None:
    """The last tile overlaps the one before, unless the result is added to."""
    p = Conv.parse(f"--stag=axb --dtag=axb {operation}g16mb1ic16ih8oc16kh3ph1")
    lanes = host_targets()[0].lanes(32)
    words = f"--lane=g --register=oh:{rows},ow:2,g:{lanes},kh:3,kw:3 --order=mb,g,oc,oh,ow"
    words += " --reduce=ic,kh,kw --realise=mask"
    kernel = cs.compile(p, threads=1, config=words, dynamic="mb,ih,iw")
    wei = random_arrays(p, 3)["wei"]
    packed = kernel.pack(to_layout(wei, p.wei_layout))
    for height in range(1, 15):
        q = replace(p, i=(height, 9), o=(height, 9))
        arrays = {**random_arrays(q, height), "wei": wei}
        truth = to_layout(reference(q, arrays, np.float64)["dst"], q.dst_layout)
        given = {t.name: to_layout(arrays[t.name], t.layout) for t in q.inputs} | {"wei": packed}
        np.testing.assert_array_equal(kernel.run(pads=1, **given)["dst"].astype(np.float64), truth)


NARROW = (
    "--stag=abx --dtag=abx g3mb1ic3ih8oc3kh5ph2",
    "--stag=abx --dtag=abx g3mb1ic3ih30oc3kh7sh2ph3",
    "--stag=abx --dtag=abx --attr-post-ops=sum+relu g2mb1ic2ih30oc2kh11sh2ph5",
    "--stag=abx --dtag=abx --dt=bf16 g2mb1ic2ih30oc2kh3dh2ph1",
    "--stag=abx --dtag=abx --dt=f16 g2mb1ic2ih30oc2kh5sh2ph1",
    "--stag=abx --dtag=abx --dt=f64 g2mb1ic2id8ih8iw8oc2od8oh8ow8kd1kh5kw5pd0ph2pw2",
)


@pytest.mark.sampled(3, wide=1, every="line")
@pytest.mark.parametrize("line", NARROW)
def test_narrow_images_with_wide_pads(line: str) -> None:
    """Images of fewer pixels than a vector, and pads that exceed them."""
    p = Conv.parse(line)
    kernel = cs.compile(p, target=host_targets()[0].name, threads=1, dynamic=_dims(p))
    assert Config.parse(str(kernel.config)).lane == "ow"
    packed = kernel.pack(to_layout(random_arrays(p, 7)["wei"], p.wei_layout))
    wei = random_arrays(p, 7)["wei"]
    for size in (1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 20, 33):
        for pad in (0, 2, size + 1):
            i = tuple(size if a == "w" else max(size // 2, 1) for a in p.axes)
            o = [(x + 2 * pad - keff) // s + 1 for x, keff, s in zip(i, p.keff, p.s)]
            if min(o) < 1 or max(o) > 60:
                continue
            q = replace(p, mb=1, i=i, o=tuple(o), p=(pad,) * p.rank)
            arrays = {**random_arrays(q, size), "wei": wei}
            truth = to_layout(reference(q, arrays, np.float64)["dst"], q.dst_layout)
            given = {t.name: to_layout(arrays[t.name], t.layout) for t in q.inputs} | {"wei": packed}
            got = kernel.run(pads=pad, **given)["dst"]
            np.testing.assert_array_equal(got.astype(np.float64), truth.astype(np.float64), err_msg=f"{q} {pad}")


def test_infinite_weights_of_absent_taps_are_not_multiplied() -> None:
    kernel = cs.compile("--stag=abx --dtag=abx g2mb1ic2ih7oc2kh3ph1", threads=1, dynamic="mb,ih,iw")
    weights = np.ones((2, 1, 1, 3, 3), np.float32)
    weights[1, 0, 0, 0, 0] = np.inf
    result = kernel(np.ones((1, 2, 5, 5), np.float32), kernel.pack(weights), pads=1)
    infinite = np.zeros((2, 5, 5), bool)
    infinite[1, 1:, 1:] = True
    np.testing.assert_array_equal(np.isinf(result[0]), infinite)


def test_images_of_few_rows_have_even_tiles() -> None:
    p, target = Conv.parse("--stag=abx --dtag=abx g8mb1ic8ih40oc8kh3ph1"), host_targets()[0]
    words = "--lane=ow --register=oh:7,ow:16,kh:3 --order=mb,g,oc,oh,ow --reduce=kw,ic,kh --realise=mask"
    config = Config.parse(f"--target={target.name} {words}")
    sizes = (1, 2, 5, 7, 8, 13, 14, 15, 40)
    calls = (replace(p, i=(n, 20), o=(n, 20)) for n in sizes)
    tiles = [config_of_call(q, config, target).size("oh") for q in calls]
    assert tiles == ([2, 2, 5, 7, 4, 7, 7, 7, 7] if 0 < target.masked_bytes <= 4 else [7] * len(sizes))


def test_small_images_with_borders_run_through_a_table() -> None:
    p = Conv.parse("--stag=axb --dtag=axb g32mb1ic32ih7oc32kh5ph2")
    target = host_targets()[0]
    config = Config.parse(str(cs.compile(p, target=target.name, threads=1, dynamic="mb,ih,iw").config))
    assert config.realise == "mask" and config_of_call(p, config, target).realise == "indirection"
    assert config_of_call(replace(p, i=(28, 28), o=(28, 28)), config, target) == config
    assert config_of_call(replace(p, o=(3, 3), p=(0, 0)), config, target) == config
    assert pixels_at_borders(replace(p, i=(28, 28), o=(14, 14), s=(2, 2))) == {"h": 2, "w": 2}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", ["mb1ic3ih32oc24kh3ph1", "mb1ic1ih40oc16kh5sh2ph2", "mb1ic4iw90oc20kw9pw4"])
@pytest.mark.parametrize("tag", ["axb", "abx"])
def test_windows_of_few_channels_have_no_table(line: str, tag: str) -> None:
    p = Conv.parse(f"--stag={tag} --dtag={tag} {line}")
    with interning():
        found = dynamic_config(general(p).canonical(), registry.target("avx2"))
        assert (found.realise, found.lane) == ("mask", "oc")
    words = "--lane=oc --register=ow:2,oc:16 --realise=mask"
    kernel = cs.compile(p, threads=1, dynamic=_dims(p), config=words)
    small = replace(p, i=p.k, o=tuple(2 * pad // s + 1 for pad, s in zip(p.p, p.s)))
    config = Config.parse(str(kernel.config))
    assert config_of_call(small, config, registry.host_target()).realise == "indirection"
    _check(kernel.problem, kernel, 8)


@pytest.mark.parametrize(
    ("tag", "window", "level", "lane"),
    [
        ("abx", "kh3kw3ph1pw1", "avx512", "ow"),
        ("abx", "kh3kw3ph1pw1", "avx2", "oc"),
        ("axb", "kh3kw3ph1pw1", "avx512", "oc"),
        ("abx", "kh5kw1ph2pw0", "avx512", "oc"),  # images may have one column
    ],
)
def test_few_channels_are_stored_in_rows_where_the_first_cache_keeps_no_line_of_each(
    tag: str, window: str, level: str, lane: str
) -> None:
    p = Conv.parse(f"--stag={tag} --dtag={tag} mb1ic4ih64iw64oc64{window}")
    target = registry.target(level)
    kept = target.l1.lines_kept(target.l1.way, 0)
    assert (kept < target.width(dtype("f32"))) == (level == "avx512")
    with interning():
        assert dynamic_config(general(p).canonical(), target).lane == lane


def test_tiles_of_a_group_follow_one_another() -> None:
    """They share rows of the source, of which groups in channels first have none in common."""
    p = Conv.parse("--stag=abx --dtag=abx g8mb1ic8ih32oc8kh3ph1")
    for threads in (1, 2):
        kernel = cs.compile(p, threads=threads, dynamic="mb,ih,iw")
        order = Config.parse(str(kernel.config)).order
        assert kernel.config.lane == "ow" and order.index("g") < order.index("oh")


def test_weights_of_windows_are_finite() -> None:
    """A small image is read through a table, whose zeros are multiplied."""
    kernel = cs.compile("--stag=axb --dtag=axb g16mb1ic16ih7oc16kh5ph2", threads=1, dynamic="mb,ih,iw")
    weights = np.ones((16, 1, 1, 5, 5), np.float32)
    weights[3, 0, 0, 1, 1] = np.inf
    with pytest.raises(cs.UnsupportedError, match="hold infinities or NaN"):
        kernel.pack(weights)
    x = np.ones((1, 16, 7, 7), np.float32)
    assert np.isinf(kernel(x, weights)[0, 3, 3, 3]) and np.isfinite(kernel(x, weights)[0, 2]).all()


def test_a_stage_of_groups_has_a_table() -> None:
    chain = "--stag=abx --dtag=abx mb1ic4ih6oc8kh1 -> --stag=abx --dtag=abx g8mb1ic8ih6oc8kh3ph1"
    kernel = cs.compile(chain, threads=1, dynamic="mb,ih,iw")
    one, two = np.ones((8, 4, 1, 1), np.float32), np.ones((8, 1, 1, 3, 3), np.float32)
    for size in (3, 20):
        result = kernel.run(src=np.ones((2, 4, size, size), np.float32), wei_1=one, wei_2=two)["dst"]
        assert result.shape == (2, 8, size, size) and (result[:, :, 1:-1, 1:-1] == 36).all()


GROUPS = (
    "--stag=axb --dtag=axb g8mb1ic32ih8oc32kh3ph1",
    "--stag=axb --dtag=axb g8mb1ic24ih9oc24kh3sh2ph1",
    "--stag=axb --dtag=axb --dir=FWD_B --attr-post-ops=relu g6mb1ic24ih8oc12kh1",
    "--stag=axb --dtag=axb --dt=bf16 g16mb1ic64ih8oc64kh3ph1",
    "--stag=axb --dtag=axb --dt=u8:s8:s32 g16mb1ic64ih8oc64kh3ph1",
    "--stag=aBx16b --dtag=aBx16b g8mb1ic32ih8oc32kh3ph1",
)


@pytest.mark.sampled(5, wide=1, every="line")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", GROUPS)
def test_groups_of_few_channels_share_vectors(line: str, threads: int) -> None:
    p = Conv.parse(line)
    for level in (host_targets()[0], host_targets()[-1]):
        kernel = cs.compile(p, target=level.name, threads=threads, dynamic=_dims(p))
        if level is host_targets()[0]:
            assert Config.parse(str(kernel.config)).lane == "g_oc"
        _check(kernel.problem, kernel, 8)


def test_groups_that_are_known_at_the_call_alone_are_not_fused() -> None:
    with pytest.raises(ConfigError, match=r"--fuse=.*: dynamic sizes need"):
        cs.compile("--stag=axb --dtag=axb mb1ic8ih8oc8kh3ph1", dynamic="mb,ih,iw", config="--fuse=oh+ow")

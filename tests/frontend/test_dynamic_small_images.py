"""Kernels for any sizes in calls with images of one pixel, small images, and images of which borders are a large part.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import convsmith as cs
from convsmith.compiler.dynamic import at_call
from convsmith.layout.reorder import to_layout
from convsmith.machine.registry import host_targets, target
from convsmith.problem import Conv, reference
from convsmith.problem.data import random_arrays
from convsmith.schedule.call_variants import variant_of_call
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import at_sizes
from convsmith.tune.dynamic import dynamic_config

ONE_PIXEL = (
    "--stag=abx --dtag=abx mb1ic7ih9oc30kh1",
    "--stag=abx --dtag=abx g2mb1ic6ih9oc34kh1",
    "--stag=abx --dtag=abx --dir=FWD_B --attr-post-ops=relu mb1ic20iw9oc13kw1",
    "--stag=abx --dtag=abx --attr-post-ops=sum:0.5+relu mb1ic5id5ih5iw5oc7kd1kh1kw1",
    "--stag=abx --dtag=abx --dt=bf16 mb1ic6ih9oc30kh1",
    "--stag=abx --dtag=abx --dt=f64 mb1ic6ih9oc30kh1",
    "--stag=abx --dtag=abx mb1ic7ih9oc24kh3ph1",
    "--stag=abx --dtag=axb mb1ic7ih9oc24kh3ph1",
    "--stag=abx --dtag=abx --dt=u8:s8:s32 --attr-zero-points=src:common:2 mb1ic7ih9oc24kh3ph1",
    "--stag=abx --dtag=abx g5mb1ic5ih9oc5kh3ph1",
    "--stag=abx --dtag=abx --attr-post-ops=add:f32:per_tensor mb1ic7ih9oc14kh1",
)


def _check(k: cs.CompiledKernel, calls: list[tuple[Conv, list[tuple[int, int]]]]) -> None:
    """Compare calls with one packing."""
    p = k.problem
    weights = {t.name: to_layout(random_arrays(p, 7)[t.name], t.layout) for t in p.inputs if t.name in ("wei", "bia")}
    packed = k.pack(weights["wei"], weights.get("bia"))
    for seed, (q, pads) in enumerate(calls):
        arrays = random_arrays(q, seed) | weights
        truth = to_layout(reference(q, arrays, np.float64)["dst"], q.dst_layout)
        given = {t.name: to_layout(arrays[t.name], t.layout) for t in q.inputs} | {"wei": packed}
        given.pop("bia", None)
        got = k.run(pads=pads, **given)["dst"]
        np.testing.assert_array_equal(got.astype(np.float64), truth.astype(np.float64), err_msg=f"{q} {pads}")


def _dims(p: Conv) -> str:
    return ",".join(["mb", *(f"i{a}" for a in p.axes)])


@pytest.mark.sampled(8, "line")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", [host_targets()[n].name for n in (0, -1)])
@pytest.mark.parametrize("line", ONE_PIXEL)
def test_images_of_one_pixel(line: str, level: str, threads: int) -> None:
    p = Conv.parse(line)
    k = cs.compile(p, target=level, threads=threads, dynamic=_dims(p))
    one, pads = (1,) * p.rank, [(pad, pad) for pad in p.p]
    calls = [(at_sizes(k.problem, mb, one, one, p.p), pads) for mb in (1, 2, 3, 8, 17, 33)]
    _check(k, [*calls, (at_sizes(k.problem, 2, p.i, p.o, p.p), pads)])


@pytest.mark.parametrize("taps, lanes", [("kh1", "ow"), ("kh3ph1", "oc")])
def test_channels_of_one_pixel_are_adjacent(taps: str, lanes: str) -> None:
    p, machine = Conv.parse(f"--stag=abx --dtag=abx mb1ic64ih9oc200{taps}"), target("avx512")
    config = dynamic_config(p, machine)
    assert config.lane == lanes
    called, found = variant_of_call(at_sizes(p, 5, (1, 1), (1, 1), p.p), config, machine)
    assert (called.stag, called.dtag, found.lane) == ("axb", "axb", "oc")
    assert found.size("oc") == config.size("oc") and found.reduce == config.reduce
    for q in (p, at_sizes(p, 1, (1, 2), (1, 2), p.p)):
        assert variant_of_call(q, config, machine) == (q, config)
    axb = replace(p, stag="axb", dtag="axb", mb=5, i=(1, 1), o=(1, 1))
    assert variant_of_call(axb, dynamic_config(axb, machine), machine)[0] is axb


@pytest.mark.skipif("avx512" not in [t.name for t in host_targets()], reason="vectors of 16 lanes")
def test_a_packed_tile_shorter_than_a_vector_is_read_by_parts() -> None:
    """Its elements lie as in a kernel whose lanes are pixels."""
    line = "--stag=axb --dtag=axb mb1ic6ih3oc30kh1"
    words = "--target=avx512 --lane=oc --register=oc:14,ow:2 --reduce=kh,kw,ic"
    k = cs.compile(line, dynamic="mb,ih,iw", threads=1, config=words)
    assert "wei_p: f32[3, 6, 1, 14]" in str(k.ir()) and "wei_p[wei_p.ic]{16/14}" in str(k.ir())
    along_rows = words.replace("lane=oc", "lane=ow").replace("ow:2", "ow:16")
    rows = cs.compile(line.replace("axb", "abx"), dynamic="mb,ih,iw", threads=1, config=along_rows)
    w = np.ones((30, 6, 1, 1), np.float32)
    assert k.pack(w).signature == rows.pack(w).signature


def _sizes(line: str, mb: int, i: tuple[int, ...], threads: int = 1) -> dict[str, int | None]:
    """The sizes of the kernel of ``line`` in a call of images of ``i`` pixels."""
    p = Conv.parse(line)
    k = cs.compile(p, dynamic=_dims(p), threads=threads)
    o = tuple((x + 2 * pad - keff) // s + 1 for x, pad, keff, s in zip(i, p.p, p.keff, p.s))
    artifact = at_call(k.artifact, at_sizes(k.problem, mb, i, o, p.p))
    return {a.name: a.value for a in artifact.entries["main"].arguments if a.role == "size"}


@pytest.mark.parametrize(
    "i, taps",
    [((1, 1), (1, 2, 1, 2)), ((1, 5), (1, 2, 0, 3)), ((5, 2), (0, 3, 0, 3))],
)
def test_taps_that_no_pixel_has_are_left_out(i: tuple[int, ...], taps: tuple[int, ...]) -> None:
    line = "--stag=axb --dtag=axb mb1ic6ih9oc20kh3ph1"
    names = ("first_h", "past_h", "first_w", "past_w")
    assert tuple(_sizes(line, 2, i)[n] for n in names) == taps
    zeros = f"--dt=s8:s8:s32 --attr-zero-points=src:common:2 {line}"
    k = cs.compile(zeros, dynamic="mb,ih,iw", threads=1)
    if Config.parse(str(k.config)).offsets == "sums":  # absent pixels are zero points
        assert tuple(_sizes(zeros, 2, i)[n] for n in names) == (0, 3, 0, 3)


@pytest.mark.sampled(2, "mb", "i")
@pytest.mark.parametrize(
    "line, mb, i, ends",
    [
        ("--stag=axb --dtag=axb mb1ic6ih9oc20kh3ph1", 4, (7, 7), (1, 1, 196)),
        ("--stag=axb --dtag=axb mb1ic6ih9oc20kh3ph1", 4, (20, 20), (4, 1, 400)),  # large images
        ("--stag=axb --dtag=axb mb1ic6ih9oc20kh3ph1", 1024, (9, 9), (1024, 1, 81)),  # many pointers
        ("--stag=abx --dtag=abx mb1ic6ih9oc20kh3ph1", 4, (7, 7), (4, 1, 49)),  # images lie apart
        ("--stag=axb --dtag=axb --attr-post-ops=add:f32:per_tensor mb1ic6ih9oc20kh3ph1", 4, (7, 7), (4, 1, 49)),
        ("--stag=axb --dtag=axb --attr-post-ops=add:f32:8 mb1ic6ih9oc20kh3ph1", 4, (7, 7), (4, 7, 7)),
    ],
)
def test_small_images_run_as_one_row(line: str, mb: int, i: tuple[int, ...], ends: tuple[int, ...]) -> None:
    found = _sizes(line, mb, i)
    assert tuple(found[n] for n in ("mb_end", "oh_end", "ow_end")) == ends


@pytest.mark.sampled(12, wide=1, every="line")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "line",
    [
        "--stag=axb --dtag=axb mb1ic6ih9oc20kh3ph1",
        "--stag=axb --dtag=axb mb1ic6ih9oc20kh3sh2ph2",
        "--stag=axb --dtag=axb mb1ic6iw9oc20kw5dw1pw4",
        "--stag=axb --dtag=axb --dt=bf16 mb1ic6ih9oc20kh3ph1",
        "--stag=axb --dtag=axb --attr-post-ops=add:f32:8 mb1ic6ih9oc20kh3ph1",
        "--stag=axb --dtag=axb mb1ic6ih9oc20kh1sh2ph3",
        "--stag=abx --dtag=abx mb1ic6ih9oc20kh1sh2ph3",
        "--stag=axb --dtag=axb --dt=u8:s8:s32 --attr-zero-points=src:common:2 mb1ic6ih9oc20kh1sh2ph3",
    ],
)
def test_any_small_images(line: str, threads: int) -> None:
    p, rng = Conv.parse(line), random.Random(line)
    k = cs.compile(p, threads=threads, dynamic=_dims(p))
    calls = list[tuple[Conv, list[tuple[int, int]]]]()
    while len(calls) < 20:
        i = tuple(rng.randrange(1, rng.choice((3, 6, 12))) for _ in p.axes)
        pads = [(rng.randrange(0, 5), rng.randrange(0, 5)) for _ in p.axes]
        o = tuple((x + a + b - keff) // s + 1 for x, (a, b), keff, s in zip(i, pads, p.keff, p.s))
        if min(x + a + b - keff for x, (a, b), keff in zip(i, pads, p.keff)) >= 0:
            mb = rng.choice((1, 2, 7))
            calls.append((replace(k.problem, mb=mb, i=i, o=o, p=tuple(a for a, _ in pads)), pads))
    _check(k, calls)


def test_pixels_without_a_tap_are_not_computed() -> None:
    p, machine = Conv.parse("--stag=axb --dtag=axb mb1ic2048ih7oc512oh7kh1sh2ph3"), target("avx512")
    config = dynamic_config(p, machine)
    _, found = variant_of_call(p, config, machine)
    assert config.realise == "indirection" and found.realise == "mask" and found.order[0] == "oc"
    assert found.size("ow") == 3 and found.size("oc") == config.size("oc")
    q = at_sizes(p, 1, (14, 14), (7, 7), (0, 0))
    assert variant_of_call(q, config, machine)[1] == config

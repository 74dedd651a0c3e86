"""One kernel for any batch, extents and pads."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from callers import on_threads
from guarded import Compiled, check_result, expected
from oracles import small_target
from sizes_of_call import AtSizes

import convsmith as cs
from convsmith.codegen.artifact import Artifact
from convsmith.compiler import service
from convsmith.compiler.driver import lower
from convsmith.compiler.dynamic import at_call, requirements
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.intern import interning
from convsmith.ir.walk import loops_of
from convsmith.layout.reorder import to_layout
from convsmith.machine import registry
from convsmith.machine.registry import host_targets
from convsmith.passes.manager import run_steps
from convsmith.problem import Conv, parse_problem, reference
from convsmith.problem.data import random_arrays
from convsmith.schedule.dynamic import at_sizes, check_dynamic, general, serves_unpadded
from convsmith.schedule.dynamic_table import table_of_call
from convsmith.schedule.plan import plan
from convsmith.tune.dynamic import dynamic_config

LINES = (
    "mb1ic3ih9iw9oc17oh9ow9kh3kw3ph1pw1",
    "g37mb1ic37ih9iw9oc37oh9ow9kh3kw3ph1pw1",
    "--dir=FWD_B --attr-post-ops=relu mb1ic16ih9iw9oc33oh5ow5kh3kw3sh2sw2ph1pw1",
    "mb1ic5iw16oc8ow16kw5dw1pw4",
    "mb1ic5iw16oc70ow16kw3pw1",
    "g2mb1ic6ih8iw8oc10oh8ow8kh1kw1",
    "mb1ic2id4ih5iw5oc5od4oh5ow5kd3kh3kw3pd1ph1pw1",
    "--dt=u8:s8:s32 mb1ic8ih8iw8oc16oh8ow8kh3kw3ph1pw1",
    "--dt=bf16 mb1ic6ih8iw8oc20oh8ow8kh3kw3ph1pw1",
    "--dt=u8:s8:s8 --attr-scales=wei:common:0.5 mb1ic7ih8iw8oc9oh8ow8kh3kw3ph1pw1",
    "--dt=u8:s8:s32 --attr-zero-points=src:common:2 mb1ic8ih8iw8oc16oh8ow8kh3kw3ph1pw1",
    "--dt=s8:s8:s32 --attr-zero-points=src:common:2 mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--dt=s8:u8:s32 --attr-zero-points=src:common:2+wei:common:3 mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--dt=s8:s8:s32 --attr-zero-points=src:per_dim_1+wei:per_oc mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--dt=u8:s8:u8 --dir=FWD_B --attr-scales=src:common:0.5+wei:per_oc+dst:common:4 "
    "--attr-zero-points=src:common:2+dst:common:3 mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--attr-post-ops=add:f32:per_oc+mul:f32:8 mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--attr-post-ops=add:f32:per_tensor mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--attr-post-ops=sum:0.5+prelu:per_oc mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--dir=FWD_B --dt=u8:s8:s32 --bia-dt=s32 mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--wtag=axb mb1ic9ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--stag=aBcd16b --dtag=aBcd16b mb1ic20ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--stag=aBcd16b --dtag=axb --dt=s8:s8:s32 --attr-zero-points=src:per_dim_1 mb1ic20ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--stag=abx --dtag=abx mb1ic20ih8iw8oc17oh8ow8kh3kw3ph1pw1",
    "--stag=abx --dtag=aBcd16b --dt=u8:s8:u8 --attr-zero-points=src:common:9 g19mb1ic19ih8iw8oc19oh8ow8kh3kw3ph1pw1",
    "--stag=abx --dtag=abx mb1ic7ih8iw8oc40oh8ow8kh1kw1",
    "mb1ic7id2ih4iw4oc40od2oh4ow4kd1kh1kw1",
    "--dt=bf16 mb1ic7ih8iw8oc40oh8ow8kh1kw1",
    "--dt=u8:s8:s32 --attr-zero-points=src:common:2 mb1ic7ih8iw8oc40oh8ow8kh1kw1",
    "--dt=s8:s8:s32 --attr-zero-points=src:per_dim_1+wei:per_oc mb1ic7ih8iw8oc40oh8ow8kh1kw1",
    "g17mb1ic17ih8iw8oc17oh8ow8kh1kw1",
    "--attr-post-ops=add:f32:per_tensor mb1ic7ih8iw8oc40oh8ow8kh1kw1",
    "--attr-post-ops=add:f32:8 mb1ic7ih8iw8oc40oh8ow8kh1kw1",
    "mb1ic40ih9iw9oc3oh9ow9kh3kw3ph1pw1",
    "--dir=FWD_B --attr-post-ops=relu mb1ic37ih8iw8oc2oh8ow8kh1kw1",
    "--dt=bf16 mb1ic36ih8iw8oc1oh8ow8kh3kw3ph1pw1",
    "g2mb1ic72ih8iw8oc2oh8ow8kh2kw2",
)


def dims_of(p: Conv) -> str:
    return ",".join(["mb", *(f"i{a}" for a in p.axes)])


def at(p: Conv, rng: random.Random) -> tuple[Conv, list[tuple[int, int]]]:
    """The problem at sizes and pads of its own."""
    small = p.rank == 3
    i = tuple(rng.randrange(1, 7 if small else 20) for _ in p.axes)
    pads = [(rng.randrange(0, 4), rng.randrange(0, 4)) for _ in p.axes]
    o = [(x + a + b - keff) // s + 1 for x, (a, b), keff, s in zip(i, pads, p.keff, p.s)]
    if min(o) < 1:
        return at(p, rng)
    return replace(p, mb=rng.randrange(1, 3), i=i, o=tuple(o), p=tuple(a for a, _ in pads)), pads


def in_layouts(p: Conv, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs of a call."""
    return {t.name: to_layout(arrays[t.name], t.layout) for t in p.inputs}


@pytest.mark.sampled(36)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("line", LINES)
def test_any_sizes_and_pads(line: str, number: int) -> None:
    """On two levels and numbers of threads, which differ from line to line."""
    levels = host_targets()
    number += 2 * LINES.index(line)
    p, rng = Conv.parse(line), random.Random(line)
    k = cs.compile(p, target=levels[number % len(levels)].name, threads=1 + number % 3, dynamic=dims_of(p))
    assert k.dynamic and k.requirements == {"ic": p.ic}
    weights = in_layouts(k.problem, random_arrays(k.problem, 7))
    packed = k.pack(weights["wei"], weights.get("bia"))
    for seed in range(25):
        q, pads = at(k.problem, rng)
        arrays = random_arrays(q, seed)
        arrays |= {name: x for name, x in weights.items() if name in ("wei", "bia")}
        truth = to_layout(reference(q, arrays, np.float32)["dst"], q.dst_layout)
        given = in_layouts(q, arrays) | {"wei": packed}
        given.pop("bia", None)
        got = k.run(pads=pads, **given)["dst"]
        np.testing.assert_array_equal(got.astype(np.float64), truth.astype(np.float64), err_msg=f"{q} {pads}")


def test_the_kernel_is_compiled_once_and_results_lie_channels_last() -> None:
    k = cs.compile(LINES[0], dynamic="mb,ih,iw")
    assert cs.compile(LINES[0], dynamic="mb,ih,iw") is k
    w = np.ones((17, 3, 3, 3), np.float32)
    x = np.ones((2, 3, 11, 13), np.float32)
    y = k(x, w)
    assert y.shape == (2, 17, 11, 13) and y.transpose(0, 2, 3, 1).flags.c_contiguous
    assert y[0, 0, 0, 0] == 12 and y[1, 16, 5, 5] == 27
    out = np.zeros(y.shape, np.float32)
    assert k(x.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2), w, out=out) is out and (out == y).all()
    assert k(x[:0], w).shape == (0, 17, 11, 13)
    assert k(x, w, pads=0).shape == (2, 17, 9, 11)
    assert k(x, w, pads=((0, 2), 1)).shape == (2, 17, 11, 13)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("line", [LINES[n] for n in (0, 1, 4, 6, 11, 13, 16, 17, 20, 21, 22, *range(-12, -2))])
def test_nothing_is_touched_beyond_the_arrays(line: str) -> None:
    """Canaries around all arrays; tasks in chunks, last one first."""
    k, rng = cs.compile(line, threads=7, dynamic=dims_of(Conv.parse(line))), random.Random(line)
    for seed in range(6):
        q, _ = at(k.problem, rng)
        if serves_unpadded(q, k.config):
            q = at_sizes(q, q.mb, q.i, q.i, (0,) * q.rank)  # pixels that are read in place are all there
        arrays = random_arrays(q, seed)
        compiled = Compiled(q, at_call(k.artifact, q))
        for chunks in (1, 3, 7):
            check_result(q, compiled(arrays, chunks), expected(q, arrays))


def test_the_same_bits_on_any_number_of_threads() -> None:
    line = "mb1ic7ih9iw9oc70oh9ow9kh3kw3ph1pw1"
    rng = np.random.default_rng(1)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 7, 3, 3), (2, 7, 23, 31)))
    results = [cs.compile(line, threads=n, dynamic="mb,ih,iw")(x, w).tobytes() for n in (1, 2, 3, 5)]
    assert len(set(results)) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_leave_their_registers_before_a_long_epilogue(threads: int) -> None:
    line = "--attr-post-ops=gelu_erf ic6oc40kh3kw3ph1pw1"
    k = cs.compile(f"{line}ih9iw9", dynamic="mb,ih,iw", threads=threads)
    assert k.config.spill_sums
    rng = np.random.default_rng(1)
    for ih, iw in ((1, 1), (5, 13), (8, 24)):
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, ih, iw), (40, 6, 3, 3)))
        same = cs.compile(f"--accuracy=strict --stag=axb --dtag=axb {line}ih{ih}iw{iw}", threads=1)
        assert k(x, w).tobytes() == same(x, w).tobytes()


@pytest.mark.parametrize("realise", ["indirection", "mask"])
def test_threads_share_no_loop_within_pieces_of_a_row(realise: str) -> None:
    line = "--stag=axb --dtag=axb mb2ic3ih9iw11oc20kh3kw3ph1pw1"
    config = f"--target=generic --lane=oc --register=ow:4,oc:4 --order=mb,oh,ow,oc --realise={realise} --threads=3"
    k, p = cs.compile(line, dynamic="mb,ih,iw", config=config), Conv.parse(line)
    arrays = random_arrays(p, 5)
    compiled = Compiled(p, at_call(k.artifact, p))
    for chunks in (1, 2, 5):
        check_result(p, compiled(arrays, chunks), expected(p, arrays))


@pytest.mark.parametrize("taps", ["kh1kw1", "kh3kw3ph1pw1"])
def test_vectors_that_channels_fill_in_part_are_multiplied_whole(taps: str) -> None:
    k = cs.compile(f"--stag=axb --dtag=axb mb1ic8ih9iw9oc24{taps}", dynamic="mb,ih,iw", target="avx512", threads=1)
    with k.planned() as plan:
        products = [line for line in str(lower(plan).kernel).splitlines() if "vfmadd" in line]
    assert products and not any("/8}" in line for line in products)


def test_tasks_of_threads_are_divided_by_the_sizes_of_the_call() -> None:
    k = cs.compile("mb1ic8ih9oc40kh3ph1", dynamic="mb,ih,iw", target="generic", threads=2)
    with k.planned() as plan:
        text = str(lower(plan).kernel)
    assert "for task in 0 .. mb_end * oh_end * 5 #parallel" in text and "(task // 5) // oh_end" in text
    k = cs.compile("mb1ic8iw9oc40kw3pw1", dynamic="mb,iw", target="generic", threads=2)
    with k.planned() as plan:
        text = str(lower(plan).kernel)
    assert "for task in 0 .. mb_end * ((ow_end + 5) // 6) * 5 #parallel" in text


def test_lines_that_differ_in_sizes_only_have_the_same_kernel() -> None:
    pages = set()
    for line in ("mb1ic3ih9iw9oc17oh9ow9kh3kw3ph1pw1", "mb7ic3ih1iw5oc17oh4ow8kh3kw3ph3pw3"):
        p = Conv.parse(f"--stag=axb --dtag=axb --attr-post-ops=add:f32:per_tensor {line}")
        pages.add(str(general(check_dynamic(p)).canonical()))
    assert len(pages) == 1


def test_a_second_compile_is_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cs.settings.scope(cache=str(tmp_path)):
        p, target = Conv.parse(f"--stag=axb --dtag=axb {LINES[0]}"), host_targets()[0]
        first = CompiledKernel(p, target, dynamic="mb,ih,iw")
        monkeypatch.setattr(service, "_compile", None)
        second = CompiledKernel(replace(p, mb=5), target, dynamic="mb,ih,iw")
        assert second.artifact == first.artifact and second.requirements == {"ic": 3}
        x, w = np.ones((2, 3, 18, 15), np.float32), np.ones((17, 3, 3, 3), np.float32)
        assert (second(x, first.pack(w)) == first(x, w)).all()
        for dims, n, config in (
            ("mb,ih", 1, None),
            ("mb,ih,iw", 2, None),
            ("mb,ih,iw", 1, first.config.changed(register=())),
        ):
            with pytest.raises(cs.InternalError) as error:  # another requirement, number of threads, or config
                CompiledKernel(p, target, config, n, dynamic=dims)
            assert f"dynamic='\"'\"'{dims}'" in error.value.repro


def test_requirements_are_part_of_the_artifact() -> None:
    k = cs.compile("mb2ic3ih9iw9oc4oh9ow9kh3kw3ph1pw1", dynamic="ih,mb")
    again = Artifact.from_bytes(k.artifact.to_bytes())
    assert again == k.artifact and str(again.requirements) == "ic == 3, mb >= 0, ih >= 0, iw == 9"
    assert again.requirements.fixed == {"ic": 3, "iw": 9}


def test_explain() -> None:
    k = cs.compile("mb2ic5ih9iw9oc4oh9ow9kh3kw3ph1pw1", dynamic="ih,mb", threads=2)
    page = k.explain()
    for text in (
        "sizes         those of a call: ic == 5, mb >= 0, ih >= 0, iw == 9; pads are arguments",
        "the kernel is given mb_end, oh_end, ow_end, src_s0, src_s1, dst_s0, dst_s1, low_h, high_h, row_h, step_h",
        "around the register tile: mb given at the call, oh given at the call, oc.o 1, ow.o given at the call",
        f"config        {k.config}\n", "compressed, in sections: 792 bytes",
    ):  # fmt: skip
        assert text in page


def test_zero_points_and_scales_of_the_call() -> None:
    line = "--dt=u8:s8:s8 --attr-scales=wei:per_oc --attr-zero-points=src:common:3+dst:common:1"
    k = cs.compile(f"{line} mb1ic8ih8iw8oc16oh8ow8kh3kw3ph1pw1", dynamic="mb,ih,iw")
    packed = k.pack(random_arrays(k.problem, 0)["wei"])
    q = at_sizes(k.problem, 2, (5, 6), (5, 6), (1, 1))
    for seed, (src, dst) in enumerate(((3, 1), (255, -7), (0, 5), (255, 1))):
        arrays = random_arrays(q, seed) | {"wei": random_arrays(k.problem, 0)["wei"]}
        arrays |= {"zero_points_src": np.int32([src]), "zero_points_dst": np.int32([dst])}
        assert (k.run(**{**arrays, "wei": packed})["dst"] == expected(q, arrays)["dst"]).all()
    with pytest.raises(cs.UsageError, match=r"scales_wei: missing, without a default: legal is k\.run"):
        k(arrays["src"], packed)
    out = np.full((2, 16, 5, 6), 77, np.int8)
    with pytest.raises(cs.UsageError, match=r"zero_points_src is -1: .* stores it as u8, from 0 to 255"):
        k.run(**{**arrays, "wei": packed, "zero_points_src": np.int32([-1]), "dst": out})
    assert (out == 77).all()


def test_operands_are_those_of_the_call() -> None:
    k = cs.compile(f"--attr-post-ops=add:f32:per_tensor {LINES[0]}", dynamic="mb,ih,iw")
    assert [t.name for t in k.arguments] == ["src", "wei", "post_op_0", "dst"]
    x, w = np.ones((2, 3, 5, 6), np.float32), np.ones((17, 3, 3, 3), np.float32)
    with pytest.raises(cs.UsageError, match=r"post_op_0: dim 0 .* is 1, shape \(1, 17, 9, 9\); legal is 2"):
        k.run(src=x, wei=w, post_op_0=np.ones((1, 17, 9, 9), np.float32))
    more = np.ones((2, 17, 5, 6), np.float32)
    assert (k.run(src=x, wei=w, post_op_0=more)["dst"] == cs.conv2d(x, w, padding=1) + 1).all()


def test_tall_images_have_three_rows_of_pointers() -> None:
    p = Conv.parse("--stag=axb --dtag=axb mb1ic5ih9oc17kh3ph1")
    config = dynamic_config(general(p), host_targets()[0])
    for height in (224, 5000):
        q = at_sizes(p, 1, (height, 224), (height, 224), (1, 1))
        found = table_of_call(q, 0, {t.name: t for t in q.tensors}, config)
        assert found.pointers.entries.entries.shape == (3, 224 * 9)


@pytest.mark.sampled(3, "threads")
@pytest.mark.parametrize(
    "line, threads, ends",
    [
        ("--stag=axb --dtag=axb mb1ic5ih9iw9oc17kh3kw3ph1pw1", 1, {"oh": 1, "ow": 81}),
        ("--stag=abx --dtag=abx mb4ic5ih9iw9oc17kh3kw3ph1pw1", 1, {"oh": 1, "ow": 81}),
        ("--stag=axb --dtag=aBcd16b mb1ic5ih9iw9oc17kh3kw3ph1pw1", 1, {"oh": 1, "ow": 81}),
        ("--stag=axb --dtag=axb mb1ic5ih64iw64oc17kh3kw3ph1pw1", 1, {"oh": 1, "ow": 4096}),
        ("--stag=axb --dtag=axb mb1ic5ih65iw65oc17kh3kw3ph1pw1", 1, {"oh": 65, "ow": 65}),
        ("--stag=axb --dtag=axb mb1ic5id4ih6iw6oc17kd3kh1kw1pd1", 1, {"od": 1, "oh": 1, "ow": 144}),
        ("--stag=axb --dtag=axb mb1ic5id4ih6iw6oc17kd3kh1kw1pd1", 5, {"od": 4, "oh": 6, "ow": 6}),
        ("--stag=axb --dtag=axb mb1ic5id5ih6iw6oc17kd3kh1kw1pd1", 5, {"od": 5, "oh": 1, "ow": 36}),
        ("--stag=axb --dtag=axb mb4ic5ih8iw9oc17kh3kw3ph1pw1", 2, {"oh": 1, "ow": 72}),
        ("--stag=axb --dtag=axb mb1ic5ih8iw9oc17kh3kw3ph1pw1", 2, {"oh": 2, "ow": 36}),
        ("--stag=axb --dtag=axb mb1ic5ih7iw9oc17kh3kw3ph1pw1", 3, {"oh": 7, "ow": 9}),
        ("--stag=axb --dtag=axb --attr-post-ops=add:f32:per_tensor ic5ih9iw9oc17kh3kw3ph1pw1", 1, {"oh": 1, "ow": 81}),
        ("--stag=axb --dtag=axb --attr-post-ops=add:f32:4 mb1ic5ih9iw9oc17kh3kw3ph1pw1", 1, {"oh": 9, "ow": 9}),
        ("--deconv --stag=axb --dtag=axb mb1ic5ih9iw9oc17kh3kw3sh2sw2ph1pw1", 1, {"oh": 17, "ow": 17}),
        ("--stag=axb --dtag=axb mb3ic5ih9iw70oc17kh1kw1", 1, {"mb": 1, "oh": 1, "ow": 1890}),
        ("--stag=abx --dtag=abx mb3ic5ih9iw70oc17kh1kw1", 1, {"mb": 3, "oh": 1, "ow": 630}),
        ("--stag=axb --dtag=axb mb3ic5id2ih9iw7oc17kd1kh1kw1", 1, {"mb": 1, "od": 1, "oh": 1, "ow": 378}),
        ("--stag=axb --dtag=axb mb3ic5ih9iw70oc17kh1kw1", 5, {"mb": 3, "oh": 3, "ow": 210}),
        ("--stag=aBcd16b --dtag=axb mb3ic5ih9iw70oc17kh1kw1", 1, {"mb": 1, "oh": 1, "ow": 1890}),
    ],
)
def test_rows_run_as_one(line: str, threads: int, ends: dict[str, int]) -> None:
    """Unless rows are long, operands differ from row to row, or threads share the rows; on any threads, exactly."""
    p = Conv.parse(line)
    k = cs.compile(p, dynamic=dims_of(p), threads=threads)
    artifact = at_call(k.artifact, p)
    sizes = {a.name: a.value for a in artifact.entries["main"].arguments if a.role == "size"}
    assert {name: sizes[f"{name}_end"] for name in ends} == ends
    arrays = random_arrays(p, 5)
    compiled = Compiled(p, artifact)
    for chunks in (1, 2, 5):
        check_result(p, compiled(arrays, chunks), expected(p, arrays))


def test_several_threads() -> None:
    k = cs.compile("--stag=axb --dtag=axb g16mb1ic16ih9iw9oc16oh9ow9kh3kw3ph1pw1", dynamic="mb,ih,iw")
    w = np.ones((16, 1, 1, 3, 3), np.float32)
    packed = k.pack(w)

    def work(n: int) -> None:
        for size in range(3, 40):
            x = np.full((1, 16, size, n + 3), n, np.float32)
            assert (k(x, packed)[0, :, 1:-1, 1:-1] == 9 * n).all(), size

    on_threads(work, range(4))


def test_infinite_weights() -> None:
    k = cs.compile(LINES[0], dynamic="mb,ih,iw")
    arrays = random_arrays(k.problem, 1)
    arrays["wei"][3, 1, 0, 2] = np.inf
    with np.errstate(invalid="ignore"):
        truth = reference(k.problem, arrays, np.float32)["dst"]
    np.testing.assert_array_equal(k(arrays["src"], arrays["wei"]), truth)
    with pytest.raises(cs.UnsupportedError, match="weights hold infinities or NaN") as error:
        k.pack(arrays["wei"])
    assert error.value.code == "non-finite"


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "src, dst, options, line, sizes, threads",
    [
        ("axb", "axb", "", "ic2oc5kh3kw2", "mb2ih3iw5ph1pw0", 2),
        ("axb", "axb", "", "g5ic5oc5kh3kw3", "mb1ih4iw5ph1pw1", 1),
        ("axb", "axb", "--dt=u8:s8:s32", "ic5oc5kw3", "mb2iw4pw1", 2),
        ("axb", "axb", "--dt=s8:s8:s32 --attr-zero-points=src:common:-4", "ic5oc5kw3", "mb1iw5pw2", 2),
        ("axb", "axb", "", "ic2oc3kd3kh1kw1", "mb2id3ih2iw3pd1ph0pw0", 2),
        ("aBc4b", "aBc4b", "", "ic6oc7kw2", "mb2iw4pw1", 1),
        ("abx", "aBcd4b", "--attr-post-ops=add:f32:per_tensor", "ic3oc6kh2kw2", "mb2ih3iw3ph1pw1", 2),
        ("abx", "abx", "", "ic3oc6kh2kw2", "mb1ih3iw3ph1pw1", 1),
        ("axb", "axb", "", "ic11oc1kh3kw2", "mb2ih3iw5ph1pw0", 2),
    ],
)  # fmt: skip
def test_every_step_computes_the_same(src: str, dst: str, options: str, line: str, sizes: str, threads: int) -> None:
    target = small_target(4, 12)
    instructions = {row.name: row.kernel for row in (*target.instructions, *target.transpositions)}
    with interning():
        q = Conv.parse(f"--stag={src} --dtag={dst} {options} {line}{sizes}")
        p = general(check_dynamic(q)).canonical()
        config = dynamic_config(p, target, threads).changed(spill_sums=threads == 2)
        made = plan(p, config, target, requirements(q, ()))
        run_steps(made.program.naive(), made.pipeline, [AtSizes(q, instructions, ("dst",), config)])


def test_requirements_are_checked_at_the_call() -> None:
    k = cs.compile("mb2ic3ih9iw9oc4oh9ow9kh3kw3ph1pw1", dynamic="ih")
    assert k.requirements == {"ic": 3, "mb": 2, "iw": 9}
    w = np.ones((4, 3, 3, 3), np.float32)
    assert k(np.ones((2, 3, 20, 9), np.float32), w).shape == (2, 4, 20, 9)
    for shape, text in (
        ((2, 3, 9, 8), "src has iw=8; the kernel is for iw=9"), ((1, 3, 9, 9), "src has mb=1; .* for mb=2"),
        ((2, 4, 9, 9), "src has ic=4; the kernel is for ic=3"),
    ):  # fmt: skip
        with pytest.raises(cs.UsageError, match=text) as error:
            k(np.ones(shape, np.float32), w)
        assert error.value.code == "shape"
    x = np.ones((2, 3, 9, 9), np.float32)
    y = cs.compile("mb2ic3ih9iw9oc4oh9ow9kh1kw1ph0pw0", dynamic="ih")
    for call, code, text in (
        (lambda: k(x.astype(np.float64), w), "dtype", "src: dtype is float64; legal is float32"),
        (lambda: k(x[0], w), "rank", r"src has 3 axes; expected \(mb, ic, ih, iw\)"),
        (lambda: k(x, w, pads=(1, 2, 3)), "bad-pads", "expected a whole number of at least 0, or one"),
        (lambda: k(x, w, pads=-1), "bad-pads", "pads=-1"),
        (lambda: k(x[:, :, :1], w, pads=0), "bad-shape", "ih=1 with pads 0 and 0 is smaller than the kernel's 3"),
        (lambda: k(x, w, out=np.zeros(3, np.float32)), "rank", "dst: rank is 1"),
        (lambda: k(x, w[:, :2]), "shape", r"wei: dim 1 \(ic\) is 2"),
        (lambda: k(x, w, np.ones(4, np.float32)), "bias", "this problem has no bias"),
        (lambda: k(x, y.pack(w[..., :1, :1])), "packing", "packed for another kernel"),
        (lambda: k.run(wei=w), "missing", "the sizes of a call are those of its source"),
        (lambda: k.run(src=x, wie=w), "unknown-argument", "wie is unknown: legal are src, wei, dst"),
    ):
        with pytest.raises(cs.UsageError, match=text) as error:
            call()
        assert error.value.code == code


@pytest.mark.parametrize(
    "line, dims, kind, text",
    [
        (LINES[0], "ic", cs.UsageError, "'ic' is fixed; legal are mb, ih, iw"),
        (LINES[0], "", cs.UsageError, "names no dim; legal are mb, ih, iw"),
        ("--dir=BWD_D " + LINES[0], "ih", cs.UsageError, "'ih' is fixed; legal are mb, oh, ow"),
        ("--dir=BWD_W " + LINES[0], "oh", cs.UsageError, "'oh' is fixed; legal are mb, ih, iw"),
        ("--matmul 2x3:3x4", "mb", cs.UsageError, "'mb' is fixed; legal are m"),
        ("--matmul 2x3:3x4", "k", cs.UsageError, "'k' is fixed; legal are m"),
        ("--matmul 5x7x2x3:1x7x3x4", "b1", cs.UsageError, "'b1' is fixed; legal are b0, m"),
        ("--matmul --stag=ABx2a2b 2x3:3x4", "m", cs.UnsupportedError, "has src in the layout .*; .* of n and k"),
        ("--matmul --dt=u8:s8:s32 --bits=7:5 2x3:3x4", "m", cs.UnsupportedError, "has entries of 7 and 5 bits"),
        ("--stag=aBCd2b2c " + LINES[0], "mb", cs.UnsupportedError, "has src in the layout aBCd2b2c; supported"),
        ("--dtag=ABcd2a2b " + LINES[0], "mb", cs.UnsupportedError, "has dst in the layout ABcd2a2b; supported"),
        ("--attr-post-ops=dw:k3s1p1 mb1ic3ih9oc17kh1ph0", "mb", cs.UnsupportedError, "a fused depthwise convolution"),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, dims: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as error:
        cs.compile(line, dynamic=dims)
    assert error.value.code == "dynamic"  # type: ignore[attr-defined]


def test_a_remainder_has_tiles_of_its_own() -> None:
    config = "--target=generic --lane=oc --register=ow:6,oc:8 --remainder=ow:4 --realise=indirection"
    k = cs.compile("mb1ic3iw9oc8ow9kw3pw1", dynamic="mb,iw", config=config, threads=1)
    numbers = np.random.default_rng(0)
    w = numbers.integers(-3, 4, (8, 3, 3)).astype(np.float32)
    for width in range(1, 20):
        x = numbers.integers(-3, 4, (2, 3, width)).astype(np.float32)
        truth = reference(Conv.parse(f"mb2ic3iw{width}oc8kw3pw1"), {"src": x, "wei": w})["dst"]
        np.testing.assert_array_equal(k(x, w), truth)
    q = Conv.parse("mb2ic3iw9oc8kw3pw1")
    with interning():
        made = plan(general(q).canonical(), k.config, registry.target("generic"), requirements(q, ()))
        lowered = run_steps(made.program.naive(), made.pipeline)
        assert "ow.o.s" in {x.var.name for x in loops_of(lowered.body)}


def test_a_class_of_a_deconvolution_has_no_taps() -> None:
    """Two taps at a stride of three leave every third pixel without one."""
    line = parse_problem("--deconv --dt=s8:s8:s32 --stag=axb --dtag=axb mb4ic16iw64oc7ow191kw2sw3pw0")
    config = dynamic_config(general(check_dynamic(line)).canonical(), registry.target("avx2"), 3)
    assert config.realise == "indirection" and config.threads == 3


def test_configs_that_are_refused() -> None:
    zero = "--dt=u8:s8:s32 --attr-zero-points=wei:common:2 mb1ic8iw8oc16ow8kw3pw1"
    with pytest.raises(cs.ConfigError, match="need sums of the source") as error:
        cs.compile(zero, dynamic="mb", config="--target=generic --lane=oc --realise=indirection --offsets=sums")
    assert error.value.code == "dynamic"
    for words in ("--realise=pad_copy", "--fuse=oh+ow", "--register=oh:2,oc:4", "--table=row", "--lane=ow"):
        given = {"--target": "generic", "--lane": "oc", "--realise": "indirection"} | dict([words.split("=")])
        config = " ".join(f"{name}={value}" for name, value in given.items())
        with pytest.raises(cs.ConfigError, match=f"{words.split('=')[0]}.*dynamic sizes need") as error:
            cs.compile(LINES[0], dynamic="mb", config=config)
        assert error.value.code == "dynamic"
    config = "--target=generic --lane=oc --register=oc:8,ow:3 --realise=indirection"
    assert str(cs.compile(LINES[0], dynamic="mb", config=config, threads=1).config) == config


def test_an_empty_source_with_packed_weights() -> None:
    """Results are those of the bias, whatever the order of the packed weights, which meet nothing."""
    k = cs.compile("--dir=FWD_B mb1ic40ih8oc17oh8kh3ph1", dynamic="mb,ih,iw", threads=1)
    w, b = np.full((17, 40, 3, 3), np.nan, np.float32), np.arange(17, dtype=np.float32)
    for weights, bias in ((w, b), (k.pack(np.ones_like(w), b), None)):
        found = k(np.zeros((1, 40, 0, 1), np.float32), weights, bias, pads=((3, 3), (1, 1)))
        assert found.shape == (1, 17, 4, 1) and (found == b[:, None, None]).all()


def test_kernels_for_any_sizes_are_pickled_and_run_in_emulators() -> None:
    line = "mb1ic8ih6oc16oh6kh3ph1"
    k = pickle.loads(pickle.dumps(cs.compile(line, dynamic="mb,ih,iw", threads=1)))
    assert k.dynamic == {"mb", "ih", "iw"} and "dynamic=ih,iw,mb" in repr(k)
    x, w = np.ones((2, 8, 5, 4), np.float32), np.ones((16, 8, 3, 3), np.float32)
    assert (k(x, w) == cs.conv2d(x, w, padding=1)).all()
    assert cs.compile(line, dynamic="mb,ih,iw", threads=1, target="aarch64").verify().ok

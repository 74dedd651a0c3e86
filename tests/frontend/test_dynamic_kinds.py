"""One kernel for the sizes of each call: deconvolutions, gradients, products; with a table of pointers, and without."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from guarded import Compiled, check_result, expected
from oracles import small_target
from sizes_of_call import AtSizes

import convsmith as cs
from convsmith.compiler.dynamic import at_call, requirements
from convsmith.ir.intern import interning
from convsmith.ir.stmt import LANE
from convsmith.ir.walk import variables_of
from convsmith.machine.registry import host_targets
from convsmith.passes.manager import run_steps
from convsmith.problem import Conv, Problem
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.matmul import Matmul
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import check_dynamic, general, symbolic_dims
from convsmith.schedule.plan import plan
from convsmith.statement.naive import naive
from convsmith.tune.dynamic import dynamic_config

CONVOLUTIONS = (
    "--dir=BWD_D mb1ic5ih9iw9oc19kh3kw3ph1pw1",
    "--dir=BWD_D mb1ic5ih9iw9oc7oh5ow5kh3kw3sh2sw2ph1pw1",
    "--dir=BWD_D g19mb1ic19ih9iw9oc19oh9ow9kh3kw3ph1pw1",
    "--dir=BWD_D --dt=bf16:bf16:bf16 g2mb1ic6iw9oc10ow9kw3dw1pw2",
    "--dir=BWD_D --stag=aBcd16b --dtag=abx mb1ic19ih9iw9oc5kh3kw2ph1",
    "--dir=BWD_D mb1ic2id4ih5iw5oc5kd3kh2kw3pd1pw1",
    "--dir=BWD_W mb1ic5ih9iw9oc19kh3kw3ph1pw1",
    "--dir=BWD_WB mb1ic5ih9iw9oc7oh5ow5kh3kw3sh2sw2ph1pw1",
    "--dir=BWD_WB --stag=abx --dtag=abx mb1ic5ih9iw9oc19kh3kw3ph1pw1",
    "--dir=BWD_W --stag=aBcd16b --dtag=aBcd16b g2mb1ic38ih9iw9oc10oh9ow9kh3kw3ph1pw1",
    "--dir=BWD_W g19mb1ic19iw9oc19ow9kw3pw1",
    "--dir=BWD_W mb1ic2id4ih5iw5oc5kd3kh2kw3pd1pw1",
    "--deconv mb1ic5ih9iw9oc19kh3kw3ph1pw1",
    "--deconv --dir=FWD_B --attr-post-ops=relu mb1ic5ih9iw9oc7kh3kw3sh2sw2ph1pw1",
    "--deconv --dt=u8:s8:s32 mb1ic8iw9oc19kw3sw3pw1",
    "--deconv --dt=s8:s8:s32 --attr-zero-points=src:common:2 mb1ic8ih9iw9oc19kh3kw3sh2ph1pw1",
    "--deconv --dir=BWD_D mb1ic5ih9iw9oc7kh3kw3sh2sw2ph1pw1",
    "--deconv --dir=BWD_WB mb1ic5ih9iw9oc7kh3kw3sh2sw2ph1pw1",
)

PRODUCTS = (
    "--matmul 7x5:5x19",
    "--matmul --stag=ba --wtag=ba --dtag=ba 7x5:5x19",
    "--matmul --stag=aB4b --dtag=aB16b 7x9:9x19",
    "--matmul 3x7x5:1x5x19",
    "--matmul 2x3x7x5:1x3x5x19",
    "--matmul 1x7x5:3x5x19",
    "--matmul --dt=u8:s8:f32 --attr-zero-points=src:common:3 --attr-scales=wei:per_oc 7x9:9x19",
    "--matmul --dt=s8:s8:s32 --attr-zero-points=src:per_dim_0 7x9:9x19",
    "--matmul --dt=u8:u8:s32 --attr-zero-points=wei:common:3 7x9:9x19",
    "--matmul --dt=bf16:bf16:f32 --bia-dt=f32 --bia-mask=3 7x9:9x19",
    "--matmul --attr-post-ops=add:f32:per_tensor+relu 7x9:9x70",
)

SIZES = (1, 2, 3, 5, 7, 11, 12, 13, 24, 29, 64, 97)


def at(p: Problem, rng: random.Random, m: int = 0) -> Problem:
    """The problem at sizes of its own, and at pads of its own."""
    if isinstance(p, Matmul):
        t = p.tensor("src")
        sizes = {name: rng.randrange(1, 4) for name in symbolic_dims(p)} | {"m": m}
        return replace(p, src=tuple(sizes.get(name, size) for name, size in zip(t.dims, t.shape)))
    assert isinstance(p, Conv)
    while True:
        pads = tuple(rng.randrange(4) for _ in p.axes)
        coarse = tuple(rng.choice((1, 2, 3, 5) if p.rank == 3 else SIZES[:8]) for _ in p.axes)
        ends = ((n - 1) * s + k - pad - rng.randrange(4) + rng.randrange(s)
                for n, s, k, pad in zip(coarse, p.s, p.keff, pads))  # fmt: skip
        fine = tuple(ends)
        i, o = (coarse, fine) if p.deconv else (fine, coarse)
        if min(fine) > 0:
            return replace(p, mb=rng.randrange(1, 4), i=i, o=o, p=pads)


def kernel_of(line: str, number: int) -> cs.CompiledKernel:
    """On a level of the machine and a number of threads that differ from line to line."""
    p, levels = parse_problem(line), host_targets()
    given = p.tensor("diff_dst" if p.dir == "BWD_D" else "src").dims
    dims = [name for name in given if name in symbolic_dims(p)]
    k = cs.compile(p, target=levels[number % len(levels)].name, threads=1 + number % 3, dynamic=dims)
    assert set(k.requirements) == set(given) - set(dims)
    return k


@pytest.mark.sampled(12)
@pytest.mark.parametrize("line", (*CONVOLUTIONS, *PRODUCTS))
def test_any_sizes(line: str) -> None:
    """Exact, with canaries around all arrays; tasks at once, or in chunks, last one first."""
    k, rng = kernel_of(line, (*CONVOLUTIONS, *PRODUCTS).index(line)), random.Random(line)
    for seed, m in enumerate(SIZES):
        q = at(k.problem, rng, m)
        arrays = random_arrays(q, seed)
        check_result(q, Compiled(q, at_call(k.artifact, q))(arrays, (0, 1, 3)[seed % 3]), expected(q, arrays))


@pytest.mark.sampled(9, "threads")
@pytest.mark.parametrize(
    "options, line, sizes",
    [
        ("--dir=BWD_D --stag=axb --dtag=axb", "ic2oc3kh2kw3sw2", "mb2ih3oh3iw5ow4ph1pw2"),
        ("--dir=BWD_WB --stag=axb --dtag=axb", "ic2oc5kh3kw3sw2", "mb2ih3oh3iw4ow3ph1pw2"),
        ("--deconv --stag=axb --dtag=aBcd4b", "ic2oc5kh2kw2sw2", "mb1ih3oh3iw3ow4ph1pw2"),
        ("--deconv --dt=u8:s8:s32 --stag=axb --dtag=axb", "ic5oc5kw3", "mb2iw4ow4pw1"),
        ("--stag=axb --dtag=axb", "ic2oc3kh3kw3sw2", "mb2ih3oh3iw4ow3ph1pw2"),
        ("--matmul --bia-dt=f32 --bia-mask=6", "2x7x3:1x3x5", ""),
        ("--matmul --dt=s8:s8:s32", "7x5:5x5", ""),
    ],
    ids=["bwd_d", "bwd_wb", "deconv", "deconv_u8", "forward", "product", "product_s8"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_step_computes_the_same(options: str, line: str, sizes: str, threads: int) -> None:
    target = small_target(4, 12)
    instructions = {row.name: row.kernel for row in target.instructions}
    with interning():
        q = parse_problem(f"{options} {line}{sizes}")
        p = general(check_dynamic(q)).canonical()
        config = dynamic_config(p, target, threads)
        if threads == 2 and isinstance(q, Conv):
            config = config.changed(realise="mask", offsets="each", flip=())
        made = plan(p, config, target, requirements(q, ()))
        for kernel in made.kernels:
            if kernel.statement.when in ("main", "after"):
                oracle = AtSizes(q, instructions, (kernel.statement.c.name,), config)
                nest = made.program.naive() if kernel is made.main else naive(p, kernel.statement)
                run_steps(nest, kernel.pipeline, [oracle])
                assert oracle.checked > 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", ["kh3kw3mb1ih5oh5iw7ow7ph1pw1", "kh3kw2sh2sw2mb1ih7oh4iw11ow6ph1pw1"])
def test_every_step_with_masks_computes_the_same(line: str) -> None:
    target = replace(small_target(4, 12), masked_bytes=1)
    instructions = {row.name: row.kernel for row in target.instructions}
    words = "--lane=ow --register=oh:3,ow:8,kh:3 --order=mb,g,oc,oh,ow --reduce=kw,ic,kh --realise=mask --pack=wei"
    with interning():
        q = parse_problem(f"--stag=abx --dtag=abx g2ic2oc2{line}")
        p = general(check_dynamic(q)).canonical()
        config = Config.parse(f"--target={target.name} {words}")
        made = plan(p, config, target, requirements(q, ()))
        oracle = AtSizes(q, instructions, ("dst",), config)
        kernel = run_steps(made.program.naive(), made.main.pipeline, [oracle])
        assert oracle.checked > 8 and any(LANE in variables_of(f.body) for f in kernel.functions)


@pytest.mark.parametrize("deconv", ["", "--deconv "])
def test_a_kernel_may_test_each_tap_instead(deconv: str) -> None:
    line = f"{deconv}mb1ic5iw9ih9oc17kh3kw3sh2sw2ph1pw1"
    table = cs.compile(line, dynamic="mb,ih,iw", threads=1)
    assert table.config.realise == "indirection"
    tested = cs.compile(line, dynamic="mb,ih,iw", config=table.config.changed(realise="mask", pack_at=()))
    w = np.random.default_rng(1).integers(-4, 5, (17, 5, 3, 3)).astype(np.float32)
    for ih, iw in ((1, 1), (5, 13), (24, 3)):
        x = np.random.default_rng(2).integers(-4, 5, (2, 5, ih, iw)).astype(np.float32)
        np.testing.assert_array_equal(tested(x, w, pads=((0, 2), 1)), table(x, w, pads=((0, 2), 1)))
    w[0, 0, 0, 0] = np.inf
    x = np.zeros((1, 5, 5, 5), np.float32)
    x[0, 0] = 1
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(tested(x, tested.pack(w)), table(x, w))


def test_products_of_no_and_any_rows() -> None:
    k = cs.compile("--matmul 7x5:5x19", dynamic="m")
    assert k.requirements == {"k": 5} and cs.compile("--matmul 7x5:5x19", dynamic=["m"]) is k
    rng = np.random.default_rng(3)
    w = rng.integers(-4, 5, (5, 19)).astype(np.float32)
    packed = k.pack(w)
    for m in range(60):
        x = rng.integers(-4, 5, (m, 5)).astype(np.float32)
        assert (k(x, packed) == x @ w).all() and k(x, packed).shape == (m, 19)
    b = cs.compile("--matmul 1x7x5:1x5x19", dynamic="b0,m")
    for shape in ((0, 3, 5), (3, 0, 5), (4, 7, 5)):
        x = rng.integers(-4, 5, shape).astype(np.float32)
        assert (b(x, w[None]) == x @ w).all()
    page = k.explain()
    for text in ("those of a call: k == 5, m >= 0\n", "the kernel is given m_end\n"):
        assert text in page


def test_sizes_of_deconvolutions_and_gradients_follow_from_arrays_and_pads() -> None:
    line = "mb1ic3ih9iw9oc4oh5ow5kh3kw3sh2sw2ph1pw1"
    ones = {name: np.ones(shape, np.float32) for name, shape in (("w", (4, 3, 3, 3)), ("g", (2, 4, 5, 6)))}
    d = cs.compile(f"--dir=BWD_D {line}", dynamic="mb,oh,ow")
    assert d.requirements == {"oc": 4}
    assert d.run(diff_dst=ones["g"], wei=ones["w"])["diff_src"].shape == (2, 3, 9, 11)
    assert d.run(diff_dst=ones["g"], wei=ones["w"], pads=((0, 1), 0))["diff_src"].shape == (2, 3, 10, 13)
    out = np.zeros((2, 3, 10, 12), np.float32)
    assert d.run(diff_dst=ones["g"], wei=ones["w"], diff_src=out)["diff_src"] is out and out[0, 0, 1, 1] == 16
    assert (d.run(diff_dst=ones["g"][:0], wei=ones["w"])["diff_src"].shape) == (0, 3, 9, 11)
    u = cs.compile("--deconv mb1ic4ih5iw5oc3oh9ow9kh3kw3sh2sw2ph1pw1", dynamic="mb,ih,iw")
    up = np.ones((3, 4, 3, 3), np.float32)
    assert u(ones["g"], u.pack(up)).shape == (2, 3, 9, 11)
    assert u(ones["g"], up, out=out) is out and out[0, 0, 1, 1] == 16
    w = cs.compile(f"--dir=BWD_WB {line}", dynamic="mb,ih,iw")
    x = np.ones((2, 3, 10, 12), np.float32)
    found = w.run(src=x, diff_dst=ones["g"])
    assert (found["diff_bia"] == 60).all() and found["diff_wei"][0, 0, 1, 1] == 60
    empty = w.run(src=x[:0], diff_dst=ones["g"][:0])
    assert not empty["diff_wei"].any() and not empty["diff_bia"].any()
    for call, code, text in (
        (lambda: w.run(src=x), "missing", "diff_dst: missing; the sizes of a call are those of its result's gradient"),
        (lambda: w.run(src=x, diff_dst=ones["g"][:1]), "shape", "diff_dst: dim 0"),
        (lambda: w.run(src=x, diff_dst=ones["g"], pads=0), "bad-shape", "ih=10 with pads 0 and 0 goes with oh=4, not"),
        (lambda: d.run(diff_dst=ones["g"], wei=ones["w"], diff_src=x, pads=0), "bad-shape", "goes with oh=4, not"),
        (lambda: d.run(wei=ones["w"]), "missing", "diff_dst: missing"),
        (lambda: d.run(diff_dst=ones["g"][:, :, :1, :1], wei=ones["w"], pads=5), "bad-shape", "pads of 3 at most"),
        (lambda: cs.compile("--matmul 2x3:3x4", dynamic="m")(x[0, 0, :, :3], np.ones((3, 4), np.float32), pads=0),
         "bad-pads", "a matrix product has none"),
    ):  # fmt: skip
        with pytest.raises(cs.UsageError, match=text) as error:
            call()
        assert error.value.code == code


@pytest.mark.parametrize(
    "line, words, text",
    [
        ("--dir=BWD_D mb1ic8iw8oc16kw3pw1", "--lane=ic", "--realise=peel: .* need --realise=indirection or mask"),
        ("--dir=BWD_W mb1ic8iw8oc16kw3pw1", "--lane=oc --realise=indirection --pack=", "need --realise=mask"),
        ("--dir=BWD_D mb1ic8iw8oc16kw3pw1", "--lane=ic --realise=mask --register=mb:2,ic:4", "mb, iw, a tile of iw"),
        ("--dir=BWD_W mb1ic8iw8oc16kw3pw1", "--lane=oc --realise=mask", "--pack=diff_dst.*mb, ow, no tile"),
        ("--dir=BWD_W mb1ic8iw8oc16kw3pw1", "--lane=ow --realise=mask --pack=", "--lane=ow: dynamic"),
        ("mb1ic8iw8oc16kw1", "--lane=oc --order=mb,ow,oc --pack_at=src+ow", "^--pack_at: dynamic sizes need"),
        ("mb1ic8iw8oc16kw1", "--lane=ow --order=mb,ow,oc --pack_at=src+mb", "or ow, --pack_at=src.ow alone, and"),
        ("mb1ic8iw8oc16kw3", "--lane=ow --order=mb,ow,oc --pack_at=src+ow", "^--pack_at: dynamic sizes need"),
        ("--matmul 2x3:3x4", "--lane=m", "--lane=m: dynamic sizes need --realise=peel or mask"),
        ("--deconv --dt=u8:s8:s32 --attr-zero-points=src:common:1 mb1ic8iw8oc16kw3pw1",
         "--lane=oc --realise=mask --offsets=sums", "sums of weights over the taps.*legal is --offsets=each"),
    ],
)  # fmt: skip
def test_configs_that_are_refused(line: str, words: str, text: str) -> None:
    words = words.replace("--realise=mask", "--realise=mask --pack=diff_dst") if "diff_dst" in text else words
    with pytest.raises(cs.ConfigError, match=text) as error:
        cs.compile(line, dynamic="m" if "matmul" in line else "mb", config=f"--target=generic {words}")
    assert error.value.code == "dynamic"


def test_lines_that_differ_in_sizes_only_have_the_same_kernel() -> None:
    for lines in (
        ("--dir=BWD_W mb1ic3iw9oc17kw3pw1", "--dir=BWD_W mb4ic3iw5oc17ow9kw3pw3"),
        ("--deconv mb1ic3iw9oc17kw3sw2pw1", "--deconv mb4ic3iw5oc17ow9kw3sw2pw1"),
        ("--matmul 7x3:3x4", "--matmul 1x3:3x4"), ("--matmul 1x7x3:1x3x4", "--matmul 5x1x3:1x3x4"),
    ):  # fmt: skip
        assert len({str(general(check_dynamic(parse_problem(line))).canonical()) for line in lines}) == 1

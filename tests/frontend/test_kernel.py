"""`compile` and `CompiledKernel`: keywords, packed weights, what a kernel says about itself, and kernels of nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callers import on_threads

import convsmith as cs
from convsmith.codegen.artifact import FINITE
from convsmith.frontend.nothing import empty_kernel
from convsmith.ir.parse import parse_kernel
from convsmith.layout.reorder import to_layout
from convsmith.machine.registry import target
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.peak import peak_types
from convsmith.measure.verification import verify_kernel
from convsmith.problem.conv import Conv
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.reference import conv_reference, reference
from convsmith.problem.types import TYPES

Array = np.ndarray[Any, Any]
LINE = "mb1ic6ih7oc20oh7kh3ph1"


def data(problem: Conv) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = (problem.src_shape, problem.wei_shape, problem.bias_shape)
    x, w, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return x, w, b


# -- calling
def test_packed_and_plain_weights_give_the_same() -> None:
    k = cs.compile(LINE, src_tag="axb", dst_tag="axb", bias=True, threads=1)
    x, w, b = data(k.problem)
    packed = k.pack(w, b)
    want = conv_reference(k.problem, x, w, b)
    np.testing.assert_array_equal(k(x, packed), want)
    np.testing.assert_array_equal(k(x, w, b), want)
    out = k(x, packed)
    out[...] = np.nan
    assert k(x, packed, out=out) is out
    np.testing.assert_array_equal(out, want)
    assert out.transpose(0, 2, 3, 1).flags.c_contiguous


def test_blocked_layouts_take_arrays_of_physical_shape() -> None:
    k = cs.compile(LINE, src_tag="nChw16c", dst_tag="aBcd16b", threads=1)
    x, w, _ = data(k.problem)
    y = k(cs.reorder(x, "abcd", "nChw16c"), w)
    assert y.shape == (1, 2, 7, 7, 16) and not y[:, 1, :, :, 4:].any()
    want = conv_reference(k.problem, x, w)
    np.testing.assert_array_equal(cs.reorder(y, "nChw16c", "abcd", k.problem.dst_shape), want)


def test_packed_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    k = cs.compile(LINE, bias=True, threads=1)
    x, w, b = data(k.problem)
    k.pack(w, b).save(tmp_path / "w.npz")
    np.testing.assert_array_equal(k(x, cs.load_packed(tmp_path / "w.npz")), k(x, w, b))


@pytest.mark.parametrize(
    "line",
    [
        "--dir=FWD_B mb1ic8ih5oc8kh3ph1", "mb0ic8ih5oc8kh3ph1", "--attr-post-ops=sum mb1ic8ih5oc8kh1",
        "--dt=u8:s8:s32 --attr-zero-points=src:common:3 mb1ic8ih5oc8kh1",
        "--stag=axb --dtag=abx g20mb1ic20ih5oc20kh3ph1",
    ],
)  # fmt: skip
def test_a_bound_call_is_the_call(line: str) -> None:
    kernel = cs.compile(line)
    tensors = {t.name: t for t in kernel.arguments}
    arrays = {name: to_layout(x, tensors[name].layout) for name, x in random_arrays(kernel.problem).items()}
    packed = kernel.pack(arrays["wei"], arrays.get("bia"))
    dst = tensors["dst"]
    out = arrays.get("dst", to_layout(np.ones(dst.shape, TYPES[dst.dtype].numpy), dst.layout))
    truth = out.copy(order="K")
    call = kernel.bind(arrays["src"], packed, out)
    np.testing.assert_array_equal(out, truth)
    for _ in range(2):
        kernel(arrays["src"], packed, out=truth)
        call()
        np.testing.assert_array_equal(out, truth)


@pytest.mark.sampled(2, "threads", "packed", "line")
@pytest.mark.parametrize(
    ("line", "packed"),
    [
        ("--dir=BWD_W --stag=abx --dtag=abx mb2ic64ih5oc64kh1", "src"),
        ("--dir=BWD_WB --stag=axb --wtag=axb --dtag=axb mb1ic16ih5oc16kh1", ""),
        ("--dir=BWD_D --stag=abx --dtag=abx mb1ic8ih5oc8kh3ph1", "wei"),
        ("--stag=axb --dtag=axb mb1ic16ih6oc32kh3ph1", "wei"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_bound_by_name_packs_what_its_arrays_hold(line: str, packed: str, threads: int) -> None:
    kernel = cs.compile(line, threads=threads)
    layouts = {t.name: t.layout for t in kernel.arguments}
    arrays = {name: to_layout(x, layouts[name]) for name, x in random_arrays(kernel.problem).items()}
    assert kernel.artifact is not None and ",".join(kernel.artifact.packs) == packed
    results = {name: x.copy(order="K") for name, x in kernel.run(**arrays).items()}
    call = kernel.bind_each(**arrays, **results)
    for scale in (1, -2):
        for x in arrays.values():
            x *= scale
        call()
        for name, expected in kernel.run(**arrays).items():
            np.testing.assert_array_equal(results[name], expected)


def test_several_python_threads_may_call_at_once() -> None:
    k = cs.compile(LINE, threads=1)
    x, w, _ = data(k.problem)
    packed, want = k.pack(w), conv_reference(k.problem, x, w)

    def work(_: int) -> None:
        for _ in range(200):
            assert np.array_equal(k(x, packed), want)

    on_threads(work, range(4))


def test_weights_that_are_not_finite_go_through_a_kernel_that_multiplies_no_padding() -> None:
    config = "--target=generic --lane=oc --register=oc:4 --realise=pad_copy"
    k = cs.compile(LINE, config=config, threads=1)
    x, w, _ = data(k.problem)
    assert k.artifact is not None and k.artifact.limits == {"wei": FINITE}
    np.testing.assert_array_equal(k(x, w), conv_reference(k.problem, x, w))
    w[0, 0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        want = conv_reference(k.problem, x, w)
    for weights in (w, k.pack(w)):
        np.testing.assert_array_equal(k(x, weights), want)


# -- by name
@pytest.mark.parametrize("bias", [False, True])
def test_run_takes_the_arguments_by_name(bias: bool) -> None:
    k = cs.compile(LINE, src_tag="axb", dst_tag="nChw16c", bias=bias, threads=1)
    assert [(a.name, a.role, a.dtype, a.shape, a.layout.tag(), a.default) for a in k.arguments] == [
        ("src", "in", "f32", (1, 6, 7, 7), "acdb", None),
        ("wei", "in", "f32", (20, 6, 3, 3), "abcd", None),
        *([("bia", "in", "f32", (20,), "a", None)] if bias else []),
        ("dst", "out", "f32", (1, 20, 7, 7), "aBcd16b", None),
    ]
    x, w, b = data(k.problem)
    given = {"bia": b} if bias else {}
    want = k(x, w, b if bias else None)
    results = k.run(src=x, wei=w, **given)
    assert list(results) == ["dst"]
    np.testing.assert_array_equal(results["dst"], want)
    out = np.full_like(want, np.nan)
    assert k.run(dst=out, wei=k.pack(w, *given.values()), src=x)["dst"] is out
    np.testing.assert_array_equal(out, want)


def test_a_name_that_run_does_not_know() -> None:
    k = cs.compile(LINE, bias=True, threads=1)
    x, w, b = data(k.problem)
    with pytest.raises(cs.UsageError) as caught:
        k.run(src=x, weight=w, bia=b)
    assert caught.value.code == "unknown-argument"
    assert str(caught.value) == "weight is unknown: legal are src, wei, bia, dst; did you mean 'wei'?"
    with pytest.raises(cs.UsageError, match=r"bia: missing; legal is an array of rank 1, shape \(20,\) = \(oc\)"):
        k.run(src=x, wei=w)


# -- what a line and keywords say
def test_the_problem_is_one_line_that_compiles_to_the_same_kernel() -> None:
    k = cs.compile(LINE, src_tag="axb", dst_tag="nChw16c", bias=True, activation=("clip", 0, 6), threads=1)
    assert str(k.problem) == f"--dir=FWD_B --stag=axb --dtag=nChw16c --attr-post-ops=clip:0:6 {LINE}"
    again = cs.compile(str(k.problem), threads=1)
    assert again is k


def test_options_of_the_line_and_keywords_add_up() -> None:
    assert cs.compile(f"--dir=FWD_B {LINE}").problem.bias
    assert cs.compile(f"--dir=FWD_B {LINE}", bias=True).problem.bias
    assert not cs.compile(LINE).problem.bias
    line = f"--attr-post-ops=relu {LINE}"
    assert [str(op) for op in cs.compile(line, activation=("clip", 0, 6)).problem.post_ops] == ["relu", "clip:0:6"]
    assert cs.compile(Conv.parse(LINE), bias=True).problem.bias
    assert cs.compile(f"--stag=axb {LINE}", src_tag="axb").problem.stag == "axb"


def test_a_config_makes_every_decision() -> None:
    text = "--target=generic --lane=oc --register=ow:5,oc:8"
    k = cs.compile(LINE, config=text)
    assert str(k.config) == text and k.config.threads == 1
    assert cs.compile(LINE, config=cs.Config.parse(text)) is k
    assert cs.compile(LINE, config=text, threads=2).config.threads == 2
    assert verify_kernel(k).ok


def test_settings_are_defaults() -> None:
    with cs.settings.scope(target="generic", threads=2):
        k = cs.compile(LINE)
        assert (k.config.target, k.target.name) == ("generic", "generic")
        assert cs.compile(LINE, threads=1).config.threads == 1
    assert cs.compile(LINE, target="generic", threads=2) is k


# -- questions
def test_ir_at_every_stage() -> None:
    k = cs.compile(LINE, threads=1)
    assert k.ir("naive").splitlines()[1].strip() == "for mb in 0 .. 1:"
    assert k.ir("0") == k.ir("naive") and k.ir() == k.ir(str(len(k.passes()) - 1))
    runs = [r.number for r in k.passes() if r.name == "simplify"]
    assert [k.ir(f"simplify:{n}") for n, _ in enumerate(runs, 1)] == [k.ir(str(number)) for number in runs]
    assert "oc.o" in k.ir("tile") and "oc.o" not in k.ir("fuse" if "--fuse" in str(k.config) else "1")
    for record in k.passes():
        assert k.ir(record.name)
    parse_kernel(k.ir("flatten"))


def test_llvm_and_assembly() -> None:
    k = cs.compile(LINE, threads=1, target="generic")
    assert "define" in k.llvm() and "convsmith_chunk" in k.asm()


def test_explain_names_all_that_was_decided() -> None:
    k = cs.compile(f"--attr-post-ops=relu {LINE}", src_tag="axb", dst_tag="axb", threads=1)
    page = k.explain()
    for text in (str(k.problem), str(k.config), "vector registers", "packing", "operations", "bytes", "roofline", "kh"):
        assert text in page, text
    files = page.splitlines()[-1].split()[1].rstrip(":").rstrip("/")
    names = {path.name for path in Path(files).iterdir()}
    assert {"kernel.ll", "kernel.s", "passes.txt", "000_naive.ir"} <= names


def test_a_kernel_of_nothing_compiles_nothing() -> None:
    k = cs.compile("mb0ic3ih8oc4kh3", bias=True, dst_tag="nChw16c")
    x, w, b = np.zeros((0, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32), np.ones(4, np.float32)
    assert k.artifact is None
    packed = k.pack(w, b)
    assert k(x, packed).shape == k(x, w, b).shape == (0, 1, 6, 6, 16)
    assert "nothing is compiled" in k.explain()
    with pytest.raises(cs.UsageError, match="dim 1 \\(ic\\) is 2"):
        k(np.zeros((0, 2, 8, 8), np.float32), w, b)
    with pytest.raises(cs.UsageError, match="nothing is compiled"):
        k.ir()


def test_a_kernel_of_nothing_is_run_by_name() -> None:
    # Output beyond a source without pixels: bias and post-ops of padding.
    k = cs.compile("--dir=FWD_B --attr-post-ops=relu --dtag=aBx16b mb1ic2iw0oc3ow2kw3pw2", threads=1)
    assert k.artifact is None
    assert [(a.name, a.role) for a in k.arguments] == [("src", "in"), ("wei", "in"), ("bia", "in"), ("dst", "out")]
    x, w, b = np.zeros((1, 2, 0), np.float32), np.full((3, 2, 3), np.nan, np.float32), np.array([1, -2, 3], np.float32)
    want = np.zeros((1, 1, 2, 16), np.float32)
    want[..., :3] = 1, 0, 3
    for weights in ({"wei": w, "bia": b}, {"wei": k.pack(w, b)}):
        np.testing.assert_array_equal(k.run(src=x, **weights)["dst"], want)
    out = np.full((1, 1, 2, 16), np.nan, np.float32)
    assert k.run(src=x, wei=w, bia=b, dst=out)["dst"] is out
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(k(x, k.pack(w, b)), want)
    with pytest.raises(cs.UsageError, match="weight is unknown: legal are src, wei, bia, dst"):
        k.run(src=x, weight=w, bia=b)


def test_stages_of_nothing_are_packed_like_others() -> None:
    # The second stage multiplies what the bias of the first one makes of padding.
    line = "--dir=FWD_B mb1ic2ih0oc3oh2kh1ph1 -> --dir=FWD_B mb1ic3ih2oc2oh2kh1"
    k = cs.compile(line, threads=1)
    assert k.artifact is None and k.packable == {"wei_1", "wei_2"}
    arrays = {t.name: np.arange(1, np.prod(t.shape) + 1, dtype=np.float32).reshape(t.shape) for t in k.problem.inputs}
    packed = k.pack_each(wei_1=arrays["wei_1"], wei_2=arrays["wei_2"])
    want = reference(k.problem, arrays)["dst"]
    assert want.any()
    for weights in ({}, packed):
        np.testing.assert_array_equal(k.run(**{**arrays, **weights})["dst"], want)
    with pytest.raises(cs.UsageError, match="src: not packed alone; legal are wei_1, wei_2"):
        k.pack_each(src=arrays["src"])


def test_kernels_of_fixed_sizes_have_the_pads_of_their_line() -> None:
    k = cs.compile(LINE, threads=1)
    x, w, _ = data(k.problem)
    for call in (lambda: k(x, w, pads=1), lambda: k.run(src=x, wei=w, pads=1), lambda: k.bind_each(src=x, pads=1)):
        with pytest.raises(cs.UsageError, match=r"pads=1: this kernel has the sizes and pads of .*; legal is a kernel"):
            call()


def test_gradients_of_an_empty_batch_are_zeros() -> None:
    k = empty_kernel(parse_problem("--dir=BWD_WB --wtag=Abc16a mb0ic2iw5oc20ow5kw1"))
    given = {"src": np.zeros((0, 2, 5), np.float32), "diff_dst": np.zeros((0, 20, 5), np.float32)}
    out = np.full(20, np.nan, np.float32)
    results = k.run({**given, "diff_bia": out})
    assert list(results) == ["diff_wei", "diff_bia"] and results["diff_bia"] is out
    assert results["diff_wei"].shape == (2, 2, 1, 16) and not results["diff_wei"].any() and not out.any()
    with pytest.raises(
        cs.UsageError, match=r"takes src, diff_dst and gives diff_wei, diff_bia: legal is k.run\(src=..."
    ):
        k.call(given["src"], given["diff_dst"])
    with pytest.raises(cs.UsageError, match="this kernel packs nothing"):
        k.pack(given["src"])


def test_gradients_of_an_empty_result_are_zeros() -> None:
    k = empty_kernel(parse_problem("--dir=BWD_D --stag=axb --attr-scales=wei:common:1 mb1ic2iw5oc3ow0kw9pw2"))
    w, diff_dst = np.ones((3, 2, 9), np.float32), np.zeros((1, 3, 0), np.float32)
    for weights in (w, k.pack(w)):
        out = np.full((1, 5, 2), np.nan, np.float32).transpose(0, 2, 1)
        assert k.run({"wei": weights, "diff_dst": diff_dst, "diff_src": out, "scales_wei": 2.0})["diff_src"] is out
        assert not out.any() and not k.run({"wei": weights, "diff_dst": diff_dst})["diff_src"].any()
    with pytest.raises(cs.UsageError, match="wei: packed for another kernel"):
        k.run({"wei": cs.compile(LINE, threads=1).pack(np.ones((20, 6, 3, 3), np.float32)), "diff_dst": diff_dst})


def test_calls_are_reported_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    plain = cs.compile(LINE, threads=1)
    lines: list[str] = []
    from convsmith.diag import trace

    with cs.settings.scope(verbose="exec"), trace.redirect(lines.append):
        k = cs.CompiledKernel(plain.problem, plain.target, plain.config)
        x, w, _ = data(k.problem)
        k(x, w)
        k.run(src=x, wei=k.pack(w))
    assert [line.split(",")[1] for line in lines] == ["event", "exec", "exec"]
    assert "packed=False" in lines[1] and "packed=True" in lines[2]
    assert "convsmith bench --config" in lines[1]


def test_the_time_of_a_call_is_reported_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from convsmith.diag import trace
    from convsmith.frontend import kernel

    k = cs.compile(LINE, threads=1)
    x, w, _ = data(k.problem)
    clock = iter((20.0, 20.25))
    lines: list[str] = []
    monkeypatch.setattr(kernel, "perf_counter", lambda: next(clock))
    with cs.settings.scope(verbose="exec"), trace.redirect(lines.append):
        cs.CompiledKernel(k.problem, k.target, k.config)(x, w)
    (line,) = (line for line in lines if "packed=False" in line)
    assert ",250.0" in line, line


def test_a_kernel_is_freed_with_its_last_reference() -> None:
    """The collector may come late, and code, scratch memory and packed weights stay until then."""
    gc.collect()
    gc.disable()
    try:
        for line in (LINE, "--dir=BWD_W mb0ic2iw5oc20ow5kw1"):
            kernel = cs.CompiledKernel(parse_problem(line), target())
            arrays = random_arrays(kernel.problem)
            kernel.run(**arrays)
            kernel.bind_each(**arrays)()
            freed = weakref.ref(kernel), weakref.ref(kernel._host)
            del kernel
            assert not any(reference() for reference in freed), line
        for line in ("mb1ic2ih5oc3oh3kh3", "mb1ic4ih6oc8oh6kh1 -> g8mb1ic8ih6oc8oh6kh3ph1"):
            sized = cs.CompiledKernel(parse_problem(line), target(), dynamic="mb,ih,iw")
            arrays = random_arrays(sized.problem)
            for rows in (0, 1, 2):
                sized.run(**{**arrays, "src": np.resize(arrays["src"], (rows, *arrays["src"].shape[1:]))})
            freed = weakref.ref(sized), weakref.ref(sized._host)
            del sized
            assert not any(reference() for reference in freed), line
    finally:
        gc.enable()


# -- the package
def test_importing_the_package_loads_neither_numpy_nor_llvm() -> None:
    code = (
        "import sys, convsmith as cs; assert not {'numpy', 'llvmlite'} & set(sys.modules); "
        "import convsmith.compiler.driver; "
        "assert cs.compile('mb1ic3ih5oc4kh3').problem; print(cs.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == cs.__version__


def test_a_kernel_from_the_cache_imports_no_part_of_the_compiler(tmp_path: Path) -> None:
    """The planner, the passes and the model take longer to import than all else that a new process does."""
    code = "import sys, convsmith as cs; cs.compile('mb1ic3ih5oc4kh3', threads=1); print(*sys.modules)"
    environment = {**os.environ, "CONVSMITH_CACHE": str(tmp_path / "cache")}
    run = partial(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = (set(run(env=environment).stdout.split()) for _ in range(2))
    folders = ("passes", "statement", "interp")
    compiler = {m for m in first if any(f"convsmith.{folder}." in m for folder in folders)}
    assert compiler and not compiler & second
    assert {"convsmith.compiler.driver", "convsmith.schedule.planned", "convsmith.tune.candidates"} <= first - second
    levels = {m for m in second if m.startswith("convsmith.machine.") and m.endswith(".levels")}
    assert len(levels) <= 1, "only the family of the host"
    in_ir = {m.removeprefix("convsmith.ir.") for m in second if m.startswith("convsmith.ir.")}
    assert in_ir == {"instruction", "tensor_map", "types"}, "tables of rows and of types, and no node"
    assert len({m for m in second if m.startswith("convsmith.")}) <= 115


def test_every_public_name_exists() -> None:
    assert all(hasattr(cs, name) for name in cs.__all__)
    assert set(cs.__all__) <= set(dir(cs))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cs.nothing  # noqa: B018


def test_the_peak_is_that_of_the_types_that_are_multiplied() -> None:
    bf16, integers, level = (
        parse_problem("--dt=bf16 ic3iw5oc4kw3"),
        parse_problem("--dt=u8:s8:s32 ic3iw5oc4kw3"),
        target,
    )
    assert peak_types(bf16, target("avx512_bf16")) == ("bf16", "bf16", "f32")
    assert peak_types(bf16, target("avx2")) == ("f32", "f32", "f32") and peak_types(integers, level("generic")) is None
    assert peak_types(integers, target("avx512_vnni")) == ("u8", "s8", "s32")
    half = parse_problem("--dt=f16 --attr-acc-mode=f16 ic3iw5oc4kw3")
    levels = {t.name: t for t in LEVELS}
    assert peak_types(half, levels["avx512_fp16"]) == ("f16", "f16", "f16")
    assert peak_types(half, levels["avx512_bf16"]) == ("f32", "f32", "f32")


def test_sums_in_f16_ask_for_the_level_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [parse_problem(f"--dt=f16 --attr-acc-mode={mode} ic3iw5oc4kw3") for mode in ("strict", "relaxed", "any")]
    first = [t.name for t in LEVELS].index("avx512_fp16")
    for lacking, levels in enumerate((["avx512", "avx512", "avx512_fp16"], ["avx512"] * 3), first):
        monkeypatch.setattr("convsmith.machine.registry.host_targets", lambda n=lacking: LEVELS[n:])
        assert [target(None, p.types).name for p in problems] == levels


def test_layouts_of_the_data_are_those_of_the_problem() -> None:
    k = cs.compile("--stag=axb --wtag=xba --dtag=abx " + LINE, threads=1)
    x, w, _ = data(k.problem)
    y = k(to_layout(x, k.problem.src_layout), to_layout(w, k.problem.wei_layout))
    np.testing.assert_array_equal(y, conv_reference(k.problem, x, w))

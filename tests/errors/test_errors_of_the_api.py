"""Bad input to the Python functions: class, code and text of each error, and nothing is changed."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.diag.settings import Settings
from convsmith.problem.lines import parse_problem

LINE = "mb1ic3ih8oc4oh6kh3ph0"
X = np.ones((1, 3, 8, 8), np.float32)
W = np.ones((4, 3, 3, 3), np.float32)
B = np.ones(4, np.float32)


def raises(kind: type[cs.ConvsmithError], code: str, *texts: str) -> Callable[[Callable[[], object]], None]:
    """Asserts that a call raises exactly this class, with this code and all of these texts."""

    def check(call: Callable[[], object]) -> None:
        with pytest.raises(cs.ConvsmithError) as caught:
            call()
        assert type(caught.value) is kind
        assert caught.value.code == code
        for text in texts:
            assert text in str(caught.value)

    return check


@pytest.mark.parametrize(
    "line,code,texts",
    [
        ("mb1ic3ih8", "bad-descriptor", ["oc is missing"]),
        ("ic3ih8oc4kh3zz1", "bad-descriptor", ["zz1", "position 12", "expected one of"]),
        ("ic3ihoc4kh3", "bad-descriptor", ["ih at position 3 has no number"]),
        ("ic3ih8ih8oc4kh3", "bad-descriptor", ["ih is given twice"]),
        ("", "bad-descriptor", ["no descriptor"]),
        ("ic3ih8oc4kh11", "bad-descriptor", ["kh=11", "ih=8", "legal are ih >= 11"]),
        ("ic3ih8oc4kh0", "bad-dim", ["kh=0", "kh >= 1"]),
        ("ic3ih8oc4oh3kh3ph0", "bad-output-size", ["oh=3", "-3", "-sh=-1", "smallest legal oh is 6"]),
        ("ic3ih8oc4oh2kh3sh2ph0", "bad-output-size", ["oh=2", "smallest legal oh is 3"]),
        ("g2ic3ih8oc4kh3", "bad-groups", ["g=2", "ic=3", "oc=4", "that is 1"]),
        ("--stag=nope " + LINE, "bad-tag", ["--stag=nope", "4 dims", "legal are"]),
        ("--frob=1 " + LINE, "bad-option", ["--frob is unknown", "legal: --dir"]),
        ("--dir=UP " + LINE, "bad-option", ["'UP' is unknown", "FWD_B"]),
        ("--attr-acc-mode=f8 " + LINE, "bad-option", ["--attr-acc-mode: 'f8' is unknown", "strict, relaxed, any, f32"]),
        (
            "--attr-acc-mode=f16 --dt=f32:f16:f32 " + LINE,
            "bad-option",
            ["products of f32 and f16 have no sums in f16", "legal are strict, relaxed, any, f32"],
        ),
        (
            "--attr-acc-mode=s32 --dt=f16 " + LINE,
            "bad-option",
            ["products of f16 have no sums in s32", "legal are strict, relaxed, any, f32, f16"],
        ),
        ("--attr-acc-mode=f32 --dt=u8:s8:s32 " + LINE, "bad-option", ["legal are strict, relaxed, any, s32"]),
        ("--attr-acc-mode=f32 --dt=f64 " + LINE, "bad-option", ["no sums in f32", "legal are strict, relaxed, any"]),
        ("--attr-post-ops=sum+dw:k3s1p1 ic3ih8oc4kh1", "bad-post-op", ["sum before dw", "legal is sum behind dw"]),
        (
            "--attr-zero-points=dst:common:3 --attr-post-ops=dw:k3s1p1 ic3ih8oc4kh1", "bad-zero-point",
            ["dst:common:3", "f32, which post-op dw reads, has no zero point", "u8 and s8"],
        ),
        ("--dir=BWD_W --attr-scales=wei:common:2 " + LINE, "bad-scale", ["--dir=BWD_W", "gradients have no"]),
        ("--attr-post-ops=clip:3:1 " + LINE, "bad-post-op", ["low 3 is above high 1", "low <= high"]),
    ],
)
def test_descriptors(line: str, code: str, texts: list[str]) -> None:
    raises(cs.UsageError, code, *texts)(lambda: cs.compile(line))


@pytest.mark.parametrize(
    "line,texts",
    [
        ("--dt=f4_e2m1 " + LINE, ["f4_e2m1 is not available", "s8"]),
        ("--alg=wino " + LINE, ["--alg is not available", "--dt"]),
    ],
)
def test_what_is_legal_elsewhere_but_not_built(line: str, texts: list[str]) -> None:
    raises(cs.UnsupportedError, "unsupported-option", *texts)(lambda: cs.compile(line))


def test_keywords_that_contradict() -> None:
    usage = raises(cs.UsageError, "tag", "--stag=abx", "axb", "legal is one of them")
    usage(lambda: cs.compile(f"--stag=abx {LINE}", src_tag="axb"))
    raises(cs.UsageError, "bias", "--dir=FWD_D", "legal is --dir=FWD_B")(
        lambda: cs.compile(f"--dir=FWD_D {LINE}", bias=True)
    )
    for gradient in (f"--dir=BWD_D {LINE}", parse_problem(f"--dir=BWD_D {LINE}")):
        raises(cs.UsageError, "bias", "--dir=BWD_D", "legal is --dir=FWD_B")(
            lambda problem=gradient: cs.compile(problem, bias=True)  # type: ignore[misc]
        )
    raises(cs.UsageError, "bias", "for convolutions", "--bia-dt=f32")(lambda: cs.compile("--matmul 2x3:3x4", bias=True))
    raises(cs.UsageError, "target", "target='avx2'", "--target=generic")(
        lambda: cs.compile(LINE, target="avx2", config="--target=generic --lane=oc")
    )
    raises(cs.UsageError, "bad-descriptor", "expected a descriptor or a problem, got int")(lambda: cs.compile(3))  # type: ignore[arg-type]
    raises(cs.UsageError, "threads", "threads=0", "1 to 1024")(lambda: cs.compile(LINE, threads=0))
    raises(cs.UsageError, "bad-post-op", "activation=('relu', 'x')", '("clip", 0, 6)')(
        lambda: cs.compile(LINE, activation=("relu", "x"))
    )


def test_unknown_and_missing_instruction_sets() -> None:
    raises(cs.UsageError, "usage", "target 'sse9' is unknown", "avx512_vnni, avx512, ", "wasm32, generic")(
        lambda: cs.compile(LINE, target="sse9")
    )


@pytest.mark.parametrize(
    "config,code,texts",
    [
        ("--target=generic --lane=oc --register=oc:16,ow:6", "registers",
         ["vector registers, target has 16", "accumulators"]),
        ("--target=generic --lane=oc --register=oc:5", "lanes", ["--register=oc:5", "multiple of the 4 lanes"]),
        ("--target=generic --lane=xx", "unknown-loop", ["'xx'", "oc, mb, oh, ow, kh, kw, ic"]),
        ("--target=generic --lane=oc --fuse=oc+kh", "fuse", ["oc+kh"]),
        ("--target=generic --lane=oc --register=oc:x", "syntax",
         ["--register=oc:x", "for example --register=oc:32,ow:14"]),
        ("--target=generic --lane=oc / --target=generic", "syntax", ["--lane= is missing"]),
        ("", "syntax", ["gives no field a value", "--target=, --lane="]),
        ("--target=generic --realise=hardware --lane=xx", "unknown-loop", ["'xx'", "oc, mb, oh, ow, kh, kw, ic"]),
        ("--realise=magic", "realise", ["magic", "mask, peel, pad_copy"]),
        ("--target=generic --offsets=sums", "offsets", ["can have --offsets=sums", "have zero points or are flipped"]),
        ("--compute_at=oh", "consumer", ["can have --compute_at=oh", "the next statement stands behind"]),
        ("--target=generic --lane=oc --realise=magic", "realise", ["magic", "mask, peel, pad_copy"]),
        ("--target=generic --lane=oc --offsets=magic", "offsets", ["magic", "each, sums"]),
        ("--target=generic --lane=oc --offsets=sums", "offsets", ["have zero points or are flipped", "--offsets=each"]),
        ("--target=generic --lane=oc --flip=wei", "offsets", ["--flip=wei needs --offsets=sums"]),
        ("--target=generic --lane=oc --order=mb,oh,ow,oc --resident=wei", "resident",
         ["that do not move wei must be innermost"]),
        ("--target=generic --lane=oc --order=oc,mb,oh,ow --resident=wei", "resident",
         ["register tiles of all of", "kh, kw"]),
        ("--target=generic --lane=oc --order=oc,mb,oh,ow --resident=dst", "resident",
         ["--resident=dst: legal are operands", "wei"]),
        ("--target=generic --lane=oc --realise=pad_copy --restrict=kh", "restrict",
         ["--restrict=kh: legal are loops over taps that meet padding", "none here"]),
    ],
)
def test_configs(config: str, code: str, texts: list[str]) -> None:
    raises(cs.ConfigError, code, *texts)(lambda: cs.compile(LINE, config=config))


@pytest.mark.parametrize(
    "options,config,texts",
    [
        ("--attr-zero-points=src:per_dim_1", "", ["the zero point of the source is common", "--offsets=each"]),
        ("--attr-zero-points=src:common:1", " --pack=", ["needs --pack=wei", "beside which the sums are packed"]),
        ("", " --flip=wei", ["--offsets=sums --flip=wei: legal", "(sources and u8 weights can be)"]),
    ],
)
def test_offsets_of_configs(options: str, config: str, texts: list[str]) -> None:
    raises(cs.ConfigError, "offsets", *texts)(
        lambda: cs.compile(
            f"--dt=u8:s8:s32 {options} {LINE}", config=f"--target=generic --lane=oc --offsets=sums{config}"
        )
    )


# -- arrays
@pytest.mark.parametrize(
    "call,code,texts",
    [
        (lambda: cs.conv2d(X[0], W), "rank", ["x: rank is 3", "(3, 8, 8)", "conv2d takes rank 4"]),
        (lambda: cs.conv1d(X, W), "rank", ["conv1d takes rank 3"]),
        (lambda: cs.conv2d(X, W[0]), "rank", ["w: rank is 3"]),
        (lambda: cs.conv2d(X.tolist(), W), "not-an-array", ["x: expected an array, got list"]),
        (lambda: cs.conv2d(X, W[:, :2]), "shape", ["x has 3 channels", "w has 2", "legal are 2 channels of x, or 3"]),
        (
            lambda: cs.conv2d(X.astype(np.float64), W),
            "dtype",
            ["w: dtype is float32", "legal: float64", "never cast"],
        ),
        (lambda: cs.conv2d(X, W.astype(">f4")), "dtype", ["w: dtype is >f4", "legal: float32"]),
        (lambda: cs.conv2d(X.astype(complex), W), "dtype", ["complex128"]),
        (lambda: cs.conv2d(X.astype(object), W), "dtype", ["object"]),
        (lambda: cs.conv2d(X, W, B[:3]), "shape", ["bias: dim 0 (oc) is 3", "legal is 4"]),
        (
            lambda: cs.conv2d(X, W, out=np.ones((1, 4, 6, 5), np.float32)),
            "shape",
            ["out: dim 3 (ow) is 5", "legal is 6"],
        ),
        (lambda: cs.conv2d(X, W, out=np.ones((1, 4, 6, 6))), "dtype", ["out: dtype is float64"]),
        (lambda: cs.conv2d(X, W, groups=2), "bad-groups", ["groups=2 does not divide the 3 channels of x"]),
        (lambda: cs.conv2d(X, W, groups=0), "bad-groups", ["groups=0", "at least 1"]),
        (lambda: cs.conv2d(X, W, stride=0), "bad-dim", ["stride=0", "at least 1"]),
        (lambda: cs.conv2d(X, W, dilation=(1, 0)), "bad-dim", ["dilation=(1, 0)", "at least 1"]),
        (lambda: cs.conv2d(X, W, stride=(1, 1, 1)), "bad-dim", ["has 3 entries", "2 of them"]),
        (lambda: cs.conv2d(X, W, stride=1.5), "bad-dim", ["stride=1.5 is not a whole number"]),
        (lambda: cs.conv2d(X, W, padding=-1), "bad-dim", ["padding=-1", "at least 0"]),
        (lambda: cs.conv2d(X, W, padding=((1, 1),)), "bad-padding", ["pair for each of 2 axes"]),
        (lambda: cs.conv2d(X, W, padding="full"), "bad-padding", ["'full' is unknown", '"same", "valid"']),
        (lambda: cs.conv2d(X, W, padding="same", stride=2), "bad-padding", ["needs stride 1, not (2, 2)"]),
        (lambda: cs.conv2d(X[:, :, :2], W), "bad-output-size", ["axis h", "spans 3", "2 (0 + 2 + 0)"]),
        (lambda: cs.conv2d(X, W, activation="frelu"), "bad-post-op", ["'frelu'", "available are relu", "gelu"]),
        (lambda: cs.reorder(X, "abcd", "nope"), "bad-tag", ["'nope'", "4 dims"]),
    ],
)
def test_arrays_and_options(call: Callable[[], object], code: str, texts: list[str]) -> None:
    raises(cs.UsageError, code, *texts)(call)


def test_out_must_be_memory_of_its_own_and_stays_as_it_was() -> None:
    memory = np.ones((2, 3, 8, 8), np.float32)
    kernel = cs.compile("mb1ic3ih8oc3kh1", threads=1)
    w = np.ones((3, 3, 1, 1), np.float32)
    raises(cs.UsageError, "overlap", "out: shares memory with x")(lambda: kernel(memory[:1], w, out=memory[:1]))
    frozen = np.full((1, 3, 8, 8), 7, np.float32)
    frozen.flags.writeable = False
    raises(cs.UsageError, "read-only", "out: is read-only")(lambda: kernel(memory[:1], w, out=frozen))
    constant = np.broadcast_to(np.float32(7), (1, 3, 8, 8)).view()
    raises(cs.UsageError, "read-only")(lambda: kernel(memory[:1], w, out=constant))
    assert (memory == 1).all() and (frozen == 7).all()


def test_weights_packed_for_another_kernel() -> None:
    one = cs.compile(LINE, threads=1, config="--target=generic --lane=oc --register=oc:4")
    other = cs.compile(LINE.replace("oc4", "oc5"), threads=1)
    with_bias = cs.compile(LINE, bias=True, threads=1)
    packed = one.pack(W)
    for kernel in (other, with_bias):
        raises(cs.UsageError, "packing", "packed for another kernel", "legal is packing")(
            lambda kernel=kernel: kernel(X, packed)  # type: ignore[misc]
        )
    raises(cs.UsageError, "bias", "packed weights hold the bias")(lambda: one(X, packed, B))
    raises(cs.UsageError, "bias", "missing", "(4,)")(lambda: with_bias(X, W))
    raises(cs.UsageError, "bias", "this problem has no bias")(lambda: one(X, W, B))


def test_arrays_by_name() -> None:
    k = cs.compile(LINE, bias=True, threads=1)
    raises(cs.UsageError, "unknown-argument", "bias is unknown: legal are src, wei, bia, dst; did you mean 'bia'?")(
        lambda: k.run(src=X, wei=W, bias=B)
    )
    raises(cs.UsageError, "missing", "wei: missing; legal is an array of rank 4", "(4, 3, 3, 3) = (oc, ic, kh, kw)")(
        lambda: k.run(src=X, bia=B)
    )
    raises(cs.UsageError, "not-an-array", "src: expected an array, got float")(
        lambda: k.run(src=1.0, wei=W, bia=B)
    )
    raises(cs.UsageError, "shape", "bia: dim 0 (oc) is 3", "legal is 4")(lambda: k.run(src=X, wei=W, bia=B[:3]))
    raises(cs.UsageError, "bias", "packed weights hold the bias")(lambda: k.run(src=X, wei=k.pack(W, B), bia=B))
    out = np.full((1, 4, 6, 6), 7, np.float32)
    raises(cs.UsageError, "dtype", "wei: dtype is float64")(lambda: k.run(src=X, wei=W.astype(float), bia=B, dst=out))
    assert (out == 7).all()


def test_a_file_that_holds_no_packed_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    path.write_bytes(b"something else")
    raises(cs.UsageError, "bad-packed", str(path), "not a file of packed weights")(lambda: cs.load_packed(path))


def test_a_kernel_of_nothing_checks_as_others_do() -> None:
    k = cs.compile("mb0ic3ih8oc4kh3", threads=1)
    x = np.zeros((0, 3, 8, 8), np.float32)
    raises(cs.UsageError, "dtype", "x: dtype is float64")(lambda: k(x.astype(float), W))
    raises(cs.UsageError, "shape", "weights: dim 0 (oc) is 3")(lambda: k(x, W[:3]))
    raises(cs.UsageError, "packing", "packed for another kernel")(lambda: k(x, cs.compile(LINE, threads=1).pack(W)))
    raises(cs.UsageError, "bias", "no bias")(lambda: k(x, W, B))
    raises(cs.UsageError, "nothing", "nothing is compiled")(lambda: k.asm())


def test_passes_that_do_not_exist() -> None:
    k = cs.compile(LINE, threads=1)
    raises(cs.UsageError, "bad-pass", "no pass 'frobnicate'", "naive", "unroll")(lambda: k.ir("frobnicate"))
    raises(cs.UsageError, "bad-pass", "no pass '999'", "legal are 0 to")(lambda: k.ir("999"))
    raises(cs.UsageError, "bad-pass", "no pass 'simplify:9'", "simplify (")(lambda: k.ir("simplify:9"))


# -- surroundings
def test_settings_that_are_not_legal() -> None:
    raises(cs.UsageError, "bad-setting", "CONVSMITH_THREADS='many'", "whole number")(
        lambda: Settings({"CONVSMITH_THREADS": "many"}).threads
    )


@pytest.mark.parametrize("mode,text", [(0o777, "others can write to it"), (0o500, "cannot be written")])
def test_a_cache_directory_that_cannot_be_used_gives_one_warning(tmp_path: Path, mode: int, text: str) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(mode)
    with cs.settings.scope(cache=directory), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for oc in (5, 6, 7):
            x, w = np.ones((1, 2, 4, 4), np.float32), np.ones((oc, 2, 2, 2), np.float32)
            # A size of its own for each mode, so that no kernel is at hand.
            assert (cs.conv2d(x, w, padding=mode & 1, threads=1)[:, :, 1, 1] == 8).all()
    messages = [str(w.message) for w in caught]
    assert len(messages) == 1, messages
    assert str(directory) in messages[0] and f"{mode:04o}" in messages[0] and text in messages[0]
    assert not list(directory.iterdir())
    directory.chmod(stat.S_IRWXU)


def test_a_full_disk_gives_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("convsmith.compiler.cache._new_file", full)
    with cs.settings.scope(cache=tmp_path / "cache"), pytest.warns(UserWarning, match="No space left") as caught:
        for oc in (8, 9):
            cs.conv2d(np.ones((1, 2, 4, 4), np.float32), np.ones((oc, 2, 2, 2), np.float32), threads=1)
    assert len(caught) == 1


DYNAMIC: dict[str, tuple[Callable[[], object], str, tuple[str, ...]]] = {
    "channels": (lambda: dynamic()(X[:, :2], W), "shape", ("src has ic=2; the kernel is for ic=3",)),
    "height": (lambda: dynamic()(X[:, :, :7], W), "shape", ("src has ih=7; the kernel is for ih=8",)),
    "rank": (lambda: dynamic()(X[0], W), "rank", ("src has 3 axes; expected (mb, ic, ih, iw)",)),
    "no array": (lambda: dynamic()([1], W), "not-an-array", ("src: expected an array, got list",)),  # type: ignore[arg-type]
    "pads": (lambda: dynamic()(X, W, pads=(1, [2])), "bad-pads", ("pads=(1, [2])", "each of the 2 axes")),
    "no source": (lambda: dynamic().run(wei=W), "missing", ("src: missing",)),
    "smaller than the kernel": (
        lambda: dynamic()(X[..., :1], W), "bad-shape", ("iw=1 with pads 0 and 0", "expected iw >= 3"),
    ),
    "zero point": (
        lambda: cs.compile(f"--dt=u8:s8:s32 --attr-zero-points=src:common:-5 {LINE}", dynamic="mb").run(
            src=X.astype(np.uint8), wei=W.astype(np.int8)
        ),
        "value", ("zero_points_src is -5", "stores it as u8, from 0 to 255", "--realise=mask"),
    ),
}  # fmt: skip


def dynamic() -> Any:
    return cs.compile(LINE, dynamic="mb,iw")


@pytest.mark.parametrize("name", DYNAMIC)
def test_calls_with_dynamic_sizes(name: str) -> None:
    call, code, texts = DYNAMIC[name]
    raises(cs.UsageError, code, *texts)(call)

"""One kernel for any batch, extents and pads."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
from oracles import small_target

import convsmith as cs
from convsmith.build.dynamic import check_dynamic, dynamic_config, dynamic_steps, dynamic_window, size_values
from convsmith.compiler.driver import naive_kernel
from convsmith.frontend.dynamic import DynamicKernel
from convsmith.interp import run
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.layout.indirection import table
from convsmith.passes.manager import Step, run_steps
from convsmith.problem import Conv, reference
from convsmith.problem.data import random_arrays
from convsmith.target.registry import host_targets

LINES = (
    "mb1ic3ih9iw9oc17oh9ow9kh3kw3ph1pw1",
    "g37mb1ic37ih9iw9oc37oh9ow9kh3kw3ph1pw1",
    "--dir=FWD_B --attr-post-ops=relu mb1ic16ih9iw9oc33oh5ow5kh3kw3sh2sw2ph1pw1",
    "mb1ic5iw16oc8ow16kw5dw1pw4",
    "g2mb1ic6ih8iw8oc10oh8ow8kh1kw1",
    "mb1ic2id4ih5iw5oc5od4oh5ow5kd3kh3kw3pd1ph1pw1",
    "--dt=u8:s8:s32 mb1ic8ih8iw8oc16oh8ow8kh3kw3ph1pw1",
    "--dt=bf16 mb1ic6ih8iw8oc20oh8ow8kh3kw3ph1pw1",
    "--dt=u8:s8:s8 --attr-scales=wei:common:0.5 mb1ic7ih8iw8oc9oh8ow8kh3kw3ph1pw1",
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


@pytest.mark.parametrize("isa", [t.isa for t in host_targets()])
@pytest.mark.parametrize("line", LINES)
def test_any_sizes_and_pads(line: str, isa: str) -> None:
    p, rng = Conv.parse(line), random.Random(line)
    k = cs.compile(p, isa=isa, dynamic=dims_of(p))
    assert isinstance(k, DynamicKernel) and k.requirements == {"ic": p.ic}
    weights = random_arrays(p, 7)
    packed = k.pack(weights["wei"], weights.get("bia"))
    for seed in range(25):
        q, pads = at(k.problem, rng)
        arrays = {**random_arrays(q, seed), "wei": weights["wei"]}
        if p.bias:
            arrays["bia"] = weights["bia"]
        truth = reference(q, arrays, np.float32)["dst"]
        got = k(arrays["src"], packed, pads=pads)
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


def test_tall_images_have_three_rows_of_pointers() -> None:
    p = Conv.parse(LINES[0])
    for height in (224, 5000):
        w = dynamic_window(p, (height, 224), (height, 224), (1, 1))
        assert table(w).entries.shape == (3, (224 + 2) * 3)


def test_several_threads() -> None:
    k = cs.compile("--stag=axb --dtag=axb g16mb1ic16ih9iw9oc16oh9ow9kh3kw3ph1pw1", dynamic="mb,ih,iw")
    w = np.ones((16, 1, 1, 3, 3), np.float32)
    packed, wrong = k.pack(w), []

    def work(n: int) -> None:
        for size in range(3, 40):
            x = np.full((1, 16, size, n + 3), n, np.float32)
            if not (k(x, packed)[0, :, 1:-1, 1:-1] == 9 * n).all():
                wrong.append((n, size))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    assert not wrong


def test_infinite_weights() -> None:
    k = cs.compile(LINES[0], dynamic="mb,ih,iw")
    arrays = random_arrays(k.problem, 1)
    arrays["wei"][3, 1, 0, 2] = np.inf
    with np.errstate(invalid="ignore"):
        truth = reference(k.problem, arrays, np.float32)["dst"]
    np.testing.assert_array_equal(k(arrays["src"], arrays["wei"]), truth)
    with pytest.raises(cs.UnsupportedError, match="weights hold infinities or NaN") as error:
        k(arrays["src"], k.pack(arrays["wei"]))
    assert error.value.code == "non-finite"


class Sizes:
    """The kernel computes the same after every rewrite, at sizes that are not those of the line."""

    def __init__(self, p: Conv, q: Conv, instructions: dict[str, Kernel]) -> None:
        self.q, self.instructions = q, instructions
        self.arrays = random_arrays(q, 3)
        self.truth = reference(q, self.arrays, np.float32)["dst"]
        window = dynamic_window(p, q.i, q.o, q.p)
        self.sizes = size_values(p, q.mb, window)
        self.memory = {name: np.ascontiguousarray(x).ravel() for name, x in self.arrays.items()}
        self.memory["src"] = np.ascontiguousarray(np.moveaxis(self.arrays["src"], 1, -1)).ravel()
        self.memory["src_table"] = table(window).entries.ravel().copy()
        self.memory["src_0"] = np.zeros(p.ic, self.memory["src"].dtype)

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        if not kernel.sizes or not changed or step is None or step.name == "generalise":
            return
        verify(kernel)
        given = {**self.memory, "dst": np.full(self.truth.size, 77, self.truth.dtype)}
        for pack in kernel.packs:
            given[pack.params[1].name] = np.zeros(pack.params[1].size, pack.params[1].dtype.numpy)
            run(pack, {b.name: given[b.name] for b in pack.params}, self.instructions)
        run(kernel, {b.name: given[b.name] for b in kernel.params}, self.instructions, self.sizes)
        got = np.moveaxis(given["dst"].reshape(self.q.mb, *self.q.o, self.q.oc), -1, 1)
        assert (got == self.truth).all(), f"after {step}:\n{kernel}"


@pytest.mark.parametrize(
    "line, sizes",
    [
        ("mb1ic2ih3iw4oc5oh3ow4kh3kw2ph1pw0", "mb2ic2ih4iw6oc5oh4ow5kh3kw2ph1pw0"),
        ("g5mb1ic5ih3iw4oc5oh3ow4kh3kw3ph1pw1", "g5mb1ic5ih5iw7oc5oh5ow7kh3kw3ph1pw1"),
        ("--dt=u8:s8:s32 mb1ic5iw4oc5ow4kw3pw1", "--dt=u8:s8:s32 mb2ic5iw7oc5ow5kw3pw0"),
        ("mb1ic2id2ih3iw3oc3od2oh3ow3kd3kh1kw1pd1ph0pw0", "mb1ic2id4ih2iw5oc3od4oh2ow5kd3kh1kw1pd1ph0pw0"),
    ],
)
def test_every_step_computes_the_same(line: str, sizes: str) -> None:
    target = small_target(4, 12)
    instructions = {row.name: row.kernel for row in target.instructions}
    with interning():
        p, q = (Conv.parse(f"--stag=axb --dtag=axb {x}") for x in (line, sizes))
        config = dynamic_config(check_dynamic(p), target)
        run_steps(naive_kernel(p, target)[1], dynamic_steps(p, config, target), [Sizes(p, q, instructions)])


def test_requirements_are_checked_at_the_call() -> None:
    k = cs.compile("mb2ic3ih9iw9oc4oh9ow9kh3kw3ph1pw1", dynamic="ih")
    assert k.requirements == {"ic": 3, "mb": 2, "iw": 9}
    w = np.ones((4, 3, 3, 3), np.float32)
    assert k(np.ones((2, 3, 20, 9), np.float32), w).shape == (2, 4, 20, 9)
    for shape, text in (
        ((2, 3, 9, 8), "source has iw=8; the kernel is for iw=9"), ((1, 3, 9, 9), "source has mb=1; .* for mb=2"),
        ((2, 4, 9, 9), "source has ic=4; the kernel is for ic=3"),
    ):  # fmt: skip
        with pytest.raises(cs.UsageError, match=text) as error:
            k(np.ones(shape, np.float32), w)
        assert error.value.code == "bad-shape"
    x = np.ones((2, 3, 9, 9), np.float32)
    y = cs.compile("mb2ic3ih9iw9oc4oh9ow9kh1kw1ph0pw0", dynamic="ih")
    for call, code, text in (
        (lambda: k(x.astype(np.float64), w), "bad-array", "source is float64 with 4 axes; expected float32"),
        (lambda: k(x, w, pads=(1, 2, 3)), "bad-pads", r"expected a number of at least 0, or one or \(front, back\)"),
        (lambda: k(x, w, pads=-1), "bad-pads", "pads=-1"),
        (lambda: k(x[:, :, :1], w, pads=0), "bad-shape", "ih=1 with pads 0 and 0 is smaller than the kernel's 3"),
        (lambda: k(x, w, out=np.zeros(3, np.float32)), "bad-array", "out is float32 .3,., the result float32"),
        (lambda: k(x, w[:, :2]), "bad-array", "weights: float32 .4, 2, 3, 3.; expected float32 .4, 3, 3, 3."),
        (lambda: k(x, w, np.ones(4, np.float32)), "bias", "there is no bias"),
        (lambda: k(x, y.pack(w[..., :1, :1])), "packed-elsewhere", "weights are packed as"),
    ):
        with pytest.raises(cs.UsageError, match=text) as error:
            call()
        assert error.value.code == code


@pytest.mark.parametrize(
    "line, dims, kind, text",
    [
        (LINES[0], "ic", cs.UsageError, "'ic' is fixed; legal are mb, ih, iw"),
        (LINES[0], "", cs.UsageError, "names no dim; legal are mb, ih, iw"),
        ("--dir=BWD_D " + LINES[0], "mb", cs.UnsupportedError, "supported are forward convolutions"),
        ("--matmul 2x3:3x4", "mb", cs.UnsupportedError, "is no convolution"),
        ("--stag=abx --dtag=axb " + LINES[0], "mb", cs.UnsupportedError, "supported are src_tag='axb', dst_tag='axb'"),
        ("--attr-post-ops=add:f32:per_oc " + LINES[0], "mb", cs.UnsupportedError, "post-ops without an operand"),
        ("--wtag=axb " + LINES[0], "mb", cs.UnsupportedError, "supported is plain order"),
        (
            "--dt=u8:s8:s32 --attr-zero-points=src:common:2 mb1ic8ih8iw8oc16oh8ow8kh3kw3ph1pw1", "mb",
            cs.UnsupportedError, "has zero points of source or weights",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, dims: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as error:
        cs.compile(line, dynamic=dims)
    assert error.value.code == "dynamic"  # type: ignore[attr-defined]


def test_configs_that_are_refused() -> None:
    with pytest.raises(cs.UnsupportedError, match="on one thread, not on 2"):
        cs.compile(LINES[0], dynamic="mb", threads=2)
    for words in ("--realise=peel", "--fuse=oh+ow", "--tile=oh:2,oc:4", "--table=row", "--lane=ow"):
        given = {"--isa": "generic", "--lane": "oc", "--realise": "indirection"} | dict([words.split("=")])
        config = " ".join(f"{name}={value}" for name, value in given.items())
        with pytest.raises(cs.ConfigError, match=f"{words.split('=')[0]}.*dynamic sizes need") as error:
            cs.compile(LINES[0], dynamic="mb", config=config)
        assert error.value.code == "dynamic"
    config = "--isa=generic --lane=oc --tile=oc:8,ow:3 --realise=indirection"
    assert str(cs.compile(LINES[0], dynamic="mb", config=config).config) == config

"""Depthwise micro-kernels under XNNPACK's conditions: pointers shuffled, canaries around everything that is touched."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import convsmith as cs
from convsmith.frontend.micro_kernel import HostMicroKernel, micro_kernel
from convsmith.interp import run
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.layout.indirection import Axis, Window, table
from convsmith.machine.registry import host_targets
from convsmith.passes.manager import Step, run_steps
from convsmith.problem import reference
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule.micro_kernel import micro_kernel_plan
from convsmith.statement.micro_kernel import naive_micro_kernel

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
from cases import DATA, Case, multipass, unipass
from oracles import small_target
from setups import Array, Setup, check, check_ends, some

ISAS = [t.name for t in host_targets()]
TILES, TAPS = (4, 8, 16, 32), (3, 4, 9, 25)


@pytest.mark.sampled(22, "tile", "taps")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("tile", TILES)
def test_one_pass_in_f32(isa: str, tile: int, taps: int) -> None:
    k = HostMicroKernel(MicroKernel("f32", tile, (taps,)), isa)
    for seed, case in enumerate(some(unipass(tile, taps), 3)):
        check(k, case, seed)


@pytest.mark.sampled(32, "isa", "tile", "taps")
@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("head", ["f16", "bf16", "qs8_fp32", "qs8_rndnu", "qu8_fp32", "qu8_rndnu"])
def test_one_pass_in_other_types(head: str, isa: str, tile: int, taps: int) -> None:
    type_, _, requantise = head.partition("_")
    k = HostMicroKernel(MicroKernel(type_, tile, (taps,), requantise=requantise), isa)
    for seed, case in enumerate(some(unipass(tile, taps, type_ == "qu8"), 40)):
        check(k, case, seed)


@pytest.mark.sampled(3, "name", "isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["f32_dwconv_up24x3", "qs8_dwconv_fp32_up6x3", "f32_dwconv_2f2m2l12c4s1r"])
def test_tiles_of_no_whole_vectors(name: str, isa: str) -> None:
    k = micro_kernel(name, isa)
    for channels in (1, 5, 6, 7, 11, 12, 13, 24, 30, 47):
        check(k, Case("tiles", channels, 3, 2, pitch=channels + 5), channels)


MULTIPASS = sorted({tuple(row) for rows in DATA["multipass"].values() for row in rows})


@pytest.mark.sampled(23)
@pytest.mark.parametrize("row", [r for r in MULTIPASS if r[3] in TILES and r[0] in (2, 5, 6, 7, 8)], ids=str)
def test_several_passes_in_f32(row: tuple[int, ...]) -> None:
    first, middle, last, tile, subtile, rounding = row
    name = f"f32_dwconv_{first}f{middle}m{last}l{tile}c{subtile}s{rounding}r"
    k = micro_kernel(name, ISAS[sum(row) % len(ISAS)])
    assert k.name == name
    for seed, case in enumerate(some(multipass(first, middle, last, tile), 12)):
        check(k, case, seed)


@pytest.mark.sampled(8, "head")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "head", ["f32_dwconv_", "f16_dwconv_", "bf16_dwconv_", "qs8_dwconv_fp32_", "qu8_dwconv_rndnu_"]
)
def test_several_passes_in_every_type(head: str, isa: str) -> None:
    k = micro_kernel(f"{head}5f5m5l16c8s4r", isa)
    for seed, case in enumerate(some(multipass(5, 5, 5, 16), 25)):
        check(k, case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", sorted(DATA["unipass"]))
def test_every_condition_of_every_tile(kind: str, isa: str) -> None:
    type_, *rest = kind.split("-")
    requantise = rest[-1] if rest[-1] in ("fp32", "rndnu") else ""
    for tile, taps in DATA["unipass"][kind]:
        k = HostMicroKernel(MicroKernel(type_, tile, (taps,), requantise=requantise), isa)
        for seed, case in enumerate(unipass(tile, taps, type_ == "qu8")):
            check(k, case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", sorted(DATA["multipass"]))
def test_every_condition_of_several_passes(kind: str, isa: str) -> None:
    type_, *rest = kind.split("-")
    requantise = rest[-1] if rest[-1] in ("fp32", "rndnu") else ""
    for first, middle, last, tile, subtile, rounding in DATA["multipass"][kind]:
        k = HostMicroKernel(MicroKernel(type_, tile, (first, middle, last), subtile, rounding, requantise), isa)
        for seed, case in enumerate(multipass(first, middle, last, tile)):
            check(k, case, seed)


class Steps:
    """The interpreter as an instrument: the kernel computes the truth after every rewrite."""

    def __init__(self, s: Setup, instructions: dict[str, Kernel]) -> None:
        self.s, self.instructions = s, instructions
        m, case = s.m, s.case
        self.pitch, item = case.pitch or case.channels, s.dtype.itemsize
        self.sizes = {
            "channels": case.channels, "output_width": case.width, "kernel_size": case.kernel_size,
            "input_stride": s.stride * 8, "output_increment": (self.pitch - case.channels) * item,
            "input_offset": case.offset * item,
        }  # fmt: skip
        self.arrays = {
            "input": s.entries, "source": s.source, "zero": s.zero, "bias": s.bias, "kernel": s.kernel.ravel(),
            "params": np.array(s.params, np.int32 if m.quantised else np.float32), "scale": s.scale,
            "buffer": np.zeros(case.channels, np.int32 if m.quantised else np.float32),
        }  # fmt: skip

    def after(self, n: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        verify(kernel)
        given = {**self.arrays, "output": np.zeros(self.s.case.width * self.pitch, self.s.dtype)}
        for pack in kernel.packs:
            given["kernel_p"] = np.zeros(4000, pack.params[-1].dtype.numpy)
            self.run(pack, given)
        self.run(kernel, given)
        got = given["output"].reshape(self.s.case.width, self.pitch)[:, : self.s.case.channels]
        assert (got == self.s.truth).all(), f"{self.s.m} {self.s.case} after {step}:\n{kernel}"

    def run(self, kernel: Kernel, given: dict[str, Array]) -> None:
        sizes = {v.name: self.sizes[v.name] for v in kernel.sizes}
        run(kernel, {b.name: given[b.name] for b in kernel.params}, self.instructions, sizes)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "name",
    [
        "f32_dwconv_up8x3", "f32_dwconv_up6x2", "f16_dwconv_up4x3", "bf16_dwconv_up4x2", "qs8_dwconv_fp32_up4x3",
        "qu8_dwconv_rndnu_up4x2", "f32_dwconv_2f2m2l8c4s1r", "qs8_dwconv_rndnu_2f1m2l4c2s1r",
    ],
)  # fmt: skip
def test_every_step_computes_the_same(name: str) -> None:
    """The interpreter runs the nest, and what every rewrite makes of it."""
    target, m = small_target(4), MicroKernel.parse(name)
    instructions = {row.name: row.kernel for row in target.instructions}
    cases = [Case("all", 11, 2, 2, pitch=13, offset=5), Case("few", 3, 2, 2), Case("one", 1, 1, 2)]
    for case in [*cases, *([Case("long", 9, 6, 2)] if m.multipass else [])]:
        with interning():
            steps = micro_kernel_plan(m, target).pipeline
            run_steps(naive_micro_kernel(m), steps, [Steps(Setup(m, case, 1), instructions)])


@pytest.mark.sampled(3, "name", "isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "name", ["f32_dwconv_up16x3", "f16_dwconv_up8x3", "qs8_dwconv_fp32_up16x3", "f32_dwconv_2f2m2l8c4s1r"]
)
def test_nothing_is_read_beyond_its_end(name: str, isa: str) -> None:
    k = micro_kernel(name, isa)
    for channels in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33):
        check_ends(k, channels)


def test_packed_order_is_the_order_of_reading() -> None:
    """Biases, then weights tap by tap, then scales, for each tile of channels; zeros where there is no channel."""
    k = micro_kernel("f32_dwconv_up4x3")
    w, b = np.arange(10, 20, dtype=np.float32).reshape(5, 2), np.arange(1, 6, dtype=np.float32)
    assert k.pack(w, b).buffer.view(np.float32).tolist() == [
        1, 2, 3, 4, 10, 12, 14, 16, 11, 13, 15, 17, 0, 0, 0, 0,
        5, 0, 0, 0, 18, 0, 0, 0, 19, 0, 0, 0, 0, 0, 0, 0,
    ]  # fmt: skip
    q = micro_kernel("qs8_dwconv_fp32_up4x3")
    scale = np.array([0.5, 0.25, 1, 2, 4], np.float32)
    packed = q.pack(w.astype(np.int8), b.astype(np.int32), scale).buffer.reshape(2, 44)
    assert packed[:, :16].copy().view(np.int32).tolist() == [[1, 2, 3, 4], [5, 0, 0, 0]]
    assert packed[0, 16:28].view(np.int8).tolist() == [10, 12, 14, 16, 11, 13, 15, 17, 0, 0, 0, 0]
    assert packed[:, 28:].copy().view(np.float32).tolist() == [[0.5, 0.25, 1, 2], [4, 0, 0, 0]]


def test_rows_of_a_table_in_sections() -> None:
    """An image through the three sections, row by row: the compute function of the document."""
    k, rng, c = micro_kernel("f32_dwconv_up8x25"), np.random.default_rng(0), 19
    for h, w, kh, kw, s, p in ((7, 6, 3, 3, 1, 1), (9, 8, 5, 5, 2, 2), (3, 5, 3, 1, 1, 1), (2, 2, 5, 5, 1, 2)):
        x = rng.integers(-4, 5, (h, w, c)).astype(np.float32)
        weights = rng.integers(-4, 5, (c, kh, kw)).astype(np.float32)
        oh, ow = (h + 2 * p - kh) // s + 1, (w + 2 * (kw // 2) - kw) // s + 1
        window = Window((Axis(h, oh, kh, s, 0, p), Axis(w, ow, kw, s, 0, kw // 2)), (w * c, c))
        zero, out = np.zeros(c, np.float32), np.zeros((oh, ow, c), np.float32)
        rows = k.pointers(window, x, zero)
        packed = k.pack(weights, np.zeros(c, np.float32))
        for y in range(oh):
            k(
                channels=c, output_width=ow, input=rows, output_y=y, source=x, weights=packed,
                output=out[y].reshape(-1), zero=zero, params=(-1e9, 1e9),
            )  # fmt: skip
        line = f"--stag=axb --dtag=axb g{c}mb1ic{c}ih{h}iw{w}oc{c}oh{oh}ow{ow}kh{kh}kw{kw}sh{s}sw{s}ph{p}pw{kw // 2}"
        problem = cs.Conv.parse(line)
        truth = reference(problem, {"src": x.transpose(2, 0, 1)[None], "wei": weights[:, None, None]})["dst"]
        assert (out == truth[0].transpose(1, 2, 0)).all()
    assert table(window).form == "sections"


def test_pixels_beyond_the_kernel_are_not_read() -> None:
    """With a kernel tile larger than the kernel; pixels of other outputs would spoil a sum, even multiplied by 0."""
    k, rng, c = micro_kernel("f32_dwconv_up8x9"), np.random.default_rng(0), 11
    x = rng.integers(-4, 5, (1, 9, c)).astype(np.float32)
    x[0, 6] = np.inf
    weights = rng.integers(1, 5, (c, 3)).astype(np.float32)
    zero, out = np.zeros(c, np.float32), np.zeros((7, c), np.float32)
    window = Window((Axis(1, 1, 1), Axis(9, 7, 3)), (9 * c, c))
    k(
        channels=c, output_width=7, input=k.pointers(window, x, zero), source=x, weights=k.pack(weights, zero),
        output=out.reshape(-1), zero=zero, params=(-1e9, np.inf),
    )  # fmt: skip
    truth = sum(x[0, t : t + 7] * weights[:, t] for t in range(3))
    assert np.isfinite(truth[:4]).all() and (truth[4:] == np.inf).all()
    np.testing.assert_array_equal(out, truth)


def test_names_read_back() -> None:
    for kind, tiles in DATA["unipass"].items():
        for tile, taps in tiles:
            requantise = f"{kind.rpartition('-')[2]}_" if kind.startswith("q") else ""
            name = f"{kind.split('-')[0]}_dwconv_{requantise}up{tile}x{taps}"
            assert MicroKernel.parse(name).name == name
    for row in MULTIPASS:
        name = "f32_dwconv_{}f{}m{}l{}c{}s{}r".format(*row)
        assert MicroKernel.parse(name).name == name and MicroKernel.parse(name).taps == row[:3]


@pytest.mark.parametrize(
    "name, code, text",
    [
        ("f32_dwconv_up0x9", "channel-tile", "a channel tile of 0; at least 1 is legal"),
        ("f32_dwconv_up4x0", "kernel-tile", "a kernel tile of 0; at least 1 is legal"),
        ("f32_dwconv_4x9", "name", "is not the name of a micro-kernel; legal is, for example, f32_dwconv_up16x9"),
        ("f64_dwconv_up4x9", "type", "legal are f32, f16, bf16, qs8, qu8"),
        ("qs8_dwconv_up4x9", "requantisation", "expected _fp32_ or _rndnu_ after qs8_dwconv"),
        ("f32_dwconv_fp32_up4x9", "requantisation", "expected no requantisation after f32_dwconv"),
        ("f32_dwconv_5f5m5l16c6s4r", "subtile", "a subtile of 6 and a rounding of 4: expected a divisor of the tile"),
    ],
)
def test_names_that_are_refused(name: str, code: str, text: str) -> None:
    with pytest.raises(cs.ConfigError, match=text) as error:
        micro_kernel(name)
    assert error.value.code == code


def test_calls_that_are_refused() -> None:
    k, c = micro_kernel("f32_dwconv_up4x9"), 5
    x, zero, out = np.zeros((4, 4, c), np.float32), np.zeros(c, np.float32), np.zeros(16 * c, np.float32)
    window = Window((Axis(4, 4, 3, p=1), Axis(4, 4, 3, p=1)), (4 * c, c))
    rows, packed = k.pointers(window, x, zero), k.pack(np.zeros((c, 3, 3), np.float32), zero)
    good = {"channels": c, "output_width": 4, "input": rows, "weights": packed, "output": out, "zero": zero,
            "params": (0, 6)}  # fmt: skip
    k(**good)  # type: ignore[arg-type]
    other = k.pointers(Window((Axis(4, 4, 3, p=1), Axis(4, 3, 3)), (4 * c, c)), x, zero)
    for change, code, text in (
        ({"source": x[1:]}, "pointers", "and source from"),
        ({"zero": zero.copy()}, "pointers", "the table points to zeros at"),
        ({"input": other}, "table", "9 taps in 9 pointers and 3 outputs; expected 9 in 9 and 4"),
        ({"output_y": 4}, "table", "output_y=4: the table has 4 rows of outputs; legal is a coordinate below each"),
        ({"output_y": (1, 1)}, "table", r"output_y=\(1, 1\): the table has 4 rows of outputs"),
        ({"output_y": 1, "input": rows.addresses[1], "input_stride": 24}, "table", "output_y is given, and input"),
        ({"channels": 4}, "packed-elsewhere", "packed for 5 channels of f32_dwconv_up4x9, not for 4"),
        ({"output_increment": 3}, "bad-size", "output_increment=3: expected bytes, at least 0, a multiple of 4"),
        ({"output": out[:8]}, "bad-array", "output has 8 elements of float32; expected at least 20"),
        ({"params": (1,)}, "bad-params", "params are minimum, maximum; 1 were given"),
        ({"input": np.zeros(40, np.uint64)}, "missing-array", "input_stride is missing"),
    ):
        with pytest.raises(cs.UsageError, match=text) as error:
            k(**{**good, **change})  # type: ignore[arg-type]
        assert error.value.code == code
    with pytest.raises(
        cs.ConfigError, match="the kernel has 10 taps, its tile 9; legal are up to 9, or a multipass"
    ) as e:
        k.pack(np.zeros((c, 10), np.float32), zero)
    assert e.value.code == "kernel-tile"

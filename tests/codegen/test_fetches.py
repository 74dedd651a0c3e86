"""Kernels that fetch the next part of weights, or the pixels of the next tile: results, which lines, by which tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.compiler.driver import lower
from convsmith.diag.errors import ConfigError
from convsmith.interp import interp
from convsmith.ir.equal import first_mismatch
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import dtype
from convsmith.ir.verify import verify
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.verification import verify_kernel
from convsmith.passes.fetch_next import fetch_next
from convsmith.passes.fetch_pixels import fetch_pixels
from convsmith.passes.fetch_rows import fetch_rows
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

FETCH = "i32 0, i32 2, i32 1)"
"""The end of a call that prefetches to the second-level cache."""
AVX512 = next(t for t in LEVELS if t.name == "avx512")
LAYOUTS = "--stag=axb --dtag=axb"
POINTWISE = f"{LAYOUTS} mb1ic64ih7iw7oc72oh7ow7kh1kw1"
WINDOWS = f"{LAYOUTS} mb1ic32ih9iw9oc48oh9ow9kh3kw3ph1pw1"
CASES = [
    (POINTWISE, "--lane=oc --fuse=oh+ow,mb+oh_ow --register=mb_oh_ow:6,oc:{2} --order=oc,mb_oh_ow --reduce=kh,kw,ic"),
    (POINTWISE, "--lane=oc --fuse=oh+ow,mb+oh_ow --register=mb_oh_ow:5,oc:{1} --order=oc,mb_oh_ow --reduce=kh,kw,ic"),
    (WINDOWS, "--lane=oc --register=ow:3,oc:{1} --order=mb,oc,oh,ow --reduce=kh,ic,kw --stream=wei"),
    (WINDOWS, "--lane=oc --register=ow:3,oc:{1} --order=mb,oh,oc,ow --reduce=kh,kw,ic --outline=no"),
    (WINDOWS, "--lane=oc --register=ow:3,oc:{1} --order=oh,ow,oc --reduce=kh,kw,ic"),
]  # fmt: skip
"""Problems with configs; {2} stands for the lanes of two vectors."""


def _config(words: str, level: Any) -> Config:
    lanes = level.vector_bits // 32
    sized = words.replace("{1}", str(lanes)).replace("{2}", str(2 * lanes))
    return Config.parse(f"--target={level.name} {sized} --fetch=wei")


@pytest.mark.sampled(9, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words"), CASES)
def test_fetching_changes_no_result(line: str, words: str, threads: int) -> None:
    for level in host_targets():
        if level.vector_bits:
            assert verify_kernel(cs.compile(line, config=str(_config(words, level)), threads=threads)).ok


PIXELS = [
    ("--stag=axb --dtag=axb mb2ic20ih7oc40oh7kh1ph0", "--fuse=oh+ow,mb+oh_ow --register=mb_oh_ow:5,oc:{2}"),
    ("--stag=aBx16b --dtag=axb mb2ic32ih7oc40oh7kh1ph0", "--fuse=oh+ow --register=oh_ow:3,oc:{1}"),
    ("--dt=bf16 --stag=axb --dtag=axb mb1ic18ih7oc40oh7kh1ph0", "--fuse=oh+ow --register=oh_ow:4,oc:{1}"),
    ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic16ih7oc40oh7kh1ph0", "--fuse=oh+ow --register=oh_ow:4,oc:{1}"),
    ("--stag=axb --dtag=axb g2mb1ic16ih7oc40oh7kh1ph0", "--fuse=oh+ow --register=oh_ow:4,oc:{1}"),
    ("--stag=axb --dtag=axb mb1ic16ih7oc40oh4kh1sh2ph0", "--register=ow:4,oc:{1}"),
    ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb2ic8ih13oc40oh5kh1sh3ph0", "--register=ow:5,oc:{1}"),
]
"""1x1 convolutions, whose tiles may fetch the pixels of the next tile."""


@pytest.mark.sampled(12, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words"), PIXELS)
def test_fetching_pixels_changes_no_result(line: str, words: str, threads: int) -> None:
    for level in host_targets():
        if level.vector_bits:
            config = str(_config(f"--lane=oc --reduce=kh,kw,ic {words}", level)).replace("fetch=wei", "fetch=src")
            assert verify_kernel(cs.compile(line, config=config, threads=threads)).ok


GRADIENT = "--dir=BWD_W --stag=axb --wtag=axb --dtag=axb"
BLOCKS = [
    ("mb2ic40ih7oc40oh7kh1ph0", "--lane=oc --register=ic:5,oc:{1} --reduce=mb,oh,ow --cache=mb:1,oh:2"),
    ("mb3ic40ih7oc33oh7kh1ph0", "--lane=ic --register=oc:4,ic:{2} --reduce=mb,oh,ow --cache=mb:1 --outline=no"),
    ("mb3ic40ih7oc33oh7kh1ph0", "--lane=ic --register=oc:4,ic:{1} --reduce=mb,oh,ow --cache=oh:3"),
    ("mb2ic36ih3oc40oh3kh1ph0", "--lane=oc --register=ic:4,oc:{1} --reduce=mb,oh,ow"),
]
"""Gradients of 1x1 weights, whose tiles may fetch the next block of pixels."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words"), BLOCKS)
def test_fetching_blocks_of_pixels_changes_no_result(line: str, words: str, threads: int) -> None:
    for level in host_targets():
        if level.vector_bits:
            config = str(_config(f"{words} --pack=", level)).replace("fetch=wei", "fetch=src,diff_dst")
            assert verify_kernel(cs.compile(f"{GRADIENT} {line}", config=config, threads=threads)).ok


@pytest.mark.parametrize(("line", "words"), [
    (f"{GRADIENT} mb2ic64ih7oc64oh7kh3ph1", "--lane=oc --register=ic:5,oc:32 --pack="),
    (f"{GRADIENT} mb2ic64ih8oc64oh4kh1sh2ph0", "--lane=oc --register=ic:5,oc:32 --pack="),
    (f"{GRADIENT} mb2ic8ih7oc64oh7kh1ph0", "--lane=oc --register=ic:5,oc:32 --pack="),
    (f"{GRADIENT} mb2ic64ih7oc64oh7kh1ph0", "--lane=oc --register=ic:5,oc:32 --pack=src"),
    ("--dir=BWD_W --stag=aBx16b --dtag=axb mb2ic64ih7oc64oh7kh1ph0", "--lane=oc --register=ic:8,oc:32 --pack="),
], ids=["taps", "stride", "few-channels", "packed", "blocked"])  # fmt: skip
def test_factors_whose_blocks_cannot_be_fetched_are_refused(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match="--fetch=src: legal are"):
        plan(parse_problem(line).canonical(), Config.parse(f"--target=avx512 {words} --fetch=src"), AVX512)


@pytest.mark.parametrize(
    ("sizes", "blocks", "fetched"),
    [
        ("mb32ic24ih56oc24oh56kh1ph0", (("mb", 1), ("oh", 14)), ("src", "diff_dst")),
        ("mb32ic384ih14oc64oh14kh1ph0", (("mb", 1), ("oh", 7)), ("src",)),
        ("mb2ic24ih56oc24oh56kh1ph0", None, ()),
        ("mb32ic24ih56oc24oh56kh3ph1", None, ()),
    ],
)
def test_first_choices_fetch_blocks_that_are_contiguous(
    sizes: str, blocks: tuple[tuple[str, int], ...] | None, fetched: tuple[str, ...]
) -> None:
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(AVX512)
    config = default_config(parse_problem(f"{GRADIENT} {sizes}"), machine)
    assert config.staged("fetch") == fetched
    assert blocks is None or config.tiles_at("cache") == blocks


INTERLEAVED = """kernel k(w: f32[96], c: f32[6])
  for o in 0 .. 2:
    for p in 0 .. 3:
      alloc acc: f32[] @register:
        acc[] = 0.0
        for i in 0 .. 4 carrying w.i: w = o * 48 + p * 4 step 12:
          acc[] = acc[] + w[w.i]
        c[o * 3 + p] = acc[]
"""


def test_tiles_of_an_interleaved_array_share_the_next_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _fetched(INTERLEAVED, monkeypatch, interleaved=True)
    assert found == [48 + o * 48 + p * 20 + i * 4 for o in (0, 1) for p in range(3) for i in range(4)]


@pytest.mark.parametrize("read, fetched", [
    ("i + p.i * 20 + p.o * 60", ["i * 3 + p.o * 60 + 60"]),
    ("i % 4 + i // 4 * 90 + p.i * 4 + p.o * 12", ["i % 4 * 3 + i // 4 * 90 + p.o * 12 + 12"]),
    ("i * 2 + p.i * 40 + p.o * 120", ["i * 6 + p.o * 120 + 120"]),
    ("i + p.i * 40 + p.o * 120", ["i * 40 + p.o * 120 + 120", "i * 40 + p.o * 120 + 136"]),
    ("i + p.i * 80 + p.o * 240", ["i * 80 + p.o * 240 + 240", "i * 80 + p.o * 240 + 256"]),
    ("i * 4 + p.i * 99 + p.o * 297", []),
    ("i % 2 + i // 2 * 90 + p.i * 6 + p.o * 18", [f"i % 2 * 12 + i // 2 * 90 + p.o * 18 + {n}" for n in (18, 24)]),
    ("i * 60 + p.i + p.o * 3", []),
    ("i + p.o * 60", []),
], ids=[
    "pixels", "blocks", "pairs", "every-second-pixel", "every-fourth-pixel", "pixels-of-five-lines", "every-third-pair",
    "rows", "one-pixel",
])  # fmt: skip
def test_a_step_fetches_its_share_of_the_next_tile(read: str, fetched: list[str]) -> None:
    text = f"""kernel k(a: f32[800], c: f32[12])
  for p.o in 0 .. 4:
    for i in 0 .. 20:
      for p.i in 0 .. 3 #unrolled:
        c[p.i + p.o * 3] = c[p.i + p.o * 3] + a[{read}]
"""
    lines = [line for line in str(fetch_pixels(parse_kernel(text), "a", "p.i", "i")).splitlines() if "prefetch" in line]
    assert [line.strip() for line in lines] == [f"prefetch a[{as_text(index)}]" for index in fetched]


@pytest.mark.parametrize(("result", "tiles"), [("a[{}]", 35), ("c[p.i + p.o * 3] + a[{}]", 1)])
def test_a_kernel_that_reads_no_results_fetches_a_tile_that_is_not_near(result: str, tiles: int) -> None:
    """A tile of three pixels of 20 elements has 240 bytes, of which 35 tiles are the first 8 KiB."""
    read = result.format("i + p.i * 20 + p.o * 60")
    text = f"""kernel k(a: f32[800], c: f32[12])
  for p.o in 0 .. 4:
    for i in 0 .. 20:
      for p.i in 0 .. 3 #unrolled:
        c[p.i + p.o * 3] = {read}
"""
    (line,) = [x for x in str(fetch_pixels(parse_kernel(text), "a", "p.i", "i")).splitlines() if "prefetch" in x]
    assert line.strip() == f"prefetch a[{as_text(f'i * 3 + p.o * 60 + {60 * tiles}')}]"


def test_the_distance_counts_all_blocks_of_the_channels_of_a_tile() -> None:
    """A tile of three pixels reads 48 bytes in each of five blocks of channels: 35 tiles are the first 8 KiB."""
    text = """kernel k(a: f32[800], c: f32[12])
  for p.o in 0 .. 4:
    for i in 0 .. 20:
      for p.i in 0 .. 3 #unrolled:
        c[p.i + p.o * 3] = a[i % 4 + i // 4 * 160 + p.i * 4 + p.o * 12]
"""
    (line,) = [x for x in str(fetch_pixels(parse_kernel(text), "a", "p.i", "i")).splitlines() if "prefetch" in x]
    assert line.strip() == f"prefetch a[{as_text(f'i % 4 * 3 + i // 4 * 160 + p.o * 12 + {12 * 35}')}]"


def as_text(index: str) -> str:
    """Return ``index`` as it prints."""
    head = "kernel k(a: f32[999])\n  for p.o in 0 .. 4:\n    for i in 0 .. 20:\n"
    return str(parse_kernel(f"{head}      prefetch a[{index}]\n")).split("prefetch a[")[1].rstrip("]\n")


@pytest.mark.parametrize("line, words", [
    (WINDOWS, "--lane=oc --register=ow:3,oc:16"),
    (POINTWISE, "--lane=oc --fuse=oh+ow --register=oc:16"),
    (POINTWISE, "--lane=oc --fuse=oh+ow --register=oh_ow:3,oc:16 --pack_at=src+oh_ow"),
    (POINTWISE, "--lane=ow --register=oc:4,ow:16 --pack=src,wei"),
], ids=["windows", "one-pixel", "packed", "vectors-of-pixels"])  # fmt: skip
def test_pixels_that_cannot_be_fetched_are_refused(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match="--fetch=src: legal are"):
        plan(parse_problem(line).canonical(), Config.parse(f"--target=avx512 {words} --fetch=src"), AVX512)


def test_a_transform_fetches_its_weights() -> None:
    config = (
        "--target=avx512 --lane=oc --fuse=th+tw --register=th_tw:13,oc:32 --order=f,oc,th_tw --reduce=ic --pack=wei_w "
        "--fetch=wei_w --outline=no --winograd=oh:2,ow:2"
    )
    problem = parse_problem(f"{LAYOUTS} mb1ic32ih14oc64oh14kh3ph1")
    with interning():
        assert FETCH in lower(plan(problem, Config.parse(config), AVX512)).text
        assert FETCH not in lower(plan(problem, Config.parse(config).changed(fetch=()), AVX512)).text
    if AVX512 in host_targets():
        assert verify_kernel(cs.compile(problem, config=config, threads=1)).ok


INLINE = """kernel k(w: f32[96], c: f32[6])
  for o in 0 .. 2:
    for p in 0 .. 3:
      alloc acc: f32[] @register:
        acc[] = 0.0
        for i in 0 .. 4 carrying w.i: w = o * 48 step 12:
          acc[] = acc[] + w[w.i]
        c[o * 3 + p] = acc[]
"""
CALLS = """function tile0(ptr0: w, ptr1: c, arg0)
  alloc acc: f32[] @register:
    acc[] = 0.0
    for j in arg0 .. 2 carrying w.j: w = arg0 * 64 + ptr0 step 64:
      for i in 0 .. 4 carrying w.i: w = w.j step 16:
        acc[] = acc[] + w[w.i]
    c[ptr1] = acc[]
function tile1(ptr0: w, ptr1: c)
  alloc acc: f32[] @register:
    acc[] = 0.0
    for i in 0 .. 8 carrying w.i: w = ptr0 step 16:
      acc[] = acc[] + w[w.i]
    c[ptr1] = acc[]
kernel k(w: f32[384], c: f32[12])
  for o in 0 .. 2:
    call tile0(w @ o * 128, c @ o * 4, 0)
    for p in 0 .. 2:
      call tile0(w @ o * 128, c @ o * 4 + p + 1, 0)
    call tile1(w @ o * 128, c @ o * 4 + 3)
  for p in 0 .. 4:
    call tile1(w @ 256, c @ p + 8)
"""


def _fetched(
    text: str, monkeypatch: pytest.MonkeyPatch, is_inside: bool = False, interleaved: bool = False
) -> list[int]:  # fmt: skip
    """Return the elements of `w` that a kernel asks for after the pass, in order, and compare its results with those
    before.
    """
    found: list[int] = []
    monkeypatch.setattr(interp._Machine, "_prefetch", lambda self, s: found.extend(map(self._index, s.index)))
    with interning():
        before = parse_kernel(text)
        after = fetch_next(before, "w", is_inside, interleaved)
        assert first_mismatch(parse_kernel(str(after)), after) is None
        results = []
        for kernel in (before, after):
            verify(kernel)
            arrays = {b.name: np.arange(b.size, dtype=np.float32) for b in kernel.params}
            interp.run(kernel, arrays)
            results.append(arrays["c"])
        np.testing.assert_array_equal(*results)
    return found


@pytest.mark.parametrize(("text", "part"), [(INLINE, 48), (CALLS, 128)])
def test_the_tiles_of_a_part_fetch_all_of_the_next(text: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _fetched(text, monkeypatch)
    parts = len(found) // (2 if text is INLINE else 3)
    for n in range(len(found) // parts):
        lines = {x // 16 for x in found[n * parts : (n + 1) * parts]}
        assert lines >= {*range((n + 1) * part // 16, (n + 2) * part // 16)}


@pytest.mark.parametrize(("text", "part"), [(INLINE, 48), (CALLS, 128)], ids=["inline", "calls"])
def test_prefetches_stay_inside(text: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts but the last are fetched as they are elsewhere."""
    inside, free = (_fetched(text, monkeypatch, x) for x in (True, False))
    size = {48: 96, 128: 384}[part]
    assert max(inside) < size <= max(free)
    lines = {x // 16 for x in inside}
    if text is INLINE:
        assert lines == {*range(part // 16, size // 16)} and min(inside) == part


def test_each_tile_fetches_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _fetched(INLINE, monkeypatch)
    assert found == [48 + part * 48 + tile * 16 + step * 4 for part in (0, 1) for tile in range(3) for step in range(4)]


def test_a_machine_without_prefetches_loads() -> None:
    """The last tile of weights loads the end of the array; LLVM does not remove what nobody uses."""
    line = f"{LAYOUTS} mb1ic160ih7oc960oh7kh1ph0"
    config = "--target=wasm32 --lane=oc --fuse=oh+ow --register=oh_ow:5,oc:8 --order=oc,mb,oh_ow --reduce=kh,kw,ic"
    texts = [cs.compile(line, config=f"{config}{x}", threads=1).llvm() for x in ("", " --fetch=wei")]
    assert ["load volatile i8" in text for text in texts] == [False, True]
    words = "--lane=oc --register=tw:6,oc:8 --order=f,oc,tw --reduce=ic --pack=wei_w --outline=no --winograd=ow:4"
    carried = f"--target=wasm32+relaxed {words} --fetch=wei_w --block=ow:52"
    kernel = cs.compile(f"{LAYOUTS} mb1ic64iw2048oc64ow2048kw3pw1", config=carried, threads=1)
    assert "load volatile i8" not in kernel.llvm(), "a loop around the tiles carries the pointer"
    with pytest.raises(ConfigError, match="fetch=src"):
        cs.compile(line, config=f"{config} --fetch=src", threads=1)


@pytest.mark.parametrize("change", [
    ("for p in 0 .. 3", "for p in 0 .. 1"),
    ("for p in 0 .. 3", "for p in 0 .. max(o, 2)"),
    ("w = o * 48 step 12", "w = p * 48 step 12"),
    ("w = o * 48 step 12", "w = (o + p) // 2 * 48 step 12"),
])  # fmt: skip
def test_parts_that_one_tile_reads_or_of_unknown_tiles_are_left(change: tuple[str, str]) -> None:
    assert change[0] in INLINE
    with interning():
        kernel = parse_kernel(INLINE.replace(*change).replace("f32[96]", "f32[240]"))
        assert fetch_next(kernel, "w") is kernel


@pytest.mark.parametrize(("line", "config"), [
    (POINTWISE, "--target=avx512 --lane=ow --register=ow:16,oc:4 --reduce=kh,kw,ic --pack= --fetch=wei"),
    (WINDOWS, "--target=avx512 --lane=oc --register=ow:3,oc:32 --reduce=kh,kw,ic --fetch=src"),
    (POINTWISE, "--target=avx512 --lane=oc --register=ow:7,oc:32 --reduce=kh,kw,ic --pack= --fetch=wei"),
])  # fmt: skip
def test_other_operands_are_not_fetched(line: str, config: str) -> None:
    with interning(), pytest.raises(ConfigError, match=r"--fetch=.*: legal are") as caught:
        plan(parse_problem(line), Config.parse(config), AVX512)
    assert caught.value.code == "fetch"


@pytest.mark.parametrize(("line", "fetched"), [
    (f"{LAYOUTS} mb1ic1024ih7oc512oh7kh1", ("wei",)),
    (f"{LAYOUTS} mb1ic256ih14oc256oh14kh3ph1", ("wei_w",)),
    (f"{LAYOUTS} g64mb1ic64ih14oc64oh14kh3ph1", ()),
    ("--matmul 49x512:512x256", ("wei",)),
    ("--dir=BWD_W --stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1", ()),
])  # fmt: skip
def test_first_choices_fetch_cold_weights(line: str, fetched: tuple[str, ...]) -> None:
    problem = parse_problem(line)
    costs = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server")
    machine = costs.of(AVX512)
    assert default_config(problem, machine.with_cold_weights).staged("fetch") == fetched
    assert default_config(problem, machine).staged("fetch") == ()


DEPTHWISE = [
    (f"{LAYOUTS} g40mb2ic40ih7oc40oh7kh3ph1", "--register=oh:2,ow:3,g:{1},kh:3,kw:3"),
    (f"--dt=bf16 {LAYOUTS} g40mb2ic40ih9iw7oc40oh5ow4kh3kw3sh2sw2ph1pw1", "--register=oh:3,ow:2,g:{2},kh:3,kw:3"),
    (f"--dt=u8:s8:s32 {LAYOUTS} g40mb1ic40ih7oc40oh7kh3ph1", "--register=oh:1,ow:3,g:{1},kh:3,kw:3 --resident=wei"),
    (f"--dir=BWD_D {LAYOUTS} g40mb2ic40ih7oc40oh7kh5ph2", "--register=ih:2,iw:3,g:{1},kh:5,kw:5 --cache=g:{2}"),
    (f"{LAYOUTS} g24mb2ic24id3ih4iw5oc24od3oh4ow5kd3kh3kw3pd1ph1pw1", "--register=oh:2,ow:2,g:{1},kh:3,kw:3"),
]
"""Depthwise convolutions, whose tiles may fetch the pixels of the tile below."""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words"), DEPTHWISE)
def test_fetching_rows_changes_no_result(line: str, words: str, threads: int) -> None:
    source = "diff_dst" if "BWD_D" in line else "src"
    for level in host_targets():
        if level.vector_bits:
            config = str(_config(f"--lane=g {words}", level)).replace("fetch=wei", f"fetch={source}")
            assert verify_kernel(cs.compile(line, config=config, threads=threads)).ok


@pytest.mark.parametrize(("line", "words"), [
    (f"{LAYOUTS} g40mb2ic40iw9oc40kw3pw1", "--lane=g --register=ow:2,g:16,kw:3"),
    (f"{LAYOUTS} g16mb2ic32ih9oc32kh3ph1", "--lane=g --register=ow:2,g:16,kh:3,kw:3"),
    ("--stag=abx --dtag=abx g16mb2ic16ih16oc16kh3ph1", "--lane=ow --register=oh:2,ow:16,kh:3,kw:3"),
    (f"--dir=BWD_D {LAYOUTS} g16mb2ic16ih8oc16oh4kh3sh2ph1", "--lane=g --register=iw:2,g:16,kh:3,kw:3"),
    (f"{LAYOUTS} g16mb2ic16ih9oc16kh3ph1", "--lane=g --register=ow:2,g:16,kh:3,kw:3 --realise=pad_copy"),
    (f"{LAYOUTS} g16mb2ic16ih9oc16kh3ph1", "--lane=g --register=ow:2,g:16"),
], ids=["one-row", "channels-of-a-group", "vectors-of-pixels", "residue-classes", "copy", "loops"])  # fmt: skip
def test_rows_that_cannot_be_fetched_are_refused(line: str, words: str) -> None:
    source = "diff_dst" if "BWD_D" in line else "src"
    with pytest.raises(ConfigError, match=f"--fetch={source}: legal are"):
        plan(parse_problem(line).canonical(), Config.parse(f"--target=avx512 {words} --fetch={source}"), AVX512)


def _tiles(element: str, apart: int) -> Kernel:
    """Return a kernel of tiles of 2 x 2 windows of 3 x 3 taps, ``apart`` rows from each other, on 10 columns."""
    rows, columns = ([p + t * by for t in range(3) for p in (0, 1)] for by in (apart, 1))
    at = [row * 160 + column * 16 for row in rows for column in columns]
    sums = "\n".join(f"        acc[] = acc[] + cast(f32, a[x * 32 + y * 320 + {n}])" for n in at)
    return parse_kernel(f"""kernel k(a: {element}[2560], c: f32[16])
  for y in 0 .. 4:
    for x in 0 .. 4:
      alloc acc: f32[] @register:
        acc[] = 0.0
{sums}
        c[x + y * 4] = acc[]
""")


@pytest.mark.parametrize(("element", "apart", "rows", "columns"), [
    ("f32", 1, (4, 5), (0, 1)), ("bf16", 1, (4, 5), (0,)), ("f32", 2, (6, 7), (0, 1)),
    ("f32", 4, (10, 11), (0, 1)),
], ids=["lines", "half-lines", "taps-apart", "taps-far-apart"])  # fmt: skip
def test_tiles_fetch_the_pixels_that_those_below_are_the_first_to_read(
    element: str, apart: int, rows: tuple[int, ...], columns: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tile above has read the other rows under the windows, and the next tile fetches the other columns."""
    found: list[int] = []
    monkeypatch.setattr(interp._Machine, "_prefetch", lambda self, s: found.extend(map(self._index, s.index)))
    with interning():
        kernel = fetch_rows(_tiles(element, apart), "a", 320, 32)
        verify(kernel)
        arrays = {"a": np.zeros(2560, dtype=dtype(element).numpy), "c": np.zeros(16, dtype=np.float32)}
        interp.run(kernel, arrays)
    tiles = [(y, x) for y in range(4) for x in range(4)]
    assert found == [(2 * y + r) * 160 + (2 * x + c) * 16 for y, x in tiles for r in rows for c in columns]


def test_fetches_lie_evenly_between_reads() -> None:
    with interning():
        lines = str(fetch_rows(_tiles("f32", 1), "a", 320, 32)).splitlines()
    assert [n - 5 for n, line in enumerate(lines) if "prefetch" in line] == [0, 10, 20, 30]


@pytest.mark.parametrize(("line", "fetches"), [
    ("g144mb32ic144ih56oc144oh56kh3ph1", True),
    ("g144mb4ic144ih56oc144oh56kh3ph1", False),
    ("g64mb8ic64ih224oc64oh224kh3ph1", True),
    ("g4096mb8ic4096ih28oc4096oh28kh3ph1", False),
], ids=["from-memory", "from-a-cache", "large-rows", "rows-beyond-the-cache"])  # fmt: skip
def test_first_choices_fetch_rows_of_images_in_memory(line: str, fetches: bool) -> None:
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(AVX512)
    config = default_config(parse_problem(f"{LAYOUTS} {line}"), machine)
    assert config.staged("fetch") == (("src",) if fetches else ())

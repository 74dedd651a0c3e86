"""Indices of 32 bits where all of them fit, of 64 where one does not; tensors of gigabytes of which few pages exist."""

from __future__ import annotations

import mmap
import re

import numpy as np
import pytest
from guarded import expected, places_of

from convsmith.compiler.driver import build_artifact, lower
from convsmith.compiler.rewritten import Lowered
from convsmith.interp import run
from convsmith.ir.intern import interning
from convsmith.layout.layout import Layout
from convsmith.machine.generic.level import level
from convsmith.problem import Conv
from convsmith.problem.data import random_arrays
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.host_block import HostBlock
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

TILES = "--lane=oc --register=oc:4"
HALF = 1 << 30
FAR = HALF + 7

WIDTHS = {
    "small": ("mb2ic8ih9oc8oh9kh3ph1", TILES, 32),
    "just-below": ("mb1023ic2048ih32oc4oh32kh1", TILES, 32),
    "source": ("mb1024ic2048ih32oc4oh32kh1", TILES, 64),
    "destination": ("mb1024ic4ih32oc2048oh32kh1", TILES, 64),
    "weights": ("mb1ic65536ih1oc65536oh1kh1", f"{TILES} --pack=", 64),
    "packed-weights": ("mb1ic65536ih1oc65536oh1kh1", TILES, 64),
    "rounded-up": ("--dtag=aBcd16b mb1024ic4ih256iw512oc1oh256ow512kh1kw1", TILES, 64),
    "threads": ("mb1024ic2048ih32oc4oh32kh1", f"{TILES} --threads=2", 64),
}  # fmt: skip

RUNS = {
    "source": (f"--stag=a:1:1_b:1:1_c:3:{FAR} mb1ic1iw3oc4ow3kw1", TILES),
    "source-padded": (f"--stag=a:1:1_b:2:1_c:4:{FAR} mb1ic2iw4oc5ow4kw3pw1", f"{TILES},ow:2 --reduce=kw,ic"),
    "source-masked": (f"--stag=a:1:1_b:2:1_c:4:{FAR} mb1ic2iw4oc5ow4kw3pw1", f"{TILES} --realise=mask"),
    "source-copied": (f"--stag=a:1:1_b:2:1_c:4:{FAR} mb1ic2iw4oc5ow4kw3pw1", f"{TILES} --realise=pad_copy"),
    "images": (f"--stag=a:3:{FAR}_b:2:3_c:3:1 mb3ic2iw3oc4ow3kw1", f"{TILES} --threads=2"),
    "channels-along-lanes": (f"--stag=a:1:1_b:4:{FAR}_c:3:1 mb1ic4iw3oc2ow3kw1", "--lane=ic --register=oc:2"),
    "destination": (f"--dtag=a:1:1_b:5:{FAR}_c:3:1 mb1ic2iw3oc5ow3kw1", TILES),
    "weights": (f"--wtag=a:3:{FAR}_b:2:1_c:3:2 mb1ic2iw3oc3ow3kw3pw1", TILES),
    "weights-not-packed": (f"--wtag=a:3:{FAR}_b:2:1_c:3:2 mb1ic2iw3oc3ow3kw3pw1", f"{TILES} --pack="),
    # The last element lies below 2**31, but o * stride, from which the padding is taken off, does not.
    "only-a-term": (f"--stag=a:1:1_b:1:1_c:2:{HALF} mb1ic1iw2oc4ow3kw1pw1", TILES),
    "only-a-term-masked": (f"--stag=a:1:1_b:1:1_c:2:{HALF} mb1ic1iw2oc4ow3kw1pw1", f"{TILES} --realise=mask"),
    "just-below": (f"--stag=a:1:1_b:1:1_c:2:{2 * HALF - 2} mb1ic1iw2oc4ow2kw1", TILES),
    "at-the-end": (f"--stag=a:1:1_b:1:1_c:2:{2 * HALF - 1} mb1ic1iw2oc4ow2kw1", TILES),
}


def lowered(line: str, words: str) -> Lowered:
    with interning():
        return lower(plan(Conv.parse(line), Config.parse(f"--target=generic {words}"), level()))


def check_text(text: str, bits: int) -> None:
    """Every constant fits its type, and offsets are as wide as the kernel's indices."""
    for kind, value in re.findall(r"\b(i32|i64) (?:%[\w.]+, )?(-?\d+)\b", text):
        assert -(1 << int(kind[1:]) - 1) <= int(value) < 1 << int(kind[1:]) - 1, f"{kind} {value}"
    narrow = re.findall(r"getelementptr \w+, ptr %[\w.]+, i32 %", text)
    assert bits == 32 or not narrow, narrow


@pytest.mark.parametrize("name", WIDTHS)
def test_width(name: str) -> None:
    line, words, bits = WIDTHS[name]
    low = lowered(line, words)
    assert low.kernel.index_bits == bits
    main = low.text.partition("define void @convsmith(")[0]
    check_text(main, bits)


def test_constants_beyond_32_bits_are_exact() -> None:
    stride = 5 * HALF + 3
    text = lowered(f"--stag=a:3:{stride}_b:2:7_c:3:1 mb3ic2iw3oc4ow3kw1", TILES).text
    assert re.search(rf"mul i64 %[\w.]+, {stride}\b", text)
    check_text(text.partition("define void @convsmith(")[0], 64)


def far(layout: Layout) -> np.ndarray:
    """Zeros for a whole layout, of which only pages that are touched take memory."""
    size = layout.size * 4
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.float32)
    except (OSError, ValueError) as error:
        pytest.skip(f"{size >> 30} GiB of addresses: {error}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", RUNS)
def test_interpreted_and_compiled(name: str) -> None:
    line, words = RUNS[name]
    problem = Conv.parse(line)
    arrays = random_arrays(problem)
    layouts = {"src": problem.src_layout, "wei": problem.wei_layout, "dst": problem.dst_layout}
    memory = {n: far(layout) for n, layout in layouts.items()}
    for n, x in arrays.items():
        memory[n][places_of(layouts[n])] = x.ravel()
    truth = expected(problem, arrays)["dst"]
    dst = memory["dst"]
    places = places_of(layouts["dst"])

    def check(who: str) -> None:
        np.testing.assert_array_equal(dst[places].reshape(truth.shape), truth, f"{who}: {line}")
        dst[places] = np.nan

    low = lowered(line, words)
    # With packed weights only the packing kernel meets the distances between them.
    assert low.kernel.index_bits == (32 if name in ("just-below", "weights") else 64)
    rows = {row.name: row.kernel for row in level().instructions}
    for pack in low.kernel.packs:
        operand, packed = pack.params
        memory[packed.name] = np.full(packed.size, np.nan, np.float32)
        run(pack, {operand.name: memory[operand.name], packed.name: memory[packed.name]}, rows)
    run(low.kernel, {b.name: memory[b.name] for b in low.kernel.params}, rows)
    check("interpreted")

    library = HostLibrary(build_artifact(problem, Config.parse(f"--target=generic {words}"), level()))
    for entry in [e for e in ("pack", "main") if e in library.functions]:
        function = library[entry]
        for a in function.entry.arguments:
            if a.role == "packed" and (entry == "pack" or a.name not in memory):
                memory[a.name] = np.full(a.size * function.entry.launch.threads, np.nan, np.float32)
        block = HostBlock(function.entry, {name: array.ctypes.data for name, array in memory.items()})
        function(block.address)
    check("compiled")

"""Packing kernels: what the rewrites of each write is what the nest wrote that was derived, and in vectors."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from problems import exact

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.interp import run
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.ir.walk import loops_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, target
from convsmith.machine.x86 import levels
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import address_of, aligned_empty
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.host_block import HostBlock
from convsmith.schedule import copy_nest, packing
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.schedule.planned import without_limits
from convsmith.tune.candidates import candidates, default_config

SIDES = ("src", "wei")
PRODUCTS = [f"--dt={dt} --stag={a} --wtag={b} {size}" for size in ("20x36:36x35", "5x32:32x64") for a, b in (
    ("ab", "ab"), ("ba", "ba")) for dt in ("f32", "u8:s8:s32", "u8:u8:s32", "bf16", "f64")]  # fmt: skip
LAYERS = [
    "ic20ih5oc40oh5kh3ph1", "--wtag=xba ic20ih5oc40oh5kh3ph1", "--dir=BWD_D ic20ih5oc40oh5kh3ph1",
    "ic9ih5oc33oh5kh5ph2", "--dt=u8:s8:s32 ic20ih5oc40oh5kh3ph1",
    "--dt=bf16 --wtag=axb ic20ih5oc40oh5kh1ph0", "g3ic12ih5oc60oh5kh3ph1",
    "--dir=BWD_W --stag=aBx16b --dtag=aBx16b g4mb1ic136ih14oc272oh14kh1ph0",
]  # fmt: skip
PIECES = [
    "--dt=u8:s8:s32 --stag=ba 37x84:84x64",
    "--dt=u8:s8:s32 --stag=ba 33x70:70x48",
    "--dt=bf16 --stag=ba 61x50:50x80",
]
"""Tiles of few rows, several of which are read at once, with rests on both sides."""
STRIDED = [
    f"--deconv --dt={dt} --stag=abx --dtag=abx g40mb2ic40ih7oc40oh14kh5sh2ph2"
    for dt in ("f32", "bf16", "u8:s8:s32", "f64")
]
"""Taps of a stride, along which a condition on both loops of a tile says that elements are absent."""
LINES = [f"--matmul {line}" for line in PRODUCTS + PIECES] + LAYERS + STRIDED
LEVELS = [t.name for t in host_targets() if t.name in ("avx512_bf16", "avx512_amx", "avx2", "generic")]


def chosen(line: str, isa: str) -> tuple[Problem, Config, Machine]:
    """The problem with its default config for a level, and products with both sides packed."""
    problem, level = parse_problem(line).canonical(), target(isa)
    config = default_config(exact(problem), level)
    both = line.startswith("--matmul") and config.offsets == "each"
    return problem, config.changed(pack=SIDES) if both else config, level


def packed(pack: Kernel, given: np.ndarray, level: Machine) -> np.ndarray:
    """Return the array that a packing kernel writes in the interpreter."""
    operand, result = pack.params
    out = np.full(result.size, 77, result.dtype.numpy)
    rows = {row.name: row.kernel for row in level.transpositions}
    run(pack, {operand.name: given, result.name: out}, rows)
    return out


def exact_numbers(operand: Buffer) -> np.ndarray:
    """Return small integers for ``operand``."""
    given = aligned_empty(operand.size * operand.dtype.bytes).view(operand.dtype.numpy)
    given[:] = np.random.default_rng(0).integers(1, 100, operand.size)
    return given


PAIRED = [
    ("mb2ic19iw150oc40ow150kw7pw9dw2", "--lane=oc --register=ic:12,oc:32 --order=kw,oc,ic --reduce=mb,ow"),
    ("mb1ic40ih3iw75oc19oh3ow75kh3kw5ph1pw2", "--lane=ic --register=oc:6,ic:32 --order=kw,oc,ic,kh --reduce=mb,oh,ow"),
]  # fmt: skip


PAIRS_LEVEL = next(t for t in levels.LEVELS if t.name == "avx512_bf16")


def packing_of_pairs(problem: Problem, words: str) -> Kernel:
    """Return the lowered kernel that packs pairs of pixels of the source of a gradient of the weights; it writes what
    the nest writes.
    """
    over = ",".join(("mb", *(f"o{axis}" for axis in problem.axes)))
    paired = f"--reduce={over} --instruction=vdpbf16ps_512 --k_step=ow:2 --realise=pad_copy --pack=src,diff_dst"
    with interning():
        made = plan(problem, Config.parse(f"--target=avx512_bf16 {words} {paired}"), PAIRS_LEVEL)
        pack = next(k for k in run_steps(made.program.naive(), made.pipeline).packs if k.params[0].name == "src")
        lowered = run_steps(pack, packing.packing_steps(pack, PAIRS_LEVEL))
    given = exact_numbers(pack.params[0])
    np.testing.assert_array_equal(packed(lowered, given, PAIRS_LEVEL), packed(pack, given, PAIRS_LEVEL))
    return lowered


def loads_of_source(lowered: Kernel) -> list[tuple[str, str]]:
    """Return the place that each load of the source is written to, and its lanes."""
    return re.findall(r"^ *(.*) = src\[.*\](.*)$", str(lowered), re.MULTILINE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "words"), PAIRED)
def test_pairs_beside_borders_are_transposed(line: str, words: str) -> None:
    """Tiles at a border are loaded with masks, and the other ones whole, for each tap; no pair is copied alone."""
    problem = parse_problem(f"--dir=BWD_W --dt=bf16 --stag=abx --dtag=abx {line}").canonical()
    loads = loads_of_source(packing_of_pairs(problem, words))
    assert all(tile.startswith("src_p_t[") for tile, _ in loads)
    assert {"{32}"} < {lanes for _, lanes in loads}


JOINED = [
    ("mb2ic4ih9iw80oc36oh9ow80kh3kw3ph1pw1", "--lane=oc --register=kw:3,ic:4,oc:32"),
    ("mb1ic3ih5iw151oc19oh3ow76kh3kw7sh2sw2ph1pw3", "--lane=oc --register=kw:7,ic:3,oc:16"),
    ("mb1ic3ih3iw150oc19oh3ow150kh1kw7ph0pw3", "--lane=oc --register=kw:7,ic:3,oc:16"),
    ("mb1ic5ih4iw80oc40oh4ow80kh3kw5ph1pw4dw1", "--lane=oc --register=kw:2,ic:5,oc:32"),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "words"), JOINED)
def test_few_channels_of_adjacent_taps_are_transposed_together(line: str, words: str) -> None:
    """Both elements of a pair lie beside a border in different pixels; tiles inside and at borders are transposed."""
    problem = parse_problem(f"--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb {line}").canonical()
    loads = loads_of_source(packing_of_pairs(problem, f"{words} --order=kw,oc,ic,kh"))
    assert loads and all(tile.startswith("src_p_t[") for tile, _ in loads)


ACROSS = [
    ("mb1ic16ih6oc64oh3kh3sh2ph0iw112ow56kw3sw2pw0", "--lane=oc --register=ic:8,oc:32 --order=kw,oc,ic,kh"),
    ("mb1ic7iw150oc19ow75kw3sw2pw0", "--lane=oc --register=ic:7,oc:16 --order=kw,oc,ic"),
    ("mb2ic8iw111oc24ow37kw5sw3pw0", "--lane=oc --register=ic:8,oc:16 --order=kw,oc,ic"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), ACROSS)
def test_rows_that_differ_at_a_border_are_loaded_with_masks_of_their_own(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taps are the columns of a tile, and both pixels of a pair are among its rows, which have fewer taps at a border.
    """
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    problem = parse_problem(f"--dir=BWD_W --dt=bf16 --stag=abx --dtag=abx {line}").canonical()
    lowered = packing_of_pairs(problem, words)
    assert not {"t.read", "t.write"} & {x.var.name for x in loops_of(lowered.body)}
    loads = loads_of_source(lowered)
    assert loads and all(tile.startswith("src_p_t[") for tile, _ in loads)


WORDS = [
    "--dt=u8:s8:s32 ic20ih5oc40oh5kh3ph1", "--dt=s8:s8:f32 --wtag=ABcd4b4a ic9ih5oc33oh5kh5ph2",
    "--dir=BWD_D --dt=s32:s8:s8 ic20ih5oc40oh3kh3sh2ph1", "--deconv --dt=u8:s8:s32 ic20ih5oc40oh9kh3sh2ph1",
    "--dt=u8:s8:s32 --attr-zero-points=src:common:3 ic6ih5oc40kh3", "--matmul --dt=s8:s8:s32 37x83:83x65",
]  # fmt: skip


@pytest.mark.parametrize("line", WORDS)
def test_bytes_whose_words_are_multiplied_are_packed_as_words(line: str) -> None:
    """The packing kernel extends signs, so that no iteration of the main kernel does."""
    problem, level = parse_problem(line).canonical(), target("avx2")
    config = without_limits(default_config(problem, level), level)
    assert "vpmaddwd" in config.instruction
    with interning():
        made = plan(problem, config, level)
        kernel = run_steps(made.program.naive(), made.pipeline)
    (planned,) = (x for x in made.main.buffers if x.name.endswith("_p") and x.name != "src_p")
    (pack,) = (k for k in kernel.packs if planned.name in {b.name for b in k.written})
    types = {b.name: b.dtype.name for b in pack.params}
    assert planned.dtype == types[planned.name] == "s16"
    assert types[planned.name.removesuffix("_p")] == "s8"


@pytest.mark.sampled(23, "isa", wide=1, every="line")
@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("line", LINES)
def test_packed_as_derived(line: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted and on the machine, every element is where the derived nest puts it, zeros included."""
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    problem, config, level = chosen(line, isa)
    with interning():
        made = plan(problem, config, level)
        kernel = run_steps(made.program.naive(), made.pipeline)
        library = HostLibrary(build_artifact(problem, config, level))
        packs = [p for p in kernel.packs if len(p.params) == 2 and p.params[1].name.endswith("_p")]
        assert packs
        for pack in packs:
            operand, result = pack.params
            entry = library["pack" if "pack" in library.functions else f"pack:{result.name}"]
            given = exact_numbers(operand)
            wanted = packed(pack, given, level)
            lowered = run_steps(pack, packing.packing_steps(pack, level))
            np.testing.assert_array_equal(packed(lowered, given, level), wanted)
            made = aligned_empty(result.size * result.dtype.bytes).view(result.dtype.numpy)
            made[:] = 77
            places = {operand.name: address_of(given), result.name: address_of(made)}
            block = HostBlock(entry.entry, places)
            entry(block.address)
            np.testing.assert_array_equal(made, wanted)


SCATTERED = [
    "mb1ic20ih5oc40oh5kh1ph0",
    "mb1ic9ih9oc32oh5kh3sh2ph1",
    "mb1ic64ih5oc64oh5kh1ph0",
    "--deconv g40mb1ic40ih4oc40oh8kh3sh2ph1",  # residue classes of taps
]


@pytest.mark.parametrize("line", SCATTERED)
def test_short_copies_of_constant_operands_gather_no_vectors(line: str) -> None:
    """Lanes that are apart in the original are copied one by one where packing is brief, with the same result."""
    level = next(x for x in levels.LEVELS if x.name == "avx512")
    problem = parse_problem(f"--stag=axb --dtag=axb {line}").canonical()
    with interning():
        made = plan(problem, default_config(problem, level), level)
        (pack,) = run_steps(made.program.naive(), made.pipeline).packs
        brief, long = (run_steps(pack, packing.packing_steps(pack, level, is_constant=x)) for x in (True, False))
        assert made.constant == {"wei"} == {pack.params[0].name} and pack.params[1].size < copy_nest.SHORT_COPY
        gathers = re.compile(r"\{\d+:\d+\}")
        assert gathers.search(str(long)) and not gathers.search(str(brief))
        given = exact_numbers(pack.params[0])
        np.testing.assert_array_equal(packed(brief, given, level), packed(pack, given, level))


def test_vectors_of_pieces_end_with_their_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector longer than the piece that it writes reads no register beyond those of its tile."""
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    problem, config, level = chosen(f"--matmul {PIECES[0]}", "avx512_bf16")
    with interning():
        made = plan(problem, config, level)
        kernel = run_steps(made.program.naive(), made.pipeline)
        pack = next(p for p in kernel.packs if p.params[1].name == "src_p")
        given = exact_numbers(pack.params[0])
        lowered = run_steps(pack, packing.packing_steps(pack, level))
        np.testing.assert_array_equal(packed(lowered, given, level), packed(pack, given, level))


SHARED = [
    ("--dir=BWD_W --stag=abx --dtag=abx mb2ic20ih5oc40oh5kh3ph1", ()),
    ("--dir=BWD_W --stag=abx --dtag=abx mb3ic16ih7oc50kh1", ("diff_dst", "src")),
    ("--dir=BWD_W --dt=bf16:bf16:f32 --stag=abx --dtag=abx mb2ic20ih5oc40oh5kh3ph1", ()),
    *((f"--matmul {line}", SIDES) for line in (*PIECES, "--stag=ba 65x36:36x35", "--dt=bf16 67x36:36x35")),
]


@pytest.mark.sampled(11, wide=1, every="line isa")
@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize(("line", "pack"), SHARED)
def test_threads_share_a_copy(line: str, pack: tuple[str, ...], isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element is written by one thread, where the derived nest puts it, and no byte beside them."""
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    problem, config, level = chosen(line, isa)
    level = replace(level, costs=replace(level.costs, thread_start=0))
    config = config.changed(pack=pack or config.staged("pack"), threads=3)
    with interning():
        made = plan(problem, config, level)
        kernel = run_steps(made.program.naive(), made.pipeline)
        artifact = build_artifact(problem, config, level)
        library, shared = HostLibrary(artifact), []
        for derived in kernel.packs:
            operand, result = derived.params
            given = exact_numbers(operand)
            wanted = packed(derived, given, level)
            name = "pack" if "pack" in library.functions else f"pack:{result.name}"
            is_constant = operand.name in made.constant
            found = run_steps(derived, packing.packing_steps(derived, level, 3, is_constant))
            shared.append(any(x.kind == "parallel" for x in loops_of(found.body)))
            assert (artifact.entries[name].launch.threads == 3) == shared[-1]
            np.testing.assert_array_equal(packed(found, given, level), wanted)
            slack = 4096 // result.dtype.bytes
            memory = aligned_empty((result.size + 2 * slack) * result.dtype.bytes).view(result.dtype.numpy)
            memory[:] = 77
            places = {operand.name: address_of(given), result.name: address_of(memory[slack:])}
            block = HostBlock(library[name].entry, places)
            library[name](block.address)
            np.testing.assert_array_equal(memory[slack:-slack], wanted)
            assert (memory[:slack] == 77).all() and (memory[-slack:] == 77).all()
    assert any(shared)


@pytest.mark.parametrize("columns, threads", [(64, 1), (1024, 2)])
def test_threads_share_long_weights(columns: int, threads: int) -> None:
    problem, level = parse_problem(f"--matmul 32x1024:1024x{columns}").canonical(), target(LEVELS[-1])
    with interning():
        artifact = build_artifact(problem, default_config(problem, level, 2), level)
    assert artifact.entries["main"].launch.threads == 2 and artifact.entries["pack"].launch.threads == threads


def test_a_short_copy_starts_no_threads() -> None:
    problem, config, level = chosen("--dir=BWD_W --stag=abx --dtag=abx mb2ic20ih5oc40oh5kh3ph1", LEVELS[-1])
    with interning():
        artifact = build_artifact(problem, config.changed(threads=2), level)
    assert artifact.entries["main"].launch.threads == 2 and artifact.entries["pack"].launch.threads == 1


TRANSPOSED = [
    ("--matmul --wtag=ba 1x512:512x96", "avx512", "transpose_16x16_f32"),
    ("--matmul --dt=u8:s8:s32 --wtag=ba 1x512:512x96", "avx512_vnni", "transpose_16x16x4_s8"),
    ("--matmul --dt=u8:s8:s32 --wtag=ab 1x512:512x96", "avx512_vnni", "interleave_4x16_s8"),
    ("--matmul --dt=bf16 --wtag=ba 1x512:512x96", "avx512_bf16", "transpose_16x16x2_bf16"),
    ("--matmul --dt=bf16 --wtag=ab 1x512:512x96", "avx512_bf16", "interleave_2x16_bf16"),
    ("--matmul --dt=u8:s8:s32 --wtag=ba 1x512:512x96", "avx2_vnni", "transpose_8x8x4_s8"),
    ("mb1ic128ih8oc192oh8kh1ph0", "avx2", "transpose_8x8_f32"),
    ("mb1ic64ih8oc64oh8kh3ph1", "avx512", "transpose_16x16_f32"),
]


@pytest.mark.parametrize("line, isa, row", TRANSPOSED)
def test_vectors_are_read_and_written(line: str, isa: str, row: str) -> None:
    """Where neighbours are far apart on the other side, an instruction of the table moves them, and no element goes
    alone."""
    if isa not in {t.name for t in host_targets()}:
        pytest.skip(f"this machine lacks {isa}")
    problem, config, level = chosen(line, isa)
    products = [c.config for c in candidates(problem, level, 1) if c.config.instruction]
    config = (products[0] if products else config).changed(pack=("wei",))
    with interning():
        made = plan(problem, config, level)
        (pack,) = run_steps(made.program.naive(), made.pipeline).packs
        found = run_steps(pack, packing.packing_steps(pack, level))
        assert f"{row}(" in str(found)
        text = llvm_bind.assembly(lower(made).text, level.triple, level.cpu, level.features)
    body = text.partition("convsmith_conv_pack_wei_chunk:")[2].partition(".Lfunc_end")[0]
    mnemonics = re.findall(r"^\t([a-z]\w*)", body, re.MULTILINE)
    assert mnemonics and not [m for m in mnemonics if re.match("v?p(insr|extr)|movzb|movb|vmovss", m)], body


@pytest.mark.parametrize("channels", [32, 40])
def test_whole_blocks_of_channels_are_packed_in_vectors(channels: int) -> None:
    line = f"--dir=BWD_W --dt=bf16 --stag=aBx16b --dtag=aBx16b mb1ic{channels}ih16oc48oh16kh1ph0"
    problem, level = parse_problem(line).canonical(), target("avx512_bf16")
    config = Config.parse(
        "--target=avx512_bf16 --lane=ic --fuse=oh+ow --register=oc:16,ic:16 --order=oc,ic --reduce=mb,oh_ow "
        "--instruction=vdpbf16ps_512 --k_step=oh_ow:2 --pack=src,diff_dst"
    )
    with interning():
        made = plan(problem, config, level)
        packs = run_steps(made.program.naive(), made.pipeline).packs
        texts = [str(run_steps(pack, packing.packing_steps(pack, level))) for pack in packs]
    assert len(texts) == 2 and all("interleave_2x16_bf16(" in text for text in texts)


def test_vectors_that_cross_blocks_of_channels_are_packed_by_runs_of_lanes() -> None:
    """Groups of 68 channels begin at four places in blocks of 16. No loop copies single elements."""
    line = "--dir=BWD_W --stag=aBx16b --dtag=aBx16b g4mb1ic136ih14oc272oh14kh1ph0"
    problem, level = parse_problem(line).canonical(), target("avx512")
    config = Config.parse(
        "--target=avx512 --lane=oc --register=ic:9,oc:48 --order=g,oc,kh,kw,ic --reduce=mb,oh,ow --pack=diff_dst"
    )
    with interning():
        made = plan(problem, config, level)
        (pack,) = run_steps(made.program.naive(), made.pipeline).packs
        found = run_steps(pack, packing.packing_steps(pack, level))
    assert "oc.l" in {x.var.name for x in loops_of(pack.body)}
    assert "oc.l" not in {x.var.name for x in loops_of(found.body)}


@pytest.mark.parametrize("isa, row", [("avx512_vnni", "vpdpbusd_512"), ("avx2_vnni", "vpdpbusd_256")])
def test_sums_of_packed_bytes_are_made_by_a_dot_product(isa: str, row: str) -> None:
    problem, config, level = chosen("--dt=u8:s8:s32 --attr-zero-points=src:common:3 mb1ic64ih9oc64oh9kh3ph1", isa)
    with interning():
        made = plan(problem, config.changed(pack=("wei",)), level)
        (pack,) = run_steps(made.program.naive(), made.pipeline).packs
        found = run_steps(pack, packing.packing_steps(pack, level))
    assert f"{row}(" in str(found)


BLOCKED = [
    ("avx512_vnni", "--dt=u8:s8:s32 --stag=ba 512x512:512x512", "src", "k.o.b:16 m.o_m.i.o:36"),
    ("avx512_amx", "--dt=u8:s8:s32 --wtag=ab 1024x1024:1024x1024", "wei", "k.o:16 k.q.b:4 n.o:32 n.v:2 k.q.i:4"),
    ("avx512", "--stag=ba 512x512:512x512", "src", "k.b:64 m.o:56 k.i:8"),
]


@pytest.mark.parametrize("isa, line, operand, loops", BLOCKED)
def test_lines_stay_until_all_of_each_is_read(isa: str, line: str, operand: str, loops: str) -> None:
    """Where lines are read in parts, the loop over parts is around a block whose lines the first-level cache holds."""
    level = next(x for x in levels.LEVELS if x.name == isa)  # with costs that are the same on every machine
    problem = parse_problem(f"--matmul {line}").canonical()
    config = default_config(exact(problem), level).changed(pack=(operand,), stream=())
    with interning():
        made = plan(problem, config, level)
        (pack,) = run_steps(made.program.naive(), made.pipeline).packs
        found = str(run_steps(pack, packing.packing_steps(pack, level)))
    nest = re.findall(r"for (\S+) in 0 \.\. (\d+)", found.partition("alloc" if "alloc" in found else "{")[0])
    assert " ".join(f"{name}:{count}" for name, count in nest) == loops


PARTS = [
    ("", "k.b:32 n.o:64 k.i:16"),
    pytest.param("--cache=k:256", "k.b:4 k.b2:16 n.o:64 k.i:16", marks=pytest.mark.wide),
]


@pytest.mark.parametrize("words, loops", PARTS)
def test_rows_of_long_weights_are_read_in_blocks(words: str, loops: str) -> None:
    """Parts of the terms, around which no loop has shorter steps, have blocks of rows like all terms. The vectors of a
    run are straight-line code.
    """
    level = next(x for x in levels.LEVELS if x.name == "avx2")
    problem = parse_problem(f"--matmul 64x{1024 if words else 512}:{1024 if words else 512}x1024").canonical()
    config = Config.parse(f"--target=avx2 --lane=n --register=m:6,n:16 --order=n,m --reduce=k {words}")
    with interning():
        made = plan(problem, config, level)
        (pack,) = run_steps(made.program.naive(), made.pipeline).packs
        lowered = run_steps(pack, packing.packing_steps(pack, level, is_constant=True))
    found = [(x.var.name, int(x.hi)) for x in loops_of(lowered.body)]
    assert " ".join(f"{name}:{count}" for name, count in found) == loops
    assert str(lowered).count("{8} = ") == 2
    given = exact_numbers(pack.params[0])
    np.testing.assert_array_equal(packed(lowered, given, level), packed(pack, given, level))


@pytest.mark.sampled(12, "isa", "threads")
@pytest.mark.parametrize("isa", [t.name for t in host_targets()][-3:])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("vectors", "depth"), [(2, 1000), (0, 1000), (4, 500), (2, 2000)])
def test_blocks_of_weights_beyond_the_cache(vectors: int, depth: int, threads: int, isa: str) -> None:
    """The packing kernel has blocks of its own, beside those of the config that it copies."""
    k, m = 8000, 3
    lanes = target(isa).lanes(32)
    n, wide = 8 * lanes, vectors * lanes
    block = f"n:{wide},k:{depth}" if wide else f"k:{depth}"
    tile = f"--lane=n --register=m:3,n:{lanes} --order=n,m --reduce=k --cache={block}"
    config = f"--target={isa} {tile} --threads={threads}"
    kernel = cs.compile(f"--matmul {m}x{k}:{k}x{n}", config=config)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (m, k)).astype(np.float32), rng.integers(-2, 3, (k, n)).astype(np.float32)
    blocks = w.reshape(k // depth, depth, n // (wide or n), (wide or n) // lanes, lanes)
    want = blocks.transpose(2, 0, 3, 1, 4) if wide else blocks.transpose(0, 2, 3, 1, 4)
    np.testing.assert_array_equal(kernel.pack(w).buffer, want.ravel())
    np.testing.assert_array_equal(kernel.run(src=x, wei=w)["dst"], x @ w)

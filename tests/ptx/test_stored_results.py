"""Results of sm_90a that leave through shared memory: exact in any order, clipped at borders, and no fence is spare."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from devices import DeviceOracle

from convsmith.codegen import pipelines
from convsmith.compiler.cubin import assemble_ptx
from convsmith.diag.errors import ConfigError
from convsmith.emulate.ptx.memory import Clock, Region
from convsmith.emulate.ptx.parser import PtxError
from convsmith.interp.memory import InterpError
from convsmith.ir.index import Var, as_index
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.tensor_map import TensorMap
from convsmith.machine.nvidia.matrix_stores import MATRIX_STORES
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.passes.stage_results import MappedResult, StoredPart, stage_results
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from ptx.hopper_configs import KINDS, LAST, LEVEL, compiled, forward, hopper_artifact
from ptx.sass import disassembly, roots, skip_without
from ptx.test_hopper_convolutions import check, check_raises, resident

STORED = [x for x in KINDS if x.startswith("stored")]


@pytest.mark.sampled(16, wide=2, every="count kind")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", (1, 2))
@pytest.mark.parametrize("kind", STORED)
def test_a_group_stores_several_tiles(kind: str, count: int, seed: int) -> None:
    """A tile is written to shared memory once the engine has read the tile before it."""
    check(resident(kind, count), KINDS[kind][0], seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", STORED)
def test_the_engine_alone_stores(kind: str) -> None:
    """Results of 16 bits reach shared memory by stmatrix, transposed where pixels of the result are no neighbours."""
    text = hopper_artifact(kind).notes["ptx"]
    assert "cp.async.bulk.tensor" in text and "st.global" not in text
    found = {*re.findall(r"stmatrix\S+|st\.shared\S+", text)}
    form = ".trans" if "by weights" in kind else ""
    wanted = {"st.shared.v2.b32"} if "f32" in kind else {f"stmatrix.sync.aligned.m8n8.x4{form}.shared.b16"}
    assert found == wanted


# -- planted faults
LINE = f"{LAST} --dt=bf16 mb1ic16iw130oc16ow130kw1"
WORDS = forward(k=16, slots=2).replace("mb+oh,mb_oh+ow", "mb+ow").replace("mb_oh_ow", "mb_ow").replace("kh,kw", "kw")
WORDS = WORDS.replace("--shared=src,wei", "--shared=src,wei,dst")
"""Three tiles of two groups, the last one with two pixels."""
IN_PARTS = f"{LAST} --dt=bf16 mb1ic16iw130oc32ow130kw1", WORDS.replace("n16", "n32").replace("oc:16", "oc:32")
"""The same tiles with twice the columns, one half of which leaves before the other."""
CASES = {1: (LINE, WORDS), 2: (IN_PARTS[0], f"{IN_PARTS[1]} --store_parts=2")}
"""Problems and words of configs, by the number of parts of a result."""


def made(parts: int) -> Plan:
    machine = target(LEVEL)
    assert machine.device is not None
    units = replace(machine.device.units, count=2, shared=1)
    few = replace(machine, device=replace(machine.device, units=units))
    line, words = CASES[parts]
    return plan_for(parse_problem(line), Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}"), few)


@cache
def text(parts: int) -> str:
    """Return the text of the kernel after all rewrites."""
    with interning():
        return str(run_steps(made(parts).naive(), made(parts).pipeline)) + "\n"


def interpret(kernel: str, parts: int) -> None:
    with interning():
        plan = made(parts)
        DeviceOracle(plan, plan.machine).check(parse_kernel(kernel))


@pytest.mark.parametrize("parts", CASES)
def test_the_statements_order_the_stores(parts: int) -> None:
    interpret(text(parts), parts)


WRITTEN, ENDED = "written while it is stored to a tensor", "before it waits for its stores"
UNFENCED = "no fence of shared memory orders it"


@pytest.mark.sampled(4, "line")
@pytest.mark.parametrize(
    ("parts", "line", "number", "message"),
    [(1, "wait 0 stores", 0, WRITTEN), (1, "wait 0 stores", 1, ENDED), (1, "fence shared", 0, UNFENCED),
     (1, "commit stores", 0, f"{ENDED}|written"), (2, "wait 0 stores", 0, WRITTEN), (2, "wait 0 stores", 1, WRITTEN),
     (2, "wait 0 stores", 2, ENDED), (2, "fence shared", 0, UNFENCED), (2, "fence shared", 1, UNFENCED),
     (2, "commit stores", 0, WRITTEN), (2, "commit stores", 1, f"{ENDED}|written")],
)  # fmt: skip
def test_a_statement_that_is_left_out_is_missed(parts: int, line: str, number: int, message: str) -> None:
    lines = text(parts).splitlines(keepends=True)
    place = [n for n, x in enumerate(lines) if x.strip() == line][number]
    with pytest.raises(InterpError, match=message):
        interpret("".join(lines[:place] + lines[place + 1 :]), parts)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [(r"fence\.proxy\.async\S*;", "no fence.proxy.async follows"),
     (r"bar\.sync\s+1, 128;", "without a barrier|may still read"),
     (r"cp\.async\.bulk\.wait_group\.read\s+0;", "while an asynchronous operation reads|still reads"),
     (r"cp\.async\.bulk\.commit_group;", "while an asynchronous operation reads|still reads")],
)  # fmt: skip
def test_an_instruction_that_is_left_out_is_missed(pattern: str, message: str) -> None:
    artifact = resident("stored tiles", 2)
    ptx, found = re.subn(pattern, "", artifact.notes["ptx"])
    assert found
    check_raises(replace(artifact, notes={**artifact.notes, "ptx": ptx}), KINDS["stored tiles"][0], message)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("pattern", "places"),
    [(r"fence\.proxy\.async\S*;", (0, 1)), (r"bar\.sync\s+1, 256;", (0, 1, 2, 3)),
     (r"cp\.async\.bulk\.wait_group\.read\s+0;", (0, 1, 2)), (r"cp\.async\.bulk\.commit_group;", (0, 1))],
)  # fmt: skip
def test_each_instruction_between_parts_is_missed(pattern: str, places: tuple[int, ...]) -> None:
    """A part may not be written before the engine has read the one before it, nor stored before all warps wrote it."""
    kind = "stored tiles in two parts"
    artifact = resident(kind, 2)
    ptx = artifact.notes["ptx"]
    found = [*re.finditer(pattern, ptx)]
    assert len(found) in (len(places), len(places) + 1)  # at the end, one thread alone waits for the last store
    for x in (found[n] for n in places):
        left_out = replace(artifact, notes={**artifact.notes, "ptx": ptx[: x.start()] + ptx[x.end() :]})
        check_raises(left_out, KINDS[kind][0], "while an asynchronous|still read|without a barrier|no fence")


def test_rows_that_are_not_swizzled_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "stored_rows", lambda body: {})
    artifact = compiled(*KINDS["stored tiles of two groups of warps"])
    with pytest.raises(AssertionError):
        check(artifact, KINDS["stored tiles of two groups of warps"][0], 0)


def test_a_map_of_other_elements_is_refused() -> None:
    """Tiles of two rows that begin at every third row."""
    kernel = """kernel k(a: f32[6], c: f32[5, 4])
  for i in 0 .. 3:
    for x in 0 .. 2:
      for y in 0 .. 4:
        if -i * 2 - x + 4 >= 0:
          c[i * 2 + x, y] = a[i * 2 + x]
"""
    with interning(), pytest.raises(ConfigError, match="the map of c stores other elements than its nest at"):
        made = TensorMap((4, 5), (1, 4), (4, 2))
        part = StoredPart((as_index(0),), (Var("i") * 3,))
        stage_results(parse_kernel(kernel), MappedResult("c", made, (part,), ("x",), ("y",)))


def test_parts_of_other_elements_are_refused() -> None:
    """Both parts of a row are stored to its first half."""
    kernel = """kernel k(a: f32[5], c: f32[5, 8])
  for i in 0 .. 5:
    for y in 0 .. 8:
      c[i, y] = a[i]
"""
    with interning():
        first, other = (StoredPart((as_index(n),), (Var("i"),)) for n in (0, 4))
        made = TensorMap((8, 5), (1, 8), (4, 1))
        stage_results(parse_kernel(kernel), MappedResult("c", made, (first, other), (), ("y",), "y"))
        with pytest.raises(ConfigError, match="the map of c stores other elements than its nest at"):
            stage_results(parse_kernel(kernel), MappedResult("c", made, (first, first), (), ("y",), "y"))


# -- configs
@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        (f"{LAST} --dt=bf16 mb1ic64ih5oc12oh5kh1", forward(), "rows 120 bytes apart, no multiple of 16"),
        ("--stag=axb --wtag=axb --dtag=aBx16b --dt=bf16 mb1ic64ih5oc64oh5kh1", forward(), "a blocked layout"),
        (f"{LAST} --dt=u8:s8:u8 mb1ic128ih5oc16oh5kh1", forward(k=128, row="wgmma_m64n16k32_u8_s8"),
         "rows of 16 bytes"),
        (f"{LAST} --dt=bf16 mb1ic256ih5oc16oh5kh1", forward() + " --split=ic:2", "legal are src, wei, part_sums"),
        (f"{LAST} --dt=bf16 mb2ic64ih8oc32oh8kh1", forward() + " --cluster=oc:2", "either --cluster= or dst"),
        (f"{LAST} --dt=bf16 mb2ic64ih8oc16oh8kh1", forward() + " --store_parts=2", "rows of 16 bytes"),
        (f"{LAST} --dt=bf16 mb2ic64ih8oc16oh8kh1", forward() + " --store_parts=3", "divisors of 16"),
        (f"{LAST} --dt=f32:bf16:bf16 --dir=BWD_D mb3ic16ih12oc32oh6kh3ph1sh2",
         KINDS["backward by data, a stride and one tap"][1].replace("wei", "wei,diff_src"), "not evenly apart"),
        (f"--deconv {LAST} --dt=s8:s8:s32 mb1ic64iw7oc16ow17kw3sw2dw1",
         KINDS["deconvolution of dilated taps"][1], "beyond its 17 elements"),
    ],
)  # fmt: skip
def test_a_result_that_no_map_stores_is_refused(line: str, words: str, message: str) -> None:
    words = words.replace("--shared=src,wei", "--shared=src,wei,dst")
    with interning(), pytest.raises(ConfigError, match=message):
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
        plan_for(parse_problem(line), config, target(LEVEL))


# -- code
def test_stores_of_matrices_take_few_instructions() -> None:
    """A tile of 64 rows and 256 columns of a group of warps needs 16 stores of matrices and 64 conversions."""
    skip_without(LEVEL)
    words = forward(128, n=256, slots=2, row="wgmma_m64n256k16_bf16")
    line = f"{LAST} --dt=bf16 mb32ic64ih56oc256oh56kh1ph0"
    counts, stored = [], words.replace("--shared=src,wei", "--shared=src,wei,dst")
    for x in (words, stored, f"{stored} --store_parts=2"):
        made = assemble_ptx(compiled(line, x).notes["ptx"], LEVEL)
        (use,), (code,) = made.uses.values(), disassembly(made.cubin).values()
        assert not made.warnings and use.spilled == 0 and use.registers <= 168
        counts.append(roots(code))
    direct, staged, halves = counts
    assert (staged["STSM"], staged["UTMASTG"], staged["STG"], staged["SHFL"], staged["SEL"]) == (16, 4, 0, 0, 0)
    assert direct["SHFL"] + direct["SEL"] == 256 and staged.total() < direct.total() - 150
    assert (halves["STSM"], halves["UTMASTG"], halves["BAR"]) == (16, 4, staged["BAR"] + 2)
    assert halves.total() < staged.total() + 40
    assert staged["R2UR"] <= direct["R2UR"]  # places of products stay in registers of the warp


@pytest.mark.parametrize("row", MATRIX_STORES, ids=lambda x: x.name)
def test_each_element_of_a_row_has_one_giver(row) -> None:  # type: ignore[no-untyped-def]
    layout = row.exchange
    assert layout is not None
    places = layout.places()
    assert len(places) == layout.count
    givers = np.array(list(places))[:, 0].reshape(-1)
    assert (np.bincount(givers, minlength=128)[: 8 * layout.registers] == 8).all()


def test_a_fence_is_that_of_the_warp_that_wrote() -> None:
    """What another warp wrote stays unfenced."""
    region = Region("shared memory", 0, 256, proxied=True)
    for warp in (0, 1):
        clock, threads = Clock(warp, 2), np.arange(32) + 32 * warp
        region.write(np.arange(32) * 4 + 128 * warp, np.zeros((32, 4), np.uint8), threads, clock, 0)
    region.fence(0)
    region.require_fenced(np.arange(128))
    with pytest.raises(PtxError, match="byte 128 is read asynchronously"):
        region.require_fenced(np.arange(256))

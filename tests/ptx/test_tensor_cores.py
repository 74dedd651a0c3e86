"""Kernels whose warps compute fragments: exact as IR after every pass, and as PTX under four schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from devices import check_fragments
from guarded import check_result, expected, logical, memories

from convsmith.codegen.lane_fragments import LaneFragments
from convsmith.diag.errors import ConfigError, InternalError
from convsmith.emulate.ptx.parser import PtxError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, as_index, floordiv, mod
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Invoke
from convsmith.ir.types import dtype
from convsmith.ir.value import Load, strided
from convsmith.machine.registry import target
from convsmith.problem import parse_problem, reference
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from ptx.kernels import run_artifact
from ptx.tensor_kinds import AMPERE, SMALL, VOLTA
from ptx.test_convolutions import check, made

LAST = "--stag=axb --dtag=axb"


@pytest.mark.sampled(18)
@pytest.mark.parametrize("kind", AMPERE)
def test_kernels_of_sm_80_are_exact_under_four_schedules(kind: str) -> None:
    check(*AMPERE[kind], "sm_80")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", VOLTA)
def test_kernels_of_sm_70_are_exact_under_four_schedules(kind: str) -> None:
    check(*VOLTA[kind], "sm_70")


@pytest.mark.parametrize(("row", "level"), [("m16n8k16_f16", "sm_80"), ("m8n8k4_f16", "sm_70")])
def test_a_small_kernel_is_exact(row: str, level: str) -> None:
    check(f"{LAST} --dt=f16:f16:f32 mb1ic16iw32oc24ow32kw1",
          f"--lane=oc --instruction=mma_{row} --realise=pad_copy --shared=src,wei --register=oc:24,ow:32 "
          "--group=oc:24,ow:32,ic:16", level)


def test_lanes_keep_to_their_elements() -> None:
    row = next(x for x in target("sm_80").instructions if x.name == "mma_m16n8k16_f16")
    buffers = [make_buffer(x.name, dtype(x.dtype), x.shape, "fragment") for x in row.operands]
    c, a, b = (Load(x, (as_index(0), as_index(0)), strided(x.size, 1)) for x in buffers)
    lanes, lane = LaneFragments(Invoke(row.name, c, (a, b)), {row.name: row}), Var("lane")
    own = (floordiv(lane, 4), mod(lane, 4) * 2)
    assert lanes.places(c.buffer, own, None, {}) == ((0, 0),)
    with pytest.raises(InternalError, match="a lane accesses that of another"):
        lanes.places(c.buffer, (own[0], mod(own[1] + 2, 8)), None, {})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", SMALL)
def test_every_pass_keeps_the_result(kind: str) -> None:
    """The interpreter runs the kernel after each pass that knows of fragments, and those that follow it."""
    line, words, level = SMALL[kind]
    check_fragments(line, words, level)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [*AMPERE, *VOLTA])
def test_products_are_those_of_the_row(kind: str) -> None:
    """The PTX multiplies by ``mma`` alone, and registers suffice."""
    line, words, level = (*AMPERE[kind], "sm_80") if kind in AMPERE else (*VOLTA[kind], "sm_70")
    notes = made(line, words, level).notes
    main = notes["ptx"][notes["ptx"].index(".entry convsmith("):].partition("\n}")[0]
    assert "mma.sync" in main and "fma.rn.f32" not in main
    assert "no spills" in notes.get("use of convsmith", "no spills")


@pytest.mark.parametrize(("words", "text"), [
    ("--lane=oc --register=oc:8,ow:8 --group=oc:8,ow:8,ic:16",
     "has 16 rows; legal for a warp are multiples of it, found ow:8"),
    ("--lane=oc --register=oc:12,ow:16 --group=oc:12,ow:16,ic:16", "has 8 columns; legal for a warp are multiples"),
    ("--lane=oc --register=oc:8,ow:16 --group=oc:8,ow:16,ic:8", "has 16 terms; legal for a step are multiples"),
    ("--lane=oc --register=oc:8,ow:16 --group=oc:8,ow:16,ic:16 --instruction=mma_m16n8k16_f16",
     "--instruction=mma_m16n8k16_f16: legal for products of bf16:bf16:f32 on sm_80 are mma_m16n8k16_bf16"),
])  # fmt: skip
def test_illegal_tiles_name_what_is_wrong(words: str, text: str) -> None:
    words = words if "instruction" in words else f"{words} --instruction=mma_m16n8k16_bf16"
    config = Config.parse(f"--target=sm_80 --pack= --realise=pad_copy --shared=src,wei {words}")
    problem = parse_problem("--stag=axb --dtag=axb --dt=bf16 mb1ic16iw32oc16ow32kw1")
    with interning(), pytest.raises(ConfigError) as raised:
        plan_for(problem, config, target("sm_80"))
    assert text in str(raised.value)


def test_rounded_factors_need_permission() -> None:
    line, words = AMPERE["tf32"]
    problem = replace(parse_problem(line), accuracy="relaxed")
    with interning(), pytest.raises(ConfigError, match="legal with --accuracy=any, found relaxed") as raised:
        plan_for(problem, Config.parse(f"--target=sm_80 --pack= {words}"), target("sm_80"))
    assert raised.value.code == "accuracy"


def test_factors_are_rounded_to_the_nearest() -> None:
    """The sums are those of factors with 11 significant bits: neither those of f32, nor of factors cut off."""
    line, words = AMPERE["tf32"]
    problem = parse_problem(line)
    arrays = {name: array * 1.001 for name, array in random_arrays(problem).items()}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    memory = memories(problem, arrays)
    run_artifact(made(line, words, "sm_80"), memory, 0)
    found = logical(problem, memory)
    rounded = {name: (x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for name, x in arrays.items()}
    np.testing.assert_allclose(found, reference(problem, rounded)["dst"], rtol=1e-5, atol=1e-4)
    assert np.abs(found - reference(problem, arrays)["dst"]).max() > 1e-3


@pytest.mark.parametrize("kind", ["three-buffers", "weights-of-points"])
def test_matrices_are_loaded_by_rows(kind: str) -> None:
    """Factors come from shared memory by ldmatrix alone, and reach it in vectors of 16 bytes."""
    text = made(*AMPERE[kind], "sm_80").notes["ptx"]
    assert "ldmatrix.sync.aligned.m8n8.x4" in text and "ld.shared" not in text
    assert ("cp.async.cg.shared.global" in text) is (kind == "three-buffers")
    assert "ld.global.nc.b16" not in text and (".trans" in text) is (kind == "weights-of-points")


def test_lanes_join_behind_each_wait() -> None:
    """A lane waits for its own copies alone, and loads ahead what others have copied."""
    kind = AMPERE["one-warp-copies-loaded-ahead"]
    _, *behind = made(*kind, "sm_80").notes["ptx"].split("cp.async.wait_group")
    assert len(behind) > 1 and all("bar.warp.sync" in x.partition("ldmatrix")[0] for x in behind)
    check(*kind, "sm_80")


MAY_BE_SPARE = ("bar.warp.sync", "cp.async.commit_group")
"""Operations of which some kernels have more than they need."""


def planted(text: str) -> Iterator[tuple[str, str]]:
    """Yield faults by name: the PTX without a statement that orders threads, or with another place or register."""
    lines = text.splitlines()
    for n, line in enumerate(lines):
        changed = {
            "bar.sync": "", "bar.warp.sync": "", "cp.async.wait_group": "", "cp.async.commit_group": "",
        }  # fmt: skip
        for word, new in changed.items():
            if word in line and not line.strip().startswith("//"):
                yield f"{word} {n}", "\n".join((*lines[:n], new, *lines[n + 1 :]))
        if "ldmatrix" in line:
            swizzled = re.sub(r"\[(%\w+)(?:\+(\d+))?\]", lambda m: f"[{m[1]}+{int(m[2] or 0) ^ 16}]", line)
            yield f"another part of a row {n}", "\n".join((*lines[:n], swizzled, *lines[n + 1 :]))
            first, second = line.partition("{")[2].partition("}")[0].split(", ")[:2]
            exchanged = line.replace(f"{first}, {second}", f"{second}, {first}")
            yield f"another fragment {n}", "\n".join((*lines[:n], exchanged, *lines[n + 1 :]))


@pytest.mark.parametrize("kind", ["three-buffers", "one-warp-copies"])
def test_planted_faults_are_caught(kind: str) -> None:
    """Without a barrier, a join of lanes or a wait, or with a wrong place or register, a kernel fails its check."""
    line, words = AMPERE[kind]
    artifact, problem = made(line, words, "sm_80"), replace(parse_problem(line), accuracy="strict")
    arrays = random_arrays(problem)
    truth = expected(problem, arrays)
    seen = set()
    for name, text in planted(artifact.notes["ptx"]):
        memory = memories(problem, arrays)
        try:
            run_artifact(replace(artifact, notes={"ptx": text}), memory, 1)
            check_result(problem, memory, truth)
        except (PtxError, AssertionError):
            seen.add(name.rpartition(" ")[0])
        else:
            assert name.startswith(MAY_BE_SPARE), f"not caught: {name}"
    wanted = {"bar.sync"} if kind == "three-buffers" else {"bar.warp.sync"}
    assert seen >= {"cp.async.wait_group", "another part of a row", "another fragment", *wanted}


@pytest.mark.parametrize(("line", "words"), [
    ("--dt=u8:s8:u8 mb1ic128ih4iw3oc24oh4ow3kh1kw1", "--lane=oc --register=oc:16,oh:4,ow:4 --reduce=kh,kw,ic "
     "--split=ic:16 --instruction=mma_m16n8k32_u8_s8 --realise=mask --group=oc:32,oh:4,ow:4,ic:64"),
    ("--dir=BWD_W --dt=f16 mb1ic16oc16ih5oh5kh1", "--lane=oc --register=oc:16,ic:16 --reduce=mb,oh,ow --shared=src "
     "--instruction=mma_m16n8k16_f16 --realise=pad_copy --group=oc:16,ic:16,ow:8,oh:4 --pad=src:8"),
], ids=["terms of a part", "pixels"])  # fmt: skip
def test_factors_in_global_memory_are_read_within_their_ends(line: str, words: str) -> None:
    """A step has more terms than are left. The other factor is zero there, but this one ends with the last term."""
    check(line, words, "sm_80")

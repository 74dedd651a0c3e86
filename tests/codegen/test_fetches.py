"""Kernels that fetch the next part of their packed weights: results, which lines are fetched, and by which tiles."""

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
from convsmith.ir.verify import verify
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.verification import verify_kernel
from convsmith.passes.fetch_next import fetch_next
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


@pytest.mark.sampled(3, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words"), CASES)
def test_fetching_changes_no_result(line: str, words: str, threads: int) -> None:
    for level in host_targets():
        if level.vector_bits:
            assert verify_kernel(cs.compile(line, config=str(_config(words, level)), threads=threads)).ok


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


def _fetched(text: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the elements of `w` that a kernel asks for after the pass, in order, and compare its results with those
    before.
    """
    found: list[int] = []
    monkeypatch.setattr(interp._Machine, "_prefetch", lambda self, s: found.extend(map(self._index, s.index)))
    with interning():
        before = parse_kernel(text)
        after = fetch_next(before, "w")
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


def test_each_tile_fetches_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _fetched(INLINE, monkeypatch)
    assert found == [48 + part * 48 + tile * 16 + step * 4 for part in (0, 1) for tile in range(3) for step in range(4)]


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
    (POINTWISE, "--target=avx512 --lane=oc --register=ow:7,oc:32 --reduce=kh,kw,ic --fetch=src"),
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

"""Statements on vectors under a condition on their lanes: the interpreter, and what `verify` refuses."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from convsmith.diag.errors import InternalError, UsageError
from convsmith.interp import InterpError, run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import LANE
from convsmith.ir.verify import verify

FMA4 = parse_kernel("kernel fma4(c: f32[4], a: f32[4], b: f32[4])\n  for l in 0 .. 4: c[l] = fma(a[l], b[l], c[l])")


def _results(body: str) -> list[float]:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    text = f"kernel k(src: f32[4], dst: f32[4], n)\n  alloc t: f32[4] @register:\n    t[0]{{4}} = 7.0\n{lines}"
    dst = np.zeros(4, np.float32)
    run(parse_kernel(text), {"src": np.arange(1, 5, dtype=np.float32), "dst": dst}, {"fma4": FMA4}, {"n": 3})
    return dst.tolist()


def test_lanes_for_which_the_condition_holds_are_stored() -> None:
    assert _results("if n - lane_number - 1 >= 0: dst[0]{4} = src[0]{4}") == [1, 2, 3, 0]
    assert _results("if lane_number - 1 >= 0 and n - lane_number - 1 >= 0: dst[0]{4} = t[0]{4}") == [0, 7, 7, 0]
    assert _results("if lane_number - 9 >= 0: dst[0]{4} = src[0]{4}") == [0, 0, 0, 0]


def test_other_lanes_of_registers_keep_their_values() -> None:
    assert _results("if lane_number - 1 >= 0: t[0]{4} = src[0]{4}\ndst[0]{4} = t[0]{4}") == [7, 2, 3, 4]
    one = "if n - 2 - lane_number >= 0: fma4(t[0]{4}, src[0]{4}, src[1]{4:0})\ndst[0]{4} = t[0]{4}"
    assert _results(one) == [9, 11, 7, 7]


def test_other_lanes_are_not_read() -> None:
    """They lie beyond the array."""
    assert _results("if n - lane_number - 1 >= 0: dst[0]{4} = src[1]{4}") == [2, 3, 4, 0]
    with pytest.raises(InterpError, match="touches element 4"):
        _results("if n - lane_number >= 0: dst[0]{4} = src[1]{4}")


def test_illegal_conditions_on_lanes() -> None:
    with pytest.raises(InterpError, match="which are no run"):
        _results("if lane_number % 2 == 0: dst[0]{4} = src[0]{4}")
    with pytest.raises(InterpError, match="For stands under the condition"):
        _results("if lane_number - 1 >= 0: for i in 0 .. 2: dst[i] = src[i]")
    kernel = parse_kernel("kernel k(dst: f32[4])\n  if lane_number - 1 >= 0: dst[0] = 1.0")
    with pytest.raises(InternalError, match="legal are those on whole vectors"):
        verify(kernel)


def test_a_loop_over_lanes_is_no_number_of_a_lane() -> None:
    """The loops over the lanes of a warp are named `lane`: conditions in them are those of any loop."""
    kernel = parse_kernel(
        "kernel k(src: f32[8], dst: f32[8])\n"
        "  for t in 0 .. 1 #warp:\n    for lane in 0 .. 4 #lane:\n      if lane - 1 >= 0:\n"
        "        dst[lane * 2]{2} = src[lane * 2]{2}"
    )
    verify(kernel)
    dst = np.zeros(8, np.float32)
    run(kernel, {"src": np.arange(1, 9, dtype=np.float32), "dst": dst}, {}, {})
    assert dst.tolist() == [0, 0, 3, 4, 5, 6, 7, 8]
    with pytest.raises(UsageError, match="lane_number is the number of a lane"):
        parse_kernel(f"kernel k(dst: f32[4])\n  for {LANE} in 0 .. 4: dst[{LANE}] = 1.0")


def test_the_first_kernel_of_a_process_may_have_conditions_on_lanes_of_a_warp() -> None:
    """Modules that a process imports while it compiles make their variables in the table of the compilation."""
    words = ("--lane=oc --register=oc:16,ow:16 --instruction=mma_m16n8k16_bf16 --realise=pad_copy --pack= "
             "--group=oc:16,ow:16,ic:16 --shared=src,wei")
    code = (
        "import convsmith as cs; cs.settings.scope(cache='off').__enter__(); "
        "k = cs.compile('--stag=axb --dtag=axb --dt=bf16:bf16:f32 mb1ic16iw14oc16ow14kw1', target='sm_80', "
        f"config='--target=sm_80 {words}')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

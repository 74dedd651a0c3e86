"""`outline` with the names of loops makes functions of these, and leaves all else where it is."""

from __future__ import annotations

import numpy as np

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.passes.outline import outline

KERNEL = """kernel k(a: f32[12], dst: f32[12])
  alloc s: f32[4] @cache:
    for b in 0 .. 3:
      for i in 0 .. 4:
        alloc x: f32[] @register:
          x[] = a[b * 4 + i] + 1.0
          s[i] = x[]
      for n in 0 .. 4:
        alloc acc: f32[] @register:
          acc[] = 0.0
          for k in 0 .. 4:
            acc[] = acc[] + s[k]
          dst[b * 4 + n] = acc[]
"""


def _results(kernel) -> list[float]:
    a, dst = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    run(kernel, {"a": a, "dst": dst})
    return dst.tolist()


def test_named_loops_alone_become_functions():
    kernel = parse_kernel(KERNEL)
    outlined = outline(kernel, ("i", "elsewhere"))
    assert [f.name for f in outlined.functions] == ["loop0"]
    text = str(outlined)
    assert "call loop0(a @ b * 4, s @ 0)" in text and "alloc acc" in text.partition("kernel k")[2]
    assert _results(outlined) == _results(kernel)


def test_tiles_become_functions_after_loops():
    outlined = outline(outline(parse_kernel(KERNEL), ("i",)))
    assert [f.name for f in outlined.functions] == ["loop0", "tile0"]
    assert _results(outlined) == _results(parse_kernel(KERNEL))


REPEATED = """kernel k(a: f32[12], dst: f32[12])
  for b in 0 .. 2:
    alloc x: f32[] @register:
      for i in 0 .. 2:
        x[] = a[b * 2 + i]
        dst[b * 2 + i] = x[] + 1.0
  for b in 0 .. 3:
    alloc x: f32[] @register:
      for i in 0 .. 2:
        x[] = a[b * 2 + i + 4]
        dst[b * 2 + i + 4] = x[] + 1.0
  alloc z: f32[] @register:
    for i in 0 .. 2:
      z[] = a[i + 10]
      dst[i + 10] = z[] + 2.0
"""
SHORT = """kernel k(a: f32[12], dst: f32[12])
  for b in 0 .. 2:
    alloc x: f32[] @register:
      x[] = a[b]
      dst[b] = x[] + 1.0
  for b in 0 .. 3:
    alloc x: f32[] @register:
      x[] = a[b + 2]
      dst[b + 2] = x[] + 1.0
"""


def test_only_repeated_tiles_become_functions():
    kernel = parse_kernel(REPEATED)
    outlined = outline(kernel, repeated=True)
    assert len(outlined.functions) == 1 and str(outlined).count("call tile0") == 2
    assert "alloc z" in str(outlined).partition("kernel k")[2]
    assert _results(outlined) == _results(kernel)
    alone = parse_kernel(KERNEL)
    assert outline(alone, repeated=True) is alone


def test_repeated_tiles_stay_where_a_call_takes_as_long_as_they_do():
    kernel = parse_kernel(SHORT)
    assert outline(kernel, repeated=True) is kernel
    assert outline(kernel) is kernel


BORDERS = """kernel k(t: f32[3], a: f32[192], dst: f32[6])
  for b in 0 .. 3:
    alloc acc: f32[2] @register:
      for i in 0 .. 2 #unrolled:
        acc[i] = t[max(-b * 2 - i + 1, 0)]
      for i in 0 .. 2 #unrolled:
        for k in 0 .. 32:
          acc[i] = acc[i] + a[b * 64 + i * 32 + k]
      for i in 0 .. 2 #unrolled:
        dst[b * 2 + i] = acc[i]
  alloc acc: f32[2] @register:
    for i in 0 .. 2 #unrolled:
      acc[i] = t[max(i * 2 - 1, 0)]
    for i in 0 .. 2 #unrolled:
      for k in 0 .. 32:
        acc[i] = acc[i] + a[i * 32 + k]
    for i in 0 .. 2 #unrolled:
      dst[i] = acc[i]
"""


def _of_borders(kernel) -> list[float]:
    t, a, dst = np.array([1, 10, 100], np.float32), np.ones(192, np.float32), np.zeros(6, np.float32)
    run(kernel, {"t": t, "a": a, "dst": dst})
    return dst.tolist()


def test_tiles_at_any_border_share_a_function():
    kernel = parse_kernel(BORDERS)
    outlined = outline(kernel)
    assert [[b.name for _, b in f.pointers] for f in outlined.functions] == [["t", "t", "a", "dst"]]
    assert _of_borders(outlined) == _of_borders(kernel) == [33.0, 42.0, 33.0, 33.0, 33.0, 33.0]


def test_tiles_of_few_steps_keep_functions_of_their_own():
    few = BORDERS.replace("0 .. 32", "0 .. 4")
    outlined = outline(parse_kernel(few))
    assert [len(f.pointers) for f in outlined.functions] == [3, 3]
    assert _of_borders(outlined) == _of_borders(parse_kernel(few))

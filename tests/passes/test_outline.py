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
      alloc y: f32[] @register:
        x[] = a[b]
        y[] = x[] + 1.0
        dst[b] = y[]
  for b in 0 .. 3:
    alloc x: f32[] @register:
      alloc y: f32[] @register:
        x[] = a[b + 2]
        y[] = x[] + 1.0
        dst[b + 2] = y[]
  alloc z: f32[] @register:
    alloc y: f32[] @register:
      z[] = a[5]
      y[] = z[] + 2.0
      dst[5] = y[]
"""


def test_only_repeated_tiles_become_functions():
    kernel = parse_kernel(REPEATED)
    outlined = outline(kernel, repeated=True)
    assert len(outlined.functions) == 1 and str(outlined).count("call tile0") == 2
    assert "alloc z" in str(outlined).partition("kernel k")[2]
    assert _results(outlined) == _results(kernel)
    alone = parse_kernel(KERNEL)
    assert outline(alone, repeated=True) is alone

"""The buffers that a statement writes: its own stores, and those of the functions that it calls."""

from __future__ import annotations

from convsmith.codegen.written_buffers import written_buffers
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel

KERNEL = """\
function add(p: x, q: y)
  y[q] = x[p] + 1.0
function twice(p: x, q: tmp)
  call add(x @ p, tmp @ q)
kernel k(x: f32[8], z: f32[8], y: f32[8])
  alloc tmp: f32[8] @cache:
    call twice(x @ 0, tmp @ 0)
    for i in 0 .. 8:
      y[i] = tmp[i] + z[i]
"""


def test_a_call_writes_what_its_function_writes() -> None:
    with interning():
        kernel = parse_kernel(KERNEL)
        assert {b.name for b in written_buffers(kernel.body, kernel.functions)} == {"tmp", "y"}
        add, twice = kernel.functions
        assert {b.name for b in written_buffers(add.body, kernel.functions)} == {"y"}
        assert {b.name for b in written_buffers(twice.body, kernel.functions)} == {"tmp"}

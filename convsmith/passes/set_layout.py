"""Give a buffer another layout: every access moves to the new place of its element."""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.walk import statements_of
from convsmith.passes.buffer_layouts import BufferLayout
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import with_body


@stages(*LOOPS)
def set_layout(kernel: Kernel, buffer: str, layout: BufferLayout) -> Kernel:
    """Give ``buffer`` a ``layout``; a parameter, whose memory belongs to the caller, takes only layouts in place.

    Before::

        kernel k(a: f32[4, 4], dst: f32[4, 4])
          alloc a_s: f32[4, 4] @shared:
            for i in 0 .. 4:
              for j in 0 .. 4:
                a_s[i, j] = a[i, j]
            for i in 0 .. 4:
              for j in 0 .. 4:
                dst[i, j] = a_s[j, i]

    After ``set_layout("a_s", ROTATED)``::

        kernel k(a: f32[4, 4], dst: f32[4, 4])
          alloc a_s: f32[4, 4] @shared:
            for i in 0 .. 4:
              for j in 0 .. 4:
                a_s[i, (i * 2 + j) % 4] = a[i, j]
            for i in 0 .. 4:
              for j in 0 .. 4:
                dst[i, j] = a_s[j, (i + j * 2) % 4]
    """
    allocated = {s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc)}
    found = {b for b in (*allocated, *kernel.params) if b.name == buffer and (layout.in_place or b in allocated)}
    if not found:
        arrays = sorted(b.name for b in (*allocated, *(kernel.params if layout.in_place else ())))
        raise ConfigError(
            "buffer-name", f"set_layout: kernel {kernel.name} has no buffer {buffer} that may lie in {layout}; legal "
            f"are {', '.join(arrays) or 'none'}",
        )  # fmt: skip
    body, params = kernel.body, kernel.params
    for old in found:
        new, place = layout.of(old)
        body = Relocate(old, new, place).stmt(body)
        params = tuple(new if b is old else b for b in params)
    made = with_body(kernel, body)
    return made if params == kernel.params else replace(made, params=params)

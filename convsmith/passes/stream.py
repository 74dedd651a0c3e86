"""Mark buffers as streamed: no later load finds their elements in the nearest cache.

A load of a fragment from such a buffer tells the cache to replace its lines first, so that the lines of the other
operand, which register tiles share, stay there. A load of a vector prefetches a line that a later load reads; a result
that the kernel does not load is stored non-temporally.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, walk
from convsmith.passes.contracts import FLATTENED, stages


@stages(*FLATTENED, ensures=TENSORISED)
def stream(kernel: Kernel, streamed: tuple[tuple[str, int], ...]) -> Kernel:
    """Mark the buffers ``streamed`` of ``kernel``, parameters or private arrays, as streamed.

    Each is paired with the bytes from a vector to the line that its load prefetches, or 0 if its loads do not prefetch.
    The values that the kernel computes do not depend on the mark.

    Before::

        kernel k(a: f32[6], b: f32[2], c: f32[6])
          for i in 0 .. 6:
            c[i] = a[i] * b[i % 2]

    After ``stream((("a", 256),))``::

        kernel k(a: f32[6], b: f32[2], c: f32[6]) #stream(a: 256)
          for i in 0 .. 6:
            c[i] = a[i] * b[i % 2]
    """
    present = {b.name for b in kernel.params}
    present |= {s.buffer.name for s in statements_of(kernel.body) if isinstance(s, Alloc)}
    if absent := sorted({name for name, _ in streamed} - present):
        raise ConfigError("stream", f"stream: {kernel.name} has no buffer {absent[0]}; it has {sorted(present)}")
    far = {name for name, ahead in streamed if ahead}
    for body in (kernel.body, *(f.body for f in kernel.functions)):
        if far:
            far -= {v.buffer.name for v in walk(body) if type(v) is Load}
    marked = {name: 0 if name in far else ahead for name, ahead in streamed}
    return replace(kernel, streamed={**kernel.streamed, **marked})

"""Non-temporal stores of vectors of a result that is not read again before it would be evicted from the caches.

A non-temporal store fetches no cache line. It needs the alignment of its vector, which a caller's array may lack, so a
kernel with such stores has two forms, and the address of the result decides between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Kernel, Store
from convsmith.ir.walk import statements_of

STORE = "!nontemporal !0"
"""The mark of a store."""
METADATA = "!0 = !{i32 1}\n"
"""The node of metadata to which the mark refers."""
ALIGNED = 64
"""Alignment, in bytes, of a result in the form with non-temporal stores: the widest vector."""


def streamed_results(kernel: Kernel) -> list[Buffer]:
    """Return the results of ``kernel`` that are stored non-temporally."""
    if not kernel.streamed:
        return []
    bodies = (kernel.body, *(f.body for f in kernel.functions))
    written = {s.buffer for body in bodies for s in statements_of(body) if isinstance(s, Store)}
    return [b for b in kernel.params if kernel.streamed.get(b.name) == 0 and b in written]


def dispatch_text(kernel: Kernel, results: Sequence[Buffer], symbol: str, word: str) -> str:
    """Return the function that runs a part of the tasks, in the form for aligned ``results`` or in the other form.

    Words of the argument block have the type ``word``.
    """
    lines, low = [], "0"
    for n in map(kernel.params.index, results):
        lines += [
            f"%at.{n} = getelementptr {word}, ptr %args, i64 {n}",
            f"%address.{n} = load {word}, ptr %at.{n}, align {int(word[1:]) // 8}",
            f"%bits.{n} = or {word} %address.{n}, {low}",
        ]
        low = f"%bits.{n}"
    lines += [
        f"%low = and {word} {low}, {ALIGNED - 1}",
        f"%is_aligned = icmp eq {word} %low, 0",
        "br i1 %is_aligned, label %aligned, label %unaligned",
    ]
    forms = "".join(
        f"{form}:\n  call void @{symbol}_{form}_chunk(ptr %args, {word} %tid, {word} %n)\n  ret void\n"
        for form in ("aligned", "unaligned")
    )
    head = f"define void @{symbol}_chunk(ptr %args, {word} %tid, {word} %n) #0 {{\nentry:\n"
    return head + "".join(f"  {line}\n" for line in lines) + forms + "}\n"

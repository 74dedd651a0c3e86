"""The buffers that a statement writes, itself or by functions."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import AsyncCopy, AtomicAdd, Call, Function, Invoke, Stmt, Store, TensorCopy
from convsmith.ir.walk import statements_of


def written_buffers(body: Stmt, functions: Sequence[Function]) -> set[Buffer]:
    """Return the buffers that a statement writes, itself or by the ``functions`` that it calls; the contents of other
    buffers are constant while it runs.
    """
    stored: set[Buffer] = set()
    calls: list[Call] = []
    for s in statements_of(body):
        if isinstance(s, (Store, AtomicAdd)):
            stored.add(s.buffer)
        elif isinstance(s, (AsyncCopy, Invoke)):
            stored.add(s.dst.buffer)
        elif isinstance(s, TensorCopy) and s.is_store:
            stored.add(s.tensor)
        elif isinstance(s, Call):
            calls.append(s)
    known = {f.name: f for f in functions}
    writes = {name: written_buffers(known[name].body, functions) for name in {s.function for s in calls}}
    for s in calls:
        own = (buffer for _, buffer in known[s.function].pointers)
        stored |= {given for (given, _), b in zip(s.pointers, own) if b in writes[s.function]}
    return stored

"""Barriers of a group of threads as LLVM text, whole or in two parts.

A barrier whose parts are apart may be a word of shared memory. The first thread makes it, ahead of all statements; one
word serves all barriers of a kernel, because no thread arrives at a barrier before it has waited at the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

from convsmith.codegen.artifact import AXES
from convsmith.diag.errors import InternalError
from convsmith.ir.dialect import Dialect
from convsmith.ir.shared import BARRIER, taken_bytes
from convsmith.ir.stmt import Barrier, Kernel
from convsmith.ir.walk import statements_of

if TYPE_CHECKING:
    from convsmith.codegen.device_text import ThreadEmitter

__all__ = ["GroupBarriers", "needed_by", "word_bytes"]


def _is_split(kernel: Kernel) -> bool:
    """Return whether the kernel has barriers whose parts are apart."""
    return any(isinstance(s, Barrier) and s.part != "whole" for s in statements_of(kernel.body))


def word_bytes(kernel: Kernel, dialect: Dialect | None) -> int:
    """Return the bytes of shared memory that the barriers of a kernel take."""
    calls = dialect.split_barrier if dialect is not None else None
    return taken_bytes(BARRIER) if calls is not None and calls.init is not None and _is_split(kernel) else 0


def needed_by(kernels: Iterable[Kernel], dialect: Dialect | None) -> tuple[str, ...]:
    """Return the extension of the device that the barriers of ``kernels`` use, if there is one."""
    calls = dialect.split_barrier if dialect is not None else None
    return (calls.needs,) if calls is not None and calls.needs and any(map(_is_split, kernels)) else ()


class GroupBarriers:
    """Emits the barriers of a kernel into the text of one of its threads."""

    def __init__(self, e: ThreadEmitter, kernel: Kernel) -> None:
        self._e, self._calls, self._bytes = e, e.dialect.split_barrier, word_bytes(kernel, e.dialect)
        if self._calls is None and _is_split(kernel):
            raise InternalError(f"{kernel.name}: the target has no barriers in two parts")
        self._at = self._state = ""

    def begin(self) -> None:
        """Make the barrier in shared memory, if the kernel needs one, ahead of all statements."""
        e, calls = self._e, self._calls
        if not self._bytes:
            return
        assert calls is not None and calls.init is not None
        self._at = e.shared_at(e.taken)
        e.taken += self._bytes
        threads = e.geometry.group
        numbers = [e.spell(e.dialect.thread_number, axis=AXES[n], n=n) for n, size in enumerate(threads) if size > 1]
        word, any_bits = f"i{e.dialect.number_bits}", "0"
        for x in numbers:
            any_bits = e.put(f"or {word} {any_bits}, {x}")
        init, ready = e.label("init"), e.label("ready")
        e.lines.append(f"  br i1 {e.put(f'icmp eq {word} {any_bits}, 0')}, label %{init}, label %{ready}")
        e.start(init)
        e.spell(calls.init, at=self._at, count=prod(threads))
        e.lines.append(f"  br label %{ready}")
        e.start(ready)
        e.spell(e.dialect.barrier)

    def emit(self, s: Barrier) -> None:
        """Emit a barrier, or a part of one."""
        e, calls = self._e, self._calls
        if s.part == "whole":
            e.spell(e.dialect.barrier)
            return
        assert calls is not None
        if s.part == "arrive":
            self._state = e.spell(calls.arrive, at=self._at)
        elif calls.init is None:
            e.spell(calls.wait)
        else:
            e.repeat_until(lambda: e.spell(calls.wait, at=self._at, state=self._state))

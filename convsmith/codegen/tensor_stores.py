"""Stores of tiles of results through tensor maps as LLVM text: one thread starts them, and waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import as_index
from convsmith.ir.stmt import Stmt, TensorCopy
from convsmith.ir.walk import statements_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from convsmith.codegen.pipelines import PipelineEmitter


def stored_rows(body: Stmt) -> dict[Buffer, int]:
    """Return the arrays in shared memory from which tiles are stored, each with the bytes of a row."""
    stores = (s for s in statements_of(body) if isinstance(s, TensorCopy) and s.is_store)
    return {s.src.buffer: s.map.box[0] * s.src.buffer.dtype.bytes for s in stores}


def commit_stores(emit: PipelineEmitter, stores: Sequence[TensorCopy]) -> None:
    """Emit the stores of tiles, which lie in shared memory in swizzled rows, and close their group."""

    pointer = f"ptr addrspace({emit.spaces['shared']})"

    def lines() -> None:
        for s in stores:
            if any(i is not as_index(0) for i in s.dst.index):
                raise InternalError(f"{emit.symbol}: `{s}` stores to a tensor that does not begin where its array does")
            at = {f"at{n}": emit.as_word(emit.index(i)) for n, i in enumerate(s.at)}
            src = emit.slot_start(s.src.buffer, s.src.index[0])
            # Where the operand is a constant, ptxas has the array's address in a register of lanes in the whole kernel.
            src = emit.put(f'call {pointer} asm "mov.b64 $0, $1;", "=l,l"({pointer} {src})')
            call = dict(emit.calls.store)[len(s.at)]
            emit.spell(call, src=src, map=emit.maps[s.dst.buffer, s.map], **at)
        emit.spell(emit.calls.commit_stores)

    _by_one_thread(emit, lines)


def wait_for_stores(emit: PipelineEmitter, pending: int) -> None:
    """Let all consumers wait until stores have read shared memory."""
    _by_one_thread(emit, lambda: emit.spell(emit.calls.wait_stores, pending=pending))
    emit.consumers_meet()


def _by_one_thread(emit: PipelineEmitter, lines: Callable[[], object]) -> None:
    """Emit the lines for the first thread of the consumers, or of those of each team."""
    store, on = emit.label("store"), emit.label("on")
    emit.lines.append(f"  br i1 {emit.is_first_thread}, label %{store}, label %{on}")
    emit.start(store)
    emit.known.push()
    lines()
    emit.known.pop()
    emit.lines.append(f"  br label %{on}")
    emit.start(on)

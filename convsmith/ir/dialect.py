"""The text in which kernels of threads are written for LLVM: facts of a device that code generation reads."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Dialect", "DialectCall", "PipelineCalls"]


@dataclass(frozen=True)
class DialectCall:
    """LLVM text of an operation: expressions ``lines``, and then an instruction without a result, the ``effect``.

    They name arguments, and results of lines by number, in braces. The result of the last line is that of the
    operation. ``declare`` are the declarations that they need.
    """

    lines: tuple[str, ...]
    declare: tuple[str, ...] = ()
    effect: str = ""


@dataclass(frozen=True)
class PipelineCalls:
    """LLVM's spelling of pipelines of copies through tensor maps.

    A barrier is a word of shared memory at ``{at}``. ``init`` makes one that waits for ``{count}`` arrivals, and
    ``initialised`` lets all threads and the copy engine see it. ``expect`` arrives and adds ``{bytes}`` that copies
    bring; ``arrive`` arrives. ``has_ended`` returns whether the phase of parity ``{parity}`` has ended, and may wait
    for it. ``tile`` and ``im2col`` start copies from the tensor map ``{map}`` to ``{dst}``, by the number of dims; they
    take the coordinates ``{at0}``, ``{at1}`` ... and offsets ``{by0}`` ... and bring bytes to the barrier ``{full}``.
    ``before`` stands before the first product of a step. ``commit`` stands behind the last one, and makes a group of
    them; ``wait`` waits for all but the ``{pending}`` latest groups.
    ``map`` is the parameter of a tensor map, which ``prefetch`` brings near the copy engine.
    """

    init: DialectCall
    initialised: DialectCall
    expect: DialectCall
    arrive: DialectCall
    has_ended: DialectCall
    tile: tuple[tuple[int, DialectCall], ...]
    im2col: tuple[tuple[int, DialectCall], ...]
    before: DialectCall
    commit: DialectCall
    wait: DialectCall
    prefetch: DialectCall
    map: str


@dataclass(frozen=True)
class Dialect:
    """LLVM's spelling of a kernel whose threads a device runs.

    ``convention`` is the calling convention of a kernel, ``spaces`` are the address spaces of scopes. Pointers that a
    kernel is given are multiples of ``alignment`` bytes. ``group_number`` and ``thread_number`` return a number of
    ``number_bits`` along the axis ``{axis}``, whose own number is ``{n}``.
    ``barriers`` are the parts of a barrier by name; a part that is missing does nothing. ``attributes`` and
    ``metadata`` of a kernel are pairs of a name and a text, which states the threads of a group along the axes ``{x}``,
    ``{y}`` and ``{z}``. ``atomic_types`` are those that LLVM's atomic addition takes; other types are added by
    comparing and exchanging. ``copies`` start a copy of bytes from ``{src}`` to ``{dst}``, or of zeros where the bit
    ``{cond}`` is clear, by their number; a copy of other bytes is a load and a store. ``commit`` closes a group of
    copies, and ``wait`` waits for all but ``{pending}`` of the groups. The arrays that a group shares are definitions
    of their own, or parts of the array ``dynamic``, whose size a launch states. A device with ``pipelines`` runs
    pipelined loops. One that ``rounds_bfloat`` rounds f32 to bf16 in one instruction. At a ``join``, the lanes of a
    warp wait for each other.
    """

    convention: str
    spaces: tuple[tuple[str, int], ...]
    group_number: DialectCall
    thread_number: DialectCall
    number_bits: int
    barriers: tuple[tuple[str, DialectCall], ...]
    attributes: tuple[tuple[str, str], ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    atomic_types: tuple[str, ...] = ("s32",)
    alignment: int = 1
    copies: tuple[tuple[int, DialectCall], ...] = ()
    commit: DialectCall | None = None
    wait: DialectCall | None = None
    dynamic: str = ""
    pipelines: PipelineCalls | None = None
    join: DialectCall | None = None
    rounds_bfloat: bool = False

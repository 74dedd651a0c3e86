"""LLVM text for kernels whose threads a device runs: the facts about the device that code generation reads."""

from __future__ import annotations

from convsmith.diag.record import record

__all__ = ["ByteFloatCalls", "Dialect", "DialectCall", "PipelineCalls", "SplitBarrierCalls"]


@record(frozen=True)
class DialectCall:
    """LLVM text of an operation: the expressions ``lines``, followed by the ``effect``, an instruction without a
    result.

    Lines name arguments, and earlier results by number, in braces. The result of the last line is the result of the
    operation. ``declare`` holds the declarations that the lines need.
    """

    lines: tuple[str, ...]
    declare: tuple[str, ...] = ()
    effect: str = ""


@record(frozen=True)
class SplitBarrierCalls:
    """LLVM's spelling of a barrier in two parts.

    A thread says by ``arrive`` that it has reached the barrier, and stops at ``wait`` until all threads of the group
    have arrived. Without ``init``, both are effects of the hardware's own barrier. With it, the barrier is a word of
    shared memory at ``{at}``, which ``init`` makes for ``{count}`` threads; ``arrive`` then returns a state, and
    ``wait`` whether the phase of that ``{state}`` has ended, for which it may stop the thread. A device that
    runs such barriers must have the extension ``needs``, if there is one.
    """

    arrive: DialectCall
    wait: DialectCall
    init: DialectCall | None = None
    needs: str = ""


@record(frozen=True)
class PipelineCalls:
    """LLVM's spelling of pipelines of copies through tensor maps.

    A barrier is a word of shared memory at ``{at}``. ``init`` makes one that waits for ``{count}`` arrivals, and
    ``initialised`` lets the copy engine and all threads see it, those of other groups of a cluster too. ``expect``
    arrives and adds ``{bytes}`` that copies bring; ``arrive`` arrives, ``arrive_at`` at the barrier of the group
    ``{group}`` of a cluster. ``has_ended`` returns whether the phase of parity ``{parity}`` has ended, and may wait for
    it. ``tile`` and ``im2col`` start copies from the tensor map ``{map}`` to ``{dst}``, by the number of dims; they
    take the coordinates ``{at0}``, ``{at1}`` ... and offsets ``{by0}`` ... and bring bytes to the barrier ``{full}``,
    if ``{shared}`` is 1 in all groups of a cluster whose bits are set in ``{mask}``. ``meet`` waits for all threads of
    a cluster; the attributes ``cluster`` state its groups along each axis, ``{x}``, ``{y}`` and ``{z}``.
    ``store`` starts a store of ``{src}`` through a map of tiles; ``commit_stores`` closes a group of stores, and
    ``wait_stores`` waits until all but the ``{pending}`` latest groups have read shared memory.
    ``before`` is a fence between accesses of a thread to registers and products that add to them, ``published`` one
    between its stores to shared memory and what reads them without it; ``together`` is the barrier ``{number}`` of
    ``{count}`` threads. ``commit`` closes a group of products; ``wait`` waits for all but the ``{pending}`` latest
    groups. ``take`` gives the threads of a group of warps ``{count}`` registers, more than they have, and waits until
    others have left them; ``leave`` leaves all but ``{count}``. ``map`` is the parameter of a tensor map, which
    ``prefetch`` loads into the cache of the copy engine.
    """

    init: DialectCall
    initialised: DialectCall
    expect: DialectCall
    arrive: DialectCall
    arrive_at: DialectCall
    has_ended: DialectCall
    meet: DialectCall
    cluster: tuple[tuple[str, str], ...]
    tile: tuple[tuple[int, DialectCall], ...]
    im2col: tuple[tuple[int, DialectCall], ...]
    store: tuple[tuple[int, DialectCall], ...]
    commit_stores: DialectCall
    wait_stores: DialectCall
    before: DialectCall
    published: DialectCall
    together: DialectCall
    commit: DialectCall
    wait: DialectCall
    prefetch: DialectCall
    take: DialectCall
    leave: DialectCall
    map: str


@record(frozen=True)
class ByteFloatCalls:
    """LLVM's conversions of pairs of 8-bit floats of the type ``dtype``.

    ``rounds`` makes a word of 16 bits of the f32 ``{low}`` and ``{high}``: it rounds to nearest even, takes the largest
    number in place of what is beyond it, and keeps NaN. ``extends`` makes two f16 of such a word, ``{pair}``.
    """

    dtype: str
    rounds: DialectCall
    extends: DialectCall


@record(frozen=True)
class Dialect:
    """LLVM's spelling of a kernel whose threads a device runs.

    ``convention`` is the calling convention of a kernel, ``spaces`` are the address spaces of scopes. Pointers that
    a kernel is given are multiples of ``alignment`` bytes. ``group_number`` and ``thread_number`` return a number
    of ``number_bits`` along the axis ``{axis}``, which LLVM numbers ``{n}``. ``barrier`` stops a thread until all
    threads of its group have reached it; a device with a ``split_barrier`` has its two parts too. ``attributes``
    and ``metadata`` of a kernel are pairs of a name and a text, which states the threads of a group along the axes
    ``{x}``, ``{y}`` and ``{z}``. ``atomic_types`` are those that LLVM's atomic addition takes; other types are
    added by comparing and exchanging. ``copies`` maps a number of bytes to the text that starts a copy from
    ``{src}`` to ``{dst}``, which writes zeros where the bit ``{cond}`` is clear; a copy of any other number of
    bytes is a load and a store. ``commit`` closes a group of copies, and ``wait`` waits for all but ``{pending}``
    of the groups. Each array in shared memory is a definition of its own, or a part of the array ``dynamic``, whose
    size the launch states. A device with ``pipelines`` runs pipelined loops. One that ``rounds_bfloat`` rounds f32
    to bf16 in one instruction. ``byte_floats`` are the types of 8-bit floats for which the device has conversions.
    ``saturates`` holds a type of numbers, a type of bytes, and the text that rounds and saturates the numbers
    ``{high}`` and ``{low}``, makes 0 of NaN, and returns the two bytes below the lower half of the word ``{rest}``.
    ``rounds_word`` rounds and saturates the f32 ``{x}`` to s32, and makes 0 of NaN. ``reciprocal`` returns ``1 /
    {x}`` of an f32 that is not denormal, with an error of less than a unit of the last place; with it, quotients
    that are rounded to bytes are computed by products. ``wide_reciprocal`` returns that of an f64 with an error of
    less than ``2**-19`` of it. A device that ``packs_halves`` has registers of 32 bits, each of which holds two
    neighbouring elements of 16 bits. At a ``join``, the lanes of a warp wait for each other. A device that
    ``keeps_loops`` has an assembler that would unroll loops of sums, with the registers of several iterations, unless
    it is told not to: the schedule unrolls them, and counts the registers.
    """

    convention: str
    spaces: tuple[tuple[str, int], ...]
    group_number: DialectCall
    thread_number: DialectCall
    number_bits: int
    barrier: DialectCall
    split_barrier: SplitBarrierCalls | None = None
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
    byte_floats: tuple[ByteFloatCalls, ...] = ()
    saturates: tuple[tuple[str, str, DialectCall], ...] = ()
    rounds_word: DialectCall | None = None
    reciprocal: DialectCall | None = None
    wide_reciprocal: DialectCall | None = None
    packs_halves: bool = False
    keeps_loops: bool = False

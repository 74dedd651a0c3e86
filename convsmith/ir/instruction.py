"""Machine instructions as rows of tables: specification, operand layouts, LLVM text and required CPU features.

The specification is a kernel over the operands: it writes ``c``, and reads ``c`` where it accumulates.  The interpreter
runs it, the pass ``replace`` unifies it with nests, and tests compare it with the machine.

An operand has logical coordinates and a *layout* that says which register, which lane and which element of the lane
hold each coordinate.  A vector is one register of many lanes; a transposition works on arrays of such registers; a
matrix fragment keeps several rows in one register (AMX, smmla) or spreads them over the registers of the threads of a
warp (a GPU).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Literal

from convsmith.diag.forking import cached_property, import_lock
from convsmith.diag.record import record

if TYPE_CHECKING:
    from types import ModuleType

    from convsmith.ir.index import Index, IndexLike, Var
    from convsmith.ir.stmt import Kernel

LANES = "lane"
"""The file of registers that hold fragments spread over the lanes of a warp."""
BLOCK = "block"
"""The file of an operand in memory that the lanes of a warp access together, at the address of the first lane."""
SCALARS = "scalar"
"""The file of a vector whose lanes scalar registers hold, one each."""
SHARED = "shared"
"""The file of an operand in shared memory, which an instruction reads by itself, while its threads go on."""
PITCH = "pitch"
"""The file of such an operand whose registers are rows of a matrix in memory, any distance apart, which its text names
``{pitch}``, in bytes. Rows from ``{first}`` to before ``{end}`` are present; the others are zeros.
"""
SCALE = "vscale"
"""The size, in the specification of a scalable instruction, that the machine multiplies lane counts by."""


@cache
def _ir() -> ModuleType:
    """Return the functions on specifications as IR, which the tables of a machine do not need."""
    with import_lock:
        from convsmith.ir import specification

    return specification


@record(frozen=True)
class FragmentLayout:
    """The place of each element of an operand: `registers` of `lanes` of `elements` each.

    `coords` gives the operand's coordinates as index text over `r` (register), `l` (lane) and `e` (element of the
    lane). Examples:

    - a vector of 16 lanes: ``FragmentLayout(("l",), 16)``
    - four vectors, one for each row of a matrix: ``FragmentLayout(("r", "l"), 16, registers=4)``
    - an AMX tile, whose lanes are rows of 64 bytes: ``FragmentLayout(("l", "e"), 16, elements=64)``
    - the 2x8 bytes of NEON's smmla: ``FragmentLayout(("l // 8", "l % 8"), 16)``
    - the 16x16 halves of mma.m16n8k16, over the 32 threads of a warp:
      ``FragmentLayout(("l // 4 + r % 2 * 8", "l % 4 * 2 + e + r // 2 * 8"), 32, elements=2, registers=4)``

    A `scalable` layout has `lanes` times ``vscale`` lanes, along the operand's last coordinate.
    """

    coords: tuple[str, ...]
    lanes: int
    elements: int = 1
    registers: int = 1
    scalable: bool = False

    @property
    def count(self) -> int:
        """Elements of all registers; of a scalable layout, for each unit of ``vscale``."""
        return self.registers * self.lanes * self.elements

    @property
    def is_plain(self) -> bool:
        """Whether the elements of a lane are adjacent along the last coordinate."""
        return _is_plain(self)

    @property
    def indices(self) -> tuple[Index, ...]:
        """The parsed `coords`; their variables belong to the current intern table."""
        found: tuple[Index, ...] = _ir().indices(self.coords)
        return found

    def coordinates(self, register: IndexLike, lane: IndexLike, element: IndexLike) -> tuple[Index, ...]:
        """Return the coordinates that an element of a lane of a register holds."""
        found: tuple[Index, ...] = _ir().coordinates(self.coords, register, lane, element)
        return found

    @property
    def digits(self) -> tuple[tuple[int, int], ...]:
        """The digits of the place of an element if registers, their lanes and the elements of these follow each other:
        coordinates, outermost first, each with the number of its steps. () if places have no such digits.
        """
        return _digits(self)

    def is_part_of(self, whole: FragmentLayout) -> bool:
        """Return whether the registers of this layout are the first ones of ``whole``, which consists of parts."""
        same = (self.coords, self.lanes, self.elements) == (whole.coords, whole.lanes, whole.elements)
        return same and not whole.registers % self.registers

    def places(self, scale: int = 1) -> dict[tuple[int, ...], tuple[int, int, int]]:
        """Return the register, lane and element of each coordinate, on a machine whose ``vscale`` is `scale`."""
        lanes = self.lanes * scale if self.scalable else self.lanes
        every = product(range(self.registers), range(lanes), range(self.elements))
        found: dict[tuple[int, ...], tuple[int, int, int]] = _ir().places(self.coords, every)
        return found


@cache
def _digits(layout: FragmentLayout) -> tuple[tuple[int, int], ...]:
    at = sorted(layout.places(), key=layout.places().__getitem__)
    found: list[tuple[int, int]] = []
    whole = 1
    while whole < len(at):
        step = [y - x for x, y in zip(at[0], at[whole])]
        count = 1
        while whole * (count + 1) <= len(at) and all(
            at[n + whole * count] == tuple(x + d * count for x, d in zip(at[n], step)) for n in range(whole)
        ):
            count += 1
        if count == 1 or len(moved := [n for n, d in enumerate(step) if d]) != 1:
            return ()
        found.insert(0, (moved[0], count))
        whole *= count
    return tuple(found)


@cache
def _is_plain(layout: FragmentLayout) -> bool:
    step: bool = _ir().is_one(layout.coordinates(0, 0, 1)[-1])
    return step


@record(frozen=True)
class Operand:
    """An operand of an instruction: its name in the specification, its type, its shape and its layout.

    `file` names the registers that hold it. `scope` is the scope of the buffers that the instruction writes:
    ``register``, whose innermost dim is one vector, or ``fragment``, whose last dims are one fragment. The last extent
    of a scalable operand counts for each unit of ``vscale``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: FragmentLayout
    file: str = "vector"
    scope: str = "register"

    @property
    def size(self) -> int:
        """Elements; of a scalable operand, for each unit of ``vscale``."""
        return prod(self.shape)

    def at(self, scale: int) -> Operand:
        """Return the operand as it is on a machine whose ``vscale`` is `scale`."""
        if not self.layout.scalable:
            return self
        layout = replace(self.layout, lanes=self.layout.lanes * scale, scalable=False)
        return replace(self, shape=(*self.shape[:-1], self.shape[-1] * scale), layout=layout)

    def __str__(self) -> str:
        *rest, last = map(str, self.shape)
        return f"{self.name}: {self.dtype}[{', '.join([*rest, '?' if self.layout.scalable else last])}]"


def vector(name: str, dtype: str, *shape: int, scalable: bool = False) -> Operand:
    """Return an operand of the given shape, whose last dim is a vector and whose other dims number registers."""
    *leading, lanes = shape
    layout = FragmentLayout(("r", "l") if leading else ("l",), lanes, 1, prod(leading), scalable)
    return Operand(name, dtype, shape, layout)


@record(frozen=True)
class Instruction:
    """A row of a target's table.

    `operands` start with the one that is written, `c`. `body` is the text of the specification's body. `llvm` holds
    expressions in LLVM text, one a line, and `declare` their declarations: an expression names operands ``{a}`` (of one
    register) or ``{a0}``, ``{a1}`` ... (of several), and the results of expressions before it ``{0}``, ``{1}`` ...; the
    last expressions are the new registers of `c`. On registers that LLVM numbers (AMX) `llvm` is a call on the numbers.

    `needs` are CPU features by LLVM's names; `mnemonic` must appear in the assembly (empty where LLVM may choose).
    `predicate` names a size of the specification, the number of leading lanes that are active; in `llvm` it is a mask.
    `rounds` names the values that the instruction rounds to fewer bits than their type has: the factors, or the sums.
    `partial` names loops that may run fewer iterations than in the specification: the lanes of the missing
    iterations are inactive. `flushes` states that denormal sums are flushed to zero. `scaled` is the scalable row
    that applies this row to every unit of a vector. `repeated` is the row for a factor whose terms are the same for
    all sums: its operand holds these terms once, and if ``loaded`` is not empty, memory is read as one number of
    that LLVM type. The lanes of a warp execute a row with an ``exchange`` together: each gives an address, ``{a}``,
    of elements that follow each other in memory, and receives those of other lanes. The layout's coordinates are
    the lane that gives an element and the element's number there. `widens` is the type of the last factor in arrays
    if it is narrower than the operand's: packing converts it. `copied` is likewise the type of the first factor in
    arrays if a copy converts it. `temporaries` counts the registers that a call needs
    besides its operands. `limit` is the largest magnitude of the last factor with which the machine computes the
    specification; 0 if any magnitude will do. If factors of one type are `repeated_last`, the one whose terms are the
    same for all sums takes the place of the last, the only one that the machine reads from memory.
    """

    name: str
    operands: tuple[Operand, ...]
    body: str
    llvm: str
    declare: str
    needs: tuple[str, ...]
    mnemonic: str
    predicate: str = ""
    partial: tuple[str, ...] = ()
    flushes: bool = False
    scaled: Instruction | None = None
    repeated: Instruction | None = None
    loaded: str = ""
    exchange: FragmentLayout | None = None
    rounds: Literal["", "factors", "sums"] = ""
    widens: str = ""
    copied: str = ""
    temporaries: int = 0
    limit: int = 0
    repeated_last: bool = False

    @property
    def spec(self) -> str:
        """The specification, as the text of a kernel."""
        sizes = [SCALE] * self.is_scalable + [self.predicate] * bool(self.predicate)
        operands = (f"{x}{' @shared' if x.file == SHARED else ''}" for x in self.operands)
        return f"kernel {self.name}({', '.join([*operands, *sizes])})\n{self.body}"

    @property
    def is_asynchronous(self) -> bool:
        """Whether the instruction reads shared memory and writes `c` after it has begun, until a thread waits for it.
        """
        return any(x.file == SHARED for x in self.operands)

    @cached_property
    def kernel(self) -> Kernel:
        """The parsed specification."""
        kernel: Kernel = _ir().parse_kernel(self.spec)
        return kernel

    @property
    def result(self) -> Operand:
        """The operand that is written."""
        return self.operands[0]

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Names of the data types of the factors in arrays, and of `c`."""
        read = [x.dtype for x in self.operands[1:]]
        return (self.copied or read[0], *read[1:-1], self.widens or read[-1], self.result.dtype)

    @property
    def is_scalable(self) -> bool:
        """Whether lane counts are multiples of the machine's ``vscale``."""
        return any(x.layout.scalable for x in self.operands)

    def at(self, scale: int) -> Instruction:
        """Return the row as it is on a machine whose ``vscale`` is `scale`: its lanes have a number."""
        body = re.sub(rf"\b{SCALE}\b", str(scale), self.body)
        return replace(self, operands=tuple(x.at(scale) for x in self.operands), body=body)

    @property
    def lanes(self) -> int:
        """Columns of `c`: its last extent."""
        return self.result.shape[-1]

    @property
    def rows(self) -> int:
        """NumberedRows of `c`."""
        return self.result.size // self.lanes

    @cached_property
    def is_single(self) -> bool:
        """Whether the instruction adds one product to each sum, of factors of a narrower type."""
        factor = self.operands[-1]
        return self.rows == 1 and factor.size == self.lanes and factor.dtype != self.result.dtype

    @cached_property
    def terms(self) -> int:
        """Values that the specification adds to each element of `c`."""
        sums = self.steps(0)
        return prod(size for var, size in self.loops.items() if not sums.get(var))

    @cached_property
    def group(self) -> int:
        """Terms of an element of `c` that are neighbours in the last operand."""
        sums, factors = self.steps(0), self.steps(-1)
        lane = min((abs(n) for v, n in factors.items() if sums.get(v)), default=0)
        return prod(n for v, n in self.loops.items() if not sums.get(v) and 0 < factors.get(v, 0) < lane)

    @cached_property
    def loops(self) -> dict[Var, int]:
        """Iterations of each loop; of a loop over scalable lanes, for each unit of ``vscale``."""
        found: dict[Var, int] = _ir().iterations(self.kernel, SCALE)
        return found

    def steps(self, operand: int) -> dict[Var, int]:
        """Return the elements that each loop moves the operand of that number by, rows following each other."""
        found: dict[Var, int] = _ir().steps(self.kernel, operand, self.operands[operand].shape)
        return found

    @cached_property
    def _lines(self) -> list[str]:
        return self.llvm.splitlines()

    @cached_property
    def declarations(self) -> dict[str, None]:
        """The lines of LLVM text that declare the intrinsics."""
        return dict.fromkeys(self.declare.splitlines())

    def emit(self, put: Callable[[str], str], registers: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the new registers of `c`; `put` takes an expression and names its result."""
        names: dict[str, str] = {}
        for name, values in registers.items():
            names |= {name: values[0]} if len(values) == 1 else {f"{name}{n}": x for n, x in enumerate(values)}
        done: list[str] = []
        for line in self._lines:
            done.append(put(line.format(*done, **names)))
        return done[-(self.exchange or self.result.layout).registers :]


@record(frozen=True)
class RegisterFile:
    """A register file: ``count`` registers of ``bits`` each.

    A ``scalable`` register has ``vscale`` units of ``bits``. One that instructions name as a whole may be a ``group``
    of several registers of the machine.
    """

    name: str
    count: int
    bits: int
    group: int = field(default=1, kw_only=True)
    scalable: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        return f"{self.count} {self.name}s of {self.bits} bits{f' times {SCALE}' if self.scalable else ''}"


@record(frozen=True)
class HeadLoad:
    """LLVM text that loads a register of ``bits`` when only its first bytes are in memory.

    The expressions ``llvm`` name the address ``{p}`` of the first byte, the address ``{last}`` of the last byte in
    memory, and the results of earlier expressions; the last expression is the register, of LLVM's ``type``. They read
    no page that holds no byte from ``{p}`` to ``{last}``. The other bytes of the register are undefined.
    """

    bits: int
    type: str
    llvm: tuple[str, ...]
    declare: tuple[str, ...]


@record(frozen=True)
class WordConversion:
    """An intrinsic of LLVM that converts `lanes` of f32 (0: a scalar) to s32, rounded to nearest even.

    `intrinsic` is its name, `result` the type whose bits are the words; `given` and `after` are types and values of the
    arguments before and behind the floats.
    """

    lanes: int
    intrinsic: str
    result: str
    given: tuple[tuple[str, str], ...] = ()
    after: tuple[tuple[str, str], ...] = ()


@record(frozen=True)
class Narrowing:
    """Intrinsics of LLVM that saturate a register of ``lanes`` of s32 to s16, and s16 to bytes.

    Each takes two registers, and in each of ``parts`` of equal size the numbers of both follow each other in the
    result. ``words`` is the intrinsic that gives s16, ``bytes`` are those that give bytes, by the name of the type. If
    the target has a faster instruction for one register, it ``joins`` only: several registers whose bytes are stored
    together are narrowed.
    """

    lanes: int
    words: str
    bytes: tuple[tuple[str, str], ...]
    parts: int = 1
    joins: bool = False


@record(frozen=True)
class ByteLookup:
    """LLVM text that picks each byte of a register of ``bytes`` from a register, by an index.

    The expressions ``llvm`` name the register ``{table}`` that the bytes are picked from, the register ``{indices}``,
    and the results of earlier expressions; the last expression is the result, of LLVM's ``type``. ``index`` maps the
    number of a byte to its index; the index ``absent`` gives a zero.
    """

    bytes: int
    type: str
    llvm: tuple[str, ...]
    declare: tuple[str, ...]
    index: Callable[[int], int]
    absent: int


@record(frozen=True)
class FragmentFile(RegisterFile):
    """Registers for fragments that LLVM numbers, and the LLVM text that zeroes, loads, stores and configures them.

    ``zero`` has the text that clears each register, by number; ``load`` and ``store`` move register ``{r}`` from and to
    ``{p}``, lanes ``{distance}`` bytes apart. Where ``by_lane``, they move one lane, whose number is ``{lane}``, from
    and to its own address ``{p}``. ``stream`` loads a register from a streamed buffer. ``begin`` takes ``{p}``, the
    address of the constant that ``configuration`` builds from the lanes, and the bytes of a lane, of each register;
    ``end`` releases the registers. Both are empty for registers that need no configuration. ``awake`` is emitted with
    the products of each block: it uses a unit that ``store`` needs and that would otherwise power down while only
    products run. Where ``is_apart``, a unit of its own multiplies fragments while others compute on vectors.
    """

    zero: tuple[str, ...]
    load: str
    store: str
    declare: tuple[str, ...]
    stream: str = ""
    by_lane: bool = False
    begin: str = ""
    end: str = ""
    configuration: Callable[[Sequence[tuple[int, int]]], bytes] = field(default=lambda shapes: b"")
    awake: str = ""
    is_apart: bool = False

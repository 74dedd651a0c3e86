"""Transpositions within quads: four neighbouring lanes trade words, so that each of them has neighbouring columns.

A quad holds a row of the sums of products of warp groups: each lane two columns of every eight. Lanes that store halves
write 4 bytes each, and the quad half a sector of memory, which costs as much as a whole one. After the transposition a
lane has neighbouring columns of a row, 16 bytes or 8, and the quad two whole sectors or one.
"""

from __future__ import annotations

from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.ir.types import dtype
from convsmith.machine.nvidia.fragments import SMALL
from convsmith.machine.nvidia.warpgroups import LANES, PRODUCT_ROWS, sums_layout

QUAD = 4
"""Lanes of a quad, and words that they trade at a time."""
RUN_BYTES = (16, 8)
"""Bytes of neighbouring columns that a lane may have afterwards, the most first."""
_COLUMNS = 8
"""Columns of which a lane of a quad has two in the sums of a product."""
_LANE = "llvm.nvvm.read.ptx.sreg.laneid"
_SHUFFLE = "llvm.nvvm.shfl.sync.bfly.i32"


def runs_layout(columns: int, run: int) -> FragmentLayout:
    """Return the layout of 64 rows and ``columns`` of which a lane has runs of ``run``."""
    row = f"l // 32 * 16 + l % 32 // 4 + r // {run} % 2 * 8"
    column = f"l % 4 * {run} + r % {run} + r // {2 * run} * {QUAD * run}"
    return FragmentLayout((row, column), LANES, registers=columns // 2)


class _Lines:
    """Lines of LLVM's text, which name the results of earlier ones by number."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put(self, line: str) -> str:
        """Add a line, and return the name of its result."""
        self.lines.append(line)
        return f"{{{len(self.lines) - 1}}}"

    def word(self, elements: list[str], kind: str) -> str:
        """Return a word of elements of LLVM's type ``kind``."""
        vector, made = f"<{len(elements)} x {kind}>", "poison"
        for n, x in enumerate(elements):
            made = self.put(f"insertelement {vector} {made}, {kind} {x}, i32 {n}")
        return self.put(f"bitcast {vector} {made} to i32")

    def transposed(self, words: list[str], bits: list[str]) -> list[str]:
        """Return the word from each lane of the quad whose number among its ``words`` is that of the receiving lane,
        the lowest ``bits`` of whose number are given.
        """
        words = list(words)
        for step, bit in zip((1, 2), bits):
            for n in (n for n in range(QUAD) if not n & step):
                low, high = words[n], words[n + step]
                sent = self.put(f"select i1 {bit}, i32 {low}, i32 {high}")
                got = self.put(f"call i32 @{_SHUFFLE}(i32 -1, i32 {sent}, i32 {step}, i32 31)")
                words[n] = self.put(f"select i1 {bit}, i32 {got}, i32 {low}")
                words[n + step] = self.put(f"select i1 {bit}, i32 {high}, i32 {got}")
        return words


def _unzipped(text: _Lines, words: list[str]) -> list[str]:
    """Return words of which each holds two columns of two blocks, or rows, as the words of the first and those of the
    second.
    """
    orders = (f"<i32 {n}, i32 {n + 1}, i32 {n + 4}, i32 {n + 5}>" for n in (0, 2))
    return [
        text.put(f"shufflevector <4 x i8> {words[n]}, <4 x i8> {words[n + 1]}, <4 x i32> {order}")
        for order in orders
        for n in range(0, QUAD, 2)
    ]


def transposition(dtype_: str, run: int) -> Instruction:
    """Return the row that transposes 64 rows of elements of 8 or 16 bits within quads, each lane of which then has a
    ``run`` of columns.

    A word of a lane has its two columns of one block of eight. If elements have 8 bits, it has those of two
    neighbouring blocks of a row, or of one block of both rows of the lane.
    """
    text, columns, kind = _Lines(), QUAD * run, f"i{dtype(dtype_).bits}"
    in_word = 32 // dtype(dtype_).bits
    rows = [[0], [1]] if run == QUAD * in_word else [[0, 1]]
    lane = text.put(f"call i32 @{_LANE}()")
    bits = [text.put(f"trunc i32 {text.put(f'lshr i32 {lane}, {n}')} to i1") for n in range(2)]
    made: list[str] = []
    for together in rows:
        words = []
        for n in range(QUAD):
            blocks = [n * run // _COLUMNS + x for x in range(run // _COLUMNS)]
            pairs = [4 * b + 2 * row for row in together for b in blocks]
            words.append(text.word([f"{{a{first + e}}}" for first in pairs for e in range(2)], kind))
        made += text.transposed(words, bits)
    vector = f"<{in_word} x {kind}>"
    vectors = [text.put(f"bitcast i32 {word} to {vector}") for word in made]
    if in_word > 2:
        vectors = [x for n in range(0, len(vectors), QUAD) for x in _unzipped(text, vectors[n : n + QUAD])]
    for word in vectors:
        for n in range(in_word):
            text.put(f"extractelement {vector} {word}, i32 {n}")
    body = f"  for m in 0 .. {PRODUCT_ROWS}:\n    for l in 0 .. {columns}:\n      c[m, l] = a[m, l]\n"
    shape = (PRODUCT_ROWS, columns)
    operands = (
        Operand("c", dtype_, shape, runs_layout(columns, run), "lane", "fragment"),
        Operand("a", dtype_, shape, sums_layout(columns), "lane", "fragment"),
    )
    declare = f"declare i32 @{_LANE}()\ndeclare i32 @{_SHUFFLE}(i32, i32, i32, i32)"
    name = f"transpose_quads_m{PRODUCT_ROWS}n{columns}_{dtype_}"
    return Instruction(name, operands, body, "\n".join(text.lines), declare, ("sm_90a",), "SHFL.BFLY")


QUAD_TRANSPOSITIONS = tuple(
    transposition(t, n // dtype(t).bytes)
    for t in ("bf16", "f16", "s8", "u8", *SMALL)
    for n in RUN_BYTES
    if n // dtype(t).bytes >= _COLUMNS
)
"""Transpositions of slices of results of products of warp groups, those with longer runs of a type first."""

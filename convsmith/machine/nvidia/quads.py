"""Transpositions within quads: four neighbouring lanes trade words, so that each of them has neighbouring columns.

A quad holds a row of the sums of products of warp groups: each lane two columns of every eight. Lanes that store them
write 4 bytes each, and the quad half a sector of memory, which costs as much as a whole one. After the transposition a
lane has eight columns of a row, 16 bytes, and the quad two whole sectors.
"""

from __future__ import annotations

from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.machine.nvidia.warpgroups import LANES, PRODUCT_COLUMNS, PRODUCT_ROWS, sums_layout

QUAD = 4
"""Lanes of a quad, and words that they trade at a time."""
RUN = 8
"""Neighbouring columns that a lane has afterwards."""
TRADED = QUAD * RUN
"""Columns that a quad transposes at a time."""
_LANE = "llvm.nvvm.read.ptx.sreg.laneid"
_SHUFFLE = "llvm.nvvm.shfl.sync.bfly.i32"


def runs_layout(columns: int) -> FragmentLayout:
    """Return the layout of 64 rows and ``columns`` of which a lane has runs of `RUN`."""
    row, column = "l // 32 * 16 + l % 32 // 4 + r // 8 % 2 * 8", f"l % 4 * 8 + r % 8 + r // 16 * {TRADED}"
    return FragmentLayout((row, column), LANES, registers=columns // 2)


class _Lines:
    """Lines of LLVM's text, which name the results of earlier ones by number."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put(self, line: str) -> str:
        """Add a line, and return the name of its result."""
        self.lines.append(line)
        return f"{{{len(self.lines) - 1}}}"

    def word(self, low: str, high: str) -> str:
        """Return a word of two elements of 16 bits."""
        pair = self.put(f"insertelement <2 x i16> poison, i16 {low}, i32 0")
        pair = self.put(f"insertelement <2 x i16> {pair}, i16 {high}, i32 1")
        return self.put(f"bitcast <2 x i16> {pair} to i32")


def _transposed(text: _Lines, words: list[str], bits: list[str]) -> list[str]:
    """Return the word from each lane of the quad whose number among its ``words`` is that of the receiving lane."""
    words = list(words)
    for step, bit in zip((1, 2), bits):
        for n in (n for n in range(QUAD) if not n & step):
            low, high = words[n], words[n + step]
            sent = text.put(f"select i1 {bit}, i32 {low}, i32 {high}")
            got = text.put(f"call i32 @{_SHUFFLE}(i32 -1, i32 {sent}, i32 {step}, i32 31)")
            words[n] = text.put(f"select i1 {bit}, i32 {got}, i32 {low}")
            words[n + step] = text.put(f"select i1 {bit}, i32 {high}, i32 {got}")
    return words


def transposition(dtype: str, columns: int) -> Instruction:
    """Return the row that transposes 64 rows of ``columns`` elements of 16 bits within quads."""
    text = _Lines()
    lane = text.put(f"call i32 @{_LANE}()")
    bits = [text.put(f"trunc i32 {text.put(f'lshr i32 {lane}, {n}')} to i1") for n in range(2)]
    made: list[str] = []
    for block in range(columns // TRADED):
        for half in range(2):
            first = [block * 4 * QUAD + n * 4 + half * 2 for n in range(QUAD)]
            made += _transposed(text, [text.word(f"{{a{n}}}", f"{{a{n + 1}}}") for n in first], bits)
    pairs = [text.put(f"bitcast i32 {word} to <2 x i16>") for word in made]
    for pair in pairs:
        for n in range(2):
            text.put(f"extractelement <2 x i16> {pair}, i32 {n}")
    body = f"  for m in 0 .. {PRODUCT_ROWS}:\n    for l in 0 .. {columns}:\n      c[m, l] = a[m, l]\n"
    shape = (PRODUCT_ROWS, columns)
    operands = (
        Operand("c", dtype, shape, runs_layout(columns), "lane", "fragment"),
        Operand("a", dtype, shape, sums_layout(columns), "lane", "fragment"),
    )
    declare = f"declare i32 @{_LANE}()\ndeclare i32 @{_SHUFFLE}(i32, i32, i32, i32)"
    name = f"transpose_quads_m{PRODUCT_ROWS}n{columns}_{dtype}"
    return Instruction(name, operands, body, "\n".join(text.lines), declare, ("sm_90a",), "SHFL.BFLY")


QUAD_TRANSPOSITIONS = tuple(transposition(t, n) for t in ("bf16", "f16") for n in PRODUCT_COLUMNS if n % TRADED == 0)
"""Transpositions of results of products of warp groups."""

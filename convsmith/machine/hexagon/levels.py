"""Levels of Hexagon, highest first; a version of HVX includes the rows of the versions below it."""

from __future__ import annotations

from convsmith.ir.instruction import ByteLookup, HeadLoad, RegisterFile
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.hexagon.instructions import BYTES, FLOATS, SCALARS
from convsmith.machine.memory import MemoryLevel

TRIPLE = "hexagon-unknown-linux-musl"
_BITS = 1024
_BYTES = _BITS // 8
_VERSIONS = (68, 73)
_LENGTH = "hvx-length128b"
_WORDS = f"<{_BITS // 32} x i32>"
_VALIGN = f"{_WORDS} @llvm.hexagon.V6.valignb.128B"
_HEAD = HeadLoad(
    _BITS, _WORDS,
    (
        f"call ptr @llvm.ptrmask.p0.i32(ptr {{p}}, i32 -{_BYTES})", f"load {_WORDS}, ptr {{0}}, align {_BYTES}",
        f"call ptr @llvm.ptrmask.p0.i32(ptr {{last}}, i32 -{_BYTES})", f"load {_WORDS}, ptr {{2}}, align {_BYTES}",
        "ptrtoint ptr {p} to i32", f"call {_VALIGN}({_WORDS} {{3}}, {_WORDS} {{1}}, i32 {{4}})",
    ),
    ("declare ptr @llvm.ptrmask.p0.i32(ptr, i32)", f"declare {_VALIGN}({_WORDS}, {_WORDS}, i32)"),
)  # fmt: skip
"""Two aligned loads, of the blocks that hold the first and the last byte, which may be the same block; ``valign``
extracts the bytes from the first one on.
"""
_LOOKUP = f"{_WORDS} @llvm.hexagon.V6.vlutvvb"
_PARTS = range(4)
_BYTE_LOOKUP = ByteLookup(
    _BYTES, _WORDS,
    (
        f"call {_LOOKUP}i.128B({_WORDS} {{indices}}, {_WORDS} {{table}}, i32 0)",
        *(
            f"call {_LOOKUP}.oracci.128B({_WORDS} {{{n - 1}}}, {_WORDS} {{indices}}, {_WORDS} {{table}}, i32 {n})"
            for n in _PARTS[1:]
        ),
    ),
    (
        f"declare {_LOOKUP}i.128B({_WORDS}, {_WORDS}, i32)",
        f"declare {_LOOKUP}.oracci.128B({_WORDS}, {_WORDS}, {_WORDS}, i32)",
    ),
    index=lambda byte: byte % 2 * _BYTES // 2 + byte // 2, absent=255,
)  # fmt: skip
"""``vlut32`` picks bytes of one of four parts of a register: the even or the odd bytes of either half. An index counts
all even bytes before all odd ones; an index outside of the part gives zero.

LLVM builds a register whose lanes repeat from its most frequent word, and wrongly splats the lowest byte of that word.
"""
_COSTS = Costs(multiply_add=1.0, broadcast=1.0, latency=2.0)
"""Costs of a core that starts a product of vectors in each packet and loads vectors from the second-level cache."""
_SCALARS = MemoryLevel("L1", 32768, 64, 8, 16, share=2)
_MEBIBYTES = {68: 4, 73: 8}
"""Mebibytes of the memory of a processor that its vector units have beside the caches."""


def _level(version: int, has_floats: bool = False) -> Machine:
    """Return the level of HVX of a ``version``, with numbers of f32 in vectors if it ``has_floats``."""
    floats = ("hvx-ieee-fp",) * has_floats
    needs = (*(f"hvxv{n}" for n in _VERSIONS if n <= version), _LENGTH, *floats)
    features = (f"+hvxv{version}", f"+{_LENGTH}", "-hvx-qfloat", *(f"+{name}" for name in floats))
    return Machine(
        name=f"hexagon+v{version}" + "_fp" * has_floats, triple=TRIPLE, cpu=f"hexagonv{version}",
        features=",".join(features), needs=needs, vectors=RegisterFile("vector", 32, _BITS),
        memories=(_SCALARS, MemoryLevel("L2", 1 << 20, 64, 8, _BYTES, share=4)), costs=_COSTS, attributes=(),
        instructions=(*(FLOATS if has_floats else SCALARS), *BYTES), address_bits=32, head_load=_HEAD,
        byte_lookup=_BYTE_LOOKUP, alignment=_BYTES,
        scratchpad=MemoryLevel("VTCM", _MEBIBYTES[version] << 20, _BYTES, 1, _BYTES, share=1),
    )  # fmt: skip


LEVELS = (_level(73, has_floats=True), *map(_level, reversed(_VERSIONS)))
"""Only the first computes with floating-point numbers in vectors, in the formats of IEEE 754."""

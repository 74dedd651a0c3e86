"""Operands of PTX instructions as functions of a warp: readers, writers and addresses, by type."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from convsmith.diag.record import record
from convsmith.emulate.ptx.memory import LOCAL, PARAM, SHARED
from convsmith.emulate.ptx.parser import (
    Address,
    Argument,
    Group,
    Immediate,
    PtxError,
    PtxInstruction,
    PtxKernel,
    Register,
    Symbol,
)  # fmt: skip
from convsmith.emulate.ptx.warp import LANES, UNSIGNED, UNWRITTEN, Warp

Read = Callable[[Warp], np.ndarray]
Write = Callable[[Warp, np.ndarray, np.ndarray], None]


@record(frozen=True)
class PtxType:
    """A type: numpy's element type, and the elements in a register (2 of ``f16x2``)."""

    dtype: np.dtype
    count: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of a register of the type."""
        return self.dtype.itemsize * self.count


_BF16 = np.dtype(ml_dtypes.bfloat16)
_E4M3, _E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
TYPES: dict[str, PtxType] = {
    **{f"{kind}{8 * n}": PtxType(np.dtype(f"{letter}{n}"))
       for kind, letter in (("s", "i"), ("u", "u"), ("b", "u")) for n in (1, 2, 4, 8)},
    "f16": PtxType(np.dtype(np.float16)), "f16x2": PtxType(np.dtype(np.float16), 2),
    "bf16": PtxType(_BF16), "bf16x2": PtxType(_BF16, 2),
    "e4m3": PtxType(_E4M3), "e4m3x2": PtxType(_E4M3, 2), "e5m2": PtxType(_E5M2), "e5m2x2": PtxType(_E5M2, 2),
    "f32": PtxType(np.dtype(np.float32)), "tf32": PtxType(np.dtype(np.float32)),
    "f32x2": PtxType(np.dtype(np.float32), 2),
    "f64": PtxType(np.dtype(np.float64)), "pred": PtxType(np.dtype(bool)),
    "s16x2": PtxType(np.dtype(np.int16), 2), "u16x2": PtxType(np.dtype(np.uint16), 2),
}  # fmt: skip
"""Types by the last word of an opcode."""


def _results(ins: PtxInstruction) -> Iterator[str]:
    """Yield the registers that an instruction may write."""
    yield ins.beside
    first = ins.arguments[0] if ins.arguments else None
    for x in first.items if isinstance(first, Group) else (first,):
        if isinstance(x, Register):
            yield x.name


class Operands:
    """Makes readers and writers for the operands of one kernel; `places` are the addresses of its variables.

    A register that no instruction writes has any content: LLVM names such registers where only the other half of a word
    is used.
    """

    def __init__(self, kernel: PtxKernel, places: dict[str, tuple[str, int]]) -> None:
        self.kernel, self.places = kernel, places
        self.written = {x for ins in kernel.code for x in _results(ins)}

    def read(self, argument: Argument, type_: PtxType) -> Read:
        """Return a function that gives the values of an operand in all lanes."""
        if isinstance(argument, Register):
            return self._register(argument.name, type_)
        value = self._constant(argument, type_)
        return lambda warp: value

    def _constant(self, argument: Argument, type_: PtxType) -> np.ndarray:
        if isinstance(argument, Symbol) and argument.name in self.places:
            return np.full(LANES, self.places[argument.name][1], np.uint64).astype(type_.dtype)
        if isinstance(argument, Symbol) and argument.name == "WARP_SZ":
            argument = Immediate(LANES)
        if not isinstance(argument, Immediate):
            raise PtxError(f"operand {argument} is not understood")
        if type_.dtype == bool:
            return np.full(LANES, bool(argument.value))
        bits = argument.value
        if argument.float_bits and argument.float_bits != 8 * type_.bytes:
            whole = np.array([bits], UNSIGNED[argument.float_bits // 8]).view(f"f{argument.float_bits // 8}")
            return np.repeat(whole.astype(type_.dtype), LANES * type_.count)
        return np.full(LANES, bits % (1 << 8 * type_.bytes), UNSIGNED[type_.bytes]).view(type_.dtype)

    def _register(self, name: str, type_: PtxType) -> Read:
        special = SPECIAL.get(name)
        if special is not None:
            return lambda warp: special(warp).astype(UNSIGNED[type_.bytes]).view(type_.dtype)
        bits = self.kernel.registers.get(name)
        if bits is None:
            raise PtxError(f"register {name} is not declared")
        if name not in self.written:
            nothing = UNWRITTEN[0 if bits == 1 else bits // 8]
            return lambda warp: nothing if bits == 1 else nothing.astype(UNSIGNED[type_.bytes]).view(type_.dtype)
        if bits == 1:
            return lambda warp: warp.registers[name]
        if bits == 8 * type_.bytes:
            dtype = type_.dtype

            def read(warp: Warp) -> np.ndarray:
                held = warp.registers[name]
                return held if held.dtype is dtype else held.view(dtype)

            return read
        if bits < 8 * type_.bytes:
            raise PtxError(f"register {name} of {bits} bits is read as {8 * type_.bytes}")
        whole, part = UNSIGNED[bits // 8], UNSIGNED[type_.bytes]
        return lambda warp: warp.registers[name].view(whole).astype(part).view(type_.dtype)

    def write(self, argument: Argument, type_: PtxType) -> Write:
        """Return a function that writes values to a register in the lanes of a mask; narrower integers are extended."""
        if not isinstance(argument, Register):
            raise PtxError(f"{argument} is not a register")
        name = argument.name
        if name == "_":
            return lambda warp, value, mask: None
        bits = self.kernel.registers[name]
        if bits == 1:
            return lambda warp, value, mask: warp.set(name, value, mask)
        wide = UNSIGNED[bits // 8]
        if bits == 8 * type_.bytes and type_.count == 1:
            return lambda warp, value, mask: warp.set(name, value, mask)
        if bits == 8 * type_.bytes:
            return lambda warp, value, mask: warp.set(name, value.view(wide), mask)
        if bits < 8 * type_.bytes or type_.count > 1:
            raise PtxError(f"register {name} of {bits} bits is written as {8 * type_.bytes}")
        extended = np.dtype(f"i{bits // 8}") if type_.dtype.kind == "i" else wide
        if type_.dtype.kind not in "iu":
            narrow = UNSIGNED[type_.bytes]
            return lambda warp, value, mask: warp.set(name, value.view(narrow).astype(wide), mask)
        return lambda warp, value, mask: warp.set(name, value.astype(extended).view(wide), mask)

    def items(self, argument: Argument) -> tuple[Argument, ...]:
        """Return the parts of a vector operand; of another operand, itself."""
        return argument.items if isinstance(argument, Group) else (argument,)

    def address(self, argument: Argument, space: str) -> Read:
        """Return a function that gives generic addresses."""
        if not isinstance(argument, Address):
            raise PtxError(f"{argument} is not an address")
        window = {"shared": SHARED, "local": LOCAL, "param": PARAM}.get(space, 0)
        base = argument.base
        if isinstance(base, Symbol):
            if base.name not in self.places:
                raise PtxError(f"no variable {base.name}")
            owner, place = self.places[base.name]
            window = {"shared": SHARED, "local": LOCAL, "param": PARAM}.get(owner, 0)
            fixed = np.full(LANES, window + place + argument.offset, np.int64)
            return lambda warp: fixed
        offset = window + argument.offset
        if isinstance(base, Register) and self.kernel.registers.get(base.name) == 32:
            narrow = self.read(base, TYPES["u32"])
            return lambda warp: narrow(warp).astype(np.int64) + offset
        wide = self.read(base, TYPES["s64"])
        return (lambda warp: wide(warp) + offset) if offset else wide


def _part(values: str, axis: int) -> Callable[[Warp], np.ndarray]:
    def special(warp: Warp) -> np.ndarray:
        shape = getattr(warp.block, values)
        return np.full(LANES, shape[axis], np.int64)

    return special


def _thread(axis: int) -> Callable[[Warp], np.ndarray]:
    def special(warp: Warp) -> np.ndarray:
        x, y, _ = warp.block.threads
        numbers = warp.threads - warp.block.first * LANES
        return np.asarray((numbers % x, numbers // x % y, numbers // (x * y))[axis])

    return special


_AXES = tuple(enumerate("xyz"))
SPECIAL: dict[str, Callable[[Warp], np.ndarray]] = {
    **{f"%tid.{c}": _thread(n) for n, c in _AXES},
    **{f"%ntid.{c}": _part("threads", n) for n, c in _AXES},
    **{f"%ctaid.{c}": _part("position", n) for n, c in _AXES},
    **{f"%nctaid.{c}": _part("grid", n) for n, c in _AXES},
    "%laneid": lambda warp: np.arange(LANES),
    "%warpid": lambda warp: np.full(LANES, warp.number),
    "%cluster_ctarank": lambda warp: np.full(LANES, warp.block.rank),
    "%clock": lambda warp: np.full(LANES, warp.clock.now),
    "%lanemask_lt": lambda warp: (1 << np.arange(LANES)) - 1,
}
"""Special registers as functions of a warp."""

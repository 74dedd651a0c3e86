"""`probe_module`: a module by which an engine shows whether it computes the products of a level of WebAssembly.

An engine that lacks an instruction does not accept the module. Relaxed instructions have several legal results: the
only function, `probe`, has no parameters and returns 1 if products of the largest and least factors have the results
that the level's rows specify, else 0.
"""

from __future__ import annotations

from itertools import product

from convsmith.codegen import llvm_bind
from convsmith.codegen.wasm_module import PAGE_BYTES, ModuleMemory, wasm_module
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.machine.rows import LLVM_TYPES

__all__ = ["probe_module"]

_FACTORS = {"f32": (1,), "f64": (1,), "u8": (0, 255), "s8": (127, -128), "s16": (2**15 - 1, 1 - 2**15)}
"""Factors of products, by type."""
_PLACE = 1024
"""The address in the module's memory from which operands are loaded: engines compile constants in other ways, and V8
11.3 adds relaxed products twice unless their operands are constants.
"""


def probe_module(machine: Machine) -> bytes:
    """Return the module for a level that has products which the level below it lacks."""
    rows = [row for row in machine.instructions if set(row.needs) == set(machine.needs)]
    cases = [(row, a, b) for row in rows for a, b in product(_FACTORS[row.types[0]], _last_factors(row))]
    lines, right = [], "true"
    for n, (row, a, b) in enumerate(cases):
        own, result = _product(row, a, b, f"%p{n}.")
        is_real = row.types[2].startswith("f")
        number = LLVM_TYPES[row.types[2]]
        expected = float(row.terms * a * b) if is_real else row.terms * a * b
        lines += [
            *own, f"%l{n} = extractelement <{row.lanes} x {number}> {result}, i32 0",
            f"%e{n} = {'fcmp oeq' if is_real else 'icmp eq'} {number} %l{n}, {expected}",
            f"%r{n} = and i1 {right}, %e{n}",
        ]  # fmt: skip
        right = f"%r{n}"
    declared = dict.fromkeys(line for row in rows for line in row.declarations)
    text = "\n".join((
        f'target triple = "{machine.triple}"', *declared, "define i32 @probe() {", *lines,
        f"%x = zext i1 {right} to i32", "ret i32 %x", "}", "",
    ))  # fmt: skip
    code = llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features)
    return wasm_module(code, ("probe",), ModuleMemory(0, PAGE_BYTES, 1))


def _last_factors(row: Instruction) -> tuple[int, ...]:
    return (row.limit, -row.limit) if row.limit else _FACTORS[row.types[1]]


def _product(row: Instruction, a: int, b: int, prefix: str) -> tuple[list[str], str]:
    """Return the lines that add products of ``a`` and ``b`` to zeros, and the name of the sums; names begin with
    ``prefix``.
    """
    lines: list[str] = []
    given: dict[str, str] = {}
    for place, x in enumerate(row.operands):
        value = dict(zip("ab", (a, b))).get(x.name, 0)
        number, where = LLVM_TYPES[x.dtype], f"ptr inttoptr (i32 {_PLACE + 64 * place} to ptr)"
        vector = f"<{x.shape[0]} x {number}>"
        splat = f"splat ({number} {float(value) if x.dtype.startswith('f') else value})"
        given[x.name] = f"{prefix}{x.name}"
        lines += [
            f"store volatile {vector} {splat}, {where}, align 4",
            f"{prefix}{x.name} = load volatile {vector}, {where}, align 4",
        ]

    def put(expression: str) -> str:
        lines.append(f"{prefix}{len(lines)} = {expression}")
        return f"{prefix}{len(lines) - 1}"

    (result,) = row.emit(put, {name: (value,) for name, value in given.items()})
    return lines, result

"""A network for several levels of x86-64 in one library, whose function chooses among them at the first call.

The choice reads the instruction `cpuid`, and the registers that the system saves. The last level runs where the CPU
lacks what the others need, so it states what every CPU must have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from convsmith.codegen import llvm_bind
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.exporter.build import linked_code
from convsmith.exporter.entry_points import check_lines, message_lines
from convsmith.machine.base import Machine
from convsmith.network.files.export import (
    ExportedNetwork,
    NetworkInterface,
    interface_of_network,
    members_of,
    write_library,
)
from convsmith.network.program import NetworkProgram
from convsmith.runtime.arrays import Array

__all__ = ["check_levels", "export_levels"]

_FEATURES = {
    "fma": (1, 2, 12), "f16c": (1, 2, 29), "avx2": (7, 1, 5), "avx512f": (7, 1, 16), "avx512dq": (7, 1, 17),
    "avx512bw": (7, 1, 30), "avx512vl": (7, 1, 31), "avx512vnni": (7, 2, 11), "avx512fp16": (7, 3, 23),
    "avxvnni": (71, 0, 4), "avx512bf16": (71, 0, 5), "avxvnniint8": (71, 3, 4),
}  # fmt: skip
"""By feature: the leaf of `cpuid`, where 71 is the second part of leaf 7, the register of eax to edx, and the bit."""
_XSAVE = 1 << 27
"""The bit of leaf 1, ecx: the system saves registers, and `xgetbv` says which."""
_STATES = {"avx512": 0xE6, "": 0x6}
"""Registers that the system must save, by the beginning of features that need them."""
_CPUID = (
    'call {{ i32, i32, i32, i32 }} asm sideeffect "cpuid", "={{ax}},={{bx}},={{cx}},={{dx}},{{ax}},{{cx}}"'
    "(i32 {}, i32 {})"
)
"""The instruction with the number of a leaf and of its part."""


def check_levels(machines: Sequence[Machine]) -> None:
    """Raise UsageError for a level that is given twice; UnsupportedError for levels that `cpuid` does not tell apart,
    and on a machine that has no assembler for it.
    """
    names = [machine.name for machine in machines]
    if len({*names}) < len(names):
        raise UsageError(f"levels {', '.join(names)}; legal is each level once", code="bad-target")
    for machine in machines:
        is_known = all(feature in _FEATURES for feature in machine.needs)
        if not machine.triple.startswith("x86_64") or not is_known or machine.permissions:
            raise UnsupportedError(
                f"{machine.name} among several levels; available are levels of x86-64 that need no permission of the "
                "system", code="target",
            )  # fmt: skip
    if not llvm_bind.takes_instructions(machines[0].triple):
        raise UnsupportedError(
            "several levels are chosen by an instruction, which is assembled on x86-64 only; available is one level",
            code="target",
        )


def export_levels(
    programs: Sequence[NetworkProgram], directory: str | os.PathLike[str], name: str, samples: Mapping[str, Array]
) -> ExportedNetwork:
    """Write one library of the `programs` of a graph, each for another level, the best first, to `directory`.

    Raises what `check_levels` raises, and UsageError for a directory that cannot be written.
    """
    machines = [program.target for program in programs]
    check_levels(machines)
    names = [machine.name for machine in machines]
    own = [interface_of_network(program, f"{name}_{program.target.name}") for program in programs]
    whole = replace(programs[-1], workspace=max(program.workspace for program in programs))
    outer = interface_of_network(whole, name)._replace(is_shared=any(one.is_shared for one in own))
    members = [member for pair in zip(programs, own) for member in members_of(*pair)]
    symbols = (name, outer.interface.check, outer.interface.message)
    text = "\n".join(_choosing_lines(outer, own, programs))
    code = linked_code((text,), symbols, machines[-1], programs[0].name, outside=f"{name}_")
    return write_library(whole, outer, [*members, (name, code.object, symbols)], directory, samples, names)


def _choosing_lines(
    own: NetworkInterface, inner: Sequence[NetworkInterface], programs: Sequence[NetworkProgram]
) -> Iterator[str]:
    """Yield the module of the function that chooses, and calls the function of a level."""
    machine = programs[-1].target
    name, interface, word = own.name, own.interface, f"i{machine.address_bits}"
    yield f'target triple = "{machine.triple}"'
    calls = []
    for one in inner:
        given = [f"ptr %{p.name}" for p in one.interface.parameters]
        given += ["ptr %parallel", "ptr %pool"] if one.is_shared else []
        yield f"declare i32 @{one.name}({', '.join(['ptr'] * len(given))})"
        calls.append(f"call i32 @{one.name}({', '.join(given)})")
    yield f"@{name}_chosen = internal global i32 0"
    yield from check_lines(interface, word)
    yield from message_lines(interface)
    yield from _level_lines(name, [program.needs for program in programs])
    parameters = [f"ptr %{p.name}" for p in interface.parameters]
    parameters += ["ptr %parallel", "ptr %pool"] if own.is_shared else []
    checked = ", ".join(f"ptr %{p.name}, {word} {p.nbytes}" for p in interface.parameters)
    yield from (
        f"define i32 @{name}({', '.join(parameters)}) nounwind {{", f"  %code = call i32 @{interface.check}({checked})",
        "  %wrong = icmp ne i32 %code, 0", "  br i1 %wrong, label %end, label %chosen", "end:", "  ret i32 %code",
        "chosen:", f"  %known = load atomic i32, ptr @{name}_chosen monotonic, align 4",
        "  %new = icmp eq i32 %known, 0",
        "  br i1 %new, label %choose, label %run", "choose:", f"  %found = call i32 @{name}_level()",
        f"  store atomic i32 %found, ptr @{name}_chosen monotonic, align 4", "  br label %run", "run:",
        "  %level = phi i32 [ %known, %chosen ], [ %found, %choose ]",
    )  # fmt: skip
    last = len(calls) - 1
    rows = " ".join(f"i32 {n + 1}, label %level{n}" for n in range(last))
    yield f"  switch i32 %level, label %level{last} [ {rows} ]"
    for n, call in enumerate(calls):
        yield from (f"level{n}:", f"  %code{n} = {call}", f"  ret i32 %code{n}")
    yield "}"


def _level_lines(name: str, levels: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the function that returns the number, from 1, of the first of `levels` whose features the CPU has."""
    last = len(levels)
    yield from (
        f"define internal i32 @{name}_level() nounwind {{", f"  %leaves = {_CPUID.format(0, 0)}",
        "  %most = extractvalue { i32, i32, i32, i32 } %leaves, 0", "  %has = icmp uge i32 %most, 7",
        f"  %leaf1 = {_CPUID.format(1, 0)}", "  %saves = extractvalue { i32, i32, i32, i32 } %leaf1, 2",
        f"  %bit = and i32 %saves, {_XSAVE}", "  %is = icmp ne i32 %bit, 0", "  %both = and i1 %has, %is",
        "  br i1 %both, label %more, label %none", "none:", f"  ret i32 {last}", "more:",
        '  %xcr = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)',
        "  %state = extractvalue { i32, i32 } %xcr, 0", f"  %leaf7 = {_CPUID.format(7, 0)}",
        "  %parts = extractvalue { i32, i32, i32, i32 } %leaf7, 0", "  %second = icmp uge i32 %parts, 1",
        f"  %leaf71 = {_CPUID.format(7, 1)}",
    )  # fmt: skip
    found = str(last)
    for n, needs in reversed([*enumerate(levels[:-1])]):
        masks: dict[tuple[int, int], int] = {}
        for feature in needs:
            leaf, register, bit = _FEATURES[feature]
            masks[leaf, register] = masks.get((leaf, register), 0) | 1 << bit
        states = (bits for start, bits in _STATES.items() if any(x.startswith(start) for x in needs))
        state = max(states, default=0)
        fits = f"%state{n}"
        yield f"  %kept{n} = and i32 %state, {state}"
        yield f"  {fits} = icmp eq i32 %kept{n}, {state}"
        for (leaf, register), mask in masks.items():
            own = f"%l{n}.{leaf}.{register}"
            yield f"  {own}.all = extractvalue {{ i32, i32, i32, i32 }} %leaf{leaf}, {register}"
            yield f"  {own} = select i1 {'%second' if leaf == 71 else 'true'}, i32 {own}.all, i32 0"
            yield f"  {own}.bits = and i32 {own}, {mask}"
            yield f"  {own}.is = icmp eq i32 {own}.bits, {mask}"
            yield f"  {own}.fits = and i1 {fits}, {own}.is"
            fits = f"{own}.fits"
        yield f"  %found{n} = select i1 {fits}, i32 {n + 1}, i32 {found}"
        found = f"%found{n}"
    yield from (f"  ret i32 {found}", "}")

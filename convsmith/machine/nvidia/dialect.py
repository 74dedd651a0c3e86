"""LLVM's text of kernels for PTX: special registers, barriers, and the asynchronous copies that sm_80 has."""

from __future__ import annotations

from convsmith.ir.dialect import Dialect, DialectCall


def _number(register: str) -> DialectCall:
    call = f"i32 @llvm.nvvm.read.ptx.sreg.{register}.{{axis}}()"
    return DialectCall((f"call {call}",), tuple(f"declare {call.format(axis=axis)}" for axis in "xyz"))


def _void(name: str, arguments: str = "", given: str = "") -> DialectCall:
    return DialectCall((), (f"declare void @{name}({arguments})",), effect=f"call void @{name}({given})")


def _copy(nbytes: int) -> DialectCall:
    """Return the asynchronous copy of `nbytes`, which fills with zeros; 16 bytes pass by the first-level cache."""
    name = f"llvm.nvvm.cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global.{nbytes}.s"
    pointers = "ptr addrspace(3) {dst}, ptr addrspace(1) {src}"
    return DialectCall(
        (f"select i1 {{cond}}, i32 {nbytes}, i32 0",),
        (f"declare void @{name}(ptr addrspace(3), ptr addrspace(1), i32)",),
        effect=f"call void @{name}({pointers}, i32 {{0}})",
    )


ALIGNMENT = 16
"""Bytes that divide the address of an array: those of the longest access of a thread."""
_BARRIER = _void("llvm.nvvm.barrier.cta.sync.aligned.all", "i32", "i32 0")


def dialect(copies: bool) -> Dialect:
    """Return the dialect of a level, with or without asynchronous copies.

    Without the least number of groups of a unit, ptxas may spill to make room for more of them. A split barrier stops
    where its second part stands, because the barriers of the hardware count a thread once.
    """
    return Dialect(
        convention="ptx_kernel", spaces=(("global", 1), ("shared", 3)), group_number=_number("ctaid"),
        thread_number=_number("tid"), number_bits=32, barriers=(("whole", _BARRIER), ("wait", _BARRIER)),
        attributes=(("nvvm.reqntid", "{x},{y},{z}"), ("nvvm.minctasm", "1")), atomic_types=("s32", "f32", "f64"),
        copies=tuple((n, _copy(n)) for n in (4, 8, 16)) if copies else (),
        commit=_void("llvm.nvvm.cp.async.commit.group") if copies else None,
        wait=_void("llvm.nvvm.cp.async.wait.group", "i32 immarg", "i32 {pending}") if copies else None,
        alignment=ALIGNMENT, dynamic="@shared",
        join=_void("llvm.nvvm.bar.warp.sync", "i32", "i32 -1"),
    )  # fmt: skip

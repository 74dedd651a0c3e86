"""LLVM's text of kernels for SPIR-V: the functions are OpenCL's, by their mangled names."""

from __future__ import annotations

from convsmith.ir.dialect import Dialect, DialectCall

_ALIGNMENT = 16
"""Bytes that divide the addresses of a kernel's arrays; block messages need it."""
_FENCES = 1 | 2
"""OpenCL's flags of a barrier that orders accesses to local and to global memory."""


def _number(of: str) -> DialectCall:
    name = f"@_Z{len(of)}{of}j"
    declare = f"declare spir_func i64 {name}(i32) nounwind willreturn memory(none)"
    return DialectCall((f"call spir_func i64 {name}(i32 {{n}})",), (declare,))


_BARRIER = DialectCall(
    (), ("declare spir_func void @_Z7barrierj(i32) convergent nounwind",),
    effect=f"call spir_func void @_Z7barrierj(i32 {_FENCES})",
)  # fmt: skip

_JOIN = DialectCall(
    (), ("declare spir_func void @_Z17sub_group_barrierj(i32) convergent nounwind",),
    effect=f"call spir_func void @_Z17sub_group_barrierj(i32 {_FENCES})",
)  # fmt: skip


def dialect(lanes: int = 0) -> Dialect:
    """Return the dialect of kernels whose sub-groups have `lanes`; 0 leaves their size to the device.

    A split barrier waits in its second part until all threads have passed the first part.
    """
    size = (("intel_reqd_sub_group_size", f"!{{{{i32 {lanes}}}}}"),) if lanes else ()
    return Dialect(
        convention="spir_kernel", spaces=(("global", 1), ("shared", 3)), group_number=_number("get_group_id"),
        thread_number=_number("get_local_id"), number_bits=64,
        barriers=(("whole", _BARRIER), ("wait", _BARRIER)),
        metadata=(("reqd_work_group_size", "!{{i32 {x}, i32 {y}, i32 {z}}}"), *size),
        join=_JOIN if lanes else None, alignment=_ALIGNMENT if lanes else 1,
    )  # fmt: skip

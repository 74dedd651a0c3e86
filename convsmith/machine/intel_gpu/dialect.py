"""LLVM's text of kernels for SPIR-V: the functions are OpenCL's, by their mangled names."""

from __future__ import annotations

from convsmith.ir.dialect import Dialect, DialectCall, SplitBarrierCalls

_ALIGNMENT = 16
"""Bytes that divide the addresses of a kernel's arrays; block messages need it."""
_FENCES = 1 | 2
"""OpenCL's flags of a barrier that orders accesses to local and to global memory."""
SPLIT_BARRIERS = "cl_intel_split_work_group_barrier"
"""The extension of OpenCL for barriers in two parts."""


def _number(of: str) -> DialectCall:
    name = f"@_Z{len(of)}{of}j"
    declare = f"declare spir_func i64 {name}(i32) nounwind willreturn memory(none)"
    return DialectCall((f"call spir_func i64 {name}(i32 {{n}})",), (declare,))


def _ordering(name: str) -> DialectCall:
    """Return the call of a function `name` of OpenCL that orders the accesses of threads to memory."""
    function = f"spir_func void @_Z{len(name)}{name}j"
    return DialectCall(
        (), (f"declare {function}(i32) convergent nounwind",), effect=f"call {function}(i32 {_FENCES})"
    )  # fmt: skip


_SPLIT_BARRIER = SplitBarrierCalls(
    _ordering("intel_work_group_barrier_arrive"), _ordering("intel_work_group_barrier_wait"),
    needs=SPLIT_BARRIERS,
)  # fmt: skip
"""The functions of OpControlBarrierArriveINTEL and OpControlBarrierWaitINTEL."""


def dialect(lanes: int = 0) -> Dialect:
    """Return the dialect of kernels whose sub-groups have `lanes`; 0 leaves their size to the device, which may be any
    that takes SPIR-V.
    """
    size = (("intel_reqd_sub_group_size", f"!{{{{i32 {lanes}}}}}"),) if lanes else ()
    return Dialect(
        convention="spir_kernel", spaces=(("global", 1), ("shared", 3)), group_number=_number("get_group_id"),
        thread_number=_number("get_local_id"), number_bits=64,
        barrier=_ordering("barrier"), split_barrier=_SPLIT_BARRIER if lanes else None,
        metadata=(("reqd_work_group_size", "!{{i32 {x}, i32 {y}, i32 {z}}}"), *size),
        join=_ordering("sub_group_barrier") if lanes else None, alignment=_ALIGNMENT if lanes else 1,
    )  # fmt: skip

"""LLVM's text of kernels for PTX: special registers, barriers, and the asynchronous copies that sm_80 has."""

from __future__ import annotations

from convsmith.ir.dialect import ByteFloatCalls, Dialect, DialectCall, PipelineCalls, SplitBarrierCalls


def _number(register: str) -> DialectCall:
    call = f"i32 @llvm.nvvm.read.ptx.sreg.{register}.{{axis}}()"
    return DialectCall((f"call {call}",), tuple(f"declare {call.format(axis=axis)}" for axis in "xyz"))


def _void(name: str, arguments: str = "", given: str = "") -> DialectCall:
    return DialectCall((), (f"declare void @{name}({arguments})",), effect=f"call void @{name}({given})")


def _copy(nbytes: int) -> DialectCall:
    """Return the asynchronous copy of `nbytes`, which fills with zeros; copies of 16 bytes bypass the first-level
    cache.
    """
    name = f"llvm.nvvm.cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global.{nbytes}.s"
    pointers = "ptr addrspace(3) {dst}, ptr addrspace(1) {src}"
    return DialectCall(
        (f"select i1 {{cond}}, i32 {nbytes}, i32 0",),
        (f"declare void @{name}(ptr addrspace(3), ptr addrspace(1), i32)",),
        effect=f"call void @{name}({pointers}, i32 {{0}})",
    )


ALIGNMENT = 16
"""Alignment, in bytes, of an array: the longest access of a thread."""
_BARRIER = _void("llvm.nvvm.barrier.cta.sync.aligned.all", "i32", "i32 0")


def _result(type_: str, name: str, arguments: str, given: str) -> DialectCall:
    return DialectCall((f"call {type_} @{name}({given})",), (f"declare {type_} @{name}({arguments})",))


def _tensor_copy(form: str, rank: int) -> DialectCall:
    """Return the copy through a tensor map of `rank` dims, which is a tile or im2col."""
    name = f"llvm.nvvm.cp.async.bulk.tensor.g2s.{form}.{rank}d"
    offsets = rank - 2 if form == "im2col" else 0
    types = ", ".join(["ptr addrspace(7)", "ptr addrspace(3)", "ptr", *["i32"] * rank, *["i16"] * offsets])
    given = ", ".join([
        "ptr addrspace(7) {0}", "ptr addrspace(3) {full}", "ptr {map}", *(f"i32 {{at{n}}}" for n in range(rank)),
        *(f"i16 {{by{n}}}" for n in range(offsets)), "i16 {mask}", "i64 0", "i1 {shared}", "i1 0", "i32 0",
    ])  # fmt: skip
    return DialectCall(
        ("addrspacecast ptr addrspace(3) {dst} to ptr addrspace(7)",),
        (f"declare void @{name}({types}, i16, i64, i1, i1, i32)",), effect=f"call void @{name}({given})",
    )  # fmt: skip


def _tensor_store(rank: int) -> DialectCall:
    """Return the store of a tile through a tensor map of `rank` dims."""
    name = f"llvm.nvvm.cp.async.bulk.tensor.s2g.tile.{rank}d"
    given = ", ".join(["ptr addrspace(3) {src}", "ptr {map}", *(f"i32 {{at{n}}}" for n in range(rank)), "i64 0, i1 0"])
    types = ", ".join(["ptr addrspace(3)", "ptr", *["i32"] * rank, "i64", "i1"])
    return _void(name, types, given)


_BARRIER_AT = "ptr addrspace(3)"
_GROUP_SCOPE = "scope.cta.space.cta"
_INIT = _void("llvm.nvvm.mbarrier.init.shared", f"{_BARRIER_AT}, i32", f"{_BARRIER_AT} {{at}}, i32 {{count}}")


def _split_barrier(wait: str) -> SplitBarrierCalls:
    """Return the calls of a barrier in shared memory whose threads wait by `wait`. The barrier of the hardware would
    count each thread twice.
    """
    return SplitBarrierCalls(
        _result("i64", "llvm.nvvm.mbarrier.arrive.shared", _BARRIER_AT, f"{_BARRIER_AT} {{at}}"),
        _result("i1", f"llvm.nvvm.mbarrier.{wait}", f"{_BARRIER_AT}, i64", f"{_BARRIER_AT} {{at}}, i64 {{state}}"),
        _INIT,
    )


TESTED_BARRIER = _split_barrier("test.wait.shared")
"""Split barriers of sm_80, whose threads ask again and again whether a phase has ended."""
TRIED_BARRIER = _split_barrier(f"try.wait.{_GROUP_SCOPE}")
"""Split barriers of sm_90, which suspends threads that wait."""
_PRODUCTS = "llvm.nvvm.wgmma"
_MAP, _ARRIVE_AT = "llvm.nvvm.mapa.shared.cluster", "llvm.nvvm.mbarrier.arrive.scope.cta.space.cluster"
PIPELINES = PipelineCalls(
    init=_INIT,
    initialised=_void("llvm.nvvm.fence.mbarrier_init.release.cluster"),
    expect=_result("i64", f"llvm.nvvm.mbarrier.arrive.expect.tx.{_GROUP_SCOPE}", f"{_BARRIER_AT}, i32",
                   f"{_BARRIER_AT} {{at}}, i32 {{bytes}}"),
    arrive=_result("i64", f"llvm.nvvm.mbarrier.arrive.{_GROUP_SCOPE}", f"{_BARRIER_AT}, i32",
                   f"{_BARRIER_AT} {{at}}, i32 1"),
    arrive_at=DialectCall(
        (f"call ptr addrspace(7) @{_MAP}({_BARRIER_AT} {{at}}, i32 {{group}})",),
        (f"declare ptr addrspace(7) @{_MAP}({_BARRIER_AT}, i32)", f"declare void @{_ARRIVE_AT}(ptr addrspace(7), i32)"),
        effect=f"call void @{_ARRIVE_AT}(ptr addrspace(7) {{0}}, i32 1)",
    ),
    meet=DialectCall(
        (), tuple(f"declare void @llvm.nvvm.barrier.cluster.{x}()" for x in ("arrive", "wait")),
        effect="call void @llvm.nvvm.barrier.cluster.arrive()\n  call void @llvm.nvvm.barrier.cluster.wait()",
    ),
    cluster=(("nvvm.cluster_dim", "{x},{y},{z}"),),
    has_ended=_result("i1", f"llvm.nvvm.mbarrier.try.wait.parity.{_GROUP_SCOPE}", f"{_BARRIER_AT}, i32",
                      f"{_BARRIER_AT} {{at}}, i32 {{parity}}"),
    tile=tuple((rank, _tensor_copy("tile", rank)) for rank in range(1, 6)),
    im2col=tuple((rank, _tensor_copy("im2col", rank)) for rank in range(3, 6)),
    store=tuple((rank, _tensor_store(rank)) for rank in range(1, 6)),
    commit_stores=_void("llvm.nvvm.cp.async.bulk.commit.group"),
    wait_stores=_void("llvm.nvvm.cp.async.bulk.wait.group.read", "i32 immarg", "i32 {pending}"),
    before=_void(f"{_PRODUCTS}.fence.sync.aligned"),
    published=_void("llvm.nvvm.fence.proxy.async.shared_cta"),
    together=_void("llvm.nvvm.barrier.cta.sync.aligned.count", "i32, i32", "i32 {number}, i32 {count}"),
    commit=_void(f"{_PRODUCTS}.commit_group.sync.aligned"),
    wait=_void(f"{_PRODUCTS}.wait_group.sync.aligned", "i64 immarg", "i64 {pending}"),
    prefetch=_void("llvm.nvvm.prefetch.tensormap.p0", "ptr", "ptr {map}"),
    take=_void("llvm.nvvm.setmaxnreg.inc.sync.aligned.u32", "i32 immarg", "i32 {count}"),
    leave=_void("llvm.nvvm.setmaxnreg.dec.sync.aligned.u32", "i32 immarg", "i32 {count}"),
    map='ptr byval([128 x i8]) align 64 "nvvm.grid_constant"',
)  # fmt: skip


def _byte_float(name: str) -> ByteFloatCalls:
    """Return the conversions of the 8-bit floats that PTX names `name`."""
    rounds, extends = f"llvm.nvvm.ff.to.{name}x2.rn", f"llvm.nvvm.{name}x2.to.f16x2.rn"
    return ByteFloatCalls(
        f"f8_{name}", _result("i16", rounds, "float, float", "float {high}, float {low}"),
        _result("<2 x half>", extends, "i16", "i16 {pair}"),
    )  # fmt: skip


_ROUND = "llvm.nvvm.f2i.rn"


def _to_bytes(to: str, is_float: bool) -> DialectCall:
    """Return the saturation of two integers of 32 bits to bytes; of two floats, which are rounded first."""
    lines = tuple(f"call i32 @{_ROUND}(float {{{x}}})" for x in ("high", "low")) if is_float else ()
    numbers = "i32 {0}, i32 {1}" if is_float else "i32 {high}, i32 {low}"
    pack = f'call i32 asm "cvt.pack.sat.{to}.s32.b32 $0, $1, $2, $3;", "=r,r,r,r"({numbers}, i32 {{rest}})'
    return DialectCall((*lines, pack), (f"declare i32 @{_ROUND}(float)",) if is_float else ())


def dialect(
    copies: bool, packed: tuple[str, ...] = (), has_byte_floats: bool = False, pipelines: bool = False,
    split_barrier: SplitBarrierCalls | None = None,
) -> Dialect:  # fmt: skip
    """Return the dialect of a level, with or without asynchronous copies, conversions of 8-bit floats, pipelines of
    copies through tensor maps, and barriers in two parts; numbers of the types ``packed`` become bytes by an
    instruction.

    Without a minimum number of groups per unit, ptxas may spill to make room for more groups.
    """
    return Dialect(
        convention="ptx_kernel", spaces=(("global", 1), ("shared", 3)), group_number=_number("ctaid"),
        thread_number=_number("tid"), number_bits=32, barrier=_BARRIER, split_barrier=split_barrier,
        attributes=(("nvvm.reqntid", "{x},{y},{z}"), ("nvvm.minctasm", "1")), atomic_types=("s32", "f32", "f64"),
        copies=tuple((n, _copy(n)) for n in (4, 8, 16)) if copies else (),
        commit=_void("llvm.nvvm.cp.async.commit.group") if copies else None,
        wait=_void("llvm.nvvm.cp.async.wait.group", "i32 immarg", "i32 {pending}") if copies else None,
        alignment=ALIGNMENT, dynamic="@shared", pipelines=PIPELINES if pipelines else None,
        join=_void("llvm.nvvm.bar.warp.sync", "i32", "i32 -1"), rounds_bfloat=copies, packs_halves=True,
        keeps_loops=True,
        byte_floats=tuple(map(_byte_float, ("e4m3", "e5m2"))) if has_byte_floats else (),
        saturates=tuple((of, to, _to_bytes(to, of == "f32")) for of in packed for to in ("s8", "u8")),
        reciprocal=_result("float", "llvm.nvvm.rcp.approx.ftz.f", "float", "float {x}"),
        wide_reciprocal=_result("double", "llvm.nvvm.rcp.approx.ftz.d", "double", "double {x}"),
        rounds_word=_result("i32", _ROUND, "float", "float {x}"),
    )  # fmt: skip

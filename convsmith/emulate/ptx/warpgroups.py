"""Products of warp groups (wgmma): operands in shared memory by descriptors; a wait for products executes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from convsmith.emulate.ptx.matrices import fragment_reader, sums_of_rows
from convsmith.emulate.ptx.memory import SHARED_START
from convsmith.emulate.ptx.operands import TYPES, Operands, PtxType
from convsmith.emulate.ptx.parser import Group, Immediate, PtxError, PtxInstruction, Register
from convsmith.emulate.ptx.register_shares import held
from convsmith.emulate.ptx.tensor_copies import swizzled
from convsmith.emulate.ptx.warp import LANES, Accumulators, Execute, InFlight, Warp


class _WarpgroupProduct(NamedTuple):
    """A product under way: the sums that it adds to, its factors, and the bytes of shared memory that hold them."""

    sums: Accumulators
    left: np.ndarray | None
    places: tuple[np.ndarray | None, np.ndarray]
    types: tuple[PtxType, PtxType]
    adds: bool
    truncates: bool


def described(descriptor: int, rows: np.ndarray, terms: int, size: int, is_transposed: bool) -> np.ndarray:
    """Return the addresses of shared memory of the elements (row, term) of an operand, after its swizzle."""
    start, lead, stride = (descriptor >> shift & 0x3FFF for shift in (0, 16, 32))
    width = (0, 128, 64, 32)[descriptor >> 62 & 3]
    k, r = np.arange(terms)[None], rows[:, None]
    start, lead, stride = start << 4, lead << 4, stride << 4
    if not width and not is_transposed:
        place = start + r // 8 * stride + k * size // 16 * lead + r % 8 * 16 + k * size % 16
    elif not is_transposed:
        place = start + r // 8 * stride + r % 8 * width + k * size
    elif width:
        across = width // size
        place = start + r // across * lead + r % across * size + k // 8 * stride + k % 8 * width
    else:
        raise PtxError("the interpreter has no transposed operands without a swizzle")
    return swizzled(place, width)


def _places(warp: Warp, addresses: np.ndarray, size: int) -> np.ndarray:
    """Return the bytes of elements at addresses, a row for each element."""
    places = (addresses.ravel() - SHARED_START)[:, None] + np.arange(size)
    if places.min() < 0 or places.max() >= warp.block.shared.size:
        raise PtxError("a descriptor leaves shared memory")
    return places


def _read(warp: Warp, places: np.ndarray) -> None:
    threads = warp.threads[np.arange(len(places)) % LANES]
    warp.block.shared.require_fenced(places)
    warp.block.shared.note_read(places, threads, warp.clock, warp.block.number)


def _multiply(ins: PtxInstruction, made: Operands) -> Execute:
    shape = next(w for w in ins.words if w[0] == "m" and w[1:2].isdigit())
    _, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    d, a, b = (TYPES[w] for w in ins.words if w in TYPES)
    truncates = "tf32" in ins.words
    to, left, right, adds, *flags = ins.arguments
    assert isinstance(to, Group)
    names = [x.name for x in to.items if isinstance(x, Register)]
    if d.dtype == np.float16:
        raise PtxError("the interpreter has no sums in f16")
    in_registers = isinstance(left, Group)
    read_left = fragment_reader(made, left, a) if in_registers else made.read(left, TYPES["u64"])
    read_right, adding = made.read(right, TYPES["u64"]), made.read(adds, TYPES["pred"])
    numbers = [x.value for x in flags if isinstance(x, Immediate)]
    if any(x != 1 for x in numbers[:2]):
        raise PtxError("the interpreter has no negated factors")
    turned = numbers[2:]
    turn_left = bool(turned[0]) if turned and not in_registers else False
    turn_right = bool(turned[-1]) if turned else False

    def multiply(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "wgmma.mma_async")
        if len(names) >= held(warp):
            raise PtxError(f"a product has {len(names)} sums in each lane, which has {held(warp)} registers")
        sums = _sums(warp, names, d)
        right_places = _places(warp, described(int(read_right(warp)[0]), np.arange(n), k, b.bytes, turn_right), b.bytes)
        left_places, values = None, None
        if in_registers:
            values = read_left(warp)
        else:
            rows = np.arange(16) + warp.number % 4 * 16
            left_places = _places(warp, described(int(read_left(warp)[0]), rows, k, a.bytes, turn_left), a.bytes)
        product = _WarpgroupProduct(sums, values, (left_places, right_places), (a, b), bool(adding(warp)[0]), truncates)
        for places in product.places:
            if places is not None:
                _read(warp, places)
                warp.block.shared.begin_pending(places, False)
        sums.pending += 1
        for number, name in enumerate(names):
            warp.registers[name] = InFlight(sums, number)  # type: ignore[assignment]
        warp.state.setdefault("open products", []).append(product)

    return multiply


def _sums(warp: Warp, names: list[str], type_: PtxType) -> Accumulators:
    """Return the sums in registers, which products under way may still add to."""
    held = [warp.registers[name] for name in names]
    first = held[0]
    if isinstance(first, InFlight) and first.sums.pending:
        if [(x.sums, x.number) if isinstance(x, InFlight) else None for x in held] != [
            (first.sums, n) for n in range(len(held))
        ]:
            raise PtxError("the registers of a product belong to other products under way")
        return first.sums
    return Accumulators(np.stack([x.view(type_.dtype) for x in held], 1))


TF32 = np.uint32(0xFFFFE000)
"""The bits of a number of 32 bits that a product of tf32 reads."""


def _numbers(product: _WarpgroupProduct, held: np.ndarray, of: PtxType) -> np.ndarray:
    """Return the numbers of a factor whose bytes shared memory has ``held``."""
    return (held.view(np.uint32) & TF32).view(of.dtype) if product.truncates else held.view(of.dtype)


def _finish(warp: Warp, product: _WarpgroupProduct) -> None:
    shared, (a, b) = warp.block.shared, product.types
    left = product.left
    for places in product.places:
        if places is not None:
            shared.end_pending(places, False)
            _read(warp, places)
    left_places, right_places = product.places
    sums = product.sums
    wide = np.int64 if sums.values.dtype.kind == "i" else np.float64
    columns = sums.values.shape[1] * LANES // 16
    if left is None:
        assert left_places is not None
        rows = _numbers(product, shared.data[left_places], a).reshape(16, -1).astype(wide)
    else:
        rows = np.zeros((16, left.size // 16), wide)
        rows[sums_of_rows(np.arange(left.shape[1]))] = left.astype(wide)
    right = _numbers(product, shared.data[right_places], b).reshape(columns, -1).astype(wide)
    at = sums_of_rows(np.arange(sums.values.shape[1]))
    total = (rows @ right.T)[at] + (sums.values.astype(wide) if product.adds else 0)
    sums.values = total.astype(sums.values.dtype)
    sums.pending -= 1


def _commit(ins: PtxInstruction, made: Operands) -> Execute:
    def commit(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "wgmma.commit_group")
        warp.state.setdefault("products", []).append(warp.state.pop("open products", []))

    return commit


def _wait(ins: PtxInstruction, made: Operands) -> Execute:
    pending = made.read(ins.arguments[0], TYPES["u32"])

    def wait(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "wgmma.wait_group")
        groups = warp.state.setdefault("products", [])
        while len(groups) > int(pending(warp)[0]):
            for product in groups.pop(0):
                _finish(warp, product)
        warp.clock.join_lanes()

    return wait


def _fence(ins: PtxInstruction, made: Operands) -> Execute:
    return lambda warp, mask: warp.require_all(mask, "wgmma.fence")


KINDS: dict[str, Callable[[PtxInstruction, Operands], Execute]] = {
    "mma_async": _multiply, "commit_group": _commit, "wait_group": _wait, "fence": _fence,
}  # fmt: skip
"""Forms of ``wgmma`` by its second word."""


def wgmma_instruction(ins: PtxInstruction, made: Operands) -> Execute:
    """Return the function of a ``wgmma``."""
    return KINDS[ins.words[1]](ins, made)

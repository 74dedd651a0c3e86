"""`PreparedCall`: every way to call a kernel writes addresses into blocks that belong to one call at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from convsmith.codegen.artifact import Argument, Entry
from convsmith.diag.errors import InternalError
from convsmith.runtime.arrays import ALIGNMENT
from convsmith.runtime.host_block import HostBlock, HostMemory
from convsmith.runtime.prepared_call import LoadedEntry, PreparedCall, places_of


def argument(name: str, role: str, size: int = 4) -> Argument:
    return Argument(name, role, "f32", (size,), "a", size, of="wei" if role == "packed" else "")  # type: ignore[arg-type]


SRC, DST, MID = argument("src", "in"), argument("dst", "out"), argument("mid", "shared")
PARTS = [argument(f"wei_{n}", "packed", 5) for n in range(2)]
ENTRY = Entry("f", (PARTS[1], SRC, MID, PARTS[0], DST))
OFFSETS, _ = places_of(PARTS)


@dataclass
class Function:
    """An entry in Python: `work` gets the words of its block, and what the call keeps if workers may outlive it."""

    entry: Entry
    work: Callable[[Any, object], object]
    waits: bool = False

    @property
    def whole(self) -> Callable[[int], None] | None:
        return None if self.waits else self

    def __call__(self, block: int, keep: object = None) -> None:
        self.work((ctypes.c_uint64 * len(self.entry.arguments)).from_address(block), keep)


def prepared(*functions: Function, fresh: bool = False) -> PreparedCall:
    entries = [LoadedEntry(function, function.entry, {}) for function in functions]
    return PreparedCall(entries, [{"src": 0}, {"dst": 0}, OFFSETS], [MID], fresh=fresh)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_words_are_addresses_with_the_offsets_of_parts(fresh: bool, waits: bool) -> None:
    seen: list[list[int]] = []
    call = prepared(Function(ENTRY, lambda words, _: seen.append([*words]), waits), fresh=fresh)
    for start in (1000, 5000):
        call.run((start, start + 1, start + 2), None)
    for start, (second, src, mid, first, dst) in zip((1000, 5000), seen):
        assert (src, dst, first, second) == (start, start + 1, start + 2, start + 2 + OFFSETS["wei_1"])
        assert mid and mid % ALIGNMENT == 0
    assert OFFSETS == {"wei_0": 0, "wei_1": ALIGNMENT}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_call_within_a_call_has_words_and_memory_of_its_own(fresh: bool) -> None:
    seen: list[list[int]] = []

    def work(words: Any, _: object) -> None:
        before = [*words]
        seen.append(before)
        if len(seen) % 2:
            call.run((21, 22, 23), None)
            assert [*words] == before

    call = prepared(Function(ENTRY, work), fresh=fresh)
    for _ in range(2):
        call.run((11, 12, 13), None)
    outer, inner = seen[2:]
    assert (outer[1], inner[1]) == (11, 21) and outer[2] != inner[2]


@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupted_call_drops_its_frame(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may still read its block, and write to the memory that it keeps: the next call has another block."""
    made: list[HostBlock] = []
    kept: list[Any] = []
    block = LoadedEntry.block

    def counted(entry: LoadedEntry, memory: HostMemory) -> HostBlock:
        made.append(block(entry, memory))
        return made[-1]

    def work(words: Any, keep: object) -> None:
        kept.append((ctypes.addressof(words), keep))
        if len(kept) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(LoadedEntry, "block", counted)
    call, memory = prepared(Function(ENTRY, work, waits)), object()
    with pytest.raises(KeyboardInterrupt):
        call.run((1, 2, 3), memory)
    assert not waits or memory in kept[0][1]
    for _ in range(2):
        call.run((1, 2, 3), None)
    first, second = made
    assert [address for address, _ in kept] == [first.address, second.address, second.address]


def test_an_argument_without_memory_is_a_fault() -> None:
    entry = LoadedEntry(Function(ENTRY, print), ENTRY, {})
    with pytest.raises(InternalError, match="gives nothing for dst"):
        PreparedCall([entry], [{"src": 0}, OFFSETS], [MID])


def test_a_bound_call_runs_every_entry_on_the_same_words() -> None:
    seen: list[list[int]] = []
    first, second = (Function(e, lambda words, _: seen.append([*words])) for e in (Entry("g", (SRC, MID)), ENTRY))
    call = prepared(first, second).bind((1, 2, 3), None)
    call()
    call()
    assert seen[0] == seen[2] == seen[1][1:3] and seen[1] == seen[3]

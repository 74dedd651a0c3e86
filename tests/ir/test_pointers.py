"""Tables of pointers in the IR: text, equality, the verifier, and how strictly the interpreter follows them."""

from __future__ import annotations

import numpy as np
import pytest
from natives import run_native

from convsmith.diag.errors import InternalError
from convsmith.interp import InterpError, run
from convsmith.ir.equal import structural_equal
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stages import FLAT, NAIVE
from convsmith.ir.verify import verify
from convsmith.layout.block import ABSENT
from convsmith.machine.registry import host_targets

TEXT = """\
kernel k(src: f32[12], table: ptr[4], zero: f32[6], dst: f32[16])
  for i in 0 .. 4:
    at table[i] + i * 2 in src or zero[2] as pixel: f32[4]:
      for j in 0 .. 4:
        dst[i * 4 + j] = pixel[j]
"""


def arrays(*entries: int) -> dict[str, np.ndarray]:
    table = np.array(entries, np.int64)
    return {
        "src": np.arange(12, dtype=np.float32), "table": table, "zero": np.full(6, -1, np.float32),
        "dst": np.zeros(16, np.float32),
    }  # fmt: skip


def followed(text: str, *entries: int) -> list[float]:
    kernel = parse_kernel(text)
    verify(kernel)
    memory = arrays(*entries)
    run(kernel, memory)
    return memory["dst"].tolist()


def test_text_reads_back() -> None:
    kernel = parse_kernel(TEXT)
    assert str(kernel) == TEXT
    verify(kernel, FLAT)
    assert structural_equal(kernel, parse_kernel(TEXT.replace("pixel", "other").replace("table", "t")))
    for old, new in (("+ i * 2 in", "+ i in"), ("zero[2]", "zero[1]"), ("in src or zero", "in zero or zero")):
        assert not structural_equal(kernel, parse_kernel(TEXT.replace(old, new)))


def test_the_interpreter_follows_entries_and_adds_nothing_to_zeros() -> None:
    found = followed(TEXT, 0, ABSENT, 4, -4)
    assert found == [0, 1, 2, 3, -1, -1, -1, -1, 8, 9, 10, 11, 2, 3, 4, 5]


@pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.name)
def test_machine_code_follows_addresses(target) -> None:  # type: ignore[no-untyped-def]
    kernel, memory = parse_kernel(TEXT), arrays(0, ABSENT, 4, -4)
    base, zero = memory["src"].ctypes.data, memory["zero"].ctypes.data + 8
    entries = memory["table"]
    memory["table"] = np.where(entries == ABSENT, zero, base + 4 * entries)
    run_native(kernel, memory, target)
    assert memory["dst"].tolist() == followed(TEXT, 0, ABSENT, 4, -4)


@pytest.mark.parametrize(
    "old, new, entries, message",
    [
        ("", "", (0, 7, 0, 0), "touches element 12 of the 12 elements of src"),
        ("", "", (-1, 0, 0, 0), "touches element -1 of the 12 elements of src"),
        ("zero[2]", "zero[3]", (ABSENT, 0, 0, 0), "touches element 6 of the 6 elements of zero"),
        ("pixel: f32[4]", "pixel: f32[3]", (0, 0, 0, 0), "outside of the shape"),
        ("table[i]", "table[i + 1]", (0, 0, 0, 0), "outside of the shape"),
    ],
)
def test_pointers_reach_only_what_they_point_to(old: str, new: str, entries: tuple[int, ...], message: str) -> None:
    with pytest.raises(InterpError, match=message):
        followed(TEXT.replace(old, new), *entries)


def test_entries_of_private_tables_must_be_written() -> None:
    text = TEXT.replace(", table: ptr[4]", "").replace("  for i in", "  alloc table: ptr[4] @cache:\n    for i in")
    head, *lines = text.splitlines()
    with pytest.raises(InterpError, match="read before it is written"):
        memory = arrays(0, 0, 0, 0)
        run(parse_kernel("\n".join([head, *lines[:2], *("  " + x for x in lines[2:])]) + "\n"), memory)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("table: ptr[4]", "table: s32[4]", "table holds s32, no pointers"),
        ("zero: f32[6]", "zero: s32[6]", "pixel is f32, src f32 and zero s32"),
        ("        dst[i * 4 + j] = pixel[j]", "        pixel[j] = src[j]", "which a table points to, is written"),
        ("f32[4]:\n", "f32[4] @cache:\n", "pixel is cache"),
        ("+ i * 2 in", "+ n in", "variable n is not bound"),
        ("pixel[j]\n", "table[j]\n", "a pointer is no value"),
    ],
)
def test_what_the_verifier_refuses(old: str, new: str, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(parse_kernel(TEXT.replace(old, new)))


ROWS = TEXT.replace("ptr[4]", "s32[4]").replace("table[i] + i * 2", "table[i] of 3 by 3 + i")


def rows(*numbers: int) -> dict[str, np.ndarray]:
    return {**arrays(), "table": np.array(numbers, np.int32)}


def test_rows_by_number_read_back() -> None:
    kernel = parse_kernel(ROWS)
    assert str(kernel) == ROWS
    for stage in (NAIVE, FLAT):
        verify(kernel, stage)
    for old, new in (("of 3", "of 2"), ("by 3", "by 2"), ("by 3 + i", "by 3 + 0")):
        assert not structural_equal(kernel, parse_kernel(ROWS.replace(old, new)))


NUMBERS = (0, 2, -1, -4)
"""The first row, the last twice, and a row before the first."""


def test_the_interpreter_reads_rows_by_number_from_either_end() -> None:
    kernel, memory = parse_kernel(ROWS), rows(*NUMBERS)
    run(kernel, memory)
    assert memory["dst"].tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 8, 9, 10, 11, -1, -1, -1, -1]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.name)
def test_machine_code_reads_rows_by_number(target, bits: int) -> None:  # type: ignore[no-untyped-def]
    kernel = parse_kernel(ROWS.replace(")\n", f") #i{bits}\n", 1))
    for numbers in (NUMBERS, (3, -3, 2**31 - 1, -(2**31))):
        memory, expected = rows(*numbers), rows(*numbers)
        run(kernel, expected)
        run_native(kernel, memory, target)
        assert memory["dst"].tolist() == expected["dst"].tolist()


def test_rows_are_numbered_by_whole_numbers_within_the_array() -> None:
    with pytest.raises(InternalError, match="table holds ptr; the numbers of rows are s32"):
        verify(parse_kernel(ROWS.replace("s32[4]", "ptr[4]")))
    with pytest.raises(InterpError, match="touches element 12 of the 12 elements of src"):
        run(parse_kernel(ROWS.replace("by 3", "by 4")), rows(2, 0, 0, 2))


def test_a_naive_nest_has_no_tables() -> None:
    with pytest.raises(InternalError, match="a statement PointerLoad is not allowed"):
        verify(parse_kernel(TEXT), NAIVE)

"""The words of an entry: which a call gives, which the binder adds, and when it writes tables and zeros anew."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from convsmith.codegen.artifact import Argument, Entry, Launch, host_launch, size_argument
from convsmith.codegen.binder import AddressMemory, Binder, absent_pixel
from convsmith.diag.errors import UsageError
from convsmith.layout.indirection import Axis, Window, recipe, table

WINDOW = Window((Axis(3, 3, 3, p=1),), (1,))


class Ledger(AddressMemory):
    """Memory at addresses 1000, 2000, ... that keeps what is written."""

    def __init__(self) -> None:
        self.reserved: list[tuple[str, int]] = []
        self.held: dict[int, np.ndarray] = {}
        self.writes = 0

    def reserve(self, argument: Argument, elements: int) -> int:
        self.reserved.append((argument.name, elements))
        return 1000 * len(self.reserved)

    def read(self, place: int, nbytes: int) -> bytes:
        return self.held[place].tobytes()[:nbytes]

    def write(self, place: int, contents: np.ndarray) -> None:
        self.held[place] = contents
        self.writes += 1


def tensor(name: str, role: str, **more: object) -> Argument:
    return Argument(name, role, "s8", (3,), "a", 3, **more)  # type: ignore[arg-type]


SRC, DST = tensor("src", "in"), tensor("dst", "out")
POINTS = Argument("zero_points_src", "in", "s32", (1,), "a", 1)
ZERO = Argument("src_0", "zero", "s8", (1,), "a", 1, of="src", recipe="zero_points_src")
TABLE = Argument("src_row", "table", "ptr", (9,), "a", 9, of="src", recipe=recipe(WINDOW, "row"))
PACKED = tensor("wei_p", "packed", of="wei")
SCRATCH, SHARED = tensor("scratch", "scratch"), tensor("sums", "shared")


def test_words_are_in_the_order_of_the_arguments() -> None:
    memory = Ledger()
    entry = Entry("k", (SRC, PACKED, DST, SCRATCH, size_argument("iw"), size_argument("ow")), host_launch(4))
    binder = Binder(memory, {"src": 7, "dst": 8, "iw": 5, "ow": -6, "other": 9})
    assert binder.bind(entry).words == [7, 1000, 8, 2000, 5, -6]
    assert memory.reserved == [("wei_p", 3), ("scratch", 12)], "packed once, scratch for each thread"


def test_later_entries_find_the_memory_of_the_first() -> None:
    memory = Ledger()
    binder = Binder(memory, {"src": 7, "wei": 6, "dst": 8})
    pack = binder.bind(Entry("p", (tensor("wei", "in"), PACKED)))
    sums = binder.bind(Entry("s", (SRC, SHARED, SCRATCH)))
    main = binder.bind(Entry("k", (SRC, PACKED, SHARED, DST, SCRATCH)))
    assert (pack.words, sums.words, main.words) == ([6, 1000], [7, 2000, 3000], [7, 1000, 2000, 8, 4000])


def test_what_nobody_gives_is_named() -> None:
    with pytest.raises(UsageError, match="entry k: nothing is given for dst, iw; given are src") as caught:
        Binder(Ledger(), {"src": 7}).bind(Entry("k", (SRC, DST, size_argument("iw"))))
    assert caught.value.code == "missing"


def test_values_of_sizes_may_stand_in_the_entry() -> None:
    known = dataclasses.replace(size_argument("iw"), value=12)
    assert Binder(Ledger(), {"src": 7}).bind(Entry("k", (SRC, known))).words == [7, 12]
    assert Binder(Ledger(), {"src": 7, "iw": 3}).bind(Entry("k", (SRC, known))).words == [7, 3]


def test_tables_follow_their_tensor() -> None:
    memory = Ledger()
    memory.held[50] = np.int32([0])
    bound = Binder(memory, {"src": 5000, "zero_points_src": 50}).bind(Entry("k", (TABLE, SRC, ZERO, POINTS)))
    at, away = bound.words[0], bound.words[2]
    writes = memory.writes
    for base in (5000, 5000, 300, 300, 5000):
        bound.give({"src": base})
        bound.follow()
        assert memory.held[at].ravel().tolist() == [
            away, base, base + 1, base, base + 1, base + 2, base + 1, base + 2, away
        ]  # fmt: skip
        assert (memory.held[at] == table(WINDOW, "row").pointers(base, away, 1)).all()
    assert memory.writes == writes + 2, "a table is written when the tensor has moved, only"


def test_absent_pixels_follow_the_zero_points() -> None:
    memory = Ledger()
    memory.held[50], memory.held[60] = np.int32([-3]), np.int32([200])
    bound = Binder(memory, {"src": 5000, "zero_points_src": 50}).bind(Entry("k", (SRC, ZERO, POINTS)))
    place = bound.words[1]
    assert memory.held[place].tolist() == [-3]
    memory.held[50] = np.int32([4])
    bound.follow()
    assert memory.held[place].tolist() == [4]
    bound.give({"zero_points_src": 60})
    with pytest.raises(UsageError, match="zero_points_src is 200"):
        bound.follow()


def test_absent_pixels_without_zero_points_are_zero() -> None:
    memory = Ledger()
    bound = Binder(memory, {"src": 5000}).bind(Entry("k", (SRC, dataclasses.replace(ZERO, recipe=""))))
    assert memory.held[bound.words[1]].tolist() == [0]


def test_zero_points_of_absent_pixels() -> None:
    argument = Argument("src_0", "zero", "s8", (4,), "a:2:1_a:2:3", 5, of="src", recipe="zero_points_src")
    assert absent_pixel(argument, "zero_points_src", np.int32([-7])).tolist() == [-7] * 5
    assert absent_pixel(argument, "zero_points_src", np.int32([1, 2, 3, 4])).tolist() == [1, 3, 0, 2, 4]
    for points, text in (([128], "zero_points_src is 128"), ([0, -129, 0, 0], "zero_points_src[1] is -129")):
        with pytest.raises(UsageError, match=re.escape(text)) as error:
            absent_pixel(argument, "zero_points_src", np.int32(points))
        assert error.value.code == "value"


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Launch("fork"), "launch: kind 'fork' is not one of call, tasks, grid"),  # type: ignore[arg-type]
        (lambda: Launch("call", 2), "launch: kind call with 2 threads of the runtime ''"),
        (lambda: Launch("call", 1, "gomp"), "launch: kind call with 1 threads of the runtime 'gomp'"),
        (lambda: Launch("tasks", 2), "launch: kind tasks with 2 threads of the runtime ''"),
        (lambda: Launch("grid", grid=(1, 1, 1), group=(1, 1, 1)), "launch: kind grid with 1 threads of the runtime ''"),
        (lambda: Launch("grid", 1, "device", (4, 1), (1, 1, 1)), "launch: kind grid of (4, 1) groups of (1, 1, 1)"),
        (lambda: Launch("grid", 1, "device", (4, 0, 1), (1, 1, 1)), "launch: kind grid of (4, 0, 1) groups of (1, 1"),
        (lambda: Launch("tasks", 2, "gomp", (4, 1, 1), (1, 1, 1)), "a grid has extents of at least 1 along x, y, z"),
        (lambda: host_launch(0), "launch: 0 threads; expected 1 to 1024"),
        (lambda: Entry("k", (size_argument("iw"), SRC)), "entry k: an argument in memory follows a size"),
        (lambda: dataclasses.replace(SRC, memory="tape"), "argument src: memory 'tape' is not one of host, device"),
        (lambda: dataclasses.replace(SRC, value=3), "argument src: value 3 with role in; only a size has one"),
        (lambda: dataclasses.replace(SRC, role="size"), "argument src: type 's8' is not one of s64"),
    ],
)
def test_launch_data_that_is_not_legal(make: object, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        make()  # type: ignore[operator]

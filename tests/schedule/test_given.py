"""Schedules that users write as functions: right whatever they do, or refused where they do it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.compiler import service
from convsmith.compiler.driver import lower
from convsmith.compiler.instruments import Interpret, Verify
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.depthwise import depthwise
from convsmith.schedule.library.product import product

ScheduleFunction = Callable[[KernelSchedule], object]
ONE_BY_ONE = "mb1ic5ih4oc20oh4kh1ph0"
PADDED = "mb1ic3ih5oc6oh5kh3ph1"


def nothing(s: KernelSchedule) -> None:
    """Leave the naive nest as it is."""


def made(
    problem: str, schedule: ScheduleFunction, target: str = "avx2", bias: bool = False, threads: int = 1
) -> cs.CompiledKernel:
    """Return the kernel of a line in channels last that a function schedules."""
    return cs.compile(
        problem, schedule=schedule, target=target, threads=threads, src_tag="axb", dst_tag="axb", bias=bias
    )


def refusal(schedule: ScheduleFunction, problem: str = PADDED) -> str:
    """Return the message with which a primitive of a schedule is refused."""
    with pytest.raises(cs.ConfigError) as error:
        made(problem, schedule)
    return str(error.value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (nothing, PADDED), (nothing, "--dir=BWD_D mb1ic4ih6oc5oh3kh3sh2ph1"), (product, ONE_BY_ONE),
        (product, "mb2ic3ih9oc17oh4kh3sh2ph0"),
        (partial(product, pixels=4, vectors=1), "--dt=u8:s8:u8 mb1ic7ih5oc9kh1"),
        (partial(product, pixels=3), "--attr-post-ops=relu mb3ic4ih3oc40oh3kh1ph0"),
        (depthwise, "g20mb2ic20ih7oc20oh4kh3sh2ph1"), (depthwise, "--dt=u8:s8:s32 g9mb1ic9ih6oc9oh6kh3ph1"),
        (partial(depthwise, vectors=1, table="compressed"), "g33mb1ic33ih5oc33oh5kh5ph2"),
    ],
)  # fmt: skip
def test_schedules_of_the_library_are_exact(schedule: ScheduleFunction, problem: str) -> None:
    bias = "s32" not in problem and "BWD" not in problem
    for target in ("avx2", "generic"):
        assert made(problem, schedule, target, bias, threads=2).verify().ok


def test_kernels_of_devices_are_scheduled_alike() -> None:
    def grid(s: KernelSchedule) -> None:
        images, rows = s.loop("mb"), s.loop("oh")
        tiles, threads = s.tile(s.loop("oc"), 4)
        s.reorder(images, tiles, rows, threads)
        s.bind("grid", images, tiles, rows)
        s.bind("group", threads)

    kernel = made(ONE_BY_ONE, grid, "sm_80")
    assert kernel.artifact is not None
    launch = kernel.artifact.entries["main"].launch
    assert (launch.grid, launch.group) == ((4, 5, 1), (4, 1, 1)) and kernel.verify().ok


def test_threads_share_what_a_schedule_says() -> None:
    entries = [made(ONE_BY_ONE, f, threads=3).artifact.entries for f in (nothing, product)]  # type: ignore[union-attr]
    assert [x["main"].launch.threads for x in entries] == [1, 3]


def test_weights_beyond_the_limits_go_to_another_kernel() -> None:
    kernel = made("g8mb1ic8ih4oc8oh4kh3ph1", depthwise)
    weights = np.full((8, 1, 1, 3, 3), np.inf, np.float32)  # whose product with a zero is no number
    assert (kernel(np.ones((1, 8, 4, 4), np.float32), weights) == np.inf).all()


def in_turn(*schedules: ScheduleFunction) -> ScheduleFunction:
    """Return a schedule that does what all ``schedules`` do."""
    return lambda s: [each(s) for each in schedules]


REFUSED: dict[str, tuple[ScheduleFunction, str]] = {
    "a tile of nothing": (lambda s: s.tile(s.loop("oc"), 0), "tile: loop oc (of 6) by 0; legal is 1 or more"),
    "a sum in parts": (lambda s: s.parallel(s.loop("kh")), "bind: loop kh uses acc, registers of one thread"),
    "a copy that nothing reads": (lambda s: s.stage("dst", s.loop("mb")), "loop mb reads an element of dst"),
    "threads within a loop": (lambda s: s.parallel(s.loop("oh")), "loop oh cannot be parallel within mb"),
    "loops apart": (lambda s: s.fuse((s.loop("oc"), s.loop("ow"))), "loop ow is not directly inside loop oc"),
    "one loop": (lambda s: s.fuse((s.loop("oc"),)), "fuse: oc; legal are several loops"),
    "a bound out of its loop": (
        lambda s: s.reorder(*reversed(s.tile(s.loop("oc"), 4))), "reorder: the bounds of loop oc.i need oc.o",
    ),
    "vectors before flat offsets": (
        lambda s: s.vectorise(s.loop("oc")), "vectorise: the kernel is naive here; legal is a kernel that is flat",
    ),
    "loops after flat offsets": (
        in_turn(lambda s: s.flatten(), lambda s: s.fission(s.loop("oc"))), "fission: the kernel is flat here",
    ),
    "the result": (lambda s: s.pack("dst"), "kernel conv writes dst, which is packed before it runs"),
    "a loop that is gone": (
        lambda s: [s.tile(oc, 8) for oc in [s.loop("oc")] * 2], "loop oc (of 6) is no more: tile(oc, 8, oc.o, oc.i)",
    ),
    "the end is no code": (
        in_turn(lambda s: s.unroll(s.loop("ow")), lambda s: s.flatten()),
        "the schedule ends with a kernel that is no code",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_an_illegal_step_is_refused_where_it_is_called(what: str) -> None:
    schedule, text = REFUSED[what]
    assert text in refusal(schedule)


def test_a_refused_step_leaves_all_as_it_was() -> None:
    def tried(s: KernelSchedule) -> None:
        oc, kh = s.loop("oc"), s.loop("kh")
        before = str(s), len(s.steps), s.loops()
        for wrong in (
            lambda: s.tile(oc, 0), lambda: s.fuse((oc, kh), "x"), lambda: s.parallel(kh), lambda: s.pack("bias"),
            lambda: s.stage("wei", oc, scope="l1"), lambda: s.fission(oc, scope="l1"), lambda: s.loop("od"),
            lambda: s.tile(oc, 4, tail="cut"), lambda: s.tile("oc", 4),  # type: ignore[arg-type]
        ):  # fmt: skip
            with pytest.raises((cs.ConfigError, cs.UsageError)):
                wrong()
        assert (str(s), len(s.steps), s.loops()) == before
        assert [x.name for x in s.tile(oc, 4)] == ["oc.o", "oc.i"]
        assert s.fuse((s.loop("oh"), s.loop("ow")), "x").name == "x"

    assert made(PADDED, tried).verify().ok


def test_a_loop_of_another_schedule_is_refused() -> None:
    kept = []
    made(PADDED, lambda s: kept.append(s.loop("oc")))
    assert "tile: loop oc (of 6) belongs to another schedule" in refusal(lambda s: s.tile(kept[0], 2))


def test_errors_of_the_function_are_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        made(PADDED, lambda s: 1 / 0)
    with pytest.raises(cs.UsageError, match="expected a function of one argument"):
        made(PADDED, "tiles")  # type: ignore[arg-type]
    with pytest.raises(cs.UsageError, match="schedule= and config= both decide"):
        cs.compile(PADDED, schedule=nothing, config="--realise=mask")
    with pytest.raises(cs.UsageError, match="schedules of kernels of fixed sizes"):
        cs.compile(PADDED, schedule=nothing, dynamic="mb")  # type: ignore[call-overload]


DRAWN = (
    PADDED, "g4mb1ic4ih6oc8oh3kh3sh2ph1", "--dt=u8:s8:s32 mb1ic5ih4oc9oh4kh1ph0", "--matmul 7x5:5x9",
    "--dir=BWD_D mb1ic4ih6oc5oh3kh3sh2ph1", "--dir=BWD_W mb2ic4ih6oc5oh3kh3sh2ph1",
    "mb1ic4ih6oc5oh6kh1ph0 -> --dtag=axb mb1ic5ih6oc4oh6kh3ph1",
)  # fmt: skip


def drawn(seed: int) -> ScheduleFunction:
    """Return a schedule of primitives that are drawn, whether they make sense or not."""

    def schedule(s: KernelSchedule) -> None:
        rng = random.Random(seed)
        for _ in range(rng.randrange(3, 14)):
            with suppress(cs.ConfigError, cs.UsageError):
                drawn_step(s, rng)

    return schedule


def drawn_step(s: KernelSchedule, rng: random.Random) -> None:
    """Call a primitive on loops and arrays that are drawn."""
    loops = list(s.loops())
    n, size = rng.randrange(len(loops)), rng.choice((1, 2, 3, 8))
    x, array = loops[n], rng.choice([b.name for b in s.kernel.params])
    scope = rng.choice(("cache", "register"))
    steps: tuple[Callable[[], object], ...] = (
        lambda: s.tile(x, size, tail=rng.choice(("guard", "round", "peel"))), lambda: s.reorder(*rng.sample(loops, 2)),
        lambda: s.fuse(loops[n : n + 2]), lambda: s.fission(*loops[n : n + size], scope=scope), lambda: s.sink(x),
        lambda: s.unroll(x), lambda: s.parallel(x), lambda: s.peel(x), lambda: s.restrict(x), lambda: s.round_up(x),
        lambda: s.stage(array, x, scope=scope), lambda: s.stage(array, x, exact=True), lambda: s.pack(array),
        lambda: s.rfactor(x), lambda: s.compute_at("mid", x), lambda: s.residue(x, 2), lambda: s.drain((x,)),
        s.skip_zero,
    )  # fmt: skip
    rng.choice(steps)()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("scope", ["cache", "register"])
def test_copies_are_filled_iterations_before_their_use(scope: str, unrolled: bool) -> None:
    """Elements of iterations are copied ahead, to slots that are constant in rounds of iterations, or used in turn."""
    problem = "mb1ic7ih4oc20oh4kh1ph0"

    def ahead(s: KernelSchedule) -> None:
        steps = s.loop("ic")
        s.fission(s.loop("oc"), s.loop("oh"), s.loop("ow"))
        s.reorder(steps, s.loop("oc"), s.loop("oh"), s.loop("ow"))
        copies = [s.stage(x, steps, scope=scope) for x in ("src", "wei")]
        rounds = s.multiple_buffers(steps, copies[::-1], 3, 2, unrolled)
        assert (rounds is steps) == (not unrolled) and rounds in s.loops()

    assert made(problem, ahead).verify().ok


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(28))
def test_a_legal_schedule_changes_no_number(seed: int) -> None:
    problem = DRAWN[seed % len(DRAWN)]
    try:
        kernel = made(problem, drawn(seed), threads=2)
    except cs.ConfigError as error:
        assert error.code in ("schedule", "loop-kind", "unroll-budget")  # the end is no code, and it says why
    else:
        assert kernel.verify().ok


def test_cache_knows_a_kernel_by_its_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiled(size: int) -> ScheduleFunction:
        return lambda s: s.tile(s.loop("oc"), size)

    text = made(ONE_BY_ONE, tiled(4)).ir()
    monkeypatch.setattr(service, "_compile", None)
    assert made(ONE_BY_ONE, tiled(4)).ir() == text  # of another function that does the same
    with pytest.raises(cs.InternalError):
        made(ONE_BY_ONE, tiled(5))


def test_function_of_a_file_and_its_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def tiled(s, size=4):\n    s.tile(s.loop('oc'), size)\n")
    for call in ("tiled", "tiled(size=5)"):
        text = f"--target=avx2 --schedule={file}:{call}"
        kernel = cs.compile(ONE_BY_ONE, config=text, threads=1)
        assert str(kernel.config) == text
        words = ["verify", ONE_BY_ONE, "--target", "avx2", "--schedule", f"{file}:{call}"]
        verified = CliRunner().invoke(main, words)
        assert "1 of 1 right" in verified.output
        assert f"tile(oc, {5 if '5' in call else 4}, oc.o, oc.i)" in kernel.explain()
    expected = "expected FILE.py:function, or"
    wrong = {"tilde": "has no function 'tilde'; legal are tiled", "tiled(4)": expected, "": expected}
    for call, why in wrong.items():
        with pytest.raises(cs.UsageError, match=why):
            cs.compile(ONE_BY_ONE, config=f"--schedule={file}:{call}")
    with pytest.raises(cs.UsageError, match="legal beside it are --target= and --threads="):
        cs.compile(ONE_BY_ONE, config=f"--schedule={file}:tiled --lane=oc")


def test_kernel_is_pickled_exported_and_bound(tmp_path: Path) -> None:
    kernel = made(ONE_BY_ONE, product)
    assert pickle.loads(pickle.dumps(kernel)).verify().ok
    assert any(file.suffix == ".h" for file in kernel.export(tmp_path).files)


def test_every_step_of_a_schedule_keeps_the_meaning() -> None:
    kernel = made("g3mb1ic3ih4oc3oh4kh3ph1", depthwise)
    with kernel.planned() as plan:
        lower(plan, [Verify(), Interpret(kernel.problem.canonical(), kernel.target)])

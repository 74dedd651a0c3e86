"""Compiling through the cache, and the instruments that settings choose."""

from __future__ import annotations

import csv
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convsmith.codegen.artifact import Artifact, Entry
from convsmith.compiler import service
from convsmith.compiler.cache import CacheWarning, cache_key, disk_cache
from convsmith.compiler.instruments import Interpret, Recorder, Verify
from convsmith.compiler.service import faults
from convsmith.diag import trace
from convsmith.diag.errors import ConfigError, InternalError, UsageError
from convsmith.diag.settings import settings
from convsmith.ir.equal import structural_equal
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import For, Kernel
from convsmith.ir.value import Const, const
from convsmith.layout.requirements import Requirements
from convsmith.machine.registry import target
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.manager import Step, run_steps
from convsmith.problem.conv import Conv
from convsmith.schedule.config import Config
from convsmith.tune.compile import compile_problem

PROBLEM = Conv.parse("--dir=FWD_B --stag=axb --dtag=nChw16c --attr-post-ops=relu mb1ic3ih5oc5oh5kh3ph1")
GENERIC = target("generic")
CONFIG = Config.parse("--target=generic --lane=oc --register=oc:8,ow:3 --reduce=kh,kw,ic")
ARTIFACT = Artifact(b"", "generic", {"main": Entry("k", ())}, "", "")


# -- the cache
def test_a_kernel_is_compiled_once_and_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with settings.scope(cache=tmp_path):
        first = compile_problem(PROBLEM, target=GENERIC, config=CONFIG)
        monkeypatch.setattr(service, "_compile", None)
        assert compile_problem(PROBLEM, target=GENERIC, config=CONFIG) == first
        named = Conv.parse(f'{PROBLEM}n"other"')
        assert compile_problem(named, target=GENERIC, config=CONFIG) == first


def test_the_default_config_is_kept_with_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with settings.scope(cache=tmp_path):
        first = compile_problem(PROBLEM, target=GENERIC, threads=2)
        assert Config.parse(first.config).threads in (1, 2)
        monkeypatch.setattr("convsmith.tune.candidates.default_config", None)
        assert compile_problem(PROBLEM, target=GENERIC, threads=2) == first


def test_every_fact_of_the_machine_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for one set of features, or for one size of caches, is not taken for another's."""
    keys: list[str] = []
    monkeypatch.setattr(service, "_compile", lambda *_: ARTIFACT)
    monkeypatch.setattr(service, "cache_key", lambda *parts: keys.append(cache_key(*parts)) or keys[-1])
    others = [
        replace(GENERIC, features=GENERIC.features + ",+avx2"), replace(GENERIC, attributes=(("a", "b"),)),
        replace(GENERIC, memories=(replace(GENERIC.l1, bytes=49152), *GENERIC.memories[1:])),
        replace(GENERIC, costs=replace(GENERIC.costs, call=26)),
    ]  # fmt: skip
    with settings.scope(cache=tmp_path):
        for machine in (GENERIC, *others):
            compile_problem(PROBLEM, target=machine, config=CONFIG)
    assert len(set(keys)) == 1 + len(others)


def test_whatever_makes_another_kernel_makes_another_key(tmp_path: Path) -> None:
    def artifact(line: str = str(PROBLEM), config: str = str(CONFIG)) -> Artifact:
        return compile_problem(Conv.parse(line), target=GENERIC, config=Config.parse(config))

    with settings.scope(cache=tmp_path):
        artifacts = [
            artifact(), artifact(config=f"{CONFIG} --threads=2"), artifact(config=f"{CONFIG} --outline=no"),
            artifact(str(PROBLEM).replace("relu", "relu:0.5")), artifact(str(PROBLEM).replace("--stag=axb ", "")),
        ]  # fmt: skip
    kernels = [path for path in tmp_path.glob("*.entry") if not path.name.startswith("sources")]
    assert len({(a.problem, a.config) for a in artifacts}) == len(artifacts) == len(kernels)


def test_without_a_cache_it_works() -> None:
    with settings.scope(cache="off"):
        assert compile_problem(PROBLEM, target=GENERIC, config=CONFIG).target == "generic"


def test_a_damaged_entry_is_made_anew(tmp_path: Path) -> None:
    with settings.scope(cache=tmp_path):
        first = compile_problem(PROBLEM, target=GENERIC, config=CONFIG)
        (entry,) = [path for path in tmp_path.glob("*.entry") if not path.name.startswith("sources")]
        entry.write_bytes(entry.read_bytes()[:-1])
        with pytest.warns(UserWarning, match="damaged"):
            assert compile_problem(PROBLEM, target=GENERIC, config=CONFIG) == first


def stored(directory: Path) -> Path:
    (entry,) = [path for path in directory.glob("*.entry") if not path.name.startswith("sources")]
    return entry


ASKED: dict[str, Callable[[], Artifact]] = {
    "all given": lambda: compile_problem(PROBLEM, target=GENERIC, config=CONFIG),
    "problem": lambda: compile_problem(OTHER, target=GENERIC, config=CONFIG),
    "config": lambda: compile_problem(PROBLEM, target=GENERIC, config=CONFIG.changed(outline=False)),
    "threads": lambda: compile_problem(PROBLEM, target=GENERIC, config=CONFIG.changed(threads=2)),
    "target": lambda: compile_problem(PROBLEM, target=target("avx2"), config=CONFIG.changed(target="avx2")),
    "default": lambda: compile_problem(OTHER, target=GENERIC),
    "default of two threads": lambda: compile_problem(LARGE, target=GENERIC, threads=2),
    "default of one thread": lambda: compile_problem(LARGE, target=GENERIC),
    "any sizes": lambda: compile_problem(DYNAMIC, target=GENERIC, requirements=Requirements(TWO.sizes[:1])),
    "other sizes": lambda: compile_problem(DYNAMIC, target=GENERIC, requirements=TWO),
}
"""Kernels that differ from another one in what the word says."""

OTHER = Conv.parse("--stag=axb --dtag=axb mb1ic3ih5oc5oh5kh3ph1")
LARGE = Conv.parse("--stag=axb --dtag=axb mb4ic16ih16oc32oh16kh3ph1")
DYNAMIC = Conv.parse("--stag=axb --dtag=axb mb1ic8ih8oc8oh8kh3ph1")
TWO = Requirements((("mb", None), ("ih", None)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["content", "file"])
def test_the_entry_of_another_kernel_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Every kernel's bytes under every other kernel's key: as content with a valid checksum, and as a file moved."""
    right: dict[str, Artifact] = {}
    paths: dict[str, Path] = {}
    for name, compiled in ASKED.items():
        with settings.scope(cache=tmp_path / name):
            right[name] = compiled()
        paths[name] = stored(tmp_path / name)
    for name, compiled in ASKED.items():
        monkeypatch.setattr(service, "_compile", lambda *_, name=name: right[name])
        for other in ASKED:
            if other == name:
                continue
            if way == "content" and name.startswith("default") and right[other].problem == right[name].problem:
                continue  # no default config is made to compare with, and what it computes is right
            with settings.scope(cache=tmp_path / name):
                if way == "file":
                    shutil.copy(paths[other], paths[name])
                else:
                    cache = disk_cache()
                    assert cache is not None
                    cache.put(paths[name].stem, right[other].to_bytes())
                with pytest.warns(CacheWarning, match=r"; it is removed and made anew") as caught:
                    assert compiled() == right[name], (name, other)
                assert len(caught) == 1
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    assert compiled() == right[name]


@pytest.mark.parametrize(
    "inside",
    [b"", b"junk", bytes(99), lambda data: data[:-1], lambda data: data[:40] + b"{}" + data[42:], lambda d: d * 2],
)
def test_a_damaged_artifact_in_a_whole_entry_is_made_anew(
    tmp_path: Path, inside: bytes | Callable[[bytes], bytes]
) -> None:
    with settings.scope(cache=tmp_path):
        first = compile_problem(PROBLEM, target=GENERIC, config=CONFIG)
        cache = disk_cache()
        assert cache is not None
        cache.put(stored(tmp_path).stem, inside(first.to_bytes()) if callable(inside) else inside)
        with pytest.warns(CacheWarning, match=r"is damaged: .*; it is removed and made anew") as caught:
            for _ in range(2):
                assert compile_problem(PROBLEM, target=GENERIC, config=CONFIG) == first
        assert len(caught) == 1


# -- trace
def test_lines_end_in_the_command_that_reproduces_them(tmp_path: Path) -> None:
    lines: list[str] = []
    with settings.scope(cache=tmp_path, verbose="create,cache"), trace.redirect(lines.append):
        for _ in range(2):
            compile_problem(PROBLEM, target=GENERIC, config=CONFIG)
    rows = list(csv.DictReader(lines))
    assert [(row["event"], row["status"]) for row in rows] == [
        ("create", "compiled"), ("cache", "miss"), ("create", "cached"), ("cache", "hit"),
    ]  # fmt: skip
    assert rows[0]["repro"] == f"convsmith verify --config '{CONFIG}' {PROBLEM}"
    assert rows[0]["config"] == str(CONFIG) and float(rows[0]["time_ms"]) > float(rows[2]["time_ms"])


# -- dump
def test_dump_writes_every_pass_that_changed_the_kernel(tmp_path: Path) -> None:
    with settings.scope(dump=tmp_path):
        compile_problem(PROBLEM, target=GENERIC, config=CONFIG)
        compile_problem(PROBLEM, target=GENERIC, config=CONFIG)  # the same directory, and no cache hit
    (directory,) = tmp_path.iterdir()
    assert directory.name.startswith(PROBLEM.descriptor())
    files = {path.name: path.read_text() for path in directory.iterdir()}
    assert "define" in files["kernel.ll"] and "convsmith_chunk" in files["kernel.s"]
    listed = files["passes.txt"].splitlines()
    changed = [line.split()[0] for line in listed if not line.endswith("(unchanged)")]
    assert changed == sorted(name[:3] for name in files if name.endswith(".ir")) and len(changed) < len(listed)
    naive = files["000_naive.ir"]
    assert naive.splitlines()[0] == "# 000 naive" and naive.splitlines()[1].endswith("nodes")
    for name, text in files.items():
        if name.endswith(".ir"):
            assert structural_equal(parse_kernel(text), parse_kernel("\n".join(text.splitlines()[2:]))), name


def test_a_dump_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        settings.scope(dump=tmp_path / "file"),
        pytest.raises(UsageError, match=r"CONVSMITH_DUMP: .* cannot be written"),
    ):
        compile_problem(PROBLEM, target=GENERIC, config=CONFIG)


# -- checks
class _Spoil(Rewriter):
    """Changes the value that accumulators start from."""

    def visit_Const(self, v: Const) -> Const:
        return const(v.dtype, 1)


def spoil(kernel: Kernel) -> Kernel:
    return Kernel(kernel.name, kernel.params, _Spoil().stmt(kernel.body))


class _Unbind(Rewriter):
    def visit_For(self, loop: For) -> object:
        return loop.body


@stages(*LOOPS)
def unbind(kernel: Kernel) -> Kernel:
    return Kernel(kernel.name, kernel.params, _Unbind().stmt(kernel.body))


def naive() -> Kernel:
    from convsmith.schedule.plan import plan

    return plan(PROBLEM, CONFIG, GENERIC).program.naive()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("check", ["verify", "interpret"])
def test_checks_pass_where_all_is_right(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"verify": 0, "interpret": 0}
    for name, kind in (("verify", Verify), ("interpret", Interpret)):
        after = kind.after

        def counted(self: object, *args: object, name: str = name, after: object = after) -> None:
            counts[name] += 1
            after(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(kind, "after", counted)
    few = Conv.parse("--dir=FWD_B --stag=axb --dtag=nChw16c --attr-post-ops=relu mb1ic2ih2iw3oc5oh2ow3kh3kw3ph1pw1")
    with settings.scope(check=check):
        compile_problem(few, target=GENERIC, config=CONFIG)
    assert counts["verify"] > 10 and (counts["interpret"] > 10) == (check == "interpret")


def test_the_interpreter_blames_the_pass_that_changed_the_result() -> None:
    with interning(), pytest.raises(InternalError, match=r"after pass 001 spoil\(\): .* differ from the reference"):
        run_steps(naive(), [Step(spoil)], [Interpret(PROBLEM, GENERIC)])


def test_the_verifier_blames_the_pass_that_broke_the_kernel() -> None:
    with interning(), pytest.raises(InternalError, match=r"after pass 001 unbind\(\): .*not bound"):
        run_steps(naive(), [Step(unbind)], [Verify()])


def test_large_problems_are_not_interpreted() -> None:
    plain = Config("generic", "oc")
    assert Interpret.suits(PROBLEM, plain)
    assert not Interpret.suits(PROBLEM, plain.changed(split=(("mb", 1),)))
    assert not Interpret.suits(Conv.parse("mb1ic64ih56oc64oh56kh3ph1"), plain)


def test_the_recorder_keeps_every_kernel() -> None:
    recorder = Recorder()
    with interning():
        run_steps(naive(), [Step(spoil)], [recorder])
        assert [r.name for r in recorder.records] == ["naive", "spoil"]
        assert "= 1.0" in str(recorder.records[1].kernel) and "= 1.0" not in str(recorder.records[0].kernel)


# -- errors
def test_faults_of_ours_carry_the_command() -> None:
    with (
        pytest.raises(InternalError, match=r"KeyError: 3\n.*To reproduce: convsmith verify x"),
        faults("convsmith verify x"),
    ):
        raise KeyError(3)
    with pytest.raises(ConfigError, match=r"^because$"), faults("convsmith verify x"):
        raise ConfigError("why", "because")


def test_a_fault_in_a_pass_reaches_the_user_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise np.linalg.LinAlgError("oh")

    monkeypatch.setattr("convsmith.schedule.kernel.nest_of", broken)
    with settings.scope(cache="off"), pytest.raises(InternalError) as caught:
        compile_problem(PROBLEM, target=GENERIC, config=CONFIG)
    assert caught.value.repro == f"convsmith verify --config '{CONFIG}' {PROBLEM}"


def test_config_and_target_must_agree() -> None:
    with pytest.raises(UsageError, match="config is for target avx2; the machine's is generic"):
        compile_problem(PROBLEM, target=GENERIC, config=Config("avx2", "oc"))

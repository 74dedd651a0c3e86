"""The calls of operating systems: those of this one, and those of the others on libraries that stand in for theirs."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convsmith.codegen.artifact import object_format
from convsmith.compiler.driver import build_artifact
from convsmith.diag import system
from convsmith.diag.system import SYSTEM, CpuNames, LinuxSystem, MacSystem, System, WindowsSystem, at_fork
from convsmith.machine import host, registry
from convsmith.problem.lines import parse_problem
from convsmith.runtime import threads
from convsmith.tune.candidates import default_config


def function(call: Any) -> Any:
    """A function of a library, which has a type of results that can be set."""

    def called(*arguments: Any) -> Any:
        return call(*arguments)

    return called


def written(pointer: Any, value: int) -> None:
    """Write a number where a call got a pointer by `byref`."""
    pointer._obj.value = value


# -- Linux
def test_linux_by_files(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "self"
    (folder / "task" / "12").mkdir(parents=True)
    (folder / "task" / "13").mkdir()
    gomp = "/usr/lib/libgomp.so.1.0.0"
    parts = (f"r-xp 0 8:1 9 {gomp}", "rw-p 0 0:0 0", f"r--p 0 8:1 9 {gomp}", "r-xp 0 8:1 9 /opt/a b.so")
    lines = [f"7f-80 {part}" for part in parts]
    (folder / "maps").write_text("\n".join(lines) + "\n")
    here = LinuxSystem(root=tmp_path)
    assert here.libraries() == [gomp, "/opt/a b.so"]
    assert here.threads() == {"12", "13"}
    absent = LinuxSystem(root=tmp_path / "nowhere")
    assert absent.libraries() == [] and absent.threads() == set()


@pytest.mark.skipif(sys.platform != "linux", reason="the system is another one")
def test_this_linux() -> None:
    assert isinstance(SYSTEM, LinuxSystem) and SYSTEM.cpus() == len(os.sched_getaffinity(0))
    assert str(os.getpid()) in SYSTEM.threads() and any("libc" in file for file in SYSTEM.libraries())
    assert SYSTEM.c_library.memcmp(b"ab", b"ab", 2) == 0 and SYSTEM.has_pthreads
    assert SYSTEM.triple("x86_64") == "" and SYSTEM.cpu() == CpuNames("") and SYSTEM.cache_bytes() == {}


# -- macOS
class Darwin:
    """The calls of macOS's C library that convsmith makes."""

    images = (b"/usr/lib/libSystem.B.dylib", None, b"/opt/libomp.dylib")
    texts = {b"machdep.cpu.brand_string": b"Apple M4"}
    numbers = {b"hw.l1dcachesize": 65536, b"hw.l2cachesize": 4 << 20, b"machdep.cpu.family": 6}

    def __init__(self) -> None:
        self._dyld_image_count = function(lambda: len(self.images))
        self._dyld_get_image_name = function(lambda n: self.images[n])
        self.sysctlbyname = function(self._sysctl)

    def _sysctl(self, key: bytes, value: Any, size: Any, new: None, new_size: Any) -> int:
        assert new is None and new_size.value == 0
        if key in self.texts:
            assert size._obj.value == len(value)
            value.value = self.texts[key]
            return 0
        if key in self.numbers:
            assert size._obj.value == ctypes.sizeof(value._obj)
            written(value, self.numbers[key])
            return 0
        return -1


def mac() -> MacSystem:
    return MacSystem(lambda name: Darwin() if name is None else pytest.fail(f"{name} is loaded"))


def test_macos_by_its_linker_and_sysctl() -> None:
    assert mac().libraries() == ["/usr/lib/libSystem.B.dylib", "/opt/libomp.dylib"]
    assert mac().cpu() == CpuNames("Apple M4", "", "6")
    assert mac().cache_bytes() == {"L1": 65536, "L2": 4 << 20}
    assert mac().threads() == set() and mac().has_pthreads and mac().cpus() == (os.cpu_count() or 1)
    assert isinstance(mac().c_library, Darwin)


def test_facts_of_a_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SYSTEM", mac())
    for name in ("_CPUINFO", "_CPU"):
        monkeypatch.setattr(host, name, tmp_path / "nowhere")
    assert host.cpu.__wrapped__() == ("Apple M4", "", "6")
    assert [(x.name, x.bytes) for x in host.caches.__wrapped__()] == [("L1", 65536), ("L2", 4 << 20)]


def test_the_openmp_runtimes_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SYSTEM", mac())
    assert threads._loaded() == ["/opt/libomp.dylib"]


# -- Windows
class Kernel32:
    """The calls of kernel32 that convsmith makes."""

    paths = {1: "C:\\Windows\\System32\\ntdll.dll", 2: "C:\\torch\\lib\\libiomp5md.dll"}
    mask = 0b1011

    def __init__(self) -> None:
        self.GetCurrentProcess = function(lambda: -1 & (1 << 64) - 1)
        self.GetModuleFileNameW = function(self._name)
        self.GetProcessAffinityMask = function(self._mask)

    def _name(self, module: Any, path: Any, most: Any) -> int:
        assert most.value == len(path)
        path.value = self.paths.get(module.value, "")
        return len(path.value)

    def _mask(self, process: Any, own: Any, every: Any) -> int:
        assert process.value == (1 << 64) - 1
        written(own, self.mask)
        written(every, 0xFF)
        return int(self.mask != 0)


def modules(process: Any, found: Any, size: Any, needed: Any) -> int:
    """The call EnumProcessModules of psapi, for three modules, of which one has no file."""
    assert size.value == ctypes.sizeof(found)
    found[:3] = (1, 2, 3)
    written(needed, 3 * ctypes.sizeof(ctypes.c_void_p))
    return 1


def windows(kernel: Any = None, listed: Any = modules) -> WindowsSystem:
    libraries = {"kernel32": kernel or Kernel32(), "psapi": SimpleNamespace(EnumProcessModules=listed), "msvcrt": "C"}
    return WindowsSystem(lambda name: libraries[name])


def test_windows_by_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert windows().libraries() == ["C:/Windows/System32/ntdll.dll", "C:/torch/lib/libiomp5md.dll"]
    assert windows(listed=lambda *_: 0).libraries() == []
    assert windows().cpus() == 3 and windows().c_library == "C" and not windows().has_pthreads
    none = Kernel32()
    none.mask = 0
    assert windows(none).cpus() == (os.cpu_count() or 1)
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6 Model 167 Stepping 1, GenuineIntel")
    assert windows().cpu()[1:] == ("GenuineIntel", "6") and windows().threads() == set()


def test_threads_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SYSTEM", windows())
    assert threads._loaded() == ["C:/torch/lib/libiomp5md.dll"] and threads.available_cpus() == 3
    assert threads._can_start(10_000)


def test_kernels_on_windows_have_its_calling_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SYSTEM", windows())
    levels = registry._host_targets.__wrapped__(registry.preferred().name)
    architecture = levels[0].triple.partition("-")[0]
    assert {t.triple for t in levels[:-1]} <= {f"{architecture}-w64-windows-gnu"}
    problem = parse_problem("--accuracy=strict mb1ic8ih6oc16kh3ph1").canonical()
    artifact = build_artifact(problem, default_config(problem, levels[0]), levels[0])
    assert object_format(artifact.code) == "coff" or len(levels) == 1


# -- any system
def test_a_system_that_is_not_known() -> None:
    other = System()
    assert other.libraries() == [] and other.threads() == set() and other.openmp == () and other.cpus() >= 1


def test_forks_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(system.os, "register_at_fork", lambda **given: called.append(sorted(given)))
    at_fork(before=list, after_in_child=list)
    assert called == [["after_in_child", "before"]]
    monkeypatch.delattr(system.os, "register_at_fork")
    at_fork(before=list)
    assert len(called) == 1

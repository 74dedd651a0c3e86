"""All questions that convsmith asks an operating system: the calls of Linux, macOS and Windows.

A system answers with nothing where it has no call for a question: without a list of threads, for example, teams of
threads grow without a trial. Tests give a system libraries of their own, so that each call is checked on any system.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["SYSTEM", "CpuNames", "LinuxSystem", "MacSystem", "System", "WindowsSystem", "at_fork"]

Load = Callable[[str | None], Any]
"""Returns a library by its name, or for None all libraries of the process."""


class CpuNames(NamedTuple):
    """A CPU as the system names it: model, vendor and family; empty where it does not."""

    model: str
    vendor: str = ""
    family: str = ""


class System:
    """A system whose libraries `load` returns; its files lie below `root`. The answers here are those of any system."""

    openmp: tuple[str, ...] = ()
    """Names of OpenMP runtimes that have the entry points of GNU's, by which the system finds them."""

    def __init__(self, load: Load = ctypes.CDLL, root: str | os.PathLike[str] = "/") -> None:
        self._load, self._root = load, root

    @property
    def c_library(self) -> Any:
        """The functions of the C library."""
        return self._load(None)

    def libraries(self) -> list[str]:
        """Return the files of the libraries that this process has loaded."""
        return []

    def threads(self) -> set[str]:
        """Return the threads of this process, by any names that differ."""
        return set()

    def cpus(self) -> int:
        """Return the number of CPUs that this process may use."""
        return os.cpu_count() or 1

    def cpu(self) -> CpuNames:
        """Return the names of the CPU."""
        return CpuNames("")

    def cache_bytes(self) -> dict[str, int]:
        """Return the bytes of the data caches by their names, L1 first, where files do not list them."""
        return {}

    def triple(self, architecture: str) -> str:
        """Return LLVM's triple of code for this system that is linked in a process; empty where that is ELF."""
        return ""

    @property
    def has_pthreads(self) -> bool:
        """Whether the C library starts threads by the functions of POSIX."""
        return True


class LinuxSystem(System):
    """Linux, whose kernel answers by files."""

    openmp = ("libgomp.so.1",)

    def libraries(self) -> list[str]:
        try:
            with open(os.path.join(self._root, "proc/self/maps"), errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            return []
        return list(dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line))

    def threads(self) -> set[str]:
        try:
            return set(os.listdir(os.path.join(self._root, "proc/self/task")))
        except OSError:
            return set()

    def cpus(self) -> int:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else super().cpus()


class MacSystem(System):
    """macOS, whose linker lists libraries and whose kernel answers by the names of `sysctl`."""

    openmp = ("libgomp.1.dylib", "libomp.dylib")
    _CACHES = (("L1", "hw.l1dcachesize"), ("L2", "hw.l2cachesize"), ("L3", "hw.l3cachesize"))

    def libraries(self) -> list[str]:
        linker = self._load(None)
        linker._dyld_get_image_name.restype = ctypes.c_char_p
        names = (linker._dyld_get_image_name(n) for n in range(linker._dyld_image_count()))
        return [os.fsdecode(name) for name in names if name]

    def cpu(self) -> CpuNames:
        text = "machdep.cpu."
        return CpuNames(self._text(f"{text}brand_string"), self._text(f"{text}vendor"), self._number(f"{text}family"))

    def cache_bytes(self) -> dict[str, int]:
        found = ((name, int(self._number(key, ctypes.c_int64) or 0)) for name, key in self._CACHES)
        return {name: size for name, size in found if size}

    def _text(self, key: str) -> str:
        size = ctypes.c_size_t(256)
        content = ctypes.create_string_buffer(size.value)
        answered = self._load(None).sysctlbyname(key.encode(), content, ctypes.byref(size), None, ctypes.c_size_t(0))
        return "" if answered else content.value.decode(errors="replace")

    def _number(self, key: str, kind: Any = ctypes.c_int32) -> str:
        value = kind(0)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        call = self._load(None).sysctlbyname
        answered = call(key.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
        return "" if answered else str(value.value)


class WindowsSystem(System):
    """Windows, whose libraries kernel32 and psapi answer."""

    openmp = ("libgomp-1.dll",)
    _MOST = 4096
    """Most libraries of a process, and most characters of a path."""

    @property
    def c_library(self) -> Any:
        return self._load("msvcrt")

    @property
    def has_pthreads(self) -> bool:
        return False

    def triple(self, architecture: str) -> str:
        """Return the triple by whose calling convention `ctypes` calls functions."""
        return f"{architecture}-w64-windows-gnu"

    def libraries(self) -> list[str]:
        kernel, lists = self._load("kernel32"), self._load("psapi")
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        process = ctypes.c_void_p(kernel.GetCurrentProcess())
        modules = (ctypes.c_void_p * self._MOST)()
        size, needed = ctypes.sizeof(modules), ctypes.c_uint32(0)
        if not lists.EnumProcessModules(process, modules, ctypes.c_uint32(size), ctypes.byref(needed)):
            return []
        found, path = [], ctypes.create_unicode_buffer(self._MOST)
        for module in modules[: min(needed.value, size) // ctypes.sizeof(ctypes.c_void_p)]:
            if kernel.GetModuleFileNameW(ctypes.c_void_p(module), path, ctypes.c_uint32(self._MOST)):
                found.append(path.value.replace("\\", "/"))
        return found

    def cpus(self) -> int:
        """Return the CPUs in the mask of the process, which holds those of one group of at most 64."""
        kernel = self._load("kernel32")
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        own, all_ = ctypes.c_size_t(0), ctypes.c_size_t(0)
        process = ctypes.c_void_p(kernel.GetCurrentProcess())
        if not kernel.GetProcessAffinityMask(process, ctypes.byref(own), ctypes.byref(all_)) or not own.value:
            return super().cpus()
        return own.value.bit_count()

    def cpu(self) -> CpuNames:
        """Return what Windows puts together: ``Intel64 Family 6 Model 167 Stepping 1, GenuineIntel``."""
        text = platform.processor()
        family = re.search(r"Family (\d+)", text)
        return CpuNames(text, text.rpartition(", ")[2], family[1] if family else "")


def at_fork(
    *, before: Callable[[], object] | None = None, after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:  # fmt: skip
    """Register functions that run around a fork, where processes fork."""
    given = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**{name: function for name, function in given.items() if function is not None})


_KINDS: dict[str, type[System]] = {"linux": LinuxSystem, "darwin": MacSystem, "win32": WindowsSystem}
SYSTEM: System = _KINDS.get(sys.platform, System)()
"""The system of this process."""

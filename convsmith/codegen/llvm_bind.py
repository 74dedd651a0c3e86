"""LLVM text to object code and assembly, through llvmlite.

No LLVM IR passes run: the passes on convsmith's IR have done their work, and LLVM's would cost more than everything
else.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from convsmith.codegen.child import in_child
from convsmith.diag.errors import ToolchainError
from convsmith.diag.settings import settings


@cache
def _initialised() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


_OPTIMISATION = {"spirv32": 0, "spirv64": 0}
"""Levels of optimisation of LLVM's code generators by name; of others, 2.

Those of SPIR-V, which a driver optimises, mistake the types of pointers that strength reduction makes. They also keep
state of each module as long as the process lives, and may number the blocks of the next one by it: code generators of
level 0 are not kept, and run in a process of their own.
"""


def machine(triple: str, cpu: str, features: str) -> Any:
    """Return the code generator for a target."""
    _initialised()
    try:
        level = _OPTIMISATION.get(llvm.Target.from_triple(triple).name, 2)
        return (_cached_machine if level else _create_machine)(triple, cpu, features, level)
    except RuntimeError as e:
        raise ToolchainError(f"LLVM has no code generator for {triple}: {e}") from None


def _is_apart(triple: str) -> bool:
    """Return whether modules for a target are emitted in a process of their own."""
    _initialised()
    try:
        return _OPTIMISATION.get(llvm.Target.from_triple(triple).name, 2) == 0
    except RuntimeError:
        return False  # `machine` says why


def _create_machine(triple: str, cpu: str, features: str, opt: int) -> Any:
    """Return a new code generator that optimises as ``opt`` says; 0 is not at all."""
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small")


_cached_machine = cache(_create_machine)


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, which costs tens of milliseconds while LLVM modules are alive."""
    if not gc.isenabled():
        yield
        return
    thread = threading.get_ident()
    _pausing.add(thread)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pausing.discard(thread)


_pausing: set[int] = set()
"""Threads that have paused the collector and will resume it."""


def _resume_in_child() -> None:
    """Resume the collector in a forked child for a thread that only the parent has."""
    if _pausing - {threading.get_ident()}:
        _pausing.clear()
        gc.enable()


os.register_at_fork(after_in_child=_resume_in_child)


def parse(text: str, triple: str, cpu: str, features: str) -> Any:
    """Return the LLVM module of a text. ToolchainError keeps LLVM's message."""
    return _parsed(text, machine(triple, cpu, features))


def _parsed(text: str, tm: Any) -> Any:
    try:
        module = llvm.parse_assembly(text)
        if settings.check != "off":
            module.verify()
    except RuntimeError as e:
        raise ToolchainError(f"LLVM refused the generated text: {e}") from None
    module.data_layout = str(tm.target_data)
    return module


def object_code(text: str, triple: str, cpu: str, features: str) -> bytes:
    """Return relocatable object code of a module's text."""

    def emit() -> bytes:
        tm = machine(triple, cpu, features)
        return tm.emit_object(_parsed(text, tm))  # type: ignore[no-any-return]

    return in_child(emit, triple) if _is_apart(triple) else emit()


def assembly(text: str, triple: str, cpu: str, features: str) -> str:
    """Return the assembly of a module's text."""

    def emit() -> str:
        tm = machine(triple, cpu, features)
        return tm.emit_assembly(_parsed(text, tm))  # type: ignore[no-any-return]

    return in_child(lambda: emit().encode(), triple).decode() if _is_apart(triple) else emit()


def llvm_version() -> str:
    """Return LLVM's version, such as ``22.1.0``."""
    return ".".join(map(str, llvm.llvm_version_info))

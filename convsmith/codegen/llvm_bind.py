"""LLVM text to object code and assembly, through llvmlite.

No LLVM IR passes run: the passes on convsmith's IR have done their work, and LLVM's would cost more than everything
else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from convsmith.codegen.child import in_child
from convsmith.diag.errors import ToolchainError
from convsmith.diag.settings import settings

_OPTIONS = ("-hexagon-vector-combine=false",)
"""Options of LLVM's code generators.

The pass that combines vectors for Hexagon joins neighbouring stores to stores of aligned blocks. It reads and writes
the last block as a whole, including bytes after the stores, which another thread may write, and possibly a page to
which no byte is stored. The pass also crashes on products of vectors that were splatted and then extended.
"""


@cache
def _initialised() -> None:
    for option in _OPTIONS:
        llvm.set_option("convsmith", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


_MODULE = "Wasm"
"""LLVM's name of the format of modules of WebAssembly."""
_FIXED = frozenset({"thumb"})
"""Architectures of microcontrollers, which have no system that loads code: a linker chooses fixed addresses, as it does
in the memory of a module of WebAssembly. Other code runs at any address.
"""
_OPTIMISATION = {"spirv32": 0, "spirv64": 0}
"""Optimisation levels of LLVM's code generators by architecture; the default is level 2.

The optimiser for SPIR-V infers wrong types for pointers that strength reduction creates, and a driver optimises the
code anyway. Its code generator also keeps state of each module for the lifetime of the process, which may affect the
numbering of blocks in the next module: code generators of level 0 are not reused, and run in their own process.
"""


@cache
def _architecture(triple: str) -> str:
    """Return LLVM's name of the code generator for a target. ToolchainError if LLVM has none."""
    _initialised()
    try:
        return str(llvm.Target.from_triple(triple).name)
    except RuntimeError as e:
        raise ToolchainError(f"LLVM has no code generator for {triple}: {e}") from None


def _level(triple: str) -> int:
    """Return the level of optimisation of the code generator for a target."""
    return _OPTIMISATION.get(_architecture(triple), 2)


def makes_modules(triple: str) -> bool:
    """Return whether object code for a target becomes a module of WebAssembly."""
    return bool(llvm.get_object_format(triple) == _MODULE)


def machine(triple: str, cpu: str, features: str) -> Any:
    """Return the code generator for a target."""
    level = _level(triple)
    return (_cached_machine if level else _create_machine)(triple, cpu, features, level)


def _create_machine(triple: str, cpu: str, features: str, opt: int) -> Any:
    """Return a new code generator with optimisation level ``opt``; 0 disables optimisation."""
    found = llvm.Target.from_triple(triple)
    reloc = "static" if makes_modules(triple) or _architecture(triple) in _FIXED else "pic"
    return found.create_target_machine(cpu=cpu, features=features, opt=opt, reloc=reloc, codemodel="small")


_cached_machine = cache(_create_machine)


def parse(text: str, triple: str, cpu: str, features: str) -> Any:
    """Return the LLVM module of a text. ToolchainError carries LLVM's message."""
    return _parsed(text, machine(triple, cpu, features))


def _parsed(text: str, tm: Any) -> Any:
    try:
        module = llvm.parse_assembly(text)
        module.data_layout = str(tm.target_data)  # before the check: types of some intrinsics follow from it
        if settings.check != "off":
            module.verify()
    except RuntimeError as e:
        raise ToolchainError(f"LLVM refused the generated text: {e}") from None
    return module


def object_code(text: str, triple: str, cpu: str, features: str) -> bytes:
    """Return relocatable object code of a module's text."""
    return _emitted(text, triple, cpu, features, lambda tm, module: tm.emit_object(module))


def assembly(text: str, triple: str, cpu: str, features: str) -> str:
    """Return the assembly of a module's text."""
    return _emitted(text, triple, cpu, features, lambda tm, module: tm.emit_assembly(module).encode()).decode()


def _emitted(text: str, triple: str, cpu: str, features: str, emit: Callable[[Any, Any], bytes]) -> bytes:
    """Return the result of `emit(code generator, module)`, in a separate process if the code generator keeps state.

    The features of SPIR-V are its extensions, which are an option of the process.
    """

    def run_apart() -> bytes:
        if features:
            llvm.set_option("convsmith", f"-spirv-ext={features}")
        tm = machine(triple, cpu, "")
        return emit(tm, _parsed(text, tm))

    if not _level(triple):
        return in_child(run_apart, triple)
    tm = machine(triple, cpu, features)
    return emit(tm, _parsed(text, tm))


_ALIAS = re.compile(r"^@\S+ = alias .*\n", re.MULTILINE)


def joined_code(
    texts: Sequence[str], public: Collection[str], triple: str, cpu: str, features: str, is_text: bool = False
) -> bytes:
    """Return the object code, or with ``is_text`` the assembly, of modules joined to one whose only visible symbols are
    ``public``; functions and constants that ``public`` does not need are dropped, and all aliases, whose linkage
    llvmlite cannot change.
    """
    tm = machine(triple, cpu, features)
    whole = _linked([_parsed(_ALIAS.sub("", text), tm) for text in texts], public, tm)
    return tm.emit_assembly(whole).encode() if is_text else tm.emit_object(whole)  # type: ignore[no-any-return]


def merged_code(
    parts: Iterable[tuple[Sequence[str], Collection[str]]], public: Collection[str], triple: str, cpu: str,
    features: str,
) -> bytes:  # fmt: skip
    """Return the object code of several ``parts``, each of which has modules and symbols that it shows to other parts;
    the only visible symbols of all are ``public``. Parts may have symbols of the same name that they do not show.
    """
    tm = machine(triple, cpu, features)
    joined = [_linked([_parsed(_ALIAS.sub("", text), tm) for text in texts], shown, tm) for texts, shown in parts]
    return tm.emit_object(_linked(joined, public, tm))  # type: ignore[no-any-return]


def _linked(modules: Sequence[Any], public: Collection[str], tm: Any) -> Any:
    """Return ``modules`` as one, in which only ``public`` symbols and what these need are left."""
    first, *others = modules
    for other in others:
        first.link_in(other)
    for symbol in (*first.functions, *first.global_variables):
        if not (symbol.is_declaration or symbol.name in public or symbol.linkage is llvm.Linkage.appending):
            symbol.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(first, llvm.create_pass_builder(tm, llvm.create_pipeline_tuning_options()))
    return first


def takes_instructions(triple: str) -> bool:
    """Return whether text for a triple may hold instructions as an assembler writes them: only this machine's own."""
    own = llvm.get_process_triple()
    if _architecture(triple) != _architecture(own):
        return False
    llvm.initialize_native_target()
    llvm.initialize_native_asmparser()
    return True


def llvm_version() -> str:
    """Return LLVM's version, such as ``22.1.0``."""
    return ".".join(map(str, llvm.llvm_version_info))

"""The machine that exported code runs on: a level by its name, or LLVM's triple with features."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level as portable_level
from convsmith.machine.registry import device_targets, known_targets

__all__ = ["THIS_MACHINE", "export_machine", "is_foreign"]

THIS_MACHINE = "cpu"
"""The name of this machine, whose level follows from the problem."""

_ELF = ("linux-gnu", "linux-musl", "linux-android", "none", "none-elf", "elf")
"""Suffixes of triples whose object code is ELF."""
_VENDORS = {"windows-gnu": "w64", "windows-msvc": "pc", "macos": "apple", "ios": "apple"}
"""Suffixes of triples with other object code, COFF and Mach-O, and the vendor by which LLVM knows each."""
_VERSIONS = {"macos": "11", "ios": "14"}
"""The versions of systems that code is for by default: the first ones since there are Macs with processors of Arm."""
_SYSTEMS = (*_ELF, *_VENDORS)
_ARCHITECTURES = ("x86_64", "aarch64", "hexagon", "riscv64")
_ON_ALL_SYSTEMS = ("x86_64", "aarch64")
"""Architectures of the systems whose object code is not ELF."""
_SPELLINGS = {"arm64": "aarch64"}
_VERSION = re.compile(r"(?<=[a-z])[0-9]+([.][0-9]+)*$")


def export_machine(text: str) -> Machine:
    """Return the machine that ``text`` names: a level, a device, or a triple with features such as
    ``aarch64-linux-gnu+dotprod``. UsageError for an unknown level, triple or feature.
    """
    expect_text("target", text, "bad-target")
    levels, devices = {t.name: t for t in known_targets()}, {t.name: t for t in device_targets()}
    if text in levels or text in devices:
        return {**levels, **devices}[text]
    given, *features = text.split("+")
    triple = _triple_of(given)
    if triple is None:
        triples = ", ".join(f"{name}-linux-gnu" for name in _ARCHITECTURES)
        raise UsageError(
            f"target {text!r} is unknown; known are {THIS_MACHINE}, the triples {triples} (also with "
            f"{', '.join(_ELF[1:])} at the end, and those of {' and '.join(_ON_ALL_SYSTEMS)} with "
            f"{', '.join(_VENDORS)}) with features such as +avx2, and the levels "
            f"{choices(text, {**levels, **devices})}",
            code="bad-target",
        )
    architecture = triple.partition("-")[0]
    family = [t for t in levels.values() if t.triple.partition("-")[0] == architecture and t.needs]
    base = portable_level(triple) if architecture == "x86_64" else family[-1]
    level = _level(text, family, base, features)
    if level.permissions and is_foreign(triple):
        raise UsageError(
            f"target {text!r}: {level.name} needs a permission of Linux; legal are features without "
            f"{', '.join(level.permissions)}",
            code="bad-target",
        )
    return replace(level, triple=triple)


def is_foreign(triple: str) -> bool:
    """Return whether the object code of a triple is not ELF."""
    return any(f"-{system}" in triple for system in _VENDORS)


def _triple_of(text: str) -> str | None:
    """Return LLVM's triple of a triple as users write it, which may lack the vendor and the version of the system; None
    if it is none of the legal ones.
    """
    word, _, rest = text.partition("-")
    architecture = _SPELLINGS.get(word, word)
    version = found[0] if (found := _VERSION.search(rest)) else ""
    plain = rest.removesuffix(version)
    vendor, _, system = plain.partition("-")
    if plain in _SYSTEMS:
        vendor, system = "", plain
    elif not vendor or system not in _SYSTEMS:
        return None
    if architecture not in _ARCHITECTURES or (version and system not in (*_VERSIONS, "linux-android")):
        return None
    if system not in _VENDORS:
        return f"{architecture}-{rest}"
    if architecture not in _ON_ALL_SYSTEMS:
        return None
    return f"{architecture}-{vendor or _VENDORS[system]}-{system}{version or _VERSIONS.get(system, '')}"


def _level(text: str, family: Iterable[Machine], base: Machine, features: Iterable[str]) -> Machine:
    """Return the highest level of ``family``, highest first, that needs no more than ``features`` and than ``base``."""
    family = [*family, base]
    given = set(base.needs)
    for feature in features:
        named = [t for t in family if feature in (t.name, t.name.partition("+")[2])]
        if named:
            given |= set(named[0].needs)
        elif any(feature in t.needs for t in family):
            given.add(feature)
        else:
            words = dict.fromkeys(t.name.partition("+")[2] or t.name for t in family if t is not base)
            raise UsageError(
                f"target {text!r}: no level has the feature {feature!r}; legal are {choices(feature, words)}",
                code="bad-target",
            )
    found = next(t for t in family if set(t.needs) <= given)
    if unused := sorted(given - set(found.needs)):
        able = next(t for t in reversed(family) if set(unused) <= set(t.needs))
        lacking = ", ".join(sorted(set(able.needs) - given))
        raise UsageError(
            f"target {text!r}: the feature {', '.join(unused)} is used by the level {able.name}, which needs {lacking} "
            f"too; legal is +{able.name.partition('+')[2] or able.name}",
            code="bad-target",
        )
    return found

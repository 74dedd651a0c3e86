"""The machine that exported code runs on: a level by its name, or LLVM's triple with features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level as portable_level
from convsmith.machine.registry import device_targets, known_targets

__all__ = ["THIS_MACHINE", "export_machine"]

THIS_MACHINE = "cpu"
"""The name of this machine, whose level follows from the problem."""

_SYSTEMS = ("linux-gnu", "linux-musl", "linux-android", "none", "none-elf", "elf")
"""Suffixes of triples whose object code is ELF."""
_ARCHITECTURES = ("x86_64", "aarch64", "hexagon", "riscv64")


def export_machine(text: str) -> Machine:
    """Return the machine that ``text`` names: a level, a device, or a triple with features such as
    ``aarch64-linux-gnu+dotprod``. UsageError for an unknown level, triple or feature.
    """
    expect_text("target", text, "bad-target")
    levels, devices = {t.name: t for t in known_targets()}, {t.name: t for t in device_targets()}
    if text in levels or text in devices:
        return {**levels, **devices}[text]
    triple, *features = text.split("+")
    architecture, _, rest = triple.partition("-")
    vendor, _, system = rest.partition("-")
    if architecture not in _ARCHITECTURES or (rest not in _SYSTEMS and (not vendor or system not in _SYSTEMS)):
        triples = ", ".join(f"{name}-linux-gnu" for name in _ARCHITECTURES)
        raise UsageError(
            f"target {text!r} is unknown; known are {THIS_MACHINE}, the triples {triples} (also with "
            f"{', '.join(_SYSTEMS[1:])} at the end) with features such as +avx2, and the levels "
            f"{choices(text, {**levels, **devices})}",
            code="bad-target",
        )
    family = [t for t in levels.values() if t.triple.partition("-")[0] == architecture and t.needs]
    base = portable_level(triple) if architecture == "x86_64" else family[-1]
    return replace(_level(text, family, base, features), triple=triple)


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

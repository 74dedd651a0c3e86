"""One compiled kernel for many sizes: the requirements on its calls, and its artifact at the sizes of a call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.compiler.arguments import argument_of
from convsmith.compiler.driver import pointer_arguments
from convsmith.ir.intern import interning
from convsmith.plan.dynamic import TABLE, call_pointers, size_values
from convsmith.problem.conv import Conv

__all__ = ["at_call", "fixed_sizes", "requirements"]


def requirements(p: Conv, dynamic: Collection[str]) -> str:
    """Return the requirements on the source of a call as text: `ic == 8, mb >= 0, ih >= 0, iw >= 0`."""
    sizes = {"ic": p.ic, "mb": p.mb} | {f"i{a}": size for a, size in zip(p.axes, p.i)}
    return ", ".join(f"{name} >= 0" if name in dynamic else f"{name} == {size}" for name, size in sizes.items())


def fixed_sizes(artifact: Artifact) -> dict[str, int]:
    """Return the dims of fixed size, by the artifact's requirements."""
    pairs = (text.split(" == ") for text in artifact.notes["requirements"].split(", ") if "==" in text)
    return {name: int(size) for name, size in pairs}


def at_call(artifact: Artifact, q: Conv) -> Artifact:
    """Return the artifact with the arguments and sizes of the problem `q`, the kernel's problem at the sizes of a call.
    """
    with interning():
        pointers = call_pointers(q)
        values = size_values(q, pointers.window)
        known = {t.name: argument_of(t) for t in q.tensors} | pointer_arguments(q, pointers, TABLE, "src")

    def argument(a: Argument) -> Argument:
        return replace(a, value=values[a.name]) if a.role == "size" else known.get(a.name, a)

    entries = {name: replace(e, arguments=tuple(map(argument, e.arguments))) for name, e in artifact.entries.items()}
    return replace(artifact, entries=entries, problem=str(q))

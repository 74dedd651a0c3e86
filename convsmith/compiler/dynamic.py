"""One compiled kernel for many sizes: the requirements on its calls, and its artifact at the sizes of a call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.compiler.arguments import argument_of
from convsmith.compiler.driver import pointer_arguments
from convsmith.ir.intern import interning
from convsmith.layout.requirements import Requirements
from convsmith.plan.dynamic import size_values, symbolic_dims
from convsmith.plan.dynamic_table import TABLE, call_pointers, section_values
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor

__all__ = ["at_call", "given_tensor", "requirements"]


def given_tensor(p: Problem) -> Tensor:
    """Return the tensor whose shape requirements are about: the source, or what there is instead in BWD_D."""
    return p.tensor("diff_dst" if p.dir == "BWD_D" else "src")


def requirements(p: Problem, dynamic: Collection[str]) -> Requirements:
    """Return the requirements on the tensor that a call gives: sizes of the dims in `dynamic` are free."""
    given = given_tensor(p)
    sizes = dict(zip(given.dims, given.shape))
    fixed = [name for name in sizes if name not in symbolic_dims(p)]
    others = [name for name in sizes if name not in fixed]
    return Requirements(tuple((name, None if name in dynamic else sizes[name]) for name in (*fixed, *others)))


def at_call(artifact: Artifact, q: Problem) -> Artifact:
    """Return the artifact with the arguments and sizes of the problem `q`, the kernel's problem at the sizes of a call.
    """
    with interning():
        known = {t.name: argument_of(t) for t in q.tensors}
        values = size_values(q)
        if any(a.role == "table" for a in artifact.entries["main"].arguments):
            assert isinstance(q, Conv)
            pointers = call_pointers(q)
            values |= section_values(q, pointers.window)
            known |= pointer_arguments(q, pointers, TABLE, given_tensor(q).name, artifact.address_bits)

    def argument(a: Argument) -> Argument:
        return replace(a, value=values[a.name]) if a.role == "size" else known.get(a.name, a)

    entries = {name: replace(e, arguments=tuple(map(argument, e.arguments))) for name, e in artifact.entries.items()}
    return replace(artifact, entries=entries, problem=str(q))

"""One compiled kernel for many sizes: the requirements on its calls, and its artifact at the sizes of a call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.compiler.arguments import argument_of
from convsmith.compiler.entries import absent_points, pointer_arguments
from convsmith.ir.intern import interning
from convsmith.layout.requirements import Requirements
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import joined_pixels, kernel_arrays, serves_unpadded, size_values, symbolic_dims
from convsmith.schedule.dynamic_table import table_name, table_of_call
from convsmith.statement.fused import stage_name

__all__ = ["at_call", "given_tensor", "requirements"]


def given_tensor(p: Problem) -> Tensor:
    """Return the tensor whose shape requirements describe: the source, or in BWD_D the gradient of the destination."""
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
        stages = stages_of(q)
        count = 1 if stages is None else len(stages)
        configs = Config.parse(artifact.config).stages
        numbers = {stage_name(n): n for n in range(count)} | {"main": count - 1}
        entries = {
            name: _at_sizes(e, q, numbers.get(name, 0), configs, artifact.address_bits)
            for name, e in artifact.entries.items()
        }
    return replace(artifact, entries=entries, problem=str(q))


def _at_sizes(entry: Entry, q: Problem, n: int, configs: Sequence[Config], bits: int) -> Entry:
    """Return the entry of stage `n` of `q`, the problem of a call, with the arguments and sizes of the call."""
    arrays = kernel_arrays(q, n)
    known = {name: argument_of(replace(t, name=name)) for name, t in arrays.items()}
    values = size_values(q, n)
    if any(a.role == "table" for a in entry.arguments):
        stages = stages_of(q)
        p = q if stages is None else stages.problems[n]
        pointers, sizes = table_of_call(q, n, arrays, configs[n])
        values |= sizes
        source = given_tensor(p).name if stages is None else stages.names[n]["src"]
        known |= pointer_arguments(pointers, table_name(source), source, absent_points(q, source), bits)

    elif serves_unpadded(q, configs[n]):
        values |= joined_pixels(q, arrays, configs[n])

    def argument(a: Argument) -> Argument:
        if a.role == "size":
            return replace(a, value=values[a.name])
        if a.role == "shared":
            return replace(a, size=known[a.name].size if a.name in known else a.size)
        return known.get(a.name, a)

    return replace(entry, arguments=tuple(map(argument, entry.arguments)))

"""What code generation is told of a target."""

from __future__ import annotations

from convsmith.codegen.llvm_text import Facts
from convsmith.machine.base import Machine


def facts(target: Machine) -> Facts:
    """The target as code generation sees it."""
    rows = {r.name: r for r in (*target.instructions, *target.transpositions)}
    return Facts(target.triple, dict(target.attributes), rows, target.half, target.fragments)

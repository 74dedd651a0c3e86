"""What code generation is told of a target."""

from __future__ import annotations

from convsmith.codegen.llvm_text import Facts
from convsmith.target.base import Target


def facts(target: Target) -> Facts:
    """The target's instructions by name, and its registers for fragments."""
    return Facts({r.name: r for r in target.instructions}, target.half, target.fragments)

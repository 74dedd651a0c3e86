"""The strict interpreter, which defines the meaning of the IR. It imports no pass and no code generator."""

from __future__ import annotations

from convsmith.interp.interp import InstructionSpec, run
from convsmith.interp.memory import InterpError

__all__ = ["InstructionSpec", "InterpError", "run"]

"""The strict interpreter: the living definition of what the IR means.  It imports no pass and no code generator."""

from __future__ import annotations

from convsmith.interp.interp import InstructionSpec, run
from convsmith.interp.memory import InterpError

__all__ = ["InstructionSpec", "InterpError", "run"]

"""Machine instructions as rows: what one computes, what it is called, what it needs.

The specification is a kernel over fragments: ``c`` is read and written, the others are read.  The interpreter runs
it; the pass that picks instructions matches statements against it; tests compare it with the machine.

Most instructions work on vectors. Some work on *fragments*, matrices of several rows that have registers of their own
(:class:`FragmentFile`): their operands are read from memory row by row, at any distance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from convsmith.ir.stmt import Kernel


@dataclass(frozen=True)
class Instruction:
    """One row of a target's table.

    ``spec`` is the text of a kernel; ``llvm`` the expression that computes the new ``c`` from ``{c}``, ``{a}`` and
    ``{b}`` (LLVM text, with ``declare`` what it needs declared), after others, one a line, that it may name ``{0}``,
    ``{1}`` ...; ``needs`` CPU features by LLVM's names; ``mnemonic`` what must show in the assembly (empty where LLVM
    is free to choose); ``lanes`` the elements of a row of ``c``, and ``terms`` how many products are added to each.
    With several ``rows`` the operands are fragments, and ``llvm`` one call on the numbers of their registers.
    """

    name: str
    spec: str
    llvm: str
    declare: str
    needs: tuple[str, ...]
    mnemonic: str
    lanes: int
    terms: int
    types: tuple[str, str, str]
    """Names of the data types of ``a``, ``b`` and ``c``."""
    rows: int = 1

    @property
    def group(self) -> int:
        """Terms of a sum that lie side by side in ``b``."""
        return self.terms if self.rows == 1 else self.kernel.params[2].shape[-1] // self.lanes

    def emit(self, put: Callable[[str], str], operands: Mapping[str, str]) -> str:
        """The new ``c``: ``put`` takes each expression and names its result."""
        done: list[str] = []
        for line in self.llvm.splitlines():
            done.append(put(line.format(*done, **operands)))
        return done[-1]

    @cached_property
    def kernel(self) -> Kernel:
        """The parsed specification."""
        from convsmith.ir.parse import parse_kernel

        return parse_kernel(self.spec)


@dataclass(frozen=True)
class FragmentFile:
    """Registers for fragments, and what a function does with them (LLVM text).

    ``zero`` clears register ``{r}``; ``load`` and ``store`` move it from and to ``{p}``, rows ``{distance}`` bytes
    apart; ``begin`` takes ``{p}``, what ``configuration`` makes of the rows and bytes a row of each register; ``end``
    gives the registers back. ``product`` and ``move`` are the cycles of an instruction and of a load or store.
    """

    count: int
    product: float
    move: float
    zero: str
    load: str
    store: str
    begin: str
    end: str
    declare: tuple[str, ...]
    configuration: Callable[[Sequence[tuple[int, int]]], bytes]

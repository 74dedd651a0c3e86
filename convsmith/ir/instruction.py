"""Machine instructions as rows: what one computes, what it is called, what it needs.

The specification is a kernel over fragments: ``c`` is written, and read where products are added to it; the others are
read.  The interpreter runs it; passes that pick rows match statements against it; tests compare it with the machine.

Most instructions work on vectors. Some work on *fragments*, matrices of several rows that have registers of their own
(:class:`FragmentFile`): their operands are read from memory row by row, at any distance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from convsmith.diag.forking import cached_property, import_lock
from convsmith.ir.stmt import Kernel


@dataclass(frozen=True)
class Row:
    """What every row of a target's table has.

    ``spec`` is the text of a kernel; ``llvm`` expressions (LLVM text, with ``declare`` what they need declared), one a
    line, that name the operands ``{a}`` ... and, by their numbers, those before them: ``{0}``, ``{1}`` ...; ``needs``
    CPU features by LLVM's names; ``mnemonic`` what must show in the assembly (empty where LLVM is free to choose).
    """

    name: str
    spec: str
    llvm: str
    declare: str
    needs: tuple[str, ...]
    mnemonic: str

    def emit_all(self, put: Callable[[str], str], operands: Mapping[str, str]) -> list[str]:
        """The values of all expressions: ``put`` takes each and names its result."""
        done: list[str] = []
        for line in self.llvm.splitlines():
            done.append(put(line.format(*done, **operands)))
        return done

    @cached_property
    def kernel(self) -> Kernel:
        """The parsed specification."""
        with import_lock:
            from convsmith.ir.parse import parse_kernel

        return parse_kernel(self.spec)


@dataclass(frozen=True)
class Instruction(Row):
    """A row that adds products to ``c``.

    ``llvm`` computes the new ``c`` from ``{c}``, ``{a}`` and ``{b}``; ``lanes`` are the elements of a row of ``c``, and
    ``terms`` how many products are added to each. With several ``rows`` the operands are fragments, and ``llvm`` is one
    call on the numbers of their registers.
    """

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
        """The new ``c``."""
        return self.emit_all(put, operands)[-1]


@dataclass(frozen=True)
class Transposition(Row):
    """A row that writes rows of ``a`` as columns of ``c``: groups of neighbours of ``a`` stay together.

    Operands are vectors: ``{a0}``, ``{a1}`` ... are the rows of ``a``, and the last expressions those of ``c``.
    ``shape`` is (rows of ``a``, groups in a row, elements of a group); ``joined`` says that ``c`` is one vector.
    """

    dtype: str
    shape: tuple[int, int, int]
    joined: bool

    def emit_rows(self, put: Callable[[str], str], rows: Sequence[str]) -> list[str]:
        """The rows of ``c``."""
        done = self.emit_all(put, {f"a{n}": row for n, row in enumerate(rows)})
        return done[-self.kernel.params[0].shape[0] :]


@dataclass(frozen=True)
class RegisterFile:
    """Registers of one kind: ``count`` of them, each of ``bits``."""

    name: str
    count: int
    bits: int


@dataclass(frozen=True)
class FragmentFile(RegisterFile):
    """Registers for fragments, and what a function does with them (LLVM text).

    ``zero`` clears register ``{r}``; ``load`` and ``store`` move it from and to ``{p}``, rows ``{distance}`` bytes
    apart; ``begin`` takes ``{p}``, what ``configuration`` makes of the rows and bytes a row of each register; ``end``
    gives the registers back.
    """

    zero: str
    load: str
    store: str
    begin: str
    end: str
    declare: tuple[str, ...]
    configuration: Callable[[Sequence[tuple[int, int]]], bytes]

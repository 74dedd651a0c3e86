"""Debug information of a module: the line of a listing of the IR that each LLVM instruction comes from.

Assembly then has a `.loc` directive before the instructions of each line. The instructions do not change.
"""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.ir.stmt import Stmt

__all__ = ["DebugLines"]

_VERSION, _FILE, _UNIT, _TYPE, _FIRST = range(1000, 1005)
"""Numbers of metadata nodes; the nodes of functions follow."""


class DebugLines:
    """Locates instructions at the lines of statements, which ``numbers`` lists from 1 on."""

    def __init__(self, numbers: Mapping[Stmt, int]) -> None:
        self._numbers = numbers
        self._functions: list[str] = []

    def define(self, name: str) -> str:
        """Begin the function ``name``; return the mark of its definition."""
        self._functions.append(name)
        return f" !dbg !{self._function}"

    @property
    def _function(self) -> int:
        return _FIRST + len(self._functions) - 1

    def locate(self, lines: list[str], begin: int, s: Stmt) -> None:
        """Locate the instructions from ``begin`` on that belong to no inner statement at the line of ``s``."""
        number = self._numbers.get(s)
        if number is None:
            return
        mark = f", !dbg !DILocation(line: {number}, scope: !{self._function})"
        for n in range(begin, len(lines)):
            if "!dbg" not in lines[n] and lines[n][-1] != ":":  # no label
                lines[n] += mark

    def text(self) -> str:
        """Return the metadata of the module."""
        functions = (
            f'!{_FIRST + n} = distinct !DISubprogram(name: "{name}", scope: !{_FILE}, file: !{_FILE}, line: 1, '
            f"type: !{_TYPE}, unit: !{_UNIT}, spFlags: DISPFlagDefinition)"
            for n, name in enumerate(self._functions)
        )
        unit = f"distinct !DICompileUnit(language: DW_LANG_C, file: !{_FILE}, emissionKind: LineTablesOnly)"
        nodes = (
            f"!llvm.dbg.cu = !{{!{_UNIT}}}", f"!llvm.module.flags = !{{!{_VERSION}}}",
            f'!{_VERSION} = !{{i32 2, !"Debug Info Version", i32 3}}',
            f'!{_FILE} = !DIFile(filename: "kernel.ir", directory: "")', f"!{_UNIT} = {unit}",
            f"!{_TYPE} = !DISubroutineType(types: !{{}})",
        )  # fmt: skip
        return "\n".join((*nodes, *functions, ""))

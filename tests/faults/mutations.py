"""Mutation operators: the small changes of a file's code that are drawn at random, as a table over its syntax tree.

An operator takes a node and yields the nodes that may stand in its place. Text that computes nothing has no sites:
docstrings, messages (f-strings, arguments of an exception, of a warning and of the trace), private functions that are
used in messages alone, annotations, decorators, imports, `__all__` and `__repr__`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
"""Replacements of a comparison: the one with the other boundary, and the negated one."""

COMPUTED: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add, ast.FloorDiv), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Mod), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitOr,),
}  # fmt: skip

CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "tuple"}

MESSAGES = frozenset({"warn", "emit"})
"""Functions that take a message."""

_TEXT = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)
"""Operands that are no numbers: another operator than theirs is a TypeError at its first run, and tells nothing."""


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    """Return the node with other fields."""
    other = copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def comparison(node: ast.AST) -> Iterator[ast.AST]:
    """Another comparison of the same operands."""
    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            for other in COMPARED[type(op)]:
                yield _with(node, ops=[*node.ops[:n], other(), *node.ops[n + 1 :]])


def arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    """Another operation of the same operands, or a sign left out."""
    if isinstance(node, ast.BinOp) and not any(map(_is_no_number, (node.left, node.right))):
        for other in COMPUTED.get(type(node.op), ()):
            yield _with(node, op=other())
    elif isinstance(node, ast.AugAssign) and not _is_no_number(node.value):
        for other in COMPUTED.get(type(node.op), ()):
            yield _with(node, op=other())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield node.operand


def boolean(node: ast.AST) -> Iterator[ast.AST]:
    """`and` for `or`, `or` for `and`, or a `not` left out."""
    if isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def condition(node: ast.AST) -> Iterator[ast.AST]:
    """A condition that always or never holds; that of a `while` never does."""
    if isinstance(node, ast.If | ast.IfExp):
        yield from (_with(node, test=ast.Constant(value)) for value in (True, False))
    elif isinstance(node, ast.While):
        yield _with(node, test=ast.Constant(False))
    elif isinstance(node, ast.comprehension):
        for n in range(len(node.ifs)):
            yield _with(node, ifs=[*node.ifs[:n], *node.ifs[n + 1 :]])


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """A neighbour of a number, or the other truth value."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield from (ast.Constant(node.value + step) for step in (1, -1))


def function(node: ast.AST) -> Iterator[ast.AST]:
    """`max` for `min`, `all` for `any`, or an order left as it is."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLED:
        other = CALLED[node.func.id]
        yield _with(node, func=ast.Name(other), keywords=node.keywords if other in ("min", "max") else [])


def arguments(node: ast.AST) -> Iterator[ast.AST]:
    """Two neighbours among the arguments of a call, exchanged."""
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _OWN_ORDER):
        for n, (a, b) in enumerate(zip(node.args, node.args[1:])):
            if not any(isinstance(x, ast.Starred) for x in (a, b)) and ast.dump(a) != ast.dump(b):
                yield _with(node, args=[*node.args[:n], b, a, *node.args[n + 2 :]])


_OWN_ORDER = frozenset({"isinstance", "issubclass", "getattr", "hasattr", "setattr", "cast", "partial", "map", "min",
                        "max", "zip", "filter"})  # fmt: skip
"""Functions that fail at their first run with exchanged arguments, or take them in any order."""


def statement(node: ast.AST) -> Iterator[ast.AST]:
    """A statement left out (a call, an update, a check), or the other way out of a loop's iteration."""
    if isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.AugAssign | ast.Raise | ast.Delete) or _is_call(node) or _is_update(node):
        yield ast.Pass()


Operator = Callable[[ast.AST], Iterator[ast.AST]]
OPERATORS: dict[str, Operator] = {
    f.__name__: f for f in (comparison, arithmetic, boolean, condition, constant, function, arguments, statement)
}


def _is_no_number(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    is_class = name[:1].isupper() and not name.isupper()
    return is_class or isinstance(node, _TEXT)


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_message(node.value)


def _is_update(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and all(isinstance(x, ast.Subscript) for x in node.targets)


def _is_message(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in MESSAGES


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_list_of_names(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign | ast.AugAssign) and "__all__" in {
        x.id for x in ast.walk(node) if isinstance(x, ast.Name)
    }


@dataclass(frozen=True)
class Site:
    """A change of one node: its place in the text (first and last character), the function, and the other text."""

    start: int
    end: int
    line: int
    function: str
    operator: str
    old: str
    new: str


def sites(text: str) -> list[Site]:
    """Return every change of a file's text that the operators know, in order."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    tree = ast.parse(text)
    silent = _of_messages(tree)
    for node, within, function in _computing(tree, None, "", silent):
        whole: Any = within if isinstance(node, ast.comprehension) else node
        for name, operator in OPERATORS.items():
            for other in operator(node):
                start = place(whole.lineno, whole.col_offset)
                end = place(whole.end_lineno, whole.end_col_offset)
                new = ast.unparse(_exchanged(within, node, other) if whole is within else other)
                if isinstance(whole, ast.If | ast.While):  # the condition alone: the block stays as it is written
                    test = whole.test
                    start, end = place(test.lineno, test.col_offset), place(test.end_lineno, test.end_col_offset)
                    new = ast.unparse(other.test)  # type: ignore[attr-defined]
                elif isinstance(whole, ast.expr):
                    new = f"({new})"
                found.append(Site(start, end, whole.lineno, function, name, text[start:end], new))
    return found


def _exchanged(within: Any, node: ast.AST, other: ast.AST) -> ast.AST:
    """Return a comprehension with another clause."""
    return _with(within, generators=[other if x is node else x for x in within.generators])


def _of_messages(tree: ast.Module) -> frozenset[str]:
    """Return the private functions of a module that messages alone use, or other functions of this kind.

    An f-string may be text of a program, and is a message where it is raised or shown.
    """
    private = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("_")}
    silent = frozenset[str]()
    while True:
        found = frozenset(private & _used(tree, silent, True) - _used(tree, silent, False))
        if found == silent:
            return found
        silent = found


def _used(node: ast.AST, silent: frozenset[str], in_text: bool, is_text: bool = False) -> set[str]:
    """Return the names that are used in messages and functions of theirs (`in_text`), or elsewhere."""
    is_text = is_text or isinstance(node, ast.Raise) or _is_message(node)
    is_text = is_text or (isinstance(node, ast.FunctionDef) and node.name in silent)
    own = {node.id} if isinstance(node, ast.Name) and is_text == in_text else set()
    return own.union(*(_used(part, silent, in_text, is_text) for part in ast.iter_child_nodes(node)))


def _computing(
    node: ast.AST, within: ast.AST | None, function: str, silent: frozenset[str]
) -> Iterator[tuple[ast.AST, Any, str]]:
    """Yield the nodes whose values the program computes with, each with the node around it and its function's name."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
        if node.name == "__repr__" or function in silent:
            return
    if _is_message(node) or _is_for_types(node) or _is_list_of_names(node):
        return
    yield node, within, function
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "format_spec"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not isinstance(part, ast.JoinedStr | ast.Import | ast.ImportFrom):
                yield from _computing(part, node, function, silent)

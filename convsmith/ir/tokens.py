"""Tokens of printed IR, and a cursor over them.

Lines and indentation produce tokens, as in Python: every line ends in ``newline``, a deeper line starts with
``indent``, and a shallower line starts with one ``dedent`` per block that ends.  A line that starts with ``# `` is a
comment.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import MAX_DIGITS, has_long_number

T = TypeVar("T")

_TOKEN = re.compile(
    r"(?P<float>\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)"
    r"|(?P<int>\d+)"
    r"|(?P<name>[A-Za-z_]\w*(?:\.\w+)*)"
    r"|(?P<note>#\w+)"
    r"|(?P<op>\.\.|//|>=|<=|==|!=|[-+*/%<>=()\[\]{},:@?])"
)


class Token(NamedTuple):
    """``kind`` is a group of the token expression, ``newline``, ``indent``, ``dedent`` or ``end``."""

    kind: str
    text: str
    line: int
    column: int


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of ``text``.

    UsageError, with line and column, if a character starts no token or a number is too long for Python to read.
    """
    levels: list[int] = []
    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        pad = len(line) - len(line.lstrip(" "))
        if pad == len(line) or line.startswith("# ", pad):
            continue
        if not levels:
            levels.append(pad)
        elif pad > levels[-1]:
            levels.append(pad)
            yield Token("indent", "more indentation", number, pad + 1)
        while pad < levels[-1]:
            levels.pop()
            if not levels or pad > levels[-1]:
                raise UsageError(f"line {number}, column {pad + 1}: the indentation is that of no line above")
            yield Token("dedent", "less indentation", number, pad + 1)
        at = pad
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                raise UsageError(f"line {number}, column {at + 1}: {line[at]!r} starts no token")
            if has_long_number(match.group()):
                raise UsageError(f"line {number}, column {at + 1}: expected a number of at most {MAX_DIGITS} digits")
            yield Token(str(match.lastgroup), match.group(), number, at + 1)
            at = match.end()
            while line.startswith(" ", at):
                at += 1
        yield Token("newline", "end of line", number, len(line) + 1)
    for _ in levels[1:]:
        yield Token("dedent", "less indentation", number, 1)
    yield Token("end", "end of text", number, 1)


class Cursor:
    """A position in the tokens of a text, and the primitives of a recursive-descent parser."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._at = 0

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _fail(self, expected: str, token: Token | None = None) -> UsageError:
        t = token or self._now
        actual = t.text if t.kind in ("newline", "indent", "dedent", "end") else repr(t.text)
        return UsageError(f"line {t.line}, column {t.column}: expected {expected}, found {actual}")

    def _is(self, *texts: str) -> bool:
        return self._now.text in texts and self._now.kind in ("op", "name", "note")

    def _follows(self, text: str) -> bool:
        """Return whether the next token after the current one is the operator ``text``."""
        t = self._tokens[self._at + 1] if self._now.kind != "end" else self._now
        return t.kind == "op" and t.text == text

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, *texts: str) -> bool:
        if self._is(*texts):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._fail(repr(text))

    def _kind(self, kind: str, expected: str) -> str:
        if self._now.kind != kind:
            raise self._fail(expected)
        return self._next().text

    def _name(self, meaning: str) -> str:
        return self._kind("name", f"the name of {meaning}")

    def _int(self, meaning: str = "an integer") -> int:
        sign = -1 if self._take("-") else 1
        return sign * int(self._kind("int", meaning))

    def _list(self, item: Callable[[], T], end: str) -> list[T]:
        """Parse items separated by commas up to and including ``end``."""
        out: list[T] = []
        while not self._take(end):
            out.append(item())
            if not self._is(end):
                self._expect(",")
        return out

    def read(self, item: Callable[[], T]) -> T:
        """Parse ``item``. UsageError if the text nests deeper than Python's stack permits."""
        try:
            return item()
        except RecursionError:
            raise self._fail(f"less nesting (the stack has {sys.getrecursionlimit()} frames)") from None

    def whole(self, item: Callable[[], T]) -> T:
        """Parse ``item``, which must be the whole text on one line."""
        out = self.read(item)
        self._kind("newline", "the end")
        self._kind("end", "the end")
        return out

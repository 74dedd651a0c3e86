"""A schedule that is given as a function instead of a config."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.files import read_text
from convsmith.diag.record import record

if TYPE_CHECKING:
    from convsmith.schedule.custom import KernelSchedule

OPTION = "--schedule="
"""Prefix of the word that names a function, in the text of decisions and as an option of commands."""


@record(frozen=True)
class GivenSchedule:
    """The decisions of ``function``, which receives a :class:`~convsmith.schedule.custom.KernelSchedule` of the naive
    nest and calls its primitives.

    With an empty ``target`` or 0 ``threads``, the call determines them.
    """

    function: Callable[[KernelSchedule], object]
    target: str = ""
    threads: int = 0

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(
                f"schedule={shown(self.function)} is not legal: expected a function of one argument, the schedule of "
                "the naive nest", code="schedule",
            )  # fmt: skip

    @property
    def has_transform(self) -> bool:
        """Whether a statement is the product of a transform: never."""
        return False

    def __str__(self) -> str:
        words = [f"--target={self.target}", f"{OPTION}{_place(self.function)}"]
        if self.threads > 1:
            words.append(f"--threads={self.threads}")
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> GivenSchedule:
        """Return the decisions of a text such as ``--target=avx2 --schedule=FILE.py:function``; UsageError names the
        fault.
        """
        fields = {"target": "", "threads": "", "schedule": ""}
        for word in text.split():
            name, equals, value = word.removeprefix("--").partition("=")
            if not word.startswith("--") or name not in fields or not equals:
                raise UsageError(
                    f"{text}: {word!r} does not go with {OPTION}, which decides everything; legal beside it are "
                    "--target= and --threads=", code="schedule",
                )  # fmt: skip
            fields[name] = value
        threads = fields["threads"]
        if threads and not threads.isdecimal():
            raise UsageError(f"--threads={threads} is not legal: expected a number", code="threads")
        return GivenSchedule(_loaded(fields["schedule"]), fields["target"], int(threads or 0))


def _place(function: Any) -> str:
    """Return the file, the name and the arguments of a function, as :func:`GivenSchedule.parse` reads them."""
    if isinstance(function, partial) and not function.args:
        return f"{_place(function.func)}({','.join(f'{name}={x!r}' for name, x in function.keywords.items())})"
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if isinstance(code, CodeType) else "?"
    return f"{file}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _loaded(place: str) -> Callable[[KernelSchedule], object]:
    """Return the function that a file of Python defines; ``place`` is FILE.py:function or FILE.py:function(x=1,y=2)."""
    file, colon, call = place.partition(".py:")
    try:
        (made,) = ast.parse(call if call.endswith(")") else f"{call}()").body
        assert isinstance(made, ast.Expr) and isinstance(made.value, ast.Call) and not made.value.args
        name = ast.unparse(made.value.func)
        arguments = {str(x.arg): ast.literal_eval(x.value) for x in made.value.keywords}
    except (AssertionError, SyntaxError, ValueError):
        legal = "FILE.py:function, or FILE.py:function(x=1,y=2)"
        raise UsageError(f"{OPTION}{place} is not legal: expected {legal}", code="schedule") from None
    file += colon[:-1]
    found = _names(str(Path(file).absolute()), read_text(file))
    functions = [n for n, x in found.items() if callable(x) and getattr(x, "__module__", "") == found["__name__"]]
    if not callable(found.get(name)):
        raise UsageError(
            f"{OPTION}{place}: {file} has no function {name!r}; legal are {choices(name, functions)}", code="schedule"
        )
    function: Callable[[KernelSchedule], object] = found[name]
    return partial(function, **arguments) if arguments else function


@lru_cache(16)
def _names(file: str, text: str) -> dict[str, Any]:
    """Return the names that a program defines; the same text is run once. UsageError if it is not Python."""
    module = ModuleType(f"{Path(file).stem} {sha256(text.encode()).hexdigest()[:8]}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # where classes look their module up
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except SyntaxError as error:
        raise UsageError(f"{OPTION}{file}: line {error.lineno} is no Python: {error.msg}", code="schedule") from None
    return module.__dict__

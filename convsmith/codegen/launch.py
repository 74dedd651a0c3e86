"""The function that starts an entry, as LLVM text: one form for each kind of launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from convsmith.codegen.artifact import GOMP, RUNTIME_SYMBOLS, Launch
from convsmith.diag.errors import UnsupportedError

__all__ = ["entry_text"]


class TaskStart(NamedTuple):
    """The way in which object code starts tasks through one library.

    `declare` are the declarations of its entry points, in the order of `RUNTIME_SYMBOLS`; `part` takes the type of
    words and returns the lines that define `%tid` and `%n` in a task; `start` runs the function `{task}` on
    `{threads}` threads.
    """

    declare: tuple[str, ...]
    part: Callable[[str], str]
    start: str


def _gomp_part(word: str) -> str:
    """Return the lines that ask GOMP for a thread's number and the number of threads, which GOMP returns as 32-bit
    integers.
    """
    names = (("who", "thread_num"), ("all", "num_threads"))
    if word == "i32":
        names = (("tid", "thread_num"), ("n", "num_threads"))
    lines = [f"  %{name} = call i32 @omp_get_{what}()" for name, what in names]
    if word != "i32":
        lines += [f"  %tid = sext i32 %who to {word}", f"  %n = sext i32 %all to {word}"]
    return "\n".join((*lines, ""))


_STARTS = {
    GOMP: TaskStart(
        ("void @{}(ptr, ptr, i32, i32)", "i32 @{}()", "i32 @{}()"),
        _gomp_part,
        "call void @GOMP_parallel(ptr @{task}, ptr %args, i32 {threads}, i32 0)",
    )
}


def entry_text(symbol: str, launch: Launch, word: str, declared: dict[str, None]) -> str:
    """Return the function `symbol`, which runs all parts of an entry, numbered by values of the type `word`; the symbol
    of a call is a second name of the function that runs its only part.

    The declarations of called functions are added to `declared`.
    """
    if launch.kind == "call":
        return f"@{symbol} = alias void (ptr, {word}, {word}), ptr @{symbol}_chunk\n"
    if launch.kind != "tasks" or launch.runtime not in _STARTS:
        raise UnsupportedError(
            f"entry {symbol}: no code starts a {launch.kind} with the runtime {launch.runtime!r}; legal are a call, "
            f"and tasks with {', '.join(_STARTS)}",
            code="launch",
        )
    start, task = _STARTS[launch.runtime], f"{symbol}_member"
    for name, declaration in zip(RUNTIME_SYMBOLS[launch.runtime], start.declare):
        declared[f"declare {declaration.format(name)}"] = None
    return (
        f"define internal void @{task}(ptr %args) #0 {{\nentry:\n{start.part(word)}"
        f"  call void @{symbol}_chunk(ptr %args, {word} %tid, {word} %n)\n  ret void\n}}\n"
        f"define void @{symbol}(ptr %args) #0 {{\nentry:\n"
        f"  {start.start.format(task=task, threads=launch.threads)}\n  ret void\n}}\n"
    )

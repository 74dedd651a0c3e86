"""Runs a list of passes under instruments.

A pipeline is a list of :class:`Step`; each instrument is called after every step.  Tracing, timing, dumping, verifying
and interpreting are instruments, so a pass is a plain function of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Protocol

from convsmith.ir.stmt import Kernel


class Step:
    """One pass with its arguments."""

    __slots__ = ("args", "run")

    def __init__(self, run: Callable[..., Kernel], *args: Any) -> None:
        self.run, self.args = run, args

    @property
    def name(self) -> str:
        return self.run.__name__

    def __call__(self, kernel: Kernel) -> Kernel:
        return self.run(kernel, *self.args)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(_short, self.args))})"

    __repr__ = __str__


def _short(x: Any) -> str:
    if isinstance(x, (tuple, list)):
        return "(" + ", ".join(map(_short, x)) + ")"
    return getattr(x, "name", None) or str(x)


class Instrument(Protocol):
    """Observes the kernel after every step; ``number`` counts the steps, and the initial kernel has number 0."""

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None: ...


def run_steps(kernel: Kernel, steps: Iterable[Step], instruments: Sequence[Instrument] = ()) -> Kernel:
    """Return ``kernel`` after all ``steps``; each instrument sees the initial kernel and the kernel after every step.
    """
    for i in instruments:
        i.after(0, None, kernel, 0.0, True)
    for number, step in enumerate(steps, 1):
        start = perf_counter()
        new = step(kernel)
        seconds = perf_counter() - start
        for i in instruments:
            i.after(number, step, new, seconds, new is not kernel)
        kernel = new
    return kernel

"""A page of HTML about a network: the time of each step beside its bound, memory over time, and what would gain most.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convsmith.network.image import ImageStep, NetworkImage
from convsmith.network.report.explain import bytes_text, form_text, gains_of
from convsmith.page.document import check_page, render, write_page

if TYPE_CHECKING:
    from convsmith.network.report.step_times import NetworkTimes, StepTime

__all__ = ["write_network_page"]


def write_network_page(file: str | os.PathLike[str], image: NetworkImage, times: NetworkTimes | None) -> None:
    """Write the page about a network to `file`, with times of its steps if `times` are given.

    UsageError if the file cannot be written, UnsupportedError if a package of pages is not installed.
    """
    path = Path(os.fspath(file))
    check_page(path)
    write_page(path, render("network.html", _values(image, times)))


def _values(image: NetworkImage, times: NetworkTimes | None) -> dict[str, Any]:
    """Return the values of the template."""
    alive = [step.alive for step in image.steps]
    most = max(alive, default=0)
    longest = max((x.seconds.median for x in times.steps), default=0.0) if times is not None else 0.0
    steps = [
        {
            **_step(n, step), "height": step.alive / most if most else 0.0,
            **({} if times is None else _timed(times.steps[n], longest)),
        }
        for n, step in enumerate(image.steps)
    ]  # fmt: skip
    return {
        "title": image.name, "verdict": _verdict(image, times), "facts": _facts(image), "steps": steps,
        "timed": times is not None, "most": bytes_text(most), "fullest": alive.index(most) + 1 if alive else 0,
        "gains": [] if times is None else [x._asdict() for x in gains_of(image, times)],
    }  # fmt: skip


def _verdict(image: NetworkImage, times: NetworkTimes | None) -> str:
    """Return the first line of the page."""
    count = len(image.steps)
    if times is None:
        return f"{count} steps; --time states the time of each."
    least = sum(x.bound.seconds for x in times.steps)
    whole = times.whole.median
    part = f", of which the bounds of its steps allow {least * 1e3:.3f} ms ({least / whole:.0%})" if whole else ""
    return f"A call takes {whole * 1e3:.3f} ms in {count} steps{part}."


def _facts(image: NetworkImage) -> list[tuple[str, str]]:
    """Return what the head of the page lists."""
    size = sum(len(kernel.code) for kernel in (*image.kernels, image.driver))
    return [
        *(("input", form_text(x)) for x in image.inputs), *(("output", form_text(x)) for x in image.outputs),
        ("kernels", f"{len(image.kernels)} for {len(image.steps)} steps, {bytes_text(size)} of code"),
        ("weights", f"{bytes_text(image.weights.size)}, packed"),
        ("workspace", f"{bytes_text(image.workspace)}; {bytes_text(image.bound)} are alive in one step"),
    ]  # fmt: skip


def _step(n: int, step: ImageStep) -> Mapping[str, Any]:
    """Return what the page states of a step without its time."""
    return {
        "number": n + 1, "names": " + ".join(step.names), "work": step.work, "apart": step.apart,
        "alive": bytes_text(step.alive),
    }  # fmt: skip


def _timed(step: StepTime, longest: float) -> Mapping[str, Any]:
    """Return what the page states of the time of a step; `longest` is the time of the slowest one, in seconds."""
    seconds = step.seconds.median
    least = min(step.bound.seconds / seconds, 1.0) if seconds else 0.0
    return {
        "time": f"{seconds * 1e3:.4f}", "share": f"{step.share:.1%}", "side": step.bound.side, "least": least,
        "width": seconds / longest if longest else 0.0, "rate": "" if step.gflops is None else f"{step.gflops:.1f}",
        "part": f"{step.bound.seconds / seconds:.0%}" if seconds else "",
    }  # fmt: skip

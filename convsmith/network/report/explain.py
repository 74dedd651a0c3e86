"""A network as a text: its steps in order, its memory, and its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from convsmith.network.image import NetworkImage, NetworkValue

if TYPE_CHECKING:
    from convsmith.network.report.step_times import NetworkTimes, StepTime

__all__ = ["NetworkGain", "bytes_text", "explain_image", "form_text", "gains_of"]

_UNITS = ("bytes", "KiB", "MiB", "GiB")


_BARS = " ▁▂▃▄▅▆▇█"
_SLOWEST = 3
"""Number of steps, and of gains, that a page with times names at its top."""


def explain_image(image: NetworkImage, times: NetworkTimes | None = None) -> str:
    """Return a page about a network: inputs, outputs, memory, and each step, with its time if `times` are given."""
    return "\n".join(_lines(image, times))


def _lines(image: NetworkImage, times: NetworkTimes | None) -> Iterator[str]:
    for title, values in (("input", image.inputs), ("output", image.outputs)):
        yield from (f"{title:10} {form_text(x)}" for x in values)
    kernels = Counter(step.work for step in image.steps)
    size = sum(len(kernel.code) for kernel in (*image.kernels, image.driver))
    yield f"{'kernels':10} {len(image.kernels)} for {len(image.steps)} steps, {bytes_text(size)} of code"
    yield f"{'weights':10} {bytes_text(image.weights.size)}, packed"
    over = image.workspace / image.bound - 1 if image.bound else 0.0
    bound = "as much as is alive in one step" if not over else f"{over:.1%} more than is alive in one step"
    alive = [step.alive for step in image.steps]
    yield f"{'workspace':10} {bytes_text(image.workspace)}, {bound}"
    if any(alive):
        yield f"{'memory':10} {_profile(alive)} most in step {alive.index(max(alive)) + 1}"
    if times is not None:
        total = sum(step.seconds.median for step in times.steps)
        yield f"{'time':10} {times.whole.median * 1e3:.3f} ms a call; steps one by one {total * 1e3:.3f} ms"
        worst = [f"step {n + 1} {times.steps[n].share:.1%}" for n in times.slowest(_SLOWEST)]
        yield f"{'slowest':10} {', '.join(worst)}"
        for word, line in zip(("gains", "", ""), _gains(image, times)):
            yield f"{word:10} {line}"
    yield ""
    for number, step in enumerate(image.steps):
        again = f" (one of {kernels[step.work]})" if kernels[step.work] > 1 else ""
        yield f"{number + 1:3}  {' + '.join(step.names)}"
        if times is not None:
            yield f"     {_time(times.steps[number])}"
        yield f"     {step.work}{again}"
        yield f"     {bytes_text(step.alive)} alive" + (f"; apart: {step.apart}" if step.apart else "")


def _profile(alive: Sequence[int]) -> str:
    """Return a bar for each step, as high as the bytes that are alive."""
    most = max(alive)
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // most)] for n in alive)


class NetworkGain(NamedTuple):
    """Milliseconds that a kernel would gain if its steps reached their bound, as texts: those `lost` of those `taken`,
    its `steps`, the `side` of its bound, and its `work`.
    """

    lost: str
    taken: str
    steps: str
    side: str
    work: str


def gains_of(image: NetworkImage, times: NetworkTimes) -> list[NetworkGain]:
    """Return the kernels that would gain most if their steps reached their bounds."""
    steps: dict[str, list[int]] = {}
    for n, step in enumerate(image.steps):
        steps.setdefault(step.work, []).append(n)
    lost = {work: sum(times.steps[n].lost for n in numbers) for work, numbers in steps.items()}
    found = []
    for work in sorted(lost, key=lambda x: -lost[x])[:_SLOWEST]:
        numbers = steps[work]
        taken = sum(times.steps[n].seconds.median for n in numbers)
        which = f"step{'s' * (len(numbers) > 1)} {', '.join(str(n + 1) for n in numbers)}"
        side = times.steps[numbers[0]].bound.side
        found.append(NetworkGain(f"{lost[work] * 1e3:.3f}", f"{taken * 1e3:.3f}", which, side, work))
    return found


def _gains(image: NetworkImage, times: NetworkTimes) -> list[str]:
    """Return a line for each gain."""
    return [
        f"{x.lost} of {x.taken} ms in {x.steps}, if only its {x.side} took time" for x in gains_of(image, times)
    ]  # fmt: skip


def _time(step: StepTime) -> str:
    """Return the time of a step, its share, its rate, and the part of it that its bound takes."""
    rate = "" if step.gflops is None else f", {step.gflops:.1f} GFLOP/s"
    seconds = step.seconds.median
    least = f", its {step.bound.side} {step.bound.seconds / seconds:.0%}" if seconds else ""
    return f"{seconds * 1e3:.4f} ms, {step.share:.1%}{rate}{least}"


def form_text(x: NetworkValue) -> str:
    """Return name, type and shape of a value."""
    return f"{x.name}: {x.type} {' x '.join(map(str, x.shape)) or 'one element'}"


def bytes_text(count: int) -> str:
    """Return a number of bytes with a unit."""
    power = min((max(count, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{count / (1 << 10 * power):.1f} {_UNITS[power]}" if power else f"{count} bytes"

"""What a network does, as a text: its steps in order, its memory, and its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from convsmith.network.image import NetworkImage, NetworkValue

__all__ = ["explain_image"]

_UNITS = ("bytes", "KiB", "MiB", "GiB")


def explain_image(image: NetworkImage) -> str:
    """Return a page about a network: inputs, outputs, memory, and a line for each step."""
    return "\n".join(_lines(image))


def _lines(image: NetworkImage) -> Iterator[str]:
    for title, values in (("input", image.inputs), ("output", image.outputs)):
        yield from (f"{title:10} {_form(x)}" for x in values)
    kernels = Counter(step.work for step in image.steps)
    size = sum(len(kernel.code) for kernel in (*image.kernels, image.driver))
    yield f"{'kernels':10} {len(image.kernels)} for {len(image.steps)} steps, {_bytes(size)} of code"
    yield f"{'weights':10} {_bytes(image.weights.size)}, packed"
    over = image.workspace / image.bound - 1 if image.bound else 0.0
    bound = "as much as is alive in one step" if not over else f"{over:.1%} more than is alive in one step"
    yield f"{'workspace':10} {_bytes(image.workspace)}, {bound}"
    yield ""
    for number, step in enumerate(image.steps, 1):
        again = f" (one of {kernels[step.work]})" if kernels[step.work] > 1 else ""
        yield f"{number:3}  {' + '.join(step.names)}"
        yield f"     {step.work}{again}"


def _form(x: NetworkValue) -> str:
    return f"{x.name}: {x.type} {' x '.join(map(str, x.shape)) or 'one element'}"


def _bytes(count: int) -> str:
    """Return a number of bytes with a unit."""
    power = min((max(count, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{count / (1 << 10 * power):.1f} {_UNITS[power]}" if power else f"{count} bytes"

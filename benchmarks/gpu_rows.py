"""The rows of `gpu.py`: layers of networks on a GPU, the most valuable kinds first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.suites import suite

__all__ = ["KINDS", "GpuRow", "rows"]

_LAST = "--stag=axb --dtag=axb"
_BF16 = f"--dt=bf16 {_LAST} --wtag=axb"
_GROUPS = f"--dt=bf16 {_LAST} --wtag=abxc"


class _Kind(NamedTuple):
    """Layers of one kind: the options of their lines, their networks or lines, and batches."""

    options: str
    networks: tuple[str, ...]
    batches: tuple[int, ...] = (32,)
    lines: tuple[str, ...] = ()


_RESNET = ("resnet50",)
_STEMS = (
    "mb32ic3ih224oc64oh112kh7sh2ph3", "mb32ic3ih224oc32oh112kh3sh2ph1", "mb32ic1ih28oc32oh28kh5ph2",
    "mb32ic4ih256oc96oh64kh4sh4ph0",
)  # fmt: skip
_GROUPED = (
    "g32mb32ic128ih56oc128oh56kh3ph1", "g32mb32ic256ih28oc256oh28kh3ph1", "g32mb32ic512ih14oc512oh14kh3ph1",
    "g32mb32ic1024ih7oc1024oh7kh3ph1",
)  # fmt: skip
_VOLUMES = (
    "mb4ic64id16ih28iw28oc64od16oh28ow28kd3kh3kw3pd1ph1pw1", "mb4ic128id8ih14iw14oc128od8oh14ow14kd3kh3kw3pd1ph1pw1",
    "mb4ic3id16ih112iw112oc64od16oh56ow56kd3kh7kw7sd1sh2sw2pd1ph3pw3",
    "mb4ic256id4ih14iw14oc256od4oh14ow14kd1kh3kw3pd0ph1pw1",
)  # fmt: skip
_WIDE = ("g96mb32ic96ih56oc96oh56kh7ph3", "g384mb32ic384ih14oc384oh14kh7ph3")
_CHOICES = (
    *(f"--wtag=axb {line}" for line in (
        "mb32ic64ih56oc64oh56kh3ph1", "mb32ic256ih14oc256oh14kh3ph1", "mb32ic256ih56oc256oh56kh3ph1",
        "mb32ic64ih56oc256oh56kh1", "mb32ic3ih224oc64oh112kh7sh2ph3", "mb1ic256ih14oc256oh14kh3ph1",
        "--dir=BWD_D mb32ic256ih14oc256oh14kh3ph1", "--dir=BWD_W mb32ic3ih224oc64oh112kh7sh2ph3",
        "--dir=BWD_W mb32ic256ih14oc256oh14kh3ph1",
    )), "g32mb32ic128ih56oc128oh56kh3ph1",
)  # fmt: skip
KINDS = {
    "bf16": _Kind(_BF16, _RESNET, (32, 256)), "stems": _Kind(_BF16, (), lines=_STEMS),
    "groups": _Kind(_GROUPS, (), lines=_GROUPED),
    "depthwise": _Kind(f"--dt=bf16 {_LAST}", ("mobilenet_v2",), lines=_WIDE),
    "volumes": _Kind(_BF16, (), lines=_VOLUMES), "data": _Kind(f"--dir=BWD_D {_BF16}", _RESNET),
    "weights": _Kind(f"--dir=BWD_W {_BF16}", _RESNET), "one": _Kind(_BF16, _RESNET, (1,)),
    "vgg": _Kind(_BF16, ("vgg16",)), "f16": _Kind(_BF16.replace("bf16", "f16"), _RESNET),
    "choices": _Kind(f"--dt=bf16 {_LAST}", (), lines=_CHOICES),
    "int8": _Kind(f"--dt=s8:s8:s32 {_LAST} --wtag=axb", _RESNET), "f32": _Kind(f"{_LAST} --wtag=axb", _RESNET),
}  # fmt: skip
"""Kinds of layers by name, in the order in which they are measured; the rows of a kind stand in one table."""


class GpuRow(NamedTuple):
    """A layer of a kind, with a name for people, and the text of a config, by default that of the model."""

    kind: str
    name: str
    problem: Conv
    config: str = ""


def rows(kind: str, small: bool = False) -> Iterator[GpuRow]:
    """Yield the layers of a kind, each problem once; ``small`` ones are few, and have few channels and pixels."""
    found = dict((str(row.problem), row) for row in _layers(kind))
    if not small:
        yield from found.values()
        return
    for row in [*{row.problem.k: row for row in found.values()}.values()][-2:]:
        yield row._replace(problem=_smaller(row.problem, KINDS[kind].options))


def _layers(kind: str) -> Iterator[GpuRow]:
    made = KINDS[kind]
    for line in made.lines:
        yield GpuRow(kind, line, _parsed(f"{made.options} {line}"))
    for mb in made.batches:
        for network in made.networks:
            for conv in suite(network):
                if (conv.g > 1) == (kind == "depthwise"):
                    line = replace(conv, mb=mb, name=None).descriptor()
                    yield GpuRow(kind, f"{network} {conv.name} mb{mb}", _parsed(f"{made.options} {line}"))


def _smaller(problem: Conv, options: str) -> Conv:
    """Return a small problem under the same options, with the rank and the taps of ``problem``."""
    channels = 16 if problem.g == 1 else problem.g and 32
    group = "" if problem.g == 1 else "g32" if problem.g == problem.ic else "g2"
    axes = "".join(
        f"i{x}{8 + k - 1 if k > 3 else 8}o{x}8k{x}{k}p{x}{0 if k > 3 or k == 1 else 1}"
        for x, k in zip("dhw"[-len(problem.k) :], problem.k)
    )
    return _parsed(f"{options} {group}mb1ic{channels}oc{channels}{axes}")


def _parsed(line: str) -> Conv:
    problem = parse_problem(line)
    assert isinstance(problem, Conv)
    return problem

"""The stages of a chain whose nest is printed as TVM prints one: their layouts, and what is legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from convsmith.diag.errors import ConfigError
from convsmith.layout.tags import ANY, parse_tag
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.problem import Problem

__all__ = ["blocked_stages"]

SOURCE, ACTIVATIONS, WEIGHTS = "axb", "NHWC8h8w32c", "OIHW8i32o4i"
"""Layouts where a chain leaves them open: of the source, of the results, and of the weights."""


def blocked_stages(chain: Chain, k_split: int, h_split: int) -> tuple[Stages, Sequence[Conv]]:
    """Return the stages of ``chain``, which are two convolutions, with TVM's layouts where it leaves them open.

    ConfigError where the nest has another form, or where the splits divide no number of blocks.
    """
    if len(chain.stages) != 2:
        raise _refuse(f"{chain} has {len(chain.stages)} stages; legal are two convolutions")
    for n, problem in enumerate(chain.stages, start=1):
        _check_stage(n, problem)
    first, second = _with_padded_source(chain.stages[0]), chain.stages[1]
    between = second.stag if second.stag != ANY else ACTIVATIONS
    one = _with_tags(first, stag=SOURCE, wtag=WEIGHTS, dtag=between)
    found = stages_of(Chain(stages=(one, _with_tags(second, wtag=WEIGHTS, dtag=ACTIVATIONS))))
    assert found is not None
    convs = tuple(p for p in found.problems if isinstance(p, Conv))
    for n, conv in enumerate(convs, start=1):
        _check_layouts(n, conv)
    blocks = [(rows.size, channels.size) for _, rows, _, channels, *_ in (conv.dst_layout.blocks for conv in convs)]
    for letter, given, count, what in (
        ("k", k_split, gcd(*(channels for _, channels in blocks)), "output channels of both convolutions"),
        ("h", h_split, blocks[1][0], "rows of the result"),
    ):
        legal = [d for d in range(1, count + 1) if count % d == 0]
        if given not in legal:
            raise ConfigError(
                "split", f"--{letter}-split={given} divides no number of blocks of {what}; legal are "
                f"{', '.join(map(str, legal))}",
            )  # fmt: skip
    return found, convs


def _with_padded_source(problem: Problem) -> Problem:
    """Return the convolution ``problem`` over a source that is padded already, as TVM's nest reads one."""
    if not isinstance(problem, Conv) or not any((*problem.p, *problem.pr)):
        return problem
    padded = tuple(i + front + max(back, 0) for i, front, back in zip(problem.i, problem.p, problem.pr))
    return replace(problem, i=padded, p=(0,) * problem.rank)


def _with_tags(problem: Problem, **tags: str) -> Problem:
    """Return ``problem`` with ``tags`` as the layouts that it leaves open."""
    given: dict[str, Any] = {field: tag for field, tag in tags.items() if getattr(problem, field) == ANY}
    return replace(problem, **given)


def _refuse(why: str) -> ConfigError:
    return ConfigError("blocked-chain", f"--k-split, --h-split: {why}")


def _check_stage(n: int, problem: Problem) -> None:
    """Raise ConfigError where stage ``n`` (from 1) is no convolution that the schedule serves."""
    if not isinstance(problem, Conv) or problem.rank != 2 or problem.has_groups:
        raise _refuse(f"stage {n} is {problem}; legal are convolutions of two spatial axes without groups")
    # A back pad below zero is a rest that no tap reads.
    if n == 2 and any(pad > 0 for pad in (*problem.p, *problem.pr)):
        raise _refuse(
            f"stage {n} has padding ({problem.descriptor()}); legal is padding of the first stage, whose source is "
            "padded before"
        )
    if problem.depthwise is not None:
        raise _refuse(f"stage {n} is {problem}; legal are post-ops that are no convolution")


def _check_layouts(n: int, conv: Conv) -> None:
    """Raise ConfigError if the layouts of stage ``n``, counted from 1, are not TVM's with blocks of some size."""
    for what, tag, order, inner in (
        ("result", conv.dtag, (0, 2, 3, 1), (2, 3, 1)), ("weights", conv.wtag, (0, 1, 2, 3), (1, 0, 1)),
    ):  # fmt: skip
        form = parse_tag(tag, 4)
        if form.order != order or tuple(dim for dim, _ in form.inner) != inner:
            legal = ACTIVATIONS if what == "result" else WEIGHTS
            raise _refuse(f"the {what} of stage {n} have the layout {tag}; legal is that of {legal}, of any sizes")
    (_, rows), (_, columns), (_, channels) = parse_tag(conv.dtag, 4).inner
    (_, words), (_, results), (_, word) = parse_tag(conv.wtag, 4).inner
    terms = words * word
    if (terms, results) != (channels, channels):
        raise _refuse(
            f"{conv.dtag} of stage {n} has blocks of {channels} channels, {conv.wtag} of {results} and {terms}; legal "
            "are the same"
        )
    sizes = {"oc": (conv.oc, channels, ""), "ic": (conv.ic, terms, "")}
    if n == 1:
        padding = ", with its padding"
        sizes |= {"ih": (conv.i[0], rows, padding), "iw": (conv.i[1], columns, padding)}
    for name, (size, block, padding) in sizes.items():
        if size % block:
            raise _refuse(f"{name} of stage {n} is {size}{padding}; legal are multiples of {block}")

"""Options that lines of all kinds of problem share, and the fields of `Problem` that they set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from convsmith.diag.choices import suggestion
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import shown
from convsmith.diag.settings import SIZES, read_size
from convsmith.layout.layout import Layout
from convsmith.layout.tags import ANY
from convsmith.problem.attributes import SCALES, ZERO_POINTS, parse_quantities
from convsmith.problem.post_ops import parse_post_ops
from convsmith.problem.problem import Problem

__all__ = ["read_options", "strided"]

P = TypeVar("P", bound=Problem)

_OTHER_OPTIONS = (
    "alg", "cfg", "attr-oscale", "attr-fpmath", "attr-scratchpad", "attr-dropout",
    "attr-rounding-mode", "attr-deterministic", "ctx-init", "ctx-exe", "batch", "match", "impl", "skip-impl", "engine",
    "mode", "reset", "canonical", "runtime-dims-masks", "encoding",
)  # fmt: skip
_COMMON_OPTIONS = ("dt", "bia-dt", "stag", "wtag", "dtag", "strides", "attr-acc-mode", "accuracy", "workspace",
                   "attr-scales", "attr-zero-points", "attr-post-ops")  # fmt: skip


def read_options(options: Mapping[str, str], own: tuple[str, ...], channels: int) -> dict[str, Any]:
    """Return the fields of `Problem` that `options` set, by name; options in `own` are left to the caller.

    `channels` is the axis of `per_oc` in a post-op. UnsupportedError for an option of benchdnn that is unavailable
    here; UsageError for an unknown option.
    """
    legal = " ".join(f"--{option}" for option in (*own, *_COMMON_OPTIONS))
    values: dict[str, Any] = {}
    for option, text in options.items():
        if option == "dt":
            types = tuple(text.lower().split(":"))
            values["dt"] = types * 3 if len(types) == 1 else types
        elif option == "bia-dt":
            values["bia_dt"] = text.lower()
        elif option in ("stag", "wtag", "dtag"):
            values[option] = text
        elif option == "attr-acc-mode":
            values["acc_mode"] = text.lower()
        elif option == "accuracy":
            values["accuracy"] = text.lower()
        elif option == "workspace":
            values["workspace"] = _size(text)
        elif option == "attr-scales":
            values["scales"] = parse_quantities(SCALES, text)
        elif option == "attr-zero-points":
            values["zero_points"] = parse_quantities(ZERO_POINTS, text)
        elif option == "attr-post-ops":
            values["post_ops"] = parse_post_ops(text, channels)
        elif option in _OTHER_OPTIONS:
            raise UnsupportedError(f"--{option} is not available; available: {legal}", code="unsupported-option")
        elif option not in own and option != "strides":
            meant = suggestion(option, (*own, *_COMMON_OPTIONS))
            raise UsageError(f"--{option} is unknown; legal: {legal}{meant}", code="bad-option")
    return values


def _size(text: str) -> int | None:
    """Return the bytes of a bound; None for an empty text."""
    try:
        return read_size(text) if text else None
    except ValueError:
        raise UsageError(f"--workspace={shown(text)} is not legal: expected {SIZES}", code="bad-option") from None


def strided(problem: P, options: Mapping[str, str]) -> P:
    """Return `problem` with the layout tags that `--strides=SRC:WEI:DST` describes.

    Each part lists strides in elements, such as `6400x320x32x1`, or is empty.
    """
    text = options.get("strides", "")
    if not text.strip(":"):
        return problem
    parts = text.split(":")
    if len(parts) != 3:
        raise UsageError(f"--strides={text}: expected SRC:WEI:DST, each like 6400x320x32x1 or empty", code="bad-option")
    tags: dict[str, Any] = {}
    shapes = (problem.src_shape, problem.wei_shape, problem.dst_shape)
    for option, part, shape in zip(("stag", "wtag", "dtag"), parts, shapes, strict=True):
        if not part:
            continue
        strides = [int(word) for word in part.split("x") if word.isdecimal()]
        if len(strides) != len(shape) or len(strides) != part.count("x") + 1:
            raise UsageError(
                f"--strides={text}: {part!r} has {part.count('x') + 1} strides; legal is one integer for each of the "
                f"{len(shape)} dims",
                code="bad-option",
            )
        if options.get(option, ANY) != ANY:
            raise UsageError(
                f"--strides and --{option} both give the layout of {option[0]}; legal is one of them", code="bad-option"
            )
        tags[option] = Layout.plain(shape, strides).tag()
    return replace(problem, **tags)

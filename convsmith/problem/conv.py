"""`Conv`: one convolution problem, checked, printable as one line, and read back from it.

Dims are oneDNN's: ic and oc count all groups, dilation 0 is dense, p is the front pad; the back pad is what the output
size implies, `pr = (o - 1) * s - i + keff - p` with `keff = (k - 1) * (d + 1) + 1`. It may be negative (trailing input
is not read) but must stay above -s. It has no upper limit: output beyond the input only sees padding.

A `Conv` that exists is legal. What is legal but not built raises UnsupportedError. Pure data: no IR, no target.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.layout.layout import Layout
from convsmith.layout.tags import ANY
from convsmith.problem.descriptor import AXES, Descriptor, output_size, parse_descriptor, print_descriptor, split_line
from convsmith.problem.post_ops import PostOp, parse_post_ops, print_post_ops
from convsmith.problem.tensor import Tensor

__all__ = ["DIRECTIONS", "Conv"]

DIRECTIONS = {"FWD_B": "forward with bias", "FWD_D": "forward", "FWD_I": "forward, inference"}
_OTHER_DIRECTIONS = ("BWD_D", "BWD_W", "BWD_WB")
_DTYPES = ("f32",)
_OTHER_DTYPES = ("f64", "f16", "bf16", "f8_e5m2", "f8_e4m3", "s32", "s8", "u8", "s4", "u4", "f4_e2m1")
_OTHER_OPTIONS = (
    "deconv", "alg", "cfg", "bia-dt", "attr-scales", "attr-zero-points", "attr-oscale", "attr-fpmath", "attr-acc-mode",
    "attr-scratchpad", "attr-dropout", "attr-rounding-mode", "attr-deterministic", "ctx-init", "ctx-exe", "batch",
    "match", "impl", "skip-impl", "engine", "mode", "reset", "canonical",
)  # fmt: skip
_LEGAL_OPTIONS = "--dir --dt --stag --wtag --dtag --strides --attr-post-ops --mb"


@dataclass(frozen=True)
class Conv:
    """A forward convolution. Spatial tuples have one entry per axis, 1 (w) to 3 (d, h, w).

    `dir` says whether there is a bias (FWD_B) or none (FWD_D, FWD_I). `dt` are the types of source, weights and
    destination. `stag`, `wtag` and `dtag` are layout tags as written; `any` leaves the layout open.
    """

    mb: int
    ic: int
    oc: int
    i: tuple[int, ...]
    o: tuple[int, ...]
    k: tuple[int, ...]
    s: tuple[int, ...]
    d: tuple[int, ...]
    p: tuple[int, ...]
    g: int = 1
    has_groups: bool = False
    dir: str = "FWD_D"
    dt: tuple[str, str, str] = ("f32", "f32", "f32")
    stag: str = ANY
    wtag: str = ANY
    dtag: str = ANY
    post_ops: tuple[PostOp, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        self._normalise()
        self._check_extents()
        self._check_groups()
        for axis in range(self.rank):
            self._check_output_size(axis)
        self._check_options()
        for tensor, shape in (("src", self.src_shape), ("wei", self.wei_shape), ("dst", self.dst_shape)):
            if math.prod(shape) >= 2**60:
                raise UsageError(
                    f"{tensor} of shape {shape} in {self}: too large; legal are fewer than 2**60 elements",
                    code="too-large",
                )

    # -- text ------------------------------------------------------------------------------------------------------

    @staticmethod
    def parse(line: str) -> Conv:
        """The problem of one line: options, then a descriptor. The inverse of `str`.

        UsageError: malformed or not legal. UnsupportedError: legal in benchdnn, not available here.
        """
        options, text = split_line(line)
        return _from_options(parse_descriptor(text), options)

    def descriptor(self) -> str:
        """The problem without its options, such as `mb1ic64ih56oc64oh56kh3ph1`."""
        return print_descriptor(Descriptor(*(getattr(self, field) for field in Descriptor._fields)))

    def options(self) -> tuple[str, ...]:
        """The options that differ from their defaults, such as `--dir=FWD_B`."""
        words = [f"--dir={self.dir}"] if self.dir != "FWD_D" else []
        words += [f"--{option}={tag}" for option in ("stag", "wtag", "dtag") if (tag := getattr(self, option)) != ANY]
        if self.post_ops:
            words.append(f"--attr-post-ops={print_post_ops(self.post_ops)}")
        return tuple(words)

    def __str__(self) -> str:
        return " ".join((*self.options(), self.descriptor()))

    # -- derived ---------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of spatial axes, 1 to 3."""
        return len(self.i)

    @property
    def axes(self) -> str:
        """Letters of the spatial axes: "w", "hw" or "dhw"."""
        return AXES[self.rank]

    @property
    def bias(self) -> bool:
        """Whether a bias of `bias_shape` is added."""
        return self.dir == "FWD_B"

    @property
    def keff(self) -> tuple[int, ...]:
        """Extents of the kernel with its holes."""
        return tuple((k - 1) * (d + 1) + 1 for k, d in zip(self.k, self.d, strict=True))

    @property
    def pr(self) -> tuple[int, ...]:
        """Back pads that the output sizes imply; negative where trailing input is not read."""
        sizes = zip(self.i, self.o, self.keff, self.s, self.p, strict=True)
        return tuple((o - 1) * s - i + keff - p for i, o, keff, s, p in sizes)

    @property
    def src_shape(self) -> tuple[int, ...]:
        """(MB, IC, *I)"""
        return (self.mb, self.ic, *self.i)

    @property
    def wei_shape(self) -> tuple[int, ...]:
        """(OC, IC, *K), or (G, OC/G, IC/G, *K) when the descriptor has groups"""
        groups = (self.g,) if self.has_groups else ()
        return (*groups, self.oc // self.g, self.ic // self.g, *self.k)

    @property
    def dst_shape(self) -> tuple[int, ...]:
        """(MB, OC, *O)"""
        return (self.mb, self.oc, *self.o)

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """(OC,)"""
        return (self.oc,)

    @cached_property
    def src_layout(self) -> Layout:
        """Layout of the source; `any` is plain order."""
        return Layout.parse(self.stag, self.src_shape)

    @cached_property
    def wei_layout(self) -> Layout:
        """Layout of the weights as they are handed over; `any` is plain order."""
        return Layout.parse(self.wtag, self.wei_shape)

    @cached_property
    def dst_layout(self) -> Layout:
        """Layout of the destination; `any` is plain order."""
        return Layout.parse(self.dtag, self.dst_shape)

    deconv = False
    acc = "f32"

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every array that a kernel takes or gives, in the order in which it does."""
        axes = self.axes
        wei_dims = (*(("g",) if self.has_groups else ()), "oc", "ic", *("k" + a for a in axes))
        out = [
            Tensor("src", "in", self.dt[0], self.src_shape, ("mb", "ic", *("i" + a for a in axes)), self.stag),
            Tensor("wei", "in", self.dt[1], self.wei_shape, wei_dims, self.wtag),
        ]
        if self.bias:
            out.append(Tensor("bia", "in", "f32", self.bias_shape, ("oc",)))
        out.append(Tensor("dst", "out", self.dt[2], self.dst_shape, ("mb", "oc", *("o" + a for a in axes)), self.dtag))
        return tuple(out)

    @cached_property
    def dims(self) -> Mapping[str, int]:
        """Every dim by name (g, mb, ic, oc, ih, ...), for the axes that exist."""
        spatial = {kind + axis: getattr(self, kind)[n] for kind in "ioksdp" for n, axis in enumerate(self.axes)}
        return {"g": self.g, "mb": self.mb, "ic": self.ic, "oc": self.oc, **spatial}

    @property
    def flops_dense(self) -> int:
        """Two per output element, tap and input channel, taps that only meet padding counted."""
        return 2 * self.mb * self.oc * (self.ic // self.g) * math.prod(self.k) * math.prod(self.o)

    @property
    def flops_real(self) -> int:
        """Two per multiplication with an element of the source that exists."""
        taps = math.prod(self._real_taps(axis) for axis in range(self.rank))
        return 2 * self.mb * self.oc * (self.ic // self.g) * taps

    def tap_range(self, axis: int, tap: int) -> tuple[int, int]:
        """Half-open range of the output coordinates along `axis` at which `tap` meets the source; may be empty."""
        offset = tap * (self.d[axis] + 1) - self.p[axis]
        s = self.s[axis]
        low = min(max(0, -(offset // s)), self.o[axis])
        high = min(self.o[axis], (self.i[axis] - 1 - offset) // s + 1)
        return low, max(low, high)

    def canonical(self) -> Conv:
        """The same computation with tags in `aBcd16b` form, FWD_D for FWD_I, and no name: equal for equal kernels."""
        tags: dict[str, Any] = {
            tag: layout.tag()
            for tag, layout in (("stag", self.src_layout), ("wtag", self.wei_layout), ("dtag", self.dst_layout))
            if getattr(self, tag) != ANY
        }
        return replace(self, name=None, dir="FWD_B" if self.bias else "FWD_D", **tags)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _normalise(self) -> None:
        """Make every number a Python int: numpy's would overflow."""
        for field in ("mb", "ic", "oc", "g"):
            object.__setattr__(self, field, _integer(field, getattr(self, field)))
        for field in "ioksdp":
            object.__setattr__(self, field, tuple(_integer(field, size) for size in getattr(self, field)))
        if not 1 <= self.rank <= 3 or any(len(getattr(self, field)) != self.rank for field in "ioksdp"):
            raise UsageError(
                "i, o, k, s, d and p must have the same length, 1 to 3 (one entry per axis)", code="bad-rank"
            )

    def _check_extents(self) -> None:
        smallest = {"g": 1, "mb": 0, "ic": 1, "oc": 1, "i": 0, "o": 0, "k": 1, "s": 1, "d": 0, "p": 0}
        for dim, size in self.dims.items():
            low = smallest[dim] if dim in smallest else smallest[dim[0]]
            if size < low:
                raise self._fail(f"{dim}={size} is not legal: expected {dim} >= {low}", "bad-dim")

    def _check_groups(self) -> None:
        if self.g > 1 and not self.has_groups:
            raise self._fail(f"g={self.g} needs weights with a group dim (has_groups)", "bad-groups")
        common = math.gcd(self.ic, self.oc)
        if common % self.g:
            wrong = " and ".join(f"{dim}={self.dims[dim]}" for dim in ("ic", "oc") if self.dims[dim] % self.g)
            legal = [g for g in range(1, min(common, 4096) + 1) if common % g == 0]
            listed = ", ".join(map(str, legal[:16])) + (", ..." if len(legal) > 16 or common > 4096 else "")
            raise self._fail(
                f"g={self.g} does not divide {wrong}: legal are the divisors of both ic={self.ic} and oc={self.oc}, "
                f"that is {listed}",
                "bad-groups",
            )

    def _check_output_size(self, axis: int) -> None:
        a, i, o, k, s, d, p, pr = (
            self.axes[axis],
            *(getattr(self, f)[axis] for f in ("i", "o", "k", "s", "d", "p", "pr")),
        )
        if pr <= -s:
            smallest = max(output_size(i, k, s, d, p, 0), 0)
            raise self._fail(
                f"o{a}={o} implies a back pad of {pr}, which is not above -s{a}={-s}: the smallest legal o{a} is "
                f"{smallest}, and there is no largest (output beyond the input only sees padding); equal pads at both "
                f"ends give o{a}={output_size(i, k, s, d, p, p)}",
                "bad-output-size",
            )

    def _check_options(self) -> None:
        if self.dir not in DIRECTIONS:
            raise _unavailable("dir", self.dir, tuple(DIRECTIONS), _OTHER_DIRECTIONS)
        if len(self.dt) != 3:
            raise UsageError(
                f"dt={self.dt!r}: expected the types of source, weights and destination", code="bad-option"
            )
        for dtype in self.dt:
            if dtype not in _DTYPES:
                raise _unavailable("dt", dtype, _DTYPES, _OTHER_DTYPES)
        for option, layout in (("stag", "src_layout"), ("wtag", "wei_layout"), ("dtag", "dst_layout")):
            try:
                getattr(self, layout)
            except UsageError as error:
                raise UsageError(f"--{option}={getattr(self, option)}: {error}", code=error.code) from None
        if self.name is not None and (not self.name or not self.name.isprintable() or '"' in self.name):
            raise UsageError(
                f"name {self.name!r} is not legal: expected printable text without quotes", code="bad-name"
            )

    def _real_taps(self, axis: int) -> int:
        """Pairs of output coordinate and tap along `axis` that meet the source."""
        return sum(high - low for low, high in (self.tap_range(axis, tap) for tap in range(self.k[axis])))

    def _fail(self, why: str, code: str) -> UsageError:
        return UsageError(f"{why} (in {self.descriptor()})", code=code)


def _integer(field: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{field}={value!r} is not a whole number", code="bad-dim") from None


def _unavailable(
    option: str, value: str, available: tuple[str, ...], others: tuple[str, ...]
) -> UsageError | UnsupportedError:
    """The error for a value that is known elsewhere but not built, or not known at all."""
    if value in others:
        return UnsupportedError(
            f"--{option}: {value} is not available; available: {', '.join(available)}", code="unsupported-option"
        )
    return UsageError(f"--{option}: {value!r} is unknown; legal: {', '.join(available)}", code="bad-option")


def _from_options(descriptor: Descriptor, options: Mapping[str, str]) -> Conv:
    values: dict[str, Any] = descriptor._asdict()
    for option, text in options.items():
        if option == "dir":
            values["dir"] = text.upper()
        elif option == "dt":
            types = tuple(text.lower().split(":"))
            values["dt"] = types * 3 if len(types) == 1 else types
        elif option in ("stag", "wtag", "dtag"):
            values[option] = text
        elif option == "attr-post-ops":
            values["post_ops"] = parse_post_ops(text)
        elif option == "mb":
            # As in benchdnn, 0 keeps the descriptor's own.
            values["mb"] = (int(text) or descriptor.mb) if text.isdecimal() else text
        elif option in _OTHER_OPTIONS:
            raise UnsupportedError(
                f"--{option} is not available; available: {_LEGAL_OPTIONS}", code="unsupported-option"
            )
        elif option not in ("conv", "strides"):
            raise UsageError(f"--{option} is unknown; legal: {_LEGAL_OPTIONS}", code="bad-option")
    problem = Conv(**values)
    return replace(problem, **_strided_tags(problem, options)) if options.get("strides", "").strip(":") else problem


def _strided_tags(problem: Conv, options: Mapping[str, str]) -> dict[str, Any]:
    """The tags that `--strides=SRC:WEI:DST` stands for, each `6400x320x32x1` (elements) or empty."""
    text = options["strides"]
    parts = text.split(":")
    if len(parts) != 3:
        raise UsageError(f"--strides={text}: expected SRC:WEI:DST, each like 6400x320x32x1 or empty", code="bad-option")
    tags = {}
    shapes = (problem.src_shape, problem.wei_shape, problem.dst_shape)
    for option, part, shape in zip(("stag", "wtag", "dtag"), parts, shapes, strict=True):
        if not part:
            continue
        strides = [int(word) for word in part.split("x") if word.isdecimal()]
        if len(strides) != len(shape) or len(strides) != part.count("x") + 1:
            raise UsageError(
                f"--strides={text}: {part!r} is not one number for each of the {len(shape)} dims", code="bad-option"
            )
        if options.get(option, ANY) != ANY:
            raise UsageError(
                f"--strides and --{option} both say where elements lie; legal is one of them", code="bad-option"
            )
        tags[option] = Layout.plain(shape, strides).tag()
    return tags

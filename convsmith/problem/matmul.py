"""`Matmul`: one matrix product, optionally batched, as a benchdnn matmul line describes it.

    --matmul --dt=u8:s8:f32 --bia-dt=f32 8x64x256:8x256x32

The source is (..., M, K), the weights are (..., K, N), the destination is (..., M, N). A batch dim of 1 broadcasts.
`--bia-dt` adds a bias; bit i of `--bia-mask` makes it vary along axis i (default: N). `--bits=7:5` requantises the
entries of source and weights to fewer bits first; `--rounding=probabilistic` does so with random rounding terms
(`problem/low_precision.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import integers
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.layout.tags import MAX_DIMS
from convsmith.problem.attributes import SCALES, Kind
from convsmith.problem.descriptor import split_line
from convsmith.problem.low_precision import check_bits, check_rounding
from convsmith.problem.options import read_options, strided
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import is_integer

__all__ = ["Matmul"]

_OPTIONS = ("matmul", "bia-mask", "bits", "rounding")
_DESCRIPTOR = re.compile(r'([0-9]+(?:x[0-9]+)+):([0-9]+(?:x[0-9]+)+)(?::([0-9]+(?:x[0-9]+)+))?(?:_?n"?([^"]*)"?)?')


@record(frozen=True, kw_only=True)
class Matmul(Problem):
    """A forward product of matrices `src` and `wei`. `bia_mask` is None if there is no bias."""

    src: tuple[int, ...]
    wei: tuple[int, ...]
    bia_mask: int | None = None
    bits: tuple[int, int] = (8, 8)
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        for field in ("src", "wei"):
            object.__setattr__(self, field, integers(field, getattr(self, field)))
        self._check_fields()
        self._check_shapes()
        if self.bia_mask is None and self.bia_dt:
            raise UsageError(f"--bia-dt={self.bia_dt}, but no mask: legal is to give both", code="bad-option")
        if self.bia_mask is not None and not 0 <= self.bia_mask < 1 << self.rank:
            raise UsageError(
                f"--bia-mask={self.bia_mask} in {self.descriptor()}: legal is 0 to {(1 << self.rank) - 1}, bit i for "
                "axis i",
                code="bad-option",
            )
        self._check_options()
        self._check_bits()

    @staticmethod
    def parse(line: str) -> Matmul:
        """Return the problem of `line`, which consists of options and a descriptor. Inverse of `str`."""
        options, text = split_line(line)
        match = _DESCRIPTOR.fullmatch(text)
        if match is None:
            raise UsageError(
                f"descriptor {text!r}: expected MxK:KxN, batch dims before them, such as 8x64x256:8x256x32",
                code="bad-descriptor",
            )
        shapes = [tuple(map(int, part.split("x"))) for part in match.groups()[:3] if part]
        # benchdnn writes --bia-dt=undef for no bias.
        given = {option: word for option, word in options.items() if (option, word) != ("bia-dt", "undef")}
        values = read_options(given, _OPTIONS, channels=len(shapes[0]) - 1)
        if "bia-dt" in given:
            mask = options.get("bia-mask", str(1 << len(shapes[0]) - 1))
            values["bia_mask"] = int(mask) if mask.isdecimal() else -1
        if "bits" in given:
            words = given["bits"].split(":")
            values["bits"] = tuple(int(word) if word.isdecimal() else word for word in words)
        if "rounding" in given:
            values["rounding"] = given["rounding"]
        problem = Matmul(src=shapes[0], wei=shapes[1], name=match[4] or None, **values)
        if len(shapes) > 2 and shapes[2] != problem.product_shape:
            raise UsageError(
                f"descriptor {text!r}: legal is the destination {'x'.join(map(str, problem.product_shape))}",
                code="bad-descriptor",
            )
        return strided(problem, options)

    def descriptor(self) -> str:
        """Return the problem without its options, such as `10x30:30x20`."""
        text = ":".join("x".join(map(str, shape)) for shape in (self.src, self.wei))
        return text + (f'n"{self.name}"' if self.name is not None else "")

    def _own_options(self) -> tuple[str, ...]:
        mask = f"--bia-mask={self.bia_mask}"
        bias = () if self.bia_mask is None else (*(() if self.bia_dt else (f"--bia-dt={self.bias_type}",)), mask)
        bits = () if self.bits == (8, 8) else (f"--bits={self.bits[0]}:{self.bits[1]}",)
        return ("--matmul", *bias, *bits, *([f"--rounding={self.rounding}"] if self.rounding != "nearest" else []))

    # -- derived ---------------------------------------------------------------------------------------------------

    @property
    def dir(self) -> str:
        """FWD_B with a bias, otherwise FWD_D."""
        return "FWD_D" if self.bia_mask is None else "FWD_B"

    @property
    def rank(self) -> int:
        """Number of axes, including batch dims."""
        return len(self.src)

    @property
    def channels(self) -> int:
        """Index of the axis N in the result."""
        return self.rank - 1

    @property
    def source_channels(self) -> int:
        """Index of the axis K in the source."""
        return self.rank - 1

    @property
    def src_shape(self) -> tuple[int, ...]:
        """(..., M, K)."""
        return self.src

    @property
    def wei_shape(self) -> tuple[int, ...]:
        """(..., K, N)."""
        return self.wei

    @property
    def product_shape(self) -> tuple[int, ...]:
        """(..., M, N)."""
        batch = (b if a == 1 else a for a, b in zip(self.src[:-2], self.wei[:-2], strict=True))
        return (*batch, self.src[-2], self.wei[-1])

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """The destination's extent along axes in the mask, 1 along the others."""
        mask = self.bia_mask or 0
        return tuple(size if mask >> axis & 1 else 1 for axis, size in enumerate(self.product_shape))

    @cached_property
    def dims(self) -> Mapping[str, int]:
        """Sizes of m, n, k, and of the destination's batch dims b0, b1, ..."""
        batch = {f"b{n}": size for n, size in enumerate(self.product_shape[:-2])}
        return {**batch, "m": self.src[-2], "n": self.wei[-1], "k": self.src[-1]}

    @property
    def flops_dense(self) -> int:
        """Two operations per multiplication."""
        return 2 * math.prod(self.product_shape) * self.src[-1]

    @property
    def flops_real(self) -> int:
        """Equal to `flops_dense`, because a product has no padding."""
        return self.flops_dense

    def _dim_names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        batch = tuple(f"b{n}" for n in range(self.rank - 2))
        return (*batch, "m", "k"), (*batch, "k", "n"), (*batch, "m", "n"), (*batch, "m", "n")

    def legal_policies(self, kind: Kind, argument: str) -> dict[str, int]:
        last = f"per_dim_{self.rank - 1}"
        k, n = self.src[-1], self.wei[-1]
        along_n = {"common": 1, "per_oc": n, last: n}
        rows = {f"per_dim_{self.rank - 2}": self.src[-2]}
        columns = {last: k} if self.bits == (8, 8) else {}
        source = {"common": 1} if kind is SCALES else {"common": 1, **rows, **columns}
        return {"src": source, "wei": along_n, "dst": along_n}.get(argument, {})

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every array; the random rounding terms of src and wei stand before the destination."""
        *others, result = super().tensors
        names = zip(("src", "wei"), self.bits, (self.src, self.wei), self._dim_names())
        drawn = (
            Tensor(f"rounding_{name}", "in", "u8", shape, dims, holds="rounding")
            for name, b, shape, dims in names if b < 8
        )  # fmt: skip
        return (*others, *(drawn if self.rounding == "probabilistic" else ()), result)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check_bits(self) -> None:
        object.__setattr__(self, "bits", check_bits(self.bits))
        check_rounding(self.rounding)
        if self.bits == (8, 8):
            object.__setattr__(self, "rounding", "nearest")
        elif not all(map(is_integer, self.dt[:2])):
            raise UsageError(
                f"--bits={self.bits[0]}:{self.bits[1]} with --dt={':'.join(self.dt)}: legal are u8 and s8", code="bits"
            )

    def _check_shapes(self) -> None:
        text = self.descriptor()
        if not 2 <= len(self.src) <= MAX_DIMS or len(self.src) != len(self.wei):
            raise UsageError(
                f"descriptor {text!r}: expected two shapes of the same number of dims, 2 to {MAX_DIMS}",
                code="bad-descriptor",
            )
        if min(*self.src, *self.wei) < 0:
            raise UsageError(f"descriptor {text!r}: expected sizes of at least 0", code="bad-dim")
        if self.src[-1] != self.wei[-2]:
            raise UsageError(
                f"descriptor {text!r}: the source has K={self.src[-1]}, the weights have K={self.wei[-2]}; legal is "
                "the same",
                code="bad-dim",
            )
        for a, b in zip(self.src[:-2], self.wei[:-2], strict=True):
            if a != b and 1 not in (a, b):
                raise UsageError(
                    f"descriptor {text!r}: batch dims {a} and {b} do not meet; legal are equal ones, or 1",
                    code="bad-dim",
                )

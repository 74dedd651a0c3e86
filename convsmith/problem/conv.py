"""`Conv`: one convolution or deconvolution, checked, printable as one line, and parsed from that line.

Dims have oneDNN's names and meanings: ic and oc count the channels of all groups, dilation 0 is dense, p is the front
pad. In a convolution, output o and tap k read the input i = o * s + k * (d + 1) - p. A deconvolution swaps the roles of
i and o: input i and tap k contribute to the output o = i * s + k * (d + 1) - p, as in a convolution's gradient of the
source. Either kind therefore has a coarse side, which is strided over, and a fine side, which is padded.

The back pad follows from the sizes: `pr = (coarse - 1) * s - fine + keff - p` with `keff = (k - 1) * (d + 1) + 1`. It
may be negative (no tap reads the end of the fine side) but must exceed -s. It has no upper limit: taps beyond the fine
side read padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import integer, integers
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.problem.attributes import SCALES, Kind
from convsmith.problem.descriptor import AXES, Descriptor, output_size, parse_descriptor, print_descriptor, split_line
from convsmith.problem.options import read_options, strided
from convsmith.problem.pairs import pairs_below
from convsmith.problem.post_ops import Depthwise
from convsmith.problem.problem import DIRECTIONS, Problem

__all__ = ["DIRECTIONS", "Conv"]

_DESCRIBED = attrgetter(*Descriptor._fields)
_OPTIONS = ("dir", "mb", "conv", "deconv")


@record(frozen=True, kw_only=True)
class Conv(Problem):
    """A convolution, a deconvolution, or a gradient of either (`dir`, a key of `DIRECTIONS`).

    A spatial tuple has one entry per axis: (w), (h, w) or (d, h, w). FWD_B adds a bias; FWD_D and FWD_I do not.
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
    deconv: bool = False
    dir: str = "FWD_D"

    def __post_init__(self) -> None:
        self._normalise()
        self._check_fields()
        self._check_extents()
        self._check_groups()
        for axis in range(self.rank):
            self._check_output_size(axis)
        self._check_options()

    # -- text ------------------------------------------------------------------------------------------------------

    @staticmethod
    def parse(line: str) -> Conv:
        """Return the problem of `line`, which consists of options and a descriptor. Inverse of `str`.

        UsageError if the line is malformed or not legal; UnsupportedError if it is legal in benchdnn but unavailable
        here.
        """
        options, text = split_line(line)
        values = read_options(options, _OPTIONS, channels=1)
        if "dir" in options:
            values["dir"] = options["dir"].upper()
        values["deconv"] = "deconv" in options
        values |= parse_descriptor(text, values["deconv"])._asdict()
        if mb := options.get("mb"):
            # As in benchdnn, --mb=0 keeps the descriptor's batch size.
            values["mb"] = (int(mb) or values["mb"]) if mb.isdecimal() else mb
        return strided(Conv(**values), options)

    def descriptor(self) -> str:
        """Return the problem without its options, such as `mb1ic64ih56oc64oh56kh3ph1`."""
        return print_descriptor(Descriptor._make(_DESCRIBED(self)))

    def _own_options(self) -> tuple[str, ...]:
        return (*(["--deconv"] if self.deconv else []), *([f"--dir={self.dir}"] if self.dir != "FWD_D" else []))

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
    def channels(self) -> int:
        """Index of the output-channel axis in the result: 1."""
        return 1

    @property
    def source_channels(self) -> int:
        """Index of the input-channel axis in the source: 1."""
        return 1

    @property
    def grouped(self) -> bool:
        """Whether the weights have a group dim."""
        return self.has_groups

    @property
    def has_transforms(self) -> bool:
        return self.acc in ("f32", "s32") and not self.half_sums and not self.dir.startswith("BWD_W")

    @property
    def keff(self) -> tuple[int, ...]:
        """Extents of the dilated kernel."""
        return tuple((k - 1) * (d + 1) + 1 for k, d in zip(self.k, self.d, strict=True))

    @property
    def coarse(self) -> tuple[int, ...]:
        """Extents of the strided side: the output of a convolution, the input of a deconvolution."""
        return self.i if self.deconv else self.o

    @property
    def fine(self) -> tuple[int, ...]:
        """Extents of the padded side: the input of a convolution, the output of a deconvolution."""
        return self.o if self.deconv else self.i

    @property
    def pr(self) -> tuple[int, ...]:
        """Back pads, which follow from the sizes; negative where no tap reads the end of the fine side."""
        sizes = zip(self.coarse, self.fine, self.keff, self.s, self.p, strict=True)
        return tuple((coarse - 1) * s - fine + keff - p for coarse, fine, keff, s, p in sizes)

    @property
    def src_shape(self) -> tuple[int, ...]:
        """(MB, IC, *I)."""
        return (self.mb, self.ic, *self.i)

    @property
    def wei_shape(self) -> tuple[int, ...]:
        """(OC, IC, *K), or (G, OC/G, IC/G, *K) if the descriptor has groups."""
        groups = (self.g,) if self.has_groups else ()
        return (*groups, self.oc // self.g, self.ic // self.g, *self.k)

    @property
    def product_shape(self) -> tuple[int, ...]:
        """(MB, OC, *O)."""
        return (self.mb, self.oc, *self.o)

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """(OC,)."""
        return (self.oc,)

    @cached_property
    def dims(self) -> Mapping[str, int]:
        """Size of every dim by name (g, mb, ic, oc, ih, ...), for the existing axes only."""
        spatial = {kind + axis: getattr(self, kind)[n] for kind in "ioksdp" for n, axis in enumerate(self.axes)}
        return {"g": self.g, "mb": self.mb, "ic": self.ic, "oc": self.oc, **spatial}

    @cached_property
    def flops_dense(self) -> int:
        """Two operations per element of the coarse side, tap and pair of channels, including taps that read padding."""
        taps = math.prod(self.k) * math.prod(self.coarse)
        fused = 0 if self.depthwise is None else self.fused.flops_dense
        return 2 * self.mb * self.oc * (self.ic // self.g) * taps + fused

    @cached_property
    def flops_real(self) -> int:
        """Two operations per multiplication with an element that exists, taps on padding excluded."""
        taps = math.prod(self.real_taps(axis) for axis in range(self.rank))
        fused = 0 if self.depthwise is None else self.fused.flops_real
        return 2 * self.mb * self.oc * (self.ic // self.g) * taps + fused

    def real_taps(self, axis: int) -> int:
        """Return the number of pairs (coarse coordinate, tap) along `axis` that read inside the fine side."""
        p, box = self.p[axis], ((self.coarse[axis], self.s[axis]), (self.k[axis], self.d[axis] + 1))
        return pairs_below(p + self.fine[axis], *box) - pairs_below(p, *box)

    def tap_range(self, axis: int, tap: int) -> tuple[int, int]:
        """Return the half-open range of coarse coordinates along `axis` at which `tap` reads inside the fine side.

        The range may be empty.
        """
        offset = tap * (self.d[axis] + 1) - self.p[axis]
        s = self.s[axis]
        low = min(max(0, -(offset // s)), self.coarse[axis])
        high = min(self.coarse[axis], (self.fine[axis] - 1 - offset) // s + 1)
        return low, max(low, high)

    def _canonical_form(self) -> Conv:
        made = super()._canonical_form()
        return made._changed({"dir": "FWD_D"}) if self.dir == "FWD_I" else made

    def _dim_names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        groups = ("g",) if self.has_groups else ()
        i, o, k = (tuple(kind + axis for axis in self.axes) for kind in "iok")
        return ("mb", "ic", *i), (*groups, "oc", "ic", *k), ("mb", "oc", *o), ("oc",)

    def legal_policies(self, kind: Kind, argument: str) -> dict[str, int]:
        one = {"common": 1}
        ic, oc = ({"per_oc": size, "per_dim_1": size} for size in (self.ic, self.oc))
        if self.dir == "BWD_D":
            return {"src": one | ic, "wei": one, "dst": one}.get(argument, {}) if kind is SCALES else {}
        if not self.forward:
            return {}
        weights = {"per_oc": self.oc}
        weights |= {"per_dim_0": self.g, "per_dim_01": self.oc} if self.has_groups else {"per_dim_0": self.oc}
        if kind is SCALES:
            fused = one | {"per_oc": self.oc, "per_dim_0": self.oc, "per_dim_01": self.oc}
            return {
                "src": one, "wei": one | weights, "dst": one | oc, "attr_post_op_dw_wei": fused,
                "attr_post_op_dw_dst": one | oc,
            }[argument]  # fmt: skip
        return {"src": one | ic, "wei": one | weights, "dst": one | oc}.get(argument, {})

    @cached_property
    def fused(self) -> Conv:
        """The depthwise convolution among the post-ops as a problem of its own; its flops are counted by this problem
        too.
        """
        op = self.post_ops[self.depthwise or 0]
        assert isinstance(op, Depthwise)
        return Conv(
            mb=self.mb, ic=self.oc, oc=self.oc, i=self.o, o=self.dst_shape[2:], k=(op.k,) * self.rank,
            s=(op.s,) * self.rank, d=(0,) * self.rank, p=(op.p,) * self.rank, g=self.oc, has_groups=True,
            dt=(self.dt[2], self.dt[1], op.dtype), dtag=self.dtag, accuracy=self.accuracy,
        )  # fmt: skip

    @property
    def is_pointwise(self) -> bool:
        return self.rank == 2 and self.k == (1, 1) and not self.deconv

    # -- checks ----------------------------------------------------------------------------------------------------

    def _normalise(self) -> None:
        """Convert every number to a Python int, because numpy integers overflow."""
        for field in ("mb", "ic", "oc", "g"):
            object.__setattr__(self, field, integer(field, getattr(self, field)))
        for field in "ioksdp":
            object.__setattr__(self, field, integers(field, getattr(self, field)))
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
        if pr > -s:
            return
        implied = f"o{a}={o} implies a back pad of {pr}, which is not above -s{a}={-s}: "
        if self.deconv:
            largest = i * s + self.keff[axis] - p - 1
            same = (i - 1) * s + self.keff[axis] - 2 * p
            raise self._fail(
                f"{implied}this is output padding that no input size explains; the largest legal o{a} is {largest}, "
                f"and there is no smallest; equal pads at both ends give o{a}={same}",
                "bad-output-size",
            )
        smallest = max(output_size(i, k, s, d, p, 0), 0)
        raise self._fail(
            f"{implied}the smallest legal o{a} is "
            f"{smallest}, and there is no largest (output beyond the input only sees padding); equal pads at both "
            f"ends give o{a}={output_size(i, k, s, d, p, p)}",
            "bad-output-size",
        )

    def _fail(self, why: str, code: str) -> UsageError:
        return UsageError(f"{why} (in {self.descriptor()})", code=code)

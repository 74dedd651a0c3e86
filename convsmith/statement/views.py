"""A problem as a GEMM-like statement ``C[m, n] += A[m, k] * B[k, n]`` over views.

A convolution relates two tensors: the *image*, whose coordinate along an axis is ``x * s + k * (d + 1) - p``, and the
*grid*, whose coordinate is ``x``.  Forward computes the grid from the image, backward by data computes the image from
the grid, backward by weights computes the weights from both.  A deconvolution exchanges source and destination.  There
are hence three statements, which differ in the roles of the tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from convsmith.arith.simplify import simplify
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.ir.index import Cond, Index, Var, as_index, conj, eq, false, floordiv, mod, true
from convsmith.ir.intern import nodes
from convsmith.layout.indirection import Axis
from convsmith.machine.base import Machine
from convsmith.problem.attributes import ZERO_POINTS
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import factor_type
from convsmith.statement.statement import Dim, Requantised, Statement, View

IMAGES = "mb"
"""The dim of images; a kernel treats all images alike."""


def end(dim: str) -> Var:
    """Return the size of ``dim`` that is known only at the call."""
    return Var(f"{dim}_end")


def front_pad(axis: str) -> Var:
    """Return the front pad along ``axis`` that is known only at the call."""
    return Var(f"pad_{axis}")


def statement(p: Problem, target: Machine | None = None, symbolic: bool = False, padded: bool = True) -> Statement:
    """Return the statement of a matrix product, or of a convolution or deconvolution in its direction.

    ``target`` determines the type of the sums; without it, the type is correct for every target. In the masks of a
    ``symbolic`` statement, extents and pads are sizes of its kernel, and the numbers of ``p`` are placeholders; one
    that is not ``padded`` holds for calls without pads, and its masks are true. The intern table caches the statement,
    because choosing a config and planning it both need it.
    """
    acc = sums_type(p, target)
    known, key = nodes(), (statement, p, acc, symbolic, padded)
    made: Statement | None = known.get(key)
    if made is None:
        strict = p.accuracy == "strict" and acc != "s32"
        made = known[key] = replace(_statement(p, acc, symbolic, padded), strict=strict)
    return made


def _statement(p: Problem, acc: str, symbolic: bool, padded: bool) -> Statement:
    if isinstance(p, Matmul):
        return _product(p, acc)
    if not isinstance(p, Conv):
        raise UnsupportedError(f"{p} has several stages; available are kernels of one", code="unsupported-chain")
    return _BY_RESULT[_result(p)](_Relation(p, acc, symbolic, padded))


def sums_type(p: Problem, target: Machine | None) -> str:
    """Return the type of the sums: the narrowest that the problem permits and the target can add up, else the
    problem's.
    """
    return p.acc if target is None or target.row(*p.types) is None else p.types[2]


def _product(p: Matmul, acc: str) -> Statement:
    """Return the statement of a matrix product; a batch dim along which the weights are constant is a dim of M."""
    *batch, m, n, k = (Dim(name, size, "") for name, size in p.dims.items())
    outer = []
    for d, size in zip(batch, p.wei_shape):
        outer.append(Dim(d.name, d.size, "m" if size == 1 else "batch"))
    dims = (*outer, Dim(m.name, m.size, "m"), Dim(n.name, n.size, "n"), Dim(k.name, k.size, "k"))
    rows = {d.name for d in outer if d.kind == "m"}
    a, b, c = _at(p, p.tensor("src")), _at(p, p.tensor("wei"), rows), _at(p, p.tensor("dst"))
    b = replace(b, constant=True)
    a, b = _of_bits(p, a, p.bits[0], "u8"), _of_bits(p, b, p.bits[1], "s8")
    return Statement(dims, (a, b), c, (k.name,), acc, _shifted(p))


def _of_bits(p: Matmul, view: View, bits: int, factor: str) -> View:
    """Return the view with its entries requantised if they have fewer than 8 bits."""
    if bits == 8:
        return view
    rest = f"rounding_{view.name}" if p.rounding == "probabilistic" else ""
    return replace(view, requantised=Requantised(bits, factor, rest))


def _shifted(p: Problem) -> bool:
    return any(p.quantity(ZERO_POINTS, argument) for argument in ("src", "wei"))


def _at(p: Matmul, t: Tensor, repeated: Collection[str] = ()) -> View:
    """Return a matrix at the variables named after its dims; at 0 along dims in which it is broadcast."""
    varies = (size == p.dims[name] and name not in repeated for name, size in zip(t.dims, t.shape))
    coords = tuple(Var(name) if v else as_index(0) for name, v in zip(t.dims, varies))
    return View(t.name, factor_type(t.dtype), t.layout, coords, (true(),) * len(coords), narrow=_narrow(t))


def _narrow(t: Tensor) -> str:
    """Return the type of a tensor's numbers if kernels multiply them in another type, otherwise the empty string."""
    return t.dtype if factor_type(t.dtype) != t.dtype else ""


def reads_windows(p: Conv) -> bool:
    """Return whether a pixel of the result reads the taps of one window, each of which is present without pads."""
    return _result(p) == "grid"


def _result(p: Conv) -> str:
    """Return which of the three tensors is computed."""
    if p.dir.startswith("BWD_W"):
        return "weights"
    return "image" if p.deconv != (p.dir == "BWD_D") else "grid"


@record(frozen=True)
class _Side:
    """A tensor of activations: its channels within a group, and its coordinate along each axis."""

    tensor: Tensor
    channel: Dim
    size: int
    axes: tuple[Dim, ...]


class _Relation:
    """The variables, dims and views that the three statements share."""

    def __init__(self, p: Conv, acc: str, symbolic: bool, padded: bool) -> None:
        self.p, self.acc, self.symbolic, self.padded = p, acc, symbolic and padded, padded
        self.group = (Dim("g", p.g, "batch"),) if p.g > 1 else ()
        self.g: Index = Var("g") if p.g > 1 else as_index(0)
        tensors = {t.holds: t for t in p.tensors}
        src = self._side(tensors["src"], "ic", p.ic, "i", p.i)
        dst = self._side(tensors["dst"], "oc", p.oc, "o", p.o)
        self.image, self.grid = (dst, src) if p.deconv else (src, dst)
        self.wei = tensors["wei"]
        self.batch = Dim(IMAGES, p.mb, "", sort="images")
        self.taps = tuple(Dim("k" + a, n, "", a, "taps") for a, n in zip(p.axes, p.k))
        self.pads: tuple[Index, ...] = tuple(map(front_pad, p.axes)) if self.symbolic else tuple(map(as_index, p.p))

    def sizes(self, side: _Side) -> tuple[Var, ...]:
        """Return the sizes in the masks of a view of ``side``."""
        return (*(end(d.name) for d in side.axes), *map(front_pad, self.p.axes)) if self.symbolic else ()

    def _side(self, tensor: Tensor, channel: str, channels: int, letter: str, sizes: tuple[int, ...]) -> _Side:
        axes = tuple(Dim(letter + a, n, "", a) for a, n in zip(self.p.axes, sizes))
        return _Side(tensor, Dim(channel, channels // self.p.g, ""), channels, axes)

    def weights(self) -> View:
        """Return the view of the weights, whose mask is true."""
        head = (self.g,) if self.p.has_groups else ()
        coords = (*head, Var("oc"), Var("ic"), *(Var(d.name) for d in self.taps))
        return View(
            self.wei.name, factor_type(self.wei.dtype), self.wei.layout, coords, (true(),) * len(coords),
            constant=self.wei.role == "in", narrow=_narrow(self.wei),
        )  # fmt: skip

    def plain(self, side: _Side) -> View:
        """Return the view of a side at its own coordinates."""
        return self._view(side, [Var(d.name) for d in side.axes], [true() for _ in side.axes])

    def gathered(self, side: _Side) -> View:
        """Return the view of the image at a pixel of the grid and a tap."""
        coords = [self.meeting(n) for n in range(self.p.rank)]
        return self._view(side, coords, [self._in_range(x, d) for x, d in zip(coords, side.axes)])

    def scattered(self, side: _Side) -> View:
        """Return the view of the grid at a pixel of the image and a tap; its mask requires that the stride divides."""
        coords, masks = [], []
        for n, (image, d) in enumerate(zip(self.image.axes, side.axes)):
            # One pixel of the grid meets the same taps with any stride; the kernel's extent makes this explicit.
            single = d.size == 1 and not self.p.d[n] and not self.symbolic
            s = max(self.p.s[n], self.p.k[n]) if single else self.p.s[n]
            moved = Var(image.name) + self.pads[n] - Var(self.taps[n].name) * (self.p.d[n] + 1)
            coords.append(floordiv(moved, s))
            there = conj((self._in_range(coords[-1], d), eq(mod(moved, s), 0)))
            masks.append(there if self.symbolic or self.p.real_taps(n) else false())
        return self._view(side, coords, masks)

    def window(self, source: _Side, output: _Side) -> tuple[Axis, ...]:
        """Return the axes of the window between two sides; in the other direction it is read from the grid."""
        p, extents = self.p, ((a.size, b.size) for a, b in zip(source.axes, output.axes))
        return tuple(
            Axis(i, o, k, s, d, pad, source is self.grid) for (i, o), k, s, d, pad in zip(extents, p.k, p.s, p.d, p.p)
        )

    def meeting(self, n: int) -> Index:
        """Return the coordinate of the image at a pixel of the grid and a tap, along axis ``n``."""
        pixel, tap = Var(self.grid.axes[n].name), Var(self.taps[n].name)
        return pixel * self.p.s[n] + tap * (self.p.d[n] + 1) - self.pads[n]

    def _in_range(self, coord: Index, d: Dim) -> Cond:
        """Return whether ``coord`` lies within ``d``."""
        size = end(d.name) if self.symbolic else as_index(d.size)
        return conj((coord >= 0, coord < size)) if self.padded else true()

    def _view(self, side: _Side, coords: list[Index], masks: list[Cond]) -> View:
        dims = self.taps if self.symbolic else (*self.image.axes, *self.grid.axes, *self.taps)
        ranges = {Var(d.name): (0, d.size - 1) for d in dims}
        channel = self.g * side.channel.size + Var(side.channel.name)
        simple = [simplify(m, ranges) for m in masks]
        t = side.tensor
        return View(t.name, t.dtype, t.layout, (Var(IMAGES), channel, *coords), (true(), true(), *simple))

    def dims(self, *roles: tuple[str, tuple[Dim, ...]]) -> tuple[Dim, ...]:
        """Return the group dim, then dims in the given roles."""
        return (*self.group, *(replace(d, kind=kind) for kind, dims in roles for d in dims))


def _to_grid(r: _Relation) -> Statement:
    """Return the statement in which A is the image, B the weights: N is the grid's channels, K the image's channels and
    the taps.
    """
    return _pixels(r, r.grid, r.image, r.gathered(r.image))


def _to_image(r: _Relation) -> Statement:
    """Return the statement in which A is the grid, B the weights: N is the image's channels, K the grid's channels and
    the taps.
    """
    return _pixels(r, r.image, r.grid, r.scattered(r.grid))


def _pixels(r: _Relation, result: _Side, source: _Side, a: View) -> Statement:
    dims = r.dims(
        ("m", (r.batch,)), ("n", (result.channel,)), ("m", result.axes), ("k", (source.channel, *r.taps))
    )  # fmt: skip
    order = (*(d.name for d in r.taps), source.channel.name)
    axes = r.window(source, result)
    return Statement(
        dims, (a, r.weights()), r.plain(result), order, r.acc, _shifted(r.p), axes=axes, sizes=r.sizes(source)
    )  # fmt: skip


def _to_weights(r: _Relation) -> Statement:
    """Return the statement in which A is the image, B the grid: N is the grid's channels, M the taps and the image's
    channels, K all pixels.
    """
    dims = r.dims(
        ("n", (r.grid.channel,)), ("m", (*r.taps, r.image.channel)), ("k", (r.batch, *r.grid.axes))
    )  # fmt: skip
    order = (IMAGES, *(d.name for d in r.grid.axes))
    axes = r.window(r.image, r.grid)
    factors = (r.gathered(r.image), r.plain(r.grid))
    return Statement(dims, factors, r.weights(), order, r.acc, axes=axes, sizes=r.sizes(r.image))


_BY_RESULT = {"grid": _to_grid, "image": _to_image, "weights": _to_weights}

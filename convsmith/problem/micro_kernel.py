"""Names of depthwise micro-kernels, which encode every decision, in XNNPACK's notation.

``f32_dwconv_up16x9`` computes 16 channels and 9 taps in one pass.  ``f32_dwconv_5f5m5l16c8s4r`` computes larger kernels
in several passes: 5 taps in the first, 5 in each middle pass and 5 in the last, for a tile of 16 channels; remainder
channels go in subtiles of 8.  XNNPACK rounds channels up to a multiple of 4 here; convsmith never reads beyond the
channels and keeps this number only as part of the name.  Quantised kernels name their requantisation, for example
``qs8_dwconv_fp32_up16x9``.

The names of XNNPACK's functions and files are taken as well: ``xnn_f32_dwconv_minmax_ukernel_9p16c__avx512f`` and
``f32-dwconv-9p16c-minmax-avx512f.c``, in any folder, are ``f32_dwconv_up16x9``. Every kernel here clamps its output;
the instruction set of such a name says whose registers the tile was made for, and has no meaning here.
"""

from __future__ import annotations

import re

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record

TYPES = ("f32", "f16", "bf16", "qs8", "qu8")
REQUANTISATIONS = {"fp32": "s32_scale", "rndnu": "s32_scale_up"}
"""Requantisations by name, each with the integer step that multiplies the sums by a channel's scale."""

_TILE = (
    r"(?:up(?P<up>\d+)x(?P<taps>\d+)|(?P<primary>\d+)p(?P<channels>\d+)c|"
    r"(?P<f>\d+)f(?P<m>\d+)m(?P<l>\d+)l(?P<c>\d+)c(?P<s>\d+)s(?P<r>\d+)r)"
)
_OWN = re.compile(rf"(?P<type>[a-z]+\d+)_dwconv(?:_(?P<requantise>[a-z]+\d*))?_{_TILE}")
_FUNCTION = re.compile(
    rf"xnn_(?P<type>[a-z]+\d+)_dwconv(?:_minmax)?(?:_(?P<requantise>fp32|rndnu))?_ukernel_{_TILE}(?:__\w+)?"
)
_FILE = re.compile(
    rf"(?:[\w./-]+/)?(?P<type>[a-z]+\d+)-dwconv-{_TILE}(?:-minmax)?(?:-(?P<requantise>fp32|rndnu))?"
    r"(?:-[a-z0-9-]+)?(?:\.c)?"
)
_NAMES = (_OWN, _FUNCTION, _FILE)
"""The forms of names: this package's, and those of XNNPACK's functions and files."""


@record(frozen=True)
class MicroKernel:
    """A micro-kernel's name, parsed. ``taps`` holds the taps of the single pass, or of the first, middle and last pass.
    """

    type: str
    channel_tile: int
    taps: tuple[int, ...]
    subtile: int = 0
    rounding: int = 0
    requantise: str = ""

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise ConfigError("type", f"{self.type}_dwconv: no such type; legal are {', '.join(TYPES)}")
        legal = REQUANTISATIONS if self.quantised else ("",)
        if self.requantise not in legal:
            expected = " or ".join(f"_{r}_" for r in REQUANTISATIONS) if self.quantised else "no requantisation"
            raise ConfigError("requantisation", f"{self.name}: expected {expected} after {self.type}_dwconv")
        if self.channel_tile < 1:
            raise ConfigError(
                "channel-tile", f"{self.name}: a channel tile of {self.channel_tile}; at least 1 is legal"
            )
        if len(self.taps) not in (1, 3) or min(self.taps) < 1:
            raise ConfigError("kernel-tile", f"{self.name}: a kernel tile of {min(self.taps)}; at least 1 is legal")
        c, s, r = self.channel_tile, self.subtile, self.rounding
        if self.multipass and not (s and r and not c % s and not s % r):
            raise ConfigError(
                "subtile",
                f"{self.name}: a subtile of {s} and a rounding of {r}: expected a divisor of the tile of {c}, and one "
                "of the subtile",
            )

    @property
    def quantised(self) -> bool:
        """Whether the kernel computes on quantised integers."""
        return self.type.startswith("q")

    @property
    def multipass(self) -> bool:
        """Whether the taps are split into several passes."""
        return len(self.taps) > 1

    @property
    def name(self) -> str:
        """XNNPACK's name of the kernel."""
        head = f"{self.type}_dwconv_" + (f"{self.requantise}_" if self.requantise else "")
        if not self.multipass:
            return f"{head}up{self.channel_tile}x{self.taps[0]}"
        f, m, last = self.taps
        return f"{head}{f}f{m}m{last}l{self.channel_tile}c{self.subtile}s{self.rounding}r"

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def parse(name: str) -> MicroKernel:
        """Return the micro-kernel called `name`. ConfigError if the name or one of its numbers is not legal."""
        match = _match(name)
        if match is None:
            raise ConfigError(
                "name",
                f"{name!r} is not the name of a micro-kernel; legal is, for example, f32_dwconv_up16x9 or "
                "f32_dwconv_5f5m5l16c8s4r",
            )
        type_, requantise = match["type"], match["requantise"] or ""
        if match["up"]:
            return MicroKernel(type_, int(match["up"]), (int(match["taps"]),), requantise=requantise)
        if match["primary"]:
            return MicroKernel(type_, int(match["channels"]), (int(match["primary"]),), requantise=requantise)
        taps = tuple(int(match[x]) for x in "fml")
        return MicroKernel(type_, int(match["c"]), taps, int(match["s"]), int(match["r"]), requantise)

    def passes(self, kernel_size: int) -> int:
        """Return the number of middle passes for a kernel of `kernel_size` taps."""
        if not self.multipass:
            return 0
        first, middle, last = self.taps
        return max(0, -(-(kernel_size - first - last) // middle))

    def pointers(self, kernel_size: int) -> int:
        """Return the number of pointers per output, including those to zeros. ConfigError if the taps exceed the tile.
        """
        if kernel_size < 1:
            raise ConfigError("kernel-size", f"{self.name}: a kernel of {kernel_size} taps; at least 1 is legal")
        if self.multipass:
            first, middle, last = self.taps
            return first + self.passes(kernel_size) * middle + last
        if kernel_size > self.taps[0]:
            raise ConfigError(
                "kernel-tile", f"{self.name}: the kernel has {kernel_size} taps, its tile {self.taps[0]}; legal are up "
                f"to {self.taps[0]}, or a multipass kernel such as {self.type}_dwconv_5f5m5l{self.channel_tile}c4s4r",
            )  # fmt: skip
        return self.taps[0]


def is_micro_kernel(name: str) -> bool:
    """Return whether a text has the form of a micro-kernel's name."""
    return _match(name) is not None


def _match(name: str) -> re.Match[str] | None:
    return next((found for form in _NAMES if (found := form.fullmatch(name))), None)

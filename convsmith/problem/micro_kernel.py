"""Names of depthwise micro-kernels: every decision of one, as XNNPACK spells them.

``f32_dwconv_up16x9`` takes 16 channels and 9 taps in one pass.  ``f32_dwconv_5f5m5l16c8s4r`` takes larger kernels in
several: 5 taps in the first pass, 5 in each of those in the middle, 5 in the last, 16 channels at once; what is left of
the channels in subtiles of 8.  The 4, to which others round the channels up, is part of the name only: nothing is read
beyond the channels.  Quantised ones name their requantisation: ``qs8_dwconv_fp32_up16x9``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from convsmith.diag.errors import ConfigError

TYPES = ("f32", "f16", "bf16", "qs8", "qu8")
REQUANTISATIONS = ("fp32", "rndnu")

_NAME = re.compile(
    r"(?P<type>[a-z]+\d+)_dwconv(?:_(?P<requantise>[a-z]+\d*))?_"
    r"(?:up(?P<up>\d+)x(?P<taps>\d+)|(?P<f>\d+)f(?P<m>\d+)m(?P<l>\d+)l(?P<c>\d+)c(?P<s>\d+)s(?P<r>\d+)r)"
)


@dataclass(frozen=True)
class MicroKernel:
    """``taps`` of one pass, or of the first, those in the middle, and the last."""

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
        return self.type.startswith("q")

    @property
    def multipass(self) -> bool:
        return len(self.taps) > 1

    @property
    def name(self) -> str:
        head = f"{self.type}_dwconv_" + (f"{self.requantise}_" if self.requantise else "")
        if not self.multipass:
            return f"{head}up{self.channel_tile}x{self.taps[0]}"
        f, m, last = self.taps
        return f"{head}{f}f{m}m{last}l{self.channel_tile}c{self.subtile}s{self.rounding}r"

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def parse(name: str) -> MicroKernel:
        """Read a name; ConfigError says what is wrong with it."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ConfigError(
                "name",
                f"{name!r} is no name of a micro-kernel; for example f32_dwconv_up16x9, f32_dwconv_5f5m5l16c8s4r",
            )
        type_, requantise = found["type"], found["requantise"] or ""
        if found["up"]:
            return MicroKernel(type_, int(found["up"]), (int(found["taps"]),), requantise=requantise)
        taps = tuple(int(found[x]) for x in "fml")
        return MicroKernel(type_, int(found["c"]), taps, int(found["s"]), int(found["r"]), requantise)

    def passes(self, kernel_size: int) -> int:
        """Passes in the middle for a kernel of that many taps."""
        if not self.multipass:
            return 0
        first, middle, last = self.taps
        return max(0, -(-(kernel_size - first - last) // middle))

    def pointers(self, kernel_size: int) -> int:
        """Pointers of an output, those to zeros included; ConfigError where the tile is too small."""
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

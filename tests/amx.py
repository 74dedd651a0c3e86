"""The level with AMX, and the mark of tests that run its kernels."""

from __future__ import annotations

import pytest

from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS

AMX = next(t for t in LEVELS if t.name == "avx512_amx")
needs_amx = pytest.mark.skipif(
    "avx512_amx" not in {t.name for t in host_targets()}, reason="this machine lacks avx512_amx"
)

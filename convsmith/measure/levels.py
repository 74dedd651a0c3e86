"""Libraries held to an instruction-set level, so that kernels of a lower level are compared with code of that level.

Each library reads the name of a level from the environment when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from convsmith.machine.registry import host_targets

__all__ = ["hold"]

_ISA, _CAPABILITY, _MKL = "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"
"""Variables of oneDNN and MKL, which PyTorch contains, and of PyTorch's own loops.

MKL multiplies matrices in some of PyTorch's convolutions, of one tap and in gradients of weights among others.
"""
_NAMES = {
    "avx2": {_ISA: "AVX2", _CAPABILITY: "avx2", _MKL: "AVX2"},
    "avx2_vnni": {_ISA: "AVX2_VNNI", _CAPABILITY: "avx2", _MKL: "AVX2_E1"},
    "avx2_vnni_int8": {_ISA: "AVX2_VNNI_2", _CAPABILITY: "avx2", _MKL: "AVX2_E1"},
    "avx512": {_ISA: "AVX512_CORE", _CAPABILITY: "avx512", _MKL: "AVX512"},
    "avx512_vnni": {_ISA: "AVX512_CORE_VNNI", _CAPABILITY: "avx512", _MKL: "AVX512_E1"},
    "avx512_bf16": {_ISA: "AVX512_CORE_BF16", _CAPABILITY: "avx512", _MKL: "AVX512_E2"},
    "avx512_fp16": {_ISA: "AVX512_CORE_FP16", _CAPABILITY: "avx512", _MKL: "AVX512_E3"},
}
"""The libraries' names of levels."""
_VARIABLES = {"torch": (_ISA, _CAPABILITY, _MKL), "onednn": (_ISA,)}
"""The variables that hold each library."""


def hold(level: str, libraries: Sequence[str]) -> tuple[str, ...]:
    """Hold ``libraries`` that are not loaded yet to a ``level`` of this machine, and return those that cannot be held.

    The machine's highest level needs no hold.
    """
    if level == host_targets()[0].name:
        return ()
    names = _NAMES.get(level, {})
    held = [name for name in libraries if name in _VARIABLES and names]
    os.environ |= {variable: names[variable] for name in held for variable in _VARIABLES[name]}
    return tuple(name for name in libraries if name not in held)

"""Levels of AArch64, highest first; each level includes the rows of the levels below it, as versions of the
architecture do.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import RegisterFile, WordConversion
from convsmith.ir.types import Half
from convsmith.machine.aarch64.instructions import INSTRUCTIONS
from convsmith.machine.aarch64.matrices import INSTRUCTIONS as MATRICES
from convsmith.machine.aarch64.matrices import SCALED as SCALED_MATRICES
from convsmith.machine.aarch64.outer_products import rows as outer_products
from convsmith.machine.aarch64.outer_products import tiles
from convsmith.machine.aarch64.scalable import rows as scalable_rows
from convsmith.machine.aarch64.scalable import unit_rows
from convsmith.machine.aarch64.wide_matrices import rows as wide_matrices
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.memory import core_caches
from convsmith.machine.transpositions import Transpositions

TRIPLE = "aarch64-unknown-linux-gnu"
_BASE = ("neon",)
_EXTENSIONS = (("dotprod", "dotprod"), ("fp16", "fullfp16"), ("bf16", "bf16"), ("i8mm", "i8mm"))
"""Extensions after which levels are named, with LLVM's names of the features, lowest first."""
_BITS = 128
_SHUFFLES = ("zip", "tbl")
_COSTS = Costs(
    multiply_add=0.5, broadcast=0.5, latency=4.0, fragment_product=1.0, fragment_move=1.0, fragment_move_far=1.0,
    fragment_row=0.5, fragment_turn=25, fragment_configuration=0, fragment_finish=2, fragment_run=0, fragment_line=0,
    fragment_pixel=0,
)  # fmt: skip
"""Costs of a core with two vector units; a product of matrices is two instructions."""
_ONE_PRODUCT = replace(_COSTS, fragment_product=0.5, fragment_move=0.5, fragment_move_far=0.5)
"""Costs of such a core for rows whose product of matrices is one instruction."""
_SCALABLE_COSTS = replace(_COSTS, temporaries=3)
"""Products of scalable vectors have no form by element. LLVM loads the elements of several products ahead, each into a
register of its own, and keeps sums in memory where none are left.
"""
_REACH = 64
"""Elements that the offset of a load into all lanes of a scalable vector reaches."""
_WORDS = tuple(
    WordConversion(lanes, f"llvm.aarch64.neon.fcvtns.{form}", result)
    for lanes, form, result in ((0, "i32.f32", "i32"), (4, "v4i32.v4f32", "<4 x i32>"))
)


def _neon(count: int) -> Machine:
    """Return NEON with the first ``count`` extensions."""
    needs = (*_BASE, *(feature for _, feature in _EXTENSIONS[:count]))
    half: Half = "computes" if "fullfp16" in needs else "converts"
    return Machine(
        name="+".join(("aarch64", *(name for name, _ in _EXTENSIONS[count - 1 : count]))), triple=TRIPLE, cpu="generic",
        features=",".join("+" + name for name in needs), needs=needs,
        vectors=RegisterFile("vector", 32, _BITS), memories=core_caches(32768, 1 << 18, rates=(32, 16)),
        costs=_COSTS, attributes=(),
        instructions=tuple(row for row in (*INSTRUCTIONS, *MATRICES) if set(row.needs) <= set(needs)),
        transpositions=Transpositions(_BITS, _BASE, _SHUFFLES), half=half, word_conversions=_WORDS,
    )  # fmt: skip


def _sve(scale: int) -> Machine:
    """Return SVE with vectors of ``scale`` times 128 bits, above all of NEON."""
    neon = _neon(len(_EXTENSIONS))
    bits = _BITS * scale
    needs = (*neon.needs, "sve", f"sve{bits}")
    return replace(
        neon, name=f"aarch64+sve{bits}", features=f"{neon.features},+sve", needs=needs,
        vectors=RegisterFile("vector", 32, bits), costs=_ONE_PRODUCT,
        attributes=((f"vscale_range({scale},{scale})", ""),),
        instructions=(*scalable_rows(scale), *wide_matrices(scale)), transpositions=(),
    )  # fmt: skip


def _sme(scale: int) -> Machine:
    """Return SME with streaming vectors of ``scale`` times 128 bits, above all of NEON.

    Kernels run in streaming mode, in which every vector register is scalable.
    """
    sve, neon = _sve(scale), _neon(len(_EXTENSIONS))
    needs = (*neon.needs, "sme", "sme-f64f64", f"sme{_BITS * scale}")
    return replace(
        sve, name=f"aarch64+sme{_BITS * scale}", features=f"{neon.features},+sme,+sme-f64f64", needs=needs,
        instructions=(*scalable_rows(scale, "sme"), *outer_products(scale)), fragments=tiles(scale),
        part_attributes=("aarch64_pstate_sm_body", "aarch64_new_za"),
        called_attributes=("aarch64_pstate_sm_enabled", "aarch64_inout_za"),
    )  # fmt: skip


def _sme2(scale: int) -> Machine:
    """Return the second version of SME, above the first, with streaming vectors of ``scale`` times 128 bits."""
    sme = _sme(scale)
    return replace(
        sme, name="aarch64+sme2", features=f"{sme.features},+sme2", needs=(*sme.needs, "sme2"),
        instructions=(*scalable_rows(scale, "sme"), *outer_products(scale, second=True)),
    )  # fmt: skip


def _any_sve() -> Machine:
    """Return SVE with vectors of any length, above all of NEON, whose vectors are units of them."""
    neon = _neon(len(_EXTENSIONS))
    needs = (*neon.needs, "sve")
    return replace(
        neon, name="aarch64+sve", features=f"{neon.features},+sve", needs=needs,
        vectors=replace(neon.vectors, scalable=True), costs=_SCALABLE_COSTS,
        instructions=(*unit_rows(needs), *SCALED_MATRICES), repeated_reach=_REACH,
    )  # fmt: skip


LEVELS = (_sme2(4), _sme(4), _sve(4), _sve(2), _any_sve(), *(_neon(count) for count in range(len(_EXTENSIONS), -1, -1)))
"""Levels of SVE whose vector length is known require a feature of the project's own, such as ``sve256``, which no
machine reports."""

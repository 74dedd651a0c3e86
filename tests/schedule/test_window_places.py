"""Places of copied windows: zeros that fill up the terms are written once, whatever loops around the copy run once."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc, For
from convsmith.ir.walk import loops_of, statements_of
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

AMX = next(t for t in LEVELS if t.name == "avx512_amx")
CONFIG = (
    "--target=avx512_amx --lane=oc --fuse=kw+ic --register=ow:8,oc:16 --order=mb,oh,ow,oc --reduce=kh,kw_ic "
    "--instruction=tdpbusd_8 --k_step=kw_ic:32 --realise=window_copy"
)
LAYER = "ic3ih16oc16oh8kh7sh2ph3"


@pytest.mark.parametrize(
    ("images", "cache", "around", "within"),
    [(1, " --cache=oh:2", set(), {"oh.b"}), (1, "", set(), {"mb"}), (2, "", set(), {"mb"}),
     (2, " --cache=oh:2", {"oh.b"}, {"mb"})],
)  # fmt: skip
def test_empty_terms_are_filled_outside_of_the_loop_that_copies(
    images: int, cache: str, around: set[str], within: set[str]
) -> None:
    line = f"--dt=u8:s8:s32 --stag=axb --dtag=axb mb{images}{LAYER}"
    with interning():
        made = plan(parse_problem(line), Config.parse(CONFIG + cache), AMX)
        last = next(n for n, step in enumerate(made.pipeline) if step.name == "stage")
        kernel = run_steps(made.program.naive(), made.pipeline[: last + 1])
    (copy,) = (s for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "src_s")
    outside = {x.var.name for x in loops_of(kernel.body) if copy in statements_of(x)}
    fill, *copying = (x for x in loops_of(copy.body) if isinstance(x, For))
    assert outside == around
    assert {"oh.b", "mb"} & {x.var.name for x in copying} >= within
    assert "oh.b" not in {x.var.name for x in loops_of(fill)} and any(x.var.name == "src_s.z" for x in loops_of(fill))

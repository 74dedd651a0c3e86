"""What the default config makes of a problem's shape and of what follows its sums."""

from __future__ import annotations

import pytest

from convsmith.build.choose import default_config
from convsmith.problem import parse_problem
from convsmith.target.x86.levels import LEVELS

LAYER = "mb1ic8ih7oc20kh3ph1"


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("layout", ["", "--dtag=abcd", "--dtag=aBcd16b", "--dtag=aBcd8b"])
@pytest.mark.parametrize(("post_ops", "long"), [("", False), ("relu", False), ("tanh", True)])
def test_a_long_epilogue_has_a_loop_of_its_own_in_every_layout(
    isa: str, layout: str, post_ops: str, long: bool
) -> None:
    (target,) = (t for t in LEVELS if t.isa == isa)
    words = (layout, f"--attr-post-ops={post_ops}" if post_ops else "", LAYER)
    assert default_config(parse_problem(" ".join(filter(None, words))), target).drain is long

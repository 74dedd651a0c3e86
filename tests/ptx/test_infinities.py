"""Infinities of the source spoil no sums but those of which they are factors, under `--accuracy=strict`."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import check_result, expected, memories

from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from ptx.kernels import run_artifact
from ptx.tensor_kinds import AMPERE
from ptx.test_convolutions import made

LAST = "--stag=axb --wtag=axb --dtag=axb --dt=bf16"
LAYERS = {
    "few channels": (f"{LAST} mb1ic5ih9oc8oh9kh3ph1", ""),
    "stem": (f"{LAST} mb1ic3ih16oc16oh8kh7sh2ph3", ""),
    "stem in parts": (f"{LAST} mb1ic3ih16oc16oh8kh7sh2ph3",
                      "--lane=oc --instruction=mma_m16n8k16_bf16 --realise=pad_copy --shared=src,wei --sub_tile=8 "
                      "--register=oc:16,ow:8,oh:2 --group=oc:16,ow:8,oh:4,ic:4,kw:8,kh:1"),
    "gradient by data": AMPERE["backward-and-stride"],
    "gradient by data of few channels": (f"--dir=BWD_D {LAST} mb1ic5ih9oc8oh9kh3ph1", ""),
    "pixels along the columns": ("--dt=bf16 mb1ic5ih9oc16oh9kh3ph1",
                                 "--lane=ow --instruction=mma_m16n8k16_bf16 --realise=pad_copy --shared=src,wei "
                                 "--register=ow:8,oc:16 --group=ow:16,oc:16,ic:8,kw:4,kh:3"),
    "packed": AMPERE["packed"],
}  # fmt: skip
"""Problems with the words of their configs, by default those of sm_80; a step has more terms than there are taps."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
def test_an_infinity_spoils_no_sum_of_which_it_is_no_factor(name: str) -> None:
    line, words = LAYERS[name]
    problem = parse_problem(f"--accuracy=strict {line}")
    arrays = {k: v.copy() for k, v in random_arrays(problem).items()}
    source = arrays["diff_dst" if "BWD_D" in line else "src"].reshape(-1)
    source[np.random.default_rng(1).choice(source.size, 2, replace=False)] = np.inf
    memory = memories(problem, arrays)
    run_artifact(made(f"--accuracy=strict {line}", words, "sm_80"), memory, 0)
    check_result(problem, memory, expected(problem, arrays))

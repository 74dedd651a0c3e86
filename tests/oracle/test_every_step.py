"""Tiny problems of every kind, interpreted after every single rewrite: each must leave the numbers as they are."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from convolutions import Oracle, random_config, random_problem, small_target, with_options

from convsmith.build.packing import packing_steps
from convsmith.build.schedule import schedule
from convsmith.compiler.driver import naive_kernel
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.passes.manager import Step, run_steps
from convsmith.problem import Conv
from convsmith.schedule.config import Config
from convsmith.target.base import Target

KINDS = {
    "1x1": ("mb1ic5iw7oc6ow7kw1", "--lane=oc --tile=oc:4,ow:3"),
    "padded": ("mb1ic3ih4iw5oc5oh4ow5kh3kw3ph1pw1", "--lane=oc --tile=oc:4,ow:3 --reduce=kh,kw,ic"),
    "3d": ("mb1ic2id3ih3iw3oc3od3oh2ow3kd2kh2kw1pd1", "--lane=oc --tile=oc:4,ow:2,od:2 --reduce=kd,kh,kw,ic"),
    "stride": ("mb2ic3ih5iw6oc4oh3ow3kh3kw2sh2sw2ph1pw0", "--lane=oc --tile=oc:4,oh:2,ow:2"),
    "dilation": ("mb1ic2iw9oc5ow9kw3dw2pw3", "--lane=oc --tile=oc:8,ow:4 --reduce=kw,ic"),
    "asymmetric-pads": ("mb1ic3ih4iw4oc3oh6ow3kh3kw2ph3pw0", "--lane=oc --tile=oc:4,ow:2"),
    "negative-back-pads": ("mb1ic2ih6iw7oc3oh2ow3kh2kw1sh3sw3", "--lane=oc --tile=oc:4,ow:2"),
    "only-padding": ("mb1ic2iw3oc3ow2kw1sw9pw4", "--lane=oc --tile=oc:4"),
    "groups": ("g3mb1ic6iw5oc9ow5kw3pw1", "--lane=oc --tile=oc:4,ow:2"),
    "groups-along-lanes": ("g5mb1ic5ih3iw4oc5oh3ow4kh3kw3ph1pw1", "--lane=g --tile=g:4,ow:2 --reduce=kh,kw,ic"),
    "groups-and-channels": ("g3mb1ic6iw5oc6ow5kw3pw1", "--lane=g_oc --fuse=g+oc --tile=g_oc:4,ow:2"),
    "lanes-along-input": ("mb1ic6ih3iw4oc2oh3ow4kh3kw1ph1", "--lane=ic --tile=oc:2,ow:3 --reduce=kh,kw,ic"),
    "lanes-along-taps": ("mb1ic1iw12oc2ow8kw5", "--lane=kw --tile=oc:2,ow:4"),
    "lanes-along-pixels": ("mb1ic3iw13oc4ow13kw1", "--lane=ow --tile=ow:4,oc:3"),
    "fused-pixels": ("mb1ic3ih4iw5oc5oh4ow5kh1kw1", "--lane=oc --fuse=oh+ow --tile=oc:4,oh_ow:6"),
    "fused-reduction": ("mb1ic3iw5oc4ow5kw3pw1", "--lane=oc --fuse=ic+kw --tile=oc:4,ic_kw:2"),
    "reduction-tiles": ("mb1ic5iw5oc5ow5kw3pw1", "--lane=oc --tile=oc:4,ow:2,ic:3,kw:2"),
    "bias-relu": ("--dir=FWD_B --attr-post-ops=relu mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --tile=oc:4,ow:2"),
    "bias-leaky-clip": (
        "--dir=FWD_B --attr-post-ops=relu:0.5+clip:-2:6 mb1ic3iw5oc5ow5kw3pw1", "--lane=ic --tile=oc:2,ow:2",
    ),
    "channels-last": ("--stag=axb --dtag=axb mb2ic3iw5oc5ow5kw3pw1", "--lane=oc --tile=oc:4,ow:3"),
    "blocked": ("--stag=aBcd4b --dtag=aBcd4b mb1ic5ih3iw3oc6oh3ow3kh3kw3ph1pw1", "--lane=oc --tile=oc:4,ow:3"),
    "blocked-twice": ("--stag=aBc4b --dtag=ABc4b2a --wtag=ABc4b4a mb3ic5iw4oc3ow4kw3pw1", "--lane=oc --tile=oc:4"),
    "slack": ("--dtag=a:1:99_b:5:19_c:5:3 mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --tile=oc:4,ow:2"),
    "mask": ("mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --tile=oc:4,ow:2 --realise=mask"),
    "pad-copy": ("mb2ic2ih3iw4oc5oh3ow4kh3kw3ph1pw1", "--lane=oc --tile=oc:4,ow:3 --realise=pad_copy"),
    "not-packed": ("mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --tile=oc:4,ow:2 --pack="),
    "threads": ("mb2ic2ih3iw5oc3oh3ow5kh2kw3ph1pw1", "--lane=oc --tile=oc:4,ow:3 --reduce=kh,kw,ic --threads=2"),
    "one-function": ("mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --tile=oc:4,ow:2 --outline=no"),
    "threads-on-one-image": ("mb1ic3iw9oc3ow9kw3pw1", "--lane=oc --tile=oc:4,ow:3 --threads=2"),
    "few-pieces": ("mb1ic3iw5oc6ow5kw1", "--lane=oc --tile=oc:4,ow:3 --pieces=1"),
    "vanishing-loops": ("mb1ic1iw1oc1ow1kw1", "--lane=oc --tile=oc:4"),
}  # fmt: skip


def interpret_all(problem: Conv, config: Config, target: Target, seed: int = 0) -> set[str]:
    """Run the rewrites of the kernel and of its packing kernels; the passes that changed something."""
    with interning():
        oracle = Oracle(problem, target, seed)
        st, kernel = naive_kernel(problem)
        kernel = run_steps(kernel, schedule(st, config, target), [oracle])
        for pack in kernel.packs:
            truth = oracle.packed(pack, oracle.arrays(kernel)["wei"])
            run_steps(pack, packing_steps(pack, target), [_Packing(oracle, truth)])
        return oracle.changes


class _Packing:
    """The packing kernel too must write the same after every step."""

    def __init__(self, oracle: Oracle, truth: np.ndarray) -> None:
        self.oracle, self.truth = oracle, truth

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        if changed:
            found = self.oracle.packed(kernel, self.oracle.arrays(kernel)["wei"])
            assert (found == self.truth).all(), f"after {step}:\n{kernel}"


@pytest.mark.parametrize("kind", list(KINDS))
def test_kind(kind: str) -> None:
    line, words = KINDS[kind]
    interpret_all(Conv.parse(line), Config.parse(f"--isa=generic {words}"), small_target())


def test_the_kinds_use_every_pass() -> None:
    """Every pass that a schedule or a packing pipeline names changes some kernel above."""
    import convsmith.build.packing
    import convsmith.build.schedule

    used = {
        name
        for module in (convsmith.build.schedule, convsmith.build.packing)
        for name, value in vars(module).items()
        if getattr(value, "__module__", "").startswith("convsmith.passes.") and callable(value) and name != "Step"
    }
    changed: set[str] = set()

    class Changes:
        def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, new: bool) -> None:
            if new and step is not None:
                changed.add(step.name)

    for line, words in KINDS.values():
        with interning():
            st, kernel = naive_kernel(Conv.parse(line))
            run_steps(kernel, schedule(st, Config.parse(f"--isa=generic {words}"), small_target()), [Changes()])
    assert used - changed == set()


def random_case(seed: int, lanes: int) -> bool:
    rng = random.Random(seed)
    target = small_target(lanes)
    problem = with_options(random_problem(rng, macs=700), rng)
    config = random_config(rng, problem, target.isa, lanes, rng.choice((1, 1, 2)))
    try:
        interpret_all(problem, config, target, seed)
    except ConfigError:
        return False
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {problem} under {config}: {error}") from error
    return True


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("chunk", range(6))
def test_random_config(chunk: int, lanes: int) -> None:
    legal = sum(map(partial(random_case, lanes=lanes), range(chunk * 15, (chunk + 1) * 15)))
    assert legal > 3


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(50))
def test_random_config_at_length(chunk: int) -> None:
    for seed in range(chunk * 40, (chunk + 1) * 40):
        random_case(10_000 + seed, 2 + 2 * (seed % 2))
